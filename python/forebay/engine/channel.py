"""The two ends of the engine protocol: newline JSON, requests in and answers out."""

import json
import math
import os
import threading

#: As LINE_BYTES_MAX of src/engine/protocol.ts.
LINE_BYTES_MAX = 32 * 2**20


class ProtocolFault(Exception):
    """A line that is no request. The process ends: who sends one cannot be trusted to match the answers."""


class Channel:
    """Answers may be sent from any thread; requests are read by one."""

    def __init__(self, request_fd: int, answer_fd: int):
        # A process that some library starts must not hold the supervisor's pipes open.
        os.set_inheritable(request_fd, False)
        os.set_inheritable(answer_fd, False)
        self._requests = os.fdopen(request_fd, "rb")
        self._answer_fd = answer_fd
        self._lock = threading.Lock()

    def send(self, answer: dict) -> None:
        """Ends the process where nobody reads any more. Numbers must be finite (see `number`)."""
        line = memoryview(json.dumps(answer, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._answer_fd, line) :]
            except BrokenPipeError:
                os._exit(0)

    def requests(self):
        """Yields requests until the supervisor closes its end. Raises ProtocolFault."""
        while line := self._requests.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise ProtocolFault(f"a request line has over {LINE_BYTES_MAX} bytes")
            try:
                request = json.loads(line)
                kind = request["type"]
            except (ValueError, TypeError, KeyError):
                raise ProtocolFault(f"not a request: {line[:200]!r}") from None
            if kind not in ("load", "extract", "check", "shutdown"):
                raise ProtocolFault(f"not a request: {line[:200]!r}")
            yield request


def number(value: float) -> float | None:
    """JSON has no NaN and no infinity; they travel as null."""
    value = float(value)
    return value if math.isfinite(value) else None
