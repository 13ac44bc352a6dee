"""A run's plan: which row is in which pack, and where in it (docs/format.md, "Where things are")."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .crc32c import crc32c
from .safetensors import read_arrays

FORMAT = "forebay-plan-1"


@dataclass(frozen=True)
class Place:
    """One sample's byte range [begin, end) in the object `key`, whose header takes the first `header_bytes`."""

    batch: int
    key: str
    begin: int
    end: int
    tokens: int
    header_bytes: int


class Plan:
    """Raises ValueError where `raw` is not a plan of this format."""

    def __init__(self, raw: bytes, what: str):
        metadata, arrays = read_arrays(raw, what)
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{what}: expected {FORMAT}, found {metadata.get('format')}: a newer Forebay wrote it")
        options = json.loads(metadata["options"])
        self.taps: int = options["taps"]
        self.hidden: int = options["hidden"]
        self.has_loss_mask: bool = options["loss_mask"]
        self._metadata_bytes: int = options["metadata_bytes"]
        self._reasons = metadata["skip_reasons"].split(",")
        #: Dataset rows in the order of the packs.
        self.rows = arrays["rows"]
        self.tokens = arrays["tokens"]
        self._starts = arrays["batch_start"].astype(np.int64)
        self._skipped = dict(zip(arrays["skipped_rows"].tolist(), arrays["skipped_reasons"].tolist(), strict=True))
        self._layout = lru_cache(maxsize=64)(self._lay_out)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "_layout"}

    def __setstate__(self, state):
        self.__dict__ = state
        self._layout = lru_cache(maxsize=64)(self._lay_out)

    def skip_reason(self, row: int) -> str | None:
        """Why no pack holds `row`; None where one does."""
        reason = self._skipped.get(row)
        return None if reason is None else self._reasons[reason]

    def place(self, row: int) -> Place:
        """Raises IndexError where the plan has no such row, or skips it."""
        at = np.searchsorted(self._sorted_rows, row)
        if at == len(self._sorted_rows) or self._sorted_rows[at] != row:
            raise IndexError(f"the run has no row {row}")
        place = int(self._order[at])
        batch = int(np.searchsorted(self._starts, place, side="right")) - 1
        header_bytes, begins = self._layout(batch)
        first = place - int(self._starts[batch])
        return Place(
            batch=batch,
            key=pack_key(batch),
            begin=header_bytes + begins[first],
            end=header_bytes + begins[first + 1],
            tokens=int(self.tokens[place]),
            header_bytes=header_bytes,
        )

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.rows, kind="stable")

    @cached_property
    def _sorted_rows(self) -> np.ndarray:
        return self.rows[self._order]

    def _lay_out(self, batch: int) -> tuple[int, list[int]]:
        """The length of the pack's header, and where in its data each sample begins and the last ends."""
        masks, taps, hidden = int(self.has_loss_mask), self.taps, self.hidden
        begins, entries = [0], 0
        for place in range(self._starts[batch], self._starts[batch + 1]):
            row, tokens = digits(self.rows[place]), int(self.tokens[place])
            at = begins[-1]
            ids_end = at + 8 * tokens
            states = ids_end + 8 * tokens * masks
            end = states + 2 * tokens * taps * hidden
            t = digits(tokens)
            done = 59 + row + t + digits(at) + digits(ids_end)
            done += masks * (59 + row + t + digits(ids_end) + digits(states))
            done += 66 + row + t + digits(taps) + digits(hidden) + digits(states) + digits(end)
            skipped = 56 + row + digits(end - at) + digits(at) + digits(end) + row + 2 + 48
            entries += 10 + row + max(done, skipped)
            begins.append(end)
        return (100 + self._metadata_bytes + entries + 63) // 64 * 64, begins


def digits(number: int) -> int:
    return len(str(number))


def pack_key(batch: int) -> str:
    name = f"{batch:08d}"
    return f"packs/{crc32c(name.encode()) & 0xFFF:03x}/{name}.safetensors"
