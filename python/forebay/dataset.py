"""A PyTorch dataset over a run. Importing it raises ModuleNotFoundError, with the command, where torch is missing."""

from collections.abc import Sequence

import numpy as np

from .run import Run, need_torch

torch = need_torch()


class HiddenStates(torch.utils.data.Dataset):
    """Map-style, of dicts of tensors: `token_ids` [tokens] int64, `loss_mask` where the dataset had masks, and
    `hidden_states` [tokens, taps, hidden] bfloat16.

    Item i is row `rows[i]`; default: every row of the run, ascending. Each item is one range request, so give the
    DataLoader workers. Raises as `run[row]` does.
    """

    def __init__(self, run: Run, rows: Sequence[int] | None = None):
        self._run = run
        self.rows = run.rows if rows is None else np.asarray(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._run[int(self.rows[index])].tensors()
