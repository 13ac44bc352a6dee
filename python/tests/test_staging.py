"""States on their way from the blocks to the file, and whose time is whose: by a clock that is wound by hand."""

import queue
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from forebay.engine import staging, writer
from forebay.engine.job import Job
from forebay.engine.load import load_model
from forebay.engine.model import run_to_taps
from forebay.engine.staging import BUFFERS, Copied, HostBuffer, Piece, Stager
from forebay.engine.summary import figures_of, summary
from forebay.engine.writer import Writer, Written

MODEL = str(Path(__file__).parents[2] / "fixtures" / "models" / "random-llama")
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


@pytest.fixture(scope="module")
def llama():
    return load_model({"model": MODEL, "dtype": "auto", "device": None, "taps": [1, 3], "options": {}}, 0)


@pytest.mark.parametrize("taps", [[0], [0, 2], [1, 3], [4]])
def test_each_block_as_far_as_the_last_tap_runs_once_and_none_after_it(llama, taps):
    ran = []
    hooks = [block.register_forward_pre_hook(lambda *_, k=k: ran.append(k)) for k, block in enumerate(llama.blocks)]
    try:
        run_to_taps(llama, torch.arange(9)[None], {tap: lambda _states: None for tap in taps})
    finally:
        for hook in hooks:
            hook.remove()
    assert len(llama.blocks) == 5 and ran == list(range(taps[-1] + 1))


@pytest.fixture
def pinned(monkeypatch):
    """Page-locked memory as a machine without a GPU can have it; the sizes that were asked for, in order."""
    asked, real = [], torch.empty

    def empty(*shape, pin_memory=False, **options):
        if pin_memory:
            asked.append(shape[0])
        return real(*shape, **options)

    monkeypatch.setattr(staging.torch, "empty", empty)
    return asked


class TestPinnedBuffer:
    def test_it_grows_to_what_is_asked_of_it_and_is_used_again(self, pinned):
        buffer = HostBuffer(pinned=True)
        first = buffer.shaped(10, TAPS, HIDDEN)
        assert first.shape == (10, TAPS, HIDDEN) and first.dtype == torch.bfloat16
        assert buffer.shaped(7, TAPS, HIDDEN).data_ptr() == first.data_ptr()
        buffer.shaped(11, TAPS, HIDDEN)
        buffer.shaped(11, TAPS, HIDDEN)
        assert pinned == [10 * TAPS * HIDDEN, 11 * TAPS * HIDDEN]

    def test_on_a_cpu_nothing_is_page_locked(self, pinned):
        HostBuffer(pinned=False).shaped(10, TAPS, HIDDEN)
        assert pinned == []


class Stream:
    """Of a GPU on which everything is done at once; what was asked of it, in order."""

    def __init__(self):
        self.asked = []

    def wait_stream(self, _other):
        self.asked.append("wait")


class Event:
    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self, stream):
        stream.asked.append("record")

    def synchronize(self):
        pass

    def elapsed_time(self, _end):
        return 1.0


@pytest.fixture
def on_gpu(llama, pinned, monkeypatch):
    """A Stager that goes the way of a GPU's states, without one."""
    computing, copying = Stream(), Stream()
    monkeypatch.setattr(staging.torch.cuda, "current_stream", lambda _device: computing)
    monkeypatch.setattr(staging.torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(staging.torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda states, stream: stream.asked.append("keep"))
    stager = Stager(llama, [1, 3])
    stager._is_cuda, stager._stream = True, copying
    stager.drain()
    return stager, computing, copying


SEQUENCES = [torch.arange(9), torch.arange(50, 57), torch.arange(100, 101)]


def states_of(staged) -> list[np.ndarray]:
    return [np.concatenate([piece.bits for piece in staged.pieces(place)]) for place in range(len(SEQUENCES))]


class TestOnGpu:
    def test_the_states_and_their_figures_are_those_of_the_way_on_a_cpu(self, llama, on_gpu, pinned):
        stager, computing, copying = on_gpu
        copied, taken = stager.forward(SEQUENCES), Stager(llama, [1, 3]).forward(SEQUENCES)
        assert isinstance(copied, Copied) and not isinstance(taken, Copied)
        for place, sequence in enumerate(SEQUENCES):
            (piece,), (other,) = copied.pieces(place), taken.pieces(place)
            assert piece.bits.shape == (len(sequence), 2, llama.hidden)
            assert np.array_equal(piece.bits, other.bits) and np.array_equal(piece.figures, other.figures)
        # The copy waits for the forward; both tensors stay until it is over.
        assert computing.asked == ["record"] and copying.asked == ["wait", "record", "keep", "keep"]
        assert len(pinned) == 2

    def test_two_forwards_have_a_buffer_each_and_a_third_takes_one_that_is_given_back(self, on_gpu):
        stager, _, _ = on_gpu
        first, second = stager.forward(SEQUENCES), stager.forward([ids + 1 for ids in SEQUENCES])
        before = states_of(first)
        assert first.buffer is not second.buffer and BUFFERS == 2
        assert stager.free.empty() and all(map(np.array_equal, states_of(first), before))
        stager.free.put(second.buffer)
        third = stager.forward([ids + 2 for ids in SEQUENCES])
        assert third.buffer is second.buffer and all(map(np.array_equal, states_of(first), before))

    def test_a_forward_that_fails_gives_its_buffer_back(self, on_gpu, monkeypatch):
        stager, _, _ = on_gpu

        def fail(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(staging, "run_to_taps", fail)
        for _ in range(BUFFERS + 1):
            with pytest.raises(torch.OutOfMemoryError):
                stager.forward(SEQUENCES)


class OnGpu(torch.Tensor):
    """Takes the way of a GPU's numbers."""

    is_cuda = True


@pytest.mark.parametrize("way", [torch.Tensor, OnGpu])
class TestStatistics:
    """Of one sample, [tokens, 3 taps, hidden], against numpy in f64."""

    def told(self, way, states):
        bits = states.view(torch.int16).numpy().view(np.uint16)
        figures = torch.Tensor(figures_of(states.as_subclass(way))).numpy()
        assert figures.dtype == np.float32
        return summary(figures, states.shape[-1], lambda: [bits[:3], bits[3:]])

    def states(self):
        random = torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(2)) * torch.tensor([0.01, 1.0, 300.0])[:, None]
        return (random + torch.tensor([0.0, 2.0, -50.0])[:, None]).bfloat16()

    def test_mean_rms_and_largest_magnitude(self, way):
        states = self.states()
        told = self.told(way, states)
        assert told["finite"] and not told["constant"]
        for tap, stats in enumerate(told["stats"]):
            numbers = states[:, tap].double().numpy()
            rms = np.sqrt(np.square(numbers).mean())
            # A CPU rounds a token's sum and norm to bf16, a GPU does not.
            error = 1e-6 if way is OnGpu else 2**-8
            assert stats["mean"] == pytest.approx(numbers.mean(), abs=error * rms)
            assert stats["rms"] == pytest.approx(rms, rel=error)
            assert stats["absmax"] == np.abs(numbers).max()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_one_number_that_is_not_finite_makes_its_own_tap_null_and_no_other(self, way, value):
        states = self.states()
        whole = self.told(way, states)["stats"]
        states[4, 1, 7] = value
        told = self.told(way, states)
        assert not told["finite"] and not told["constant"]
        assert told["stats"][1] == {"mean": None, "rms": None, "absmax": None}
        assert (told["stats"][0], told["stats"][2]) == (whole[0], whole[2])

    def test_zeros_are_constant_and_have_no_size(self, way):
        states = self.states()
        states[:, 1] = 0
        told = self.told(way, states)
        assert told["finite"] and told["constant"]
        assert told["stats"][1] == {"mean": 0.0, "rms": 0.0, "absmax": 0.0}

    @pytest.mark.parametrize("value", [1.5, -0.0078125, 1e30, 1e-30])
    def test_one_value_all_over_is_constant_and_its_own_mean(self, way, value):
        states = self.states()
        states[:, 2] = value
        told = self.told(way, states)
        exact = states[0, 2, 0].double().item()
        assert told["constant"] and told["finite"]
        stats = told["stats"][2]
        assert stats["absmax"] == abs(exact) and stats["mean"] == pytest.approx(exact, rel=2**-8)
        states[5, 2, 0] = exact * 1.5
        assert not self.told(way, states)["constant"]
