"""A hidden-states backend for speculators: it trains straight from a run's packs.

    python -m forebay.speculators train --hidden-states-backend forebay --forebay-address s3://bucket/prefix/name ...

Written against speculators 0.9.0. Its rows must be the dataset that the run was extracted from: a sample whose ids differ
from its row is dropped by speculators with only a warning.
"""

from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from ..run import Run, Skipped
from ..run import open as open_run


class PackTransfer(HiddenStatesTransfer):
    """Pickled into data workers, so the run is opened on first use there."""

    def __init__(self, address: str, endpoint: str | None, region: str | None):
        self._where = {"address": address, "endpoint": endpoint, "region": region}
        self._run: Run | None = None

    def __getstate__(self):
        return {"_where": self._where, "_run": None}

    def get_cached(self, file_idx: int) -> dict | None:
        """`hidden_states` [tokens, taps, hidden] bf16, the last slot before the final norm, and `token_ids` int64;
        None for a row that has no states."""
        if self._run is None:
            self._run = need_last_block(open_run(**self._where))
        try:
            tensors = self._run[file_idx].tensors()
        except (Skipped, IndexError, FileNotFoundError):
            return None
        return {"hidden_states": tensors["hidden_states"], "token_ids": tensors["token_ids"]}

    def get_generated(self, hs_transfer_params: dict) -> dict | None:
        raise NotImplementedError("packs are extracted beforehand: train with --on-missing skip, warn or raise")


def need_last_block(run: Run) -> Run:
    """Raises ValueError where the last block was not tapped: speculators takes the last slot for its output."""
    if not run.record["numbering"]["last_state"]:
        raise ValueError(
            f"{run.address}: speculators needs the last block's output, and the run tapped {run.taps} only"
        )
    return run


@HiddenStatesBackend.register("forebay")
class PackBackend(HiddenStatesBackend):
    @staticmethod
    def add_train_args(parser) -> None:
        parser.add_argument("--forebay-address", type=str, default=None, help="s3://bucket/prefix/name or file:dir/name")
        parser.add_argument("--forebay-endpoint", type=str, default=None, help="S3-compatible endpoint; default: AWS")
        parser.add_argument("--forebay-region", type=str, default=None, help="region; default: boto3's own")

    @staticmethod
    def add_launch_args(parser) -> None:
        pass

    @staticmethod
    def from_train_args(args, data_path: str) -> PackTransfer:
        if not args.forebay_address:
            raise ValueError("--hidden-states-backend forebay needs --forebay-address")
        # Told now and not by the first data worker.
        need_last_block(open_run(args.forebay_address, endpoint=args.forebay_endpoint, region=args.forebay_region))
        return PackTransfer(args.forebay_address, args.forebay_endpoint, args.forebay_region)

    @staticmethod
    def build_kv_transfer_config(args) -> dict:
        raise NotImplementedError("forebay extracts beforehand; vLLM is not started for training")
