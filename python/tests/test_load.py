"""What cannot be loaded is refused with the reason. That the child then ends is shown by
test/transformers-engine.test.ts."""

import json
import shutil
from pathlib import Path

import pytest

from forebay.engine.failure import Failure
from forebay.engine.load import load_model

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def load(directory):
    return load_model({"model": str(directory), "dtype": "auto", "device": None, "taps": [0], "options": {}}, 0)


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    shutil.copytree(MODELS / "random-llama", directory)
    for file in directory.iterdir():
        file.chmod(0o644)
    return directory


def configured(**changes):
    def spoil(directory):
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def pickled(directory):
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_text("cos\nsystem\n(S'exit 99'\ntR.")


def cut(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (configured(model_type="nobody"), 'transformers .* does not know the model type "nobody"'),
        (pickled, r"only as a pickle \(pytorch_model\.bin\)"),
        (configured(num_hidden_layers=9), "lack"),
        (configured(num_hidden_layers=3), "config.json says 3 blocks"),
        (cut, "expected [0-9]+ bytes, found 100000: fetch the model again"),
        (lambda directory: (directory / "model.safetensors").unlink(), "neither model.safetensors nor"),
        (lambda directory: (directory / "config.json").write_text("{"), "expected JSON"),
        (lambda directory: (directory / "config.json").unlink(), "expected a Hugging Face model directory"),
    ],
)
def test_it_is_refused(model, spoil, reason):
    spoil(model)
    with pytest.raises(Failure, match=reason):
        load(model)


def test_and_unspoilt_it_is_loaded(model):
    assert load(model).architecture == "LlamaForCausalLM"
