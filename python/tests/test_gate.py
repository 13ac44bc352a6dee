"""What the gate refuses, by name, and what it must not. Its whole way, with stored bytes spoilt in many ways, is in
test/transformers-engine.test.ts and test/gate.test.ts."""

from pathlib import Path

import pytest
import torch

from forebay.engine import gate
from forebay.engine.batching import ForwardLimits, form_all
from forebay.engine.gate import Gate, GateSample
from forebay.engine.load import load_model
from forebay.engine.staging import Stager

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
TAPS = [1, 3]
KINDS = ["injection", "pad-independence", "greedy"]
LENGTHS = [40, 33, 9, 1]


@pytest.fixture
def model(request):
    name = getattr(request, "param", "random-llama")
    request = {"model": str(MODELS / name), "dtype": "auto", "device": None, "taps": TAPS, "options": {}}
    return load_model(request, 0)


@pytest.fixture
def check(model, tmp_path):
    """The results for the states of some samples, as this model's own engine stores them; `spoil` changes them first."""

    def check(kinds, spoil=lambda states: None):
        samples = [
            GateSample(row, torch.arange(7 * row, 7 * row + tokens) % model.vocab, None) for row, tokens in enumerate(LENGTHS)
        ]
        limits, file, asked = ForwardLimits(2048, False), tmp_path / "states", []
        with file.open("wb") as out:
            # In the forwards in which the gate runs them: others are equal but for rounding.
            for group in form_all(samples, limits):
                staged = Stager(model, TAPS).forward([sample.ids for sample in group])
                for place, sample in enumerate(group):
                    asked.append({"row": sample.row, "ids": sample.ids.tolist(), "offset": out.tell()})
                    for piece in staged.pieces(place):
                        bits = piece.bits.copy()
                        spoil(bits)
                        out.write(bits.tobytes())
        asked.sort(key=lambda sample: sample["row"])
        results = Gate(model, TAPS, limits, lambda *_: None).check({"kinds": kinds, "file": str(file), "samples": asked})
        return {result["kind"]: result for result in results}

    return check


def test_what_an_engine_stores_of_itself_passes(check):
    assert {kind: result["ok"] for kind, result in check(KINDS).items()} == dict.fromkeys(KINDS, True)


def test_a_model_that_sees_the_pads_is_refused_by_the_pad_check_by_name(model, check):
    # Its second block mixes all slots, later ones and pads too.
    model.blocks[1].register_forward_hook(lambda _block, _inputs, states: states + states.mean(1, keepdim=True))
    result = check(["pad-independence"])["pad-independence"]
    assert (result["ok"], result["limit"]) == (False, 0)
    assert result["measured"] > 1e-3
    assert "with what stands in the pads: the model is not causal" in result["message"]


@pytest.mark.parametrize("model", ["random-llama", "random-qwen3_5", "random-gemma3", "tiny-qwen3"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_differs_from_itself_by_bf16_noise_is_refused_by_no_check(model, check, seed):
    random = torch.Generator().manual_seed(seed)

    def noisy(_block, _inputs, output):
        states = output[0] if isinstance(output, tuple) else output
        return states * (1 + 2**-9 * torch.randn(states.shape, generator=random))

    for block in model.blocks:
        block.register_forward_hook(noisy)
    results = check(KINDS)
    assert [result["message"] for result in results.values() if not result["ok"]] == []
    assert results["injection"]["limit"] > 0 and results["pad-independence"]["limit"] > 0


def test_and_a_tap_off_by_one_is_refused_in_spite_of_its_noise(model, check):
    random = torch.Generator().manual_seed(1)
    for block in model.blocks:
        block.register_forward_hook(lambda _b, _i, states: states * (1 + 2**-9 * torch.randn(states.shape, generator=random)))

    def swap(bits):
        bits[:] = bits[:, ::-1].copy()

    result = check(["injection"], swap)["injection"]
    assert (result["ok"], result["tap"]) == (False, 1)


def test_a_verdict_stands_where_memory_runs_out_for_its_explanation(check, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(gate, "diagnose", no_memory)

    def flip(bits):
        bits[:] ^= 1

    result = check(["injection"], flip)["injection"]
    assert not result["ok"] and "do not give the model's logits" in result["message"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_prove_nothing(model, check, value):
    # After the last tap: what is stored is finite.
    model.blocks[-1].register_forward_hook(lambda _block, _inputs, states: states * value)
    results = check(["injection", "greedy"])
    assert {kind: result["ok"] for kind, result in results.items()} == {"injection": False, "greedy": False}
