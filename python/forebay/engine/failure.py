"""What went wrong, in the protocol's terms."""

import errno
import re
from collections.abc import Iterator

#: Errors of a file that are the same for every process that opens it.
LASTING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM}
#: In the text of a RuntimeError: of torch, CUDA and HIP; cuBLAS, cuDNN and their ROCm equivalents; a CPU's allocator.
OUT_OF_MEMORY = re.compile(
    "out of memory|_STATUS_ALLOC_FAILED|rocblas_status_memory_error|can't allocate memory|not enough memory|bad_alloc"
)
#: As above: the GPU or its driver, and not what it was given.
GPU_FAULT = re.compile(r"\b(CUDA|HIP) (error|driver)\b|_STATUS_[A-Z]|No (CUDA|HIP) GPUs|no NVIDIA driver")


class Failure(Exception):
    """Answered as `error`. `kind` and `retry` are those of src/engine/protocol.ts."""

    def __init__(self, message: str, kind: str = "bad-request", retry: str = "no", errno: str | None = None):
        super().__init__(message)
        self.kind = kind
        self.retry = retry
        self.errno = errno

    def answer(self, request_id: int, rows: list[int]) -> dict:
        return {
            "type": "error",
            "id": request_id,
            "rows": rows,
            "kind": self.kind,
            "errno": self.errno,
            "message": str(self),
            "retry": self.retry,
        }


def failure_of(error: BaseException) -> Failure | None:
    """`error` as a failure to answer with, or None where it is a bug, after which the process must not go on."""
    if isinstance(error, Failure):
        return error
    if is_out_of_memory(error):
        return Failure(str(error) or "out of memory", kind="oom", retry="smaller")
    if isinstance(error, OSError) and error.errno:
        return Failure(str(error), kind="io", errno=errno.errorcode.get(error.errno))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a class for the GPU's; its libraries, and a CPU's allocator, raise a RuntimeError that only its text
    tells."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


def passing_errno(error: BaseException) -> str | None:
    """The name of the errno of a disk that failed ("EIO"), as opposed to a file that is not there; None elsewhere."""
    for one in causes(error):
        if isinstance(one, OSError) and one.errno and one.errno not in LASTING:
            return errno.errorcode.get(one.errno)
    return None


def is_gpu_fault(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and GPU_FAULT.search(str(error)) is not None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and what it was raised from: libraries put errors of their own around the kernel's."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
