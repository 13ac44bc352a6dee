"""Reads the hidden states that a Forebay run has extracted.

    import forebay

    run = forebay.open("s3://bucket/prefix/name")      # or a directory
    sample = run[17]                                   # one range request
    sample.token_ids, sample.loss_mask                 # int64 [tokens]
    sample.states                                      # uint16 [tokens, taps, hidden]: the bits of bfloat16
    sample.float32()                                   # the same as numbers
    sample.tensors()["hidden_states"]                  # torch.bfloat16, where torch is installed

`forebay.dataset.HiddenStates` is a PyTorch map-style dataset over a run.
"""

from .run import Corrupt, Run, Sample, Skipped, open

__all__ = ["Corrupt", "Run", "Sample", "Skipped", "open"]
__version__ = "0.1.0"
