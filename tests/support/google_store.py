"""An imitation of Google's store: the part of its XML interface in use, on top of an S3 store.

We found no server with Google's interface that works here. This adds to moto the differences: a
generation per object, conditions on it, and the answers about missing objects.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.object_proxy import HttpAnswer, forward_request, make_error_answer, serve_answers

TOKEN = "a-token-of-tests"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)
_WRITE_METHODS = ("PUT", "POST", "DELETE")
_NO_GENERATION = "0"
"""Generation of a missing object."""


@contextmanager
def serve_google_front(s3_address: str) -> Iterator[str]:
    """Serve Google's interface; yield its address."""
    with serve_answers(_GoogleFront(urlsplit(s3_address).netloc).answer) as address:
        yield address


@dataclass
class _GoogleFront:
    """Objects of an S3 store and their generations; writes happen one after another."""

    target: str
    generations: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: Iterator[int] = field(default_factory=lambda: itertools.count(time.time_ns() // 1000))

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        asked = {name.lower(): value for name, value in headers.items()}
        if asked.get("authorization") != f"Bearer {TOKEN}":
            return make_error_answer(401, "AuthenticationRequired")
        url = urlsplit(path)
        name = quote(unquote(url.path))  # Google's clients encode more than S3 decodes
        path = f"{name}?{url.query}" if url.query else name
        part_of_upload = {"uploads", "partNumber"} & parse_qs(url.query, True).keys()
        if name.count("/") < 2 or part_of_upload:
            return forward_request(self.target, method, path, _convert_headers(asked), body)
        with self._lock:
            refused = self._find_refusal(method, name, asked) if method in _WRITE_METHODS else None
            return refused or self._perform(method, path, asked, body)

    def _find_refusal(self, method: str, name: str, asked: Mapping[str, str]) -> HttpAnswer | None:
        bucket = "/" + name.split("/")[1]
        if self._get_status(bucket) != 200:
            return make_error_answer(404, "NoSuchBucket")
        found = self._get_status(name) == 200
        now = self.generations.get(name, _NO_GENERATION) if found else _NO_GENERATION
        if asked.get("x-goog-if-generation-match", now) != now:
            return make_error_answer(412, "PreconditionFailed")
        return make_error_answer(404, "NoSuchKey") if method == "DELETE" and not found else None

    def _perform(self, method: str, path: str, asked: Mapping[str, str], body: bytes) -> HttpAnswer:
        name = urlsplit(path).path
        status, headers, text = forward_request(
            self.target, method, path, _convert_headers(asked), body
        )
        if status == 200 and method in ("PUT", "POST"):
            self.generations[name] = str(next(self._next))
        if status in (200, 206) and name in self.generations:
            headers = {**headers, "x-goog-generation": self.generations[name]}
        return status, headers, text

    def _get_status(self, path: str) -> int:
        return forward_request(self.target, "HEAD", path, {"Authorization": _SIGNED})[0]


def _convert_headers(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request as S3 expects them."""
    kept = {name: value for name, value in asked.items() if not name.startswith("x-goog-")}
    if "x-goog-copy-source" in asked:
        kept["x-amz-copy-source"] = asked["x-goog-copy-source"]
    return {**kept, "authorization": _SIGNED}
