"""Kernels of expectation propagation over logistic items: features by rows, rows side by side.

`logistic_sites` says what for. A sign is 1 or −1 for a value, 0 where it is missing. Loops over
rows have no branches, and no row's result depends on its neighbours.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.logistic.logistic_lanes import exp_minus, fill, fma, inlined

Floats = NDArray[np.float64]
Signs = NDArray[np.int8]

_FACTORS = 512  # of up to 2 before a logarithm: 2**512 is no overflow
_MIN_VARIANCE = 1e-8  # of w·x; items without weight have none
_MIN_CAVITY = 1e-9  # share of the precision that the prior and other items have at the least


class ItemMarginals(NamedTuple):
    """Mean and variance of w·x of each item under each row's Gaussian."""

    mean: Floats
    variance: Floats


class GaussianSites(NamedTuple):
    """What stands for an item: exp(shift y − precision y² / 2), y = w·x."""

    precision: Floats
    shift: Floats


class TiltedMoments(NamedTuple):
    """What the M-step needs of each item and row, 0 where missing.

    Attributes
    ----------
    pull
        Mean of t − σ(z).
    lean
        Covariance of t − σ(z) with y, over the variance of y.
    slope
        Mean of σ(z) σ(−z).
    """

    mean_residual: Floats
    residual_covariance: Floats
    slope: Floats


class HermiteRule(NamedTuple):
    """Nodes of a Gauss–Hermite rule, and their weights over the normal density there."""

    nodes: Floats
    weights: Floats


class _NodeSums(NamedTuple):
    """Of one item over the nodes, (n_rows,): powers of the node, and the slope."""

    zeroth: Floats
    first: Floats
    second: Floats
    slope: Floats


@njit(nogil=True, cache=True, error_model="numpy")
def fill_logistic_parts(signs: Signs, z: Floats, slopes: Floats, log_p: Floats) -> None:
    """Put t − σ(z) in place of z; fill in σ(z) σ(−z), and log P(t) of each column."""
    product = np.ones(z.shape[1])
    fill(log_p, 0.0)
    for i in range(len(z)):
        _multiply_item_factors(signs[i], z[i], slopes[i], log_p, product)
        if i % _FACTORS == _FACTORS - 1:
            _take_logarithms(product, log_p)
    _take_logarithms(product, log_p)


@inlined
def _multiply_item_factors(
    signs: Signs, z: Floats, slopes: Floats, log_p: Floats, product: Floats
) -> None:
    for row in range(len(z)):
        sign = float(signs[row])
        present = sign * sign
        towards = sign * z[row]
        e = exp_minus(abs(towards))
        inverse = 1.0 / (1.0 + e)
        log_p[row] += min(towards, 0.0)
        product[row] *= 1.0 + present * e
        z[row] = sign * (e * inverse if towards > 0 else inverse)
        slopes[row] = present * e * inverse * inverse


@inlined
def _take_logarithms(product: Floats, log_p: Floats) -> None:
    for row in range(len(log_p)):
        log_p[row] -= math.log(product[row])
        product[row] = 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def match_logistic_sites(
    signs: Signs,
    offsets: Floats,
    marginals: ItemMarginals,
    rule: HermiteRule,
    rates: Floats,
    sites: GaussianSites,
    tilted: TiltedMoments,
    log_likelihood: Floats,
) -> None:
    """Match every site to its item, a share `rates` (n_rows,) of the way, and add log factors."""
    zeros = np.zeros(signs.shape[1])
    sums = _NodeSums(zeros, zeros.copy(), zeros.copy(), zeros.copy())
    for i in range(len(signs)):
        mean, variance = marginals.mean[i], marginals.variance[i]
        precision, shift = sites.precision[i], sites.shift[i]
        _integrate_item(signs[i], offsets[i], mean, variance, rule, precision, shift, sums)
        pull, lean, slope = tilted.mean_residual[i], tilted.residual_covariance[i], tilted.slope[i]
        for row in range(len(rates)):
            present = float(signs[i, row]) ** 2
            v = max(variance[row], _MIN_VARIANCE)
            cavity = max(1.0 / v - precision[row], _MIN_CAVITY / v)
            centre = (mean[row] / v - shift[row]) / cavity
            first = sums.first[row] / sums.zeroth[row]
            spread = v * (sums.second[row] / sums.zeroth[row] - first * first)
            reached = mean[row] + math.sqrt(v) * first
            # By Stein's lemma moments of y give those of t − σ(z).
            pull[row] = present * (reached - centre) * cavity
            about = (spread + (reached - centre) ** 2) * cavity - 1.0
            lean[row] = present * (about - pull[row] * (mean[row] - centre)) / v
            slope[row] = present * sums.slope[row] / sums.zeroth[row]
            log_likelihood[row] += present * (
                math.log(sums.zeroth[row])
                + 0.5 * (centre * centre * cavity - mean[row] * mean[row] / v)
            )
            rate = rates[row] * present
            precision[row] += rate * (max(1.0 / spread - cavity, 0.0) - precision[row])
            shift[row] += rate * (reached / spread - centre * cavity - shift[row])


@inlined
def _integrate_item(
    signs: Signs,
    offset: float,
    mean: Floats,
    variance: Floats,
    rule: HermiteRule,
    precision: Floats,
    shift: Floats,
    sums: _NodeSums,
) -> None:
    """Sum the item times the Gaussian of all others over nodes that lie where both are."""
    for total in sums:
        fill(total, 0.0)
    for node in range(len(rule.nodes)):
        x, weight = rule.nodes[node], rule.weights[node]
        for row in range(len(mean)):
            v = max(variance[row], _MIN_VARIANCE)
            cavity = max(1.0 / v - precision[row], _MIN_CAVITY / v)
            y = fma(math.sqrt(v), x, mean[row])
            gap = y - (mean[row] / v - shift[row]) / cavity
            towards = float(signs[row]) * (y + offset)
            e = exp_minus(abs(towards))
            inverse = 1.0 / (1.0 + e)
            mass = weight * exp_minus(0.5 * gap * gap * cavity)
            mass *= inverse if towards > 0 else e * inverse
            sums.zeroth[row] += mass
            sums.first[row] = fma(mass, x, sums.first[row])
            sums.second[row] = fma(mass * x, x, sums.second[row])
            sums.slope[row] = fma(mass, e * inverse * inverse, sums.slope[row])
