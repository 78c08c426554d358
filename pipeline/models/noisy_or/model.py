"""Noisy-OR belief network: layers of binary causes, each of which may turn units below it on.

Model: P(S_i = 1 | units above) = 1 − exp(−u_i), u_i = leak_i + Σ_j w_ij S_j, w ≥ 0, from the top
layer, whose units are on by a prior of their own, down to the features (M. S. Lewicki, T. J.
Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS 1996). A
leak is the weight of a unit that is always on; so is the prior.

Fit by Gibbs sampling (eqs 6 and 7; a flip moves u of those below by ±w, on or off), with f = 1 −
e^−w, g = 1 − e^−u and the update (eq. 9) f_ij ← (α − 1 + 2 f_ij + Σ_n S_i S_j f_ij / g_i) / (α + β
+ Σ_n S_j). Its fixed points maximise the likelihood under Beta(α, β) priors of f. Networks are
learned from a sample of 5,000 rows: several starts, each re-estimated after every `batch` rows,
lower layers first, the sums being those of one draw of the hidden units. Passes over all rows
follow from the best start: sums over rows are exact however they are cut, which means of networks
that were learned apart would not be, as each has its units in another order. Passes are judged by
log P(x) of a tenth of the rows, 500 at the most, held out where there are 1,000.

Causes only turn units on: features that oppose each other are out of reach.

Missing values are left out of all sums, which is right also where observed values decide which are
missing.

======  ===========  =======================================================
symbol  field        shape
======  ===========  =======================================================
w       weights_{k}  (n_units of layer k, n_units of layer k + 1)
leak    leaks_{k}    (n_units of layer k,); layer 0 is the features; of the
                     top layer the prior
        activity     (n_components,): share of rows a hidden unit is on in
======  ===========  =======================================================

Components are the hidden units of all layers, from the data up. log P(x) is exact by enumeration
where they are 20 at the most; else it is estimated by annealed importance sampling.

Cost a row and sweep: Σ_k n_k n_{k+1} ratios. Passes: 1 without work, and few more.
Not identifiable: the order of units within a layer. Sums of one draw have no bias, but networks
have many local maxima, and chains may stay where they began: the fit says so where two disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    PassCountCriterion,
    PatienceCriterion,
)
from pipeline.learning.held_out import HELD_OUT_PASS, is_held_out
from pipeline.models.base import Model
from pipeline.models.capabilities import HiddenCauses, LogLikelihood
from pipeline.models.noisy_or.checks import (
    CODE_SWEEPS,
    check_settings,
    compute_unmixed_share,
    is_dead_unit,
    warn_about_dead_units,
    warn_about_unmixed_chains,
)
from pipeline.models.noisy_or.gibbs import MISSING, sample_posterior_means, sample_states
from pipeline.models.noisy_or.likelihood import (
    MAX_ENUMERATED_HIDDEN,
    enumerate_log_probabilities,
    estimate_log_probabilities,
)
from pipeline.models.noisy_or.params import (
    NoisyOrParams,
    log_prior,
    reestimate,
    remove_units,
    sum_unit_statistics,
    unpack_rows,
)
from pipeline.models.noisy_or.search import (
    MAX_HELD_OUT_UNITS,
    choose_layers,
    estimate_row_likelihoods,
    learn_from_starts,
)
from pipeline.models.state import Arrays, FitState
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import RowSample
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

SAMPLE_ROWS = 5000
"""Rows that networks are searched with."""
_HELD_OUT, _MIN_ROWS_TO_CHOOSE = 0.1, 100
_MAX_JUDGED_ROWS, _FEW_ROWS = 500, 1000
_PASS_SWEEPS_FACTOR = 2  # times the sweeps: chains of a pass begin anew


@dataclass(frozen=True)
class NoisyOr(Model):
    """Hyperparameters of the noisy-OR network.

    Attributes
    ----------
    n_components
        Hidden units of all layers; without `layers` they are one layer.
    layers
        Units of each layer from the data up; None takes `n_components`, or else doubles one layer
        from 1 until rows held out gain nothing twice, and then tries a second of half as many.
    schedule
        Learn each layer for `epochs`, from the data up, and then all (paper); or each once flips of
        the units below it have become rare (stability).
    epochs
        Re-estimates of each layer by itself; of all together there are five times as many.
    batch
        Rows of a re-estimate.
    starts
        Networks that are learned from random weights, the best of which goes on.
    sweeps
        Sweeps of a row's hidden units at the most; twice as many in passes over all rows.
    settled
        Largest probability of a flip at which a row's sweeps end.
    tempering
        Power of P(x | units) in the first of a row's sweeps, which rises to 1 in the last: below 1
        units leave poor explanations more easily.
    alpha, beta
        Of the Beta prior of f = 1 − exp(−w).
    leak
        Weight by which a unit is on where none above it is.
    leaks
        Leaks stay as they are (fixed), or every unit learns its own (learned).
    prune
        Take units away that are hardly ever on, or turn nothing on.
    chains
        Chains that log P of a row is estimated with, where hidden units are more than 20.
    temperatures
        Steps of each of these chains.
    patience
        Passes to wait for something better.
    max_iter
        Passes over all rows at the most.
    tol
        Gain of the objective per row, relative where that is above 1, that counts as better.
    """

    name: ClassVar[str] = "noisy-or"
    first_statistics: ClassVar[type[RowSample]] = RowSample
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[NoisyOrParams]] = NoisyOrParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "effective_draws": ("component",),
    }
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("unmixed", "log_prior")
    n_components: int | None = None
    layers: tuple[int, ...] | None = None
    schedule: Literal["paper", "stability"] = "paper"
    epochs: int = 30
    batch: int = 200
    starts: int = 10
    sweeps: int = 15
    settled: float = 0.05
    tempering: float = 1.0
    alpha: float = 1.0
    beta: float = 1.5
    leak: float = 1e-4
    leaks: Literal["fixed", "learned"] = "fixed"
    prune: bool = False
    chains: int = 50
    temperatures: int = 200
    patience: int = 3
    max_iter: int = 50
    tol: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)

    @property
    def _sizes(self) -> tuple[int, ...] | None:
        """Units of each layer, where they are given."""
        return self.layers or ((self.n_components,) if self.n_components else None)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the sample with its units, and of the rows that a task has in hand."""
        n_hidden = sum(self._sizes or (MAX_HELD_OUT_UNITS, MAX_HELD_OUT_UNITS // 2))
        a_row = 60 * (n_features + n_hidden)
        return (n_threads + 1) * (SAMPLE_ROWS * a_row + 100 * n_features * n_hidden)

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> RowSample:
        """MAP: draw rows to search with, and count the features."""
        return RowSample.from_block(block, SAMPLE_ROWS, rng)

    def first_key(self, seed: int) -> str:
        """Name the sample."""
        return f"sample of {SAMPLE_ROWS} by seed {seed}"

    def initialize(self, first: RowSample, rng: np.random.Generator) -> FitState:
        """Keep the sample; the pass that comes reads nothing of the rows, and ends in the search.

        Raises
        ------
        FitError
            If a feature was never observed, or there are too few rows to choose layers by.
        """
        observed, ones = pool_margins(first.counts)
        layers = self._sizes
        if layers is None and first.n_samples < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"--layers: Expected at least {_MIN_ROWS_TO_CHOOSE} rows to choose layers by, "
                f"got {first.n_samples}. Give --components or --layers."
            )
        working = _make_stage_working(first.n_samples, int(rng.integers(2**63)), searching=True)
        apart = is_held_out(first.rows, float(working["judged"]), int(working["seed"]))
        kept = ~apart if working["apart"] else np.full(len(apart), True)
        sample = np.where(first.observed == 1, first.X, MISSING).astype(np.uint8)[kept]
        leaks = (np.full(len(ones), self.leak), np.full(1, self.leak))
        return FitState(
            NoisyOrParams((np.zeros((len(ones), 1)),), leaks),
            working,
            {"sample": sample, "n_samples": np.array(first.n_samples)},
            warnings=make_constant_feature_warnings(observed, ones),
        )

    def warm_start(self, state: FitState, params: NoisyOrParams) -> FitState:
        """Begin the passes at the weights of an earlier fit, without a search.

        Raises
        ------
        FitError
            If its layers are others.
        """
        layers = params.sizes[1:]
        if self.layers not in (None, layers):
            there = ",".join(map(str, layers))
            raise FitError(
                f"--warm-start: Expected a fit with the same layers, got one with {there}. "
                f"Give --layers {there}, or fit without --warm-start."
            )
        return replace(state, params=params, working=_make_full_pass_working(state))

    def summarize(
        self, params: NoisyOrParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Draw the hidden units of the rows and sum what eq. 9 takes; judge some of the rows."""
        if working["searching"]:
            return Sums(block.n_samples, 0.0, {})
        # The same draws in every pass: else passes could not be compared.
        rng = RowRandom(rng.seed, HELD_OUT_PASS)
        apart = is_held_out(block.rows, float(working["judged"]), int(working["seed"]))
        some = block.take_rows(np.flatnonzero(apart))
        nats = estimate_row_likelihoods(params, unpack_rows(some), some.rows, rng)
        sums = {"n_judged": np.array(len(nats))}
        learns = ~apart if working["apart"] else np.full(len(apart), True)
        sums |= self._sum_drawn_units(params, block.take_rows(np.flatnonzero(learns)), rng)
        return Sums(block.n_samples, float(nats.sum()), sums)

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
        """Give the mean of log P(x) of the rows that are judged, nats."""
        return float(statistics.objective / max(statistics.values.get("n_judged", 0), 1))

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Search in one pass; then wait for something better."""
        if state.working.get("searching", False):
            return PassCountCriterion(1)
        # Means over draws have no best pass: the last has the least left of where passes began.
        return PatienceCriterion(self.max_iter, self.patience, self.tol, keeps_best=False)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Search for a network, or re-estimate all of it."""
        if state.working["searching"]:
            return self._search(state, map_items, int(rng.integers(2**63)))
        sums, layers = statistics.values, range(len(state.params.weights))
        prior = (self.alpha, self.beta)
        learns_leaks = self.leaks == "learned"
        params = reestimate(state.params, sums, *prior, layers, learns_leaks)
        activity = sums["on"] / max(sums["n_learnt"], 1)
        return replace(state, params=replace(params, activity=activity))

    def _search(self, state: FitState, map_items: MapFunction, seed: int) -> FitState:
        sample, layers = state.auxiliary["sample"], self._sizes
        told = {}
        if layers is None:
            n_apart = max(int(_HELD_OUT * len(sample)), 1)
            apart = (sample[n_apart:], sample[:n_apart])
            layers, scores = choose_layers(self, *apart, seed, map_items)
            told = {"held_out_scores": scores}
        found = learn_from_starts(self, layers, sample, seed, self.starts, map_items)
        dead = is_dead_unit(found.params)
        params = remove_units(found.params, dead) if self.prune and dead.any() else found.params
        return replace(state, params=params, diagnostics=told)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Go on from the sample to all rows."""
        if not state.working["searching"]:
            return None
        return replace(state, working=_make_full_pass_working(state))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Say what the network is, and what is in doubt."""
        params = state.params
        unmixed = compute_unmixed_share(params, state.auxiliary["sample"])
        held_out = "rows held out" if state.working["apart"] else "all rows"
        told = {
            "n_components": sum(params.sizes[1:]),
            "layers": list(params.sizes[1:]),
            "objective_is": f"log-likelihood of {held_out}",
            "log_prior": log_prior(params, self.alpha, self.beta, self.leaks == "learned"),
            "unmixed": unmixed,
        }
        doubts = (*warn_about_dead_units(params, self.prune), *warn_about_unmixed_chains(unmixed))
        diagnostics = {**state.diagnostics, **told}
        return replace(state, diagnostics=diagnostics, warnings=(*state.warnings, *doubts))

    def transform(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give P(unit on | x) as `mean`, and how many independent draws that is worth.

        Both are (n_samples, n_components), by sweeps of two chains, one from all units off, one
        from all on: where they disagree the second is small.
        """
        key = rng.stream("codes").key
        rows = (unpack_rows(block), key, block.rows)
        mean, worth = sample_posterior_means(params.network, *rows, *CODE_SWEEPS)
        return {"mean": mean, "effective_draws": worth}

    def log_likelihood(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Give log P(x) of each row, of the observed values where some are missing."""
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
        """Draw rows from the top layer down, (n_samples, n_features); segments do not matter."""
        u = np.broadcast_to(params.leaks[-1], (n_samples, params.sizes[-1]))
        for weights, leaks in zip(params.weights[::-1], params.leaks[-2::-1], strict=True):
            u = leaks + _draw_units(u, rng) @ weights.T
        return _draw_units(u, rng).astype(np.uint8)

    def reconstruct(
        self, params: NoisyOrParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give 1 − e^−leak Π (1 − codes f) of the lowest layer; segments do not matter."""
        lowest = np.clip(codes[:, : params.sizes[1]], 0, 1)
        off = np.exp(-params.leaks[0]) * np.ones((len(codes), 1))
        for unit, f in zip(lowest.T, params.f[0].T, strict=True):
            off *= 1 - unit[:, None] * f
        probabilities: Array = 1 - off
        return probabilities

    def get_hidden_causes(self, params: NoisyOrParams) -> HiddenCauses:
        """Give f of all layers."""
        return HiddenCauses(params.f, params.activity)


def _make_stage_working(n_samples: int, seed: int, *, searching: bool = False) -> Arrays:
    """Give the working state of a stage: of fewer than 1,000 rows all are judged and learnt."""
    is_few = n_samples < _FEW_ROWS
    share = 1.0 if is_few else min(_MAX_JUDGED_ROWS / n_samples, _HELD_OUT)
    values = {"searching": searching, "apart": not is_few, "judged": share, "seed": seed}
    return {name: np.array(value) for name, value in values.items()}


def _make_full_pass_working(state: FitState) -> Arrays:
    """Give the working state of passes over all rows."""
    return _make_stage_working(int(state.auxiliary["n_samples"]), int(state.working["seed"]))


def _draw_units(u: Array, rng: np.random.Generator) -> Array:
    return (rng.random(u.shape) < -np.expm1(-u)).astype(np.float64)
