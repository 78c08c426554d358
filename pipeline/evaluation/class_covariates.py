"""Regress the classes of a fitted mixture on covariates, in the third of three steps.

Step 1 fits the classes without the covariates, and step 2 assigns every row to its most likely
class s, see `numerics.three_step`. In row n with covariates z_n, P(t) = π_nt = softmax_t(β_tᵀ z_n).
With D_ts = P(s | t), step 3 maximises (J. K. Vermunt, Political Analysis 18, 2010, equations 14 and
9)

    ml:   Σ_n w_n log Σ_t π_nt D_{t s_n},
    bch:  Σ_n w_n Σ_t (D⁻¹)_{s_n t} log π_nt,

and `none` takes D as the identity. The gradient is Σ_n w_n (r_n − π_n) ⊗ z_n in both, where r_nt is
P(t | s_n, z_n) in `ml` and (D⁻¹)_{s_n t} in `bch`. Standard errors are those of the sandwich; D
counts as known.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.covariates import Covariates
from pipeline.errors import FitError
from pipeline.evaluation.class_outcomes import (
    collect_classification_errors,
    compute_class_posterior,
)
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.bernoulli_mixture.class_regression import compute_log_odds_errors
from pipeline.numerics.three_step import Correction, check_classification_errors
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.sums import Sums

_MAX_PASSES = 100
_TOL = 1e-10  # nats per row that a step may still gain
_MAX_STEP = 3.0  # of a coefficient, with covariates of variance 1
_MAX_COEFFICIENT = 30.0


def regress_classes(
    subject: EvaluatedModel,
    rows: RowSource,
    covariates: Covariates,
    correction: Correction,
    reference: int,
    executor: Executor,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Estimate how the probabilities of the classes of a mixture depend on covariates.

    Parameters
    ----------
    subject
        The fitted mixture, without covariates.
    rows
        The rows with the covariates.
    covariates
        Their names, means and deviations.
    correction
        How to correct for wrong assignments.
    reference
        Index of the class that log-odds are against.
    executor, progress
        As for `collect_statistics`.

    Returns
    -------
    dict
        `names` of the intercept and the covariates; `coefficients` and `errors`, (n_predictors,
        n_classes), 0 in the reference class; `tests`, a Wald test of each column of covariates.

    Raises
    ------
    FitError
        If the classes cannot be separated, or a covariate predicts a class with certainty.
    """
    errors = collect_classification_errors(subject, rows, executor, progress)
    if correction == "none":
        errors = np.eye(len(errors))
    check_classification_errors(errors)
    n_classes, n_predictors = len(errors), 1 + len(covariates.names)
    beta = np.zeros((n_classes, n_predictors))
    free = np.delete(np.arange(n_classes), reference)
    places = (free[:, None] * n_predictors + np.arange(n_predictors)).ravel()
    best, last, step = -np.inf, beta, beta
    for _ in range(_MAX_PASSES):
        summarize = partial(_summarize_block, subject, covariates, errors, correction, beta)
        label = "classes by covariates"
        sums = collect_statistics(summarize, rows, executor, label, progress=progress)
        if sums.objective < best - 1e-9 * abs(best):
            step = step / 2
            beta = last + step
            continue
        best, last = sums.objective, beta
        gradient = sums.values["gradient"].ravel()[places]
        information = _take(sums.values["information"], places)
        direction = _solve(information, _take(sums.values["complete"], places), gradient)
        if 0.5 * gradient @ direction < _TOL * sums.weight:
            break
        direction *= min(1.0, _MAX_STEP / np.abs(direction).max())
        step = np.zeros(beta.shape)
        step.flat[places] = direction
        beta = beta + step
        if np.abs(beta).max() > _MAX_COEFFICIENT:
            break
    else:
        last = np.full(beta.shape, np.inf)
    if not np.abs(last).max() < _MAX_COEFFICIENT or np.abs(beta).max() > _MAX_COEFFICIENT:
        remedy = "Use {correction=ml}, or leave" if correction == "bch" else "Leave"
        raise FitError(
            f"{{covariates}}: coefficients of {', '.join(covariates.names)} grow without limit, as "
            f"if they determined a class. {remedy} out a covariate."
        )
    return _describe(covariates, reference, last, sums, places)


def _solve(information: Array, complete: Array, gradient: Array) -> Array:
    """Return the step of Newton, or where the objective is not concave, one that ascends."""
    for matrix in (information, complete):
        if np.linalg.eigvalsh(matrix)[0] > 1e-10 * np.trace(matrix):
            return np.asarray(np.linalg.solve(matrix, gradient))
    return np.asarray(np.linalg.lstsq(complete, gradient, rcond=None)[0])


def _take(matrix: Array, places: Any) -> Array:
    size = int(np.sqrt(matrix.size))
    return np.asarray(matrix.reshape(size, size)[np.ix_(places, places)])


def _summarize_block(
    subject: EvaluatedModel,
    covariates: Covariates,
    errors: Array,
    correction: Correction,
    beta: Array,
    block: BinaryBlock,
) -> Sums:
    assert block.covariates is not None
    assigned = compute_class_posterior(subject, block).argmax(axis=1)
    z = (block.covariates - np.array(covariates.means)) / np.array(covariates.deviations)
    predictors = np.column_stack([np.ones(len(z)), z])
    log_weights = scipy.special.log_softmax(predictors @ beta.T, axis=1)
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    squares = weights**2 if block.has_sampling_weights else weights
    own = np.exp(log_weights)
    spread: Array | float = 0.0
    if correction == "bch":
        r = np.linalg.inv(errors)[assigned]
        objective = weights @ (r * log_weights).sum(axis=1)
    else:
        joint = own * errors[:, assigned].T
        total = joint.sum(axis=1, keepdims=True)
        r = joint / total
        objective = weights @ np.log(total[:, 0])
        spread = _sum_curvature(r, predictors, weights)
    complete = _sum_curvature(own, predictors, weights)
    scores = ((r - own)[:, :, None] * predictors[:, None]).reshape(len(z), -1)
    values = {
        "gradient": weights @ scores,
        "complete": complete,
        "information": complete - spread,
        "products": (scores * squares[:, None]).T @ scores,
    }
    return Sums.from_block(block, float(objective), values)


def _sum_curvature(shares: Array, predictors: Array, weights: Array) -> Array:
    """Return Σ_n w_n (diag p_n − p_n p_nᵀ) ⊗ z_n z_nᵀ, (n_classes n_predictors,) twice."""
    n_rows, n_classes = shares.shape
    products = (shares[:, :, None] * predictors[:, None]).reshape(n_rows, -1)
    curvature = -(products * weights[:, None]).T @ products
    n = predictors.shape[1]
    for k in range(n_classes):
        own = slice(k * n, (k + 1) * n)
        curvature[own, own] += (predictors * (weights * shares[:, k])[:, None]).T @ predictors
    return curvature


def _describe(
    covariates: Covariates, reference: int, beta: Array, sums: Sums, places: Any
) -> dict[str, Any]:
    """Describe the coefficients of covariates as they are."""
    n_classes, n_predictors = beta.shape
    means, deviations = np.array(covariates.means), np.array(covariates.deviations)
    inverse = np.linalg.inv(_take(sums.values["information"], places))
    own = inverse @ _take(sums.values["products"], places) @ inverse
    flat = np.zeros((beta.size, beta.size))
    flat[np.ix_(places, places)] = own
    units = np.append(1.0, deviations)
    covariance = flat.reshape((n_classes, n_predictors) * 2) / units / units[:, None, None]
    slopes = beta[:, 1:] / deviations
    intercepts = beta[:, 0] - slopes @ means
    errors = compute_log_odds_errors(means, covariance)[:, reference]
    free, first, tests = np.delete(np.arange(n_classes), reference), 1, []
    for column in covariates.columns:
        names = column.coefficient_names
        chosen = slice(first, first + len(names))
        values = (beta / units)[free, chosen].ravel()
        block = covariance[free][:, chosen][:, :, free][..., chosen]
        chi2 = float(values @ np.linalg.solve(block.reshape((values.size,) * 2), values))
        p = float(scipy.special.chdtrc(values.size, chi2))
        tests.append({"column": column.name, "chi2": chi2, "df": values.size, "p": p})
        first += len(names)
    return {
        "names": ["(intercept)", *covariates.names],
        "reference": reference + 1,
        "coefficients": np.column_stack([intercepts, slopes]).T.tolist(),
        "errors": errors.T.tolist(),
        "tests": tests,
    }
