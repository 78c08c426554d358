"""Latent codes: named arrays in Zarr with one entry per row of the data, written in ranges."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.feature_levels import BINARY_LEVELS
from storage.display import (
    Facts,
    StorageReprMixin,
    build_xarray,
    list_codes_facts,
    list_trait_names,
)
from storage.errors import DataError, StoreUnreachableError
from storage.format.manifests import read_manifest, write_manifest
from storage.format.schema import (
    CODES_FORMAT,
    FORMAT_VERSION,
    ArraySpec,
    create_array,
    has_chunk,
    open_checked_array,
)
from storage.stores.leases import check_leases, keep_leases, lock_work_folder
from storage.stores.locations import (
    UNFINISHED_NAME,
    AnyPath,
    check_target_folder,
    checksum,
    clear_folder,
    delete_tree,
    list_children,
    open_array,
    open_group,
    parse_path,
    replace_folder,
    to_zarr_store,
    write_text,
)
from storage.stores.object_store import (
    format_error,
    make_damage_error,
    make_store_error,
    translate_store_errors,
)

if TYPE_CHECKING:
    import xarray

_RANGES_PER_PAGE = 64
_REMEDY = "Run the command that wrote them again."


class CodeArraySpec(NamedTuple):
    """Dimensions and shape of one row's entry in an array of codes, and the dtype."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CodesWriter:
    """Writes ranges of rows from any process; small enough to send with every task.

    A range is one Zarr chunk of every array, so that no two tasks write to the same chunk.

    Attributes
    ----------
    folder
        Folder of the Zarr group.
    names
        Names of the arrays, in the order of the checksums.
    n_rows, rows_per_chunk
        Number of rows in total and per range.
    """

    folder: str
    names: tuple[str, ...]
    n_rows: int
    rows_per_chunk: int

    def __call__(self, key: int, codes: Mapping[str, NDArray[Any]]) -> list[int]:
        """Write a range of rows and return the checksum of each array."""
        return [self.write(name, key, codes[name]) for name in self.names]

    def write(self, name: str, key: int, values: NDArray[Any]) -> int:
        """Write a range of rows of one array and return its checksum."""
        folder = parse_path(self.folder)
        if values.size:
            with translate_store_errors(folder):
                array = open_array(folder, name, "r+")
                array.with_config({"write_empty_chunks": True})[self._slice_rows(key)] = values
        return checksum(values)

    def has_range(self, key: int, checksums: Sequence[int]) -> bool:
        """Return whether a range is stored with these checksums."""
        if len(checksums) != len(self.names):
            return False
        folder = parse_path(self.folder)
        group = open_group(folder)
        try:
            for name, recorded in zip(self.names, checksums, strict=True):
                opener = partial(open_checked_array, group, name)
                _read_checked_chunk(folder, opener, name, key, self._slice_rows(key), recorded)
        except StoreUnreachableError:
            raise
        except DataError:
            return False
        return True

    def _slice_rows(self, key: int) -> slice:
        return _slice_chunk_rows(key, self.rows_per_chunk, self.n_rows)


def create_codes(
    folder: AnyPath,
    arrays: Mapping[str, CodeArraySpec],
    n_rows: int,
    rows_per_chunk: int,
    *,
    keep: bool = False,
) -> CodesWriter:
    """Create empty arrays; `seal_codes` turns them into codes.

    Parameters
    ----------
    folder
        Folder of the Zarr group.
    arrays
        Arrays by name.
    n_rows, rows_per_chunk
        Number of rows in total and per range.
    keep
        Keep the arrays that an interrupted writer of the same codes created.
    """
    specs = [*_iter_array_specs(arrays, n_rows, rows_per_chunk)]
    if not (keep and _has_arrays(folder, specs)):
        with translate_store_errors(folder):
            group = zarr.create_group(
                to_zarr_store(folder), overwrite=True, attributes={"format": CODES_FORMAT}
            )
            for spec, shape, chunks in specs:
                create_array(group, spec, shape, chunks)
    return CodesWriter(str(folder.resolve()), tuple(arrays), n_rows, rows_per_chunk)


def _iter_array_specs(
    arrays: Mapping[str, CodeArraySpec], n_rows: int, rows_per_chunk: int
) -> Iterator[tuple[ArraySpec, tuple[int, ...], tuple[int, ...]]]:
    for name, (dims, shape, dtype) in arrays.items():
        spec = ArraySpec(name, ("row", *dims), dtype, f"{name} of each row.")
        yield spec, (n_rows, *shape), (rows_per_chunk, *(max(1, length) for length in shape))


def _has_arrays(folder: AnyPath, arrays: Iterable[Any]) -> bool:
    """Return whether intact arrays of these shapes exist; their metadata may be damaged."""
    try:
        group = open_group(folder)
        stored = [
            (open_checked_array(group, spec.name, shape), spec, chunks)
            for spec, shape, chunks in arrays
        ]
    except Exception as error:
        if (unreachable := make_store_error(str(folder), error)) is not None:
            raise unreachable from error
        return False
    return all((a.chunks, a.dtype) == (chunks, spec.dtype) for a, spec, chunks in stored)


def seal_codes(
    writer: CodesWriter, checksums: Sequence[Sequence[int]], manifest: Mapping[str, Any]
) -> None:
    """Write the manifest that turns the arrays into codes.

    Parameters
    ----------
    writer
        The writer of all ranges.
    checksums
        The writer's return values, one per range, in order.
    manifest
        Further entries of the manifest, as JSON values.
    """
    folder = parse_path(writer.folder)
    group = open_group(folder)
    by_array = zip(writer.names, zip(*checksums, strict=True), strict=True)
    entries = {name: _describe_array(group[name], column) for name, column in by_array}
    body = {
        "format": CODES_FORMAT,
        "format_version": FORMAT_VERSION,
        "n_rows": writer.n_rows,
        "rows_per_chunk": writer.rows_per_chunk,
        "arrays": entries,
    }
    write_manifest(folder, {**manifest, **body})


def _describe_array(array: Any, checksums: Sequence[int]) -> dict[str, Any]:
    return {
        "dims": list(array.metadata.dimension_names),
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "checksums": list(checksums),
    }


@dataclass(frozen=True, repr=False)
class Codes(StorageReprMixin, Mapping[str, NDArray[Any]]):
    """A mapping from names to arrays, each read on access; see `open_codes`."""

    path: AnyPath
    manifest: Mapping[str, Any]
    group: zarr.Group
    remedy: str = _REMEDY

    def __getitem__(self, name: str) -> NDArray[Any]:
        parts = [self._read_array_chunk(name, key) for key in range(self.n_chunks)]
        return np.concatenate(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest["arrays"])

    def __len__(self) -> int:
        return len(self.manifest["arrays"])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.manifest["n_rows"])

    @property
    def n_chunks(self) -> int:
        """Number of ranges that `read_chunk` reads."""
        return -(-self.n_rows // int(self.manifest["rows_per_chunk"]))

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's dimensions."""
        return tuple(self.manifest["arrays"][name]["dims"])

    def _iter_display_items(self) -> Facts:
        return list_codes_facts(str(self.path), self.manifest)

    def read_chunk(self, key: int, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Read a range of rows of all or the named arrays, and check it against the manifest."""
        return {
            name: self._read_array_chunk(name, key) for name in (self if names is None else names)
        }

    def to_xarray(self) -> xarray.Dataset:
        """Return all codes, labelled with the original row numbers."""
        variables = {name: (self.dims(name), self[name]) for name in self if name != "row"}
        rows = self["row"].tolist() if "row" in self else range(self.n_rows)
        features = self.manifest.get("feature_names", ())
        names = {
            "row": rows,
            "feature": features,
            "level": self._name_levels(features),
            **list_trait_names(self.manifest),
        }
        return build_xarray(variables, names, {"path": str(self.path)})

    def _name_levels(self, features: Sequence[str]) -> list[str]:
        levels = self.manifest.get("feature_levels", {})
        return [f"{name}={level}" for name in features for level in levels.get(name, BINARY_LEVELS)]

    def verify(self) -> None:
        """Read everything and check it.

        Raises
        ------
        DataError
            If a chunk is missing or damaged; the message names the first one.
        """
        for key in range(self.n_chunks):
            self.read_chunk(key)

    def _read_array_chunk(self, name: str, key: int) -> NDArray[Any]:
        rows = _slice_chunk_rows(key, int(self.manifest["rows_per_chunk"]), self.n_rows)
        opener = partial(self._open_array, name)
        recorded = self.manifest["arrays"][name]["checksums"][key]
        try:
            return _read_checked_chunk(self.path, opener, name, key, rows, recorded)
        except StoreUnreachableError:
            raise
        except DataError as error:
            raise DataError(f"{self.path}: {error} {self.remedy}") from error

    def _open_array(self, name: str) -> Any:
        """Open an array once: opening takes as long as reading a range."""
        if name not in self._arrays:
            shape = self.manifest["arrays"][name]["shape"]
            self._arrays[name] = open_checked_array(self.group, name, shape)
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return {}


def open_codes(path: str | AnyPath, remedy: str = _REMEDY) -> Codes:
    """Open codes after checking their manifest.

    `remedy` is the advice in messages about damage.

    Raises
    ------
    DataError
        If the path holds no complete codes of a known version.
    """
    folder = parse_path(path)
    manifest = read_manifest(folder, CODES_FORMAT, FORMAT_VERSION)
    try:
        group = open_group(folder)
    except Exception as error:
        raise make_damage_error(folder, "the group", error, remedy) from error
    return Codes(folder, manifest, group, remedy)


def _slice_chunk_rows(key: int, rows_per_chunk: int, n_rows: int) -> slice:
    return slice(key * rows_per_chunk, min((key + 1) * rows_per_chunk, n_rows))


def _read_checked_chunk(
    folder: AnyPath, opener: Callable[[], Any], name: str, key: int, rows: slice, recorded: int
) -> NDArray[Any]:
    """Read a range of one array and check that it exists: Zarr reads a missing chunk as zeros."""
    try:
        array = opener()
        values = np.asarray(array[rows])
    except DataError:
        raise
    except Exception as error:
        damaged = DataError(f"{name}: chunk {key} is damaged ({format_error(error)}).")
        raise make_store_error(str(folder), error) or damaged from error
    if checksum(values) != recorded:
        raise DataError(f"{name}: chunk {key} is damaged or missing (checksum).")
    if (
        values.size
        and not values.any()
        and not has_chunk(folder, array, key, *(0 for _ in array.shape[1:]))
    ):
        raise DataError(f"{name}: chunk {key} is missing.")
    return values


@dataclass(frozen=True)
class ResumableResults:
    """A folder with arrays, written in ranges of rows, and a record of the finished ranges.

    Ranges are finished in order. The arrays become codes once their manifest is written.
    """

    folder: AnyPath

    @property
    def codes_folder(self) -> AnyPath:
        """Folder of the arrays."""
        return self.folder / "codes"

    def read_finished(self) -> list[list[int]]:
        """Return the checksums of the finished ranges, from the first range on.

        Ranges recorded on a damaged page, or on a later page, count as unfinished.
        """
        done: list[list[int]] = []
        for page in list_children(self.folder / "finished"):
            if page.suffix == ".partial":  # left by a killed writer
                continue
            checksums_on_page = _read_page(page)
            if not checksums_on_page or page.name != _format_page_name(len(done)):
                break
            done += checksums_on_page
        return done

    def record_finished(self, finished: Sequence[Sequence[int]]) -> None:
        """Record finished ranges, given the checksums of all of them.

        The record is split into pages, so that only the last page is rewritten.
        """
        check_leases()
        first = (len(finished) - 1) // _RANGES_PER_PAGE * _RANGES_PER_PAGE
        page = self.folder / "finished" / _format_page_name(first)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, json.dumps([list(checksums) for checksums in finished[first:]]))


def _format_page_name(first: int) -> str:
    """Return the name of the page that starts at a range."""
    return f"{first:09d}"


def _read_page(page: AnyPath) -> list[list[int]]:
    """Read a page; a damaged one is empty."""
    try:
        checksums_on_page = json.loads(page.read_text(encoding="utf-8"))
        return [
            [operator.index(checksum) for checksum in checksums] for checksums in checksums_on_page
        ]
    except (ValueError, TypeError):
        return []


@dataclass(frozen=True)
class UnfinishedCodes:
    """Unfinished codes in a hidden folder next to their final path, `target`; they can be resumed.

    `fingerprint` is a digest of everything that determines the codes.
    """

    target: AnyPath
    fingerprint: str

    @property
    def folder(self) -> AnyPath:
        """The hidden folder."""
        return self.target.with_name(f".{self.target.name}{UNFINISHED_NAME}")

    @property
    def results(self) -> ResumableResults:
        """The arrays and the record of their finished ranges."""
        return ResumableResults(self.folder)

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Lock the folder; with `resume`, keep what the same transform left there.

        What a transform left whose process died without releasing the folder is always kept. An
        error before the first range is finished leaves nothing behind.
        """
        with lock_work_folder(self.folder) as lease:
            self._prepare_folder(resume or lease.took_over)
            try:
                yield
            finally:
                if not lease.is_lost() and not self.results.read_finished():
                    delete_tree(self.folder)

    def _prepare_folder(self, resume: bool) -> None:
        mark = self.folder / "fingerprint"
        text = mark.read_text(encoding="utf-8", errors="replace") if mark.is_file() else ""
        if not resume or text != self.fingerprint:
            clear_folder(self.folder)
        if not mark.exists():
            write_text(mark, self.fingerprint)

    def publish(self, overwrite: bool) -> None:
        """Move the sealed codes to their final path."""
        check_target_folder(self.target, CODES_FORMAT, overwrite)
        with keep_leases():
            replace_folder(self.results.codes_folder, self.target)
        self.discard()

    def discard(self) -> None:
        """Delete the hidden folder."""
        delete_tree(self.folder)
