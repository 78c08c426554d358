"""Features that no row links are named before a fit, as far as nothing else links them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import make_binary_features
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.linkage import collect_linkage, warn_about_unlinked_features
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.structure import Structure
from tests.support.strategies import DenseData, make_memory_rows

SERIAL = SerialExecutor()
NAMES = "abcdef"


def list_unlinked(
    mask: NDArray[Any],
    groups: NDArray[np.int64] | None = None,
    known: NDArray[np.float64] | None = None,
    **settings: Any,
) -> tuple[Any, ...]:
    """Return the features that a fit of latent-trait would name."""
    names = () if groups is None else ("one", "two")
    structure = Structure(names, make_binary_features(NAMES), known)
    model = LatentTrait(n_components=1, **settings).with_structure(structure)
    data = DenseData(np.zeros_like(mask, np.uint8), mask.astype(np.uint8), groups)
    n = len(mask) // 2
    linkage = collect_linkage(model, make_memory_rows(data, [n, len(mask) - n]), SERIAL)
    warnings = warn_about_unlinked_features(model, linkage)
    return warnings[0].with_names(NAMES).features if warnings else ()


def make_forms() -> NDArray[np.bool_]:
    """Return which values are observed: a to d in the even rows, e and f in the odd ones."""
    is_even: NDArray[np.bool_] = np.arange(40)[:, None] % 2 == 0
    return np.asarray(is_even == (np.arange(6) < 4))


def test_features_outside_the_largest_part_are_named() -> None:
    assert list_unlinked(make_forms()) == ("e", "f")


def test_one_row_or_a_common_feature_links() -> None:
    by_row, by_feature = make_forms(), make_forms()
    by_row[39] = True  # a row of the second chunk
    by_feature[:, 5] = True
    assert list_unlinked(by_row) == list_unlinked(by_feature) == ()


def test_known_slopes_link() -> None:
    known = np.full((6, 2), np.nan)
    known[[0, 5], 0] = 1.0
    assert list_unlinked(make_forms(), known=known) == ()
    known[5] = np.nan
    assert list_unlinked(make_forms(), known=known) == ("e", "f")


def test_items_of_one_group_do_not_link_groups() -> None:
    groups = np.arange(40) % 2
    mask = make_forms()
    assert list_unlinked(mask, groups) == ("e", "f")
    mask[:, 3:] = True  # d, e and f are common
    assert list_unlinked(mask, groups) == ()
    assert list_unlinked(mask, groups, free="d,e") == ()
    assert list_unlinked(mask, groups, free="d,e,f") == ("d", "e", "f")


def test_groups_without_common_parameters_need_no_link() -> None:
    groups = np.arange(40) // 20
    complete = np.ones((40, 6), np.bool_)
    assert list_unlinked(complete, groups, invariance="configural") == ()
    complete[:20] = make_forms()[:20]
    assert list_unlinked(complete, groups, invariance="configural") == ("e", "f")


def test_later_chunks_are_only_read_if_the_first_does_not_link_all() -> None:
    data = DenseData(np.zeros((40, 6), np.uint8), make_forms().astype(np.uint8))
    for mask, expected in ((data.observed, [0, 0, 1]), (None, [0])):
        rows = make_memory_rows(replace(data, observed=mask), [20, 20])
        keys: list[int] = []

        def read(key: int, rows: Any = rows, keys: list[int] = keys) -> Any:
            keys.append(key)
            return rows.read(key)

        collect_linkage(LatentTrait(), replace(rows, read=read), SERIAL)
        assert keys == expected
