"""Which values of a dataset are missing by design: linked test forms, rings, rotating members.

Each design returns which values are observed, (n_rows, n_features). Every feature is observed in
some row, and the rows and features of a design are linked: no part of them has nothing in common
with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


def observe_all(n_rows: int, n_features: int, rng: np.random.Generator) -> Mask:
    """Observe every value."""
    return np.ones((n_rows, n_features), np.bool_)


def lose_at_random(n_rows: int, n_features: int, rng: np.random.Generator) -> Mask:
    """Lose 20 % of all values at random."""
    return rng.random((n_rows, n_features)) < 0.8


def link_by_rows(n_rows: int, n_features: int, rng: np.random.Generator, share: float) -> Mask:
    """Observe one of two forms, half of the features each; a share of the rows observes both."""
    n_links = max(1, round(share * n_rows))
    is_linking = np.arange(n_rows) >= n_rows - n_links
    is_first = np.arange(n_rows) < (n_rows - n_links) // 2
    in_first = np.arange(n_features) < n_features // 2
    return is_linking[:, None] | (is_first[:, None] == in_first)


def link_by_features(n_rows: int, n_features: int, rng: np.random.Generator, n_links: int) -> Mask:
    """Observe one of two forms, half of the features each, and in all rows some middle features."""
    is_first = np.arange(n_rows) < n_rows // 2
    place = np.arange(n_features)
    in_first = place < n_features // 2
    is_common = np.abs(place - (n_features - 1) / 2) < n_links / 2 + 0.25
    return is_common | (is_first[:, None] == in_first)


def link_in_chain(n_rows: int, n_features: int, rng: np.random.Generator, n_forms: int) -> Mask:
    """Observe one of several forms, each of which shares one feature with the next."""
    starts = np.linspace(0, n_features - 1, n_forms + 1).astype(int)
    form = np.arange(n_rows) * n_forms // n_rows
    place = np.arange(n_features)
    return (place >= starts[form][:, None]) & (place <= starts[form + 1][:, None])


def link_in_ring(n_rows: int, n_features: int, rng: np.random.Generator, n_forms: int) -> Mask:
    """Observe one of several forms: two adjacent parts of the features, in a ring."""
    part = np.arange(n_features) * n_forms // n_features
    form = (np.arange(n_rows) * n_forms // n_rows)[:, None]
    return (part == form) | (part == (form + 1) % n_forms)


def rotate_members(n_rows: int, n_features: int, rng: np.random.Generator, term: float) -> Mask:
    """Let each row observe a period of the features: a term of about this share of all of them.

    Rows are members of an assembly that come and go, and features are its roll calls in order.
    """
    lengths = rng.uniform(0.5, 1.5, n_rows) * term * n_features
    starts = rng.uniform(-0.5 * term * n_features, n_features * (1 - 0.5 * term), n_rows)
    place = np.arange(n_features)
    mask = (place >= starts[:, None]) & (place < (starts + np.maximum(lengths, 2.0))[:, None])
    empty = np.flatnonzero(mask.sum(axis=1) < 2)
    mask[empty[:, None], np.array([0, 1])] = True
    return mask


DESIGNS: Mapping[str, Callable[[int, int, np.random.Generator], Mask]] = {
    "complete": observe_all,
    "20 % missing": lose_at_random,
    "two forms, 8 % of rows link": lambda n, p, rng: link_by_rows(n, p, rng, 0.08),
    "two forms, 1 % of rows link": lambda n, p, rng: link_by_rows(n, p, rng, 0.01),
    "two forms, 2 features link": lambda n, p, rng: link_by_features(n, p, rng, 2),
    "chain of 3 forms": lambda n, p, rng: link_in_chain(n, p, rng, 3),
    "ring of 3 forms": lambda n, p, rng: link_in_ring(n, p, rng, 3),
    "rotating members": lambda n, p, rng: rotate_members(n, p, rng, 0.35),
}
