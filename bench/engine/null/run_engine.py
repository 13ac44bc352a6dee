"""The transformers engine's own process, with a model that computes nothing: each block's output is the same random
numbers. What it costs is all that the engine does besides the model: protocol, forming forwards, states into the file,
statistics and CRC. Started as run_engine.py is; `load`'s options name `hidden`, `blocks` and `dtype` of the outputs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "python"))

import torch
from forebay.engine import service
from forebay.engine.main import main
from forebay.engine.model import Model


class Block(torch.nn.Module):
    def forward(self, states):
        return states


class Decoder(torch.nn.Module):
    def __init__(self, blocks: int, hidden: int, dtype: torch.dtype):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.numbers = torch.randn(4096 * hidden, generator=torch.Generator().manual_seed(1)).to(dtype)
        self.hidden = hidden

    def forward(self, input_ids, use_cache):
        states = self.numbers[: input_ids.numel() * self.hidden].view(*input_ids.shape, self.hidden)
        for layer in self.layers:
            states = layer(states)


def load_nothing(request: dict, _engine_number: int) -> Model:
    options = request["options"]
    dtype = getattr(torch, options["dtype"])
    decoder = Decoder(options["blocks"], options["hidden"], dtype)
    return Model(
        whole=decoder,
        decoder=decoder,
        blocks=decoder.layers,
        architecture="Nothing",
        hidden=options["hidden"],
        vocab=2**31,
        positions=None,
        dtype=dtype,
        kernels=[],
        device=torch.device("cpu"),
        gpus=[],
    )


service.load_model = load_nothing
main(sys.argv[1:])
