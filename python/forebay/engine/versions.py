"""The least versions that the engine is tried with, and what is installed."""

import importlib.metadata
import re
import sys

#: src/engine/transformers.ts and pyproject.toml hold the same. Qwen3.5 and the loading rules that load.py relies on
#: came with these of torch and transformers.
LEAST = {"torch": (2, 13), "transformers": (5, 19), "safetensors": (0, 6), "numpy": (1, 26), "crc32c": (2, 7)}
#: As above, where one model goes over several GPUs; transformers asks for it.
SPREAD_LEAST = {"accelerate": (1, 1)}
SHOWN = (*LEAST, *SPREAD_LEAST, "flash-linear-attention", "causal-conv1d")


def install(wanted: dict[str, tuple[int, int]]) -> str:
    return "pip install " + " ".join(f"'{name}>={major}.{minor}'" for name, (major, minor) in wanted.items())


INSTALL = install(LEAST)


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
    lacking = first_lacking(found, LEAST)
    return lacking and f"{lacking}: {INSTALL}"


def spread_shortcoming(found: dict[str, str]) -> str | None:
    """As `shortcoming`, of what only a model over several GPUs needs."""
    lacking = first_lacking(found, SPREAD_LEAST)
    return lacking and f"one model over several GPUs: {lacking}: {sys.executable} -m {install(SPREAD_LEAST)}"


def first_lacking(found: dict[str, str], wanted: dict[str, tuple[int, int]]) -> str | None:
    for name, least in wanted.items():
        if name not in found:
            return f"the package {name} is not installed"
        if tuple(int(part) for part in re.findall(r"\d+", found[name])[:2]) < least:
            return f"expected {name} {'.'.join(map(str, least))} or newer, found {found[name]}"
    return None
