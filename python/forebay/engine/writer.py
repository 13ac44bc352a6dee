"""Writes states to the pack files while the model computes the next forward."""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from .channel import number
from .failure import failure_of
from .job import Sample, by_job
from .staging import Staged, Stager, summary


@dataclass
class Written:
    """One forward to be written: its samples, in the order in which their states stand in `staged`."""

    samples: list[Sample]
    staged: Staged
    #: The forward's time, shared among its samples by their tokens.
    forward_s: float


class Writer:
    def __init__(self, stager: Stager, crash: Callable[[BaseException], None]):
        self._stager = stager
        self._crash = crash
        # The stager's buffers bound it.
        self._inbox: queue.SimpleQueue[Written] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="writer", daemon=True).start()

    def put(self, written: Written) -> None:
        self._inbox.put(written)

    def _run(self) -> None:
        try:
            while True:
                self._write(self._inbox.get())
        except BaseException as error:
            self._crash(error)

    def _write(self, written: Written) -> None:
        bits, figures = written.staged.wait()
        begins = dict(zip(written.samples, offsets(written.samples), strict=True))
        tokens = len(bits)
        for job, samples in by_job(written.samples).items():
            start = time.monotonic()
            answers = []
            for sample in samples:
                span = slice(begins[sample], begins[sample] + sample.tokens)
                try:
                    answers.append(write_sample(sample, bits[span], figures[span]))
                except OSError as error:
                    job.fail([sample], failure_of(error))
            share = sum(sample.tokens for sample in samples) / tokens
            job.took(forward_s=written.forward_s * share, write_s=time.monotonic() - start)
            if answers:
                job.finish(answers)
        self._stager.free.put(written.staged.buffer)


def offsets(samples: list[Sample]) -> list[int]:
    ends = np.cumsum([sample.tokens for sample in samples]).tolist()
    return [end - sample.tokens for end, sample in zip(ends, samples, strict=True)]


def write_sample(sample: Sample, bits: np.ndarray, figures: np.ndarray) -> dict:
    """Writes bits [tokens, taps, hidden] to their place; the answer for it. Raises OSError."""
    data = memoryview(bits.reshape(-1)).cast("B")
    written = 0
    while written < len(data):
        written += os.pwrite(sample.job.fd, data[written:], sample.offset + written)
    told = summary(bits, figures)
    return {
        "row": sample.row,
        "bytes": len(data),
        "tokens": len(bits),
        "ids_crc32c": crc32c(sample.ids.numpy().astype("<i4").tobytes()),
        "crc32c": crc32c(data),
        **told,
        "stats": [{name: number(value) for name, value in tap.items()} for tap in told["stats"]],
    }
