"""Where a run lies: a directory, or a prefix of an S3 bucket."""

import os
import random
import re
import sys
from itertools import count
from pathlib import Path
from time import sleep
from typing import Protocol

#: Of one body. A request that is not answered at all is botocore's to repeat.
ATTEMPTS_MAX = 6
PAUSE_S_MAX = 10.0


class Corrupt(ValueError):
    """The store's bytes are not those that were put there."""


class Store(Protocol):
    address: str

    def get(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        """Bytes [begin, end) of an object, to its end without `end`; None where there is no such object. Raises
        ConnectionError where the bytes break off again and again, Corrupt where the object ends before `begin`."""


def open_store(address: "str | os.PathLike[str]", *, endpoint: str | None, region: str | None, profile: str | None) -> Store:
    address = os.fspath(address)
    if address.startswith("s3://"):
        return S3Store(address, endpoint=endpoint, region=region, profile=profile)
    kind = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)", address)
    if kind is None:
        return DirectoryStore(f"file:{address}")
    if kind[0] == "file":
        return DirectoryStore(address)
    raise ValueError(f"expected s3://bucket/prefix/name or a directory, found {address}")


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
        span = {} if begin == 0 and end is None else {"Range": f"bytes={begin}-{'' if end is None else end - 1}"}
        for attempt in count(1):
            body = self._body(key, span)
            try:
                return None if body is None else body.read()
            except broken_off() as error:
                if attempt == ATTEMPTS_MAX:
                    raise ConnectionError(
                        f"{self.address}/{key}: its body broke off {attempt} times, at last: {error}"
                    ) from error
            sleep(random.uniform(0, min(PAUSE_S_MAX, 0.5 * 2**attempt)))

    def _body(self, key: str, span: dict[str, str]):
        client = self._connect()
        try:
            return client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", **span)["Body"]
        except client.exceptions.NoSuchKey:
            return None
        except client.exceptions.ClientError as error:
            if error.response["ResponseMetadata"].get("HTTPStatusCode") == 416:
                raise Corrupt(f"{self.address}/{key}: it ends before {span['Range']}") from error
            raise

    def _connect(self):
        if self._pid != os.getpid():
            try:
                import boto3
                from botocore.config import Config
            except ImportError as error:
                raise missing("reading from S3", "boto3") from error
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


def missing(what: str, package: str) -> ModuleNotFoundError:
    """`what` cannot be done without `package`; with the command that brings it into this very Python."""
    command = f"{sys.executable} -m pip install {package}"
    return ModuleNotFoundError(f"{what} needs {package}: {command}", name=package)


def broken_off() -> tuple[type[Exception], ...]:
    """What reading a body raises where the connection ends first; botocore wraps some of these, and not all."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    return BotoCoreError, HTTPError, OSError
