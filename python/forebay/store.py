"""Where a run lies: a directory, or a prefix of an S3 bucket."""

import os
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    address: str

    def get(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        """Bytes [begin, end) of an object, to its end without `end`; None where there is no such object."""


def open_store(address: str, *, endpoint: str | None, region: str | None, profile: str | None) -> Store:
    if address.startswith("file:"):
        return DirectoryStore(address)
    if address.startswith("s3://"):
        return S3Store(address, endpoint=endpoint, region=region, profile=profile)
    raise ValueError(f"expected s3://bucket/prefix/name or file:dir/name, found {address}")


class DirectoryStore:
    def __init__(self, address: str):
        self.address = address
        # A worker process may have another working directory.
        self._directory = Path(address.removeprefix("file:")).absolute()

    def get(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        try:
            with open(self._directory / key, "rb") as file:
                file.seek(begin)
                return file.read(-1 if end is None else end - begin)
        except FileNotFoundError:
            return None


class S3Store:
    """Its client is made on first use, again in each process: clients neither pickle nor survive a fork."""

    def __init__(self, address: str, *, endpoint: str | None, region: str | None, profile: str | None):
        self.address = address
        self._bucket, _, prefix = address.removeprefix("s3://").rstrip("/").partition("/")
        if not self._bucket or not prefix:
            raise ValueError(f"expected s3://bucket/prefix/name, found {address}")
        self._prefix = prefix
        self._endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self._region = region
        self._profile = profile
        self._client = None
        self._pid = None

    def __getstate__(self):
        return {**self.__dict__, "_client": None, "_pid": None}

    def get(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        if begin == end:
            return b""
        client = self._connect()
        span = {} if begin == 0 and end is None else {"Range": f"bytes={begin}-{'' if end is None else end - 1}"}
        try:
            answer = client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", **span)
            return answer["Body"].read()
        except client.exceptions.NoSuchKey:
            return None

    def _connect(self):
        if self._pid != os.getpid():
            try:
                import boto3
                from botocore.config import Config
            except ImportError as error:
                raise ImportError("reading from S3 needs boto3: pip install 'forebay[s3]'") from error
            style = {"addressing_style": "path"} if self._endpoint else {}
            config = Config(
                s3=style,
                retries={"mode": "standard", "max_attempts": 8},
                max_pool_connections=64,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            session = boto3.Session(profile_name=self._profile)
            region = self._region or session.region_name or "us-east-1"
            self._client = session.client("s3", endpoint_url=self._endpoint, region_name=region, config=config)
            self._pid = os.getpid()
        return self._client
