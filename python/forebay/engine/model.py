"""A loaded model, and how it is run as far as the last tap."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from .failure import Failure


@dataclass
class Model:
    #: With its head; the gate needs it, extraction does not.
    whole: nn.Module
    decoder: nn.Module
    blocks: nn.ModuleList
    architecture: str
    hidden: int
    vocab: int
    positions: int | None
    dtype: torch.dtype
    kernels: list[str]
    #: Where ids go in and the last tap's states come out.
    device: torch.device
    #: UUIDs of the GPUs that hold weights.
    gpus: list[str]

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] after the final norm -> [rows, vocab] f32."""
        return self.whole.get_output_embeddings()(states).float()


class _Enough(Exception):
    """The last tap is reached; what comes after is not wanted."""


@contextmanager
def hooked(blocks: nn.ModuleList, hooks: dict[int, Callable]):
    """Within it, `hooks[k]` is called with block k's output [sequences, slots, hidden]; what it returns, if
    anything, takes the output's place. The forward raises Failure where an output has another shape."""

    def register(block, hook):
        def forward_hook(_module, _inputs, output):
            states = output[0] if isinstance(output, tuple) else output
            if states.dim() != 3:
                raise Failure(
                    f"the output of a {type(block).__name__} is no residual stream: "
                    f"expected [sequences, tokens, hidden], found {list(states.shape)}"
                )
            changed = hook(states)
            if changed is None:
                return None
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return block.register_forward_hook(forward_hook)

    handles = [register(blocks[k], hook) for k, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def run_to_taps(model: Model, ids: torch.Tensor, take: dict[int, Callable]) -> None:
    """One forward over `ids` [sequences, slots], stopped after the last block in `take`; hands each of these blocks'
    output [sequences, slots, hidden] to its function.

    Neither an attention mask nor positions are passed, and the pads stand on the right: causal attention and the
    recurrences of the hybrids then never see them. Packing by positions or padding on the left is silently wrong
    for some models.
    """
    last = max(take)

    def stop(states):
        take[last](states)
        raise _Enough

    try:
        with hooked(model.blocks, {**take, last: stop}):
            model.decoder(input_ids=ids, use_cache=False)
    except _Enough:
        return
    raise AssertionError(f"block {last} did not run")
