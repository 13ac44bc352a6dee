"""The sum that is said before a model is loaded, against what a forward really takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from forebay.engine.failure import Failure
from forebay.engine.load import load_model
from forebay.engine.memory import Load, say_memory, slot_bytes
from forebay.engine.staging import Stager

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
#: Architectures without golden states, made here.
SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 384}
EXPERTS = {**SHAPE, "num_experts_per_tok": 2, "head_dim": 32}
MADE = {
    "mixtral": {**EXPERTS, "num_local_experts": 8, "intermediate_size": 96},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "moe_intermediate_size": 48, "intermediate_size": 96},
    # It knows no fused attention.
    "gpt_oss": {**EXPERTS, "num_local_experts": 8, "intermediate_size": 48, "sliding_window": 16},
}


#: Families whose blocks the formula does not know, as small as they come.
HYBRID = ["linear_attention", "full_attention"] * 2
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}
UNKNOWN = {
    "bamba": {**SHAPE, **MAMBA, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**SHAPE, **MAMBA, "mamba_d_ssm": 128, "intermediate_size": 96},
    "gemma3n_text": {
        **{**SHAPE, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
        **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 384, "laurel_rank": 4},
        **{"intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4},
    },
    "granitemoehybrid": {**SHAPE, **MAMBA, "layer_types": HYBRID, "num_local_experts": 4, "shared_intermediate_size": 96},
    "jamba": {**SHAPE, "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 384, "state_size": 8},
    "minimax": {**SHAPE, "num_local_experts": 4, "head_dim": 16, "layer_types": HYBRID, "block_size": 16},
    "nemotron_h": {
        **{**SHAPE, "head_dim": 16, "layers_block_type": ["mamba", "attention", "mlp", "mamba"], "n_groups": 1},
        **{"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16},
    },
}


def load_of(**changes) -> Load:
    load = {
        **{"directory": "", "weights_bytes": 0, "dtype": torch.bfloat16, "device": torch.device("cpu"), "device_map": None},
        **{"taps": 5, "slots": 8192, "longest": 1000, "attn": None},
    }
    return Load(**{**load, **changes})


class TestFormula:
    def test_a_dense_model_by_hand(self):
        # Qwen3-8B: its MLP, 3 * 12,288, is wider than its attention, 4 * 4,096 + 3 * 1,024.
        text = transformers.Qwen3Config(
            hidden_size=4096, intermediate_size=12_288, num_attention_heads=32, num_key_value_heads=8, head_dim=128
        )
        on_gpu = load_of(device=torch.device("cuda:0"))
        assert slot_bytes(text, on_gpu) == 2 * (5 * 4096 + 3 * 12_288) + 3 * 2 * 5 * 4096
        on_cpu = load_of(dtype=torch.float32)
        assert slot_bytes(text, on_cpu) == 4 * (5 * 4096 + 3 * 12_288) + 2 * 4 * 5 * 4096

    def test_eager_attention_and_windows_take_more_the_longer_the_longest_sample_is(self):
        text = transformers.Qwen3Config(num_attention_heads=32)
        fused = slot_bytes(text, load_of())
        assert slot_bytes(text, load_of(attn="eager")) - fused == 1000 * 7 * 32
        windowed = transformers.MistralConfig(sliding_window=512)
        whole = transformers.MistralConfig(sliding_window=None)
        assert slot_bytes(windowed, load_of()) - slot_bytes(whole, load_of()) == 1000 * 3
        short = load_of(longest=512)
        assert slot_bytes(windowed, short) == slot_bytes(whole, short)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    for kind, shape in {**MADE, **UNKNOWN}.items():
        config = transformers.AutoConfig.for_model(kind, **shape)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory / kind)
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    ["tiny-qwen3", "random-qwen3", "random-qwen2", "random-llama", "random-mistral", "random-gemma3", "random-qwen3_5", *MADE],
)
def test_a_forward_takes_what_the_formula_says_and_at_least_half_of_it(name, dtype, made):
    directory = str((made if name in MADE else MODELS) / name)
    model = load_model({"model": directory, "dtype": dtype, "device": None, "taps": [1, 3], "options": {}}, 0)
    text = model.whole.config.get_text_config()
    # The last block is among them, so that nothing is left out.
    taps = [1, len(model.blocks) - 1]
    for sequences, tokens in [(16, 128), (4, 256)]:
        slots = sequences * tokens
        load = load_of(dtype=model.dtype, taps=len(taps), slots=slots, longest=tokens)
        said, taken = slots * slot_bytes(text, load), peak_bytes(model, taps, sequences, tokens)
        print(f"{name} {dtype} {sequences} x {tokens}: {taken / slots:.0f} of {said / slots:.0f} bytes a slot")
        assert said / 2 < taken <= said


def peak_bytes(model, taps: list[int], sequences: int, tokens: int) -> int:
    """The most that the second forward has at once, with what is kept of the first until it is written."""
    stager = Stager(model, taps)
    ids = [torch.arange(tokens) % model.vocab for _ in range(sequences)]
    before = stager.forward(ids)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        stager.forward(ids)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = sum(output.nbytes for output in before.outputs)
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


class TestSaid:
    TEXT = transformers.AutoConfig.from_pretrained(MODELS / "random-qwen3")

    def test_weights_and_the_largest_forward_are_said_in_numbers(self, capfd):
        say_memory(self.TEXT, load_of(weights_bytes=3 * 2**30, slots=1_000_000))
        said = capfd.readouterr().err
        # 2 * (5 * 64 + 4 * 128 + 3 * 64) + 2 * 2 * 5 * 64 bytes, a million times.
        assert "the weights take 3.0 GiB and the largest forward, of 1,000,000 tokens, 3.1 GiB of the" in said

    def test_a_forward_that_does_not_fit_is_no_refusal_but_tells_what_would(self, capfd):
        say_memory(self.TEXT, load_of(slots=10**12))
        assert "would fit: --forward-tokens" in capfd.readouterr().err

    def test_weights_that_do_not_fit_are_refused_with_the_sum(self):
        with pytest.raises(Failure, match=r"the weights take 1048576.0 GiB .* use a larger device"):
            say_memory(self.TEXT, load_of(weights_bytes=2**50))

    @pytest.mark.parametrize("kind", [*UNKNOWN, "falcon_mamba", "gemma4_text", "kimi_linear", "zamba2"])
    def test_what_cannot_be_told_is_said_and_weights_that_do_not_fit_are_still_refused(self, kind, capfd):
        text = transformers.AutoConfig.for_model(kind).get_text_config()
        say_memory(text, load_of(weights_bytes=3 * 2**30))
        said = capfd.readouterr().err
        assert "the weights take 3.0 GiB of the" in said and f"what a forward takes cannot be told of {kind}" in said
        with pytest.raises(Failure, match=r"the weights take 1048576.0 GiB .* use a larger device"):
            say_memory(text, load_of(weights_bytes=2**50))


@pytest.mark.parametrize("kind", sorted({*UNKNOWN} - {"gemma3n_text"}))
def test_a_model_whose_forward_cannot_be_told_is_loaded_and_runs(kind, made):
    model = load_model({"model": str(made / kind), "dtype": "auto", "device": None, "taps": [1, 2], "options": {}}, 0)
    staged = Stager(model, [1, 2]).forward([torch.arange(40), torch.arange(30)])
    states = np.concatenate([piece.bits for piece in staged.pieces(1)])
    assert states.shape == (30, 2, 64) and states.any((0, 2)).all()


def test_blocks_that_give_more_than_one_residual_stream_are_refused_and_not_stored_in_some_order(made):
    directory = str(made / "gemma3n_text")
    model = load_model({"model": directory, "dtype": "auto", "device": None, "taps": [1], "options": {}}, 0)
    with pytest.raises(Failure, match=r"expected \[sequences, tokens, hidden\], found \[4, 1, 40, 64\]"):
        Stager(model, [1]).forward([torch.arange(40)])
