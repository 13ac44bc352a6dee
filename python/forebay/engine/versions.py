"""The least versions that the engine is tried with, and what is installed."""

import importlib.metadata
import re

#: Qwen3.5 and the loading rules that model.py relies on came with these.
LEAST = {"torch": (2, 13), "transformers": (5, 19)}
SHOWN = ("torch", "transformers", "safetensors", "numpy", "crc32c", "flash-linear-attention", "causal-conv1d")
INSTALL = "pip install 'torch>=2.13' 'transformers>=5.19' safetensors numpy crc32c"


def installed() -> dict[str, str]:
    """{package: version} of those that matter here and are installed; nothing is imported."""
    found = {}
    for name in SHOWN:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def shortcoming(found: dict[str, str]) -> str | None:
    """What is missing or too old, with the command that helps; None where all is well."""
    for name in ("torch", "transformers", "safetensors", "numpy", "crc32c"):
        if name not in found:
            return f"the package {name} is not installed: {INSTALL}"
    for name, least in LEAST.items():
        if tuple(int(part) for part in re.findall(r"\d+", found[name])[:2]) < least:
            return f"expected {name} {'.'.join(map(str, least))} or newer, found {found[name]}: {INSTALL}"
    return None
