"""The other side of `bench engine`'s `vs_plain_loop`: hidden states as people extract them by hand, with
output_hidden_states and one safetensors file a sample, in the engine's own dtype on a CPU.

Reads {"model", "threads", "taps", "batches": [[[id, ...], ...], ...], "out"} as one line and answers {}; then runs all
batches for each further line, and answers {"seconds"}.
"""

import json
import os
import sys
import time

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

# A torch whose CUDA libraries were left out crashes when transformers asks it about CUDA graphs.
torch.cuda.is_current_stream_capturing = lambda: False


def extract(model, batch, taps, first_row, out):
    longest = max(map(len, batch))
    ids = torch.tensor([sample + [0] * (longest - len(sample)) for sample in batch])
    mask = torch.tensor([[1] * len(sample) + [0] * (longest - len(sample)) for sample in batch])
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
    for i, sample in enumerate(batch):
        tokens = len(sample)
        states = torch.stack([output.hidden_states[tap + 1][i, :tokens] for tap in taps], dim=1)
        tensors = {"hidden_states": states.to(torch.bfloat16), "token_ids": ids[i, :tokens].clone()}
        save_file(tensors, os.path.join(out, f"hs_{first_row + i}.safetensors"))


def main():
    setup = json.loads(sys.stdin.readline())
    torch.set_num_threads(setup["threads"])
    model = AutoModelForCausalLM.from_pretrained(setup["model"], dtype=torch.float32).eval()
    out = setup["out"]
    os.makedirs(out, exist_ok=True)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        for name in os.listdir(out):
            os.unlink(os.path.join(out, name))
        start = time.perf_counter()
        with torch.inference_mode():
            for number, batch in enumerate(setup["batches"]):
                extract(model, batch, setup["taps"], 1000 * number, out)
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


main()
