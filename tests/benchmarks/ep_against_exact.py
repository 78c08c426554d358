"""Expectation propagation against exact likelihoods in binary ICA.

python -m tests.benchmarks ep_against_exact

The first table shows mean absolute errors of the log-likelihood, in nats per row, at the true
parameters of `example:nonstationary` with 40 segments. `plain EP` is the value that a fit with
`likelihood=ep` maximises; `corrected EP` is the value that `log_likelihood` returns for models with
more than 20 features and more than 2 components.

The second table shows cosine similarities of the mixing matrices that both likelihoods estimate
from 1,000 rows per segment, 6 features and 6 components.
"""

import numpy as np

from flows.experiments.base import pack_rows_in_memory
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import BinaryICALikelihood
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, SegmentModel
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.orthant import log_orthant_probability
from pipeline.numerics.probit.probit_scores import ep_scores
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.benchmarks._measure import Table

SHAPES = ((6, 2), (6, 6), (10, 10), (20, 10))
SEGMENTS, ROWS, TOL = 40, 3, 3e-5
FITTED, FITTED_ROWS, SEEDS = 6, 1000, 2


def draw_example(n_features, n_components, rows, seed):
    """Return true parameters, and rows drawn with them, ordered by segment."""
    truth = draw_nonstationary_truth(n_features, n_components, SEGMENTS, seed)
    return truth, np.concatenate([batch.X for batch in draw_nonstationary_rows(truth, rows, seed)])


def measure_errors(n_features, n_components):
    """Return the errors of plain and of corrected EP for every row, shape (2, rows)."""
    truth, X = draw_example(n_features, n_components, ROWS, 0)
    errors = []
    for u, rows in enumerate(np.split(X, SEGMENTS)):
        weights, variances = PROBIT_SCALE * truth.mixing, truth.source_variances[u]
        offsets = weights @ truth.source_means[u]
        thresholds = -offsets / np.sqrt(1 + weights**2 @ variances)
        model = SegmentModel(
            weights, thresholds, truth.source_means[u], variances, np.full(n_features, 2)
        )
        exact = log_orthant_probability(
            rows, model.correlation(), thresholds, tol=TOL, max_points=1 << 17
        )
        scaled = weights * np.sqrt(variances)
        plain = ep_scores(rows, scaled, offsets).log_likelihood
        corrected = probit_posterior(rows, scaled, offsets).log_evidence
        errors.append(np.array([plain, corrected]) - exact.log_probability)
    return np.hstack(errors)


def fit_mixing(seed, likelihood):
    """Return the estimated and the true mixing."""
    truth, X = draw_example(FITTED, FITTED, FITTED_ROWS, seed)
    model = BinaryICALikelihood(FITTED, likelihood)
    state = fit_model(model, pack_rows_in_memory(X, SEGMENTS), SerialExecutor(), 0)
    return state.params.mixing, truth.mixing


def main():
    """Print both tables."""
    print("mean absolute error of the log-likelihood, nats per row")
    table = Table("features:d", "components:d", "plain EP:.1e", "corrected EP:.1e")
    for shape in SHAPES:
        table.add(*shape, *np.abs(measure_errors(*shape)).mean(axis=1))
    print(f"cosine similarity of the mixing, {FITTED} features and {FITTED} components")
    table = Table("seed:d", "EP, exact:.4f", "EP, truth:.4f", "exact, truth:.4f")
    for seed in range(SEEDS):
        (ep, truth), (exact, _) = fit_mixing(seed, "ep"), fit_mixing(seed, "exact")
        pairs = (ep, exact), (ep, truth), (exact, truth)
        table.add(seed, *(mean_cosine_similarity(*pair) for pair in pairs))


if __name__ == "__main__":
    main()
