"""Texts of a per-row column: what the codes of its rows stand for.

They are lines of JSON in one array of bytes, code k on line k, in order of first appearance, so
that appending keeps what is there. A page of lines is written, and later read, at once: ids may be
as many as rows. A page names a text once; one that comes again on a later page has another code.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.tables import make_damaged_dataset_error
from storage.errors import DataError
from storage.format.schema import (
    MIN_CHUNK_BYTES,
    create_array,
    format_array_path,
    make_levels_spec,
    open_checked_array,
)
from storage.stores.locations import AnyPath, checksum, delete_tree

PAGE_TEXTS = 1 << 16
"""Texts after which a page is full."""
_MAX_CODES = (1 << 31) - 1

Codebook = defaultdict[str, int]
"""Codes of texts; one that is not there is added by being looked up."""


def make_codebook(texts: Iterable[str] = ()) -> Codebook:
    """Give texts codes 0, 1, … in their order."""
    codes: Codebook = defaultdict(int, {text: code for code, text in enumerate(texts)})
    codes.default_factory = codes.__len__
    return codes


def encode_texts(values: NDArray[Any], codes: Codebook) -> NDArray[np.int32]:
    """Code values by what they are as text; new ones are added in order of appearance."""
    texts = values if values.dtype.kind == "O" else values.astype(str)
    return np.fromiter(map(codes.__getitem__, map(str, texts.tolist())), np.int32, len(texts))


@dataclass
class LevelsWriter:
    """Codes the texts of one column, and writes each page once it is full.

    Attributes
    ----------
    group
        The dataset.
    name
        The column. Splits are found by their codes, so theirs must fit on one page.
    pages
        Full pages: number of texts and of bytes up to the end of each, and its checksum.
    """

    group: zarr.Group
    name: str
    pages: list[list[int]] = field(default_factory=list)
    _open: Codebook = field(default_factory=make_codebook)

    @classmethod
    def continue_levels(cls, levels: Levels, group: zarr.Group) -> LevelsWriter:
        """Go on behind the levels that are there."""
        if levels.is_stored_as_array:
            return cls(group, levels.name, levels.pages[:-1], make_codebook(levels.read_page(-1)))
        writer = cls(group, levels.name)
        writer.encode(np.array(levels.read_page(0), object))
        return writer

    def encode(self, values: NDArray[Any]) -> NDArray[np.int32]:
        """Code texts.

        Raises
        ------
        DataError
            If there are more different ones than can be coded.
        """
        runs = [values[first : first + PAGE_TEXTS] for first in range(0, len(values), PAGE_TEXTS)]
        return np.concatenate([self._encode_part(run) for run in runs])

    def _encode_part(self, values: NDArray[Any]) -> NDArray[np.int32]:
        if len(self._open) >= PAGE_TEXTS:
            self.pages.append(self._write_page())
            self._open = make_codebook()
        n_before = self.pages[-1][0] if self.pages else 0
        codes = encode_texts(values, self._open)
        most = PAGE_TEXTS if self.name == "split" else _MAX_CODES
        if n_before + len(self._open) > most:
            raise DataError(
                f"column {self.name!r}: Expected at most {most:,} different texts, got more. "
                "Leave the column out."
            )
        return codes + np.int32(n_before)

    def finish(self) -> list[list[int]]:
        """Write the last page, and give what the manifest says of all."""
        return [*self.pages, self._write_page()]

    def _write_page(self) -> list[int]:
        n_before, begin = self.pages[-1][:2] if self.pages else (0, 0)
        text = json.dumps(list(self._open), separators=("\n", ":"))[1:-1] + "\n"
        lines = np.frombuffer(text.encode("ascii"), np.uint8)
        end, spec = begin + len(lines), make_levels_spec(self.name)
        if spec.name not in self.group:
            create_array(self.group, spec, (end,), (MIN_CHUNK_BYTES,))
        array: Any = self.group[spec.name]
        array.resize((end,))
        array[begin:] = lines
        return [n_before + len(self._open), end, checksum(lines)]


@dataclass(frozen=True)
class Levels:
    """The texts of one column, read when they are asked for.

    Attributes
    ----------
    folder, group
        The dataset.
    name
        The column.
    described
        What the manifest says of it: `levels`, or in version 1 of the format all `categories`.
    """

    folder: AnyPath
    group: zarr.Group
    name: str
    manifest_entry: Mapping[str, Any]

    def __iter__(self) -> Iterator[str]:
        for page in range(len(self.pages)):
            yield from self.read_page(page)

    @property
    def is_stored_as_array(self) -> bool:
        """Whether they lie in an array, and not in the manifest."""
        return "categories" not in self.manifest_entry

    @cached_property
    def pages(self) -> list[list[int]]:
        """Number of texts and of bytes up to the end of each page, and its checksum."""
        if self.is_stored_as_array:
            return list(self.manifest_entry["levels"])
        return [[len(self.manifest_entry["categories"]), 0, 0]]

    def mark_missing(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Give codes with -1 for those of the empty text, which stands for a missing one: (n,)."""
        return np.where(np.isin(codes, self._empty_codes), codes.dtype.type(-1), codes)

    @cached_property
    def _empty_codes(self) -> NDArray[np.int64]:
        return np.array([code for code, text in enumerate(self) if not text], np.int64)

    def decode(self, codes: NDArray[Any]) -> NDArray[np.object_]:
        """Give the text of each code, (n,), and read only the pages that these are on."""
        found, (on_page, places) = np.empty(len(codes), object), self.locate(codes)
        for page in np.unique(on_page):
            at = on_page == page
            found[at] = np.array(self.read_page(int(page)), object)[places[at]]
        return found

    def locate(self, codes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the page that each code is on, and its place there: (n,) each.

        Raises
        ------
        DataError
            If there is no such text.
        """
        ends = np.array([0, *(end for end, _, _ in self.pages)])
        on_page = np.searchsorted(ends, codes, side="right") - 1
        if on_page.max(initial=0) == len(self.pages) or on_page.min(initial=0) < 0:
            raise self._make_damage_error()
        return on_page, codes - ends[on_page]

    def read_page(self, page: int) -> list[str]:
        """Read a page; -1 is the last.

        Raises
        ------
        DataError
            If it is missing or damaged.
        """
        if not self.is_stored_as_array:
            return list(self.manifest_entry["categories"])
        page %= len(self.pages)
        n_before, begin, _ = self.pages[page - 1] if page else (0, 0, 0)
        n_after, end, recorded = self.pages[page]
        levels = self._read(begin, end, recorded)
        are_texts = {*map(type, levels)} <= {str}
        if not are_texts or not len(levels) == len({*levels}) == n_after - n_before:
            raise self._make_damage_error()
        return levels

    def truncate(self, group: zarr.Group) -> None:
        """Drop what an interrupted append left behind these, given the group to write to."""
        path = format_array_path(f"levels/{self.name}")
        if not self.is_stored_as_array:
            delete_tree(self.folder / "levels")
        elif path in group:
            array: Any = group[path]
            array.resize((self.pages[-1][1],))

    def _read(self, begin: int, end: int, recorded: int) -> list[Any]:
        try:
            array = open_checked_array(self.group, format_array_path(f"levels/{self.name}"))
            if array.chunks != (MIN_CHUNK_BYTES,):
                expected = f"{array.path}: Expected chunks of {(MIN_CHUNK_BYTES,)}"
                raise DataError(f"{expected}, got {array.chunks}.")
            lines = np.asarray(array[begin:end])
        except DataError as error:
            raise DataError(f"{self.folder}: {error} Ingest the dataset again.") from error
        except Exception as error:
            raise make_damaged_dataset_error(self.folder, error) from error
        if checksum(lines) != recorded:
            raise self._make_damage_error()
        try:
            levels: list[Any] = json.loads(b"[" + lines.tobytes()[:-1].replace(b"\n", b",") + b"]")
        except (ValueError, RecursionError):
            raise self._make_damage_error() from None
        return levels

    def _make_damage_error(self) -> DataError:
        return DataError(
            f"{self.folder}: levels/{self.name}: Expected the texts of the manifest, got others. "
            "Ingest the dataset again."
        )
