"""States on their way from the blocks to the file, and whose time is whose: by a clock that is wound by hand."""

import queue
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from forebay.engine import staging, writer
from forebay.engine.job import Job
from forebay.engine.staging import Copied, HostBuffer, Piece, Stager
from forebay.engine.writer import Writer, Written

TAPS, HIDDEN = 2, 4


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, value=None):
        """A function that takes so long, and returns `value`."""

        def act(*_, **__):
            self.now += seconds
            return value

        return act


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def model():
    return SimpleNamespace(device=torch.device("cpu"), hidden=HIDDEN)


def job_of(tmp_path, tokens: list[int]) -> tuple[Job, queue.SimpleQueue]:
    answers: queue.SimpleQueue = queue.SimpleQueue()
    file, row_bytes = tmp_path / "a.part", TAPS * HIDDEN * 2
    file.write_bytes(bytes(sum(tokens) * row_bytes))
    offsets = [sum(tokens[:k]) * row_bytes for k in range(len(tokens))]
    samples = [
        {"row": row, "ids": list(range(count)), "offset": offset}
        for row, (count, offset) in enumerate(zip(tokens, offsets, strict=True))
    ]
    request = {"type": "extract", "id": 1, "attempt": 1, "file": str(file), "samples": samples}
    return Job.open(request, lambda answer, _: answers.put(answer)), answers


def last_of(answers: queue.SimpleQueue) -> dict:
    while (answer := answers.get(timeout=20))["type"] != "states":
        pass
    return answer


class TestTime:
    def test_what_a_gpu_still_computes_is_waited_for_before_writing_begins_and_is_no_writing(self, clock, tmp_path):
        job, answers = job_of(tmp_path, [3, 1])
        done = []

        class OnGpu:
            buffer = None

            def finished(self) -> float:
                clock.now += 50
                done.append("finished")
                return 8.0

            def pieces(self, place: int):
                clock.now += 2
                done.append(f"written {place}")
                tokens = job.samples[place].tokens
                yield Piece(np.ones((tokens, TAPS, HIDDEN), np.uint16), np.ones((tokens, TAPS, 3), np.float32))

        stager = SimpleNamespace(free=queue.SimpleQueue())
        Writer(stager, crash=pytest.fail, clock=clock).put(Written(job.samples, OnGpu()))
        assert last_of(answers)["seconds"] == {"forward": pytest.approx(8.0), "write": 4.0}
        assert done == ["finished", "written 0", "written 1"]

    def test_two_requests_in_one_forward_share_its_time_by_their_tokens(self, clock, tmp_path):
        (tmp_path / "b").mkdir()
        (one, to_one), (other, to_other) = job_of(tmp_path, [3]), job_of(tmp_path / "b", [1])
        states = np.ones((3, TAPS, HIDDEN), np.uint16)
        staged = SimpleNamespace(
            buffer=None, finished=lambda: 8.0, pieces=lambda place: [Piece(states, np.ones((3, TAPS, 3), np.float32))]
        )
        stager = SimpleNamespace(free=queue.SimpleQueue())
        Writer(stager, crash=pytest.fail, clock=clock).put(Written(one.samples + other.samples, staged))
        assert (last_of(to_one)["seconds"]["forward"], last_of(to_other)["seconds"]["forward"]) == (6.0, 2.0)

    def test_the_wait_for_a_free_buffer_is_no_part_of_a_forward(self, clock, model, monkeypatch):
        stager = Stager(model, [0, 1], clock=clock)
        stager.free = SimpleNamespace(get=clock.after(30, HostBuffer(False)))
        monkeypatch.setattr(staging, "run_to_taps", clock.after(3))
        assert stager.forward([torch.arange(3)]).finished() == 3.0

    def test_on_a_gpu_a_forward_took_what_lies_between_its_events_once_the_copy_is_there(self):
        asked = []
        copied = SimpleNamespace(synchronize=lambda: asked.append("synchronize"))
        begun = SimpleNamespace(elapsed_time=lambda end: asked.append(end) or 2500.0)
        states = torch.ones(3, TAPS, HIDDEN, dtype=torch.bfloat16)
        staged = Copied(HostBuffer(False), [3], states, torch.ones(3, TAPS, 3), begun, copied)
        assert staged.finished() == 2.5
        assert asked == ["synchronize", copied]
