"""From the blocks' outputs to bytes that can be written, while the next forward computes."""

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from .model import Model, run_to_taps
from .summary import figures_of

#: One forward computes while the writer empties the other's buffer.
BUFFERS = 2
#: Of states that a CPU makes at once: they stay in its cache until they are written.
PIECE_BYTES = 2 * 2**20


@dataclass
class Piece:
    """Some whole tokens of a sample; only until the next piece is taken."""

    #: [tokens, taps, hidden], bf16 bits.
    bits: np.ndarray
    #: [tokens, taps, 3], see `figures_of`.
    figures: np.ndarray


class HostBuffer:
    """Page-locked where a GPU writes into it; grows to what is asked of it."""

    def __init__(self, pinned: bool):
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.bfloat16)

    def shaped(self, tokens: int, taps: int, hidden: int) -> torch.Tensor:
        count = tokens * taps * hidden
        if self._memory.numel() < count:
            self._memory = torch.empty(count, dtype=torch.bfloat16, pin_memory=self._pinned)
        return self._memory[:count].view(tokens, taps, hidden)


@dataclass
class Copied:
    """The states of a forward on a GPU, on their way to `buffer`."""

    buffer: HostBuffer
    lengths: list[int]
    #: [tokens, taps, hidden] bf16, samples one after another, in `buffer`; and their figures.
    states: torch.Tensor
    figures: torch.Tensor
    #: On the device: when the forward began, and when both were there.
    begun: torch.cuda.Event
    copied: torch.cuda.Event

    def finished(self) -> float:
        """Waits until the states are there; the seconds that the device took for the forward."""
        self.copied.synchronize()
        return self.begun.elapsed_time(self.copied) / 1000

    def pieces(self, place: int) -> Iterator[Piece]:
        """The states of the forward's sequence at `place`, in one piece; only once `finished`."""
        begin = sum(self.lengths[:place])
        span = slice(begin, begin + self.lengths[place])
        yield Piece(bits_of(self.states[span]), self.figures[span].numpy())


@dataclass
class Taken:
    """The states of a forward on a CPU: what the blocks gave. They become bf16, side by side, where they are written, so
    that each number comes from memory once and not for every pass over it."""

    buffer: HostBuffer
    lengths: list[int]
    #: [sequences, slots, hidden] of each tap.
    outputs: list[torch.Tensor] = field(default_factory=list)
    forward_s: float = 0.0

    def finished(self) -> float:
        """The seconds of the forward, which is over."""
        return self.forward_s

    def pieces(self, place: int) -> Iterator[Piece]:
        """The states of the forward's sequence at `place`, in order. Uses the buffer."""
        taps, hidden = len(self.outputs), self.outputs[0].shape[-1]
        step = max(1, PIECE_BYTES // (taps * hidden * 2))
        for begin in range(0, self.lengths[place], step):
            end = min(begin + step, self.lengths[place])
            states, scratch = self.buffer.shaped(2 * (end - begin), taps, hidden).chunk(2)
            for slot, output in enumerate(self.outputs):
                states[:, slot].copy_(output[place, begin:end])
            yield Piece(bits_of(states), figures_of(states, scratch.view(torch.int16)).numpy())


Staged = Copied | Taken


class Stager:
    def __init__(self, model: Model, taps: list[int], clock: Callable[[], float] = time.monotonic):
        self._model = model
        self._taps = taps
        self._clock = clock
        self._is_cuda = model.device.type == "cuda"
        self._stream = torch.cuda.Stream(model.device) if self._is_cuda else None
        #: Of forwards that may be on their way at once.
        self.free: queue.SimpleQueue[HostBuffer] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self.free.put(HostBuffer(self._is_cuda))

    def forward(self, sequences: list[torch.Tensor], pad: int = 0) -> Staged:
        """Runs `sequences` [tokens] I64, padded on the right; waits for a free buffer. The caller gives it back."""
        buffer = self.free.get()
        stage = self._copy if self._is_cuda else self._take
        try:
            return stage(buffer, sequences, right_padded(sequences, pad))
        except BaseException:
            self.free.put(buffer)
            raise

    def drain(self) -> None:
        """Waits until every forward's states are written, and gives their memory back."""
        for _ in range(BUFFERS):
            self.free.get()
        for _ in range(BUFFERS):
            self.free.put(HostBuffer(self._is_cuda))

    @torch.inference_mode()
    def _take(self, buffer: HostBuffer, sequences: list[torch.Tensor], ids: torch.Tensor) -> Taken:
        start = self._clock()
        taken = Taken(buffer, [len(sequence) for sequence in sequences])
        run_to_taps(self._model, ids, {tap: taken.outputs.append for tap in self._taps})
        taken.forward_s = self._clock() - start
        return taken

    @torch.inference_mode()
    def _copy(self, buffer: HostBuffer, sequences: list[torch.Tensor], ids: torch.Tensor) -> Copied:
        # The forwards before it may still run: only the device knows when this one begins.
        begun, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record(torch.cuda.current_stream(self._model.device))
        lengths = [len(sequence) for sequence in sequences]
        shape = (sum(lengths), len(self._taps), self._model.hidden)
        packed = torch.empty(shape, dtype=torch.bfloat16, device=self._model.device)

        def take(slot):
            def copy(states):
                for row, into in zip(states, packed[:, slot].split(lengths), strict=True):
                    into.copy_(row[: len(into)])

            return copy

        ids = ids.to(self._model.device, non_blocking=True)
        run_to_taps(self._model, ids, {tap: take(slot) for slot, tap in enumerate(self._taps)})
        figures = figures_of(packed)
        host = buffer.shaped(*shape)
        self._stream.wait_stream(torch.cuda.current_stream(self._model.device))
        with torch.cuda.stream(self._stream):
            host.copy_(packed, non_blocking=True)
            host_figures = torch.empty(figures.shape, dtype=torch.float32, pin_memory=True)
            host_figures.copy_(figures, non_blocking=True)
            copied.record(self._stream)
        # Their memory is not given to the next forward before the copy is done.
        packed.record_stream(self._stream)
        figures.record_stream(self._stream)
        return Copied(buffer, lengths, host, host_figures, begun, copied)


def right_padded(sequences: list[torch.Tensor], pad: int) -> torch.Tensor:
    """[sequences, slots]: `pad` may be any valid id, nothing that is kept sees it."""
    return nn_pad(sequences, batch_first=True, padding_value=pad)


nn_pad = torch.nn.utils.rnn.pad_sequence


def bits_of(states: torch.Tensor) -> np.ndarray:
    return states.view(torch.int16).numpy().view(np.uint16)
