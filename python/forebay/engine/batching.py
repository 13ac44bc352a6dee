"""Which samples go through the model together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

#: Slots of a forward for each token; the rest is pads, computed and thrown away.
PADDED_RATIO_MAX = 1.25
#: Enough to keep the device busy, and the answers and the memory of one forward within bounds.
FORWARD_TOKENS = {"cuda": 8192, "cpu": 2048}


def forward_tokens(options: dict, device_type: str) -> int:
    return int(options.get("forward_tokens") or FORWARD_TOKENS[device_type])


class Waiting(Protocol):
    @property
    def tokens(self) -> int: ...

    @property
    def order(self) -> int:
        """Its request's place in the queue; the oldest has the least."""


@dataclass
class ForwardLimits:
    #: Slots of one forward, pads included. Halved for good when memory runs out.
    tokens: int
    #: Only samples of one length together, so that there are no pads: bitwise as one by one, on a CPU.
    strict: bool


def form_forward(waiting: Sequence[Waiting], limits: ForwardLimits) -> list[Waiting]:
    """The samples of the next forward, of like length, from all requests that wait.

    The longest of the oldest request is always among them, so that this request gets on with every forward; around
    it those nearest to its length. A sample longer than `limits.tokens` goes alone.
    """
    oldest = min(sample.order for sample in waiting)
    anchor = max((sample for sample in waiting if sample.order == oldest), key=lambda sample: sample.tokens)
    others = (sample for sample in waiting if sample is not anchor)
    nearest = sorted(others, key=lambda sample: (abs(sample.tokens - anchor.tokens), sample.order))
    chosen, tokens, longest = [anchor], anchor.tokens, anchor.tokens
    for sample in nearest:
        padded = (len(chosen) + 1) * max(longest, sample.tokens)
        if limits.strict and sample.tokens != anchor.tokens:
            break
        if padded > limits.tokens or padded > PADDED_RATIO_MAX * (tokens + sample.tokens):
            continue
        chosen.append(sample)
        tokens += sample.tokens
        longest = max(longest, sample.tokens)
    return chosen


def form_all(samples: Sequence[Waiting], limits: ForwardLimits) -> list[list[Waiting]]:
    """All of `samples` in the forwards in which they would go if nothing else came."""
    left, forwards = list(samples), []
    while left:
        forward = form_forward(left, limits)
        forwards.append(forward)
        taken = {id(sample) for sample in forward}
        left = [sample for sample in left if id(sample) not in taken]
    return forwards
