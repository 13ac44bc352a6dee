"""From a forward's states on the device to bytes in host memory, while the next forward computes."""

import queue
from dataclasses import dataclass

import numpy as np
import torch

from .model import Model, run_to_taps

#: A forward's states are copied to one buffer while the writer empties the other.
BUFFERS = 2
#: Of a bf16 without its sign: infinities from here on, then NaNs.
BF16_INFINITE = 0x7F80


class HostBuffer:
    """Page-locked where a GPU writes into it; grows to the largest forward."""

    def __init__(self, pinned: bool):
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.bfloat16)

    def shaped(self, tokens: int, taps: int, hidden: int) -> torch.Tensor:
        count = tokens * taps * hidden
        if self._memory.numel() < count:
            self._memory = torch.empty(count, dtype=torch.bfloat16, pin_memory=self._pinned)
        return self._memory[:count].view(tokens, taps, hidden)


@dataclass
class Staged:
    """The states of one forward on their way to the files."""

    buffer: HostBuffer
    #: [tokens, taps, hidden] bf16, samples one after another, in `buffer`.
    states: torch.Tensor
    #: [tokens, taps, 3] f32: sum, L2 norm and largest magnitude (its bf16 bits) over the hidden axis.
    figures: torch.Tensor
    #: Set when both are there.
    copied: torch.cuda.Event | None

    def wait(self) -> tuple[np.ndarray, np.ndarray]:
        """-> bits [tokens, taps, hidden] uint16, and the figures."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.states.view(torch.int16).numpy().view(np.uint16), self.figures.numpy()


class Stager:
    def __init__(self, model: Model, taps: list[int]):
        self._model = model
        self._taps = taps
        self._is_cuda = model.device.type == "cuda"
        self._stream = torch.cuda.Stream(model.device) if self._is_cuda else None
        self.free: queue.SimpleQueue[HostBuffer] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self.free.put(HostBuffer(self._is_cuda))

    def forward(self, sequences: list[torch.Tensor], pad: int = 0) -> Staged:
        """Runs `sequences` [tokens] I64, padded on the right; waits for a free buffer. The caller gives it back."""
        buffer = self.free.get()
        try:
            return self._forward(buffer, sequences, pad)
        except BaseException:
            self.free.put(buffer)
            raise

    @torch.inference_mode()
    def _forward(self, buffer: HostBuffer, sequences: list[torch.Tensor], pad: int) -> Staged:
        shape = (sum(map(len, sequences)), len(self._taps), self._model.hidden)
        host = buffer.shaped(*shape)
        packed = torch.empty(shape, dtype=torch.bfloat16, device=self._model.device) if self._is_cuda else host

        def take(slot):
            def copy(states):
                begin = 0
                for row, sequence in zip(states, sequences, strict=True):
                    packed[begin : begin + len(sequence), slot].copy_(row[: len(sequence)])
                    begin += len(sequence)

            return copy

        ids = right_padded(sequences, pad).to(self._model.device, non_blocking=True)
        run_to_taps(self._model, ids, {tap: take(slot) for slot, tap in enumerate(self._taps)})
        figures = figures_of(packed)
        if not self._is_cuda:
            return Staged(buffer, host, figures, None)
        self._stream.wait_stream(torch.cuda.current_stream(self._model.device))
        with torch.cuda.stream(self._stream):
            host.copy_(packed, non_blocking=True)
            host_figures = torch.empty(figures.shape, dtype=torch.float32, pin_memory=True)
            host_figures.copy_(figures, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        # Their memory is not given to the next forward before the copy is done.
        packed.record_stream(self._stream)
        figures.record_stream(self._stream)
        return Staged(buffer, host, host_figures, copied)


def right_padded(sequences: list[torch.Tensor], pad: int) -> torch.Tensor:
    """[sequences, slots]: `pad` may be any valid id, nothing that is kept sees it."""
    return nn_pad(sequences, batch_first=True, padding_value=pad)


nn_pad = torch.nn.utils.rnn.pad_sequence


def figures_of(packed: torch.Tensor) -> torch.Tensor:
    """[tokens, taps, hidden] bf16 -> [tokens, taps, 3] f32, on the same device: see `Staged.figures`.

    On a CPU torch reduces bf16 to bf16 twenty times faster than to f32, it sums in f32 in both cases, and a
    relative error of 2^-9 is nothing to what these figures are for.
    """
    dtype = torch.float32 if packed.is_cuda else None
    magnitudes = (packed.view(torch.int16) & 0x7FFF).amax(-1)
    return torch.stack(
        [
            packed.sum(-1, dtype=dtype).float(),
            torch.linalg.vector_norm(packed, dim=-1, dtype=dtype).float(),
            magnitudes.float(),
        ],
        dim=-1,
    )


def summary(bits: np.ndarray, figures: np.ndarray) -> dict:
    """What is told of one sample: its bits [tokens, taps, hidden], its figures [tokens, taps, 3]."""
    tokens, taps, hidden = bits.shape
    count = tokens * hidden
    with np.errstate(all="ignore"):
        mean = figures[:, :, 0].sum(0, dtype=np.float64) / count
        rms = np.sqrt((figures[:, :, 1].astype(np.float64) ** 2).sum(0) / count)
    magnitude = figures[:, :, 2].max(0).astype(np.uint32)
    absmax = (magnitude << 16).view(np.float32)
    finite = bool((magnitude < BF16_INFINITE).all())
    # Of a constant the mean is the RMS; only then, and where squares were too large, is every number looked at.
    suspects = [tap for tap in range(taps) if not mean[tap] ** 2 < 0.97 * rms[tap] ** 2 < np.inf]
    constant = any((bits[:, tap] == bits[0, tap, 0]).all() for tap in suspects)
    stats = [{"mean": mean[tap], "rms": rms[tap], "absmax": absmax[tap]} for tap in range(taps)]
    return {"stats": stats, "finite": finite, "constant": bool(constant)}
