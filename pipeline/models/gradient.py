"""Base class of models that learn by gradient steps on batches, and tools for layered networks.

`pipeline.learning.training` describes the steps and how passes are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from pipeline.arrays import Array, Singles
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.convergence import ConvergenceCriterion
from pipeline.learning.training import (
    Arrays,
    GradientLearner,
    GradientTraining,
    compute_finite_score,
)
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import FitState
from pipeline.numerics.logistic.logistic_units import fill_draws, row_states
from pipeline.numerics.networks.gradient_steps import apply_centred_step
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    flatten_layers,
    negative_cross_entropies,
    negative_squared_errors,
    propagate_down,
    propagate_up,
    split_into_layers,
)
from pipeline.numerics.spectra.low_rank import find_low_rank_fits
from pipeline.random import RowRandom
from pipeline.statistics.pair_moments import PairMoments
from pipeline.statistics.sums import StepSums

Corruption = Literal["none", "flip", "mask"]
FillGradient = Callable[[TrainingBatch, Layers, Layers], tuple[Singles, Singles] | None]
"""Function of a batch, layers, and their gradient summed over rows, which it fills in.

If the gradient of a single layer is centred, the function returns the means below and above.
"""

DEFAULT_RATES = {"adam": 0.03, "momentum": 0.1}
"""Default initial learning rate for reconstruction losses, by optimizer."""
CONTRASTIVE_RATES = {"adam": 0.01, "momentum": 0.05}
"""Default initial learning rate for contrastive divergence, by optimizer."""
_MAX_FACTORS = 4  # that weights start from
_FACTOR_STARTS = 8  # random starts of one factor; half as many of two, since these take longer
_LEAST_NOISE = 0.1  # for features that no factor explains
_STEEPNESS = 4.0  # the slope of a sigmoid is ¼; with flatter curves, signals fade between layers


@dataclass(frozen=True)
class GradientModel(Model):
    """Settings and central step of models that learn by gradient steps.

    A subclass implements `initialize` (see `_make_initial_state`), `learn`, `transform`, and the
    two hooks `_score_scale` and `_diagnose`.

    Attributes
    ----------
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if the
        objective is above 1.
    """

    statistics: ClassVar[type[StepSums]] = StepSums
    default_rates: ClassVar[Mapping[str, float]]
    """Initial learning rate by optimizer, used if `rate` is None."""
    n_components: int | None = None
    _: KW_ONLY
    batch: int | None = setting(None, minimum=1)
    rate: float | None = setting(None, above=0)
    optimizer: Literal["adam", "momentum"] = "adam"
    momentum: float = setting(0.9, minimum=0, below=1)
    patience: int = setting(20, minimum=1)
    max_iter: int = setting(100, minimum=1)
    tol: float = setting(1e-5, above=0, below=1)

    @property
    def _training(self) -> GradientTraining:
        return GradientTraining.from_model(self, self.default_rates)

    def _get_stage_training(self, state: FitState) -> GradientTraining:
        """Return how steps are taken in the current stage."""
        return self._training

    def _make_initial_state(
        self,
        params: Any,
        n_samples: int,
        n_numbers: int,
        baseline_score: float,
        warnings: tuple[FitWarning, ...],
    ) -> FitState:
        """Return the state before the first pass, in which steps learn `n_numbers` values.

        `baseline_score` is the score per row before anything is learned, in nats; it is stored as
        `working["unlearnt"]`.
        """
        working = self._training.make_working_state(n_samples, n_numbers)
        return FitState(
            params, {**working, "unlearnt": np.array(baseline_score)}, warnings=warnings
        )

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Return a criterion that stops after `patience` passes without improvement."""
        training = self._get_stage_training(state)
        return training.get_convergence_criterion(float(state.working["unlearnt"]))

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Apply the mean change of all tasks, or return to the best pass; reduce the rate."""
        change, working = self._get_stage_training(state).compute_mean_change(
            state, statistics, float(state.working["unlearnt"])
        )
        params = state.best if change is None else self._move_params(state, change)
        return replace(state, params=params, working=working)

    def _move_params(self, state: FitState, change: Any) -> Any:
        """Return the parameters plus a change of all learned values."""
        return state.params.add_change(change)

    def objective(self, params: Any, statistics: Any) -> float:
        """Return the mean score of a held-out row, nats."""
        return compute_finite_score(statistics, self._score_scale(params))

    def _score_scale(self, params: Any) -> float:
        """Return a typical score per row; scores that are not finite are set far below it."""
        raise NotImplementedError

    def finish(self, state: FitState, statistics: Any) -> FitState:
        """Add the diagnostics, and a warning if the learning rate was too high."""
        return replace(self._add_training_warnings(state), diagnostics=self._diagnose(state))

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        """Return the diagnostics of a finished fit: at least `n_components` and `objective_is`."""
        raise NotImplementedError

    def _add_training_warnings(self, state: FitState) -> FitState:
        """Add the warnings of the current stage, each text once."""
        warnings = self._get_stage_training(state).make_warnings(
            state, float(state.working["unlearnt"])
        )
        return replace(state, warnings=tuple(dict.fromkeys((*state.warnings, *warnings))))


class NetworkLearner(GradientLearner):
    """The parameters of layers while a task takes steps, ordered as in `flatten_layers`."""

    def __init__(
        self, training: GradientTraining, working: Arrays, layers: Layers, fill: FillGradient
    ) -> None:
        theta, sizes = flatten_layers(layers).astype(np.float32), count_units(layers)
        super().__init__(theta, training, working)
        self._fill, self._gradient, self._move = fill, np.empty_like(theta), np.empty_like(theta)
        self._layers, self._gradients, self._moves = (
            split_into_layers(flat, sizes) for flat in (theta, self._gradient, self._move)
        )

    def _take_step(self, batch: TrainingBatch) -> None:
        means = self._fill(batch, self._layers, self._gradients)
        self._gradient /= np.float32(len(batch.X))
        self._move[:] = 0
        self._optimiser.step(self._move, self._gradient, self.memory, self._rate)
        if means is None:
            self.theta += self._move
        else:
            apply_centred_step(self._layers[0], self._moves[0], *means)


def find_factors(first: PairMoments, n_components: int, rng: np.random.Generator) -> Array | None:
    """Find factors of the correlations of pairs, (n_features, n_factors), if values are missing.

    Without missing values, fits do not gain from starts that know them.
    """
    if first.is_complete:
        return None
    n_features = first.counts.observed.shape[1]
    n_factors = min(n_components, n_features, _MAX_FACTORS)
    loads, pairs = np.ones((n_features, n_factors), np.bool_), first.compute_correlations()
    n_starts = _FACTOR_STARTS // n_factors
    return find_low_rank_fits(*pairs, loads, rng, n_starts=n_starts)[0].loadings


def draw_first_weights(
    factors: Array | None, n_below: int, n_above: int, rng: np.random.Generator
) -> Array:
    """Draw initial weights with entries of mean square 1, (n_below, n_above).

    Given factors, the weights are a random rotation of them: independent weights of features that
    few rows link would have signs that do not suit each other. If there are more units above than
    factors, each gets noise of its own.
    """
    noise = rng.standard_normal((n_below, n_above))
    if factors is None:
        return noise
    turns = rng.standard_normal((factors.shape[1], n_above))
    if n_above <= len(turns):
        turns, noise = np.linalg.qr(turns)[0], _LEAST_NOISE * noise
    weights = factors @ turns + noise
    return np.asarray(weights / np.sqrt((weights**2).mean(axis=0)))


def propagate_factors(factors: Array | None, weights: Array) -> Array | None:
    """Return the factors of the units above, if these were linear, (n_above, n_factors)."""
    if factors is None:
        return None
    common = weights.T @ factors
    unique = (weights**2).T @ np.maximum(1 - (factors**2).sum(axis=1), 0)
    return np.asarray(common / np.sqrt((common**2).sum(axis=1) + unique)[:, None])


def draw_first_layer(
    shares: Array, n_above: int, rng: np.random.Generator, factors: Array | None = None
) -> Layer:
    """Draw initial weights, with biases that reproduce the margins.

    For the mean row, the `n_above` units above are near ½, and reconstructions are near `shares`,
    the share of ones of each unit below, (n_below,), which may have factors.
    """
    spread = _STEEPNESS / np.sqrt(len(shares) + n_above)
    weights = spread * draw_first_weights(factors, len(shares), n_above, rng)
    return Layer(weights, logit(shares) - weights.sum(axis=1) / 2, -shares @ weights)


def compute_baseline_score(shares: Array, observed: Array, *, squared: bool = False) -> float:
    """Return the mean score per row if every row is reconstructed by the shares of ones, in nats.

    `shares` are the shares of ones, and `observed` the shares of rows in which a unit is observed,
    (n_units,) each. `squared` is as in `score_reconstructions`.
    """
    if squared:
        return float(-0.5 * observed @ (shares * (1 - shares)))
    return float(observed @ (shares * np.log(shares) + (1 - shares) * np.log1p(-shares)))


def count_units(layers: Layers) -> tuple[int, ...]:
    """Return the number of units of each layer, the features first."""
    return (len(layers[0].visible), *(len(layer.hidden) for layer in layers))


def convert_batch_to_float32(
    batch: TrainingBatch, means: NDArray[Any]
) -> tuple[Singles, Singles | None]:
    """Return the values and the mask, (n_samples, n_features) each.

    Missing values are at the means of their features, (n_features,).
    """
    X = batch.X.astype(np.float32)
    if batch.observed is None:
        return X, None
    return np.where(batch.observed, X, means.astype(np.float32)), batch.observed.astype(np.float32)


def score_reconstructions(
    layers: Layers, X: NDArray[Any], mask: NDArray[Any] | None, *, squared: bool = False
) -> Array:
    """Compute the reconstruction log-likelihood of each row, in nats, (n_samples,).

    This is minus the cross-entropy. If `squared`, it is minus half the squared error: the
    log-likelihood of Gaussians of variance 1, up to a constant.
    """
    inputs = propagate_down(layers, propagate_up(layers, X)[-1])[-1]
    return (negative_squared_errors if squared else negative_cross_entropies)(inputs, X, mask)


def corrupt_bits(
    X: Singles,
    mask: Singles | None,
    kind: Corruption,
    share: float,
    rows: NDArray[np.int64],
    draws: RowRandom,
) -> Singles:
    """Flip or mask a share of the bits, drawn by keys of the rows, but no missing values.

    `X` and `mask` are from `convert_batch_to_float32`; `rows` are the original row numbers,
    (n_samples,).
    """
    if kind == "none":
        return X
    hit = np.empty_like(X)
    fill_draws(np.full_like(X, logit(share)), X.shape[1], row_states(draws.key, rows), 0, hit)
    corrupted = np.abs(X - hit) if kind == "flip" else X * (1 - hit)
    return corrupted if mask is None else np.where(mask, corrupted, X)
