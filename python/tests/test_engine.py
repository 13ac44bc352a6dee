"""The engine's parts in one process; the whole child is driven by test/transformers-engine.test.ts."""

import json
import math
import os
import queue
import random
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.engine import staging, writer
from forebay.engine.batching import PADDED_RATIO_MAX, ForwardLimits, form_all, form_forward
from forebay.engine.channel import Channel, ProtocolFault, number
from forebay.engine.failure import Failure, failure_of, is_out_of_memory
from forebay.engine.service import Service
from forebay.engine.summary import figures_of, summary
from forebay.engine.versions import shortcoming

MODEL = str(Path(__file__).parents[2] / "fixtures" / "models" / "random-qwen3")


@dataclass(eq=False)
class Waiting:
    tokens: int
    order: int = 0


def waiting(*tokens):
    return [Waiting(count) for count in tokens]


class TestBatching:
    def test_whatever_waits_every_sample_goes_once_and_the_limits_hold(self):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        for _ in range(50):
            limits = ForwardLimits(chance.choice([1, 64, 700]), chance.random() < 0.3)
            samples = [Waiting(chance.randint(1, 300), chance.randint(0, 3)) for _ in range(chance.randint(1, 60))]
            forwards = form_all(samples, limits)
            assert sorted(map(id, sum(forwards, []))) == sorted(map(id, samples))
            for forward in forwards:
                longest = max(sample.tokens for sample in forward)
                slots, tokens = longest * len(forward), sum(sample.tokens for sample in forward)
                assert len(forward) == 1 or slots <= limits.tokens
                assert slots <= PADDED_RATIO_MAX * tokens
                assert not limits.strict or {sample.tokens for sample in forward} == {longest}

    def test_the_oldest_request_gets_on_with_every_forward(self):
        samples = [Waiting(10, 7), Waiting(200, 3), Waiting(10, 7), Waiting(10, 3)]
        assert samples[1] in form_forward(samples, ForwardLimits(2048, False))

    def test_a_sample_over_the_limit_goes_alone(self):
        samples = waiting(5000, 5000, 10)
        assert form_forward(samples, ForwardLimits(2048, False)) == [samples[0]]


class TestSummary:
    def states(self, tokens=9, taps=3, hidden=40):
        return torch.randn(tokens, taps, hidden, generator=torch.Generator().manual_seed(1)).bfloat16()

    def told(self, states, pieces=(9,)):
        bits = [piece.view(torch.int16).numpy().view(np.uint16) for piece in states.split(pieces)]
        return summary(figures_of(states).numpy(), states.shape[-1], lambda: bits)

    @pytest.mark.parametrize("pieces", [(9,), (1, 5, 3)])
    def test_it_is_what_the_numbers_say_however_they_come(self, pieces):
        states = self.states()
        told = self.told(states, pieces)
        assert told["finite"] and not told["constant"]
        for tap, stats in enumerate(told["stats"]):
            values = states[:, tap].double()
            assert stats["mean"] == pytest.approx(values.mean().item(), abs=0.01)
            assert stats["rms"] == pytest.approx(values.square().mean().sqrt().item(), rel=0.01)
            assert stats["absmax"] == values.abs().max().item()

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
    def test_one_number_that_is_not_finite_is_told(self, value):
        states = self.states()
        states[4, 1, 7] = value
        assert not self.told(states)["finite"]

    @pytest.mark.parametrize("value", [0.0, 1.5, -3.0, 1e-30, 1e30])
    def test_a_constant_tap_is_told_and_one_that_is_nearly_so_is_not(self, value):
        states = self.states()
        states[:, 2] = value
        assert self.told(states)["constant"] and self.told(states, (4, 5))["constant"]
        states[8, 2, 39] = value + 1 + abs(value) / 100
        assert not self.told(states)["constant"] and not self.told(states, (4, 5))["constant"]

    def test_a_tap_that_is_one_value_in_each_piece_but_another_is_not_constant(self):
        states = self.states()
        states[:4, 2] = 1.5
        states[4:, 2] = 2.5
        assert not self.told(states, (4, 5))["constant"]


class TestService:
    @pytest.fixture
    def service(self):
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        crashes = []
        service = Service(0, send=lambda answer, _: self.answers.put(answer), crash=crashes.append)
        options = {"threads": 1, "forward_tokens": 256}
        load = {"type": "load", "id": 1, "model": MODEL, "dtype": "auto", "device": None, "taps": [1, 3]}
        service.receive({**load, "options": options})
        assert self.answers.get(timeout=60)["type"] == "loaded"
        yield service
        assert crashes == []

    def extract(self, service, file, lengths):
        offset, samples = 0, []
        for row, tokens in enumerate(lengths):
            samples.append({"row": row, "ids": [(row + i) % 384 for i in range(tokens)], "offset": offset})
            offset += tokens * 2 * 64 * 2
        file.write_bytes(bytes(offset))
        service.receive({"type": "extract", "id": 2, "attempt": 1, "file": str(file), "samples": samples})

    def run(self, service):
        while service.has_work:
            service.forward()
        found = []
        while not found or found[-1]["type"] not in ("states", "error"):
            found.append(self.answers.get(timeout=60))
        return found

    def test_out_of_memory_halves_the_forward_and_loses_nothing(self, service, tmp_path, monkeypatch):
        sizes = []
        real = staging.run_to_taps

        def little_memory(model, ids, take):
            sizes.append(ids.numel())
            if ids.numel() > 60:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
            real(model, ids, take)

        monkeypatch.setattr(staging, "run_to_taps", little_memory)
        self.extract(service, tmp_path / "a.part", [20] * 12)
        answers = self.run(service)
        assert answers[-1]["type"] == "states"
        assert sorted(sample["row"] for sample in answers[-1]["samples"]) == list(range(12))
        # Remembered: after the first that fits none is too large again.
        first = next(at for at, size in enumerate(sizes) if size <= 60)
        assert all(size <= 60 for size in sizes[first:])
        assert (tmp_path / "a.part").read_bytes().count(0) < 500

    def test_rows_that_never_fit_alone_fail_by_name_after_a_second_try_and_make_no_forward_smaller(
        self, service, tmp_path, monkeypatch
    ):
        real, lone = staging.run_to_taps, []

        def little_memory(model, ids, take):
            if ids.shape[1] > 100:
                lone.append(ids.shape)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            real(model, ids, take)

        monkeypatch.setattr(staging, "run_to_taps", little_memory)
        self.extract(service, tmp_path / "a.part", [120, 200, 300, 400, 30, 40])
        before = service._loaded.limits.tokens
        answers = self.run(service)
        while answers[-1]["type"] != "states":
            answers.append(self.answers.get(timeout=60))
        assert service._loaded.limits.tokens == before
        errors = {answer["rows"][0]: answer for answer in answers if answer["type"] == "error"}
        assert sorted(errors) == [0, 1, 2, 3] and len(lone) == 8
        for row, tokens in enumerate([120, 200, 300, 400]):
            assert (errors[row]["kind"], errors[row]["retry"], len(errors[row]["rows"])) == ("oom", "smaller", 1)
            assert f"memory ran out for {tokens} tokens alone: CUDA out of memory" in errors[row]["message"]
        assert sorted(sample["row"] for sample in answers[-1]["samples"]) == [4, 5]

    def test_a_lone_sample_is_tried_again_once_the_memory_of_those_before_it_is_free(self, service, tmp_path, monkeypatch):
        real, real_write, tried, held = staging.run_to_taps, writer.write_sample, threading.Event(), []

        def write(sample, staged, place):
            held.append(weakref.ref(staged))
            assert tried.wait(60)
            return real_write(sample, staged, place)

        def little_memory(model, ids, take):
            if ids.shape[1] > 100 and not tried.is_set():
                tried.set()
                raise torch.OutOfMemoryError("CUDA out of memory")
            if ids.shape[1] > 100:
                assert [states() for states in held] == [None]
            real(model, ids, take)

        monkeypatch.setattr(staging, "run_to_taps", little_memory)
        monkeypatch.setattr(writer, "write_sample", write)
        self.extract(service, tmp_path / "a.part", [30])
        service.forward()
        self.extract(service, tmp_path / "b.part", [120])
        assert self.run(service)[-1]["samples"][0]["tokens"] == 30
        assert self.run(service)[-1]["samples"][0]["tokens"] == 120

    def test_a_write_that_fails_is_io_with_its_errno(self, service, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writer.os, "pwrite", full)
        self.extract(service, tmp_path / "a.part", [5])
        error = self.run(service)[-1]
        assert (error["kind"], error["errno"], error["rows"]) == ("io", "ENOSPC", [0])

    def test_a_forward_that_is_refused_fails_its_rows_with_the_reason_and_the_process_lives(self, service, tmp_path, monkeypatch):
        def refuse(*_):
            raise Failure("expected [sequences, tokens, hidden]")

        monkeypatch.setattr(staging, "run_to_taps", refuse)
        self.extract(service, tmp_path / "a.part", [5, 5])
        error = self.run(service)[-1]
        assert (error["kind"], sorted(error["rows"]), error["retry"]) == ("bad-request", [0, 1], "no")

    def test_a_fault_that_nobody_expected_is_raised_to_end_the_process(self, service, tmp_path, monkeypatch):
        def broken(*_):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(staging, "run_to_taps", broken)
        self.extract(service, tmp_path / "a.part", [5])
        with pytest.raises(RuntimeError, match="illegal memory access"):
            service.forward()


class TestChannel:
    def channel(self):
        request_end, answer_end = os.pipe(), os.pipe()
        return Channel(request_end[0], answer_end[1]), request_end[1], answer_end[0]

    def test_answers_are_lines_of_json_and_never_hold_what_json_has_not(self):
        channel, _, answers = self.channel()
        channel.send({"type": "x", "mean": number(math.nan), "rms": number(np.float32(0.5))})
        assert json.loads(os.read(answers, 1000)) == {"type": "x", "mean": None, "rms": 0.5}
        with pytest.raises(ValueError):
            channel.send({"type": "x", "mean": math.inf})

    @pytest.mark.parametrize("line", [b"print me\n", b"[]\n", b"{}\n", b'{"type":"dance"}\n', b"\xff\n"])
    def test_a_line_that_is_no_request_is_a_fault(self, line):
        channel, requests, _ = self.channel()
        os.write(requests, line)
        os.close(requests)
        with pytest.raises(ProtocolFault, match="not a request"):
            list(channel.requests())


def test_what_is_missing_or_too_old_is_told_with_the_command():
    good = {"torch": "2.13.0+cu130", "transformers": "5.19.0", "safetensors": "0.8", "numpy": "2", "crc32c": "2.9"}
    assert shortcoming(good) is None
    assert shortcoming({**good, "torch": "2.14.1", "transformers": "6.0.0"}) is None
    assert shortcoming({**good, "transformers": "4.57.1"}).startswith("expected transformers 5.19 or newer, found 4.57.1: pip")
    del good["crc32c"]
    assert shortcoming(good).startswith("the package crc32c is not installed: pip install")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        torch.OutOfMemoryError(""),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("hipErrorOutOfMemory: out of memory"),
        RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
        RuntimeError("CUDA error: rocblas_status_memory_error"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_memory_that_ran_out_is_told_by_whatever_name(error):
    assert is_out_of_memory(error)
    failure = failure_of(error)
    assert (failure.kind, failure.retry, bool(str(failure))) == ("oom", "smaller", True)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        ValueError("out of memory"),
    ],
)
def test_other_faults_of_a_gpu_are_not(error):
    assert not is_out_of_memory(error) and failure_of(error) is None
