"""FIMI baskets: each line lists the item numbers of one basket; a blank line is an empty basket."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch, translate_read_errors
from storage.sources.derived import open_local_copy
from storage.sources.text import NUMBER_BLOCK_BYTES, iter_line_blocks, open_text, parse_numbers
from storage.sources.value_codes import ReadOptions, check_implicit_zeros, encode_numbers


@dataclass(frozen=True, kw_only=True)
class BasketSource(Source):
    """A `.dat` file of baskets; an item listed twice counts once."""

    def _read_batches(self) -> Generator[SourceBatch]:
        """Read ranges of baskets."""
        feature_items = np.array([_parse_item(name) for name in self.feature_names])
        order = np.argsort(feature_items)
        first_row = 0
        for items, counts in _iter_baskets(self.path, self.options.encoding):
            nearest = np.searchsorted(feature_items, items, sorter=order)
            features = order[nearest.clip(max=len(order) - 1)]
            unknown = feature_items[features] != items
            if unknown.any():
                raise self._make_unknown_item_error(items, counts, int(unknown.argmax()), first_row)
            yield from self._iter_dense_batches(features, counts, first_row)
            first_row += len(counts)

    def _iter_dense_batches(
        self, features: NDArray[np.int64], counts: NDArray[np.int64], first_row: int
    ) -> Iterator[SourceBatch]:
        ends = np.concatenate([[0], np.cumsum(counts)])
        one = encode_numbers(np.ones(1), self.options)[0]
        for first, n_rows in self.iter_row_ranges(len(counts)):
            codes = np.zeros((n_rows, self.n_features), np.uint8)
            rows = np.repeat(np.arange(n_rows), counts[first : first + n_rows])
            codes[rows, features[ends[first] : ends[first + n_rows]]] = one
            yield self.make_batch(codes, first_row + first, lambda rows, feature: ["1"])

    def _make_unknown_item_error(
        self, items: NDArray[np.int64], counts: NDArray[np.int64], number: int, first_row: int
    ) -> DataError:
        line = first_row + int(np.searchsorted(np.cumsum(counts), number, side="right")) + 1
        return DataError(
            f"{self.path}: line {line}: item {items[number]} is not one of the {self.n_features} "
            "features. Ingest all files together."
        )


def open_baskets(
    path: str, options: ReadOptions, items: Sequence[str] | None = None
) -> BasketSource:
    """Open a `.dat` file whose features are `items`, by default the items found in a first pass."""
    check_implicit_zeros(path, options)
    names = find_basket_items([path], options.encoding) if items is None else tuple(items)
    return BasketSource(path=path, options=options, feature_names=names)


def find_basket_items(paths: Sequence[str], encoding: str | None = None) -> tuple[str, ...]:
    """Find the items of basket files, in numeric order; this reads all files once."""
    all_items = np.empty(0, np.int64)
    for path in paths:
        with open_local_copy(path) as (copy, _), translate_read_errors(copy):
            for items, _ in _iter_baskets(copy, encoding):
                all_items = np.union1d(all_items, items)
    return tuple(str(item) for item in all_items.tolist())


def _iter_baskets(
    path: str, encoding: str | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the items of a block of lines, and the number of items per line."""
    first_line = 0
    with open_text(path, encoding) as stream:
        for block in iter_line_blocks(stream, NUMBER_BLOCK_BYTES):
            items, counts = parse_numbers(path, block, first_line, np.int64)
            if items.min(initial=0) < 0:
                number = int((items < 0).argmax())
                line = int(np.searchsorted(np.cumsum(counts), number, side="right")) + 1
                raise DataError(
                    f"{path}: line {first_line + line}: item number {items[number]} is negative. "
                    "Correct the line."
                )
            yield items, counts
            first_line += len(counts)
    if not first_line:
        raise DataError(f"{path}: the file is empty.")


def _parse_item(name: str) -> int:
    """Return the item that a feature is named after, or -1 if there is none."""
    fits = name.isdecimal() and len(name) < 19 and str(int(name)) == name
    return int(name) if fits else -1
