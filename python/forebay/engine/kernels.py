"""Which kernels a model runs on."""

from torch import nn


def kernels_in_use(whole: nn.Module, text) -> list[str]:
    attention = getattr(text, "_attn_implementation", None) or getattr(whole.config, "_attn_implementation", "eager")
    kernels = [f"{attention}"]
    if "linear_attention" in (getattr(text, "layer_types", None) or []):
        from transformers.utils import import_utils

        fast = []
        if import_utils.is_flash_linear_attention_available():
            fast.append("flash-linear-attention")
        if import_utils.is_causal_conv1d_available():
            fast.append("causal-conv1d")
        kernels += fast if len(fast) == 2 else [*fast, "torch-reference"]
    return kernels
