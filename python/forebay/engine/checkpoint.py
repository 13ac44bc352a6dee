"""What the files of a Hugging Face model directory say, before anything of them is loaded."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from .failure import Failure

BYTES_OF = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}


def read_config(directory: str) -> dict:
    path = Path(directory, "config.json")
    try:
        config = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
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
