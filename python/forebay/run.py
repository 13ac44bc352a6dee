"""One run in a store, read sample by sample."""

import json
import os
from dataclasses import dataclass

import numpy as np

from .crc32c import crc32c
from .plan import Place, Plan
from .safetensors import parse_header
from .store import Corrupt, Store, missing, open_store

FORMAT = "forebay-run-1"


class Skipped(LookupError):
    """No states exist of this row: the plan left it out, or no engine could do it."""


@dataclass(frozen=True)
class Sample:
    row: int
    #: int64 [tokens]
    token_ids: np.ndarray
    #: int64 [tokens], 1 = supervised; None where the dataset had no masks.
    loss_mask: np.ndarray | None
    #: uint16 [tokens, taps, hidden]: the bits of bfloat16. Tap j is the output of block `run.taps[j]`, before any norm.
    states: np.ndarray

    def float32(self) -> np.ndarray:
        """float32 [tokens, taps, hidden], exactly the stored numbers."""
        return (self.states.astype(np.uint32) << 16).view(np.float32)

    def tensors(self) -> dict:
        """As torch tensors over the same memory: `token_ids`, `loss_mask` where there is one, `hidden_states` bf16.
        Raises ModuleNotFoundError where torch is not installed."""
        torch = need_torch()
        tensors = {"token_ids": torch.from_numpy(self.token_ids)}
        if self.loss_mask is not None:
            tensors["loss_mask"] = torch.from_numpy(self.loss_mask)
        tensors["hidden_states"] = torch.from_numpy(self.states.view(np.int16)).view(torch.bfloat16)
        return tensors


def open(
    address: str | os.PathLike[str],
    *,
    endpoint: str | None = None,
    region: str | None = None,
    profile: str | None = None,
) -> "Run":
    """The run at `address` (`s3://bucket/prefix/name`, a directory, `file:dir/name`), finished or still growing.

    Credentials come from boto3's own chain; `endpoint` also from AWS_ENDPOINT_URL. Raises FileNotFoundError where
    there is no run, ValueError where a newer Forebay wrote it or `address` is of another kind.
    """
    return Run(open_store(address, endpoint=endpoint, region=region, profile=profile))


class Run:
    """`run[row]` is the sample of a dataset row. May be pickled, and used by several processes and threads."""

    def __init__(self, store: Store):
        self._store = store
        self.record: dict = json.loads(self._need("run.json"))
        if self.record.get("format") != FORMAT:
            raise ValueError(f"{store.address}: expected {FORMAT}, found {self.record.get('format')}: use a newer forebay")
        self.plan = Plan(self._need(self.record["files"]["plan"]), f"{store.address} plan")

    def __len__(self) -> int:
        """Of `rows`."""
        return len(self.plan.rows)

    def __repr__(self) -> str:
        taps = ",".join(map(str, self.taps))
        return f"<forebay.Run {self.address}: {len(self):,} rows, taps {taps}, hidden {self.hidden}>"

    #: By the old rule a `for` would count rows from 0 and end at the first that is not of the run.
    __iter__ = None

    @property
    def address(self) -> str:
        return self._store.address

    @property
    def taps(self) -> list[int]:
        """Block numbers from 0, ascending."""
        return self.record["numbering"]["blocks"]

    @property
    def hidden(self) -> int:
        return self.plan.hidden

    @property
    def rows(self) -> np.ndarray:
        """All rows that the run has or will have, ascending; a few may turn out `Skipped`."""
        return np.sort(self.plan.rows)

    def __getitem__(self, row: int) -> Sample:
        """By one range request. Raises IndexError for a row that is not of the run, Skipped, FileNotFoundError where its
        pack is not there yet, Corrupt where that is too short, or ConnectionError where its bytes break off again and
        again. Negative rows do not count from the end."""
        return self.read(row)

    def read(self, row: int, *, check: bool = False) -> Sample:
        """As run[row]; with `check`, the pack's header is read too, and the sample's CRC-32C held against it
        (raises Corrupt)."""
        if (reason := self.plan.skip_reason(int(row))) is not None:
            raise Skipped(f"row {row} was left out by the plan: {reason}")
        place = self.plan.place(int(row))
        raw = self._store.get(place.key, place.begin, place.end)
        if raw is None:
            raise FileNotFoundError(f"{self.address}: the pack of row {row} (batch {place.batch}) is not there yet")
        if len(raw) != place.end - place.begin:
            raise Corrupt(f"{self.address}/{place.key}: expected {place.end - place.begin} bytes, found {len(raw)}")
        # States of a sample that was done are never all zero.
        skipped = not any(raw)
        if check or skipped:
            self._hold_against_header(int(row), place, raw, skipped)
        return decode(int(row), raw, self.plan, place.tokens)

    def _hold_against_header(self, row: int, place: Place, raw: bytes, skipped: bool) -> None:
        where = f"{self.address}/{place.key}"
        metadata = parse_header(self._store.get(place.key, 0, place.header_bytes) or b"", where).metadata
        if metadata.get("identity") != self.record["run_id"] or int(metadata.get("batch", -1)) != place.batch:
            raise Corrupt(f"{where}: it is a pack of another run or batch")
        crcs = dict(entry.split(":") for entry in metadata["crc32c"].split(";"))
        if crcs.get(str(row)) != f"{crc32c(raw):08x}":
            raise Corrupt(f"{where}: the bytes of row {row} are not those that were stored")
        reasons = dict(entry.split(":", 1) for entry in metadata.get("skipped", "").split(";") if entry)
        if str(row) in reasons:
            raise Skipped(f"row {row}: no engine could do it: {reasons[str(row)]}")
        if skipped:
            raise Corrupt(f"{where}: the bytes of row {row} are all zero")

    def _need(self, key: str) -> bytes:
        found = self._store.get(key)
        if found is None:
            raise FileNotFoundError(f"{self._store.address}: there is no {key}, so no run (yet)")
        return found


def need_torch():
    """The module. Raises ModuleNotFoundError with the command that installs it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise missing("a sample as tensors", "torch") from error
    return torch


def decode(row: int, raw: bytes, plan: Plan, tokens: int) -> Sample:
    """Arrays over one copy of `raw`, so that they may be written to, as torch asks."""
    data = np.frombuffer(bytearray(raw), np.uint8)
    ids_end = 8 * tokens
    states_begin = ids_end + (8 * tokens if plan.has_loss_mask else 0)
    return Sample(
        row=row,
        token_ids=data[:ids_end].view("<i8"),
        loss_mask=data[ids_end:states_begin].view("<i8") if plan.has_loss_mask else None,
        states=data[states_begin:].view("<u2").reshape(tokens, plan.taps, plan.hidden),
    )
