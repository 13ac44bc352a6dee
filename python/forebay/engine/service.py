"""The engine behind the protocol: takes requests, forms forwards over all that wait, and sends the answers."""

import sys
from collections.abc import Callable

import torch

from .batching import ForwardLimits, form_forward, forward_tokens
from .failure import Failure, failure_of, is_out_of_memory
from .gate import Gate
from .job import Job, Sample, Send, by_job
from .load import load_model
from .model import Model
from .staging import Staged, Stager
from .writer import Writer, Written

#: Packs of 27B models hold some 1,100 tokens: two forwards' worth of them may be outstanding.
SLOT_BATCHES = 64
CHECKS = ["injection", "pad-independence", "greedy"]


class Service:
    def __init__(self, engine_number: int, send: Send, crash: Callable[[BaseException], None]):
        self._engine_number = engine_number
        self._send = send
        self._crash = crash
        self._loaded: Loaded | None = None
        #: Admitted, and not yet through the model.
        self._waiting: list[Sample] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def receive(self, request: dict) -> None:
        """Loads and checks at once; an extract is admitted. Raises what ends the process: no Failure, or one that only a
        new process may get over."""
        try:
            if request["type"] == "load":
                self._load(request)
            elif self._loaded is None:
                raise Failure(f"expected load before {request['type']}")
            elif request["type"] == "check":
                self._check(request, self._loaded)
            else:
                self._admit(request, self._loaded)
        except Exception as error:
            failure = failure_of(error)
            if failure is None or failure.retry == "restart":
                raise
            self._send(failure.answer(request["id"], []), True)

    def forward(self) -> None:
        """One forward over what waits."""
        loaded = self._loaded
        samples = form_forward(self._waiting, loaded.limits)
        try:
            staged = stage(samples, loaded)
        except Failure as failure:
            self._leave(samples)
            for job, its in by_job(samples).items():
                job.fail(its, failure)
            return
        if staged is not None:
            self._leave(samples)
            loaded.writer.put(Written(samples, staged))

    def _leave(self, samples: list[Sample]) -> None:
        gone = {id(sample) for sample in samples}
        self._waiting = [sample for sample in self._waiting if id(sample) not in gone]

    def _load(self, request: dict) -> None:
        options = request["options"]
        if options.get("threads"):
            torch.set_num_threads(int(options["threads"]))
        model = load_model(request, self._engine_number)
        taps = check_taps(request["taps"], len(model.blocks))
        self._loaded = Loaded(model, taps, options, self._crash)
        self._send(
            {
                "type": "loaded",
                "id": request["id"],
                "arch": model.architecture,
                "blocks": len(model.blocks),
                "hidden": model.hidden,
                "vocab": model.vocab,
                "positions": model.positions,
                "dtype": str(model.dtype).removeprefix("torch."),
                "kernels": model.kernels,
                "devices": model.gpus,
                "slots": {"tokens": 2 * self._loaded.limits.tokens, "batches": SLOT_BATCHES},
                "forward_tokens": self._loaded.limits.tokens,
                "checks": CHECKS,
            },
            True,
        )

    def _admit(self, request: dict, loaded: "Loaded") -> None:
        job = Job.open(request, self._send)
        if job is None:
            return
        for sample in job.samples:
            refusal = loaded.refusal(sample)
            if refusal is None:
                self._waiting.append(sample)
            else:
                job.fail([sample], Failure(f"row {sample.row}: {refusal}"))

    def _check(self, request: dict, loaded: "Loaded") -> None:
        def progress(done: int, total: int) -> None:
            answer = {"type": "progress", "id": request["id"], "tokens_done": done, "tokens_total": total}
            self._send(answer, False)

        gate = Gate(loaded.model, loaded.taps, loaded.limits, progress)
        self._send({"type": "checked", "id": request["id"], "results": gate.check(request)}, True)


def stage(samples: list[Sample], loaded: "Loaded") -> Staged | None:
    """The states of one forward. None where memory ran out for several samples, which the limit then keeps apart. Raises
    Failure where it runs out for one alone."""
    sequences = [sample.ids for sample in samples]
    try:
        return loaded.stager.forward(sequences)
    except Exception as error:
        free_after(error)
    if len(samples) > 1:
        slots = len(samples) * max(sample.tokens for sample in samples)
        loaded.limits.tokens = max(1, min(loaded.limits.tokens, slots) // 2)
        print(f"out of memory: forwards of {loaded.limits.tokens} tokens from now on", file=sys.stderr, flush=True)
        return None
    # The states of forwards before it may have been what was too much.
    loaded.stager.drain()
    try:
        return loaded.stager.forward(sequences)
    except Exception as error:
        free_after(error)
        message = f"memory ran out for {samples[0].tokens} tokens alone: {error}"
        raise Failure(message, kind="oom", retry="smaller") from None


def free_after(error: Exception) -> None:
    """Gives back what a forward that ran out of memory took. Raises `error` where it is another."""
    if not is_out_of_memory(error):
        raise error
    # The frames of the failed forward hold its tensors.
    error.__traceback__ = None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Loaded:
    def __init__(self, model: Model, taps: list[int], options: dict, crash: Callable[[BaseException], None]):
        self.model = model
        self.taps = taps
        self.limits = ForwardLimits(forward_tokens(options, model.device.type), bool(options.get("strict")))
        self.stager = Stager(model, taps)
        self.writer = Writer(self.stager, crash)

    def refusal(self, sample: Sample) -> str | None:
        highest = int(sample.ids.max())
        if highest >= self.model.vocab:
            return f"expected ids below {self.model.vocab}, found {highest}"
        if self.model.positions is not None and sample.tokens > self.model.positions:
            return f"expected at most {self.model.positions} tokens, found {sample.tokens}"
        end = sample.offset + sample.tokens * len(self.taps) * self.model.hidden * 2
        if end > sample.job.file_bytes:
            return f"its states end at byte {end}, the file has {sample.job.file_bytes}"
        return None


def check_taps(taps: list[int], blocks: int) -> list[int]:
    if taps != sorted(set(taps)):
        raise Failure(f"taps must ascend, found {','.join(map(str, taps))}")
    if taps[-1] >= blocks:
        raise Failure(f"tap {taps[-1]} is out of range: the model has {blocks} blocks")
    return taps
