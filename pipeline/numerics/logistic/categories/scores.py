"""Scores and information of items, by sums of an E-step and by rows.

Forms v of items are J φ + v₀ with free parameters φ: weights and offsets of all planes, then two
forms per item with asymptotes (their logits) or per continuous item (see `gaussian_items`). With
covariates, their coefficients Θ follow. With x̂ = (x, 1), score and information of row n are

    s_n = E[s(x) | t_n],   s(x) = Σ_j ∂ log P(t_n | x) / ∂η_j (x̂ᵀ J_j),
    I_n = E[−∂² log P(t_n | x) / ∂φ ∂φᵀ | t_n] − Cov[s(x) | t_n]

(T. A. Louis, JRSS B 44 (1982), eq. 3.2). Rows that share nodes have responsibilities R_nl. Given x,
their scores are linear in the indicators c_n of levels, s_n(x) = D(x)ᵀ c_n, so that

    Σ_n E[s sᵀ | t_n] = Σ_l D_lᵀ (Σ_n R_nl c_n c_nᵀ) D_l,

which costs n_levels² multiplications per row and node. Sums over rows of binary items without
missing values separate from those over nodes, see `_sum_binary_nodes`. All other expectations are
on points of each row: those of a Gauss–Hermite rule, placed by the mean and covariance of the
posterior and weighted by their likelihood. Scores of measurements and of Θ, which are not linear in
indicators, and of many levels have their covariances on such points too.

With many forms, posteriors are so narrow that scores are nearly polynomials of degree 3 where they
have mass. With polynomials Q_k that are orthonormal under the posterior, and Q_0 = 1,

    Cov[s(x) | t_n] ≈ Σ_{k>0} c_k c_kᵀ,   c_k = E[Q_k(x) s(x) | t_n].

So a row costs n_free² multiplications per polynomial, or per point with few forms.

Without missing values, the posterior of a row with binary items depends on its mode m_n alone. With
the residuals u_n = t_n − σ(m_n), of which it is independent, s_n(x) = u_n ⊗ x̂ + s(x; m_n) and

    Cov[s_n(x)] = u_n u_nᵀ ⊗ Cov[x̂] + u_n ⊗ Cov[x̂, s(x; m_n)] + (…)ᵀ + Cov[s(x; m_n)].

The last terms are smooth functions of m_n. They are computed on a lattice near the modes, and
interpolated. So with many items and rows, a row costs q (q + 1) / 2 n_features² multiplications.

This is for up to 3 traits; `logistic_sites` computes s_n of binary items for any number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, permutations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial.hermite_e import hermevander
from numpy.typing import NDArray
from scipy.special import factorial

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.asymptotes import (
    differentiate_curves,
    sum_expected_curvature,
    sum_item_scores,
)
from pipeline.numerics.logistic.asymptotes import sum_observed_curvature as sum_observed_asymptotes
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    ItemsAlike,
    LevelItems,
    compute_expected_curvature,
    compute_log_probabilities,
    count_item_levels,
    count_levels_at_nodes,
    differentiate_levels,
    iter_alike,
    sum_form_scores,
    sum_observed_curvature,
)
from pipeline.numerics.logistic.categories.gaussian_items import (
    GaussianSums,
    sum_gaussian_curvature,
    sum_gaussian_gradient,
    sum_gaussian_moments,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    RowAnswers,
    differentiate_rows,
    split_answers,
)
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    RowPosterior,
    gauss_hermite,
    iter_responsibilities,
    make_hermite_nodes,
)

Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Singles = NDArray[np.float32]

_MAX_ROWS, _MAX_SHARES = 8192, 2**22  # rows, and their responsibilities, multiplied at a time
_MAX_NODE_LEVELS = 150  # with more levels, rows have points of their own
# Points per axis, by the number of traits. Of binary items, for few, some and many: compared with
# many more points, and with weights up to 5, standard errors differ by at most 2 % and by 0.2 % in
# the median; with many items, by 10 % and 1 %.
_POINTS_PER_AXIS = {1: 15, 2: 9, 3: 7}
_BINARY_POINTS_PER_AXIS = {
    1: (11, 7, 5),
    2: (7, 9, 7),
    3: (5, 7, 5),
    4: (4, 4, 4),
    5: (3, 3, 3),
    6: (3, 3, 3),
}
MAX_POINT_TRAITS = max(_BINARY_POINTS_PER_AXIS)
"""Maximum number of traits that rows have points for."""
_FEW_FORMS, SOME_FORMS = 10, 100
_PRODUCTS_PER_PROBABILITY = 400  # that take as long as a probability at a point of a row
_DEGREE = 3  # of polynomials, for many forms
_MIN_VECTORS = 1024  # multiplied at a time
_BATCH_ENTRIES = 2**18  # derivatives of rows at their points: 2 MiB
# The lattice of modes: its distance times the steepest slope and points per axis of an
# interpolation; points per axis and the degree of polynomials of its posteriors, of some and of
# many items, by the number of traits. Compared with a dense grid, standard errors of 100 items with
# slopes up to 3 are off by at most 1e-4, and by 1e-6 in the median. A point costs as much as a row.
_MODE_SPACING, _MODE_STENCIL, _MANY_FORMS = {1: 0.5, 2: 0.9, 3: 0.9}, 6, 200
_MODE_RULES = {1: ((15, 6), (15, 6)), 2: ((11, 6), (9, 4)), 3: ((7, 3), (7, 3))}
_ROWS_PER_MODE, _MODE_ENTRIES = 1.5, 2**20  # derivatives of rows: 8 MiB
_NEWTON_STEPS = 2  # from the mean of a posterior to its mode
_NEGLIGIBLE_SHARE = 1e-6  # of the largest of several vectors
# In case a posterior has all mass on few points, added to its variance and to the products of
# polynomials.
_MIN_SHARE, _MIN_MEAN = 1e-6, 4.0  # of the variance of a prior; of its mean
_MIN_VARIANCE, _RIDGE = 1e-6, 1e-10


class RowRegression(NamedTuple):
    """Priors N(Θᵀz_n, I) of the rows; parameters Θ come after those of the items, row by row.

    The score of Θ is z_n (x − Θᵀz_n)ᵀ. Here x are standard traits: with coefficients Γ of traits
    that have the covariance L Lᵀ, Θ = Γ L⁻ᵀ.

    Attributes
    ----------
    covariates
        z_n, (n_samples, n_covariates).
    means
        Θᵀz_n, (n_samples, q).
    """

    covariates: Floats
    means: Floats

    def take_rows(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> RowRegression:
        """Return the rows of a mask, (n_samples,), with some indices, or of a slice."""
        return RowRegression(self.covariates[rows], self.means[rows])


def leave_out_saturated(regression: RowRegression, posterior: RowPosterior) -> RowRegression:
    """Return the rows with covariates of 0 where values tell nothing about x.

    The posterior of a row whose prior mean is far from 0 may be its prior. Then the row tells
    nothing about Θ, but the difference of two large numbers would.
    """
    share = 1 - np.linalg.eigvalsh(posterior.covariance)[:, :1]
    is_near = np.all(np.abs(regression.means) < _MIN_MEAN, axis=1, keepdims=True)
    informs = (share > _MIN_SHARE) | is_near
    return regression._replace(covariates=np.where(informs, regression.covariates, 0.0))


def extend_points(points: Floats) -> Floats:
    """Return x̂ = (x, 1), (…, q + 1)."""
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


class LevelSums(NamedTuple):
    """Sums over rows, with their responsibilities for nodes.

    Some rows have points of their own. Planes then have an expected log-likelihood that is
    quadratic in their forms v, v·s − ½ vᵀ C v, with the gradient of the true one at the forms of
    the pass, and at least its curvature.

    Attributes
    ----------
    ones, mass
        Expected numbers of ones and of observed values of all planes, (n_planes, n_nodes) each.
    linear, curvatures
        s, (n_planes, q + 1), and C, (n_planes, q + 1, q + 1), of rows with points of their own.
    number_codes, number_products, squares
        The fields of `GaussianSums` of the continuous items.
    """

    ones: Floats
    mass: Floats
    linear: Floats
    curvatures: Floats
    number_codes: Floats
    number_products: Floats
    squares: Floats

    @property
    def gaussians(self) -> GaussianSums:
        """The sums of the continuous items."""
        return GaussianSums(self.number_codes, self.number_products, self.squares)

    def transform(self, matrix: Floats) -> LevelSums:
        """Return the sums for A x̂ instead of x̂ = (x, 1), with A (q + 1, q + 1)."""
        return LevelSums(
            ones=self.ones,
            mass=self.mass,
            linear=self.linear @ matrix.T,
            curvatures=np.asarray(matrix @ self.curvatures @ matrix.T),
            number_codes=self.number_codes @ matrix.T,
            number_products=np.asarray(matrix @ self.number_products @ matrix.T),
            squares=self.squares,
        )


def sum_form_gradient(items: LevelItems, points: Floats, sums: LevelSums) -> Floats:
    """Return the gradient of the expected log-likelihood in v, (n_forms (q + 1),)."""
    eta = items.compute_forms(points)
    if items.asymptotes is not None:
        derivatives = differentiate_curves(eta, items.asymptotes.by_item)
        scores = sum_item_scores(points, sums.ones, sums.mass, derivatives)
        places = place_asymptotes(len(eta), points.shape[1])
        total = np.zeros(3 * len(eta) * (points.shape[1] + 1))
        total[places] = scores
        return total
    scores = np.empty_like(eta)
    for alike in iter_alike(items.n_planes):
        first = differentiate_levels(eta[alike.planes], items.is_cumulative)
        counts = count_levels_at_nodes(sums.ones, sums.mass, alike)
        scores[alike.planes] = sum_form_scores(counts, first)
    forms = np.column_stack([items.weights, items.offsets])
    own = sums.linear - np.einsum("jab,jb->ja", sums.curvatures, forms)
    extended = extend_points(points)
    if extended.ndim == 3:  # each plane has points of its own
        gradient = ((scores[:, None] @ extended)[:, 0] + own).reshape(-1)
    else:
        gradient = (scores @ extended + own).reshape(-1)
    if items.gaussians is None:
        return np.asarray(gradient)
    of_numbers = sum_gaussian_gradient(items.gaussians, sums.gaussians)
    return np.asarray(np.concatenate([gradient, of_numbers]))


def sum_form_curvature(
    items: LevelItems, points: Floats, sums: LevelSums, is_expected: bool = False
) -> scipy.sparse.csc_array:
    """Return minus the second derivatives of the expected log-likelihood in v, sparse.

    With `is_expected`, they are their mean given x, the Fisher information.
    """
    if items.asymptotes is not None:
        return _sum_asymptote_curvature(items, points, sums, is_expected)
    n, size = len(items.offsets), items.weights.size + len(items.offsets)
    total: Any = scipy.sparse.csc_array((size, size))
    if n:
        own = (sums.curvatures, np.arange(n), np.arange(n + 1))
        total = scipy.sparse.bsr_array(own, shape=(size, size)).tocsc()
    if len(points):
        total = total + _sum_plane_curvature(items, points, sums.ones, sums.mass, is_expected)
    if items.gaussians is None:
        return scipy.sparse.csc_array(total)
    blocks = sum_gaussian_curvature(items.gaussians, sums.gaussians, is_expected)
    joined: scipy.sparse.csc_array = scipy.sparse.block_diag([total, *blocks], format="csc")
    return joined


def place_asymptotes(n_features: int, q: int) -> Indices:
    """Return the places in v of (w, b, logit g, logit s) of each item, (n_features, q + 3)."""
    own = place_forms(np.arange(n_features)[:, None], q + 1)
    logits = n_features + np.arange(2 * n_features).reshape(-1, 2)
    return np.column_stack([own, logits * (q + 1) + q])


def _sum_asymptote_curvature(
    items: LevelItems, points: Floats, sums: LevelSums, is_expected: bool
) -> scipy.sparse.csc_array:
    """Return `sum_form_curvature` of items with asymptotes."""
    assert items.asymptotes is not None
    eta, asymptotes = items.compute_forms(points), items.asymptotes.by_item
    derivatives = differentiate_curves(eta, asymptotes)
    if is_expected:
        blocks = sum_expected_curvature(points, sums.mass, derivatives)
    else:
        counts = sums.ones, sums.mass
        blocks = sum_observed_asymptotes(points, *counts, eta, asymptotes, derivatives)
    places = place_asymptotes(len(eta), points.shape[1])
    return join_blocks([blocks], [places], 3 * len(eta) * (points.shape[1] + 1)).tocsc()


def sum_shift_scores(items: LevelItems, points: Floats, sums: LevelSums) -> tuple[Floats, Floats]:
    """Return score and Fisher information if all offsets of an item change alike.

    Both are (n_features,), the second as if x were known.
    """
    width, n_features = points.shape[1] + 1, len(items.n_planes)
    owners = np.repeat(np.arange(n_features), items.n_planes)
    continuous = np.flatnonzero(items.n_planes == 0)
    forms = np.append(np.arange(len(owners)), len(owners) + 2 * np.arange(len(continuous)))
    n_forms = len(items.to_forms())
    places = (forms * width + width - 1, np.append(owners, continuous))
    shape = (n_forms * width, n_features)
    shifts = scipy.sparse.coo_array((np.ones(len(forms)), places), shape=shape).tocsc()
    curvature = sum_form_curvature(items, points, sums, is_expected=True)
    information = (shifts.T @ curvature @ shifts).diagonal()
    return shifts.T @ sum_form_gradient(items, points, sums), information


def _sum_plane_curvature(
    items: LevelItems, points: Floats, ones: Floats, mass: Floats, is_expected: bool = False
) -> scipy.sparse.csr_array:
    """Return the part of `sum_form_curvature` of planes, given counts at points."""
    width = points.shape[-1] + 1
    found = list(_iter_curvatures(items, points, ones, mass, is_expected))
    places = [place_forms(planes, width) for planes, _ in found]
    return join_blocks([blocks for _, blocks in found], places, len(items.offsets) * width)


def join_blocks(
    blocks: Sequence[Floats], places: Sequence[Indices], n: int
) -> scipy.sparse.csr_array:
    """Return the matrix, (n, n), of blocks, (n_sets, size, size) each, at `places`."""
    values, rows, columns = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for own, place in zip(blocks, places, strict=True):
        size = place.shape[1]
        values.append(own.ravel())
        rows.append(np.repeat(place, size, axis=1).ravel())
        columns.append(np.tile(place, size).ravel())
    entries = (np.concatenate(rows), np.concatenate(columns))
    return scipy.sparse.coo_array((np.concatenate(values), entries), shape=(n, n)).tocsr()


def place_forms(forms: Indices, width: int) -> Indices:
    """Return the places of the weights and offsets of forms, (n, m), in v, (n, m width)."""
    return np.asarray((forms[:, :, None] * width + np.arange(width)).reshape(len(forms), -1))


def _iter_curvatures(
    items: LevelItems, points: Floats, ones: Floats, mass: Floats, is_expected: bool = False
) -> Iterator[tuple[Indices, Floats]]:
    """Yield planes of items, (n, m), and their curvatures, (n, m (q + 1), m (q + 1))."""
    eta, extended = items.compute_forms(points), extend_points(points)
    width = extended.shape[-1]
    for alike in iter_alike(items.n_planes):
        own = eta[alike.planes]
        # The planes of an item have the same points.
        at = extended if extended.ndim == 2 else extended[alike.planes[:, :1]]
        products = (at[..., :, None] * at[..., None, :]).reshape(*at.shape[:-1], width**2)
        if is_expected:
            log_p = compute_log_probabilities(own, items.is_cumulative)
            first = differentiate_levels(own, items.is_cumulative)
            n_values = mass[alike.planes[:, 0], None, None]
            curvature = compute_expected_curvature(log_p, first) * n_values
        else:
            counts = count_levels_at_nodes(ones, mass, alike)
            curvature = sum_observed_curvature(counts, own, items.is_cumulative)
        n, m = alike.planes.shape
        of_forms = (curvature @ products).reshape(n, m, m, width, width).swapaxes(2, 3)
        yield alike.planes, of_forms.reshape(n, m * width, m * width)


class RowScoreSums(NamedTuple):
    """Sums over rows with weights r_n, in the free parameters.

    Attributes
    ----------
    covariance, products, curvature
        Σ_n r_n Cov[s(x) | t_n], Σ_n r_n s_n s_nᵀ and the curvature of the expected complete
        log-likelihood, (n_free, n_free) each; `products` are empty if not asked for.
    weighted_products
        Σ_n r_n² s_n s_nᵀ, of the same shape, if asked for.
    cluster_scores
        Σ r_n s_n of the rows of each cluster, (n_clusters, n_free); empty without clusters.
    """

    covariance: Floats
    products: Floats
    curvature: Floats
    weighted_products: Floats
    cluster_scores: Floats


class _Rows(NamedTuple):
    """Rows, the moments of their posteriors, and what else belongs to them, see `sum_scores`."""

    X: Answers
    observed: Bits | None
    mean: Floats
    covariance: Floats
    weights: Floats
    clusters: NDArray[np.intp] | None
    regression: RowRegression | None

    def take(self, rows: NDArray[Any] | slice) -> _Rows:
        """Return some of the rows."""
        return _Rows(
            self.X[rows],
            None if self.observed is None else self.observed[rows],
            self.mean[rows],
            self.covariance[rows],
            self.weights[rows],
            None if self.clusters is None else self.clusters[rows],
            None if self.regression is None else self.regression.take_rows(rows),
        )


class _Products:
    """A sum of v vᵀ over vectors; many at a time are faster if they are long."""

    def __init__(self, size: int) -> None:
        self._total = np.zeros((size, size))
        self._parts: list[NDArray[Any]] = []

    def add(self, vectors: NDArray[Any]) -> None:
        """Add vectors, (n_vectors, size)."""
        self._parts.append(vectors)
        if sum(map(len, self._parts)) >= _MIN_VECTORS:
            self.get()

    @property
    def size(self) -> int:
        """Length of the vectors."""
        return len(self._total)

    def get(self) -> Floats:
        """Return the sum, (size, size)."""
        if self._parts:
            stacked = np.concatenate(self._parts)
            self._total += stacked.T @ stacked
            self._parts.clear()
        return self._total


class _Totals:
    """Sums of scores about the free parameters, or about all entries of forms if they are fewer.

    `jacobian` is that of forms by what the sums are about.
    """

    def __init__(
        self,
        jacobian: scipy.sparse.csr_array,
        n_clusters: int,
        has_squares: bool,
        has_products: bool,
    ) -> None:
        n_entries, n_free = jacobian.shape
        self._to_free = None if n_free < n_entries else jacobian
        if self._to_free is not None:
            jacobian = scipy.sparse.eye_array(n_entries, format="csr")
        self.jacobian, size = jacobian, jacobian.shape[1]
        self._to_scores = jacobian.T.tocsr()
        self._to_singles = self._to_scores.astype(np.float32)
        self.products = _Products(size if has_products else 0)
        self.squares = _Products(size if has_squares else 0)
        self.deviations, self.covariance = _Products(size), np.zeros((size, size))
        self.cluster_scores = np.zeros((n_clusters, size))

    def add_scores(self, rows: _Rows, scores: NDArray[Any]) -> None:
        """Add the scores s_n of rows, (n_rows, size)."""
        if not self.products.size:
            return
        weights = rows.weights.astype(scores.dtype)[:, None]
        self.products.add(np.sqrt(weights) * scores)
        weighted = weights * scores
        if self.squares.size:
            self.squares.add(weighted)
        if rows.clusters is not None:
            np.add.at(self.cluster_scores, rows.clusters, weighted)

    def add_covariance(self, covariance: Floats) -> None:
        """Add a covariance of scores about the entries of forms, (n_entries, n_entries)."""
        if self._to_free is None:
            covariance = self._to_scores @ (self._to_scores @ covariance).T
        self.covariance += covariance

    def reduce(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Turn scores about the entries of forms, (n_vectors, n_entries), into those summed."""
        if self._to_free is not None:
            return scores
        matrix = self._to_singles if scores.dtype == np.float32 else self._to_scores
        return np.asarray((matrix @ scores.T).T)

    def finish(self, curvature: scipy.sparse.csr_array) -> RowScoreSums:
        """Return all sums, given the curvature in forms, (n_entries, n_entries)."""
        products = self.products.get()
        sums = [self.covariance + self.deviations.get(), products, self.squares.get()]
        curvature, scores = self.jacobian.T @ curvature @ self.jacobian, self.cluster_scores
        if (J := self._to_free) is not None:
            sums = [J.T @ (J.T @ total).T if total.size else total for total in sums]
            curvature, scores = J.T @ curvature @ J, scores @ J
        return RowScoreSums(sums[0], sums[1], curvature.toarray(), sums[2], scores)


def sum_scores(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    posterior: RowPosterior,
    jacobian: scipy.sparse.csr_array,
    *,
    nodes: Nodes | None = None,
    is_own: Flags | None = None,
    row_weights: Floats | None = None,
    has_products: bool = True,
    has_sampling_weights: bool = False,
    clusters: NDArray[np.intp] | None = None,
    regression: RowRegression | None = None,
) -> RowScoreSums:
    """Sum scores and information over rows.

    Parameters
    ----------
    X, observed, items
        As for `compute_row_posterior`.
    posterior
        The posteriors of the rows.
    jacobian
        J, (n_forms (q + 1), n_free). With a regression, rows of Θ follow, (n_covariates q, n_free).
    nodes
        Nodes that rows share; None if all have points of their own. Binary items without asymptotes
        have nodes only for rows without missing values.
    is_own
        Rows that nodes do not suit, (n_samples,); None if there are none.
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    has_products
        Whether to sum `products`, and what else is about the scores s_n.
    has_sampling_weights
        Whether to sum `weighted_products`.
    clusters
        Index of each row's cluster, (n_samples,), counted from 0; None without clusters.
    regression
        Priors of the rows, N(Θᵀz_n, I); None if all are N(0, I).
    """
    n, q = posterior.mean.shape
    weights = np.ones(n) if row_weights is None else row_weights
    moments = posterior.mean, posterior.covariance
    rows = _Rows(X, observed, *moments, weights, clusters, regression)
    n_clusters = 0 if clusters is None else int(clusters.max(initial=-1)) + 1
    has_products |= nodes is not None and _has_pairs(items, regression)  # for covariances
    totals = _Totals(jacobian, n_clusters, has_sampling_weights, has_products)
    places = [place_forms(alike.planes, q + 1) for alike in iter_alike(items.n_planes)]
    blocks = [np.zeros((len(own), own.shape[1], own.shape[1])) for own in places]
    has_own = np.full(n, nodes is None)
    if is_own is not None:
        has_own |= is_own
    if _is_plain(items):
        is_masked = np.zeros(n, np.bool_) if observed is None else ~observed.all(axis=1)
        has_own |= is_masked
        if regression is None and len(items.offsets) > SOME_FORMS:
            alike = rows.take(np.flatnonzero(~is_masked))
            if (lattice := _place_modes(alike, items)) is not None:
                blocks[0] += _sum_on_modes(alike, items, lattice, totals)
                rows, has_own = rows.take(np.flatnonzero(is_masked)), has_own[is_masked]
    on_points = rows.take(np.flatnonzero(has_own))
    nodes = None if has_own.all() else nodes
    points = np.zeros((0, q)) if nodes is None else nodes.points
    counts = np.zeros((2, len(items.offsets), len(points)))
    if nodes is not None:
        on_nodes = rows.take(np.flatnonzero(~has_own)) if has_own.any() else rows
        sum_on_nodes = _sum_binary_nodes if _is_plain(items) else _sum_level_nodes
        counts = sum_on_nodes(on_nodes, items, nodes, totals)
    for part in _iter_point_scores(on_points, items, _choose_rule(items, q)):
        totals.add_scores(part.rows, totals.reduce(part.scores))
        totals.deviations.add(totals.reduce(part.deviations))
        for total, own in zip(blocks, _iter_point_curvatures(items, part), strict=True):
            total += own
    curvature: Any = _sum_row_curvature(rows, items, points, counts)
    return totals.finish(curvature + join_blocks(blocks, places, jacobian.shape[0]))


def _has_pairs(items: LevelItems, regression: RowRegression | None) -> bool:
    """Return whether covariances of rows on nodes are sums over pairs of levels."""
    if _is_plain(items) or items.asymptotes is not None:
        return not _is_plain(items)
    is_linear = items.gaussians is None and regression is None  # in the indicators of levels
    return is_linear and int(count_item_levels(items.n_planes).sum()) <= _MAX_NODE_LEVELS


def _is_plain(items: LevelItems) -> bool:
    """Return whether all items are binary without asymptotes."""
    return items.is_binary and items.asymptotes is None


def _sum_row_curvature(
    rows: _Rows, items: LevelItems, points: Floats, counts: Floats
) -> scipy.sparse.csr_array:
    """Return the curvature in forms and Θ, (n_entries, n_entries).

    Planes have that of rows on shared nodes, given their ones and values, (2, n_planes, n_nodes).
    """
    n, width = len(items.offsets), points.shape[1] + 1
    numbers = GaussianSums(np.zeros((0, width)), np.zeros((0, width, width)), np.zeros(0))
    if items.gaussians is not None:
        answers = split_answers(rows.X, rows.observed, items)
        numbers = sum_gaussian_moments(
            answers.values, answers.mask, rows.mean, rows.covariance, rows.weights
        )
    none = np.zeros((n, width)), np.zeros((n, width, width))
    sums = LevelSums(counts[0], counts[1], *none, *numbers)
    parts: list[Any] = [sum_form_curvature(items, points, sums)]
    if rows.regression is not None:
        z = rows.regression.covariates
        parts.append(np.kron((z * rows.weights[:, None]).T @ z, np.eye(width - 1)))
    curvature: scipy.sparse.csr_array = scipy.sparse.block_diag(parts, format="csr")
    return curvature


def _sum_binary_nodes(rows: _Rows, items: LevelItems, nodes: Nodes, totals: _Totals) -> Floats:
    """Add the scores of binary items without missing values, and return their counts at nodes.

    With z = (x, 1), E[s sᵀ] separates into a part of the rows and a part of the nodes,

        Σ_n E[s_i s_jᵀ] = Σ_n t_ni t_nj E[z zᵀ] − Σ_l (o_il σ_jl + σ_il o_jl − m_l σ_il σ_jl) z zᵀ,

    with o_il = Σ_n R_nl t_ni and m_l = Σ_n R_nl. A row costs (q + 1)² n_features², in matrix
    products.
    """
    n_features, q = items.weights.shape
    z = extend_points(nodes.points)
    sigma = scipy.special.expit(items.compute_forms(nodes.points).T)
    expected = (sigma[:, :, None] * z[:, None]).reshape(len(z), -1)
    pairs = list(combinations_with_replacement(range(q + 1), 2))
    squares = np.stack([z[:, a] * z[:, b] for a, b in pairs], axis=1)
    ones, mass = np.zeros((n_features, len(z))), np.zeros(len(z))
    moments = np.zeros((len(pairs), n_features, n_features))
    crossed = np.zeros((expected.shape[1],) * 2)
    for part, shares in iter_responsibilities(rows.X, None, items, nodes):
        own = rows.take(part)
        bits = own.X.astype(np.float64)
        expected_squares = shares @ squares
        scores = (bits[:, :, None] * (shares @ z)[:, None]).reshape(len(bits), -1)
        scores -= shares @ expected
        means = np.sqrt(own.weights)[:, None] * scores
        crossed += means.T @ means
        totals.add_scores(own, totals.reduce(scores))
        weighted_bits = own.weights[:, None] * bits
        for total, moment in zip(moments, expected_squares.T, strict=True):
            total += (weighted_bits.T * moment) @ bits
        ones += weighted_bits.T @ shares
        mass += own.weights @ shares
    spread = np.empty((n_features, q + 1, n_features, q + 1))
    for (a, b), total, square in zip(pairs, moments, squares.T, strict=True):
        half = ((0.5 * mass * sigma.T - ones) * square) @ sigma
        spread[:, a, :, b] = spread[:, b, :, a] = total + half + half.T
    totals.add_covariance(spread.reshape(crossed.shape) - crossed)
    return np.stack([ones, np.broadcast_to(mass, ones.shape)])


class _ModeLattice(NamedTuple):
    """The modes of rows among the points of a lattice.

    Attributes
    ----------
    modes
        Modes of the rows' posteriors, (n_rows, q).
    points
        Points of the lattice near them, (n_points, q).
    shares
        A smooth function of a row's mode is the sum of its values at the points times these,
        (n_rows, n_points).
    """

    modes: Floats
    points: Floats
    shares: scipy.sparse.csr_array


def _place_modes(rows: _Rows, items: LevelItems) -> _ModeLattice | None:
    """Find the modes of complete rows; None if the lattice would not pay for so few."""
    n, q = rows.mean.shape
    if n < _ROWS_PER_MODE * _MODE_STENCIL**q:
        return None
    spacing = _MODE_SPACING[q] / max(float(np.linalg.norm(items.weights, axis=1).max()), 1.0)
    modes = rows.mean.copy()
    for part in _iter_slices(n, len(items.offsets)):
        for _ in range(_NEWTON_STEPS):
            residual, curvature = _differentiate_at(rows.X[part], items, modes[part])
            gradient = residual @ items.weights - modes[part]
            modes[part] += np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
    firsts = np.floor(modes / spacing) - (_MODE_STENCIL // 2 - 1)
    beyond, by_axis = modes / spacing - firsts, np.ones((_MODE_STENCIL, n, q))
    for k, other in permutations(range(_MODE_STENCIL), 2):  # Lagrange's polynomials
        by_axis[k] *= (beyond - other) / (k - other)
    corners = np.array(list(np.ndindex(*[_MODE_STENCIL] * q)))
    shares = np.ones((n, len(corners)))
    for axis, own in enumerate(corners.T):
        shares *= by_axis[own, :, axis].T
    low = firsts.min(axis=0)
    sizes = (firsts.max(axis=0) - low).astype(np.int64) + _MODE_STENCIL
    places = (firsts - low).astype(np.int64)[:, None] + corners
    flat = np.ravel_multi_index(tuple(places.reshape(-1, q).T), tuple(sizes))
    used, columns = np.unique(flat, return_inverse=True)
    if n < _ROWS_PER_MODE * len(used):
        return None
    points = spacing * (low + np.column_stack(np.unravel_index(used, tuple(sizes))))
    ends = np.arange(n + 1) * len(corners)
    matrix = scipy.sparse.csr_array((shares.ravel(), columns, ends), shape=(n, len(used)))
    return _ModeLattice(modes, points, matrix)


def _iter_slices(n_rows: int, n_features: int) -> Iterator[slice]:
    height = max(1, _MODE_ENTRIES // n_features)
    for start in range(0, n_rows, height):
        check_cancelled()
        yield slice(start, start + height)


def _differentiate_at(X: Answers, items: LevelItems, x: Floats) -> tuple[Floats, Floats]:
    """Return t − σ of rows at a point each, (n_rows, n_features), and curvatures with the prior."""
    sigma = scipy.special.expit(items.compute_forms(x).T)
    n, q = x.shape
    squares = (items.weights[:, :, None] * items.weights[:, None]).reshape(-1, q * q)
    curvature = ((sigma * (1 - sigma)) @ squares).reshape(n, q, q) + np.eye(q)
    return X - sigma, curvature


def _sum_on_modes(rows: _Rows, items: LevelItems, lattice: _ModeLattice, totals: _Totals) -> Floats:
    """Add the scores of complete rows with binary items, and return their curvature by item.

    A row whose values are σ at a point of the lattice, with a prior around this point, has its mode
    there, and the residuals u = 0.
    """
    n_features, q = items.weights.shape
    size, mass = n_features * (q + 1), lattice.shares.T @ rows.weights
    residuals = np.zeros((len(mass), n_features), np.float32)
    pairs = list(combinations_with_replacement(range(q), 2))
    products = np.zeros((len(pairs), n_features, n_features))
    slices = list(_iter_slices(len(rows.mean), n_features))
    for part in slices:
        own, u = rows.take(part), _differentiate_at(rows.X[part], items, lattice.modes[part])[0]
        singles, weights = u.astype(np.float32), own.weights.astype(np.float32)[:, None]
        residuals += lattice.shares[part].T.astype(np.float32) @ (weights * singles)
        for (a, b), total in zip(pairs, products, strict=True):
            total += singles.T @ (
                own.covariance[:, a, b, None].astype(np.float32) * weights * singles
            )
    n_per_axis, degree = _MODE_RULES[q][n_features > _MANY_FORMS]
    rule = gauss_hermite(n_per_axis, q)
    polynomials = _evaluate_polynomials(rule.points, degree)
    crossed = np.zeros((q, n_features, size), np.float32)
    scores = np.zeros((len(mass), size), np.float32)
    curvature, negative = np.zeros((n_features, q + 1, q + 1)), _Products(size)
    for part in _iter_slices(len(mass), 4 * n_features * len(rule.points)):
        at = lattice.points[part]
        residual, precision = _differentiate_at(np.zeros(1, np.uint8), items, at)
        levels = np.stack([1 + residual, -residual], axis=2).reshape(len(at), -1)
        prior, near = RowRegression(np.zeros((len(at), 0)), at), np.linalg.inv(precision)
        ones = np.ones(len(at))
        point_rows = _Rows(levels, None, at, near.astype(np.float64), ones, None, prior)
        answers = RowAnswers(levels, levels[:, :0], levels[:, :0])
        found = _score_on_points(point_rows, answers, items, rule, polynomials)
        scores[part] = found.scores
        centred = found.x - (found.shares[:, None] @ found.x)
        z = _extend_row_points(found.x)
        for a in range(q):
            along = found.residual @ ((found.shares * centred[:, :, a])[:, :, None] * z)
            crossed[a] += residuals[part].T @ along.reshape(len(at), -1).astype(np.float32)
        own_mass = np.repeat(mass[part], len(found.deviations) // len(at))
        vectors = found.deviations * np.sqrt(abs(own_mass)).astype(np.float32)[:, None]
        sizes, is_negative = np.einsum("vp,vp->v", vectors, vectors), own_mass < 0
        is_large = sizes > _NEGLIGIBLE_SHARE * sizes.max()
        totals.deviations.add(totals.reduce(vectors[is_large & ~is_negative]))
        negative.add(vectors[is_large & is_negative])
        weighted_rows = point_rows._replace(weights=mass[part])
        curvature += next(_iter_point_curvatures(items, found._replace(rows=weighted_rows)))
    covariance = np.zeros((n_features, q + 1, n_features, q + 1))
    for (a, b), total in zip(pairs, products, strict=True):
        covariance[:, a, :, b] = covariance[:, b, :, a] = total
    for a in range(q):
        block = crossed[a].reshape(n_features, n_features, q + 1)
        covariance[:, a] += block
        covariance[:, :, :, a] += block.transpose(1, 2, 0)
    totals.add_covariance(covariance.reshape(size, size) - negative.get())
    if totals.products.size:
        for part in slices:
            own, u = rows.take(part), _differentiate_at(rows.X[part], items, lattice.modes[part])[0]
            z = np.column_stack([own.mean, np.ones(len(u))])
            by_row = (u[:, :, None] * z[:, None]).reshape(len(u), -1).astype(np.float32)
            by_row += lattice.shares[part].astype(np.float32) @ scores
            totals.add_scores(own, totals.reduce(by_row))
    return curvature


class _ScoreTable(NamedTuple):
    """D_l of all nodes as sparse matrices that have their entries at the same places.

    Attributes
    ----------
    values
        (n_nodes, n_entries).
    levels, parameters
        Row and column of each entry, (n_entries,).
    shape
        (n_levels, n_free).
    base
        Scores of rows without any one, (n_nodes, n_free), if D_l are what ones of binary items add
        to them; else 0.
    """

    values: Floats
    levels: Indices
    parameters: Indices
    shape: tuple[int, int]
    base: Floats

    def get_node(self, node: int) -> scipy.sparse.csr_array:
        """Return D_l."""
        places = (self.levels, self.parameters)
        return scipy.sparse.csr_array((self.values[node], places), shape=self.shape)


def _tabulate_scores(
    items: LevelItems, nodes: Nodes, jacobian: scipy.sparse.csr_array, is_relative: bool
) -> _ScoreTable:
    """Tabulate D_l; with `is_relative`, of the ones of binary items relative to zeros."""
    eta, extended = items.compute_forms(nodes.points), extend_points(nodes.points)
    width, n_levels = extended.shape[1], int(count_item_levels(items.n_planes).sum())
    n_levels = len(items.n_planes) if is_relative else n_levels
    base = np.zeros((len(extended), jacobian.shape[1]))
    values, levels, parameters = [np.zeros((len(extended), 0))], [], []
    for alike in iter_alike(items.n_planes):
        forms, first = _differentiate_forms(items, eta, alike)
        places = place_forms(forms, width)
        for own_first, rows, own_levels in zip(first, places, alike.levels, strict=True):
            own = jacobian[rows]
            used = np.unique(own.indices)
            dense = own[:, used].toarray().reshape(forms.shape[1], width, len(used))
            table = np.einsum("cjl,la,jap->lcp", own_first, extended, dense, optimize=True)
            if is_relative:
                base[:, used] += table[:, 0]
                table, own_levels = table[:, 1:] - table[:, :1], own_levels[1:] // 2
            values.append(table.reshape(len(extended), -1))
            levels.append(np.repeat(own_levels, len(used)))
            parameters.append(np.tile(used, len(own_levels)))
    empty = np.zeros(0, np.int64)
    return _ScoreTable(
        np.concatenate(values, axis=1),
        np.concatenate([empty, *levels]),
        np.concatenate([empty, *parameters]),
        (n_levels, jacobian.shape[1]),
        base,
    )


def _differentiate_forms(
    items: LevelItems, eta: Floats, alike: ItemsAlike
) -> tuple[Indices, Floats]:
    """Return the forms of some items, (n, m), and ∂ log P_c / ∂ form_j, (n, n_levels, m, …)."""
    if items.asymptotes is None:
        return alike.planes, differentiate_levels(eta[alike.planes], items.is_cumulative)
    by_one, by_zero = differentiate_curves(eta, items.asymptotes.by_item)
    logits = len(eta) + np.arange(2 * len(eta)).reshape(-1, 2)
    return np.column_stack([alike.planes, logits]), np.moveaxis(np.stack([by_zero, by_one]), 2, 0)


def _sum_level_nodes(rows: _Rows, items: LevelItems, nodes: Nodes, totals: _Totals) -> Floats:
    """Add the scores of rows on shared nodes, and return the ones and values of planes there."""
    # Data may hardly determine asymptotes, so their sums are not in singles. Without missing
    # values, zeros follow from ones.
    has_asymptotes = items.asymptotes is not None
    has_only_ones, dtype = has_asymptotes and rows.observed is None, "d" if has_asymptotes else "f"
    parts, regression = _split_jacobian(totals.jacobian, items), rows.regression
    has_scores = totals.products.size > 0  # False too if no parameter is free
    has_pairs = has_scores and _has_pairs(items, regression)
    counts = np.zeros((int(count_item_levels(items.n_planes).sum()), len(nodes.points)))
    if has_scores:
        table = _tabulate_scores(items, nodes, parts.planes, has_only_ones)
        n_entries = len(table.levels)
        ones = (np.ones(n_entries), (table.parameters, np.arange(n_entries)))
        by_place = scipy.sparse.csr_array(ones, shape=(table.shape[1], n_entries))
    means = None if regression is None else regression.means
    rule = _choose_rule(items, nodes.points.shape[1])
    for part, shares in _iter_shares(rows.X, rows.observed, items, nodes, means):
        check_cancelled()
        own = rows.take(part)
        answers = split_answers(own.X, own.observed, items)
        levels = answers.levels[:, 1::2] if has_only_ones else answers.levels
        if has_scores:
            by_entry = (shares @ table.values) * levels[:, table.levels]
            scores = np.asarray((by_place @ by_entry.T).T) + shares @ table.base
            totals.add_scores(own, scores + _score_numbers(own, answers, items, parts))
        shares = shares * own.weights[:, None]
        counts += answers.levels.T @ shares
        if has_pairs:
            _add_pairs(table, levels.astype(dtype), shares.astype(dtype), totals.covariance)
            continue
        for points in _iter_point_scores(own, items, rule):
            totals.deviations.add(totals.reduce(points.deviations))
    if has_pairs:
        totals.covariance -= totals.products.get()
    if has_only_ones:
        of_ones = by_place @ (table.values.T * counts[1::2][table.levels])
        mixed, mass = of_ones @ table.base, counts[0] + counts[1]
        totals.covariance += mixed + mixed.T + (table.base.T * mass) @ table.base
    return np.stack(_accumulate_levels(counts, items.n_planes))


def _add_pairs(table: _ScoreTable, levels: Floats, shares: Floats, total: Floats) -> None:
    """Add Σ_l D_lᵀ (Σ_n R_nl c_n c_nᵀ) D_l of rows with indicators c_n and shares R_nl."""
    for node, share in enumerate(shares.T):
        D = table.get_node(node)
        pairs = (levels * share[:, None]).T @ levels
        total += D.T @ (D.T @ pairs.T).T


class _JacobianParts(NamedTuple):
    """Rows of J: forms of planes and asymptotes, forms of continuous items, and Θ."""

    planes: scipy.sparse.csr_array
    continuous: scipy.sparse.csr_array
    theta: scipy.sparse.csr_array


def _split_jacobian(jacobian: scipy.sparse.csr_array, items: LevelItems) -> _JacobianParts:
    n_planes, q = items.weights.shape
    n_own = n_planes if items.asymptotes is None else 3 * n_planes
    n_forms = n_own + 2 * int(np.count_nonzero(items.n_planes == 0))
    ends = n_own * (q + 1), n_forms * (q + 1)
    return _JacobianParts(jacobian[: ends[0]], jacobian[ends[0] : ends[1]], jacobian[ends[1] :])


def _score_numbers(
    rows: _Rows, answers: RowAnswers, items: LevelItems, jacobian: _JacobianParts
) -> Floats:
    """Return E[s | t_n] of rows in continuous items and Θ, (n_rows, n_free)."""
    scores = np.zeros((jacobian.planes.shape[1], len(answers.levels)))
    if items.gaussians is not None:
        moments = rows.mean, rows.covariance
        of_forms = items.gaussians.score_rows(answers.values, answers.mask, *moments)
        scores += jacobian.continuous.T @ of_forms.T
    if rows.regression is not None:
        deviations = rows.mean - rows.regression.means
        of_theta = rows.regression.covariates[:, :, None] * deviations[:, None]
        scores += jacobian.theta.T @ of_theta.reshape(len(deviations), -1).T
    return np.asarray(scores.T)


def count_score_products(n_planes: Indices, n_free: int, n_nodes: int, q: int) -> int:
    """Return the work per row of `sum_scores` for levels, in multiplications."""
    n_levels = int(count_item_levels(n_planes).sum())
    if n_levels <= _MAX_NODE_LEVELS and (n_planes > 0).all():
        return n_nodes * n_levels**2
    n_points: int = _POINTS_PER_AXIS[q] ** q
    n_vectors = count_score_vectors(int(np.maximum(n_planes, 1).sum()), q, n_points)
    return n_vectors * n_free**2 + _PRODUCTS_PER_PROBABILITY * n_points * n_levels


class BlockScores(NamedTuple):
    """Sums over rows for many items; blocks of items follow each other in `list_form_places`.

    Attributes
    ----------
    curvature
        Curvature of the expected complete log-likelihood in the forms of each item, flat.
    item_variance
        Σ_n r_n Cov[s_i | t_n] of the scores in the forms of each item, flat.
    shared_variance
        Σ_n r_n Cov[Σ_i V_iᵀ s_i | t_n], (n_directions, n_directions).
    """

    curvature: Floats
    item_variance: Floats
    shared_variance: Floats


def list_form_places(n_planes: Indices, q: int) -> list[Indices]:
    """Return the places in v of each item's weights and offsets, (n_items, size) of items alike."""
    forms = [alike.planes for alike in iter_alike(n_planes)]
    n_continuous = int(np.count_nonzero(n_planes == 0))
    if n_continuous:
        forms.append(n_planes.sum() + np.arange(2 * n_continuous).reshape(-1, 2))
    return [place_forms(own, q + 1) for own in forms]


def sum_block_scores(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    posterior: RowPosterior,
    directions: Floats,
    row_weights: Floats | None = None,
) -> BlockScores:
    """Sum the information of each item, and along directions V that all items share.

    `directions` are V, (n_forms (q + 1), n_directions). Other parameters are as for `sum_scores`.
    """
    n, q = posterior.mean.shape
    weights, moments = np.ones(n) if row_weights is None else row_weights, posterior
    rows = _Rows(X, observed, moments.mean, moments.covariance, weights, None, None)
    places = list_form_places(items.n_planes, q)
    curvature, variance = (
        [np.zeros((len(own), own.shape[1], own.shape[1])) for own in places] for _ in range(2)
    )
    shared, V = np.zeros((directions.shape[1],) * 2), directions.astype(np.float32)
    for part in _iter_point_scores(rows, items, choose_point_rule(len(items.offsets), q)):
        for total, own in zip(variance, places, strict=True):
            is_all = own.size == part.deviations.shape[1]  # then they are in order
            values = part.deviations if is_all else part.deviations[:, own]
            by_item = values.reshape(-1, *own.shape).transpose(1, 2, 0)
            total += by_item @ by_item.swapaxes(1, 2)
        along = part.deviations @ V
        shared += along.T @ along
        own_curvatures = _iter_point_curvatures(items, part)
        for total, own_curvature in zip(curvature, own_curvatures, strict=False):
            total += own_curvature
    if items.gaussians is not None:
        answers = split_answers(X, observed, items)
        sums = sum_gaussian_moments(answers.values, answers.mask, *rows[2:5])
        curvature[-1] += sum_gaussian_curvature(items.gaussians, sums, is_expected=False)
    flat = [np.concatenate([own.reshape(-1) for own in total]) for total in (curvature, variance)]
    return BlockScores(flat[0], flat[1], shared)


class _PointScores(NamedTuple):
    """Scores of some rows in all forms and Θ, on points of their posteriors.

    Attributes
    ----------
    rows, levels
        The rows, and the indicators of their levels, (n_rows, n_levels).
    x, shares
        The points, (n_rows, n_points, q), and their shares of the posteriors, (n_rows, n_points).
    residual
        ∂ log P(t_n | x) / ∂η_j, (n_rows, n_forms, n_points).
    scores
        s_n, (n_rows, n_entries).
    deviations
        Vectors whose products sum to Cov[s(x) | t_n] of the rows times their weights, (n_vectors,
        n_entries).
    """

    rows: _Rows
    levels: Floats
    x: Floats
    shares: Floats
    residual: Floats
    scores: Singles
    deviations: Singles


def _iter_point_scores(rows: _Rows, items: LevelItems, rule: Nodes) -> Iterator[_PointScores]:
    """Yield all rows, some at a time."""
    n_planes, n_continuous = len(items.offsets), int(np.count_nonzero(items.n_planes == 0))
    polynomials = None
    if n_planes + n_continuous > SOME_FORMS:
        polynomials = _evaluate_polynomials(rule.points, _choose_degree(rule.points.shape[1]))
    size = (n_planes + len(items.n_planes)) * int(items.n_planes.max(initial=1))
    n_rows = max(1, _BATCH_ENTRIES // (len(rule.points) * size))
    for start in range(0, len(rows.mean), n_rows):
        check_cancelled()
        own = rows.take(slice(start, start + n_rows))
        answers = split_answers(own.X, own.observed, items)
        yield _score_on_points(own, answers, items, rule, polynomials)


def _score_on_points(
    own: _Rows, answers: RowAnswers, items: LevelItems, rule: Nodes, polynomials: Floats | None
) -> _PointScores:
    x = _place_points(rule, own.mean, own.covariance)
    residual, log_joint = differentiate_rows(answers.levels, items, x)
    if items.gaussians is not None:
        of_numbers = items.gaussians.differentiate_rows(answers.values, answers.mask, x)
        residual = np.concatenate([residual, of_numbers[0]], axis=1)
        log_joint = log_joint + of_numbers[1]
    centred = x if own.regression is None else x - own.regression.means[:, None]
    share = _compute_point_shares(log_joint, centred, rule)
    scores, deviations = _integrate_scores(residual, x, share, polynomials)
    if own.regression is not None:
        further = _integrate_regression(centred, share, polynomials, own.regression.covariates)
        scores = np.concatenate([scores, further[0]], axis=1)
        deviations = np.concatenate([deviations, further[1]], axis=2)
    deviations *= np.sqrt(own.weights).astype(np.float32)[:, None, None]
    vectors = deviations.reshape(-1, deviations.shape[2])
    singles = scores.astype(np.float32)
    return _PointScores(own, answers.levels, x, share, residual, singles, vectors)


def _iter_point_curvatures(items: LevelItems, part: _PointScores) -> Iterator[Floats]:
    """Yield minus the second derivatives of rows in the planes of items alike."""
    shares = part.shares * part.rows.weights[:, None]
    if _is_plain(items):  # much faster
        z = _extend_row_points(part.x)
        squares = shares[:, :, None, None] * z[:, :, :, None] * z[:, :, None]
        sigma = part.levels[:, 1::2, None] - part.residual  # 0 where missing
        slopes = (sigma * (1 - sigma)) @ squares.reshape(*shares.shape, -1)
        yield slopes.sum(axis=0).reshape(-1, z.shape[2], z.shape[2])
        return
    flat = shares.reshape(-1)
    counts = np.repeat(part.levels.T, shares.shape[1], axis=1) * flat
    by_plane = _accumulate_levels(counts, items.n_planes)
    for _, curvature in _iter_curvatures(items, part.x.reshape(len(flat), -1), *by_plane):
        yield curvature


def _extend_row_points(x: Floats) -> Floats:
    """Return (x, 1), (n_rows, n_points, q + 1)."""
    return np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)


def _integrate_scores(
    residual: Floats, x: Floats, share: Floats, polynomials: Floats | None
) -> tuple[Floats, Singles]:
    """Return s_n, (n_rows, n_entries), and vectors whose products sum to Cov[s(x) | t_n].

    The vectors, (n_rows, n_vectors, n_entries), are c_k of all polynomials but the constant one;
    without polynomials, (s(x) − s_n) √share of each point.
    """
    z = _extend_row_points(x)
    mean = residual @ (share[:, :, None] * z)
    if polynomials is None:
        scores = np.swapaxes(residual, 1, 2)[:, :, :, None].astype(np.float32)
        scores = scores * z[:, :, None].astype(np.float32)
        scores -= mean[:, None].astype(np.float32)
        scores *= np.sqrt(share).astype(np.float32)[:, :, None, None]
    else:
        factors = _orthonormalize(share, polynomials)[:, :, 1:, None] * z[:, :, None]
        products = residual @ factors.reshape(*share.shape, -1)
        products = products.reshape(*residual.shape[:2], -1, z.shape[2])
        scores = np.ascontiguousarray(products.swapaxes(1, 2), np.float32)
    return mean.reshape(len(mean), -1), scores.reshape(*scores.shape[:2], -1)


def _integrate_regression(
    centred: Floats, share: Floats, polynomials: Floats | None, covariates: Floats
) -> tuple[Floats, Singles]:
    """Return the same of the scores z (x − Θᵀz)ᵀ; `centred` is x − Θᵀz at the points."""
    mean = (share[:, None] @ centred)[:, 0]
    if polynomials is None:
        deviations = (centred - mean[:, None]) * np.sqrt(share)[:, :, None]
    else:
        factors = _orthonormalize(share, polynomials)[:, :, 1:]
        deviations = np.swapaxes(factors, 1, 2) @ centred
    z = covariates[:, :, None]
    products = z[:, None] * deviations[:, :, None]
    of_mean = (z * mean[:, None]).reshape(len(z), -1)
    return of_mean, products.reshape(*deviations.shape[:2], -1).astype(np.float32)


def _orthonormalize(share: Floats, polynomials: Floats) -> Floats:
    """Return polynomials that are orthonormal under each row's shares, times these shares."""
    weighted = share[:, :, None] * polynomials
    gram = np.swapaxes(weighted, 1, 2) @ polynomials
    root = np.linalg.cholesky(gram + _RIDGE * np.eye(gram.shape[1]))
    orthonormal: Floats = weighted @ np.swapaxes(np.linalg.inv(root), 1, 2)
    return orthonormal


def count_score_vectors(n_forms: int, q: int, n_points: int | None = None) -> int:
    """Return the number of vectors that represent the distribution of a row's scores.

    `n_points` are those of each row, by default of binary items.
    """
    if n_forms > SOME_FORMS:
        return len(_list_degrees(q, _choose_degree(q)))
    return n_points or len(choose_point_rule(n_forms, q).points)


def _list_degrees(q: int, degree: int) -> Indices:
    """Return the degree of each polynomial in each trait, (n_polynomials, q), 0 first."""
    degrees = np.array([d for d in np.ndindex(*[degree + 1] * q) if sum(d) <= degree])
    return degrees[np.argsort(degrees.sum(axis=1), kind="stable")]


def _evaluate_polynomials(points: Floats, degree: int) -> Floats:
    """Return products of Hermite polynomials, (n_points, n_polynomials).

    They are orthonormal under N(0, I), so nearly orthonormal under a row's posterior at its points.
    """
    degrees = _list_degrees(points.shape[1], degree)
    by_axis = hermevander(points, degree) / np.sqrt(factorial(np.arange(degree + 1)))
    product = np.ones((len(points), len(degrees)))
    for axis, own in enumerate(degrees.T):
        product *= by_axis[:, axis, own]
    return product


def choose_point_rule(n_forms: int, q: int) -> Nodes:
    """Return the points of each row for as many binary items, or planes of many items."""
    size = (n_forms > _FEW_FORMS) + (n_forms > SOME_FORMS)
    return make_hermite_nodes(_BINARY_POINTS_PER_AXIS[q][size], q)


def count_points(n_forms: int, q: int) -> int:
    """Return the number of points of each row, 0 with too many traits for any."""
    return len(choose_point_rule(n_forms, q).points) if q <= MAX_POINT_TRAITS else 0


def _choose_degree(q: int) -> int:
    """Return the degree of the polynomials, which is lower with three points per axis."""
    return min(_DEGREE, _BINARY_POINTS_PER_AXIS[q][-1] - 1)


def _choose_rule(items: LevelItems, q: int) -> Nodes:
    if _is_plain(items):
        return choose_point_rule(len(items.offsets), q)
    return gauss_hermite(_POINTS_PER_AXIS[q], q)


def _place_points(rule: Nodes, mean: Floats, covariance: Floats) -> Floats:
    """Return the points of each row, (n_rows, n_points, q)."""
    root = np.linalg.cholesky(covariance + _MIN_VARIANCE * np.eye(mean.shape[1]))
    points: Floats = mean[:, None] + rule.points @ np.swapaxes(root, 1, 2)
    return points


def _compute_point_shares(log_joint: Floats, x: Floats, rule: Nodes) -> Floats:
    """Return each point's share of the row's posterior, (n_rows, n_points)."""
    log_shares = log_joint - 0.5 * (x**2).sum(axis=2)
    log_shares += rule.log_weights + 0.5 * (rule.points**2).sum(axis=1)
    shares: Floats = scipy.special.softmax(log_shares, axis=1)
    return shares


def _iter_shares(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    nodes: Nodes,
    row_means: Floats | None,
) -> Iterator[tuple[slice, Floats]]:
    """Yield rows and their responsibilities, many rows at a time."""
    parts: list[Floats] = []
    start, n_rows = 0, min(_MAX_ROWS, _MAX_SHARES // len(nodes.points))
    for rows, shares in iter_responsibilities(X, observed, items, nodes, row_means):
        parts.append(shares)
        if rows.stop - start >= n_rows or rows.stop == len(X):
            yield slice(start, rows.stop), np.concatenate(parts)
            start = rows.stop
            parts.clear()


def _accumulate_levels(counts: Floats, n_planes: Indices) -> tuple[Floats, Floats]:
    """Return ones and mass of all planes, given the counts of the levels, (n_levels, n_nodes)."""
    ones, mass = np.zeros((2, int(n_planes.sum()), counts.shape[1]))
    for alike in iter_alike(n_planes):
        own = np.cumsum(counts[alike.levels][:, ::-1], axis=1)[:, ::-1]
        ones[alike.planes], mass[alike.planes] = own[:, 1:], own[:, :1]
    return ones, mass
