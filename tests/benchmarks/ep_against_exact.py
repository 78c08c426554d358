"""How far expectation propagation is off in binary ICA: log-likelihoods of rows, and the mixing.

python -m tests.benchmarks.ep_against_exact

Rows of 40 segments of `example:nonstationary`, at the true parameters: mean absolute error in nats
a row of what a fit climbs, and of what `log_likelihood` gives where it does not integrate. Then
fits to 1,000 rows a segment of 6 features and 6 components by either likelihood, how alike their
mixings are, and how alike each is to the truth.
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

SHAPES = ((6, 2), (6, 6), (10, 10), (20, 10))
SEGMENTS, ROWS, TOL = 40, 3, 3e-5
FITTED, FITTED_ROWS, SEEDS = 6, 1000, 2


def drawn(n_features, n_components, rows, seed):
    """Give a true model, and rows of it, segment by segment."""
    truth = draw_nonstationary_truth(n_features, n_components, SEGMENTS, seed)
    return truth, np.concatenate([batch.X for batch in draw_nonstationary_rows(truth, rows, seed)])


def errors(n_features, n_components):
    """Of every row: what is climbed, what `log_likelihood` gives, each less the exact one."""
    truth, X = drawn(n_features, n_components, ROWS, 0)
    found = []
    for u, rows in enumerate(np.split(X, SEGMENTS)):
        weights, variances = PROBIT_SCALE * truth.mixing, truth.source_variances[u]
        offsets = weights @ truth.source_means[u]
        thresholds = -offsets / np.sqrt(1 + weights**2 @ variances)
        model = SegmentModel(weights, thresholds, truth.source_means[u], variances)
        exact = log_orthant_probability(
            rows, model.correlation(), thresholds, tol=TOL, max_points=1 << 17
        )
        scaled, zero = weights * np.sqrt(variances), np.zeros(n_components)
        raw = ep_scores(rows, scaled, offsets).log_likelihood
        corrected = probit_posterior(rows, scaled, offsets, zero, zero + 1).log_evidence
        found.append(np.array([raw, corrected]) - exact.log_probability)
    return np.hstack(found)


def fitted(seed, likelihood):
    """Give the mixing of a fit, and the true one."""
    truth, X = drawn(FITTED, FITTED, FITTED_ROWS, seed)
    model = BinaryICALikelihood(FITTED, likelihood)
    done = fit_model(model, pack_rows_in_memory(X, SEGMENTS), SerialExecutor(), 0)
    return done.params.mixing, truth.mixing


def main():
    """Print both."""
    print("features, components: mean absolute error in nats a row, climbed and given")
    for shape in SHAPES:
        climbed, given = np.abs(errors(*shape)).mean(axis=1)
        print(f"{shape[0]:3}, {shape[1]:2}: {climbed:.1e} {given:.1e}", flush=True)
    print(f"mixing of {FITTED} features, cosine similarities: the two; ep, exact and the truth")
    for seed in range(SEEDS):
        (ep, truth), (exact, _) = fitted(seed, "ep"), fitted(seed, "exact")
        pairs = (ep, exact), (ep, truth), (exact, truth)
        print(*(f"{mean_cosine_similarity(*pair):.4f}" for pair in pairs), flush=True)


if __name__ == "__main__":
    main()
