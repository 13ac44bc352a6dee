"""Which kernels a model runs on."""

import importlib
from typing import NamedTuple

from .failure import Failure

#: Text models whose linear attention transformers runs on these packages, or, without them, on PyTorch that is meant to
#: be read and is over ten times slower. Other hybrids have packages of their own, or none.
GATED_DELTA = ("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp_text")
#: {package: the module and the function that transformers takes from it}
FAST = {
    "flash-linear-attention": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "causal-conv1d": ("causal_conv1d", "causal_conv1d_fn"),
}


def kernels_in_use(text) -> list[str]:
    """Of a loaded model, `text` its text model's config: its attention, then what its linear attention runs on."""
    kernels = [getattr(text, "_attn_implementation", None) or "eager"]
    if not runs_gated_delta(text):
        return kernels
    slow = slow_kernels()
    return [*kernels, *(name for name in FAST if name not in slow), *(["torch-reference"] if slow else [])]


def need_fast_kernels(text, device_type: str, *, allow_slow: bool) -> None:
    """Raises Failure where a model on a GPU would run slow reference code that a package would replace."""
    if device_type != "cuda" or allow_slow or not runs_gated_delta(text):
        return
    if slow := slow_kernels():
        raise Failure(
            "the linear attention of this model would run transformers' slow reference code on the GPU "
            f"({reasons(slow)}): {mending(slow)}, or --allow-slow-kernels"
        )


def runs_gated_delta(text) -> bool:
    return text.model_type in GATED_DELTA and "linear_attention" in (getattr(text, "layer_types", None) or [])


class Slow(NamedTuple):
    """Why a package cannot be used, and how pip is told to mend that."""

    reason: str
    pip: str


def slow_kernels() -> dict[str, Slow]:
    """{package: what is wrong with it}. As transformers does, by importing it: one that was built for another torch or
    CUDA is installed and of no use."""
    slow = {}
    for package, (module, function) in FAST.items():
        try:
            getattr(importlib.import_module(module), function)
        except Exception as error:
            slow[package] = Slow(str(error) or type(error).__name__, pip_for(error, module.split(".")[0]))
    return slow


def pip_for(error: Exception, package_module: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == package_module:
        return "install"
    if isinstance(error, AttributeError):
        return "install --upgrade"
    # What is installed satisfies a plain install, and a wheel in the cache was built for that other torch. With its
    # dependencies, it would be torch that is installed anew.
    return "install --force-reinstall --no-deps --no-cache-dir --no-build-isolation"


def mending(slow: dict[str, Slow]) -> str:
    """The commands that mend all of them."""
    commands: dict[str, list[str]] = {}
    for package, (_, pip) in slow.items():
        commands.setdefault(pip, []).append(package)
    return " && ".join(f"pip {pip} {' '.join(packages)}" for pip, packages in commands.items())


def reasons(slow: dict[str, Slow]) -> str:
    return "; ".join(f"{package}: {reason}" for package, (reason, _) in slow.items())
