"""What the labels are: categories or numbers, and when they cannot be learnt."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pipeline.errors import FitError
from pipeline.statistics.labels import MAX_CATEGORIES, SEGMENT, LabelCounts

LabelKind = Literal["auto", "category", "number"]


def is_categorical(first: LabelCounts, column: str, kind: LabelKind) -> bool:
    """Tell whether labels are categories, and refuse what can be neither.

    Raises
    ------
    FitError
        If there are no labels, all are the same, there are too many, or texts should be numbers.
    """
    n_different, (n_texts, n_fractions) = len(first.values), first.kinds
    _check_labels_differ(n_different, column)
    is_many = n_different > MAX_CATEGORIES
    if kind == "number" and n_texts:
        raise FitError(
            f"kind: Expected numbers in column {column!r}, got texts. Keep the column as numbers, "
            "as from a Parquet or NPZ file."
        )
    if kind == "number" or (kind == "auto" and not n_texts and (n_fractions or is_many)):
        return False
    if is_many:
        numbers = "" if n_texts else ", or give --set kind=number"
        raise FitError(
            f"column {column!r}: Expected at most {MAX_CATEGORIES:,} different labels, got more. "
            f"Choose another column{numbers}."
        )
    return True


def _check_labels_differ(n_different: int, column: str) -> None:
    if n_different > 1:
        return
    got = "the same in all rows" if n_different else "none"
    if column == SEGMENT:
        raise FitError(
            "column: Expected at least two segments to tell apart, got one. Give a per-row column: "
            "--set column=NAME."
        )
    raise FitError(
        f"column {column!r}: Expected labels that differ, got {got}. Choose another column."
    )


def describe_labels(first: LabelCounts, is_category: bool, column: str) -> dict[str, Any]:
    """Give the parameters that say what labels stand for.

    Raises
    ------
    FitError
        If numbers are too large.
    """
    if is_category:
        return {"categories": first.values, "shares": first.rows / first.rows.sum()}
    n_labels, mean, squares = first.moments
    deviation = np.sqrt(squares / n_labels)
    if not 0 < deviation < np.inf:
        raise FitError(
            f"column {column!r}: Expected numbers with a variance, got one of {deviation**2:g}. "
            "Scale the column."
        )
    return {"number": np.array([mean, deviation])}
