"""The transformers engine with one mistake in how it extracts: sabotaged.py NAME RUN_ENGINE REQUEST_FD ANSWER_FD NUMBER

The gate's own passes through the model are left as they are: it is they that must notice.
"""

import os
import sys

name, run_engine = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(run_engine))

import numpy as np
import torch

from forebay.engine import staging
from forebay.engine.main import main
from forebay.engine.model import hooked

run_to_taps, bits_of, forward = staging.run_to_taps, staging.bits_of, staging.Stager.forward
#: The sequences of the forward in progress.
current = []


def remember(self, sequences, pad=0):
    current[:] = sequences
    return forward(self, sequences, pad)


staging.Stager.forward = remember


def off_by_one(model, ids, take):
    last = len(model.blocks) - 1
    run_to_taps(model, ids, {tap + 1 if tap < last else tap - 1: function for tap, function in take.items()})


def post_norm(model, ids, take):
    last = len(model.blocks) - 1
    run_to_taps(model, ids, {**take, last: lambda states: take[last](model.decoder.norm(states))})


def left_padding(model, ids, take):
    shifts = [ids.shape[1] - len(sequence) for sequence in current]

    def shifted(rows, sign):
        return torch.stack([row.roll(sign * shift, 0) for row, shift in zip(rows, shifts)])

    def unshift(function):
        return lambda states: function(shifted(states, -1))

    run_to_taps(model, shifted(ids, 1), {tap: unshift(function) for tap, function in take.items()})


def packed(model, ids, take):
    lengths = [len(sequence) for sequence in current]

    def unpack(function):
        return lambda states: function(torch.nn.utils.rnn.pad_sequence(states[0].split(lengths), batch_first=True))

    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.inference_mode(), hooked(model.blocks, {tap: unpack(function) for tap, function in take.items()}):
        model.decoder(input_ids=torch.cat(current)[None], position_ids=positions, use_cache=False)


def swapped_samples(model, ids, take):
    run_to_taps(model, ids, {tap: lambda states, f=function: f(states.roll(1, 0)) for tap, function in take.items()})


def changed_bits(change):
    return lambda states: change(bits_of(states))


def to_float16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float16).view(np.uint16)


match name:
    case "none":
        pass
    case "big-endian":
        staging.bits_of = changed_bits(lambda bits: bits.byteswap())
    case "float16":
        staging.bits_of = changed_bits(to_float16)
    case _:
        staging.run_to_taps = {
            "off-by-one": off_by_one,
            "post-norm": post_norm,
            "left-padding": left_padding,
            "packed": packed,
            "swapped-samples": swapped_samples,
        }[name]

main(sys.argv[3:])
