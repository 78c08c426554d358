"""Check that a loading pattern determines all slopes and correlations of the traits.

A rank test at random values: with slopes Λ and correlations R, the pairs of items inform about the
off-diagonal entries of Λ R Λᵀ, as in factor analysis. A direction of Λ and R that changes none of
them is not identified (R. McDonald, W. Krane, British Journal of Mathematical and Statistical
Psychology 30, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.loading_pattern import LoadingPattern

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_NULL_SHARE = 1e-10  # of the largest eigenvalue, with the diagonal scaled to 1
_INVOLVED = 1e-3  # smallest entry of a direction that counts
_MIN_ITEMS = 3  # of an orthogonal trait, unless slopes are equal


def check_identification(
    pattern: LoadingPattern, features: Sequence[str], is_correlated: bool
) -> None:
    """Refuse a pattern that does not identify its slopes, and suggest a constraint.

    Parameters
    ----------
    pattern, features
        The pattern, and the names of its items.
    is_correlated
        Whether the correlations of the traits are estimated.

    Raises
    ------
    FitError
        If a trait has no item, or the rank test fails.
    """
    slopes = pattern.slopes
    for k, trait in enumerate(pattern.traits):
        if (slopes[:, k] < 0).all():
            raise _refuse(
                f"no item loads on the trait {trait!r}. Leave out its column, or write 1 for some "
                "items."
            )
    directions = _find_free_directions(slopes, is_correlated)
    if not (n_missing := directions.shape[2]):
        return
    moved = np.flatnonzero((np.abs(directions) > _INVOLVED).any(axis=(0, 2))).tolist()
    for k in moved:
        items = [features[i] for i in np.flatnonzero(slopes[:, k] >= 0).tolist()]
        if len(items) == 1:
            raise _refuse(
                f"only {items[0]} loads on the trait {pattern.traits[k]!r}, which cannot be "
                "estimated. Let other items load on it too, or leave it out."
            )
        if len(items) < _MIN_ITEMS:
            raise _refuse(
                f"only {' and '.join(items)} load on the trait {pattern.traits[k]!r}, too few to "
                "estimate both slopes. Write the same label for both, or 1 for another item."
            )
    names = ", ".join(repr(pattern.traits[k]) for k in moved)
    advice = _suggest_zero(slopes, is_correlated, moved, n_missing)
    remedy = "Write more zeros, or the same label for several slopes."
    if advice is not None:
        item, k = advice
        remedy = f"Write 0 for {features[item]} in {pattern.traits[k]!r}, for example."
    number = "a constraint is" if n_missing == 1 else f"{n_missing} constraints are"
    raise _refuse(f"the slopes on the traits {names} are not unique: {number} missing. {remedy}")


def check_group_means(pattern: LoadingPattern) -> None:
    """Refuse a pattern whose items cannot tell the means of the traits in a group apart.

    If offsets are equal in all groups, they determine Λ μ_g, and so μ_g if Λ has full rank.
    """
    loadings = _draw_loadings(pattern.slopes)
    if np.linalg.matrix_rank(loadings) < len(pattern.traits):
        raise _refuse(
            "equal slopes make the means of the traits in the groups not unique. Use "
            "{traits=standard} or {invariance=metric}, or write 1 for more items."
        )


def _draw_loadings(slopes: Indices) -> Array:
    """Draw random values of slopes, equal where the pattern says so."""
    loadings, loads = np.zeros(slopes.shape), slopes >= 0
    numbers, places = np.unique(slopes[loads], return_inverse=True)
    loadings[loads] = np.random.default_rng(0).uniform(0.5, 1.5, len(numbers))[places]
    return loadings


def _refuse(problem: str) -> FitError:
    return FitError(f"{{pattern}}: {problem}", parameter="pattern")


def _find_free_directions(slopes: Indices, is_correlated: bool) -> Array:
    """Return directions of slopes that change no pair, (n_items, n_traits, n_directions)."""
    kept = _select_items(slopes)
    own = slopes[kept]
    null_space = _compute_null_space(own, is_correlated)
    directions = np.zeros((*slopes.shape, null_space.shape[1]))
    numbers, places = np.unique(own, return_inverse=True)
    loads = own >= 0
    shift = int(numbers[0] == -1)
    directions[kept] = np.where(
        loads[:, :, None], null_space[np.maximum(places.reshape(own.shape) - shift, 0)], 0.0
    )
    return directions


def _select_items(slopes: Indices) -> Indices:
    """Select enough items with the same loadings: more of them have no other effect.

    Items with equal slopes are all kept.
    """
    uses = np.unique(slopes, return_counts=True)
    shared = set(uses[0][(uses[1] > 1) & (uses[0] >= 0)].tolist())
    seen: dict[bytes, int] = {}
    kept = []
    for i, row in enumerate(slopes):
        key, n_traits = (row >= 0).tobytes(), int((row >= 0).sum())
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 2 * n_traits + 2 or shared & set(row.tolist()):
            kept.append(i)
    return np.array(kept)


def _compute_null_space(slopes: Indices, is_correlated: bool) -> Array:
    """Return a basis of the directions that change no pair; slopes come first, (p, n_directions).

    With B = Λ R, the derivatives of Λ R Λᵀ at (i, j) are B_ja for λ_ia, B_ia for λ_ja, and
    λ_ia λ_jb + λ_ib λ_ja for R_ab.
    """
    n_items, n_traits = slopes.shape
    loads = slopes >= 0
    numbers, places = np.unique(slopes[loads], return_inverse=True)
    loadings, correlation = _draw_loadings(slopes), np.eye(n_traits)
    if is_correlated:
        factor = np.random.default_rng(1).standard_normal((n_traits, 2 * n_traits)) + 1.0
        factor /= np.linalg.norm(factor, axis=1, keepdims=True)
        correlation = factor @ factor.T
    above = loadings @ correlation
    i, j = np.triu_indices(n_items, 1)
    n_slopes = len(numbers)
    pairs = [*combinations(range(n_traits), 2)] if is_correlated else []
    derivatives = np.zeros((len(i), n_slopes + len(pairs)))
    place = np.full(slopes.shape, -1)
    place[loads] = places
    rows = np.arange(len(i))
    for a in range(n_traits):
        for one, other in ((i, j), (j, i)):
            used = place[one, a] >= 0
            np.add.at(derivatives, (rows[used], place[one, a][used]), above[other, a][used])
    for k, (a, b) in enumerate(pairs):
        derivatives[:, n_slopes + k] = (
            loadings[i, a] * loadings[j, b] + loadings[i, b] * loadings[j, a]
        )
    products = derivatives.T @ derivatives
    scale = 1 / np.sqrt(np.maximum(np.diag(products), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(scale[:, None] * products * scale)
    is_null = values <= _NULL_SHARE * values.max(initial=0.0)
    null_space: Array = scale[:, None] * vectors[:, is_null]
    null_space /= np.abs(null_space).max(axis=0)
    return null_space


def _suggest_zero(
    slopes: Indices, is_correlated: bool, traits: Sequence[int], n_missing: int
) -> tuple[int, int] | None:
    """Return an item and a trait whose loading of 0 would identify more; None if none does."""
    tried = set()
    for k in reversed(traits):
        for i in np.flatnonzero((slopes[:, k] >= 0) & ((slopes >= 0).sum(axis=1) > 1)).tolist():
            key = (k, (slopes[i] >= 0).tobytes())
            if key in tried:
                continue
            tried.add(key)
            other = slopes.copy()
            other[i, k] = -1
            if _find_free_directions(other, is_correlated).shape[2] < n_missing:
                return i, k
    return None
