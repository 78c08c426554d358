"""What a dataset knows of its rows, as columns of a table: segments, and what was kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from flows.exporting.columns import Array
from pipeline.passes.row_ranges import ROW
from storage.dataset.dataset import BinaryDataset
from storage.dataset.levels import Levels

SEGMENT = "segment"
_MAX_CACHED_PAGES = 4  # of the texts of a column, that stay in memory: ids follow the rows
RowPositions = NDArray[np.int64]


@dataclass(frozen=True)
class RowLabelReader:
    """Reads what is known of rows; what was read last stays in memory."""

    dataset: BinaryDataset

    def __call__(self, rows: RowPositions, taken: Collection[str]) -> dict[str, pa.Array]:
        """Give numbers of rows, which rise, their segments where there are several, and columns.

        A column whose name is taken is called `column_NAME`.
        """
        found, dataset = {ROW: pa.array(rows)}, self.dataset
        if dataset.n_segments == 1 and not dataset.column_names:
            return found
        segments, columns = self._read_rows(rows)
        if dataset.n_segments > 1:
            found[SEGMENT] = pa.array(dataset.segment_names).take(pa.array(segments))
        for name, values in columns.items():
            free = name
            while free in found or free in taken:
                free = f"column_{free}"
            found[free] = self._make_column(name, values)
        return found

    def _make_column(self, name: str, values: Array) -> pa.Array:
        """Give a column; numbers that are none, and texts that are empty, are missing."""
        if name in self._text_readers:
            return self._text_readers[name](values)
        return pa.array(values, from_pandas=True)

    def _read_rows(self, rows: RowPositions) -> tuple[RowPositions, dict[str, Array]]:
        """Give segments and columns of rows from the chunks that they lie in."""
        first_rows, parts = self.dataset.chunks[:, 0], []
        keys = np.searchsorted(first_rows, rows, side="right") - 1
        for key in np.unique(keys).tolist():
            segments, columns = self._read_chunk(key)
            at = rows[keys == key] - first_rows[key]
            parts.append((segments[at], {name: values[at] for name, values in columns.items()}))
        joined = {
            name: np.concatenate([columns[name] for _, columns in parts]) for name in parts[0][1]
        }
        return np.concatenate([segments for segments, _ in parts]), joined

    @cached_property
    def _read_chunk(self) -> Callable[[int], tuple[RowPositions, dict[str, Array]]]:
        read = partial(self.dataset.read_row_labels, names=self.dataset.column_names)
        return lru_cache(maxsize=1)(read)

    @cached_property
    def _text_readers(self) -> Mapping[str, Callable[[Array], pa.Array]]:
        coded = self.dataset.levels.items()
        return {
            name: partial(_look_up_texts, levels, _make_page_reader(levels))
            for name, levels in coded
        }


def _make_page_reader(levels: Levels) -> Callable[[int], pa.Array]:
    return lru_cache(_MAX_CACHED_PAGES)(
        lambda page: _replace_empty(pa.array(levels.read_page(page), pa.string()))
    )


def _replace_empty(texts: pa.Array) -> pa.Array:
    return pa.compute.if_else(pa.compute.equal(texts, ""), None, texts)


def _look_up_texts(levels: Levels, page: Callable[[int], pa.Array], codes: Array) -> pa.Array:
    """Give the text of each code, as `Levels.texts` does."""
    on_page, places = levels.locate(codes)
    first = int(on_page.min())
    pages = [page(k) for k in range(first, int(on_page.max()) + 1)]
    starts = np.cumsum([0, *(len(texts) for texts in pages)])
    at = pa.array(starts[on_page - first] + places)
    return pa.chunked_array(pages).take(at).combine_chunks()
