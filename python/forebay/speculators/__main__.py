"""`python -m forebay.speculators <speculators' own arguments>`: its command line, with our backend in it.

speculators discovers no plugins, and looks at the backends' arguments once, when its configuration is imported: ours
must be registered before.
"""

import sys

from . import PackBackend  # noqa: F401


def run_on_cpu() -> None:
    """speculators 0.9.0 takes "cuda:0" for its device where torch names no accelerator; give it "cpu"."""
    import torch

    accelerator = torch.accelerator
    if accelerator.is_available():
        return
    accelerator.current_accelerator = lambda check_available=False: None if check_available else torch.device("cpu")
    # It asks current_accelerator itself, and the DataLoader asks it whether to pin memory.
    accelerator.is_available = lambda: False
    accelerator.current_device_index = lambda: 0
    accelerator.set_device_index = lambda *_: None
    accelerator.synchronize = lambda *_: None
    from speculators.train import checkpointer, trainer

    # safetensors refuses "cpu:0", and an int means a GPU's index.
    checkpointer.get_current_device = lambda: "cpu"
    trainer.get_local_rank = lambda: "cpu"


def rows_as_tensors() -> None:
    """speculators compares ids as tensors, which its own prepare-data and `forebay tokenize` ask datasets for; rows saved
    otherwise come as lists."""
    from speculators.train import data

    load = data.load_from_disk
    data.load_from_disk = lambda path: load(path).with_format("torch")


run_on_cpu()
rows_as_tensors()

from speculators.cli import app  # noqa: E402

if __name__ == "__main__":
    sys.argv[0] = "speculators"
    app()
