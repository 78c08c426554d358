"""An S3 server of our own on loopback, and a proxy before it that counts, delays and fails."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
    "AWS_REGION": "us-east-1",
}
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}

Fault = Callable[["Request"], "str | tuple[int, str] | None"]
"""Gives a status and an error code, or says when to drop the connection: before or after."""


@dataclass(frozen=True)
class Request:
    """One request that reached the proxy."""

    number: int
    method: str
    path: str

    @property
    def writes(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")


def every(n: int, *answers: str | tuple[int, str]) -> Fault:
    """Fail every n-th request, in turn by each of these."""

    def fault(request: Request) -> str | tuple[int, str] | None:
        turn, rest = divmod(request.number, n)
        return None if rest else answers[turn % len(answers)]

    return fault


def writes(answer: tuple[int, str]) -> Fault:
    """Refuse every request that changes something."""
    return lambda request: answer if request.writes else None


def always(answer: tuple[int, str]) -> Fault:
    """Refuse every request."""
    return lambda request: answer


THROTTLED, BROKEN, DENIED = (503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied")
BEFORE, AFTER = "before", "after"
"""Drop the connection before the store has seen the request, or once it has done it."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a store in a process of its own; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        _wait(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def create_bucket(endpoint: str, name: str) -> None:
    """Make a bucket; this server checks no signatures."""
    status, _, _ = _forwarded(urlsplit(endpoint).netloc, "PUT", f"/{name}", {}, b"")
    assert status == 200


@dataclass
class Proxy:
    """A server that passes requests on to the store, or does not."""

    target: str
    fault: Fault = lambda request: None
    delay: float = 0.0
    seen: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def methods(self) -> dict[str, int]:
        """Number of requests by method."""
        found = [request.method for request in self.seen]
        return {method: found.count(method) for method in sorted(set(found))}

    def received(self, method: str, path: str) -> Request:
        with self._lock:
            request = Request(len(self.seen) + 1, method, path)
            self.seen.append(request)
        return request


@contextmanager
def proxied(endpoint: str) -> Iterator[tuple[Proxy, str]]:
    """Put a proxy before a store; gives it and its address."""
    proxy = Proxy(urlsplit(endpoint).netloc)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else small answers wait 40 ms for an acknowledgement

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.fault(request := proxy.received(self.command, self.path))
            time.sleep(proxy.delay)
            if fault == BEFORE:
                return self._drop()
            if isinstance(fault, tuple):
                text = f"<Error><Code>{fault[1]}</Code><Message>no</Message></Error>"
                return self._answer(fault[0], {"Content-Type": "application/xml"}, text.encode())
            headers = dict(self.headers.items())
            answer = _forwarded(proxy.target, request.method, request.path, headers, body)
            return self._drop() if fault == AFTER else self._answer(*answer)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

        def _drop(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else len(body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _forwarded(
    target: str, method: str, path: str, headers: dict[str, str], body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Ask the store itself, on a connection of its own."""
    connection = http.client.HTTPConnection(target, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers.items()), answer.read()
    finally:
        connection.close()
