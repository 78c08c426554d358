"""Noisy-OR belief network: layers of binary causes, each of which may turn units below it on.

Model: P(S_i = 1 | units above) = 1 − exp(−u_i), u_i = leak_i + Σ_j w_ij S_j, w ≥ 0, from the top
layer, whose units are on with a prior probability, down to the features (M. S. Lewicki, T. J.
Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS 1996). A leak is the
weight of a unit that is always on; the prior is the leak of the top layer.

Fit by Gibbs sampling of the hidden units (eqs 6 and 7; a flip changes u of the units below by ±w),
with f = 1 − e^−w, g = 1 − e^−u and the update (eq. 9)

    f_ij ← (α − 1 + 2 f_ij + Σ_n S_i S_j f_ij / g_i) / (α + β + Σ_n S_j),

whose fixed points maximize the likelihood under Beta(α, β) priors of f. First, networks are learned
from a sample of 5,000 rows: from several starts, each re-estimated after every `batch` rows, lower
layers first, from one draw of the hidden units per row. Then passes over all rows continue from the
best start. Sums over rows do not depend on the chunking. Networks that were learned separately
could not be averaged, because each network has its units in another order. A pass is scored by log
P(x) of a tenth of the rows, at most 500, which are held out if there are at least 1,000 rows.

Causes only turn units on, so the model cannot represent features that exclude each other.

Missing values are left out of all sums. This is also right if observed values decide which values
are missing.

======  ===========  =======================================================
symbol  field        shape
======  ===========  =======================================================
w       weights_{k}  (n_units of layer k, n_units of layer k + 1)
leak    leaks_{k}    (n_units of layer k,); layer 0 is the features; in the
                     top layer, the prior
        activity     (n_components,): share of rows in which a unit is on
======  ===========  =======================================================

The components are the hidden units of all layers, from the data up. log P(x) is exact by
enumeration for at most 20 of them; otherwise it is estimated by annealed importance sampling.

Cost per block: n_samples Σ_k n_k n_{k+1} ratios per sweep. Passes: one without sums, after which a
network is searched for on the sample, then a few. Sums of one draw are unbiased, but there are many
local maxima, and chains may hardly leave their start; the fit warns if two chains disagree.
Not identifiable: the order of the units within a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    PassCountCriterion,
    PatienceCriterion,
)
from pipeline.learning.held_out import HELD_OUT_PASS, is_held_out
from pipeline.models.base import Model
from pipeline.models.capabilities import HiddenCauses, LogLikelihood
from pipeline.models.noisy_or.estimation import (
    MAX_CHOSEN_UNITS,
    MIN_LEAK,
    NoisyOrParams,
    choose_layers,
    learn_from_starts,
    log_prior,
    reestimate,
    remove_units,
    sum_unit_statistics,
    unpack_rows,
)
from pipeline.models.noisy_or.gibbs import (
    MAX_ENUMERATED_HIDDEN,
    MISSING,
    enumerate_log_probabilities,
    estimate_log_probabilities,
    estimate_row_likelihoods,
    sample_posterior_means,
    sample_states,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import RowSample
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

SAMPLE_ROWS = 5000
"""Number of rows that networks are searched with."""
CODE_SWEEPS = (50, 100)
"""Sweeps per chain that are discarded, and that are averaged, for codes."""
_HELD_OUT, _MIN_ROWS_TO_CHOOSE = 0.1, 100
_MAX_SCORED_ROWS, _FEW_ROWS = 500, 1000
_PASS_SWEEPS_FACTOR = 2  # a pass takes more sweeps than the search because its chains start anew
_MAX_PRIOR = 1e6
_MIN_ACTIVITY, _MIN_CAUSED = 1e-3, 0.05  # smallest share of rows, and largest f, of a useful unit
_MAX_NAMED_UNITS = 10
_CHECKED_ROWS, _MAX_UNMIXED_SHARE, _MIN_EFFECTIVE_DRAWS = 300, 0.1, 10


@dataclass(frozen=True)
class NoisyOr(Model):
    """Hyperparameters of the noisy-OR network.

    Attributes
    ----------
    n_components
        Number of hidden units in all layers; without `layers`, they form one layer.
    layers
        Units per layer from the data up. None takes one layer of `n_components`; if that is None
        too, the layers are chosen by held-out rows: one layer is doubled while that helps, then a
        second of half the size is tried.
    schedule
        Learn each layer for `epochs`, from the data up, and then all together (paper); or start
        each layer once flips of the units below have become rare (stability).
    epochs
        Re-estimates per layer; afterwards there are five times as many of all layers together.
    batch
        Rows per re-estimate.
    starts
        Number of random starts; the fit continues with the best.
    sweeps
        Maximum number of Gibbs sweeps per row; twice as many in passes over all rows.
    settled
        A row's sweeps end once the largest flip probability is below this.
    tempering
        Power of P(x | units) in the first sweep of a row; it rises to 1 in the last. Below 1, units
        leave poor explanations more easily.
    alpha, beta
        Parameters of the Beta prior of f = 1 − exp(−w).
    leak
        Weight that turns a unit on if none above is on. Without it, rows could have probability 0.
    leaks
        Keep the leaks (fixed), or learn one per unit (learned).
    prune
        Remove units that are hardly ever on, or turn nothing on.
    chains
        Chains per row in the estimate of log P, used for more than 20 hidden units.
    temperatures
        Number of annealing steps of each of these chains.
    patience
        Number of passes without improvement after which the fit stops.
    max_iter
        Maximum number of passes over all rows.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if the
        objective is above 1.
    """

    name: ClassVar[str] = "noisy-or"
    unlinked_effect: ClassVar[str] = (
        "which cause of one part belongs to which of another is not determined"
    )
    first_statistics: ClassVar[type[RowSample]] = RowSample
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[NoisyOrParams]] = NoisyOrParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "effective_draws": ("component",),
    }
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("unmixed", "log_prior")
    n_components: int | None = None
    layers: tuple[int, ...] | None = setting(None, minimum=1)
    schedule: Literal["paper", "stability"] = "paper"
    epochs: int = setting(30, minimum=1)
    batch: int = setting(200, minimum=1)
    starts: int = setting(10, minimum=1)
    sweeps: int = setting(15, minimum=1)
    settled: float = setting(0.05, minimum=0, below=1)
    tempering: float = setting(1.0, above=0, maximum=1)
    alpha: float = setting(1.0, minimum=1, maximum=_MAX_PRIOR)
    beta: float = setting(1.5, minimum=1, maximum=_MAX_PRIOR)
    leak: float = setting(1e-4, minimum=MIN_LEAK, maximum=1)
    leaks: Literal["fixed", "learned"] = "fixed"
    prune: bool = False
    chains: int = setting(50, minimum=2)
    temperatures: int = setting(200, minimum=1)
    patience: int = setting(3, minimum=1)
    max_iter: int = setting(50, minimum=1)
    tol: float = setting(1e-3, minimum=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None and self.n_components not in (None, sum(self.layers)):
            raise FitError(
                f"{{components}} is {self.n_components}, but {{layers}} has {sum(self.layers)} "
                "units. Leave out one of the two.",
                parameter="components",
            )

    @property
    def _sizes(self) -> tuple[int, ...] | None:
        """Units per layer, or None if they are to be chosen."""
        return self.layers or ((self.n_components,) if self.n_components else None)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sample with its units, and of the rows of each task."""
        n_hidden = sum(self._sizes or (MAX_CHOSEN_UNITS, MAX_CHOSEN_UNITS // 2))
        row_bytes = 60 * (n_features + n_hidden)
        return (n_threads + 1) * (SAMPLE_ROWS * row_bytes + 100 * n_features * n_hidden)

    def estimate_work(
        self, params: NoisyOrParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the sweeps, after a pass without sums."""
        if working["searching"]:
            return WorkEstimate(0)
        n_weights = sum(weights.size for weights in params.weights)
        n_sweeps = _PASS_SWEEPS_FACTOR * self.sweeps
        return WorkEstimate(4.0 * n_weights * n_sweeps, 16 * n_weights)

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> RowSample:
        """MAP: draw the sample, and count the features."""
        return RowSample.from_block(block, SAMPLE_ROWS, rng)

    def first_key(self, seed: int) -> str:
        """Return a key of the sample of rows."""
        return f"sample of {SAMPLE_ROWS} by seed {seed}"

    def initialize(self, first: RowSample, rng: np.random.Generator) -> FitState:
        """Keep the sample; the first pass ignores the rows, and its update finds a network."""
        observed, ones = pool_margins(first.counts)
        layers = self._sizes
        if layers is None and first.n_rows < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"The dataset has only {first.n_rows} rows; choosing the layers needs at least "
                f"{_MIN_ROWS_TO_CHOOSE}. Set {{components}} or {{layers}}.",
                parameter="layers",
            )
        working = _make_stage_working(first.n_rows, int(rng.integers(2**63)), searching=True)
        _, is_learned = _split_rows(first.rows, working)
        sample = np.where(first.observed == 1, first.X, MISSING).astype(np.uint8)[is_learned]
        leaks = (np.full(len(ones), self.leak), np.full(1, self.leak))
        return FitState(
            NoisyOrParams((np.zeros((len(ones), 1)),), leaks),
            working,
            {"sample": sample, "n_samples": np.array(first.n_rows)},
            warnings=make_constant_feature_warnings(observed, ones),
        )

    def warm_start(self, state: FitState, params: NoisyOrParams) -> FitState:
        """Start the passes from an earlier fit with the same layers, without a search."""
        layers = params.sizes[1:]
        if self.layers not in (None, layers):
            sizes = ",".join(map(str, layers))
            raise FitError(
                f"The fit given to {{warm_start}} has other layers: {sizes}. Use "
                f"{{layers={sizes}}}, or fit without {{warm_start}}.",
                parameter="warm_start",
            )
        return replace(state, params=params, working=_make_full_pass_working(state))

    def summarize(
        self, params: NoisyOrParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Draw hidden units and compute the sums of eq. 9; score some of the rows."""
        if working["searching"]:
            return Sums.from_block(block, 0.0, {})
        # Every pass uses the same draws, because otherwise passes could not be compared.
        rng = RowRandom(rng.seed, HELD_OUT_PASS)
        is_scored, is_learned = _split_rows(block.rows, working)
        scored = block.take_rows(np.flatnonzero(is_scored))
        nats = estimate_row_likelihoods(params.network, unpack_rows(scored), scored.rows, rng)
        sums = {"n_judged": np.array(len(nats))}
        sums |= self._sum_drawn_units(params, block.take_rows(np.flatnonzero(is_learned)), rng)
        return Sums.from_block(block, float(nats.sum()), sums)

    def _sum_drawn_units(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> dict[str, NDArray[Any]]:
        X, network = unpack_rows(block), params.network
        states = np.zeros((len(X), network.n_hidden), np.uint8)
        key, powers = rng.stream("units").key, np.ones(_PASS_SWEEPS_FACTOR * self.sweeps)
        sample_states(network, X, states, key, block.rows, 0.0, powers)
        _, sums = sum_unit_statistics(params, X, states)
        return {**sums, "on": states.sum(axis=0), "n_learnt": np.array(len(X))}

    def objective(self, params: NoisyOrParams, statistics: Sums) -> float:
        """Return the mean log P(x) of the rows that score the pass, nats."""
        return float(statistics.objective / max(statistics.values.get("n_judged", 0), 1))

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Search in one pass; then stop after `patience` passes without improvement."""
        if state.working.get("searching", False):
            return PassCountCriterion(1)
        # Keep the last pass, not the best: scores are noisy, and later passes depend less on the
        # start.
        return PatienceCriterion(self.max_iter, self.patience, self.tol, keeps_best=False)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Search for a network, or re-estimate all parameters."""
        if state.working["searching"]:
            return self._search(state, map_items, int(rng.integers(2**63)))
        sums, layers = statistics.values, range(len(state.params.weights))
        learns_leaks = self.leaks == "learned"
        params = reestimate(state.params, sums, self.alpha, self.beta, layers, learns_leaks)
        activity = sums["on"] / max(sums["n_learnt"], 1)
        return replace(state, params=replace(params, activity=activity))

    def _search(self, state: FitState, map_items: MapFunction, seed: int) -> FitState:
        sample, layers = state.auxiliary["sample"], self._sizes
        diagnostics = {}
        if layers is None:
            n_out = max(int(_HELD_OUT * len(sample)), 1)
            layers, scores = choose_layers(self, sample[n_out:], sample[:n_out], seed, map_items)
            diagnostics = {"held_out_scores": scores}
        params = learn_from_starts(self, layers, sample, seed, self.starts, map_items).params
        dead = _is_dead_unit(params)
        if self.prune and dead.any():
            params = remove_units(params, dead)
        return replace(state, params=params, diagnostics=diagnostics)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue from the sample to all rows."""
        if not state.working["searching"]:
            return None
        return replace(state, working=_make_full_pass_working(state))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add the diagnostics, and warnings about dead units and chains that have not mixed."""
        params = state.params
        unmixed = compute_unmixed_share(params, state.auxiliary["sample"])
        scored_rows = "rows held out" if state.working["apart"] else "all rows"
        diagnostics = {
            **state.diagnostics,
            "n_components": sum(params.sizes[1:]),
            "layers": list(params.sizes[1:]),
            "objective_is": f"log-likelihood of {scored_rows}",
            "log_prior": log_prior(params, self.alpha, self.beta, self.leaks == "learned"),
            "unmixed": unmixed,
        }
        warnings = (
            *state.warnings,
            *_warn_about_dead_units(params, self.prune),
            *warn_about_unmixed_chains(unmixed),
        )
        return replace(state, diagnostics=diagnostics, warnings=warnings)

    def transform(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(unit on | x) as `mean`, and its effective number of independent draws.

        Both are (n_samples, n_components), from two chains, one started with all units off and one
        with all on. Where the chains disagree, `effective_draws` is small.
        """
        mean, effective_draws = sample_posterior_means(
            params.network, unpack_rows(block), rng.stream("codes").key, block.rows, *CODE_SWEEPS
        )
        return {"mean": mean, "effective_draws": effective_draws}

    def log_likelihood(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P of the observed values of each row."""
        X, network = unpack_rows(block), params.network
        if network.n_hidden <= MAX_ENUMERATED_HIDDEN:
            return LogLikelihood(enumerate_log_probabilities(network, X), np.zeros(len(X)))
        key, chains = rng.stream("annealing").key, (self.chains, self.temperatures)
        return LogLikelihood(*estimate_log_probabilities(network, X, key, block.rows, *chains))

    def sample(
        self,
        params: NoisyOrParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows from the top layer down, (n_samples, n_features); segments are ignored."""
        u = np.broadcast_to(params.leaks[-1], (n_samples, params.sizes[-1]))
        for weights, leaks in zip(params.weights[::-1], params.leaks[-2::-1], strict=True):
            u = leaks + _draw_units(u, rng) @ weights.T
        return _draw_units(u, rng).astype(np.uint8)

    def reconstruct(
        self, params: NoisyOrParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return 1 − e^−leak Π (1 − codes f) of the lowest layer; segments are ignored."""
        lowest = np.clip(codes[:, : params.sizes[1]], 0, 1)
        off = np.exp(-params.leaks[0]) * np.ones((len(codes), 1))
        for unit, f in zip(lowest.T, params.f[0].T, strict=True):
            off *= 1 - unit[:, None] * f
        probabilities: Array = 1 - off
        return probabilities

    def get_hidden_causes(self, params: NoisyOrParams) -> HiddenCauses:
        """Return f of all layers."""
        return HiddenCauses(params.f, params.activity)


def _make_stage_working(n_samples: int, seed: int, *, searching: bool = False) -> Arrays:
    """Make the working state of a stage; below 1,000 rows, no rows are held out.

    `searching` marks the first stage, `apart` whether rows are held out, and `judged` is the share
    of rows that score a pass.
    """
    is_few = n_samples < _FEW_ROWS
    share = 1.0 if is_few else min(_MAX_SCORED_ROWS / n_samples, _HELD_OUT)
    values = {"searching": searching, "apart": not is_few, "judged": share, "seed": seed}
    return {name: np.array(value) for name, value in values.items()}


def _split_rows(
    rows: NDArray[np.int64], working: Arrays
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows score a pass, and which rows are learned from, (n_rows,) each."""
    is_scored = is_held_out(rows, float(working["judged"]), int(working["seed"]))
    return is_scored, ~is_scored if working["apart"] else np.full(len(is_scored), True)


def _make_full_pass_working(state: FitState) -> Arrays:
    """Make the working state of the passes over all rows."""
    return _make_stage_working(int(state.auxiliary["n_samples"]), int(state.working["seed"]))


def _draw_units(u: Array, rng: np.random.Generator) -> Array:
    return (rng.random(u.shape) < -np.expm1(-u)).astype(np.float64)


def _is_dead_unit(params: NoisyOrParams) -> NDArray[np.bool_]:
    """Return which hidden units are hardly ever on, or turn nothing on, (n_hidden,)."""
    largest = np.concatenate([f.max(axis=0) for f in params.f])
    activity = np.ones(len(largest)) if params.activity is None else params.activity
    dead: NDArray[np.bool_] = (activity < _MIN_ACTIVITY) | (largest < _MIN_CAUSED)
    return dead


def _warn_about_dead_units(params: NoisyOrParams, is_pruned: bool) -> tuple[FitWarning, ...]:
    """Name the dead units by layer and number, both counted from 1."""
    dead = _is_dead_unit(params)
    if not dead.any():
        return ()
    names = [f"{k}.{i + 1}" for k, n in enumerate(params.sizes[1:], 1) for i in range(n)]
    names = [name for name, is_dead in zip(names, dead, strict=True) if is_dead]
    units, n_more = ", ".join(names[:_MAX_NAMED_UNITS]), len(names) - _MAX_NAMED_UNITS
    units += f" and {n_more} more" if n_more > 0 else ""
    text = f"units that are hardly ever on, or turn nothing on: {units} (layer.unit); use fewer"
    return (FitWarning(text if is_pruned else f"{text}, or use {{prune=yes}}"),)


def compute_unmixed_share(params: NoisyOrParams, X: Bits) -> float:
    """Return the share of rows, among the first 300, for which two chains disagree about a unit."""
    X, key = X[:_CHECKED_ROWS], RowRandom(0).stream("mixing").key
    _, draws = sample_posterior_means(params.network, X, key, np.arange(len(X)), *CODE_SWEEPS)
    return float((draws.min(axis=1) < _MIN_EFFECTIVE_DRAWS).mean())


def warn_about_unmixed_chains(share: float) -> tuple[FitWarning, ...]:
    """Warn if the chains of many rows have not mixed."""
    if share <= _MAX_UNMIXED_SHARE:
        return ()
    return (
        FitWarning(
            f"chains have not mixed: for {share:.0%} of rows, two chains with different starts "
            "disagree about a unit, so that the codes depend on the start. Fit with fewer units."
        ),
    )
