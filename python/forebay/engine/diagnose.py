"""What stored states are, where they are not what they should be: the mistakes that people have made, tried in turn."""

from collections.abc import Callable, Iterator

import torch

from .model import Model, hooked, run_to_taps
from .staging import right_padded

#: Two computations of one thing in bf16 are nearer than this, any two of these things far more apart.
SAME = 0.03

#: Sequences that went through the model together.
Sequences = list[torch.Tensor]


@torch.inference_mode()
def diagnose(model: Model, groups: list[Sequences], stored: list[Sequences], tap: int) -> str | None:
    """`stored` [tokens, hidden] bf16 should be the outputs of block `tap` for the ids in `groups`. A clause that says
    what they are, or None where no known mistake explains them."""
    flat = [states.cpu() for group in stored for states in group]
    own = [states for group in groups for states in right(model, group, tap)]
    found = sorted((distance(*pair), name) for name, pair in candidates(model, groups, tap, own, flat))
    # A mistake may leave most samples as they should be, so being near is not enough.
    limit = min(SAME, distance(own, flat) / 2)
    return found[0][1] if found and found[0][0] < limit else None


def candidates(
    model: Model, groups: list[Sequences], tap: int, own: Sequences, stored: Sequences
) -> Iterator[tuple[str, tuple[Sequences, Sequences]]]:
    """What they might be: its name, what it should then equal, and what is stored as it should then be read."""

    def computed(how: Callable[[Sequences], Sequences]) -> Sequences:
        return [states for group in groups for states in how(group)]

    yield "they are big-endian", (own, [big_endian(states) for states in stored])
    yield "they are float16 bytes called bfloat16", (own, [states.view(torch.float16) for states in stored])
    for block in set(range(len(model.blocks))) - {tap}:
        name = f"they are the output of block {block}: taps off by {abs(block - tap)}"
        yield name, (computed(lambda group, block=block: right(model, group, block)), stored)
    yield "they are the last state after the final norm, not before it", (computed(lambda g: final(model, g)), stored)
    yield "they come of a batch padded on the left", (computed(lambda g: left(model, g, tap)), stored)
    yield "they come of sequences packed one after another, which see each other", (
        computed(lambda group: packed(model, group, tap)),
        stored,
    )
    # The first token sees nothing but itself: its state tells whose it is.
    nearest = [min(own, key=lambda other, s=states: distance([other[:1]], [s[:1]])) for states in stored]
    if any(near is not mine for near, mine in zip(nearest, own, strict=True)):
        firsts = [states[:1] for states in nearest], [states[:1] for states in stored]
        yield "samples are swapped: they are the states of other token ids", firsts


def distance(own: Sequences, stored: Sequences) -> float:
    """The mean over tokens of |stored - own| / |own|, each at most 2."""
    a, b = torch.cat(own).float(), torch.cat(stored).float()
    each = torch.linalg.vector_norm(a - b, dim=-1) / torch.linalg.vector_norm(a, dim=-1).clamp_min(1e-30)
    return float(each.nan_to_num(nan=2.0).clamp_max(2.0).mean())


def big_endian(states: torch.Tensor) -> torch.Tensor:
    pairs = states.contiguous().view(torch.uint8).view(*states.shape, 2)
    return pairs.flip(-1).contiguous().view(torch.bfloat16)[..., 0]


def right(model: Model, sequences: Sequences, block: int) -> Sequences:
    """[tokens, hidden] of each sequence, as the engine should store them."""
    states = output_of(model, right_padded(sequences, 0), block)
    return [row[: len(sequence)] for row, sequence in zip(states, sequences, strict=True)]


def final(model: Model, sequences: Sequences) -> Sequences:
    ids = right_padded(sequences, 0).to(model.device)
    states = model.decoder(input_ids=ids, use_cache=False).last_hidden_state.bfloat16().cpu()
    return [row[: len(sequence)] for row, sequence in zip(states, sequences, strict=True)]


def left(model: Model, sequences: Sequences, block: int) -> Sequences:
    longest = max(map(len, sequences))
    ids = torch.stack([torch.nn.functional.pad(sequence, (longest - len(sequence), 0)) for sequence in sequences])
    states = output_of(model, ids, block)
    return [row[longest - len(sequence) :] for row, sequence in zip(states, sequences, strict=True)]


def packed(model: Model, sequences: Sequences, block: int) -> Sequences:
    taken = []
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])[None].to(model.device)
    with hooked(model.blocks, {block: taken.append}):
        model.decoder(input_ids=torch.cat(sequences)[None].to(model.device), position_ids=positions, use_cache=False)
    return list(taken[0][0].bfloat16().cpu().split([len(sequence) for sequence in sequences]))


def output_of(model: Model, ids: torch.Tensor, block: int) -> torch.Tensor:
    taken = []
    run_to_taps(model, ids.to(model.device), {block: taken.append})
    return taken[0].bfloat16().cpu()
