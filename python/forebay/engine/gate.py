"""Proves that what was stored is what the model computes, by the model itself (docs/engine-protocol.md, "The gate")."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from .batching import ForwardLimits, form_all
from .channel import number
from .diagnose import diagnose
from .failure import Failure, is_out_of_memory
from .model import Model, hooked, run_to_taps
from .staging import right_padded

#: Where an engine differs from itself (its noise), the limit is so many times that.
NOISE_FACTOR = 4
#: States put back one block off must differ by so many times the noise, and by this much at least.
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


#: Sequences and slots of a group's forward whose logits are compared.
Places = list[tuple[int, int]]


@dataclass
class Group:
    """Samples that go through the model together, as they did when their states were extracted."""

    samples: list[GateSample]
    ids: torch.Tensor

    def spread_places(self) -> Places:
        """Evenly over each sample, its last token the last."""
        places = []
        for sequence, sample in enumerate(self.samples):
            picked = min(sample.tokens, LOGIT_ROWS_MAX)
            places += [(sequence, math.ceil(j * sample.tokens / picked) - 1) for j in range(1, picked + 1)]
        return places

    def last_places(self) -> Places:
        """Each sample's last token."""
        return [(sequence, sample.tokens - 1) for sequence, sample in enumerate(self.samples)]


#: What takes the place of a block's output [sequences, slots, hidden] in a group's forward.
Change = Callable[[Group, torch.Tensor], torch.Tensor]


def rounded(_group: Group, states: torch.Tensor) -> torch.Tensor:
    """The block's own, as they would be stored."""
    return states.bfloat16().to(states.dtype)


def stored(slot: int) -> Change:
    """Those that are stored of the tap at `slot`."""

    def put_back(group: Group, states: torch.Tensor) -> torch.Tensor:
        # Pads keep the model's own: nothing that is compared sees them.
        states = states.clone()
        for sequence, sample in enumerate(group.samples):
            states[sequence, : sample.tokens] = sample.stored[:, slot].to(states)
        return states

    return put_back


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
            own = self._logits(groups, tap, rounded)
            noise = distance(own, self._logits(groups, tap, rounded))
            measured = distance(own, self._logits(groups, tap, stored(slot)))
            other = tap + 1 if tap + 1 < len(self._model.blocks) else tap - 1
            control = None if other < 0 else distance(own, self._logits(groups, other, stored(slot)))
            found = injection_result(tap, noise, measured, control)
            if measured > NOISE_FACTOR * noise:
                return self._explained(found, groups, slot, tap)
            if not found["ok"]:
                return found
            if worst is None or measured >= (worst["measured"] or 0):
                worst = found
        return worst

    def _explained(self, found: dict, groups: list[Group], slot: int, tap: int) -> dict:
        ids = [[sample.ids for sample in group.samples] for group in groups]
        states = [[sample.stored[:, slot] for sample in group.samples] for group in groups]
        try:
            explanation = diagnose(self._model, ids, states, tap)
        except Exception as error:
            # The verdict stands without it.
            if not is_out_of_memory(error):
                raise
            explanation = None
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
        ok = measured <= limit < math.inf
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
        own = self._last_logits(groups)
        limits = 2 * (own - self._last_logits(groups, tap, rounded)).abs().amax(-1)
        # Two logits may each be off by half a step of what the head computes in.
        limits += own.abs().amax(-1) * torch.finfo(self._model.dtype).eps
        chosen = self._last_logits(groups, tap, stored(slot)).argmax(-1)
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

    def _logits(self, groups: list[Group], block: int, change: Change) -> list[torch.Tensor]:
        """[places, vocab] f32 of each group at `spread_places`, with the output of `block` changed."""
        return [self._logits_at(group, group.spread_places(), block, change) for group in groups]

    def _last_logits(self, groups: list[Group], block: int = 0, change: Change | None = None) -> torch.Tensor:
        """[samples, vocab] f32 at each sample's last token; without `change` the model's own."""
        return torch.cat([self._logits_at(group, group.last_places(), block, change) for group in groups])

    @torch.inference_mode()
    def _logits_at(self, group: Group, places: Places, block: int, change: Change | None) -> torch.Tensor:
        hooks = {} if change is None else {block: partial(change, group)}
        with hooked(self._model.blocks, hooks):
            final = self._model.decoder(input_ids=group.ids, use_cache=False).last_hidden_state
        self._count_pass()
        sequences, slots = zip(*places, strict=True)
        return self._model.logits_of(final[list(sequences), list(slots)])

    def _states(self, sequences: list[torch.Tensor], pad: int) -> torch.Tensor:
        """[tokens, taps, hidden] bf16"""
        taken = {}
        ids = right_padded(sequences, pad).to(self._model.device)
        run_to_taps(self._model, ids, {tap: lambda states, tap=tap: taken.__setitem__(tap, states) for tap in self._taps})
        self._count_pass()
        rows = [
            torch.cat([taken[tap][sequence, : len(ids)] for sequence, ids in enumerate(sequences)]).bfloat16()
            for tap in self._taps
        ]
        return torch.stack([row.cpu() for row in rows], dim=1)

    def _count_pass(self) -> None:
        """Tells the watchdog that it goes on; how many passes there will be depends on what they find."""
        self._passes += 1
        self._progress(self._passes, self._passes + 1)


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


def injection_result(tap: int, noise: float, measured: float, control: float | None) -> dict:
    # Bitwise where the engine equals itself bitwise.
    limit = NOISE_FACTOR * noise
    # Of the noise and not of the limit: bf16 noise in every block comes to a thirtieth of what one block does
    # (tests/test_gate.py). It is still 2.5 times the limit.
    needed = max(CONTROL_FACTOR * noise, CONTROL_LEAST)
    # Infinite where logits are not finite, which proves nothing.
    is_same = measured <= limit < math.inf
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
