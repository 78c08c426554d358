"""One trial of denoising: a model of clean rows gives back noisy ones, bit by bit.

As in M. Sugiyama, "Introduction to statistical machine learning", 2016, figures 36.11 and 36.15: a
model learns from clean images; of each further one a random tenth of the pixels is set to 1, then
another tenth to 0, and the codes of what comes of it are turned back into bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.experiments.binary_ica.trials import pack_rows_in_memory
from flows.experiments.linear_pca import fit_linear_pca
from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_reconstruct
from pipeline.numerics.metrics import MIN_PROBABILITY
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
BitScore = Callable[[Bits], Array]
"""Gives a number for each bit of rows: above a threshold it is the likelier to be 1."""

NOISE = 0.1
"""Share of a row's bits that are set to 1, and of those set to 0."""
_THRESHOLDS = np.linspace(0.05, 0.95, 91)
_N_STEPS = 10


class DenoisingTrial(NamedTuple):
    """What to fit and what to clean.

    Attributes
    ----------
    model
        The model; a number stands for linear PCA of so many components.
    train, test
        Clean rows to learn from, and others: (n_samples, n_features).
    noisy
        The test rows with noise, as `add_noise` gives them.
    seed
        Of the fit, and of the noise that linear PCA's threshold is chosen with.
    """

    model: Model | int
    train: Bits
    test: Bits
    noisy: Bits
    seed: int


class DenoisingResult(NamedTuple):
    """What a trial found.

    Attributes
    ----------
    wrong_bits
        Share of wrong bits among those that the noisy rows' codes are turned back into.
    wrong_bits_weighed
        The same where these are weighed against the noisy bits, by how often noise changes one.
    bits, weighed
        Both, (n_samples, n_features).
    """

    wrong_bits: float
    wrong_bits_weighed: float
    bits: Bits
    weighed: Bits


def add_noise(X: Bits, seed: int) -> Bits:
    """Set a random tenth of the bits of each row to 1, then another to 0."""
    rng, (n_rows, n_features) = np.random.default_rng(seed), X.shape
    n_set, noisy = round(NOISE * n_features), X.copy()
    order = rng.permuted(np.tile(np.arange(n_features), (n_rows, 1)), axis=1)
    np.put_along_axis(noisy, order[:, :n_set], 1, axis=1)
    np.put_along_axis(noisy, order[:, n_set : 2 * n_set], 0, axis=1)
    return noisy


def wrong_share(bits: Bits, clean: Bits) -> float:
    """Share of bits that differ."""
    return float((bits != clean).mean())


def run_denoising_trial(trial: DenoisingTrial) -> DenoisingResult:
    """Fit to clean rows in memory, and clean the noisy ones.

    Raises
    ------
    FitError
        If the rows cannot be fitted, or the model does not turn codes back into probabilities.
    """
    if isinstance(trial.model, int):
        bits, probabilities = _denoise_by_linear_pca(trial, trial.model)
    else:
        probabilities = _fit_reconstruction(trial, trial.model)
        bits = _cut_scores(probabilities(trial.noisy), 0.5)
    weighed = _weigh_noisy_bits(probabilities, trial.noisy)
    wrong, wrong_weighed = (wrong_share(found, trial.test) for found in (bits, weighed))
    return DenoisingResult(wrong, wrong_weighed, bits, weighed)


def _fit_reconstruction(trial: DenoisingTrial, model: Model) -> BitScore:
    """Give what turns rows to codes and these to P(x = 1)."""
    made = check_can_reconstruct(model)
    params = fit_model(
        model, pack_rows_in_memory(trial.train, 1), SerialExecutor(), trial.seed
    ).params

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            codes = model.transform(params, pack_block(X), RowRandom(trial.seed))["mean"]
            return made.reconstruct(params, codes)

    return probabilities


def _denoise_by_linear_pca(trial: DenoisingTrial, n_components: int) -> tuple[Bits, BitScore]:
    """Project on the leading components; cut where noisy training rows come back best."""
    counts = PairCounts.from_block(pack_block(trial.train), pooled=True)
    found = fit_linear_pca(counts, n_components)

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            return found.reconstruct(X, None, n_components)

    def projected(X: Bits) -> Array:
        with limit_blas_threads():
            return found.project(X, None, n_components)

    tried = projected(add_noise(trial.train, trial.seed + 1))
    wrong = [wrong_share(_cut_scores(tried, t), trial.train) for t in _THRESHOLDS]
    best = _THRESHOLDS[int(np.argmin(wrong))]
    return _cut_scores(projected(trial.noisy), best), probabilities


def _weigh_noisy_bits(probabilities: BitScore, noisy: Bits) -> Bits:
    """Find the likeliest bits given codes and noisy bits, and codes anew given bits, in turn.

    Iterated conditional modes (J. Besag, J. R. Stat. Soc. B 48, 1986): noise changes a bit of
    either value with probability `NOISE`, so a noisy bit has log-odds of ± log((1 − r) / r).
    """
    seen = np.log((1 - NOISE) / NOISE) * (2.0 * noisy - 1)
    bits = noisy
    for _ in range(_N_STEPS):
        p = np.clip(probabilities(bits), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        bits = _cut_scores(np.log(p) - np.log1p(-p) + seen, 0.0)
    return bits


def _cut_scores(scores: Array, threshold: float) -> Bits:
    bits: Bits = (scores > threshold).astype(np.uint8)
    return bits
