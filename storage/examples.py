"""Datasets that need no file: `example:digits`, and generators of any size.

`example:ring:rows=100000,features=256,seed=0` gives parameters; all have defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources import Batch

PREFIX = "example:"
_CELLS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Example:
    """A dataset made on the spot; reads like a source.

    Attributes
    ----------
    feature_names, n_rows, column_names
        As of any source.
    make
        Makes the batches.
    default_segment, default_split
        The per-row columns that give the segments and the splits, if any.
    path, slug
        The name asked for, and one with all parameters, fit for a file name.
    """

    feature_names: tuple[str, ...]
    n_rows: int
    make: Callable[[], Iterator[Batch]]
    column_names: tuple[str, ...] = ()
    default_segment: str | None = None
    default_split: str | None = None
    path: str = ""
    slug: str = ""

    def batches(self) -> Iterator[Batch]:
        """Make the rows in order."""
        return self.make()


def open_example(name: str) -> Example:
    """Find an example by `example:NAME` or `example:NAME:PARAMETER=VALUE,...`.

    Raises
    ------
    DataError
        If the name or a parameter is unknown, or a value is not a whole number above zero.
    """
    kind, _, given = name.removeprefix(PREFIX).partition(":")
    if kind not in _EXAMPLES:
        raise DataError(_unknown("example", kind, _EXAMPLES))
    make, defaults = _EXAMPLES[kind]
    values = dict(defaults)
    for part in filter(None, given.split(",")):
        key, _, value = part.partition("=")
        if key not in defaults:
            raise DataError(_unknown(f"example:{kind} parameter", key, defaults))
        if not value.isdecimal() or (int(value) < 1 and key != "seed"):
            raise DataError(
                f"example:{kind}: Expected {key} a whole number above 0, got {value!r}."
            )
        values[key] = int(value)
    slug = "-".join([kind, *(f"{key}{value}" for key, value in values.items())])
    return replace(make(**values), path=name, slug=slug)


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    have = ", ".join(known) or "none"
    return f"{what}: Expected one of {have}, got {name!r}.{hint}"


def _digits() -> Example:
    """Handwritten digits, 8 x 8 pixels of 16 grey levels: bit = grey >= 8; segments = digit.

    Pixels that are the same in every image are left out: they carry nothing and no model takes
    them. Feature r3c5 is the pixel in row 3, column 5.
    """
    from sklearn.datasets import load_digits  # half a second, and only here

    images = load_digits()
    X = (images.data >= 8).astype(np.uint8)
    varies = X.min(axis=0) < X.max(axis=0)
    names = np.array([f"r{row}c{column}" for row in range(8) for column in range(8)])[varies]
    digits = np.array([str(digit) for digit in images.target])
    batch = Batch(np.ascontiguousarray(X[:, varies]), None, {"digit": digits})
    return Example(tuple(names.tolist()), len(X), lambda: iter([batch]), ("digit",), "digit")


def _ring(features: int, rows: int, seed: int) -> Example:
    """Translation-invariant spins on a ring: s_i = sgn(cos θ_i y_1 + sin θ_i y_2), y ~ N(0, I).

    Lee & Sompolinsky (1999), section 5: the Gaussians' spectrum is two eigenvalues of half the
    number of features, the spins' a continuum.
    """
    angles = 2 * np.pi * np.arange(features) / features
    loadings = np.column_stack([np.cos(angles), np.sin(angles)])
    return _gaussian(loadings, np.zeros(features), np.zeros(features), rows, seed)


def _probit(features: int, factors: int, rows: int, seed: int) -> Example:
    """Low-rank probit data: x = W y + ε, communalities in (0.3, 0.9), thresholds in (−1, 1)."""
    rng = np.random.default_rng([seed, 1])
    loadings = rng.standard_normal((features, factors))
    communality = rng.uniform(0.3, 0.9, features)
    loadings *= (np.sqrt(communality) / np.linalg.norm(loadings, axis=1))[:, None]
    thresholds = rng.uniform(-1, 1, features)
    return _gaussian(loadings, np.sqrt(1 - communality), thresholds, rows, seed)


def _gaussian(
    loadings: NDArray[np.float64],
    noise: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    n_rows: int,
    seed: int,
) -> Example:
    n_features, n_factors = loadings.shape
    height = max(1, _CELLS_AT_ONCE // n_features)

    def batches() -> Iterator[Batch]:
        for index, first in enumerate(range(0, n_rows, height)):
            rng = np.random.default_rng([seed, 0, index])
            size = min(height, n_rows - first)
            latent = rng.standard_normal((size, n_factors)) @ loadings.T
            if noise.any():
                latent += noise * rng.standard_normal(latent.shape)
            yield Batch((latent > thresholds).astype(np.uint8), None, {})

    return Example(tuple(f"f{i}" for i in range(n_features)), n_rows, batches)


_EXAMPLES: dict[str, tuple[Callable[..., Example], dict[str, int]]] = {
    "digits": (_digits, {}),
    "ring": (_ring, {"features": 256, "rows": 100_000, "seed": 0}),
    "probit": (_probit, {"features": 64, "factors": 5, "rows": 20_000, "seed": 0}),
}
