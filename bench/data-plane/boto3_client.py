"""What people do today: one safetensors file a sample, uploaded by boto3 from 100 threads, then deleted.

Nothing is verified. Prints {"seconds", "cpu_seconds", "rss_bytes"} of writing and uploading.
"""

import json
import os
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import numpy as np
from botocore.config import Config
from safetensors.numpy import save_file

options = json.loads(sys.argv[1])
tokens, taps, hidden = options["tokens"], options["taps"], options["hidden"]
# bf16 has no numpy dtype; float16 has the same bytes.
states = np.frombuffer(os.urandom(tokens * taps * hidden * 2), np.float16).reshape(tokens, taps, hidden)
ids = np.arange(tokens, dtype=np.int64)
client = boto3.client(
    "s3",
    endpoint_url=options["endpoint"],
    region_name="us-east-1",
    config=Config(max_pool_connections=100, s3={"addressing_style": "path"}),
)
room = threading.Semaphore(200)


def upload(path, key):
    try:
        with open(path, "rb") as body:
            client.put_object(Bucket=options["bucket"], Key=key, Body=body)
        os.unlink(path)
    finally:
        room.release()


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


client.put_object(Bucket=options["bucket"], Key=f"{options['name']}/warm", Body=b"warm")
started, cpu = time.perf_counter(), cpu_seconds()
with ThreadPoolExecutor(100) as pool:
    futures = []
    for row in range(options["samples"]):
        room.acquire()
        path = os.path.join(options["directory"], f"hs_{row}.safetensors")
        save_file({"hidden_states": states, "token_ids": ids, "loss_mask": ids}, path)
        futures.append(pool.submit(upload, path, f"{options['name']}/hs_{row}.safetensors"))
    for future in futures:
        future.result()
print(
    json.dumps(
        {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": cpu_seconds() - cpu,
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )
)
