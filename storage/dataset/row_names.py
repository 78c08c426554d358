"""Find rows by the per-row columns that identify them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset
from storage.dataset.levels import Levels
from storage.errors import DataError

Ints = NDArray[np.int64]


def find_rows(dataset: BinaryDataset, names: Mapping[str, NDArray[Any]]) -> Ints:
    """Find the rows with the given texts in per-row columns.

    Memory holds the searched texts and one chunk of the columns.

    Parameters
    ----------
    dataset
        The dataset. Rows are not found by columns of numbers, nor by columns that it does not have.
    names
        Searched texts by column, (n,) each.

    Returns
    -------
    Ints
        Row of the dataset for each searched row, -1 if there is none, (n,).

    Raises
    ------
    DataError
        If two rows of the dataset have the same searched texts.
    """
    searched = [*zip(*(texts.tolist() for texts in names.values()), strict=True)]
    found = np.full(len(searched), -1, np.int64)
    if not {*names} <= {*dataset.levels}:
        return found
    codes = {name: _find_codes(dataset.levels[name], texts) for name, texts in names.items()}
    if not all(len(column.codes) for column in codes.values()):
        return found
    numbers = {texts: k for k, texts in enumerate(searched)}
    for key in range(dataset.n_chunks):
        _, columns = dataset.read_row_labels(key, [*names])
        is_candidate = np.all([np.isin(columns[n], codes[n].codes) for n in names], axis=0)
        rows = np.flatnonzero(is_candidate)
        texts = zip(*(codes[name].decode(columns[name][rows]) for name in names), strict=True)
        for row, row_texts in zip((rows + dataset.chunks[key, 0]).tolist(), texts, strict=True):
            k = numbers.get(row_texts, -1)
            if k >= 0 and found[k] >= 0:
                raise DataError(
                    f"{dataset.path}: rows {found[k] + 1} and {row + 1} are both named "
                    f"{'/'.join(row_texts)!r}, so new lines cannot refer to one of them. Remove "
                    "these lines, or ingest all rows again with {overwrite}."
                )
            if k >= 0:
                found[k] = row
    return found


class _TextCodes(NamedTuple):
    """The codes of some texts, in increasing order; a text may have several codes."""

    codes: Ints
    texts: NDArray[np.object_]

    def decode(self, codes: NDArray[Any]) -> list[str]:
        texts: list[str] = self.texts[np.searchsorted(self.codes, codes)].tolist()
        return texts


def _find_codes(levels: Levels, texts: NDArray[Any]) -> _TextCodes:
    """Find the codes of texts among all texts of a column, page by page."""
    searched_texts = set(texts.tolist())
    pairs = [(code, text) for code, text in enumerate(levels) if text in searched_texts]
    codes = np.array([code for code, _ in pairs], np.int64)
    return _TextCodes(codes, np.array([text for _, text in pairs], object))
