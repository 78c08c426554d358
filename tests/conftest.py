"""The object store that tests share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from storage import object_store
from tests.object_store import CREDENTIALS, Proxy, create_bucket, proxied, s3_server


@pytest.fixture(scope="session", autouse=True)
def no_machine_credentials() -> Iterator[None]:
    """Without credentials a store would ask the machine for its own: here nothing answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
        yield


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A store for the session."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of its own."""
    yield from _bucket(s3_endpoint, s3_endpoint, monkeypatch)


@pytest.fixture
def s3_proxy(s3_endpoint: str) -> Iterator[tuple[Proxy, str]]:
    with proxied(s3_endpoint) as found:
        yield found


@pytest.fixture
def faulty(s3_proxy: tuple[Proxy, str]) -> Proxy:
    """The proxy before the store of `faulty_s3`: give it a fault."""
    return s3_proxy[0]


@pytest.fixture
def faulty_s3(
    s3_endpoint: str, s3_proxy: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a bucket behind the proxy."""
    yield from _bucket(s3_endpoint, s3_proxy[1], monkeypatch)


def _bucket(store: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    object_store.bucket.cache_clear()
    name = f"b-{uuid.uuid4().hex[:12]}"
    create_bucket(store, name)
    yield f"s3://{name}"
    object_store.bucket.cache_clear()
