"""A store that breaks off, over a real socket."""

import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import forebay
from forebay import store

BODY = bytes(range(256)) * 400


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        #: What becomes of the next requests; after the last, each is answered in full.
        self.plan: list[str] = []
        self.ranges: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.ranges.append(self.headers.get("Range"))
        fate = self.server.plan.pop(0) if self.server.plan else "whole"
        if fate == "416":
            return self.refuse(416, "InvalidRange")
        if fate == "404":
            return self.refuse(404, "NoSuchKey")
        first, last = self.headers.get("Range", f"bytes=0-{len(BODY) - 1}").removeprefix("bytes=").split("-")
        body = BODY[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if fate == "whole" else body[: len(body) // 2])
        if fate == "reset":
            # No FIN: the peer's read fails with ECONNRESET.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = fate != "whole"

    def refuse(self, status: int, code: str):
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def pauses(monkeypatch):
    found = []
    monkeypatch.setattr(store, "sleep", found.append)
    return found


@pytest.fixture
def s3(server, pauses, monkeypatch):
    for name, value in [("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "mine"), ("AWS_CONFIG_FILE", "/dev/null")]:
        monkeypatch.setenv(name, value)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    return store.open_store("s3://bucket/runs/one", endpoint=endpoint, region="us-east-1", profile=None)


@pytest.mark.parametrize("fate", ["reset", "cut"])
def test_a_body_that_breaks_off_is_read_again_with_pauses_between(s3, server, pauses, fate):
    server.plan = [fate, fate, fate]
    assert s3.get("packs/1", 100, 90_000) == BODY[100:90_000]
    assert server.ranges == ["bytes=100-89999"] * 4
    assert len(pauses) == 3 and all(0 <= pause <= store.PAUSE_S_MAX for pause in pauses)


def test_but_not_for_ever_and_then_it_says_what_broke_off(s3, server, pauses):
    server.plan = ["reset"] * 100
    with pytest.raises(ConnectionError, match=r"s3://bucket/runs/one/packs/1: its body broke off 6 times, at last: "):
        s3.get("packs/1", 0, 1000)
    assert len(server.ranges) == store.ATTEMPTS_MAX == len(pauses) + 1


def test_an_object_that_ends_before_the_range_is_corrupt(s3, server):
    server.plan = ["416"]
    with pytest.raises(forebay.Corrupt, match=r"s3://bucket/runs/one/packs/1: it ends before bytes=100-199"):
        s3.get("packs/1", 100, 200)


def test_an_object_that_is_not_there_is_none_at_once(s3, server, pauses):
    server.plan = ["404"]
    assert s3.get("packs/1", 100, 200) is None and pauses == []
