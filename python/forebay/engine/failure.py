"""What went wrong, in the protocol's terms."""

import errno


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
    """torch has a class for the GPU's; on a CPU its allocator raises a RuntimeError that only its text tells."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        said in text for said in ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")
    )
