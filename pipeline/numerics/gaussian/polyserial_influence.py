"""How a row moves polyserial correlations, and the correlations' standard errors.

Notation as in `polyserial`: x is the standardized continuous feature, h_p the thresholds of the
feature with levels, x_p the bits of its planes, and s the slope of log P_a(x) by z = atanh ρ. The
two-step estimate takes the thresholds from the margins of the levels, and the mean and standard
deviation of x from its values. A row moves ρ by

    IF = (1 − ρ²) (s − Σ_p J_p dh_p + J_μ x + J_σ (x² − 1) / 2) / E s²,
    dh_p = −(x_p − E x_p) / φ(h_p),   J_p = E s ∂ log P / ∂h_p,
    J_μ = E s ∂ log P / ∂x,   J_σ = E x s ∂ log P / ∂x,

since Σ_a P_a s = 0 for every x. Expectations are those of the fitted bivariate normal, summed over
levels and a grid of x. The standard error is √(E IF² / n).

Olsson, Drasgow & Dorans (1982), The polyserial correlation coefficient, Psychometrika 47.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from pipeline.numerics.gaussian.level_bounds import place_bounds
from pipeline.numerics.gaussian.polyserial import PolyserialPairs, fill_scores

_GRID = np.linspace(-8.0, 8.0, 641)
_DENSITY = np.exp(-0.5 * _GRID**2) / np.exp(-0.5 * _GRID**2).sum()
_MIN_PROBABILITY = 1e-14  # Below, a level is a difference without digits; it does not matter.

_Floats = npt.NDArray[np.float64]
_Counts = npt.NDArray[np.int64]


class PolyserialInfluence(NamedTuple):
    """Influence of a row that observes both features of a pair, 0 for pairs without information.

    Attributes
    ----------
    score
        Factor of s, (n_continuous, n_features).
    bits
        Factor of the bit of each plane, (n_continuous, n_planes).
    value, square
        Factors of x and of x², (n_continuous, n_features).
    constant
        The part that is the same in every row, (n_continuous, n_features).
    deviation
        √(E IF²), (n_continuous, n_features); NaN without information.
    """

    score: _Floats
    bits: _Floats
    value: _Floats
    square: _Floats
    constant: _Floats
    deviation: _Floats


def polyserial_influence(
    pairs: PolyserialPairs, is_informative: npt.NDArray[np.bool_], n_levels: _Counts
) -> PolyserialInfluence:
    """Compute the influence of a row on all correlations.

    `is_informative`, (n_continuous, n_features), tells which pairs have a correlation.
    """
    first, bounds = place_bounds(pairs.thresholds, n_levels)
    shape = pairs.z.shape
    score, value, square, constant = (np.zeros(shape) for _ in range(4))
    bits, deviation = np.zeros(pairs.thresholds.shape), np.full(shape, np.nan)
    first_planes = np.cumsum(n_levels - 1) - (n_levels - 1)
    for c, f in np.argwhere(is_informative).tolist():
        own = slice(first_planes[f], first_planes[f] + n_levels[f] - 1)
        h, z = bounds[c, first[f] + 1 : first[f] + n_levels[f]], pairs.z[c, f]
        tables = _tabulate_scores(h, z)
        information = float((tables.weights * tables.score**2).sum())
        if information <= 0:
            continue
        weighted = tables.weights * tables.score
        by_x = (weighted * tables.slope).sum(axis=0)
        factor = 1 / (np.cosh(z) ** 2 * information)
        density = np.exp(-0.5 * h**2) / np.sqrt(2 * np.pi)
        is_between = density > _MIN_PROBABILITY
        by_threshold = (weighted[1:] * tables.lower[1:]).sum(axis=1)
        by_threshold += (weighted[:-1] * tables.upper[:-1]).sum(axis=1)
        own_bits = np.divide(by_threshold, density, out=np.zeros_like(h), where=is_between)
        score[c, f], bits[c, own] = factor, factor * own_bits
        value[c, f] = factor * by_x.sum()
        square[c, f] = factor * 0.5 * (_GRID * by_x).sum()
        constant[c, f] = -square[c, f] - bits[c, own] @ ndtr(-h)
        at_level = np.concatenate([[0.0], np.cumsum(bits[c, own])])
        moves = factor * tables.score + at_level[:, None] + constant[c, f]
        moves += value[c, f] * _GRID + square[c, f] * _GRID**2
        deviation[c, f] = np.sqrt((tables.weights * moves**2).sum())
    return PolyserialInfluence(score, bits, value, square, constant, deviation)


class _Scores(NamedTuple):
    """Tables over levels and the grid of x, (n_levels, n_grid) each.

    `weights` are probabilities. `score`, `slope`, `lower` and `upper` are the derivatives of log P
    by z, by x, and by the thresholds at which the level begins and ends.
    """

    weights: _Floats
    score: _Floats
    slope: _Floats
    lower: _Floats
    upper: _Floats


def _tabulate_scores(h: _Floats, z: float) -> _Scores:
    cosh, sinh = np.cosh(z), np.sinh(z)
    u = h[:, None] * cosh - _GRID * sinh
    by_z = h[:, None] * sinh - _GRID * cosh
    edge = np.zeros((1, len(_GRID)))
    density = np.concatenate([edge, np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi), edge])
    by_z = np.concatenate([edge, by_z, edge])
    below = np.concatenate([edge, ndtr(u), edge + 1])
    P = np.diff(below, axis=0)
    ratio = np.divide(1.0, P, out=np.zeros_like(P), where=P > _MIN_PROBABILITY)
    return _Scores(
        P * _DENSITY,
        np.diff(density * by_z, axis=0) * ratio,
        -sinh * np.diff(density, axis=0) * ratio,
        -cosh * density[:-1] * ratio,
        cosh * density[1:] * ratio,
    )


def evaluate_influence(
    influence: PolyserialInfluence,
    pairs: PolyserialPairs,
    x: _Floats,
    levels: npt.NDArray[np.uint8],
    n_levels: _Counts,
    continuous: int,
) -> _Floats:
    """Return the influence of rows on the correlations of one continuous feature.

    Parameters
    ----------
    influence, pairs, n_levels
        As for `polyserial_influence`.
    x
        Standardized values of the continuous feature, (n_rows,).
    levels
        Levels counted from 0, (n_rows, n_features).
    continuous
        Index of the continuous feature.

    Returns
    -------
    ndarray
        (n_rows, n_features).
    """
    first, bounds = place_bounds(pairs.thresholds, n_levels)
    scores = np.empty(levels.shape)
    fill_scores(x, levels, first, bounds[continuous], pairs.z[continuous], scores)
    moves: _Floats = influence.score[continuous] * scores + influence.constant[continuous]
    moves += x[:, None] * influence.value[continuous]
    moves += x[:, None] ** 2 * influence.square[continuous]
    firsts = np.cumsum(n_levels - 1) - (n_levels - 1)
    for f, first_plane in enumerate(firsts.tolist()):
        own = influence.bits[continuous, first_plane : first_plane + n_levels[f] - 1]
        moves[:, f] += np.concatenate([[0.0], np.cumsum(own)])[levels[:, f]]
    return moves
