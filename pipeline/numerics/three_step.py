"""Outcomes of latent classes from the classes that rows were assigned to, corrected for errors.

Step 1 fits the classes without the outcome. Step 2 assigns every row to its most likely class s.
Step 3 relates the outcome y to the true class t. Assignments are wrong with known probabilities
D_ts = P(s | t), which are estimated from the posteriors of step 1:

    D_ts = Σ_n P(t | x_n) 1[s_n = s] / Σ_n P(t | x_n).

`none` compares assigned classes as if they were true; differences are then too small. `bch` weighs
each row by the inverse of D, so that row n counts (D⁻¹)_{s_n t} times in class t (A. Bolck, M.
Croon, J. Hagenaars, Political Analysis 12, 2004; J. K. Vermunt, Political Analysis 18, 2010).
`ml` maximises Σ_n log Σ_t π_t D_{t s_n} f_t(y_n) over π and the distribution f_t of the outcome in
each class (Vermunt 2010): any proportions, or a normal distribution.

Standard errors are those of the sandwich of step 3; D counts as known (Z. Bakk, D. L. Oberski,
J. K. Vermunt, Political Analysis 22, 2014, discuss what that leaves out).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.information import invert_information

Array = NDArray[np.float64]
Correction = Literal["bch", "ml", "none"]

_MAX_STEPS, _STEP_TOL = 20_000, 1e-9
_MIN_VARIANCE = 1e-6  # share of the variance in all rows
_MIN_PROPORTION = 1e-12
_MAX_CONDITION = 1e8
_SINGULAR_SHARE = 1e-10


class OutcomeTable(NamedTuple):
    """Values of an outcome, and the rows with each value by the class that they are assigned to.

    Attributes
    ----------
    values
        Distinct values, (n_values,).
    weights
        Sums of the weights of rows, (n_classes, n_values).
    squares
        Sums of what the squared scores of rows count: their weights or, if these are of a survey,
        their squares, (n_classes, n_values).
    """

    values: Array
    weights: Array
    squares: Array


class ClassEstimates(NamedTuple):
    """Means or proportions in each class.

    Attributes
    ----------
    sizes
        Share of the rows in each class, (n_classes,).
    estimates, covariance
        (n_classes, n_levels) and (n_classes n_levels, n_classes n_levels); there is one level for
        means.
    """

    sizes: Array
    estimates: Array
    covariance: Array

    @property
    def errors(self) -> Array:
        """Standard errors, (n_classes, n_levels)."""
        variances = np.maximum(np.diag(self.covariance), 0.0)
        return np.sqrt(variances).reshape(self.estimates.shape)


class EqualityTest(NamedTuple):
    """Wald test that all classes have equal means or proportions."""

    chi2: float
    df: int
    p: float


def compute_classification_errors(assigned: Array) -> Array:
    """Return D, (n_classes, n_classes), given Σ_n P(t | x_n) 1[s_n = s], also by t and s."""
    totals = assigned.sum(axis=1, keepdims=True)
    errors: Array = assigned / np.maximum(totals, np.finfo(float).tiny)
    return errors


def check_classification_errors(errors: Array) -> None:
    """Refuse classes that assignments do not tell apart."""
    if np.linalg.cond(errors) > _MAX_CONDITION:
        raise FitError(
            "Rows cannot be assigned to some of the classes: no row is most likely of them, or "
            "assignments do not depend on them. Fit fewer {components}, or use {correction=none}."
        )


def estimate_outcome(
    table: OutcomeTable, errors: Array, correction: Correction, is_categorical: bool
) -> ClassEstimates:
    """Estimate the means of an outcome, or the proportions of its values, in each class.

    Parameters
    ----------
    table
        The outcome.
    errors
        D, (n_classes, n_classes).
    correction
        How to correct for wrong assignments.
    is_categorical
        Whether to estimate the proportion of every value instead of the mean.

    Raises
    ------
    FitError
        If D cannot be inverted, or a class has no rows.
    """
    if correction == "none":
        errors = np.eye(len(errors))
    check_classification_errors(errors)
    first = _estimate_by_weights(table, errors, is_categorical)
    if correction != "ml":
        return first
    if is_categorical:
        return _maximise_proportions(table, errors, first)
    return _maximise_normals(table, errors, first)


def compare_classes(estimates: ClassEstimates) -> EqualityTest:
    """Test whether all classes have equal means or proportions."""
    n_classes, n_levels = estimates.estimates.shape
    n_free = max(n_levels - 1, 1)  # proportions add up to 1
    free = np.arange(n_classes * n_levels).reshape(n_classes, n_levels)[:, :n_free]
    contrasts = np.kron(np.eye(n_classes)[1:] - np.eye(n_classes)[:1], np.eye(n_free))
    differences = contrasts @ estimates.estimates[:, :n_free].ravel()
    block = estimates.covariance[np.ix_(free.ravel(), free.ravel())]
    values, vectors = scipy.linalg.eigh(contrasts @ block @ contrasts.T)
    is_known = values > _SINGULAR_SHARE * max(values.max(), 0.0)
    projected = vectors[:, is_known].T @ differences
    chi2, df = float((projected**2 / values[is_known]).sum()), int(is_known.sum())
    return EqualityTest(chi2, df, float(scipy.special.chdtrc(df, chi2)) if df else float("nan"))


def _list_functions(table: OutcomeTable, is_categorical: bool) -> Array:
    """Return the functions of the values whose means are estimated, (n_values, n_levels)."""
    return np.eye(len(table.values)) if is_categorical else table.values[:, None]


def _estimate_by_weights(
    table: OutcomeTable, errors: Array, is_categorical: bool
) -> ClassEstimates:
    """Weigh rows by D⁻¹; the estimates solve Σ_n (D⁻¹)_{s_n t} (y_n − μ_t) = 0."""
    inverse, functions = np.linalg.inv(errors), _list_functions(table, is_categorical)
    totals = inverse.T @ table.weights
    sizes = totals.sum(axis=1)
    if (empty := np.flatnonzero(sizes <= 0)).size:
        raise FitError(
            f"Class {empty[0] + 1} has no rows with this outcome. Fit fewer {{components}}."
        )
    estimates = totals @ functions / sizes[:, None]
    n_classes, n_levels = estimates.shape
    covariance = np.zeros((n_classes, n_levels, n_classes, n_levels))
    for own_inverse, squares in zip(inverse, table.squares, strict=True):
        factors = own_inverse / sizes
        scores = factors[:, None] * (functions[:, None] - estimates)  # (n_values, classes, levels)
        flat = scores.reshape(len(functions), -1)
        covariance += ((flat * squares[:, None]).T @ flat).reshape(covariance.shape)
    size = n_classes * n_levels
    return ClassEstimates(sizes / sizes.sum(), estimates, covariance.reshape(size, size))


class _Normals(NamedTuple):
    mean: Array  # (n_classes,)
    variance: Array  # (n_classes,)


def _compute_posteriors(errors: Array, sizes: Array, log_density: Array) -> NDArray[np.float64]:
    """Return P(t | s, y), (n_assigned, n_values, n_classes), given log f_t(y), (n_values, K)."""
    with np.errstate(divide="ignore"):
        scores = np.log(errors.T * sizes)[:, None] + log_density
    return np.asarray(scipy.special.softmax(scores, axis=2))


def _maximise_proportions(
    table: OutcomeTable, errors: Array, start: ClassEstimates
) -> ClassEstimates:
    sizes = np.clip(start.sizes, _MIN_PROPORTION, None)
    proportions = np.clip(start.estimates, 1e-3, None)
    proportions /= proportions.sum(axis=1, keepdims=True)
    for _ in range(_MAX_STEPS):
        posterior = _compute_posteriors(errors, sizes, np.log(proportions).T)
        totals = np.einsum("svt,sv->tv", posterior, table.weights)
        last, sizes = proportions, totals.sum(axis=1) / totals.sum()
        proportions = totals / totals.sum(axis=1, keepdims=True)
        proportions = np.maximum(proportions, _MIN_PROPORTION)
        if np.abs(proportions - last).max() < _STEP_TOL:
            break
    n_values = len(table.values)
    # The score of class t in the logits of its proportions is 1[y = v] − θ_tv.
    scores = np.eye(n_values)[:, None] - proportions
    curvatures = np.stack([np.diag(own) - np.outer(own, own) for own in proportions])
    covariance = _compute_sandwich(table, errors, sizes, np.log(proportions).T, scores, curvatures)
    jacobian = scipy.linalg.block_diag(*curvatures)
    return ClassEstimates(sizes, proportions, jacobian @ covariance @ jacobian)


def _maximise_normals(table: OutcomeTable, errors: Array, start: ClassEstimates) -> ClassEstimates:
    values, n_classes = table.values, len(errors)
    by_value = table.weights.sum(axis=0)
    centre = by_value @ values / by_value.sum()
    spread = by_value @ (values - centre) ** 2 / by_value.sum()
    sizes = np.clip(start.sizes, _MIN_PROPORTION, None)
    normals = _Normals(start.estimates[:, 0], np.full(n_classes, spread))
    scale = np.sqrt(spread) if spread > 0 else 1.0
    for _ in range(_MAX_STEPS if spread > 0 else 0):
        posterior = _compute_posteriors(errors, sizes, _log_density(values, normals))
        totals = np.einsum("svt,sv->tv", posterior, table.weights)
        mass, last = totals.sum(axis=1), normals
        mean = totals @ values / mass
        variance = (totals * (values - mean[:, None]) ** 2).sum(axis=1) / mass
        normals = _Normals(mean, np.maximum(variance, _MIN_VARIANCE * spread))
        sizes = mass / mass.sum()
        change = np.abs(mean - last.mean).max() / scale
        if max(change, np.abs(normals.variance - last.variance).max() / spread) < _STEP_TOL:
            break
    if spread == 0:
        return start
    residuals = (values[:, None] - normals.mean) / np.sqrt(normals.variance)
    # Scores and curvature in the mean, in units of the standard deviation, and in its logarithm.
    scores = np.stack([residuals, residuals**2 - 1], axis=2)
    curvatures = np.tile(np.diag([1.0, 2.0]), (n_classes, 1, 1))
    density = _log_density(values, normals)
    covariance = _compute_sandwich(table, errors, sizes, density, scores, curvatures)
    deviations = np.sqrt(normals.variance)
    means = covariance[::2, ::2] * np.outer(deviations, deviations)
    return ClassEstimates(sizes, normals.mean[:, None], means)


def _log_density(values: Array, normals: _Normals) -> Array:
    """Return log f_t(y) up to a constant, (n_values, n_classes)."""
    residuals = (values[:, None] - normals.mean) ** 2 / normals.variance
    density: Array = -0.5 * (residuals + np.log(normals.variance))
    return density


def _compute_sandwich(
    table: OutcomeTable,
    errors: Array,
    sizes: Array,
    log_density: Array,
    scores: Array,
    curvatures: Array,
) -> Array:
    """Return the covariance of the parameters of all classes, those of π left out.

    `scores` are those of a row of class t, (n_values, n_classes, q), and `curvatures` the expected
    information of such a row, (n_classes, q, q). Louis' formula gives the information of all rows.
    """
    n_classes, q = curvatures.shape[:2]
    width = q + 1
    posterior = _compute_posteriors(errors, sizes, log_density)
    full = np.concatenate([np.ones((len(table.values), n_classes, 1)), scores], axis=2)
    information = np.zeros((n_classes * width,) * 2)
    products = np.zeros_like(information)
    spread = np.zeros((n_classes, width, width))
    mass = np.zeros(n_classes)
    for own, weights, squares in zip(posterior, table.weights, table.squares, strict=True):
        expected = own[:, :, None] * full
        weighted = weights[:, None, None] * expected
        spread += np.einsum("vta,vtb->tab", weighted, full)
        flat = expected.reshape(len(own), -1)
        information += (flat * weights[:, None]).T @ flat
        mass += weights @ own
        expected[:, :, 0] -= sizes
        flat = expected.reshape(len(own), -1)
        products += (flat * squares[:, None]).T @ flat
    information -= scipy.linalg.block_diag(*spread)
    places = np.arange(n_classes * width).reshape(n_classes, width)
    total = mass.sum()
    information[np.ix_(places[:, 0], places[:, 0])] += total * (
        np.diag(sizes) - np.outer(sizes, sizes)
    )
    for own_places, own_mass, curvature in zip(places[:, 1:], mass, curvatures, strict=True):
        information[np.ix_(own_places, own_places)] += own_mass * curvature
    values, vectors = np.linalg.eigh(curvatures.sum(axis=0))
    directions = _list_directions(n_classes, vectors[:, values > 1e-9 * values.max()])
    inverse = invert_information(information, directions).covariance
    covariance = inverse @ products @ inverse
    own_places = places[:, 1:].ravel()
    return np.asarray(covariance[np.ix_(own_places, own_places)])


def _list_directions(n_classes: int, basis: Array) -> Array:
    """Return the directions that change something: not equal logits of all levels or classes."""
    sizes = scipy.linalg.null_space(np.ones((1, n_classes)))
    q, width = basis.shape[0], basis.shape[0] + 1
    directions = np.zeros((n_classes, width, sizes.shape[1] + n_classes * basis.shape[1]))
    directions[:, 0, : sizes.shape[1]] = sizes
    for k in range(n_classes):
        first = sizes.shape[1] + k * basis.shape[1]
        directions[k, 1 : 1 + q, first : first + basis.shape[1]] = basis
    return directions.reshape(n_classes * width, -1)
