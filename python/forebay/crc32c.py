"""CRC-32C of some bytes: by the package crc32c where it is installed, else slowly."""


def _slowly(data, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]

try:
    from crc32c import crc32c
except ImportError:
    crc32c = _slowly
