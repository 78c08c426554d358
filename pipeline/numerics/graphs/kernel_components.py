"""The Gaussian kernel of binary rows from packed bits, and principal components in its space.

k(x, y) = exp(−d(x, y) / 2 h²), where d is ‖x − y‖², the number of features that differ. With
missing values, d is the differing share of the features observed in both, times the number of
features; k is 0 if no feature is observed in both.

Components of all rows: B. Schölkopf, A. Smola, K.-R. Müller, "Nonlinear component analysis as a
kernel eigenvalue problem", Neural Computation 10 (1998); M. Sugiyama, "Introduction to Statistical
Machine Learning" (2016), 36.1.1. By landmarks: C. Williams, M. Seeger, "Using the Nyström method to
speed up kernel machines", NIPS 2000. In both cases the code of a row x is
Σ_l k(x, l) directions_l − offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import enter_stage, label_map, plan_stages
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.graphs.neighbours import (
    STRIP,
    count_differences,
    count_observed,
    divide_counts,
    pad_rows,
)
from pipeline.numerics.intrinsics import allocate_aligned
from pipeline.numerics.spectra.linalg import FULL_SOLVER, fix_signs, leading_eigenpairs

Array = NDArray[np.float64]
Words = NDArray[np.uint64]
Counts = NDArray[np.int64]

_CELLS_AT_ONCE = 1 << 20
_ROWS_PER_TASK = 4096
_MIN_EIGENVALUE_SHARE = 1e-10
"""Minimum eigenvalue relative to the largest; smaller ones are rounding errors."""

_kernel = njit(nogil=True, cache=True)


def compute_squared_distances(left: BitRows, right: BitRows) -> Array:
    """Return d of every pair, (n_left, n_right); infinite if no feature is observed in both."""
    return _look_up_pairs(left, right, np.arange(left.n_features + 1.0))


def gaussian_kernel(left: BitRows, right: BitRows, width: float) -> Array:
    """Return k of every pair, (n_left, n_right), for a width h."""
    values = _look_up_pairs(left, right, _kernel_by_count(left.n_features, width))
    if left.observed is None and right.observed is None:
        return values
    values *= -0.5 / width**2
    return np.exp(values, out=values)


def multiply_kernel(left: BitRows, right: BitRows, width: float, columns: Array) -> Array:
    """Multiply the matrix of k by columns, (n_right, n); return (n_left, n).

    Rows are summed separately, so that a row's result does not depend on the other rows.
    """
    product = np.zeros((left.n_rows, columns.shape[1]))
    step = max(1, _CELLS_AT_ONCE // max(1, len(columns)))
    for start in range(0, left.n_rows, step):
        rows = slice(start, start + step)
        _add_products(gaussian_kernel(left.take(rows), right, width), columns, product[rows])
    return product


def multiply_kernel_by_vector(left: BitRows, right: BitRows, width: float, vector: Array) -> Array:
    """Multiply the matrix of k by a vector, (n_right,), without storing it; return (n_left,)."""
    product = np.zeros(left.n_rows)
    if left.observed is None and right.observed is None:
        own, others = (np.ascontiguousarray(side.words) for side in (left, right))
        _add_kernel_products(own, others, _kernel_by_count(left.n_features, width), vector, product)
        return product
    step = max(1, _CELLS_AT_ONCE // max(1, right.n_rows))
    for start in range(0, left.n_rows, step):
        rows = slice(start, start + step)
        product[rows] = gaussian_kernel(left.take(rows), right, width) @ vector
    return product


def _kernel_by_count(n_features: int, width: float) -> Array:
    """Return k by the number of features that differ, (n_features + 1,)."""
    return np.exp(-0.5 / width**2 * np.arange(n_features + 1.0))


def _look_up_pairs(left: BitRows, right: BitRows, by_count: Array) -> Array:
    """Look up the value for each pair's number of differences; with missing values, return d."""
    values = np.empty((left.n_rows, right.n_rows))
    own, others = (np.ascontiguousarray(side.words) for side in (left, right))
    if left.observed is None and right.observed is None:
        _fill_by_count(own, others, by_count, values)
    else:
        masks = [np.ascontiguousarray(side.mask) for side in (left, right)]
        _fill_observed(own, masks[0], others, masks[1], left.n_features, values)
    return values


@_kernel
def _fill_by_count(own: Words, others: Words, by_count: Array, values: Array) -> None:
    n_rows, n_others = values.shape
    own = pad_rows(own, n_rows)
    counts = allocate_aligned(STRIP)
    for start in range(0, n_others, STRIP):
        strip = pad_rows(others[:, start : start + STRIP], STRIP)
        for i in range(n_rows):
            count_differences(own, i, strip, counts)
            for j in range(min(STRIP, n_others - start)):
                values[i, start + j] = by_count[counts[j]]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _add_kernel_products(
    own: Words, others: Words, by_count: Array, vector: Array, product: Array
) -> None:
    """Add the vector's products with each row's values, which are looked up by counts."""
    n_rows = len(product)
    own = pad_rows(own, n_rows)
    counts = allocate_aligned(STRIP)
    for start in range(0, len(vector), STRIP):
        strip = pad_rows(others[:, start : start + STRIP], STRIP)
        factors = vector[start : start + STRIP]
        for i in range(n_rows):
            count_differences(own, i, strip, counts)
            total = 0.0
            for j in range(len(factors)):
                total += by_count[counts[j]] * factors[j]
            product[i] += total


@_kernel
def _fill_observed(
    own: Words, own_mask: Words, others: Words, other_masks: Words, n_features: int, values: Array
) -> None:
    n_rows, n_others = values.shape
    own, own_mask = pad_rows(own, n_rows), pad_rows(own_mask, n_rows)
    counts = allocate_aligned(3 * STRIP).reshape(3, STRIP)
    distances = allocate_aligned(STRIP).view(np.float64)
    for start in range(0, n_others, STRIP):
        span = slice(start, start + STRIP)
        strip, strip_mask = pad_rows(others[:, span], STRIP), pad_rows(other_masks[:, span], STRIP)
        for i in range(n_rows):
            count_observed(False, own, own_mask, i, strip, strip_mask, counts)
            divide_counts(np.float64(n_features), counts, distances)
            for j in range(start, min(start + STRIP, n_others)):  # as in `pad_rows`
                values[i, j] = distances[j - start]


@_kernel
def _add_products(kernel: Array, columns: Array, product: Array) -> None:
    for i in range(len(kernel)):
        for j in range(len(columns)):
            for c in range(columns.shape[1]):
                product[i, c] += kernel[i, j] * columns[j, c]


class KernelComponents(NamedTuple):
    """Leading principal components.

    Attributes
    ----------
    eigenvalues
        Eigenvalues of the centred kernel matrix of all rows, falling, (n_components,): sums of
        squared codes.
    directions
        Weights of the rows or landmarks in each component, (n_rows or n_landmarks, n_components).
    offsets
        Offsets that centre the codes, (n_components,).
    """

    eigenvalues: Array
    directions: Array
    offsets: Array


class KernelSums(NamedTuple):
    """Sums over rows x of the kernel with landmarks l."""

    n_rows: int
    # Σ k(x, l), (n_landmarks,), and Σ k(x, l) k(x, l'), (n_landmarks, n_landmarks).
    sums: Array
    products: Array

    @property
    def mean(self) -> Array:
        """Mean of k(x, l), (n_landmarks,)."""
        return self.sums / self.n_rows

    @property
    def scatter(self) -> Array:
        """Σ of products of deviations from the mean, (n_landmarks, n_landmarks)."""
        return self.products - np.outer(self.sums, self.mean)

    def take(self, part: slice) -> KernelSums:
        """Select landmarks."""
        return KernelSums(self.n_rows, self.sums[part], self.products[part, part])


def sum_kernel(rows: BitRows, landmarks: BitRows, width: float) -> KernelSums:
    """Sum the kernel of rows with landmarks, and its products."""
    n, m = rows.n_rows, landmarks.n_rows
    sums, products = np.zeros(m), np.zeros((m, m), order="F")
    step = max(1, _CELLS_AT_ONCE // m)
    for start in range(0, n, step):
        kernel = gaussian_kernel(rows.take(slice(start, start + step)), landmarks, width)
        sums += kernel.sum(axis=0)
        # The product is symmetric: dsyrk computes only half of it.
        products = dsyrk(1.0, kernel.T, c=products, beta=1.0, overwrite_c=1)
    return KernelSums(n, sums, np.triu(products) + np.triu(products, 1).T)


class KernelDecomposition(NamedTuple):
    """Components, and the total variance.

    `total` is the trace of the centred kernel matrix of all rows. `lost_share` is the share of the
    kernel matrix's trace outside the span of the landmarks; 0 without landmarks.
    """

    components: KernelComponents
    total: float
    lost_share: float = 0.0


def decompose_rows(
    rows: BitRows, times: Counts, width: float, n_leading: int, map_items: MapFunction
) -> KernelDecomposition:
    """Find up to `n_leading` components, given the distinct rows and their counts.

    S H K Hᵀ S, where S is the diagonal of the square roots of the counts, has the eigenvalues of
    the centred matrix of all rows. For many rows the matrix is not stored: its products are mapped
    over ranges of rows. Each row must have an observed value.
    """
    n, roots, shares = len(times), np.sqrt(times), times / times.sum()
    if n <= FULL_SOLVER:
        kernel = gaussian_kernel(rows, rows, width)
        mean = kernel @ shares
        centred = kernel - mean - mean[:, None] + shares @ mean
        values, vectors = leading_eigenpairs(roots[:, None] * centred * roots, n_leading)
    else:
        map_products = enter_stage(plan_stages(map_items, ["eigenvectors"]), "eigenvectors")
        product = partial(_multiply_kernel_matrix, rows, width, map_products)
        mean = product(shares)

        def multiply_centred(vector: Array) -> Array:
            v = roots * vector.ravel()
            image = product(v)
            image -= shares @ image + (mean - shares @ mean) * v.sum()
            return np.asarray(roots * image)

        values, vectors = _lanczos_eigenpairs(multiply_centred, n, n_leading)
    places = _significant_places(values, n_leading)
    duals = roots[:, None] * vectors[:, places] / np.sqrt(values[places])
    total = float(times.sum() * (1.0 - shares @ mean))
    return KernelDecomposition(_orient_components(values[places], duals, mean), total)


def _multiply_kernel_matrix(
    rows: BitRows, width: float, map_items: MapFunction, vector: Array
) -> Array:
    task = partial(_multiply_kernel_part, rows, width, vector)
    starts = range(0, rows.n_rows, _ROWS_PER_TASK)
    return np.concatenate([*label_map(map_items, "", len(starts))(task, starts)])


def _multiply_kernel_part(rows: BitRows, width: float, vector: Array, start: int) -> Array:
    part = rows.take(slice(start, start + _ROWS_PER_TASK))
    return multiply_kernel_by_vector(part, rows, width, vector)


def _lanczos_eigenpairs(
    times_vector: Callable[[Array], Array], n: int, n_leading: int
) -> tuple[Array, Array]:
    """Compute leading eigenpairs by Lanczos, largest first."""
    # A fixed generator of start vectors makes the result reproducible.
    rng = np.random.default_rng(0)
    operator = scipy.sparse.linalg.LinearOperator((n, n), times_vector, dtype=np.float64)
    try:
        values, vectors = scipy.sparse.linalg.eigsh(operator, n_leading, which="LA", rng=rng)
    except scipy.sparse.linalg.ArpackNoConvergence as error:
        raise FitError(
            f"Only {len(error.eigenvalues)} of {n_leading} eigenvectors of the kernel converged. "
            "Choose fewer {components} or another {width}.",
            parameter="components",
        ) from error
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def _significant_places(values: Array, n_leading: int) -> Counts:
    """Return the places of the leading eigenvalues above rounding."""
    return np.flatnonzero(values > _MIN_EIGENVALUE_SHARE * values[0])[:n_leading]


def _orient_components(values: Array, directions: Array, mean: Array) -> KernelComponents:
    directions = fix_signs(directions)
    return KernelComponents(values, directions, mean @ directions)


def decompose_landmarks(
    landmarks: BitRows, width: float, sums: KernelSums, n_leading: int
) -> KernelDecomposition:
    """Find up to `n_leading` components in the space of distinct landmarks, from all rows' sums."""
    values, vectors = scipy.linalg.eigh(gaussian_kernel(landmarks, landmarks, width))
    spanned = values > _MIN_EIGENVALUE_SHARE * values[-1]
    basis = vectors[:, spanned] / np.sqrt(values[spanned])
    scatter = basis.T @ sums.scatter @ basis
    inner, rotated = leading_eigenpairs((scatter + scatter.T) / 2, n_leading)
    places = _significant_places(inner, n_leading)
    components = _orient_components(inner[places], basis @ rotated[:, places], sums.mean)
    span = float(np.einsum("lk,lm,mk->", basis, sums.products, basis, optimize=True))
    outside = max(0.0, sums.n_rows - span)
    return KernelDecomposition(
        components, float(np.trace(scatter)) + outside, outside / sums.n_rows
    )


def choose_landmarks(
    rows: BitRows, times: Counts, width: float, n_landmarks: int, rng: np.random.Generator
) -> Counts:
    """Choose landmarks by k-means++ in the space of the kernel.

    D. Oglic, T. Gärtner, "Nyström method with kernel k-means++ samples as landmarks", ICML 2017.

    `rows` are distinct, with the counts `times`. A row's chance is its count times its squared
    distance to the nearest landmark drawn before. Fewer than `n_landmarks` are chosen if all other
    rows coincide with them. Return the places of the landmarks in drawing order, (n_chosen,).
    """
    chosen: list[int] = []
    separations = np.ones(len(times))  # squared distance to the nearest landmark, 2 − 2 k, halved
    while len(chosen) < n_landmarks and (chances := times * separations).any():
        place = int(rng.choice(len(times), p=chances / chances.sum()))
        chosen.append(place)
        kernel = gaussian_kernel(rows.take(slice(place, place + 1)), rows, width)
        separations = np.minimum(separations, 1.0 - kernel[0])
    return np.array(chosen, np.int64)


def half_agreement(
    full: KernelComponents, landmarks: BitRows, width: float, sums: KernelSums, n_components: int
) -> float:
    """Measure how well the first half of the landmarks reproduces the leading codes.

    This is the mean squared canonical correlation between codes by all landmarks and codes by the
    first half; 1 if they span the same space.
    """
    first = slice(-(-landmarks.n_rows // 2))
    half_sums = sums.take(first)
    half = decompose_landmarks(landmarks.take(first), width, half_sums, n_components).components
    a, b = (
        c.directions[:, :n_components] / np.sqrt(c.eigenvalues[:n_components]) for c in (full, half)
    )
    return float(np.square(a.T @ sums.scatter[:, first] @ b).sum() / a.shape[1])
