"""The devices that this process sees, and the one that it computes on."""

import os
from itertools import takewhile

import torch
from torch import nn

from .failure import Failure

#: In CUDA_VISIBLE_DEVICES: hide every GPU. Any other name is of one that somebody wants.
HIDE_ALL = {"", "-1", "NoDevFiles"}


def default_device(engine_number: int) -> str:
    """One device is seen where the supervisor chose it; else the engines share out those that there are. Raises Failure
    where a GPU was chosen and none is seen: the CPU would take days for what was meant to take minutes."""
    if torch.cuda.is_available():
        return f"cuda:{engine_number % torch.cuda.device_count()}"
    if (named := named_gpus()) is None:
        return "cpu"
    raise not_seen(named, "no GPU", "For the CPU set it to nothing")


def need_every_gpu() -> None:
    """Raises Failure where one model is to go over several GPUs and not all that are named are seen."""
    named = named_gpus()
    if named is None:
        return
    wanted, seen = len(list(takewhile(lambda name: name.strip() != "-1", named.split(",")))), torch.cuda.device_count()
    if seen < wanted:
        raise not_seen(named, f"{seen} of these {wanted} GPUs", "CUDA looks no further than the first that is not there")


def not_seen(named: str, seen: str, hint: str) -> Failure:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return Failure(
        f"CUDA_VISIBLE_DEVICES is {named}, and torch {torch.__version__} ({build}) sees {seen}: the driver does not answer, "
        f"a GPU has fallen off the bus (nvidia-smi tells), or a name is wrong. {hint}",
        kind="crash",
        retry="restart",
    )


def named_gpus() -> str | None:
    """What CUDA_VISIBLE_DEVICES asks for; None where it is not set or asks for none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return None if named in HIDE_ALL else named


def seen_devices() -> list[dict]:
    """As `hello` tells them; a GPU that is named and not seen by its name, for `load` to refuse."""
    if torch.cuda.is_available():
        seen = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [{"uuid": gpu_uuid(gpu), "name": gpu.name, "bytes": gpu.total_memory} for gpu in seen]
    if (named := named_gpus()) is not None:
        return [{"uuid": None, "name": f"{named} (not seen)", "bytes": None, "seen": False}]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [{"uuid": None, "name": cpu_name(), "bytes": memory}]


def gpus_of(whole: nn.Module) -> list[str]:
    """UUIDs of the GPUs that hold its weights."""
    indices = {weights.device.index for weights in whole.parameters() if weights.device.type == "cuda"}
    return [gpu_uuid(torch.cuda.get_device_properties(index)) for index in sorted(indices)]


def gpu_uuid(gpu) -> str:
    """As nvidia-smi writes it; `gpu` is what torch tells of a device."""
    return f"GPU-{gpu.uuid}"


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"
