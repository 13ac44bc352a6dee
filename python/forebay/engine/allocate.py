"""Disk blocks for a file's whole size, before anything is written: a full disk shows at once, and writing is cheaper."""

import ctypes
import errno
import os

try:
    _fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
except (AttributeError, OSError):
    _fallocate = None


def allocate(fd: int, size: int) -> None:
    """Raises OSError where the disk is too full; does nothing where system or filesystem know no such thing (there
    `os.posix_fallocate` would write into every block)."""
    if _fallocate is None or size == 0 or _fallocate(fd, 0, 0, size) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise OSError(code, os.strerror(code))
