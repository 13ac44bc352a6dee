"""What is told of a sample's states: mean, RMS and largest magnitude of each tap, and what must never be stored."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from .channel import number

#: Of a bf16 without its sign: infinities from here on, then NaNs.
BF16_INFINITE = 0x7F80


def figures_of(states: torch.Tensor, magnitudes: torch.Tensor | None = None) -> torch.Tensor:
    """[tokens, taps, hidden] bf16 -> [tokens, taps, 3] f32 on the same device: sum, L2 norm and largest magnitude (its
    bf16 bits) over the hidden axis. `magnitudes` is memory for as many int16.

    On a CPU torch reduces bf16 to bf16 twenty times faster than to f32, it sums in f32 in both cases, and a relative
    error of 2^-9 is nothing to what these figures are for.
    """
    dtype = torch.float32 if states.is_cuda else None
    largest = torch.bitwise_and(states.view(torch.int16), 0x7FFF, out=magnitudes).amax(-1)
    return torch.stack(
        [
            states.sum(-1, dtype=dtype).float(),
            torch.linalg.vector_norm(states, dim=-1, dtype=dtype).float(),
            largest.float(),
        ],
        dim=-1,
    )


def summary(figures: np.ndarray, hidden: int, pieces: Callable[[], Iterable[np.ndarray]]) -> dict:
    """`figures` [tokens, taps, 3] are `figures_of` all of a sample's states; `pieces` gives its bits [tokens, taps,
    hidden] uint16 once more, by some tokens at a time, and is rarely asked."""
    tokens, taps, _ = figures.shape
    count = tokens * hidden
    with np.errstate(all="ignore"):
        mean = figures[:, :, 0].sum(0, dtype=np.float64) / count
        rms = np.sqrt(np.square(figures[:, :, 1], dtype=np.float64).sum(0) / count)
        # Of a constant the mean is the RMS; only then, and where squares were too large, is every number looked at.
        suspects = np.flatnonzero(~((mean**2 < 0.97 * rms**2) & (rms < np.inf)))
    magnitude = figures[:, :, 2].max(0).astype(np.uint32)
    absmax = (magnitude << 16).view(np.float32)
    stats = [{"mean": number(mean[tap]), "rms": number(rms[tap]), "absmax": number(absmax[tap])} for tap in range(taps)]
    finite = bool((magnitude < BF16_INFINITE).all())
    return {"stats": stats, "finite": finite, "constant": len(suspects) > 0 and any_constant(pieces(), suspects)}


def any_constant(pieces: Iterable[np.ndarray], taps: np.ndarray) -> bool:
    first, same = None, np.ones(len(taps), bool)
    for bits in pieces:
        if first is None:
            first = bits[0, taps, 0].copy()
        same &= (bits[:, taps] == first[:, None]).all((0, 2))
    return bool(same.any())
