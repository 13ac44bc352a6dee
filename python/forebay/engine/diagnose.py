"""What stored states are, where they are not what they should be: the mistakes that people have made, tried in turn."""

import torch

from .model import Model, hooked, run_to_taps
from .staging import right_padded

#: Two computations of one thing in bf16 are nearer than this, any two of these things far more apart.
SAME = 0.03


@torch.inference_mode()
def diagnose(model: Model, sequences: list[torch.Tensor], stored: list[torch.Tensor], tap: int) -> str | None:
    """`stored` [tokens, hidden] bf16 of each of `sequences` should be the outputs of block `tap`. One sentence, or None
    where nothing known explains them."""
    cpu = [states.cpu() for states in stored]
    own = outputs(model, sequences, tap)
    for name, read in {"big-endian": big_endian, "float16 bytes called bfloat16": float16}.items():
        if is_same(own, [read(states) for states in cpu]):
            return f"they are {name}"
    for block in range(len(model.blocks)):
        if block != tap and is_same(outputs(model, sequences, block), cpu):
            return f"they are the output of block {block}: taps off by {abs(block - tap)}"
    if is_same(final_states(model, sequences), cpu):
        return "they are the last state after the final norm, not before it"
    if is_same(left_padded_outputs(model, sequences, tap), cpu):
        return "they come of a batch padded on the left"
    if is_same(packed_outputs(model, sequences, tap), cpu):
        return "they come of sequences packed one after another, which see each other"
    if sorted_like_own(own, cpu):
        return "samples are swapped: they are the states of other token ids"
    return None


def is_same(own: list[torch.Tensor] | None, stored: list[torch.Tensor]) -> bool:
    if own is None:
        return False
    a, b = torch.cat(own).float(), torch.cat(stored).float()
    distance = torch.linalg.vector_norm(a - b, dim=-1) / torch.linalg.vector_norm(a, dim=-1).clamp_min(1e-30)
    # A router may send single tokens elsewhere.
    return float(distance.nan_to_num(nan=2.0).median()) < SAME and float(distance.nan_to_num(nan=2.0).mean()) < SAME


def sorted_like_own(own: list[torch.Tensor], stored: list[torch.Tensor]) -> bool:
    """Whether the first token's state, which sees nothing but itself, is that of another sample's first token."""
    firsts = [states[0].float() for states in own]
    nearest = [min(range(len(firsts)), key=lambda i, s=states: float((firsts[i] - s[0].float()).norm())) for states in stored]
    return nearest != list(range(len(firsts))) and all(
        float((firsts[i] - states[0].float()).norm() / firsts[i].norm()) < SAME for i, states in zip(nearest, stored)
    )


def big_endian(states: torch.Tensor) -> torch.Tensor:
    return states.contiguous().view(torch.uint8).view(*states.shape, 2).flip(-1).reshape(states.shape[0], -1).view(torch.bfloat16)


def float16(states: torch.Tensor) -> torch.Tensor:
    return states.contiguous().view(torch.float16)


def outputs(model: Model, sequences: list[torch.Tensor], block: int) -> list[torch.Tensor]:
    """[tokens, hidden] of each sequence, as the engine should store them."""
    ids = right_padded(sequences, 0).to(model.device)
    taken = take_one(model, ids, block)
    return [states[: len(sequence)].bfloat16().cpu() for states, sequence in zip(taken, sequences, strict=True)]


def take_one(model: Model, ids: torch.Tensor, block: int) -> torch.Tensor:
    taken = []
    run_to_taps(model, ids, {block: taken.append})
    return taken[0]


def final_states(model: Model, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    ids = right_padded(sequences, 0).to(model.device)
    final = model.decoder(input_ids=ids, use_cache=False).last_hidden_state
    return [states[: len(sequence)].bfloat16().cpu() for states, sequence in zip(final, sequences, strict=True)]


def left_padded_outputs(model: Model, sequences: list[torch.Tensor], block: int) -> list[torch.Tensor]:
    longest = max(map(len, sequences))
    ids = torch.stack([torch.nn.functional.pad(sequence, (longest - len(sequence), 0)) for sequence in sequences])
    taken = take_one(model, ids.to(model.device), block)
    return [states[longest - len(sequence) :].bfloat16().cpu() for states, sequence in zip(taken, sequences, strict=True)]


def packed_outputs(model: Model, sequences: list[torch.Tensor], block: int) -> list[torch.Tensor] | None:
    taken = []
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])[None].to(model.device)
    with hooked(model.blocks, {block: taken.append}):
        model.decoder(input_ids=torch.cat(sequences)[None].to(model.device), position_ids=positions, use_cache=False)
    return list(taken[0][0].bfloat16().cpu().split([len(sequence) for sequence in sequences]))
