"""Paths in object stores with the interface of `pathlib.Path`: `s3://bucket/votes.zarr`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from zarr.storage import ObjectStore

from storage.errors import DataError
from storage.extras import check_installed
from storage.stores.object_store import (
    SCHEMES_TEXT,
    STORE_KINDS,
    open_bucket,
    repeat_broken,
    repeat_broken_async,
    translate_store_errors,
)

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

FORMAT_MARK = "zarr.json"
"""Object or file that states the format of a folder: written first and deleted last."""
CONCURRENT_REQUESTS = 16
"""Number of concurrent requests: each waits long and computes little."""


ObjectVersion = Mapping[str, str]
"""Identifies one write of an object: its tag and, where the store has one, its version number."""


class StoredObject(NamedTuple):
    """The content and version of an object."""

    content: bytes
    version: ObjectVersion


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A path in an object store; writes are atomic.

    There are no folders: one exists while an object lies below it.

    Attributes
    ----------
    root
        Scheme and bucket, such as `s3://bucket`.
    key
        The parts below the root, joined by `/` and not percent-encoded.
    """

    root: str
    key: str

    def __str__(self) -> str:
        return f"{self.root}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, str(self._pure / name))

    @property
    def _pure(self) -> PurePosixPath:
        return PurePosixPath(self.key)

    @property
    def name(self) -> str:
        """The last part."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last part, such as `.zarr`."""
        return self._pure.suffix

    @property
    def parent(self) -> ObjectPath:
        """The folder above; the bucket for the first part."""
        return ObjectPath(self.root, _normalize_key(str(self._pure.parent)))

    @property
    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""

    @property
    def parents(self) -> tuple[ObjectPath, ...]:
        """Empty: no folder ever needs to be created."""
        return ()

    def with_name(self, name: str) -> ObjectPath:
        """Return a path in the same folder."""
        return ObjectPath(self.root, str(self._pure.with_name(name)))

    def resolve(self) -> ObjectPath:
        """Return the path itself: there are no links."""
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: folders need not be created."""

    def rmdir(self) -> None:
        """Do nothing: folders vanish with their contents."""

    def exists(self) -> bool:
        """Return whether an object or a folder exists."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether an object exists."""
        from obstore import head

        with translate_store_errors(self), suppress(FileNotFoundError):
            return bool(head(open_bucket(self.root), self.key))
        return False

    def is_dir(self) -> bool:
        """Return whether any object lies below."""
        return any(True for _ in self.iterdir())

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the paths directly below."""
        from obstore import list_with_delimiter

        with translate_store_errors(self):
            listing = repeat_broken(list_with_delimiter, open_bucket(self.root), self._prefix)
        for folder in listing["common_prefixes"]:
            yield ObjectPath(self.root, folder)
        for entry in listing["objects"]:
            yield ObjectPath(self.root, entry["path"])

    def list_keys(self) -> list[str]:
        """Return the keys of all objects below."""
        return list(self.list_tags())

    def list_tags(self) -> dict[str, str]:
        """Return the tags of all objects below, by key."""
        with translate_store_errors(self):
            return repeat_broken(_list_tags, open_bucket(self.root), self._prefix)

    def measure_tree(self) -> tuple[int, float]:
        """Return the bytes of all objects below, and when the newest was written, since 1970.

        If there are none, these are the bytes and the time of the object itself.
        """
        from obstore import head
        from obstore import list as list_objects

        store = open_bucket(self.root)
        with translate_store_errors(self):
            entries = [entry for page in list_objects(store, self._prefix) for entry in page]
            if not entries:
                with suppress(FileNotFoundError):
                    entries = [head(store, self.key)]
        newest = max((entry["last_modified"].timestamp() for entry in entries), default=0.0)
        return sum(entry["size"] for entry in entries), newest

    def read_bytes(self) -> bytes:
        """Read the object.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        DataError
            If the store refuses or cannot be reached.
        """
        stored = self.read_object()
        if stored is None:
            raise FileNotFoundError(str(self))
        return stored.content

    def read_object(self) -> StoredObject | None:
        """Read the object and its version; return None if it does not exist."""
        from obstore import get

        with translate_store_errors(self), suppress(FileNotFoundError):
            response = get(open_bucket(self.root), self.key)
            return StoredObject(bytes(response.bytes()), _extract_version(response.meta))
        return None

    def read_buffer(self) -> memoryview:
        """Read the object as `read_bytes` does, without a copy of its content."""
        from obstore import get

        with translate_store_errors(self):
            return memoryview(get(open_bucket(self.root), self.key).bytes())

    def download(self, file: BinaryIO) -> str:
        """Copy the object into a file, in parts, and return its tag.

        Raises `FileNotFoundError` if it does not exist.
        """
        from obstore import get

        with translate_store_errors(self):
            response = get(open_bucket(self.root), self.key)
            for part in response.stream():
                file.write(part)
        return _normalize_tag(response.meta)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Read the object as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes, replaces: ObjectVersion | None = None) -> ObjectVersion:
        """Write the object; with `replaces`, only if it still has that version.

        Raises `FileExistsError` if it has another version.
        """
        return self._put(content, replaces)

    def create(self, content: bytes) -> ObjectVersion:
        """Write the object; raise `FileExistsError` if it exists."""
        return self._put(content, "create")

    def _put(self, content: bytes, mode: Any) -> ObjectVersion:
        from obstore import put
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with translate_store_errors(self):
            try:
                store = open_bucket(self.root)
                return _extract_version(repeat_broken(put, store, self.key, content, mode=mode))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                raise FileExistsError(str(self)) from None  # or deleted in the meantime

    def touch(self) -> None:
        """Write an empty object."""
        self.write_bytes(b"")

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        self._delete([self.key])

    def delete_tree(self, keep_mark: bool = False) -> None:
        """Delete everything below: manifests first, so that the rest never looks complete.

        The format mark, which tells what the rest is, comes last, or stays.
        """
        manifests, others, marks = self._list_by_role()
        for keys in filter(None, (manifests, others, [] if keep_mark else marks)):
            self._delete(keys)

    def _delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ones that no longer exist are ignored."""
        from obstore import delete

        store = open_bucket(self.root)
        with translate_store_errors(self):
            with suppress(FileNotFoundError):
                repeat_broken(delete, store, keys)
                return
            for key in keys:  # some stores stop at a missing one
                with suppress(FileNotFoundError):
                    repeat_broken(delete, store, key)

    def copy_tree(self, target: ObjectPath) -> None:
        """Copy everything below within the store: the format mark first, manifests last."""
        from obstore import copy

        store = open_bucket(self.root)
        manifests, others, marks = self._list_by_role()
        with translate_store_errors(self), ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            for keys in (marks, others, manifests):
                names = [target.key + key.removeprefix(self.key) for key in keys]
                list(pool.map(partial(repeat_broken, copy, store), keys, names))

    def _list_by_role(self) -> tuple[list[str], list[str], list[str]]:
        """List the manifests below, all other objects, and the format mark."""
        keys, mark = self.list_keys(), f"{self.key}/{FORMAT_MARK}"
        manifests = [key for key in keys if key.endswith("/manifest.json")]
        others = [key for key in keys if not key.endswith("/manifest.json") and key != mark]
        return manifests, others, [key for key in keys if key == mark]

    def open_zarr_store(self) -> ObjectStore[Any]:
        """Return a Zarr store that is limited to this path."""
        return _ZarrStore(open_bucket(self.root, self.key))


class _ZarrStore(ObjectStore[Any]):
    """A store whose requests are repeated if the connection is lost within an answer."""

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return await repeat_broken_async(super().get, key, prototype, byte_range)

    async def set(self, key: str, value: Buffer) -> None:
        await repeat_broken_async(super().set, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await repeat_broken_async(super().set_if_not_exists, key, value)

    async def delete(self, key: str) -> None:
        await repeat_broken_async(super().delete, key)

    async def delete_dir(self, prefix: str) -> None:
        await repeat_broken_async(super().delete_dir, prefix)


def is_url(text: str) -> bool:
    """Return whether a text is a URL rather than a path."""
    return "://" in text


def parse_object_url(url: str) -> ObjectPath:
    """Parse the URL of an object store.

    Raises `DataError` if the scheme is unknown, the bucket is missing, the URL holds credentials,
    or obstore is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme not in STORE_KINDS:
        raise DataError(
            f"{parts.scheme}://: the scheme is unknown. Use a path, or a URL with one of "
            f"{SCHEMES_TEXT}."
        )
    kind, root = STORE_KINDS[parts.scheme], f"{parts.scheme}://{parts.netloc}"
    form = f"{parts.scheme}://{kind.bucket_word.upper()}/PATH"
    if "@" in parts.netloc:
        raise DataError(
            f"{parts.scheme}://: a URL must not contain credentials. "
            f"Set environment variables instead, such as {kind.credentials}."
        )
    if parts.query or parts.fragment:  # the query may contain a signature, so it is not shown
        raise DataError(f"{root}{parts.path}: the URL must have the form {form}, without ? or #.")
    key = _normalize_key(str(PurePosixPath(parts.path.lstrip("/"))))
    if not parts.netloc or not key or ".." in key.split("/"):
        raise DataError(f"{root}{parts.path}: the URL must have the form {form}.")
    check_installed(f"{root}{parts.path}", "obstore")
    return ObjectPath(root, key)


def _normalize_key(path: str) -> str:
    return "" if path == "." else path


def _list_tags(store: Any, prefix: str) -> dict[str, str]:
    from obstore import list as list_objects

    pages = list_objects(store, prefix)
    return {entry["path"]: _normalize_tag(entry) for page in pages for entry in page}


def _normalize_tag(metadata: Any) -> str:
    """Return a tag with quotes, which some listings omit."""
    return '"' + cast(str, metadata["e_tag"]).strip('"') + '"'


def _extract_version(metadata: Any) -> ObjectVersion:
    return {name: metadata[name] for name in ("e_tag", "version") if metadata.get(name)}
