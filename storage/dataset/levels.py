"""The texts of a per-row column, which stores codes of texts.

Texts are lines of JSON in one array of bytes. Code k is line k; codes follow the order of first
appearance, so that appending keeps them. There may be as many texts as rows, so lines are written
and read in pages. A text that occurs on several pages has a different code on each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from pipeline.words import is_missing_word
from storage.dataset.tables import make_damaged_dataset_error
from storage.errors import DataError
from storage.format.schema import (
    MIN_CHUNK_BYTES,
    create_array,
    format_array_path,
    make_levels_spec,
    open_checked_array,
)
from storage.quoting import parse_float
from storage.stores.locations import AnyPath, checksum

if TYPE_CHECKING:
    import pyarrow

PAGE_TEXTS = 1 << 16
"""Number of texts on a full page."""
_MAX_CODES = (1 << 31) - 1
_SEARCHED_TEXTS = 1 << 21

Codebook = defaultdict[str, int]
"""Codes of texts; looking up a new text adds it."""


def make_codebook(texts: Iterable[str] = ()) -> Codebook:
    """Return a codebook that gives texts the codes 0, 1, … in order."""
    codes: Codebook = defaultdict(int, {text: code for code, text in enumerate(texts)})
    codes.default_factory = codes.__len__
    return codes


def encode_texts(values: NDArray[Any], codes: Codebook) -> NDArray[np.int32]:
    """Encode values by their text; new texts are added in order of appearance."""
    texts = values if values.dtype.kind == "O" else values.astype(str)
    return np.fromiter(map(codes.__getitem__, map(str, texts.tolist())), np.int32, len(texts))


@dataclass
class LevelsWriter:
    """Encodes the texts of one column and writes every page that is full.

    Attributes
    ----------
    group
        The Zarr group of the dataset.
    name
        The column. The texts of `split` must fit on one page, so that each split has one code.
    pages
        Full pages: number of texts up to its end, number of bytes, and checksum.
    """

    group: zarr.Group
    name: str
    pages: list[list[int]] = field(default_factory=list)
    _open: Codebook = field(default_factory=make_codebook)

    @classmethod
    def continue_levels(cls, levels: Levels, group: zarr.Group) -> LevelsWriter:
        """Continue after existing texts."""
        return cls(group, levels.name, levels.pages[:-1], make_codebook(levels.read_page(-1)))

    def encode(self, values: NDArray[Any]) -> NDArray[np.int32]:
        """Encode texts, (n,)."""
        runs = [values[first : first + PAGE_TEXTS] for first in range(0, len(values), PAGE_TEXTS)]
        return np.concatenate([self._encode_part(run) for run in runs])

    def _encode_part(self, values: NDArray[Any]) -> NDArray[np.int32]:
        if len(self._open) >= PAGE_TEXTS:
            self.pages.append(self._write_page())
            self._open = make_codebook()
        n_before = self.pages[-1][0] if self.pages else 0
        codes = encode_texts(values, self._open)
        max_texts = PAGE_TEXTS if self.name == "split" else _MAX_CODES
        if n_before + len(self._open) > max_texts:
            raise DataError(
                f"Column {self.name!r} has more than {max_texts:,} different texts. "
                "Leave the column out."
            )
        return codes + np.int32(n_before)

    def finish(self) -> list[list[int]]:
        """Write the last page and return all pages as the manifest records them."""
        return [*self.pages, self._write_page()]

    def _write_page(self) -> list[int]:
        n_before, start = self.pages[-1][:2] if self.pages else (0, 0)
        text = json.dumps(list(self._open), separators=("\n", ":"))[1:-1] + "\n"
        lines = np.frombuffer(text.encode("ascii"), np.uint8)
        stop, spec = start + len(lines), make_levels_spec(self.name)
        if spec.name not in self.group:
            create_array(self.group, spec, (stop,), (MIN_CHUNK_BYTES,))
        array: Any = self.group[spec.name]
        array.resize((stop,))
        array[start:] = lines
        return [n_before + len(self._open), stop, checksum(lines)]


@dataclass(frozen=True)
class Levels:
    """The texts of one column, read on access.

    Attributes
    ----------
    folder, group
        The folder and Zarr group of the dataset.
    name
        The column.
    pages
        Per page: number of texts up to its end, number of bytes, and checksum.
    """

    folder: AnyPath
    group: zarr.Group
    name: str
    pages: list[list[int]]

    def __iter__(self) -> Iterator[str]:
        for page in range(len(self.pages)):
            yield from self.read_page(page)

    def mark_missing(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return the codes, (n,), with -1 for the empty text, which means missing."""
        return np.where(np.isin(codes, self._empty_codes), codes.dtype.type(-1), codes)

    @cached_property
    def _empty_codes(self) -> NDArray[np.int64]:
        return np.array([code for code, text in enumerate(self) if not text], np.int64)

    def decode(self, codes: NDArray[Any]) -> NDArray[np.object_]:
        """Return the text of each code, (n,); reads only the pages that are needed."""
        texts, (pages, places) = np.empty(len(codes), object), self.locate(codes)
        for page in np.unique(pages):
            on_page = pages == page
            texts[on_page] = np.array(self.read_page(int(page)), object)[places[on_page]]
        return texts

    def find(self, texts: pyarrow.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all codes of these texts, and the place of each code's text among them.

        So many texts are searched at once, in as many of the column, that this takes longer than
        preparing the search, but little memory.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        codes, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        n_pages, starts = -(-_SEARCHED_TEXTS // PAGE_TEXTS), [0, *(end for end, _, _ in self.pages)]
        for place in range(0, len(texts), _SEARCHED_TEXTS):
            searched = texts.slice(place, _SEARCHED_TEXTS).cast(pa.binary())
            for first in range(0, len(self.pages), n_pages):
                pages = range(first, min(first + n_pages, len(self.pages)))
                own = pa.concat_arrays([self.read_encoded_page(page) for page in pages])
                found = pc.index_in(own, value_set=searched)
                is_found = found.is_valid().to_numpy(zero_copy_only=False)
                codes.append(starts[first] + np.flatnonzero(is_found))
                places.append(place + found.drop_null().to_numpy().astype(np.int64))
        return np.concatenate(codes), np.concatenate(places)

    def parse_numbers(self, codes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the number that each code's text states, (n,); NaN if it means missing.

        Words such as NA are missing among numbers only: elsewhere, they may be names.
        """
        distinct, places = np.unique(codes, return_inverse=True)
        texts = self.decode(distinct)
        numbers = [np.nan if is_missing_word(text) else parse_float(text) for text in texts]
        if None in numbers:
            text = texts[numbers.index(None)]
            raise DataError(
                f"{self.folder}: column {self.name!r} contains the text {text!r}, which is not a "
                "number. Choose a column of numbers."
            )
        return np.array(numbers, np.float64)[places]

    def locate(self, codes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return page and position of codes, (n,) each; raise `DataError` if one has no text."""
        ends = np.array([0, *(end for end, _, _ in self.pages)])
        pages = np.searchsorted(ends, codes, side="right") - 1
        if pages.max(initial=0) == len(self.pages) or pages.min(initial=0) < 0:
            raise self._make_damage_error()
        return pages, codes - ends[pages]

    def read_page(self, page: int) -> list[str]:
        """Read a page, -1 for the last; raise `DataError` if it is missing or damaged."""
        lines, n_texts = self._read_lines(page)
        try:
            levels: list[Any] = json.loads(b"[" + lines.tobytes()[:-1].replace(b"\n", b",") + b"]")
        except (ValueError, RecursionError):
            raise self._make_damage_error() from None
        are_texts = {*map(type, levels)} <= {str}
        if not are_texts or not len(levels) == len({*levels}) == n_texts:
            raise self._make_damage_error()
        return levels

    def read_encoded_page(self, page: int) -> pyarrow.Array:
        """Read the texts of a page, encoded in UTF-8, without an object for each."""
        import pyarrow as pa

        lines, n_texts = self._read_lines(page)
        ends, marks = np.flatnonzero(lines == ord("\n")), np.flatnonzero(lines == ord('"'))
        expected = np.column_stack([np.append(0, ends[:-1] + 1), ends - 1]).ravel()
        is_plain = len(ends) == n_texts and np.array_equal(marks, expected)
        if not is_plain or (lines == ord("\\")).any():
            texts = (text.encode("utf-8", "surrogatepass") for text in self.read_page(page))
            return pa.array([*texts], pa.binary())
        lengths = np.diff(ends, prepend=-1) - 3  # without quotes and the end of the line
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        buffers = offsets, np.delete(lines, np.concatenate([ends, marks]))
        return pa.Array.from_buffers(pa.binary(), n_texts, [None, *map(pa.py_buffer, buffers)])

    def truncate(self, group: zarr.Group) -> None:
        """Delete what an interrupted append left behind, given a writable group."""
        path = format_array_path(f"levels/{self.name}")
        if path in group:
            array: Any = group[path]
            array.resize((self.pages[-1][1],))

    def _read_lines(self, page: int) -> tuple[NDArray[np.uint8], int]:
        """Read and check the bytes of a page, and return the number of texts."""
        page %= len(self.pages)
        n_before, start, _ = self.pages[page - 1] if page else (0, 0, 0)
        n_after, stop, recorded = self.pages[page]
        try:
            array = open_checked_array(self.group, format_array_path(f"levels/{self.name}"))
            if array.chunks != (MIN_CHUNK_BYTES,):
                raise DataError(f"{array.path} has chunks of {array.chunks}.")
            lines = np.asarray(array[start:stop])
        except DataError as error:
            raise DataError(f"{self.folder}: {error} Ingest the dataset again.") from error
        except Exception as error:
            raise make_damaged_dataset_error(self.folder, error) from error
        if checksum(lines) != recorded:
            raise self._make_damage_error()
        return lines, n_after - n_before

    def _make_damage_error(self) -> DataError:
        return DataError(
            f"{self.folder}: levels/{self.name}: the texts do not match the manifest. "
            "Ingest the dataset again."
        )
