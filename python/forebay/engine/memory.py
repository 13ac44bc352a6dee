"""What a run takes of a device's memory, said before the minutes of loading.

A forward of `slots` tokens (pads included) takes, on the device, for each slot

    d * (5 H + max(attention, mlp)) + linear + pairs + states

with d the bytes of a number as computed, H the hidden size, and

    attention  4 Q + 3 K        Q = heads * head size, K the same of the key-value heads: projections, and what turning
                                them by rotary embeddings copies
    mlp        3 I              I the intermediate size; of experts E (3 I + 2 H) + H, E the number that a token goes to
    linear     4 (12 V + 384 h) hybrids' linear attention, in f32: h value heads, V = h * their size; transformers' own
                                code, which also holds 64 x 64 numbers for each chunk of 64 tokens
    pairs      L * (1 + d)      where windows need a mask: L the tokens of the longest sample
               L * 3.5 d heads  where the attention is eager
    states     3 * 2 taps * H   on a GPU, bf16: of this forward, of the last one on its way to the host, and as much for
                                the statistics; beside them, page-locked on the host, 2 * 2 taps * H
               2 d taps * H     on a CPU: the outputs of this forward and of the last one, which are not copied

bytes. 5 H are the embeddings, the residual stream, what went into the block, its norm and its output. Measured on ten
architectures in f32 and bf16 on a CPU (tests/test_memory.py): what is really taken is 0.7 to 1 of this. Of blocks that
this does not speak of (state spaces, convolutions, other linear attentions) it cannot be told.
"""

import sys
from dataclasses import dataclass

import torch
import transformers

from .failure import Failure

#: Of a state: bf16.
STATE_BYTES = 2
#: Entries of a config's `layer_types` that the formula speaks of.
KNOWN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
#: Beginnings of what a config says of recurrences that it does not list as layers of their own.
RECURRENT = ("mamba_", "lru_")


@dataclass(frozen=True)
class Load:
    """What is about to be loaded, and on what."""

    directory: str
    weights_bytes: int
    dtype: torch.dtype
    device: torch.device
    #: How transformers is to spread it over all GPUs; None: it goes on `device` alone.
    device_map: str | None
    taps: int
    #: Slots of the largest forward.
    slots: int
    #: Tokens of the longest sample; at most `slots`.
    longest: int
    #: Attention implementation that was asked for, or None.
    attn: str | None


def say_memory(text, load: Load) -> None:
    """The sum, to stderr; `text` is the text model's config. Raises Failure where the weights alone do not fit; forwards
    that do not are made smaller."""
    free = free_bytes(load.device, load.device_map is not None)
    where = "all GPUs" if load.device_map else str(load.device)
    of_what = f"of the {gib(free)} that are free on {where}"
    weights = f"the weights take {gib(load.weights_bytes)}"
    slot = told_slot_bytes(text, load)
    if slot is None:
        sentence = f"{weights} {of_what}; what a forward takes cannot be told of {text.model_type}"
    else:
        sentence = f"{weights} and the largest forward, of {load.slots:,} tokens, {gib(slot * load.slots)} {of_what}"
    if slot is not None and load.device.type == "cuda":
        pinned = 2 * STATE_BYTES * load.taps * text.hidden_size * load.slots
        sentence += f"; its states {gib(pinned)} of page-locked memory beside"
    print(f"{load.directory}: {sentence}", file=sys.stderr, flush=True)
    if load.weights_bytes > free:
        raise Failure(f"{sentence}: use a larger device, several (--engines fewer than --devices), or --dtype bfloat16")
    if slot is not None and load.weights_bytes + slot * load.slots > free:
        fitting = max(1, (free - load.weights_bytes) // slot)
        print(f"forwards of {fitting:,} tokens would fit: --forward-tokens {fitting}", file=sys.stderr, flush=True)


def told_slot_bytes(text, load: Load) -> int | None:
    """As `slot_bytes`; None of a model whose blocks the formula does not know."""
    if not set(getattr(text, "layer_types", None) or []) <= KNOWN_LAYERS:
        return None
    if any(name.startswith(RECURRENT) for name in vars(text)):
        return None
    try:
        return slot_bytes(text, load)
    except Exception:
        # Configs lack a field, have a list or None for a number, or raise errors of their own. The sum is only advice.
        return None


def slot_bytes(text, load: Load) -> int:
    """Bytes of device memory for each slot of a forward: the formula above."""
    hidden, d = text.hidden_size, load.dtype.itemsize
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or hidden // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    attention = 4 * heads * head_size + 3 * kv_heads * head_size
    states = load.taps * hidden * (3 * STATE_BYTES if load.device.type == "cuda" else 2 * d)
    return d * (5 * hidden + max(attention, mlp_width(text))) + linear_bytes(text) + pair_bytes(text, load) + states


def mlp_width(text) -> int:
    dense = 3 * (getattr(text, "intermediate_size", None) or 4 * text.hidden_size)
    experts = getattr(text, "num_experts_per_tok", None)
    if not experts:
        return dense
    # The experts' own size, where a model tells it from that of its dense blocks.
    size = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    return max(dense, experts * (3 * size + 2 * text.hidden_size) + text.hidden_size)


def linear_bytes(text) -> int:
    if "linear_attention" not in (getattr(text, "layer_types", None) or []):
        return 0
    heads = text.linear_num_value_heads
    return 4 * (12 * heads * text.linear_value_head_dim + 6 * 64 * heads)


def pair_bytes(text, load: Load) -> int:
    d = load.dtype.itemsize
    if load.attn == "eager" or (load.attn is None and not knows_sdpa(text)):
        return int(load.longest * 3.5 * d * text.num_attention_heads)
    is_windowed = (getattr(text, "sliding_window", None) or load.longest) < load.longest
    return load.longest * (1 + d) if is_windowed else 0


def knows_sdpa(text) -> bool:
    """Whether transformers takes torch's fused attention for this model when nobody asks for another."""
    model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
    return model is None or getattr(model, "_supports_sdpa", True)


def free_bytes(device: torch.device, spread: bool) -> int:
    if device.type == "cuda":
        devices = range(torch.cuda.device_count()) if spread else [device.index or 0]
        return sum(torch.cuda.mem_get_info(index)[0] for index in devices)
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
