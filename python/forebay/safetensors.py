"""Just enough of safetensors: a header that may lie, and numpy arrays over the bytes behind it."""

import json
from dataclasses import dataclass

import numpy as np

HEADER_BYTES_MAX = 100_000_000
DTYPES = {"U8": np.dtype("u1"), "U32": np.dtype("<u4"), "U64": np.dtype("<u8"), "I64": np.dtype("<i8")}


@dataclass
class Header:
    metadata: dict[str, str]
    #: name -> (dtype, shape, first byte, end byte), counted from the beginning of the object.
    tensors: dict[str, tuple[str, list[int], int, int]]
    #: Its 8 length bytes included.
    length: int


def parse_header(raw: bytes, what: str) -> Header:
    """The header at the beginning of `raw`. Raises ValueError, naming `what`, on anything but a header."""
    if len(raw) < 8:
        raise ValueError(f"{what}: expected a safetensors header, found {len(raw)} bytes")
    length = 8 + int.from_bytes(raw[:8], "little")
    if not 10 <= length <= min(len(raw), HEADER_BYTES_MAX):
        raise ValueError(f"{what}: expected a safetensors header, found one of {length} bytes in {len(raw)}")
    try:
        entries = json.loads(raw[8:length])
        metadata = entries.pop("__metadata__", {})
        tensors = {
            name: (tensor["dtype"], tensor["shape"], *(length + offset for offset in tensor["data_offsets"]))
            for name, tensor in entries.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{what}: its safetensors header does not parse: {error}") from error
    return Header(metadata, tensors, length)


def read_arrays(raw: bytes, what: str) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and every tensor of a whole file, as views of `raw`. Raises ValueError as parse_header does."""
    header = parse_header(raw, what)
    arrays = {}
    for name, (dtype, shape, begin, end) in header.tensors.items():
        size = int(np.prod(shape, dtype=object)) * DTYPES[dtype].itemsize if dtype in DTYPES else -1
        if not header.length <= begin <= end <= len(raw) or end - begin != size:
            raise ValueError(f"{what}: the tensor {name} does not lie in the file as its header says")
        arrays[name] = np.frombuffer(raw, DTYPES[dtype], offset=begin, count=size // DTYPES[dtype].itemsize).reshape(shape)
    return header.metadata, arrays
