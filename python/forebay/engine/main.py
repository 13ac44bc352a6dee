"""The process around the engine: descriptors, threads, and how it ends.

The main thread computes. One thread reads requests, so that the end of stdin ends the process at once, also in the
middle of a forward; one beats; one writes states (writer.py).
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
import traceback

from . import versions
from .channel import Channel, ProtocolFault
from .failure import Failure

ALIVE_S = 5
#: sysexits' EX_SOFTWARE: the supervisor takes it for a crash.
EXIT_CRASH = 70
#: sysexits' EX_CONFIG
EXIT_CONFIGURATION = 78
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    channel = Channel(*protect_descriptors(arguments[:2]))
    die_with_parent()
    EngineProcess(channel, engine_number=int(arguments[2]) if len(arguments) > 2 else 0).run()


def protect_descriptors(arguments: list[str]) -> tuple[int, int]:
    """The requests' and the answers' descriptors, with 0 and 1 out of the reach of whatever prints or reads."""
    if arguments:
        # The command that started us moved them before Python ran at all (src/engine/transformers.ts).
        return int(arguments[0]), int(arguments[1])
    request_fd, answer_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return request_fd, answer_fd


def die_with_parent() -> None:
    """SIGKILL from the kernel when the supervisor dies. Had it died before this line, the end of stdin tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class EngineProcess:
    def __init__(self, channel: Channel, engine_number: int):
        self._channel = channel
        self._engine_number = engine_number
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        self._stage = "import"
        #: Requests that are not answered yet; the writer thread answers too.
        self._open: set[int] = set()
        self._open_lock = threading.Lock()

    def run(self) -> None:
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        if lacking := versions.shortcoming(versions.installed()):
            print(lacking, file=sys.stderr, flush=True)
            os._exit(EXIT_CONFIGURATION)
        try:
            # Heavy imports begin here, and whatever they print goes to stderr.
            from .hello import hello

            self._channel.send(hello())
            threading.Thread(target=self._beat, name="alive", daemon=True).start()
            from .service import Service

            self._stage = "idle"
            service = Service(self._engine_number, send=self._answer, crash=self.crash)
            while True:
                if not service.has_work:
                    self._stage = "idle"
                    self._take(service, self._inbox.get())
                while not self._inbox.empty():
                    self._take(service, self._inbox.get())
                if service.has_work:
                    self._stage = "extract"
                    service.forward()
        except BaseException as error:
            self.crash(error)

    def _take(self, service, request: dict) -> None:
        self._stage = "load" if request["type"] == "load" else "extract"
        service.receive(request)

    def _read(self) -> None:
        try:
            for request in self._channel.requests():
                if request["type"] == "shutdown":
                    # A forward in progress is not waited for: what is asked for now will be asked for again.
                    self._channel.send({"type": "bye"})
                    os._exit(0)
                with self._open_lock:
                    self._open.add(request["id"])
                self._inbox.put(request)
        except ProtocolFault as fault:
            print(fault, file=sys.stderr, flush=True)
            os._exit(EXIT_CRASH)
        except BaseException as error:
            self.crash(error)
        os._exit(0)

    def _beat(self) -> None:
        while True:
            self._channel.send({"type": "alive", "stage": self._stage})
            time.sleep(ALIVE_S)

    def _answer(self, answer: dict, is_last: bool) -> None:
        if is_last:
            with self._open_lock:
                self._open.discard(answer["id"])
        self._channel.send(answer)

    def crash(self, error: BaseException) -> None:
        """Ends the process: after a fault that nobody expected, neither it nor its CUDA context is trusted."""
        if isinstance(error, Failure):
            failure, unexpected = error, error.__cause__
        else:
            failure, unexpected = Failure(f"{type(error).__name__}: {error}", kind="crash", retry="restart"), error
        if unexpected is not None:
            traceback.print_exception(unexpected)
            sys.stderr.flush()
        with self._open_lock:
            for request_id in sorted(self._open):
                self._channel.send(failure.answer(request_id, []))
        os._exit(EXIT_CRASH)
