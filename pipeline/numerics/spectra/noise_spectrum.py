"""The leading eigenvalues of a large symmetric matrix of noise whose rows come in groups.

The matrix is (n, n) with diagonal 1, and for i ≠ j in groups a and b

    H_ij = mean_ab + linear_ab √ν w_ij + √spread_ab ε_ij,

where w are the sample correlations of n independent normals with ν degrees of freedom, and the ε
are independent of them and of each other, with mean 0 and variance 1. Nonlinear functions of sample
correlations have such spectra (Cheng & Singer 2013, The spectrum of random inner-product kernel
matrices, arXiv:1202.3155; Fan & Montanari 2019, The spectral norm of random inner-product kernel
matrices, arXiv:1507.05343).

Without the mean, (z − H)⁻¹ is close to a diagonal matrix, g_a > 0 in group a where z is beyond the
spectrum. With L = linear √ν and P = diag(sizes_a g_a) / ν,

    1 / g_a = z − 1 + mean_aa − [L (1 − P L)⁻¹ − L]_aa − Σ_b spread_ab sizes_b g_b.       (1)

The last term is the vector equation −1/m = z + S m of independent entries (Ajanki, Erdős & Krüger
2017, Universality for general Wigner-type matrices, arXiv:1506.05098), m = −g. The bracket sums
the cumulants of Wishart matrices, L P L + L P L P L + …; where L is 1 everywhere, (1) is the law of
Marchenko and Pastur (1967). The edge of the spectrum is the least z for which (1) has a solution
that Newton's method reaches from g = 0. Below it g is complex, and Σ sizes_a |Im g_a| / π is the
density of eigenvalues. The mean adds eigenvalues, called spikes, where 1 is an eigenvalue of
√(sizes_a g_a) mean_ab √(sizes_b g_b) (Benaych-Georges & Nadakuditi 2011, The eigenvalues and
eigenvectors of finite, low rank perturbations of large random matrices, theorem 2.1).

Near the edge E, the eigenvalues are E − σ s_1 > E − σ s_2 > …, where only E and σ depend on the
matrix: −s_1 follows the law of Tracy and Widom (1996, On orthogonal and symplectic matrix
ensembles). The s_k are drawn from tridiagonal matrices with the eigenvalues of the Gaussian
orthogonal ensemble (Dumitriu & Edelman 2002, Matrix models for beta ensembles, J. Math. Phys. 43:
table 1, β = 1). They are unfolded by the semicircle, so that (2 / 3π) s^(3/2) eigenvalues are
expected above one at s, deep in the spectrum too.

Corrections of order 1/n, which edges feel up to thousands of features: with n − ½ for n and ν − ½
for ν, the edge of a Wishart matrix is centred on the unfolded one (Ma 2012, Accuracy of the
Tracy–Widom limits for the extreme eigenvalues in white Wishart matrices, arXiv:1203.0839). A fixed
diagonal takes 2 more from n: the n + 1 entries of each row of a Gaussian orthogonal matrix become
n − 1, because the diagonal entry counts twice. It adds 2 to ν; this was measured: with both
corrections, the mean of the largest eigenvalue of correlations of 300 normals, ν = 150 to 15,000,
is met within 0.1 of the scale. A row's own group loses in (1) what n loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

_OWN_ROWS = 2.5
_DEGREES_CORRECTION = 1.5
_MAX_NEWTON_STEPS = 60
_PRECISION = 1e-11
_BEYOND_EDGE = 1e-7
_DENSITY_STEPS = 40
_MAX_DENSITY_STEPS = 400
_MAX_SIZE = 600
_MARGIN = 80


@dataclass(frozen=True)
class GroupedNoise:
    """A matrix of noise by groups of rows; see the formula of the module."""

    sizes: Array  # rows of each group, (n_groups,)
    # (n_groups, n_groups), symmetric; `linear` and `spread` at least 0.
    mean: Array
    linear: Array
    spread: Array
    degrees: float  # degrees of freedom ν of the sample correlations

    @property
    def diagonal_without_mean(self) -> Array:
        """Diagonal of H after subtracting the mean everywhere, (n_groups,)."""
        centres: Array = 1.0 - self.mean.diagonal()
        return centres

    def variance(self) -> Array:
        """Return the variance of an entry, by groups."""
        variance: Array = self.linear**2 + self.spread
        return variance

    def count_other_rows(self) -> Array:
        """Return the effective rows of group b next to a row of group a, (n_groups, n_groups)."""
        other_rows = np.tile(self.sizes, (len(self.sizes), 1))
        np.fill_diagonal(other_rows, np.maximum(self.sizes - _OWN_ROWS, 0.0))
        return other_rows


@dataclass(frozen=True)
class SpectrumEdge:
    """The upper edge of the spectrum without its mean."""

    position: float
    resolvent: Array  # g at the edge, (n_groups,)
    density_rise: Array  # Im g at position − t² is `density_rise` t for small t, (n_groups,)
    # Eigenvalues near the edge are position − scale · s, with s from `draw_edge_points`.
    scale: float


def find_edge(noise: GroupedNoise) -> SpectrumEdge:
    """Find the upper edge of the spectrum without its mean."""
    low = float(noise.diagonal_without_mean.max())
    high = low + 1.0
    while (g := _solve_resolvent(noise, high)) is None:
        high = low + 2 * (high - low)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if (solution := _solve_resolvent(noise, middle)) is None:
            low = middle
        else:
            high, g = middle, solution
    rise = _edge_rise(noise, g)
    # The number of eigenvalues above position − t² is then 2 / (3π) · (sizes · rise) t³.
    return SpectrumEdge(high, g, rise, float(noise.sizes @ rise) ** (-2 / 3))


def noise_eigenvalues(noise: GroupedNoise, edge: SpectrumEdge, points: Array) -> Array:
    """Convert unfolded eigenvalues to eigenvalues of the matrix without its mean.

    `points`, of any shape, are from `draw_edge_points`. Eigenvalues deeper than the part of the
    spectrum connected to the edge are put at its lower end.
    """
    deepest = max(float(points.max()), edge.scale)
    step = np.sqrt(edge.scale * deepest) / _DENSITY_STEPS
    below = _compute_densities(noise, edge, step, float(count_above(deepest)))
    t = step * np.arange(len(below))
    counts = scipy.integrate.cumulative_simpson(2 * t * below, x=t, initial=0.0)
    inside = np.interp(points, unfold(np.maximum.accumulate(counts)), edge.position - t**2)
    return np.where(points > 0, inside, edge.position - edge.scale * points)


def find_spikes(noise: GroupedNoise, edge: SpectrumEdge) -> tuple[Array, Array]:
    """Find the eigenvalues that the mean lifts out of the noise, and their standard deviations.

    The deviations are of xᵀ H x, where x is the eigenvector without the noise's contribution.
    """
    lifts, _ = _spike_eigenpairs(noise, edge.resolvent)
    n_spikes = int((lifts > 1).sum())
    spikes = [_find_spike(noise, edge, k) for k in range(n_spikes)]
    positions, deviations = np.reshape(spikes, (n_spikes, 2)).T
    return positions, deviations


def _find_spike(noise: GroupedNoise, edge: SpectrumEdge, k: int) -> tuple[float, float]:
    def excess(z: float) -> float:
        return float(_spike_eigenpairs(noise, _require_resolvent(noise, z))[0][k]) - 1.0

    low = edge.position * (1 + _BEYOND_EDGE)
    if excess(low) <= 0:
        return edge.position, 0.0
    high = 2 * low
    while excess(high) > 0:
        high *= 2
    position = float(scipy.optimize.brentq(excess, low, high))
    g = _require_resolvent(noise, position)
    weights = g * _spike_eigenpairs(noise, g)[1][:, k] ** 2
    weights /= weights.sum()
    return position, float(np.sqrt(2 * weights @ noise.variance() @ weights))


def _spike_eigenpairs(noise: GroupedNoise, g: Array) -> tuple[Array, Array]:
    """Return the eigenpairs of √(sizes g) mean √(sizes g), the largest first."""
    roots = np.sqrt(noise.sizes * g)
    values, vectors = scipy.linalg.eigh(roots[:, None] * noise.mean * roots)
    return values[::-1], vectors[:, ::-1]


def _solve_resolvent(noise: GroupedNoise, z: float) -> Array | None:
    """Solve (1) from g = 0; return None if z is not beyond the edge.

    The right-hand side of g = 1 / (z − …) has a power series in g without negative terms. Newton's
    method therefore climbs to the least solution, and leaves the domain if there is none.
    """
    g = np.zeros(len(noise.sizes))
    for _ in range(_MAX_NEWTON_STEPS):
        step = _newton_step(noise, z, g)
        if step is None:
            return None
        g += step
        if not (g > 0).all() or not _is_convergent(noise, g):
            return None
        if np.abs(step).max() <= _PRECISION * g.max():
            return g
    return None


def _require_resolvent(noise: GroupedNoise, z: float) -> Array:
    g = _solve_resolvent(noise, z)
    assert g is not None, "z is beyond the edge"
    return g


def _is_convergent(noise: GroupedNoise, g: Array) -> bool:
    """Check whether the series of (1 − P L)⁻¹ converges, so that (1) holds for 1 / g."""
    roots = np.sqrt(noise.sizes * g / _effective_degrees(noise))
    scaled = roots[:, None] * _scale_linear(noise) * roots
    return bool(scipy.linalg.eigvalsh(scaled)[-1] < 1)


def _effective_degrees(noise: GroupedNoise) -> float:
    return noise.degrees + _DEGREES_CORRECTION


def _scale_linear(noise: GroupedNoise) -> Array:
    scaled: Array = noise.linear * np.sqrt(noise.degrees)
    return scaled


def _self_energy(noise: GroupedNoise, g: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the terms that (1) subtracts from z − 1 + mean, (n_groups,), and derivatives by g."""
    linear, nu = _scale_linear(noise), _effective_degrees(noise)
    other_rows = noise.count_other_rows()
    full = linear @ np.linalg.inv(np.eye(len(g)) - (noise.sizes * g / nu)[:, None] * linear)
    # Remove the row itself from its group: a rank-one change of 1 − P L.
    own_share = (noise.sizes - other_rows.diagonal()) / nu
    scale = 1 / (1 + own_share * g * full.diagonal())
    own_part = scale * full.diagonal()
    energy = own_part - linear.diagonal() + noise.spread * other_rows @ g
    slopes = scale[:, None] ** 2 * full**2 * (noise.sizes / nu) + noise.spread * other_rows
    slopes[np.diag_indices(len(g))] -= own_share * own_part**2
    return energy, slopes


def _newton_step(noise: GroupedNoise, z: float, g: NDArray[Any]) -> NDArray[Any] | None:
    """Return Newton's step towards g = 1 / (z − …); None if the right-hand side left its domain."""
    energy, slopes = _self_energy(noise, g)
    denominator = z - noise.diagonal_without_mean - energy
    if np.isrealobj(g) and not (denominator > 0).all():
        return None
    try:
        step: NDArray[Any] = np.linalg.solve(
            np.eye(len(g)) - slopes / denominator[:, None] ** 2, 1 / denominator - g
        )
    except np.linalg.LinAlgError:
        return None
    return step


def _edge_rise(noise: GroupedNoise, g: Array) -> Array:
    """Return Im g / t at the edge − t²: (1) to second order along its null vector."""
    left, _, right = np.linalg.svd(np.diag(1 / g**2) - _self_energy(noise, g)[1])
    u, weights = np.abs(right[-1]), np.abs(left[:, -1])
    h = 1e-5 * (g / np.maximum(u, 1e-300)).min()
    bend = (_self_energy(noise, g + h * u)[1] - _self_energy(noise, g - h * u)[1]) @ u / (2 * h)
    rise: Array = u * np.sqrt(2 * weights.sum() / (weights @ (bend + 2 * u**2 / g**3)))
    return rise


def _compute_densities(
    noise: GroupedNoise, edge: SpectrumEdge, step: float, min_count: float
) -> Array:
    """Compute densities at edge − t², t = 0, step, …, until `min_count` eigenvalues lie above."""
    densities, n_above = [0.0], 0.0
    previous, g = edge.resolvent.astype(complex), edge.resolvent + 1j * edge.density_rise * step
    while n_above < min_count and len(densities) < _MAX_DENSITY_STEPS:
        t = step * len(densities)
        solution = _continue_resolvent(noise, edge.position - t**2, g)
        if solution is None:
            break
        densities.append(max(float(noise.sizes @ solution.imag) / np.pi, 0.0))
        n_above += 2 * t * densities[-1] * step
        previous, g = solution, 2 * solution - previous
    return np.array(densities)


def _continue_resolvent(noise: GroupedNoise, z: float, g: NDArray[Any]) -> NDArray[Any] | None:
    """Solve (1) from a nearby solution."""
    for _ in range(_MAX_NEWTON_STEPS):
        step = _newton_step(noise, z, g)
        if step is None:
            return None
        g = g + step
        if np.abs(step).max() <= _PRECISION * np.abs(g).max():
            return g
    return None


def count_above(s: npt.ArrayLike) -> Array:
    """Return the expected number of eigenvalues above the unfolded one at s."""
    return np.asarray(2 / (3 * np.pi) * np.maximum(s, 0.0) ** 1.5)


def unfold(count: npt.ArrayLike) -> Array:
    """Invert `count_above`."""
    return np.asarray((1.5 * np.pi * np.asarray(count)) ** (2 / 3))


def draw_edge_points(n: int, n_leading: int, n_draws: int, rng: np.random.Generator) -> Array:
    """Draw unfolded leading eigenvalues s_1 < s_2 < … of `n_draws` matrices, (n_draws, n_leading).

    They are negative beyond the edge. `n` is the size of the matrix; above 600 (or eight times
    `n_leading`) it makes no difference.
    """
    n = min(n, max(_MAX_SIZE, 8 * n_leading))
    # The density is exp(−tr H² / 2), so eigenvalues reach √(2n). Using √(2n − 1) leaves an error
    # of n^(−2/3) in the law of s_1 (Johnstone & Ma 2012, Fast approach to the Tracy–Widom law at
    # the edge of GOE and GUE, Ann. Appl. Probab. 22).
    size = n - 0.5
    n_kept = _count_relevant_rows(n, n_leading)
    degrees = np.arange(n - 1, n - n_kept, -1)
    values = np.empty((n_draws, n_leading))
    for draw in values:
        diagonal = rng.standard_normal(n_kept)
        off_diagonal = np.sqrt(rng.chisquare(degrees) / 2)
        leading = scipy.linalg.eigh_tridiagonal(
            diagonal, off_diagonal, eigvals_only=True, lapack_driver="sterf"
        )[: -n_leading - 1 : -1]
        # Matrices of correlations have a fixed trace: their eigenvalues do not all move together.
        trace = diagonal.sum() + np.sqrt(n - n_kept) * rng.standard_normal()
        draw[:] = (leading - trace / n) / np.sqrt(2 * size)
    return _unfold_semicircle(values, size)


def _count_relevant_rows(n: int, n_leading: int) -> int:
    """Return the size of the upper left part of the matrix that has the same leading eigenvalues.

    Eigenvectors of the tridiagonal matrix decay once the remaining rows, n − m, are too few for an
    eigenvalue x: x² > 2 (n − m).
    """
    lowest = 1 - 0.575 * float(unfold(n_leading)) / n ** (2 / 3)
    return min(n, int(n * (1 - max(lowest, 0.0) ** 2)) + _MARGIN)


def _unfold_semicircle(x: Array, size: float) -> Array:
    inside = np.clip(x, -1.0, 1.0)
    above = size / np.pi * (np.arccos(inside) - inside * np.sqrt(1 - inside**2))
    return np.where(x < 1, unfold(above), 2 * size ** (2 / 3) * (1 - x))
