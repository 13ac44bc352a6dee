"""The least versions that the engine is tried with, and what is installed."""

import importlib.metadata
import re

#: src/engine/transformers.ts and pyproject.toml hold the same. Qwen3.5 and the loading rules that load.py relies on
#: came with these of torch and transformers.
LEAST = {"torch": (2, 13), "transformers": (5, 19), "safetensors": (0, 6), "numpy": (1, 26), "crc32c": (2, 7)}
SHOWN = (*LEAST, "flash-linear-attention", "causal-conv1d")
INSTALL = "pip install " + " ".join(f"'{name}>={major}.{minor}'" for name, (major, minor) in LEAST.items())


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
    for name, least in LEAST.items():
        if name not in found:
            return f"the package {name} is not installed: {INSTALL}"
        if tuple(int(part) for part in re.findall(r"\d+", found[name])[:2]) < least:
            return f"expected {name} {'.'.join(map(str, least))} or newer, found {found[name]}: {INSTALL}"
    return None
