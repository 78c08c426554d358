"""Which rows the option --split means."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.dataset.dataset import BinaryDataset

ALL_ROWS, TRAIN, TEST = "all", "train", "test"


def resolve_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Name the split that an option means; None and `all` mean all rows.

    A split that is itself called `all` is meant by that.

    Raises
    ------
    DataError
        If the dataset has no such split.
    """
    if split is None or (split == ALL_ROWS and split not in dataset.splits):
        return None
    dataset.find_split_code(split)
    return split


def resolve_fit_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Do the same for a fit, which takes `train` where there is one and no split is named."""
    if split is None and TRAIN in dataset.splits:
        return TRAIN
    return resolve_split(dataset, split)


def resolve_evaluation_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Do the same for an evaluation, which takes `test` where there is one and none is named."""
    if split is None and TEST in dataset.splits:
        return TEST
    return resolve_split(dataset, split)


def format_row_count(n_rows: int, split: str | None) -> str:
    """Write how many rows, and which."""
    return f"{n_rows:,}, " + ("all" if split is None else f"split {split}")
