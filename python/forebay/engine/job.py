"""One extract request, from its arrival until it is answered."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .allocate import allocate
from .failure import Failure, failure_of

Send = Callable[[dict, bool], None]


@dataclass(eq=False)
class Sample:
    row: int
    #: [tokens] I64, on the CPU: what really goes into the model.
    ids: torch.Tensor
    #: Where its states begin in the job's file.
    offset: int
    job: "Job"

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def order(self) -> int:
        return self.job.id


@dataclass(eq=False)
class Job:
    """`finish` and `fail` may be called from any thread; each sample comes to exactly one of them, once."""

    id: int
    attempt: int
    fd: int
    file_bytes: int
    send: Send
    tokens_total: int
    samples: list[Sample] = field(default_factory=list)
    _done: list[dict] = field(default_factory=list)
    _left: int = 0
    _tokens_done: int = 0
    _forward_s: float = 0.0
    _write_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def open(request: dict, send: Send) -> "Job | None":
        """None where the file cannot be opened, which is answered then."""
        try:
            fd, file_bytes = open_whole(request["file"])
        except OSError as error:
            send(failure_of(error).answer(request["id"], []), True)
            return None
        job = Job(
            id=request["id"],
            attempt=request["attempt"],
            fd=fd,
            file_bytes=file_bytes,
            send=send,
            tokens_total=sum(len(sample["ids"]) for sample in request["samples"]),
        )
        job.samples = [
            Sample(sample["row"], torch.tensor(sample["ids"], dtype=torch.int64), sample["offset"], job)
            for sample in request["samples"]
        ]
        job._left = len(job.samples)
        return job

    def took(self, forward_s: float = 0.0, write_s: float = 0.0) -> None:
        with self._lock:
            self._forward_s += forward_s
            self._write_s += write_s

    def finish(self, answers: list[dict]) -> None:
        """These samples' states are in the file."""
        with self._lock:
            self._done += answers
            self._left -= len(answers)
            self._tokens_done += sum(answer["tokens"] for answer in answers)
            done, total = self._tokens_done, self.tokens_total
            self.send({"type": "progress", "id": self.id, "tokens_done": done, "tokens_total": total}, False)
            self._close_if_over()

    def fail(self, samples: list[Sample], failure: Failure) -> None:
        with self._lock:
            self._left -= len(samples)
            is_last = self._left == 0 and not self._done
            self.send(failure.answer(self.id, [sample.row for sample in samples]), is_last)
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._left > 0:
            return
        os.close(self.fd)
        if self._done:
            seconds = {"forward": self._forward_s, "write": self._write_s}
            states = {"type": "states", "id": self.id, "attempt": self.attempt, "samples": self._done}
            self.send({**states, "seconds": seconds}, True)


def open_whole(path: str) -> tuple[int, int]:
    """The file, with disk blocks for all of it, and its size. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        allocate(fd, size)
        return fd, size
    except BaseException:
        os.close(fd)
        raise


def by_job(samples: list[Sample]) -> dict[Job, list[Sample]]:
    jobs: dict[Job, list[Sample]] = {}
    for sample in samples:
        jobs.setdefault(sample.job, []).append(sample)
    return jobs
