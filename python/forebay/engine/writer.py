"""Writes states to the pack files while the model computes the next forward."""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from crc32c import crc32c

from .failure import failure_of
from .job import Sample, by_job
from .staging import Staged, Stager
from .summary import summary


@dataclass
class Written:
    """One forward to be written: its samples, in the order of their sequences in `staged`."""

    samples: list[Sample]
    staged: Staged


class Writer:
    def __init__(self, stager: Stager, crash: Callable[[BaseException], None], clock: Callable[[], float] = time.monotonic):
        self._stager = stager
        self._crash = crash
        self._clock = clock
        # The stager's buffers bound it.
        self._inbox: queue.SimpleQueue[Written] = queue.SimpleQueue()
        threads, started = torch.get_num_threads(), threading.Event()
        threading.Thread(target=self._run, args=(started,), name="writer", daemon=True).start()
        started.wait()
        # It set the process's number for itself.
        torch.set_num_threads(threads)

    def put(self, written: Written) -> None:
        self._inbox.put(written)

    def _run(self, started: threading.Event) -> None:
        try:
            # More would take the model's, and spin between pieces. Once asked, torch keeps a thread's own number,
            # whatever is set elsewhere.
            torch.get_num_threads()
            torch.set_num_threads(1)
            started.set()
            while True:
                written = self._inbox.get()
                self._write(written)
                buffer = written.staged.buffer
                # Whoever waits for the buffer may want the memory of the states too.
                del written
                self._stager.free.put(buffer)
        except BaseException as error:
            self._crash(error)

    def _write(self, written: Written) -> None:
        places = {sample: place for place, sample in enumerate(written.samples)}
        tokens = sum(sample.tokens for sample in written.samples)
        # Not before: what a GPU still computes is no writing.
        forward_s = written.staged.finished()
        for job, samples in by_job(written.samples).items():
            start = self._clock()
            answers = []
            for sample in samples:
                try:
                    answers.append(write_sample(sample, written.staged, places[sample]))
                except OSError as error:
                    job.fail([sample], failure_of(error))
            share = sum(sample.tokens for sample in samples) / tokens
            job.took(forward_s=forward_s * share, write_s=self._clock() - start)
            if answers:
                job.finish(answers)


def write_sample(sample: Sample, staged: Staged, place: int) -> dict:
    """Writes the states of `staged`'s sequence at `place` to the sample's; the answer for them. Raises OSError."""
    crc, written, figures = 0, 0, []
    for piece in staged.pieces(place):
        data = memoryview(piece.bits.reshape(-1)).cast("B")
        crc = crc32c(data, crc)
        write_all(sample.job.fd, data, sample.offset + written)
        written += len(data)
        figures.append(piece.figures)
    hidden = piece.bits.shape[-1]
    return {
        "row": sample.row,
        "bytes": written,
        "tokens": sample.tokens,
        "ids_crc32c": crc32c(sample.ids.numpy().astype("<i4").tobytes()),
        "crc32c": crc,
        **summary(np.concatenate(figures), hidden, lambda: (piece.bits for piece in staged.pieces(place))),
    }


def write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
