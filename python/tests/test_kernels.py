"""Fast kernels count where they can really be imported, for the models that transformers runs on them."""

import sys
from pathlib import Path

import pytest
import transformers

from forebay.engine.failure import Failure
from forebay.engine.kernels import GATED_DELTA, kernels_in_use, need_fast_kernels

HYBRID = transformers.AutoConfig.for_model("qwen3_next")
FLA = {
    "fla/__init__.py": "",
    "fla/ops/__init__.py": "",
    "fla/ops/gated_delta_rule.py": "def chunk_gated_delta_rule(): pass",
}
CONV = {"causal_conv1d/__init__.py": "def causal_conv1d_fn(): pass"}
BROKEN = {"causal_conv1d/__init__.py": "raise ImportError('undefined symbol: _ZN3c104cuda9SetDeviceEa')"}
LACKING = {"causal_conv1d/__init__.py": "import einops_that_is_not_there"}
OLD = {**FLA, "fla/ops/gated_delta_rule.py": ""}

REBUILD = "--force-reinstall --no-deps --no-cache-dir --no-build-isolation"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that makes packages of these files, each with the metadata of a whole one."""

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] in ("fla", "causal_conv1d")]:
            del sys.modules[name]

    def install(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in ("flash_linear_attention", "causal_conv1d"):
            metadata = tmp_path / f"{name}-1.6.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.6.0\n")
        monkeypatch.syspath_prepend(tmp_path)

    forget()
    yield install
    forget()


def named(text) -> list[str]:
    return kernels_in_use(text)[1:]


def test_both_packages_that_can_be_imported_are_named_and_enough_for_a_gpu(installed):
    installed({**FLA, **CONV})
    assert named(HYBRID) == ["flash-linear-attention", "causal-conv1d"]
    need_fast_kernels(HYBRID, "cuda", allow_slow=False)


@pytest.mark.parametrize(
    ("files", "left", "why", "hint"),
    [
        (
            {},
            [],
            "flash-linear-attention: No module named 'fla'; causal-conv1d: No module named 'causal_conv1d'",
            "pip install flash-linear-attention causal-conv1d",
        ),
        (
            {**FLA, **BROKEN},
            ["flash-linear-attention"],
            "causal-conv1d: undefined symbol: _ZN3c104cuda9SetDeviceEa",
            f"pip install {REBUILD} causal-conv1d",
        ),
        (
            BROKEN,
            [],
            "flash-linear-attention: No module named 'fla'; causal-conv1d: undefined symbol: _ZN3c104cuda9SetDeviceEa",
            f"pip install flash-linear-attention && pip install {REBUILD} causal-conv1d",
        ),
        (
            {**FLA, **LACKING},
            ["flash-linear-attention"],
            "causal-conv1d: No module named 'einops_that_is_not_there'",
            f"pip install {REBUILD} causal-conv1d",
        ),
        (
            {**OLD, **CONV},
            ["causal-conv1d"],
            "flash-linear-attention: .* has no attribute 'chunk_gated_delta_rule'",
            "pip install --upgrade flash-linear-attention",
        ),
    ],
)
def test_a_package_that_is_missing_broken_or_too_old_is_slow_and_told_with_what_helps(installed, files, left, why, hint):
    installed(files)
    assert named(HYBRID) == [*left, "torch-reference"]
    with pytest.raises(Failure, match=rf"slow reference code on the GPU \({why}\): {hint}, or --allow-slow-kernels") as refusal:
        need_fast_kernels(HYBRID, "cuda", allow_slow=False)
    assert refusal.value.retry == "no"
    need_fast_kernels(HYBRID, "cuda", allow_slow=True)
    need_fast_kernels(HYBRID, "cpu", allow_slow=False)


@pytest.mark.parametrize("kind", ["qwen3", "minimax", "bamba", "granitemoehybrid", "nemotron_h"])
def test_models_that_do_not_run_on_these_packages_are_not_asked_for_them(installed, kind):
    installed({})
    text = transformers.AutoConfig.for_model(kind)
    assert named(text) == []
    need_fast_kernels(text, "cuda", allow_slow=False)


def test_the_models_are_those_that_transformers_itself_takes_to_these_functions():
    models = Path(transformers.__file__).parent / "models"
    asked = {path.parent.name for path in models.glob("*/modeling_*.py") if '("chunk_gated_delta_rule", "fla")' in path.read_text()}
    assert {name.removesuffix("_text") for name in GATED_DELTA} == asked


def test_a_slow_model_is_refused_before_its_weights_are_read(installed, monkeypatch):
    from forebay.engine import load

    installed({})
    monkeypatch.setattr(load, "load_weights", pytest.fail)
    monkeypatch.setattr(load, "say_memory", lambda *_: None)
    model = Path(__file__).parents[2] / "fixtures" / "models" / "random-qwen3_5"
    request = {"model": str(model), "dtype": "auto", "device": "cuda:0", "taps": [0], "options": {}}
    with pytest.raises(Failure, match="slow reference code"):
        load.load_model(request, 0)
