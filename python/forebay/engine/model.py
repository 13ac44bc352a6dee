"""Loads a Hugging Face model directory, or says why not, and runs it as far as the last tap."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import nn

from .batching import forward_tokens
from .device import default_device, gpus_of
from .failure import Failure
from .memory import Load, say_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BYTES_OF = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}


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


# A log is no place for a moving bar.
transformers.utils.logging.disable_progress_bar()


class _Enough(Exception):
    """The last tap is reached; what comes after is not wanted."""


def load_model(request: dict, engine_number: int) -> Model:
    """Raises Failure where the model cannot be loaded or would not compute what its files say."""
    directory, options = request["model"], request["options"]
    config = read_config(directory)
    weights_bytes = check_files(directory, config)
    device = torch.device(request["device"] or default_device(engine_number))
    dtype = choose_dtype(request["dtype"], device, config)
    spread = options.get("device_map") is not None
    slots = max(forward_tokens(options, device.type), options.get("longest_tokens") or 0)
    where = {"device_map": options["device_map"]} if spread else {}
    try:
        say_memory(
            Load(
                directory=directory,
                weights_bytes=weights_bytes(dtype),
                dtype=dtype,
                device=device,
                spread=spread,
                taps=len(request["taps"]),
                slots=slots,
                longest=options.get("longest_tokens") or slots,
                attn=options.get("attn"),
            )
        )
        whole, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation=options.get("attn"),
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **where,
        )
    except (ValueError, KeyError, ImportError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "out of memory" in str(error):
            raise
        raise Failure(f"{directory}: transformers {transformers.__version__} cannot load it: {error}") from error
    whole = whole.eval() if spread else whole.eval().to(device)
    whole.requires_grad_(False)
    text = whole.config.get_text_config()
    decoder = whole.get_decoder()
    blocks = find_blocks(decoder, text.num_hidden_layers)
    check_loading(directory, info, len(blocks))
    kernels = kernels_in_use(whole, text)
    if device.type == "cuda" and "torch-reference" in kernels and not options.get("allow_slow_kernels"):
        raise Failure(
            "the linear attention of this model would run transformers' slow reference code on the GPU: "
            "pip install flash-linear-attention causal-conv1d, or --allow-slow-kernels"
        )
    return Model(
        whole=whole,
        decoder=decoder,
        blocks=blocks,
        architecture=config["architectures"][0],
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None),
        dtype=dtype,
        kernels=kernels,
        device=whole.get_input_embeddings().weight.device,
        gpus=gpus_of(whole),
    )


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


def read_config(directory: str) -> dict:
    path = Path(directory, "config.json")
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise Failure(f"{path}: expected a Hugging Face model directory ({error.strerror})") from error
    except ValueError as error:
        raise Failure(f"{path}: expected JSON ({error})") from error
    if not isinstance(config, dict) or not config.get("architectures"):
        raise Failure(f'{path}: the key "architectures" is missing')
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if config.get("model_type") not in known:
        if "auto_map" in config:
            raise Failure(
                f"{directory}: this model needs Python code that comes with its files (auto_map in config.json), "
                "and Forebay runs none: use a model that transformers itself knows"
            )
        raise Failure(
            f'{directory}: transformers {transformers.__version__} does not know the model type "{config.get("model_type")}"'
        )
    return config


def check_files(directory: str, config: dict) -> Callable[[torch.dtype], int]:
    """Raises Failure where there are no safetensors. Returns: bytes of the weights when loaded in a dtype."""
    names = sorted(os.listdir(directory))
    shards = []
    index = Path(directory, "model.safetensors.index.json")
    if index.exists():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if absent := [name for name in shards if not Path(directory, name).exists()]:
            raise Failure(f"{directory}: the shard {absent[0]} that {index.name} names is missing: fetch the model again")
    elif "model.safetensors" in names:
        shards = ["model.safetensors"]
    if not shards:
        pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        if pickles:
            raise Failure(
                f"{directory}: the weights come only as a pickle ({pickles[0]}), which can run code when it is "
                "opened; only safetensors is read. Save it again where you trust it: "
                "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
            )
        raise Failure(f"{directory}: there is neither model.safetensors nor {index.name}: fetch the model again")
    numbers = [count_numbers(Path(directory, name)) for name in shards]
    quantized = "quantization_config" in config
    as_stored = sum(Path(directory, name).stat().st_size for name in shards)
    return lambda dtype: as_stored if quantized else sum(numbers) * dtype.itemsize


def count_numbers(path: Path) -> int:
    """Raises Failure where the file is cut."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, 100_000_000):
            raise Failure(f"{path}: expected a safetensors file, found a header of {length} bytes: fetch it again")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise Failure(f"{path}: its header is not JSON: fetch the model again") from error
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    if 8 + length + end != size:
        raise Failure(f"{path}: expected {8 + length + end} bytes, found {size}: fetch the model again")
    counts = [(tensor["data_offsets"][1] - tensor["data_offsets"][0]) // BYTES_OF.get(tensor["dtype"], 1) for tensor in tensors]
    return sum(counts)


def choose_dtype(wanted: str, device: torch.device, config: dict) -> torch.dtype:
    """`auto`: what the weights are saved in; float32 on a CPU, where bf16 is both slower and less exact."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device.type == "cpu":
        return torch.float32
    text = config.get("text_config") or {}
    saved = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return DTYPES.get(saved, torch.bfloat16)


def find_blocks(decoder: nn.Module, count: int) -> nn.ModuleList:
    layers = getattr(decoder, "layers", None)
    candidates = [layers] if isinstance(layers, nn.ModuleList) else []
    candidates = candidates or [
        module for module in decoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(candidates) != 1:
        raise Failure(
            f"cannot tell which modules of {type(decoder).__name__} are its {count} blocks: "
            f"expected one list of them, found {len(candidates)}"
        )
    if len(candidates[0]) != count:
        raise Failure(f"config.json says {count} blocks, the model has {len(candidates[0])}")
    return candidates[0]


def check_loading(directory: str, info: dict, blocks: int) -> None:
    """transformers fills what the files lack with random numbers, and leaves out what config.json does not tell of."""
    if missing := sorted(info["missing_keys"]):
        raise Failure(
            f"{directory}: the weights lack {len(missing)} tensors that config.json asks for, {missing[0]} first: "
            "config.json and the weights are not of one model"
        )
    for name in sorted(info["unexpected_keys"]):
        parts = name.split(".")
        if "layers" in parts and not {"mtp", "visual", "vision_tower"} & set(parts):
            number = parts[parts.index("layers") + 1]
            if number.isdigit() and int(number) >= blocks:
                raise Failure(f"{directory}: the weights hold {name}, but config.json says {blocks} blocks")


def kernels_in_use(whole: nn.Module, text) -> list[str]:
    attention = getattr(text, "_attn_implementation", None) or getattr(whole.config, "_attn_implementation", "eager")
    kernels = [f"{attention}"]
    if "linear_attention" in (getattr(text, "layer_types", None) or []):
        from transformers.utils import import_utils

        fast = []
        if import_utils.is_flash_linear_attention_available():
            fast.append("flash-linear-attention")
        if import_utils.is_causal_conv1d_available():
            fast.append("causal-conv1d")
        kernels += fast if len(fast) == 2 else [*fast, "torch-reference"]
    return kernels
