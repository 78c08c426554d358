"""A proxy in front of an object store that counts, delays and fails requests."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}

Fault = Callable[["ProxyRequest"], "str | tuple[int, str] | None"]
"""Returns a status and an error code, or BEFORE, AFTER or MIDWAY to drop the connection."""


@dataclass(frozen=True)
class ProxyRequest:
    """One request that reached the proxy."""

    number: int
    method: str
    path: str

    @property
    def is_write(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")


def fail_every(n: int, *answers: str | tuple[int, str]) -> Fault:
    """Fail every n-th request with each of these faults in turn."""

    def fault(request: ProxyRequest) -> str | tuple[int, str] | None:
        turn, rest = divmod(request.number, n)
        return None if rest else answers[turn % len(answers)]

    return fault


def fail_at_random(seed: int, probability: float, *answers: str | tuple[int, str]) -> Fault:
    """Fail requests with this probability, each with one of these faults."""
    rng = random.Random(seed)

    def fault(request: ProxyRequest) -> str | tuple[int, str] | None:
        return rng.choice(answers) if rng.random() < probability else None

    return fault


def fail_writes(answer: tuple[int, str]) -> Fault:
    """Refuse every request that changes something."""
    return lambda request: answer if request.is_write else None


def fail_always(answer: tuple[int, str]) -> Fault:
    """Refuse every request."""
    return lambda request: answer


THROTTLED, BROKEN, DENIED = (503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied")
BEFORE, AFTER, MIDWAY = "before", "after", "midway"
"""Drop the connection before the store receives the request, after it, or within its answer."""


@dataclass
class FaultyProxy:
    """A server that passes requests on to the store, or fails them."""

    target: str
    fault: Fault = lambda request: None
    delay: float = 0.0
    seen: list[ProxyRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def counts_by_method(self) -> dict[str, int]:
        """Number of requests by method."""
        found = [request.method for request in self.seen]
        return {method: found.count(method) for method in sorted(set(found))}

    def record_request(self, method: str, path: str) -> ProxyRequest:
        with self._lock:
            request = ProxyRequest(len(self.seen) + 1, method, path)
            self.seen.append(request)
        return request


HttpAnswer = tuple[int, Mapping[str, str], bytes]
AnswerFunction = Callable[[str, str, Mapping[str, str], bytes], HttpAnswer | None]
"""Returns status, headers and body for method, path, headers and body; None drops the request."""


@contextmanager
def start_proxy(address: str) -> Iterator[tuple[FaultyProxy, str]]:
    """Start a proxy in front of a store; yield it and its address."""
    proxy = FaultyProxy(urlsplit(address).netloc)

    def answer(
        method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> HttpAnswer | None:
        fault = proxy.fault(proxy.record_request(method, unquote(path)))
        time.sleep(proxy.delay)
        if fault == BEFORE:
            return None
        if isinstance(fault, tuple):
            return make_error_answer(*fault)
        found = forward_request(proxy.target, method, path, headers, body)
        if fault == MIDWAY:
            status, headers, content = found
            headers = {**headers, "Content-Length": str(len(content))}
            return status, headers, content[: len(content) // 2]
        return None if fault == AFTER else found

    with serve_answers(answer) as listening:
        yield proxy, listening


def make_error_answer(status: int, code: str) -> HttpAnswer:
    """Write an error as the stores do."""
    text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


@contextmanager
def serve_answers(answer: AnswerFunction) -> Iterator[str]:
    """Answer requests on loopback, each in its own thread; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(answer))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_handler(answer: AnswerFunction) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else small answers wait 40 ms for an acknowledgement

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(self.command, self.path, dict(self.headers.items()), body)
            if found is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._answer(*found)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            length = int(headers.get("Content-Length", len(body)))
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
                self.close_connection = len(body) < length

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def forward_request(
    target: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> HttpAnswer:
    """Send a request to the store on a separate connection."""
    connection = http.client.HTTPConnection(target, timeout=600)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, dict(answer.headers.items()), answer.read()
    finally:
        connection.close()
