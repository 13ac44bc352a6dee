"""Loads a Hugging Face model directory, or says why not."""

from contextlib import contextmanager

import torch
import transformers
from torch import nn

from . import versions
from .batching import forward_tokens
from .checkpoint import check_files, read_config
from .device import default_device, gpus_of, need_every_gpu
from .failure import Failure, is_gpu_fault, is_out_of_memory, passing_errno
from .kernels import kernels_in_use, need_fast_kernels
from .memory import Load, say_memory
from .model import Model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# A log is no place for a moving bar.
transformers.utils.logging.disable_progress_bar()


def load_model(request: dict, engine_number: int) -> Model:
    """Raises Failure where the model cannot be loaded or would not compute what its files say."""
    directory, options = request["model"], request["options"]
    with explained(directory):
        config = read_config(directory)
        load = plan_load(request, config, engine_number)
        text = text_config(directory)
        need_fast_kernels(text, load.device.type, allow_slow=bool(options.get("allow_slow_kernels")))
        say_memory(text, load)
        whole, info = load_weights(load)
    text = whole.config.get_text_config()
    decoder = whole.get_decoder()
    blocks = find_blocks(decoder, text.num_hidden_layers)
    check_loading(directory, info, len(blocks))
    return Model(
        whole=whole,
        decoder=decoder,
        blocks=blocks,
        architecture=config["architectures"][0],
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None),
        dtype=load.dtype,
        kernels=kernels_in_use(text),
        device=whole.get_input_embeddings().weight.device,
        gpus=gpus_of(whole),
    )


@contextmanager
def explained(directory: str):
    """Raises Failure for what goes wrong within it: to be tried by a new process where the disk or the GPU failed, and
    for good where the files are refused."""
    try:
        yield
    except (ValueError, KeyError, ImportError, OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        message = f"{directory}: transformers {transformers.__version__} cannot load it: {error}"
        if name := passing_errno(error):
            raise Failure(message, kind="io", retry="restart", errno=name) from error
        if is_gpu_fault(error):
            raise Failure(message, kind="crash", retry="restart") from error
        raise Failure(message) from error


def plan_load(request: dict, config: dict, engine_number: int) -> Load:
    options = request["options"]
    weights_bytes = check_files(request["model"], config)
    device = torch.device(request["device"] or default_device(engine_number))
    if options.get("device_map") is not None:
        if lacking := versions.spread_shortcoming(versions.installed()):
            raise Failure(lacking)
        need_every_gpu()
    dtype = choose_dtype(request["dtype"], device, config)
    slots = max(forward_tokens(options, device.type), options.get("longest_tokens") or 0)
    return Load(
        directory=request["model"],
        weights_bytes=weights_bytes(dtype),
        dtype=dtype,
        device=device,
        device_map=options.get("device_map"),
        taps=len(request["taps"]),
        slots=slots,
        longest=options.get("longest_tokens") or slots,
        attn=options.get("attn"),
    )


def text_config(directory: str):
    """The text model's config. Raises Failure where it lacks what nothing goes without."""
    text = transformers.AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config()
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if not isinstance(getattr(text, name, None), int):
            raise Failure(f"{directory}: a model of type {text.model_type} has no {name}, so that its taps cannot be told")
    return text


def load_weights(load: Load) -> tuple[nn.Module, dict]:
    """The model on its device, and what transformers tells of the loading."""
    where = {} if load.device_map is None else {"device_map": load.device_map}
    whole, info = transformers.AutoModelForCausalLM.from_pretrained(
        load.directory,
        dtype=load.dtype,
        attn_implementation=load.attn,
        trust_remote_code=False,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        **where,
    )
    if load.device_map is None:
        whole = whole.to(load.device)
    else:
        check_places(load.directory, getattr(whole, "hf_device_map", {}))
    return whole.eval().requires_grad_(False), info


def check_places(directory: str, places: dict) -> None:
    """accelerate puts on the CPU or the disk what the GPUs do not hold, and fetches it anew for every forward."""
    if elsewhere := [name for name, place in places.items() if str(place) in ("cpu", "disk", "meta")]:
        raise Failure(
            f"{directory}: {len(elsewhere)} of its {len(places)} parts, {elsewhere[0]} first, are not on a GPU but on "
            f"{places[elsewhere[0]]}, for want of memory: give each engine more GPUs (fewer --engines, or more --devices)"
        )


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
