"""What cannot be loaded is refused with the reason. That the child then ends is shown by
test/transformers-engine.test.ts."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

from forebay.engine import versions
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


class TestWhatPasses:
    """A model may be loaded by the next process, where it was the disk or the GPU that failed and not its files."""

    def failing(self, monkeypatch, error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)

    @pytest.mark.parametrize("name", ["EIO", "ESTALE", "EMFILE", "ETIMEDOUT"])
    def test_a_disk_that_fails_is_tried_again(self, model, monkeypatch, name):
        self.failing(monkeypatch, OSError(getattr(errno, name), os.strerror(getattr(errno, name))))
        with pytest.raises(Failure, match="cannot load it") as failure:
            load(model)
        assert (failure.value.kind, failure.value.errno, failure.value.retry) == ("io", name, "restart")

    @pytest.mark.parametrize("where", ["read_text", "stat"])
    def test_also_where_it_fails_before_transformers_is_asked(self, model, monkeypatch, where):
        def fail(*_, **__):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Path, where, fail)
        with pytest.raises(Failure) as failure:
            load(model)
        assert (failure.value.kind, failure.value.errno, failure.value.retry) == ("io", "EIO", "restart")

    def test_and_where_transformers_says_it_in_words_of_its_own(self, model, monkeypatch):
        error = OSError("the file seems to be incomplete")
        error.__cause__ = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self.failing(monkeypatch, error)
        with pytest.raises(Failure) as failure:
            load(model)
        assert (failure.value.errno, failure.value.retry) == ("ESTALE", "restart")

    @pytest.mark.parametrize(
        "error",
        [
            torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
            RuntimeError("CUDA error: an illegal memory access was encountered"),
            RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu."),
            RuntimeError("No CUDA GPUs are available"),
            RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        ],
    )
    def test_a_gpu_that_fails_is_a_crash(self, model, monkeypatch, error):
        self.failing(monkeypatch, error)
        with pytest.raises(Failure) as failure:
            load(model)
        assert (failure.value.kind, failure.value.retry) == ("crash", "restart")

    @pytest.mark.parametrize(
        "error",
        [
            OSError("there is no file named model.safetensors"),
            FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "model.safetensors"),
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "model.safetensors"),
            ValueError("head_dim"),
            RuntimeError("size mismatch for lm_head.weight"),
            ImportError("this needs tiktoken"),
        ],
    )
    def test_what_is_refused_would_be_again(self, model, monkeypatch, error):
        self.failing(monkeypatch, error)
        with pytest.raises(Failure) as failure:
            load(model)
        assert (failure.value.kind, failure.value.retry) == ("bad-request", "no")

    def test_an_index_that_is_no_json_is_refused(self, model):
        (model / "model.safetensors.index.json").write_text("{")
        with pytest.raises(Failure) as failure:
            load(model)
        assert (failure.value.kind, failure.value.retry) == ("bad-request", "no")

    def test_memory_that_ran_out_stays_that(self, model, monkeypatch):
        self.failing(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
        with pytest.raises(torch.OutOfMemoryError):
            load(model)


def test_a_config_that_names_no_width_is_refused_before_anything_is_loaded(model, monkeypatch):
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: transformers.BltConfig())
    with pytest.raises(Failure, match="a model of type blt has no hidden_size"):
        load(model)


class TestOverSeveralGpus:
    def refused(self, model):
        request = {"model": str(model), "dtype": "auto", "device": "cpu", "taps": [0], "options": {"device_map": "auto"}}
        with pytest.raises(Failure) as failure:
            load_model(request, 0)
        return failure.value

    @pytest.fixture
    def placed(self, monkeypatch):
        """What accelerate is said to have placed where."""
        places = {}
        real = transformers.AutoModelForCausalLM.from_pretrained

        def load_placed(*arguments, device_map=None, **options):
            assert device_map == "auto"
            whole, info = real(*arguments, **options)
            whole.hf_device_map = places
            return whole, info

        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load_placed)
        monkeypatch.setattr(versions, "installed", lambda: {"accelerate": "1.14.0"})
        return places

    @pytest.mark.parametrize(("found", "said"), [({}, "is not installed"), ({"accelerate": "0.34.2"}, "found 0.34.2")])
    def test_accelerate_is_asked_for_with_the_command_before_anything_is_loaded(self, model, monkeypatch, found, said):
        monkeypatch.setattr(versions, "installed", lambda: found)
        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", pytest.fail)
        failure = self.refused(model)
        assert said in str(failure) and f"{sys.executable} -m pip install 'accelerate>=1.1'" in str(failure)
        assert failure.retry == "no"

    def test_and_is_not_asked_for_on_one_device(self, model, monkeypatch):
        monkeypatch.setattr(versions, "installed", lambda: {})
        load(model)

    @pytest.mark.parametrize("place", ["cpu", "disk", torch.device("cpu"), torch.device("meta")])
    def test_a_part_that_no_gpu_holds_is_refused(self, model, placed, place):
        placed.update({"model.embed_tokens": 0, "model.layers.0": torch.device("cuda", 1), "model.layers.1": place})
        failure = self.refused(model)
        assert "model.layers.1 first, are not on a GPU" in str(failure) and failure.retry == "no"

    def test_where_gpus_hold_all_of_it_it_is_loaded(self, model, placed):
        placed.update({"model.embed_tokens": 0, "model.layers": "cuda:1", "lm_head": torch.device("cuda", 1)})
        request = {"model": str(model), "dtype": "auto", "device": "cpu", "taps": [0], "options": {"device_map": "auto"}}
        assert load_model(request, 0).architecture == "LlamaForCausalLM"
