"""Noisy-OR belief network: layers of binary causes, each of which may turn units below it on.

Model: P(S_i = 1 | units above) = 1 − exp(−u_i), u_i = leak_i + Σ_j w_ij S_j, w ≥ 0, from the top
layer, whose units are on with a prior probability, down to the features (M. S. Lewicki, T. J.
Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS 1996). A leak is the
weight of a unit that is always on; the prior is the leak of the top layer.

The update of f = 1 − e^−w, with g = 1 − e^−u, is (eq. 9)

    f_ij ← (α − 1 + 2 f_ij + Σ_n S_i S_j f_ij / g_i) / (α + β + Σ_n S_j),

whose fixed points maximize the likelihood under Beta(α, β) priors of f.

If no layer has more than 12 hidden units, the sums are expectations over all states of the units
(`exact.py`), and the fit is EM, accelerated by SQUAREM. Its objective is the exact log-likelihood.
In wider layers, if hardly any row needs more than a few units, the sums are over the states with
few units on, and the objective is a lower bound that is close.
Otherwise, the units are drawn by Gibbs sampling (eqs 6 and 7; a flip changes u of the units below
by ±w). A pass is then scored by log P(x) of a tenth of the rows, at most 500, which are held out if
there are at least 1,000 rows.

Networks are first searched for in a sample of 5,000 rows, from several starts: by exact EM
(`search.py`), or re-estimated after every `batch` rows, lower layers first, from one draw of the
hidden units per row. Then passes over all rows continue from the best; of exact fits, if there are
more rows, from the best three until one is better. Networks that were learned separately could not
be averaged, because each network has its units in another order.

Causes only turn units on. Causes that exclude each other are represented in the top layer alone,
with `top=exclusive`: of a group, at most one unit is on. The priors of a group are the
probabilities of its units, the rest is that of none. Gibbs sampling draws the state of a group in
one move. If units are drawn, a network is learned with independent units first, and then with the
groups; chains start from the state of each group that explains a row best. Independent units are
groups of one.

Missing values are left out of all sums. This is also right if observed values decide which values
are missing.

======  ===========  =======================================================
symbol  field        shape
======  ===========  =======================================================
w       weights_{k}  (n_units of layer k, n_units of layer k + 1)
leak    leaks_{k}    (n_units of layer k,); layer 0 is the features; in the
                     top layer, the prior
        activity     (n_components,): share of rows in which a unit is on
        exclusive_   (n_components,): number of the group of units of which at
        groups       most one is on, 0 for independent units; None without any
======  ===========  =======================================================

The components are the hidden units of all layers, from the data up. log P(x) is exact by
enumeration for at most 20 of them, or if the fit is exact; otherwise it is estimated by annealed
importance sampling.

Cost per block: 2 n_samples n_features 2^n multiplications if n units of the lowest layer are
enumerated; otherwise n_samples Σ_k n_k n_{k+1} ratios per sweep. Passes: one without sums, after
which a network is searched for on the sample, then a few. Sums of one draw are unbiased, but there
are many local maxima, and chains may hardly leave their start; the fit warns if two chains
disagree.
Not identifiable: the order of the units within a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Bits
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning, format_share
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import enter_stage, plan_stages
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PassCountCriterion,
    PatienceCriterion,
)
from pipeline.learning.held_out import HELD_OUT_PASS, is_held_out
from pipeline.learning.training import compute_judged_log_likelihood
from pipeline.models.base import Model
from pipeline.models.capabilities import HiddenCauses, LogLikelihood
from pipeline.models.noisy_or.estimation import (
    GROUP_SWEEPS,
    MIN_LEAK,
    NoisyOrParams,
    is_dead_unit,
    log_prior,
    reestimate,
    remove_units,
    sample_means,
    start_chains,
    sum_unit_statistics,
    unpack_rows,
)
from pipeline.models.noisy_or.exact import (
    CELLS_AT_ONCE,
    MAX_STATE_VALUES,
    MAX_STATES,
    StateSums,
    WeightedRows,
    can_enumerate,
    can_sum_states,
    choose_max_states,
    choose_states,
    has_few_on,
    maximize,
    pack_params,
    sum_by_state,
    sums_all_states,
    unpack_params,
)
from pipeline.models.noisy_or.gibbs import (
    MAX_ENUMERATED_HIDDEN,
    MISSING,
    draw_top_units,
    enumerate_log_probabilities,
    enumerate_posterior_means,
    estimate_log_probabilities,
    estimate_row_likelihoods,
    sample_states,
)
from pipeline.models.noisy_or.search import (
    MAX_CHOSEN_UNITS,
    choose_layers,
    compute_unit_values,
    prune_units,
    search_networks,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import RowSample
from pipeline.statistics.sums import Sums

SAMPLE_ROWS = 5000
"""Number of rows that networks are searched with."""
CODE_SWEEPS = (50, 100)
"""Sweeps per chain that are discarded, and that are averaged, for codes."""
EXACT_DRAWS = 1e12
"""Effective number of draws of exact codes, which have no sampling error."""
_HELD_OUT, _MIN_ROWS_TO_CHOOSE = 0.1, 100
_MAX_SCORED_ROWS, _FEW_ROWS = 500, 1000
_PASS_SWEEPS_FACTOR = 2  # a pass takes more sweeps than the search because its chains start anew
_MAX_PRIOR = 1e6
_MAX_NAMED_UNITS = 10
_MIN_UNIT_VALUE, _MIN_CAUSED_ONES = 1e-6, 0.5  # nats per row, and ones per feature in all rows
_MIN_ESTIMATED_VALUE = 0.5  # nats of all rows; chains cannot tell less from nothing
_COMPARED_TOL = 1e-4  # of the passes that compare several networks
_MIN_DRAWN_GAIN = 1e-3  # nats per row; less is no improvement of a pass with drawn units
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
    top
        Causes of the top layer: each on or off by itself (independent), or at most one of a group
        on (exclusive).
    group_sizes
        Units of each exclusive group, in order; a group of 1 is an independent unit. None takes one
        group of all units of the top layer.
    schedule
        With drawn units, learn each layer for `epochs`, from the data up, and then all together
        (paper); or start each layer once flips of the units below have become rare (stability).
    epochs
        Re-estimates per layer; afterwards there are five times as many of all layers together.
    batch
        Rows per re-estimate.
    starts
        Number of random starts; the fit continues with the best, or the best three.
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
        Keep the leaks (fixed), or learn one per unit (learned); auto learns them in exact fits of
        a single layer.
    prune
        Remove units that explain too little: in exact fits, those without which the BIC is better;
        otherwise, those that are hardly ever on, or turn nothing on.
    chains
        Chains per row in the estimate of log P, used for more than 20 hidden units.
    temperatures
        Number of annealing steps of each of these chains.
    patience
        Number of passes without improvement after which a fit with drawn units stops.
    max_iter
        Maximum number of passes over all rows.
    tol
        Change of the objective per row, nats, at which the fit stops; with drawn units, the
        smallest gain that counts as an improvement is at least 0.001.
    """

    name: ClassVar[str] = "noisy-or"
    indeterminacy: ClassVar[str] = "the order of the units within a layer"
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
    acceleration: ClassVar[str] = "squarem"
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("unmixed", "log_prior")
    n_components: int | None = None
    layers: tuple[int, ...] | None = setting(None, minimum=1)
    top: Literal["independent", "exclusive"] = "independent"
    group_sizes: tuple[int, ...] | None = setting(None, minimum=1)
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
    leaks: Literal["auto", "fixed", "learned"] = "auto"
    prune: bool = False
    chains: int = setting(50, minimum=2)
    temperatures: int = setting(200, minimum=1)
    patience: int = setting(3, minimum=1)
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-5, minimum=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None and self.n_components not in (None, sum(self.layers)):
            raise FitError(
                f"{{components}} is {self.n_components}, but {{layers}} has {sum(self.layers)} "
                "units. Leave out one of the two.",
                parameter="components",
            )
        self._check_groups()

    def _check_groups(self) -> None:
        sizes, group_sizes = self._sizes, self.group_sizes
        largest = max(group_sizes or (sizes or (2,))[-1:])
        if self.top == "exclusive" and largest == 1:
            remedy = "larger {group_sizes}" if group_sizes else "more units in the top layer"
            raise FitError(
                "{top=exclusive} needs two units or more that exclude each other, but every group "
                f"has one. Use {remedy}.",
                parameter="top",
            )
        if group_sizes is not None and self.top == "independent":
            raise FitError(
                "{group_sizes} needs exclusive groups. Use {top=exclusive} too.",
                parameter="group_sizes",
            )
        if group_sizes is not None and (sizes is None or sum(group_sizes) != sizes[-1]):
            n_top = "its size is not set" if sizes is None else f"it has {sizes[-1]}"
            raise FitError(
                f"{{group_sizes}} are of {sum(group_sizes)} units of the top layer, but {n_top}. "
                "Set {layers} to match.",
                parameter="group_sizes",
            )

    def make_exclusive_groups(self, layers: Sequence[int]) -> NDArray[np.int64] | None:
        """Return the number of each unit's exclusive group, (n_components,); 0 is independent.

        `layers` are the units per layer from the data up. None if all units are independent.
        """
        sizes = np.array(self.group_sizes or layers[-1:])
        if self.top == "independent" or sizes.max() == 1:
            return None
        numbers = np.repeat(np.cumsum(sizes > 1) * (sizes > 1), sizes)
        return np.append(np.zeros(sum(layers[:-1]), np.int64), numbers)

    @property
    def _sizes(self) -> tuple[int, ...] | None:
        """Units per layer, or None if they are to be chosen."""
        return self.layers or ((self.n_components,) if self.n_components else None)

    def learns_leaks(self, sizes: tuple[int, ...]) -> bool:
        """Return whether leaks are learned; `sizes` are the units per layer, features first.

        In several layers, leaks would take over what the units above explain.
        """
        is_simple = len(sizes) == 2 and can_sum_states(sizes)
        return self.leaks == "learned" or (self.leaks == "auto" and is_simple)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sample with its units, and of the rows of each task."""
        sizes = (n_features, *(self._sizes or (MAX_CHOSEN_UNITS, MAX_CHOSEN_UNITS // 2)))
        n_hidden = sum(sizes[1:])
        row_bytes = 60 * (n_features + n_hidden)
        own = SAMPLE_ROWS * row_bytes + 100 * n_features * n_hidden
        own += 40 * CELLS_AT_ONCE + 100 * min(n_features << sizes[1], MAX_STATE_VALUES)
        return (n_threads + 1) * own

    def estimate_work(
        self, params: NoisyOrParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, or of the sweeps, after a pass without sums."""
        if working["searching"]:
            return WorkEstimate(0)
        if working["sums_states"]:
            n_states = len(choose_states(params.sizes[1], choose_max_states(params.sizes)))
            return WorkEstimate(n_states * (15.0 + 0.2 * n_features), 16 * n_states * n_features)
        n_weights = sum(weights.size for weights in params.weights)
        n_sweeps = _PASS_SWEEPS_FACTOR * self.sweeps
        if len(params.weights) > 1:
            groups = params.group_sizes[params.group_sizes > 1]
            n_sweeps += GROUP_SWEEPS * int((groups + 1).sum())
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
        sample = np.where(first.observed == 1, first.X, MISSING).astype(np.uint8)
        leaks = (np.full(len(ones), self.leak), np.full(1, self.leak))
        return FitState(
            NoisyOrParams((np.zeros((len(ones), 1)),), leaks),
            working,
            {
                "sample": sample,
                "is_learned": is_learned,
                "n_samples": np.array(first.n_rows),
                "comparing": np.array(False),
                "shares": (ones + 0.5) / (observed + 1),
            },
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
        groups = self.make_exclusive_groups(layers)
        expected = replace(params, exclusive_groups=groups).group_sizes
        if not np.array_equal(params.group_sizes, expected):
            raise FitError(
                "The fit given to {warm_start} has other exclusive groups of units. Use its {top} "
                "and {group_sizes}, or fit without {warm_start}.",
                parameter="warm_start",
            )
        return replace(state, params=params, working=_make_full_pass_working(state, params))

    def summarize(
        self, params: NoisyOrParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the exact E-step; or draw units, compute the sums of eq. 9, and score some rows."""
        if working["searching"]:
            return Sums.from_block(block, 0.0, {})
        if working["sums_states"]:
            max_states = choose_max_states(params.sizes)
            nats, by_state = sum_by_state(params, unpack_rows(block), None, max_states)
            return Sums.from_block(block, float(nats.sum()), by_state._asdict())
        # Every pass uses the same draws, because otherwise passes could not be compared.
        rng = RowRandom(rng.seed, HELD_OUT_PASS)
        is_scored, is_learned = _split_rows(block.rows, working)
        scored = block.take_rows(np.flatnonzero(is_scored))
        X = unpack_rows(scored)
        nats = estimate_row_likelihoods(params.network, X, scored.rows, rng)
        sums = {"n_judged": np.array(len(nats)), "judged_ones": (X == 1).sum(axis=0)}
        sums |= {"judged_observed": (X != MISSING).sum(axis=0)}
        sums |= self._sum_drawn_units(params, block.take_rows(np.flatnonzero(is_learned)), rng)
        return Sums.from_block(block, float(nats.sum()), sums)

    def _sum_drawn_units(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> dict[str, NDArray[Any]]:
        X, rng = unpack_rows(block), rng.stream("units")
        states = start_chains(params, X, rng, block.rows)
        powers = np.ones(_PASS_SWEEPS_FACTOR * self.sweeps)
        sample_states(params.network, X, states, rng.key, block.rows, 0.0, powers)
        _, sums = sum_unit_statistics(params, X, states)
        return {**sums, "on": states.sum(axis=0), "n_learnt": np.array(len(X))}

    def objective(self, params: NoisyOrParams, statistics: Sums) -> float:
        """Return the mean log P(x) of all rows, or of those that score the pass, nats."""
        n_rows = statistics.values.get("n_judged", statistics.weight)
        return float(statistics.objective / max(n_rows, 1))

    def mean_log_likelihood(self, params: NoisyOrParams, statistics: Sums) -> float | None:
        """Return the log-likelihood per row, nats, or its estimate if units are drawn."""
        return self.objective(params, statistics) if statistics.values else None

    def independent_log_likelihood(self, state: FitState, statistics: Sums) -> float | None:
        """Return that of independent features, of the rows that score the pass."""
        if "judged_ones" not in statistics.values:
            return state.independent
        return compute_judged_log_likelihood(state.auxiliary["shares"], statistics)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Search in one pass; then stop on the change of the objective, or wait for a gain."""
        if state.working.get("searching", True):
            return PassCountCriterion(1)
        if state.working["sums_states"]:
            tol = max(self.tol, _COMPARED_TOL * bool(state.auxiliary.get("comparing", False)))
            n_rows = float(state.auxiliary.get("n_samples", 1))
            return ObjectiveCriterion(self.max_iter, tol, n_rows)
        # Keep the last pass, not the best: scores are noisy, and later passes depend less on the
        # start.
        gain = max(self.tol, _MIN_DRAWN_GAIN)
        return PatienceCriterion(self.max_iter, self.patience, gain, keeps_best=False)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Search for networks, or re-estimate all parameters."""
        if state.working["searching"]:
            return self._search(state, map_items, int(rng.integers(2**63)))
        sums, prior = statistics.values, (self.alpha, self.beta)
        learns_leaks = self.learns_leaks(state.params.sizes)
        if state.working["sums_states"]:
            max_states = choose_max_states(state.params.sizes)
            params = maximize(state.params, StateSums(**sums), *prior, learns_leaks, max_states)
            return replace(state, params=params)
        layers = range(len(state.params.weights))
        params = reestimate(state.params, sums, *prior, layers, learns_leaks)
        activity = sums["on"] / max(sums["n_learnt"], 1)
        return replace(state, params=replace(params, activity=activity))

    def pack_params(self, params: NoisyOrParams) -> Array:
        """Return the log-odds of f."""
        return pack_params(params, self.learns_leaks(params.sizes))

    def unpack_params(self, params: NoisyOrParams, packed: Array, weight: float) -> NoisyOrParams:
        """Return the parameters with these log-odds of f."""
        return unpack_params(params, packed, self.learns_leaks(params.sizes))

    def _search(self, state: FitState, map_items: MapFunction, seed: int) -> FitState:
        """Find networks in the sample; several are kept as starts if there are more rows."""
        sample, layers = state.auxiliary["sample"], self._sizes
        learned = sample[state.auxiliary["is_learned"]]
        diagnostics = {}
        if layers is None:
            map_items = plan_stages(map_items, ["choosing the layers", "final search"])
            n_out = max(int(_HELD_OUT * len(learned)), 1)
            map_layers = enter_stage(map_items, "choosing the layers")
            layers, scores = choose_layers(self, learned[n_out:], learned[:n_out], seed, map_layers)
            map_items = enter_stage(map_items, "final search")
            diagnostics = {"held_out_scores": scores}
        is_exact = can_enumerate((sample.shape[1], *layers))
        rows = sample if is_exact else learned
        networks, ending = search_networks(self, layers, rows, seed, self.starts, map_items)
        if self.prune:
            networks = (self._prune(networks[0], rows),)
        if int(state.auxiliary["n_samples"]) <= SAMPLE_ROWS:
            networks = networks[:1]
        state = replace(
            state,
            params=networks[0],
            diagnostics={**diagnostics, **ending},
        )
        return replace(state, starts=tuple(replace(state, params=p) for p in networks))

    def _prune(self, params: NoisyOrParams, X: Bits) -> NoisyOrParams:
        if can_enumerate(params.sizes):
            return prune_units(self, params, X)
        dead = find_unused_units(params, X, len(X))
        return remove_units(params, dead) if dead.any() else params

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue from the sample to all rows, with several networks if they are compared."""
        if not state.working["searching"]:
            return None
        is_single = len(state.starts) == 1
        auxiliary = {**state.auxiliary, "comparing": np.array(not is_single)}
        working = _make_full_pass_working(state, state.params)
        state = replace(state, working=working, auxiliary=auxiliary)
        starts = tuple(replace(state, params=start.params, starts=()) for start in state.starts)
        return replace(state, starts=() if is_single else starts)

    def select_start(self, state: FitState) -> FitState:
        """Continue with the best network."""
        return replace(state, auxiliary={**state.auxiliary, "comparing": np.array(False)})

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add the diagnostics, and warnings about dead units and chains that have not mixed."""
        params, sample = state.params, state.auxiliary["sample"]
        n_samples = int(state.auxiliary["n_samples"])
        diagnostics = {
            **state.diagnostics,
            "n_components": sum(params.sizes[1:]),
            "layers": list(params.sizes[1:]),
            "log_prior": log_prior(params, self.alpha, self.beta, self.learns_leaks(params.sizes)),
        }
        unused = find_unused_units(params, sample, n_samples)
        warnings = _warn_about_unused_units(params, unused, self.prune)
        if sums_all_states(params):
            diagnostics |= {"objective_is": "exact log-likelihood"}
        elif state.working["sums_states"]:
            diagnostics |= {"objective_is": "lower bound of the log-likelihood"}
        else:
            unmixed = compute_unmixed_share(params, sample)
            scored_rows = "rows held out" if state.working["apart"] else "all rows"
            diagnostics |= {
                "objective_is": f"log-likelihood of {scored_rows}",
                "unmixed": unmixed,
            }
            warnings = (*warnings, *warn_about_unmixed_chains(unmixed))
        return replace(state, diagnostics=diagnostics, warnings=(*state.warnings, *warnings))

    def transform(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(unit on | x) as `mean`, and its effective number of independent draws.

        Both are (n_samples, n_components). For few units, the means are exact, and the number of
        draws is `EXACT_DRAWS`. Otherwise they come from two chains, one started with all units off
        and one with all on. Where the chains disagree, `effective_draws` is small.
        """
        if can_enumerate(params.sizes):
            mean = enumerate_posterior_means(params.network, unpack_rows(block))
            return {"mean": mean, "effective_draws": np.full_like(mean, EXACT_DRAWS)}
        X, rng = unpack_rows(block), rng.stream("codes")
        mean, effective_draws = sample_means(params, X, rng, block.rows, *CODE_SWEEPS)
        return {"mean": mean, "effective_draws": effective_draws}

    def count_free_parameters(self, state: FitState) -> int | None:
        """Count the weights and the leaks that are learned; None if units are drawn."""
        params: NoisyOrParams = state.params
        if not sums_all_states(params):
            return None
        learned = params.leaks if self.learns_leaks(params.sizes) else params.leaks[-1:]
        return sum(part.size for part in (*params.weights, *learned))

    def log_likelihood(
        self, params: NoisyOrParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P of the observed values of each row."""
        X, network = unpack_rows(block), params.network
        if network.n_hidden <= MAX_ENUMERATED_HIDDEN or can_enumerate(params.sizes):
            return LogLikelihood(enumerate_log_probabilities(network, X), np.zeros(len(X)))
        if sums_all_states(params):
            nats, _ = sum_by_state(params, X, None, choose_max_states(params.sizes))
            return LogLikelihood(nats, np.zeros(len(X)))
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
        numbers = rng.random((n_samples, params.sizes[-1]))
        on = draw_top_units(params.f_of_leaks[-1], params.group_sizes, numbers)
        for weights, leaks in zip(params.weights[::-1], params.leaks[-2::-1], strict=True):
            u = leaks + on.astype(np.float64) @ weights.T
            on = rng.random(u.shape) < -np.expm1(-u)
        return on.astype(np.uint8)

    def reconstruct(
        self, params: NoisyOrParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return 1 − e^−leak Π (1 − Σ codes f) of the lowest layer; segments are ignored.

        The product is over exclusive groups, in which the chances of units add up.
        """
        n_units, f = params.sizes[1], params.f[0]
        lowest = np.clip(codes[:, :n_units], 0, 1)
        off = np.exp(-params.leaks[0]) * np.ones((len(codes), 1))
        groups = params.group_sizes if len(params.f) == 1 else np.ones(n_units, np.int64)
        for units in np.split(np.arange(n_units), np.cumsum(groups)[:-1]):
            off *= np.maximum(1 - lowest[:, units] @ f[:, units].T, 0)
        probabilities: Array = 1 - off
        return probabilities

    def get_hidden_causes(self, params: NoisyOrParams) -> HiddenCauses:
        """Return f of all layers, and which units of the top layer exclude each other."""
        return HiddenCauses(params.f, params.activity, params.exclusive_groups)


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


def _make_full_pass_working(state: FitState, params: NoisyOrParams) -> Arrays:
    """Make the working state of the passes over all rows, which start from the parameters."""
    working = _make_stage_working(int(state.auxiliary["n_samples"]), int(state.working["seed"]))
    return {**working, "sums_states": np.array(has_few_on(params, state.auxiliary["sample"]))}


def find_unused_units(params: NoisyOrParams, X: Bits, n_samples: int) -> NDArray[np.bool_]:
    """Return which hidden units may be removed without lowering the likelihood, (n_hidden,).

    `X` is a sample of `n_samples` rows, which the parameters were fitted to. Units that may cause
    ones outside the sample are used.
    """
    if can_enumerate(params.sizes):
        values = compute_unit_values(params, WeightedRows.from_sample(X, MAX_STATES))
        is_unused = values < _MIN_UNIT_VALUE * len(X)
    else:
        is_unused = is_dead_unit(params)
        for unit in np.flatnonzero(is_unused):
            is_unused[unit] = _estimate_unit_value(params, X, int(unit)) < _MIN_ESTIMATED_VALUE
    largest = np.concatenate([f.max(axis=0) for f in params.f])
    activity = np.ones(len(largest)) if params.activity is None else params.activity
    is_seen = n_samples <= len(X) or n_samples * activity * largest < _MIN_CAUSED_ONES
    unused: NDArray[np.bool_] = is_unused & is_seen
    return unused


def _estimate_unit_value(params: NoisyOrParams, X: Bits, unit: int) -> float:
    """Estimate by how much the log-likelihood of rows falls without a hidden unit, nats.

    log P(x) without a unit is log P(x) + log P(unit off | x) − log P(unit off), if nothing is above
    the unit. Only the rows count that the unit explains best.
    """
    if unit < params.sizes[1]:
        w = params.weights[0][:, unit]
        places = np.argsort((X == 0) @ w - (X == 1) @ w, kind="stable")[:_CHECKED_ROWS]
        X = X[places]
    X, rng = X[:_CHECKED_ROWS], RowRandom(0).stream("mixing")
    means, _ = sample_means(params, X, rng, np.arange(len(X)), *CODE_SWEEPS)
    off = np.maximum(1 - means[:, unit], np.finfo(float).tiny)
    activity = 0.0 if params.activity is None else min(float(params.activity[unit]), 0.5)
    return float(len(X) * np.log1p(-activity) - np.log(off).sum())


def _warn_about_unused_units(
    params: NoisyOrParams, unused: NDArray[np.bool_], is_pruned: bool
) -> tuple[FitWarning, ...]:
    """Name the unused units by layer and number, both counted from 1."""
    if not unused.any():
        return ()
    names = [f"{k}.{i + 1}" for k, n in enumerate(params.sizes[1:], 1) for i in range(n)]
    names = [name for name, is_unused in zip(names, unused, strict=True) if is_unused]
    units, n_more = ", ".join(names[:_MAX_NAMED_UNITS]), len(names) - _MAX_NAMED_UNITS
    units += f" and {n_more} more" if n_more > 0 else ""
    text = f"units that are hardly ever on, or turn nothing on: {units} (layer.unit); use fewer"
    return (FitWarning(text if is_pruned else f"{text}, or use {{prune=yes}}"),)


def compute_unmixed_share(params: NoisyOrParams, X: Bits) -> float:
    """Return the share of rows, among the first 300, for which two chains disagree about a unit."""
    X, rng = X[:_CHECKED_ROWS], RowRandom(0).stream("mixing")
    _, draws = sample_means(params, X, rng, np.arange(len(X)), *CODE_SWEEPS)
    return float((draws.min(axis=1) < _MIN_EFFECTIVE_DRAWS).mean())


def warn_about_unmixed_chains(share: float) -> tuple[FitWarning, ...]:
    """Warn if the chains of many rows have not mixed."""
    if share <= _MAX_UNMIXED_SHARE:
        return ()
    return (
        FitWarning(
            f"chains have not mixed: for {format_share(share)} of rows, two chains with different "
            "starts disagree about a unit, so that the codes depend on the start. Do not use codes "
            "with few `effective_draws`."
        ),
    )
