"""Open the buckets of object stores, and describe storage errors in one line."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from storage.errors import DataError, StoreUnreachableError, is_out_of_memory

# Random pauses that grow fourfold each time: about a minute in total.
_RETRY_CONFIG = {
    "max_retries": 15,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {
        "init_backoff": timedelta(seconds=0.05),
        "max_backoff": timedelta(seconds=15),
        "base": 4,
    },
}
_REPEAT_PAUSES = (0.05, 0.2, 0.8, 3.2, 12.8)
"""Seconds to wait before each repetition of a request whose answer broke off."""
_BROKEN_ANSWER_SIGNS = (
    "response body",
    "<Code>NoSuchUpload</Code>",  # obstore aborts an upload that was complete
)
_UPLOAD_SECONDS = 120
"""Limit of a request. Twelve parts of 5 MB share the network, and one that is late begins again."""
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk; such errors may lack the name of the file."""
_PROBE_RETRY_CONFIG = {"max_retries": 4, "retry_timeout": timedelta(seconds=15)}
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")
_NO_CREDENTIALS_SIGNS = (
    "/latest/api/token",  # the source of credentials on Amazon's machines
    "/latest/meta-data/",
    "Error performing token request",
)

T = TypeVar("T")


class StoreKind(NamedTuple):
    """The properties in which object stores differ.

    Attributes
    ----------
    store_class
        The obstore class that opens a bucket.
    bucket_word
        The store's word for a bucket.
    credentials
        Environment variables that may hold credentials.
    endpoints
        Environment variables that may hold an address, the usual one first.
    account
        The environment variable with the name of the account, if buckets belong to one.
    """

    store_class: str
    bucket_word: str
    credentials: str
    endpoints: tuple[str, ...]
    account: str | None = None


STORE_KINDS = {
    "s3": StoreKind(
        "S3Store",
        "bucket",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"),
    ),
    "az": StoreKind(
        "AzureStore",
        "container",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
        "AZURE_STORAGE_ACCOUNT_NAME",
    ),
    "gs": StoreKind("GCSStore", "bucket", "GOOGLE_SERVICE_ACCOUNT", ("GOOGLE_BASE_URL",)),
}
"""The supported object stores by URL scheme."""
SCHEMES_TEXT = ", ".join(f"{scheme}://" for scheme in STORE_KINDS)


def get_store_kind(url: str) -> StoreKind:
    """Return the kind of store of a URL."""
    return STORE_KINDS[url.partition("://")[0]]


@lru_cache(maxsize=32)
def open_bucket(root: str, prefix: str = "") -> Any:
    """Open a bucket, or the part of it below a key prefix.

    Credentials and endpoint come from the environment. A first request with few retries reports
    mistakes within seconds; later requests are retried after throttling, server errors and lost
    connections.
    """
    with translate_store_errors(root):
        if prefix:
            open_bucket(root)
        else:
            _probe_bucket(_open_store(root, prefix, _PROBE_RETRY_CONFIG))
        return _open_store(root, prefix, _RETRY_CONFIG, timeout=timedelta(seconds=_UPLOAD_SECONDS))


def _probe_bucket(store: Any) -> None:
    """Read an object that does not exist: unlike for HEAD, the response has a body."""
    from obstore import get

    try:
        get(store, ".latentbits")
    except FileNotFoundError as error:
        if _find_error_code(str(error)) in _NO_BUCKET_CODES:
            raise
    except Exception as error:
        if _find_error_code(str(error)) != "AccessDenied":  # only this object may be forbidden
            raise


def _open_store(root: str, prefix: str, retries: Any, **client_options: Any) -> Any:
    from obstore import store

    _check_endpoint(root)
    # HTTP is used only if the endpoint's URL says so.
    return getattr(store, get_store_kind(root).store_class)(
        root.partition("://")[2],
        prefix=prefix or None,
        client_options={"allow_http": True, **client_options},
        retry_config=retries,
        **_find_account(root),
    )


def _find_account(root: str) -> dict[str, str]:
    """Name the account explicitly: obstore finds it too, but panics when printing such a store."""
    kind = get_store_kind(root)
    if kind.account is None:
        return {}
    if name := os.environ.get(kind.account):
        return {"account_name": name}
    raise StoreUnreachableError(f"{root}: there are no credentials. Set {kind.credentials}.")


def _check_endpoint(root: str) -> None:
    """Refuse an address at which obstore would panic."""
    for name in get_store_kind(root).endpoints:
        parts = urlsplit(os.environ.get(name) or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StoreUnreachableError(
                f"{root}: {name} must have the form http://HOST or https://HOST."
            )


def repeat_broken(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a function of obstore, again if the connection is lost within an answer.

    obstore repeats a request without an answer, and goes on reading where an object broke off. But
    the first answer that breaks off ends a listing, a copy, a deletion, or an upload in parts.
    """
    for pause in _REPEAT_PAUSES:
        try:
            return function(*arguments, **options)
        except Exception as error:
            if not _is_broken_answer(error):
                raise
        time.sleep(pause)
    return function(*arguments, **options)


async def repeat_broken_async(
    function: Callable[..., Awaitable[T]], *arguments: Any, **options: Any
) -> T:
    """Await a function of obstore, as `repeat_broken` calls one."""
    for pause in _REPEAT_PAUSES:
        try:
            return await function(*arguments, **options)
        except Exception as error:
            if not _is_broken_answer(error):
                raise
        await asyncio.sleep(pause)
    return await function(*arguments, **options)


def _is_broken_answer(error: Exception) -> bool:
    """Return whether the connection to a store was lost within an answer."""
    return any(sign in str(error) for sign in _BROKEN_ANSWER_SIGNS)


@contextmanager
def translate_store_errors(path: object) -> Iterator[None]:
    """Turn errors of a store or a full disk into one line; leave missing objects to the caller."""
    try:
        yield
    except Exception as error:
        if store_error := make_store_error(str(path), error):
            raise store_error from error
        if (
            isinstance(error, OSError)
            and error.errno in DISK_FULL_ERRNOS
            and error.filename is None
        ):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_store_error(path: str, error: BaseException) -> StoreUnreachableError | None:
    """Describe an error of an object store; return None for missing objects and other errors."""
    lost = isinstance(error, FileNotFoundError) and _find_error_code(str(error)) in _NO_BUCKET_CODES
    if not lost and not type(error).__module__.startswith("obstore"):
        return None
    return StoreUnreachableError(
        f"{path}: {_explain_error(get_store_kind(path), type(error).__name__, str(error))}"
    )


def make_damage_error(folder: object, part: str, error: Exception, remedy: str) -> DataError:
    """Return the error for a part of a folder that cannot be read, or for an unreachable store."""
    damage = f"{folder}: {part} is damaged ({format_error(error)}). {remedy}"
    if isinstance(error, PermissionError) or is_out_of_memory(error):
        damage = f"{folder}: {part} cannot be read ({format_error(error)})."
    return make_store_error(str(folder), error) or DataError(damage)


def format_error(error: Exception) -> str:
    """Return the type and the first line of an exception."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _explain_error(kind: StoreKind, error: str, text: str) -> str:
    if _find_error_code(text) in _NO_BUCKET_CODES:
        return f"the {kind.bucket_word} does not exist. Create it, or correct the URL."
    if any(sign in text for sign in _NO_CREDENTIALS_SIGNS):
        return f"there are no credentials. Set {kind.credentials}."
    if "RequestTimeTooSkewed" in text:
        return "the clocks of this machine and the store differ. Set the time."
    if error in ("PermissionDeniedError", "UnauthenticatedError") or "403 Forbidden" in text:
        return (
            f"the store refused access ({_find_error_code(text) or error}). Check the credentials "
            f"in the environment, such as {kind.credentials}, and their permissions."
        )
    if "error sending request" in text:
        return f"the store does not answer. Check {kind.endpoints[0]} and the network."
    return f"the store answered with an error: {_format_reason(text)}."


def _find_error_code(text: str) -> str:
    """Return the store's own code for an error."""
    _, separator, after = text.partition("<Code>")
    return after.partition("</Code>")[0] if separator else ""


def _format_reason(text: str) -> str:
    line = text.partition("\n")[0].partition("<?xml")[0].strip()
    line = re.sub(r"\w+://\S+", "URL", line)  # a URL may contain a password
    return _find_error_code(text) or line[:200].rstrip(".")
