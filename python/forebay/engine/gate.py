"""Proves that what was stored is what the model computes, by the model itself (docs/engine-protocol.md, "The gate")."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .batching import ForwardLimits, form_all
from .channel import number
from .diagnose import diagnose
from .failure import Failure
from .model import Model, hooked, run_to_taps
from .staging import right_padded

#: Where an engine differs from itself, the limit is so many times that.
NOISE_FACTOR = 4
#: States put back one block off must differ by so many times the limit, and by this much at least.
CONTROL_FACTOR = 10
CONTROL_LEAST = 1e-5
#: Logits are compared at so many tokens of each sample, the last among them.
LOGIT_ROWS_MAX = 16


@dataclass(eq=False)
class GateSample:
    row: int
    ids: torch.Tensor
    #: [tokens, taps, hidden] bf16, as stored.
    stored: torch.Tensor
    order: int = 0

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass
class Group:
    """Samples that go through the model together, as they did when their states were extracted."""

    samples: list[GateSample]
    ids: torch.Tensor

    def logit_places(self) -> tuple[list[int], list[int]]:
        """Sequences and slots whose logits are compared: evenly over each sample, its last token the last."""
        sequences, slots = [], []
        for sequence, sample in enumerate(self.samples):
            picked = min(sample.tokens, LOGIT_ROWS_MAX)
            sequences += [sequence] * picked
            slots += [math.ceil(j * sample.tokens / picked) - 1 for j in range(1, picked + 1)]
        return sequences, slots


class Gate:
    def __init__(self, model: Model, taps: list[int], limits: ForwardLimits, progress: Callable[[int, int], None]):
        self._model = model
        self._taps = taps
        self._limits = limits
        self._progress = progress
        self._passes = 0

    def check(self, request: dict) -> list[dict]:
        samples = read_samples(request, len(self._taps), self._model.hidden)
        groups = [
            Group(group, right_padded([sample.ids for sample in group], 0).to(self._model.device))
            for group in form_all(samples, self._limits)
        ]
        kinds = {"injection": self.injection, "pad-independence": self.pad_independence, "greedy": self.greedy}
        return [kinds[kind](groups) for kind in request["kinds"]]

    def injection(self, groups: list[Group]) -> dict:
        """For each tap: its stored bytes put back as that block's output must give the logits that the model gives
        when it rounds this output to bf16 itself, and put back one block off must not. The first tap that fails is
        reported, else the one nearest to failing."""
        worst = None
        for slot, tap in enumerate(self._taps):
            own = self._logits(groups, {tap: rounded})
            noise = distance(own, self._logits(groups, {tap: rounded}))
            # Bitwise where the engine equals itself bitwise.
            limit = NOISE_FACTOR * noise
            measured = distance(own, self._logits(groups, {tap: slot}))
            other = tap + 1 if tap + 1 < len(self._model.blocks) else tap - 1
            control = None if other < 0 else distance(own, self._logits(groups, {other: slot}))
            found = injection_result(tap, measured, limit, control)
            if measured > limit:
                return self._explained(found, groups, slot, tap)
            if not found["ok"]:
                return found
            if worst is None or measured >= (worst["measured"] or 0):
                worst = found
        return worst

    def _explained(self, found: dict, groups: list[Group], slot: int, tap: int) -> dict:
        ids = [[sample.ids for sample in group.samples] for group in groups]
        stored = [[sample.stored[:, slot] for sample in group.samples] for group in groups]
        explanation = diagnose(self._model, ids, stored, tap)
        return {**found, "message": f"{found['message']}; {explanation}"} if explanation else found

    def pad_independence(self, groups: list[Group]) -> dict:
        """The same samples with two pad ids must have the same states: an attention that looks ahead sees the pads."""
        sequences = [sample.ids for sample in groups[0].samples]
        if len({len(ids) for ids in sequences}) == 1:
            sequences = [*sequences, sequences[0][: max(1, len(sequences[0]) // 2)]]
        first = self._states(sequences, 0)
        noise = relative(first, self._states(sequences, 0))
        measured = relative(first, self._states(sequences, self._model.vocab - 1))
        limit = NOISE_FACTOR * noise
        ok = measured <= limit
        return result(
            "pad-independence",
            ok,
            measured=measured,
            limit=limit,
            message=(
                f"{len(first)} tokens in {len(sequences)} sequences are the same with other pads"
                if ok
                else f"states change by {measured:.1e} with what stands in the pads: the model is not causal"
            ),
        )

    def greedy(self, groups: list[Group]) -> dict:
        """From the last tap's stored states on, each sample must end in the token that the model itself chooses."""
        slot, tap = len(self._taps) - 1, self._taps[-1]
        samples = [sample for group in groups for sample in group.samples]
        own = self._last_logits(groups, {})
        limits = 2 * (own - self._last_logits(groups, {tap: rounded})).abs().amax(-1)
        # Two logits may each be off by half a step of what the head computes in.
        limits += own.abs().amax(-1) * torch.finfo(self._model.dtype).eps
        chosen = self._last_logits(groups, {tap: slot}).argmax(-1)
        margins = own.amax(-1) - own.gather(-1, chosen[:, None])[:, 0]
        bad = ~(margins <= limits)
        at = int(bad.nonzero()[0]) if bad.any() else int((margins - limits).argmax())
        equal = int((margins == 0).sum())
        return result(
            "greedy",
            not bad.any(),
            tap=tap if bad.any() else None,
            measured=float(margins[at]),
            limit=float(limits[at]),
            message=(
                f"row {samples[at].row}: the stored states of block {tap} choose a token that the model does not"
                if bad.any()
                else f"{equal} of {len(samples)} samples choose the model's own token, the others tie within rounding"
            ),
        )

    @torch.inference_mode()
    def _logits(self, groups: list[Group], change: dict) -> list[torch.Tensor]:
        """[rows, vocab] f32 of each group, with one block's output changed: by a function, or, where `change` holds a
        slot of the stored taps, replaced by what is stored there."""
        return [self._group_logits(group, change) for group in groups]

    def _group_logits(self, group: Group, change: dict) -> torch.Tensor:
        def put_back(slot):
            def hook(states):
                # Pads keep the model's own: nothing that is compared sees them.
                states = states.clone()
                for sequence, sample in enumerate(group.samples):
                    states[sequence, : sample.tokens] = sample.stored[:, slot].to(states)
                return states

            return hook

        hooks = {block: put_back(how) if isinstance(how, int) else how for block, how in change.items()}
        with hooked(self._model.blocks, hooks):
            final = self._model.decoder(input_ids=group.ids, use_cache=False).last_hidden_state
        self._passes += 1
        self._progress(self._passes, self._passes + 1)
        return self._model.logits_of(final[group.logit_places()])

    def _last_logits(self, groups: list[Group], change: dict) -> torch.Tensor:
        """[samples, vocab] at each sample's last token."""
        found = []
        for group, logits in zip(groups, self._logits(groups, change), strict=True):
            sequences = torch.tensor(group.logit_places()[0])
            last = [int((sequences == sequence).nonzero()[-1]) for sequence in range(len(group.samples))]
            found.append(logits[last])
        return torch.cat(found)

    def _states(self, sequences: list[torch.Tensor], pad: int) -> torch.Tensor:
        """[tokens, taps, hidden] bf16"""
        taken = {}
        ids = right_padded(sequences, pad).to(self._model.device)
        run_to_taps(self._model, ids, {tap: lambda states, tap=tap: taken.__setitem__(tap, states) for tap in self._taps})
        self._passes += 1
        self._progress(self._passes, self._passes + 1)
        rows = [
            torch.cat([taken[tap][sequence, : len(ids)] for sequence, ids in enumerate(sequences)]).bfloat16()
            for tap in self._taps
        ]
        return torch.stack([row.cpu() for row in rows], dim=1)


def rounded(states: torch.Tensor) -> torch.Tensor:
    """As they are stored."""
    return states.bfloat16().to(states.dtype)


def read_samples(request: dict, taps: int, hidden: int) -> list[GateSample]:
    with open(request["file"], "rb") as file:
        samples = []
        for sample in request["samples"]:
            tokens = len(sample["ids"])
            data = bytearray(os.pread(file.fileno(), tokens * taps * hidden * 2, sample["offset"]))
            if len(data) != tokens * taps * hidden * 2:
                raise Failure(f"{request['file']} ends within the states of row {sample['row']}", kind="io")
            stored = torch.frombuffer(data, dtype=torch.bfloat16).view(tokens, taps, hidden)
            samples.append(GateSample(sample["row"], torch.tensor(sample["ids"], dtype=torch.int64), stored))
        return samples


def distance(own: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest |other - own| / |own| (L2 over the vocabulary) of any row."""
    return max(relative(a, b) for a, b in zip(own, other, strict=True))


def relative(own: torch.Tensor, other: torch.Tensor) -> float:
    """The largest relative L2 difference over the last axis; infinite where any number is not finite."""
    own, other = own.float(), other.float()
    differences = torch.linalg.vector_norm(other - own, dim=-1) / torch.linalg.vector_norm(own, dim=-1).clamp_min(1e-30)
    return float(differences.nan_to_num(nan=math.inf).max())


def injection_result(tap: int, measured: float, limit: float, control: float | None) -> dict:
    needed = max(CONTROL_FACTOR * limit, CONTROL_LEAST)
    is_same = measured <= limit
    is_sharp = control is None or control >= needed
    shown = f"off by {measured:.1e}, limit {limit:.1e}, one block off {'-' if control is None else f'{control:.1e}'}"
    if not is_same:
        verdict = f"the stored states of block {tap} do not give the model's logits"
    elif not is_sharp:
        verdict = f"block {tap} cannot be told from its neighbour by its effect on the logits"
    else:
        verdict = f"the stored states of block {tap} give the model's logits"
    ok = is_same and is_sharp
    message = f"{verdict}: {shown}"
    return result("injection", ok, tap=None if ok else tap, measured=measured, limit=limit, control=control, message=message)


def result(kind: str, ok: bool, *, measured: float, limit: float, message: str, tap=None, control=None) -> dict:
    return {
        "kind": kind,
        "ok": bool(ok),
        "tap": tap,
        "measured": number(measured),
        "limit": number(limit),
        "control": None if control is None else number(control),
        "message": message,
    }
