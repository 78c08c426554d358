"""Ising model: bits that depend on each other in pairs, a Boltzmann machine without hidden units.

Model: log P(x) = Σ_i h_i x_i + Σ_i<j J_ij x_i x_j − log Z (E. Ising 1925; the pairwise maximum
entropy model of E. Schneidman et al., Nature 440, 2006). Given all other features, each follows a
logistic regression: logit P(x_i = 1 | others) = h_i + Σ_j J_ij x_j. Features without an edge, J_ij
= 0, are independent given all others.

Fit by pseudo-likelihood (J. Besag, Journal of the Royal Statistical Society B 36, 1974): a logistic
regression of each feature on all others. With `penalty=lasso`, a path of penalties is fitted, and
each feature takes the one with the least EBIC = −2 log L + k log N + 2 γ k log(p − 1), where k is
its number of neighbours (R. Foygel, M. Drton, NIPS 2010; C. D. van Borkulo et al., Scientific
Reports 4, 2014, and their R package IsingFit). Two features share an edge if each is a neighbour of
the other (`rule=and`), or one of them (`rule=or`); J_ij is the mean of their two coefficients.
`refit` estimates the edges anew without a penalty: by pseudo-likelihood, or by maximum likelihood,
which matches the margins and the shares of rows in which both features of an edge are 1. Moments of
the model are enumerated for at most 16 features; otherwise they are estimated by Gibbs chains that
continue from step to step (T. Tieleman, ICML 2008), of at most 200 features.

=========  ==============  ===================================================
symbol     field           shape
=========  ==============  ===================================================
h          thresholds      (n_features,)
J          couplings       (n_features, n_features), symmetric, 0 on the diagonal
—          slopes          (n_features, n_features): [i, j] in the regression of i
λ          strengths       (n_features,): penalty of each regression
—          modes           (n_features, n_components)
log Z      log_z           (): for at most 20 features
=========  ==============  ===================================================

`stability` is the share of bootstrap draws in which two features share an edge, and
`centrality_interval` the central 95 % of Σ_j |J_ij| over the draws; see `row_sets`.

Groups of rows have a network each. Coefficients have the same penalty in all groups, so that
penalties make no difference: s_j is of all rows, and EBIC is summed over the groups. Permutation
tests compare the groups; see `comparison`.

The penalty of a regression is per row, λ Σ_j s_j |b_j| or λ / 2 Σ_j s_j² b_j² for `penalty=ridge`,
where s_j is the standard deviation of x_j, as in glmnet. The path has glmnet's range, from the
largest penalty that leaves a neighbour to 1/10,000 of it, or 1/100 if there are fewer rows than
features. It has no early stop.

All regressions, for all features and penalties, take Newton's steps at the same time, so that few
passes serve the whole path. A pass sums their gradients, and the information about the coefficients
that are not 0. The regressions of more than 128 features consider 64 neighbours each, those that a
linear regression on all features finds, and their path ends where it has more. A further pass then
computes the gradients of the chosen regressions by all features, and adds those that should be
neighbours.

The codes of a row are √λ_k v_kᵀ (x − mean), of the leading eigenvectors v_k of J. They are the
expectations, up to a constant, of the Gaussian variables that would explain the couplings (M.
Marsman et al., Scientific Reports 5, 2015).

Missing values: only rows without any are used, which is right if values are missing completely at
random. A warning says how many rows were left out. In codes, a missing value counts as its mean.
Cost per block: n_samples times the squares of the numbers of neighbours of all regressions. Passes:
about 10.
Not identifiable: nothing, unless the other features determine one exactly, such as copies. Its
coefficients then have no finite estimate without a penalty; a slight one (1e-8) keeps them finite,
and a warning names them. Means of two estimates, the lasso and the choice of edges make couplings
too small on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from pipeline.arrays import Array, Bits, Indices
from pipeline.data.blocks import BinaryBlock
from pipeline.data.matching import draw_segments
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ExpectedGainCriterion,
    PassCountCriterion,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import FeatureNetwork, LogLikelihood, NetworkDifference
from pipeline.models.ising.comparison import (
    list_differences,
    summarize_tests,
    test_differences,
)
from pipeline.models.ising.moments import MAX_FEATURES, match_moments
from pipeline.models.ising.params import IsingParams, NetworkTests, join_groups
from pipeline.models.ising.regressions import (
    count_neighbours,
    make_regressions,
    place_values,
    read_regressions,
    sum_penalties,
    sum_products,
    take_complete_rows,
)
from pipeline.models.ising.row_sets import (
    concatenate_regressions,
    count_rows,
    iter_networks,
    list_bootstraps,
    list_groups,
    list_pairs,
    list_permutations,
    sum_networks,
    take_network,
)
from pipeline.models.ising.standard_errors import (
    MAX_INVERSES,
    find_partners,
    invert_information,
    sum_squared_influences,
)
from pipeline.models.ising.states import (
    MAX_ENUMERATED,
    bound_logits,
    compute_log_z,
    draw_states,
    measure_heat_capacity,
    sum_over_missing,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.bits import kernels
from pipeline.numerics.logistic.node_regressions import (
    Regressions,
    RegressionSums,
    follow_linear_path,
    take_newton_steps,
)
from pipeline.numerics.networks.boltzmann_rows import affine_outputs
from pipeline.numerics.networks.ising_states import impute
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import Sums

_MAX_MISSING = 16  # values of a row whose states are enumerated
_NARROW, _CANDIDATES = 128, 64  # features, and predictors of each if there are more
_MOST_CHECKS = 5
_WINDOW = 6  # neighbours, by which the EBIC of linear regressions may exceed the least one
# Neighbours of a regression, at least: a share of those of its start less a few; and their growth.
_SURE_SHARE, _FEW, _SURE_GROWTH = 0.8, 2, 2.0
_LEAST_RIDGE = 1e-8
_MAX_START = 1.5  # of coefficients: linear regressions of rare features would overshoot
_LARGE = 8.0  # a coefficient by which the odds change 3,000-fold
_BY_REGRESSION = ("lasso", "ridge", "objectives", "nats", "gains", "best_values")
_UNKNOWN = 1e300  # a gain, or minus an objective; stored numbers are finite
_OF_DRAWS = ("stability", "difference_p")
_MOST_NAMED = 10  # of the features with missing values
_CENTRAL = (0.025, 0.975)  # of the draws
_MAX_DIFFERENCE = 0.01  # of moments of Gibbs chains
_NOT_WORSE = 1e-12  # relative change of an objective by rounding


@dataclass(frozen=True)
class NetworkSums(Sums):
    """Counts of pairs, or sums of regressions."""

    label: ClassVar[str] = "regressions"


@dataclass(frozen=True)
class Ising(Model):
    """Hyperparameters of the Ising model.

    Attributes
    ----------
    n_components
        Number of leading eigenvectors of the couplings that rows are projected on.
    penalty
        Penalty of the couplings: `lasso` chooses edges, `ridge` shrinks all couplings, `none`
        estimates all of them.
    strength
        Penalty per row, for all features. None chooses that of `lasso` by EBIC, for each feature,
        and takes 1 / rows for `ridge`.
    gamma
        How much EBIC prefers few edges, from 0 (BIC) to 1.
    path
        Number of penalties that EBIC chooses from.
    rule
        Features share an edge if each is a neighbour of the other (`and`), or one of them (`or`).
    refit
        Estimate the edges anew without a penalty: by pseudo-likelihood (`pseudo`), with standard
        errors, or by maximum likelihood (`likelihood`) for at most 200 features; or not (`none`).
    draws
        Number of bootstrap draws of the rows, each fitted with the penalties of the fit, for the
        stability of edges and centrality.
    permutations
        Number of times that the group labels of rows are drawn anew, to test whether the networks
        of groups differ.
    max_iter
        Maximum number of passes of a stage.
    tol
        Stop once further steps should raise the mean log-likelihood per row of a feature by less
        than this, nats.
    """

    name: ClassVar[str] = "ising"
    support: ClassVar[Support] = Support(("binary",), ("groups", "frequency"))
    unlinked_effect: ClassVar[str] = "they cannot be fitted together"
    statistics: ClassVar[type[NetworkSums]] = NetworkSums
    params: ClassVar[type[IsingParams]] = IsingParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("modes",)
    indeterminacy: ClassVar[str] = "the signs of the components"
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("n_edges",)
    n_components: int | None = 2
    penalty: Literal["lasso", "ridge", "none"] = "lasso"
    strength: float | None = setting(None, above=0)
    gamma: float = setting(0.25, minimum=0, maximum=1)
    path: int = setting(100, minimum=2)
    rule: Literal["and", "or"] = "and"
    refit: Literal["none", "pseudo", "likelihood"] = "none"
    draws: int = setting(0, minimum=0)
    permutations: int = setting(0, minimum=0)
    max_iter: int = setting(100, minimum=1)
    tol: float = setting(1e-9, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty == "none" and self.strength is not None:
            raise FitError(
                "{strength} needs {penalty=lasso} or {penalty=ridge}.", parameter="strength"
            )
        if self.permutations and self.refit != "none":
            raise FitError(
                "{permutations} compare the couplings before {refit}. Use {refit=none}.",
                parameter="permutations",
            )

    @property
    def n_groups(self) -> int:
        """Number of networks: that of the groups, or 1."""
        return max(len(self.structure.groups), 1)

    def _find_group(self, block: BinaryBlock) -> int:
        return block.segment if self.structure.groups else 0

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of squares of pairs, and of the sums of all regressions."""
        n_columns = n_features if n_features <= _NARROW else _CANDIDATES
        is_path = self.penalty == "lasso" and self.strength is None
        n_regressions = n_features * (self.path if is_path else 1)
        n_active = n_columns // 2 if self.penalty == "lasso" else n_features
        n_groups = self.n_groups
        n_sets = max(self.draws, n_groups * (n_groups - 1) * self.permutations)
        n_regressions = max(n_regressions * n_groups, n_features * n_sets)
        sums = n_regressions * (3 * n_columns + n_active**2)
        squares = n_groups * n_features**2
        return 8 * (squares * (2 * n_threads + 8) + sums * (n_threads + 2))

    def estimate_work(
        self, params: IsingParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of counting pairs, or of the regressions that have not converged."""
        if "targets" not in working:
            return WorkEstimate(0.01 * n_features**2, 8 * n_features**2)
        own = read_regressions(working)
        if "checks" in working:
            return WorkEstimate(0.05 * n_features**2, 8 * n_features**2)
        sizes = np.diff(own.places)[own.is_running]
        n_squares = int(own.square_places[-1])
        nanoseconds = 5 * len(sizes) + 0.15 * float(sizes.sum()) + 0.1 * n_squares
        return WorkEstimate(nanoseconds, 8 * (len(own.values) + n_squares))

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts; the first pass counts pairs."""
        observed, ones = pool_margins(first)
        p = len(ones)
        zeros, square = np.zeros(p), np.zeros((p, p))
        modes = np.zeros((p, self.n_components or 2))
        params = IsingParams(zeros, square, square, zeros, ones / observed, modes)
        n_missing = first.total - first.observed.sum(axis=0)
        incomplete = np.argsort(-n_missing, kind="stable")[: np.count_nonzero(n_missing)]
        self._check_groups()
        if self.refit == "likelihood" and p > MAX_FEATURES:
            raise FitError(
                f"{{refit=likelihood}} takes at most {MAX_FEATURES} features, but there are {p:,}. "
                "Use {refit=pseudo}.",
                parameter="refit",
            )
        seed = np.array(rng.integers(2**63))
        return FitState(params, auxiliary={"incomplete": incomplete, "seed": seed})

    def _check_groups(self) -> None:
        """Refuse settings that need groups, or that do not go with them."""
        if self.permutations and self.n_groups < 2:
            raise FitError(
                "{permutations} compare groups of rows. Choose them by {group=COLUMN}.",
                parameter="permutations",
            )
        if self.draws and self.structure.groups:
            raise FitError(
                "{draws} cannot be combined with groups. Compare groups by {permutations=1000}, or "
                "fit the rows of each group on their own.",
                parameter="draws",
            )

    def summarize(
        self, params: IsingParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> NetworkSums:
        """Count the pairs of complete rows, or sum the regressions over them."""
        rows, group = take_complete_rows(block), self._find_group(block)
        sizes = block.n_samples, rows.weight
        if "targets" not in working:
            joint = np.zeros((self.n_groups, rows.n_features, rows.n_features), np.int64)
            kernels.add_joint_counts(rows.words, rows.words, joint[group], rows.split_weights())
            totals = np.zeros((2, self.n_groups))
            totals[:, group] = rows.weight, block.weight
            counts = joint if rows.weight_unit == 1 else rows.weight_unit * joint
            return NetworkSums(*sizes, 0.0, {"joint": counts, "group_rows": totals})
        own, row_sets = read_regressions(working), working["row_sets"]
        if "checks" in working:
            parts = zip(row_sets.tolist(), iter_networks(own, len(row_sets)), strict=True)
            products = [
                sum_products(
                    rows.words, count_rows(rows, row_set, group, working["group_rows"], rng), part
                )
                for row_set, part in parts
            ]
            return NetworkSums(*sizes, 0.0, {"products": np.concatenate(products)})
        sums, totals = sum_networks(rows, own, row_sets, group, working["group_rows"], rng)
        objective = float(sums.nats.sum() + working["constants"] @ totals)
        values = {**sums._asdict(), "weights": totals}
        return NetworkSums(*sizes, objective / float(working["path"]), values)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop once no regression has anything to gain; counts and checks take one pass."""
        if "gains" not in state.auxiliary or {"checks", "is_last"} & state.working.keys():
            return PassCountCriterion(1)
        gain = float(state.auxiliary["gains"].max(initial=0.0))
        return ExpectedGainCriterion(self.max_iter, self.tol, gain, is_stalled=False)

    def update(
        self,
        state: FitState,
        statistics: NetworkSums,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Take a step of all regressions that have not converged; counts start them later."""
        if "gains" not in state.auxiliary or "checks" in state.working:
            return state
        if "is_last" in state.working:
            own, information = read_regressions(state.working), statistics.values["information"]
            if not self._has_errors(own):
                return state
            inverses = {"inverses": invert_information(own, information)}
            return replace(state, auxiliary={**state.auxiliary, **inverses})
        return self._step(state, statistics)

    def _step(self, state: FitState, statistics: NetworkSums) -> FitState:
        """Take Newton's steps; a regression whose last step was too long goes half of it back."""
        own, before = read_regressions(state.working), state.auxiliary
        sums = RegressionSums(*(statistics.values[name] for name in RegressionSums._fields))
        totals = statistics.values["weights"]
        weights = np.repeat(np.maximum(totals, 1e-300), len(own.groups) // len(totals))
        penalties = sum_penalties(own, before["scales"], before["lasso"], before["ridge"])
        objectives = sums.nats / weights - penalties
        best = before["objectives"]
        is_worse = own.is_running & (objectives < best - _NOT_WORSE * np.abs(best))
        is_moving = own.is_running & ~is_worse
        gains = np.where(is_worse, _UNKNOWN, 0.0)
        values, is_active = own.values.copy(), own.is_active.copy()
        take_newton_steps(
            own,
            own.square_places,
            sums,
            weights,
            before["scales"],
            before["lasso"],
            before["ridge"],
            is_moving,
            values,
            is_active,
            gains,
        )
        sizes = np.diff(own.places)
        goes_back, moves = np.repeat(is_worse, sizes), np.repeat(is_moving, sizes)
        values[goes_back] = (own.values[goes_back] + before["best_values"][goes_back]) / 2
        objectives = np.where(is_moving, objectives, best)
        after = {
            "objectives": objectives,
            "best_values": np.where(moves, own.values, before["best_values"]),
            "nats": np.where(is_moving, sums.nats, before["nats"]),
            "gains": gains,
        }
        is_running = own.is_running & ~(gains <= self.tol)
        moved = own._replace(values=values, is_active=is_active, is_running=is_running)
        auxiliary: Arrays = {**before, **after}
        return self._place(state, moved, auxiliary)

    def _end_waiting(self, own: Regressions, auxiliary: Arrays) -> tuple[Regressions, Arrays]:
        """Start the regressions that wait, unless their EBIC cannot be the least.

        The log-likelihood L is concave and rises as the penalty falls. So L is at most that of the
        next regression that was fitted, and at most L + λ N (Σ s |b| − Σ s |b'|) of the last one
        before, with its λ and b'. The number and the sizes of the neighbours are about those of the
        start.
        """
        is_waiting = auxiliary["is_waiting"]
        per_edge = self._penalize_edges(auxiliary, len(own.targets) // self.n_groups)
        counts = count_neighbours(own)
        shape = self.n_groups, len(own.targets) // self.n_groups, -1
        nats = np.where(is_waiting, 0.0, auxiliary["nats"]).reshape(shape)
        by_rows = np.repeat(per_edge, len(own.groups) // self.n_groups)
        costs = (by_rows * counts).reshape(shape)
        known = ~is_waiting.reshape(shape)[0] & (nats > -_UNKNOWN / 2).all(axis=0)
        ebic = np.where(known, (costs - 2 * nats).sum(axis=0), np.inf).min(axis=1)
        fitted = np.where(known, nats.sum(axis=0), np.inf)
        most = np.minimum.accumulate(fitted[:, ::-1], axis=1)[:, ::-1]
        places = np.where(known, np.arange(known.shape[1]), 0)
        last = np.maximum.accumulate(places, axis=1)
        rows, lasso = auxiliary["group_rows"][:, None, None], auxiliary["lasso"].reshape(shape)[0]
        sizes = (rows * auxiliary["start_sizes"].reshape(shape)).sum(axis=0)
        growth = sizes - np.take_along_axis(sizes, last, axis=1)
        rise = _SURE_GROWTH * np.take_along_axis(lasso, last, axis=1) * np.maximum(growth, 0.0)
        most = np.minimum(most, np.take_along_axis(fitted, last, axis=1) + rise)
        fewest = np.maximum(_SURE_SHARE * counts - _FEW, 0.0)
        least = (by_rows * fewest).reshape(shape).sum(axis=0) - 2 * most
        starts = least < (ebic + _FEW * per_edge.sum())[:, None]
        starts = np.tile(starts.ravel(), self.n_groups) & is_waiting
        after = {
            name: values
            for name, values in auxiliary.items()
            if name not in ("is_waiting", "start_sizes")
        }
        after["objectives"] = np.where(starts, -_UNKNOWN, after["objectives"])
        after["gains"] = np.where(starts, _UNKNOWN, after["gains"])
        return own._replace(is_running=starts), after

    def _penalize_edges(self, auxiliary: Arrays, n_targets: int) -> Array:
        """Return what a neighbour adds to EBIC in each group, (n_groups,)."""
        extended = 2 * self.gamma * np.log(max(n_targets - 1, 1))
        return np.asarray(np.log(auxiliary["group_rows"]) + extended)

    def _place(self, state: FitState, own: Regressions, auxiliary: Arrays) -> FitState:
        """Return a state with these regressions; the objective is that of finished ones as well."""
        penalties = sum_penalties(own, auxiliary["scales"], auxiliary["lasso"], auxiliary["ridge"])
        constants = np.where(own.is_running, -penalties, auxiliary["objectives"])
        n_penalties = len(own.groups) / max(len(own.targets), 1)
        row_sets = state.working.get("row_sets", list_groups(self.n_groups))
        shared = {
            "row_sets": row_sets,
            "group_rows": auxiliary["group_rows"],
            "constants": constants.reshape(len(row_sets), -1).sum(axis=1),
            "path": np.array(max(n_penalties, 1.0) * len(row_sets) / self.n_groups),
        }
        return replace(state, working={**own._asdict(), **shared}, auxiliary=auxiliary)

    def objective(self, params: IsingParams, statistics: NetworkSums) -> float:
        """Return the penalised pseudo-likelihood per row, the mean over the path; 0 of counts."""
        return float(statistics.objective / max(statistics.weight, 1e-300))

    def next_stage(self, state: FitState, statistics: NetworkSums) -> FitState | None:
        """Fit the path after the counts; then check other neighbours, refit, and sum information.

        A stage that has not converged is the last.
        """
        if "joint" in statistics.values:
            return self._begin_path(state, statistics)
        if "products" in statistics.values:
            found = self._add_neighbours(state, statistics)
            return self._begin_draws(state) if found is None else found
        if "fitted_values" in state.auxiliary:
            return self._begin_refit(self._end_draws(state))
        is_over = state.auxiliary["gains"].max(initial=0.0) <= self.tol
        if "is_waiting" in state.auxiliary and is_over:
            own, auxiliary = self._end_waiting(read_regressions(state.working), state.auxiliary)
            if own.is_running.any():
                return self._place(state, own, auxiliary)
            state = replace(state, auxiliary=auxiliary)
        if state.is_on_sample or "is_last" in state.working or not is_over:
            return None
        is_refit = "is_refit" in state.auxiliary
        is_wide = self.penalty == "lasso" and len(state.working["targets"]) > _NARROW
        if is_wide and not is_refit and int(state.auxiliary["n_checks"]) < _MOST_CHECKS:
            state = self._choose_penalties(state)
            return replace(state, working={**state.working, "checks": np.array(True)})
        return self._begin_last_pass(state) if is_refit else self._begin_draws(state)

    def _begin_draws(self, state: FitState) -> FitState | None:
        """Begin to fit the regressions to bootstrap draws, or to rows with new labels, if any."""
        state = self._choose_penalties(state)
        own, before, n_groups = read_regressions(state.working), state.auxiliary, self.n_groups
        row_sets = (
            list_bootstraps(self.draws)
            if n_groups == 1
            else list_permutations(self.permutations, n_groups)
        )
        if not len(row_sets) or not len(own.targets):
            return self._begin_refit(state)
        networks = row_sets[:, 1]
        repeated = concatenate_regressions([take_network(own, g, n_groups) for g in networks])
        repeated = repeated._replace(is_running=np.ones_like(repeated.is_running))
        fitted = {**own._asdict(), **{name: before[name] for name in _BY_REGRESSION}}
        n = len(repeated.groups)
        auxiliary = {
            **before,
            **{f"fitted_{name}": values for name, values in fitted.items()},
            **{
                name: before[name].reshape(n_groups, -1)[networks].ravel()
                for name in ("lasso", "ridge")
            },
            "objectives": np.full(n, -_UNKNOWN),
            "nats": np.full(n, -_UNKNOWN),
            "gains": np.full(n, _UNKNOWN),
            "best_values": repeated.values,
        }
        return self._place(replace(state, working={"row_sets": row_sets}), repeated, auxiliary)

    def _end_draws(self, state: FitState) -> FitState:
        """Keep what the draws tell, and return to the regressions of all rows."""
        own, prefix, before = read_regressions(state.working), "fitted_", state.auxiliary
        fitted = Regressions(*(before[prefix + name] for name in Regressions._fields))
        measure = self._measure_stability if self.n_groups == 1 else self._test_differences
        found = measure(own, fitted, before)
        auxiliary = {name: values for name, values in before.items() if prefix not in name}
        auxiliary |= {name: before[prefix + name] for name in _BY_REGRESSION}
        return self._place(replace(state, working={}), fitted, {**auxiliary, **found})

    def _measure_stability(
        self, own: Regressions, fitted: Regressions, auxiliary: Arrays
    ) -> dict[str, Array]:
        """Return the stability of edges, and the intervals of centrality."""
        n = len(auxiliary["scales"])
        centrality, n_chosen = np.empty((self.draws, n)), np.zeros((n, n))
        for draw, part in enumerate(iter_networks(own, self.draws)):
            couplings = self._join_slopes(place_values(part, n)[0])
            n_chosen += couplings != 0
            centrality[draw] = np.abs(couplings).sum(axis=1)
        interval = np.quantile(centrality, _CENTRAL, axis=0)
        return {"stability": n_chosen / self.draws, "centrality_interval": interval}

    def _test_differences(
        self, own: Regressions, fitted: Regressions, auxiliary: Arrays
    ) -> dict[str, Array]:
        """Return the tests of all pairs of groups."""
        n = len(auxiliary["scales"])
        couplings, drawn = (
            (self._join_slopes(place_values(part, n)[0]) for part in parts)
            for parts in (
                iter_networks(fitted, self.n_groups),
                iter_networks(own, 2 * self.permutations * len(list_pairs(self.n_groups))),
            )
        )
        return vars(test_differences([*couplings], drawn, self.permutations))

    def _join_slopes(self, slopes: Array) -> Array:
        """Return the couplings, given the coefficients of all regressions."""
        return np.where(self._find_edges(slopes), (slopes + slopes.T) / 2, 0.0)

    def _begin_refit(self, state: FitState) -> FitState | None:
        """Begin to estimate the edges without a penalty."""
        if self.refit == "none" or self.penalty == "none":
            return self._begin_last_pass(state)
        own, n = read_regressions(state.working), len(state.params.shares)
        parts = []
        for part in iter_networks(own, self.n_groups):
            slopes, thresholds = place_values(part, n)
            is_edge = self._find_edges(slopes)
            columns = [np.flatnonzero(is_edge[target]) for target in part.targets]
            values = [
                np.append(thresholds[target], slopes[target, own_columns])[None]
                for target, own_columns in zip(part.targets, columns, strict=True)
            ]
            parts.append(make_regressions(part.targets, columns, values, all_active=True))
        refit = concatenate_regressions(parts)
        refit = refit._replace(is_running=~_find_constant(refit, state.auxiliary))
        n_targets = len(refit.targets)
        auxiliary = {
            **state.auxiliary,
            "is_refit": np.array(True),
            "strengths": state.auxiliary["lasso"] + state.auxiliary["ridge"],
            "lasso": np.zeros(n_targets),
            "ridge": np.full(n_targets, _LEAST_RIDGE),
            "objectives": np.where(refit.is_running, -_UNKNOWN, 0.0),
            "best_values": refit.values,
            "gains": np.where(refit.is_running, _UNKNOWN, 0.0),
        }
        return self._place(state, refit, auxiliary)

    def _begin_last_pass(self, state: FitState) -> FitState | None:
        """Begin the pass that sums the information for standard errors, and ends draws."""
        own = read_regressions(state.working)
        if not self._has_errors(own) and state.auxiliary.keys().isdisjoint(_OF_DRAWS):
            return None
        running = own._replace(is_running=np.ones_like(own.is_running))
        state = self._place(state, running, state.auxiliary)
        return replace(state, working={**state.working, "is_last": np.array(True)})

    def _has_errors(self, own: Regressions) -> bool:
        """Return whether regressions without a penalty have standard errors."""
        is_pseudo = self.refit == "pseudo" or (self.penalty == "none" and self.refit == "none")
        n_entries = (np.diff(own.places) ** 2).sum()
        return is_pseudo and 0 < n_entries <= MAX_INVERSES

    def _find_edges(self, slopes: Array) -> NDArray[np.bool_]:
        """Return which features share an edge, given the coefficients of all regressions."""
        chosen: NDArray[np.bool_] = slopes != 0
        return chosen & chosen.T if self.rule == "and" else chosen | chosen.T

    def count_sample_rows(self, state: FitState) -> int:
        """Return 1: any sample of the usual size tells where the path roughly is.

        With groups, it may have too few rows of some.
        """
        return 0 if self.structure.groups else 1

    def draw_sample_starts(self, state: FitState) -> tuple[FitState]:
        """Return the state itself, with the number of its warnings."""
        n_warnings = {"n_warnings": np.array(len(state.warnings))}
        return (replace(state, auxiliary={**state.auxiliary, **n_warnings}),)

    def leave_sample(self, state: FitState, statistics: NetworkSums) -> FitState:
        """Return to the counts, of all rows; the path then starts from that of the sample."""
        own, before = read_regressions(state.working), state.auxiliary
        own = own._replace(is_running=before["nats"] > -_UNKNOWN)
        sample = {f"sample_{name}": values for name, values in own._asdict().items()}
        kept = {name: before[name] for name in ("incomplete", "seed")}
        warnings = state.warnings[: int(before["n_warnings"])]
        return replace(state, working={}, auxiliary={**kept, **sample}, warnings=warnings)

    def _begin_path(self, state: FitState, counts: NetworkSums) -> FitState:
        """Start the regressions of all features and penalties near those of linear regressions."""
        joint, (group_rows, all_rows) = counts.values["joint"], counts.values["group_rows"]
        warnings = [*state.warnings, *self._check_missing(state, group_rows, all_rows)]
        by_group = np.diagonal(joint, axis1=1, axis2=2)
        joint, ones, weight = joint.sum(axis=0), by_group.sum(axis=0), counts.weight
        warnings += make_constant_feature_warnings(
            np.full_like(ones, weight), ones, "they have no edges"
        )
        is_constant = (by_group == 0) | (by_group == group_rows[:, None])
        own_constant = is_constant & ~is_constant.all(axis=0)
        if own_constant.any():
            where, features = (tuple(np.unique(own).tolist()) for own in np.nonzero(own_constant))
            text = "constant in some groups, where they have no edges: {features} (in {segments})"
            warnings.append(FitWarning(text, features, segments=where))
        shares = ones / weight
        group_shares = by_group / group_rows[:, None]
        covariances = counts.values["joint"] / group_rows[:, None, None]
        covariances -= group_shares[:, :, None] * group_shares[:, None]
        covariance = joint / weight - np.outer(shares, shares)
        covariance = np.where(np.outer(*2 * [(ones > 0) & (ones < weight)]), covariance, 0.0)
        scales = np.sqrt(np.diagonal(covariance))
        params = replace(state.params, shares=shares, thresholds=bound_logits(ones, weight))
        sample = _read_sample(state.auxiliary, len(ones))
        one, lasso, ridge, waits = self._start_regressions(
            covariances, covariance, shares, weight, sample
        )
        own = concatenate_regressions([one] * self.n_groups)
        lasso, ridge = np.tile(lasso, self.n_groups), np.tile(ridge, self.n_groups)
        stops = np.zeros_like(own.is_running)
        if own.targets.size:
            stops = _find_constant(own, {"is_constant": is_constant})
        is_waiting = np.tile(waits, self.n_groups) & own.is_running & ~stops
        own = own._replace(is_running=own.is_running & ~stops & ~is_waiting)
        auxiliary = {
            "seed": state.auxiliary["seed"],
            "incomplete": state.auxiliary["incomplete"],
            "n_warnings": state.auxiliary.get("n_warnings", np.array(0)),
            "group_rows": group_rows,
            "group_shares": group_shares,
            "is_constant": is_constant,
            "covariances": covariances,
            "scales": scales,
            "lasso": lasso,
            "ridge": ridge,
            "objectives": np.where(own.is_running, -_UNKNOWN, 0.0),
            "best_values": own.values,
            "nats": np.where(stops, 0.0, np.where(is_waiting, -_UNKNOWN / 2, -_UNKNOWN)),
            "gains": np.where(own.is_running, _UNKNOWN, 0.0),
            "n_checks": np.array(0),
        }
        if is_waiting.any():
            sizes = sum_penalties(own, scales, np.ones_like(lasso), np.zeros_like(lasso))
            auxiliary |= {"is_waiting": is_waiting, "start_sizes": sizes}
        return self._place(replace(state, params=params, warnings=tuple(warnings)), own, auxiliary)

    def _check_missing(
        self, state: FitState, group_rows: Array, all_rows: Array
    ) -> list[FitWarning]:
        """Warn about rows that are left out; refuse groups of too few rows."""
        incomplete = tuple(state.auxiliary["incomplete"].tolist())
        remedy = "Leave features out by {drop=NAME}; these have the most missing values: {features}"
        for group, (weight, total) in enumerate(zip(group_rows, all_rows, strict=True)):
            if weight >= 2 or not (incomplete or self.structure.groups):
                continue
            name = self.structure.groups[group] if self.structure.groups else ""
            where = f" of the group {name!r}" * bool(self.structure.groups)
            if total < 2:
                raise FitError(
                    f"Only {total:,.0f} rows{where} count. Leave out groups of fewer than 2 rows."
                )
            raise FitError(
                f"Only {weight:,.0f} of {total:,.0f} rows{where} have values of all features, and "
                f"ising uses no others. {remedy}.",
                incomplete[:_MOST_NAMED],
            )
        if not incomplete:
            return []
        n_left, n_rows = group_rows.sum(), all_rows.sum()
        text = (
            f"{n_rows - n_left:,.0f} of {n_rows:,.0f} rows have missing values and are left out, "
            f"so {n_left:,.0f} are fitted. To fit more rows, leave features out by {{drop=NAME}}; "
            "these have the most missing values: {features}"
        )
        return [FitWarning(text, incomplete[:_MOST_NAMED])]

    def _start_regressions(
        self,
        covariances: Array,
        covariance: Array,
        shares: Array,
        weight: float,
        sample: Mapping[int, Array],
    ) -> tuple[Regressions, Array, Array, NDArray[np.bool_]]:
        """Return the regressions of one network, λ of the lasso and of ridge, and which ones wait.

        They start from the `covariance` of all rows; `covariances` are those within each group.
        `sample` has the coefficients of each target for the first penalties, if a sample of the
        rows was fitted: intercepts and those of all features, (n_penalties, 1 + n_features).
        """
        scales = np.sqrt(np.diagonal(covariance))
        (targets,) = np.nonzero(scales)
        p = len(targets)
        if p < 2:
            targets = targets[:0]
        covariance, scales = covariance[np.ix_(targets, targets)], scales[targets]
        strengths = self._list_strengths(covariances[:, targets[:, None], targets], scales, weight)
        n_penalties = strengths.shape[1]
        columns, values, is_lasso = [], [], self.penalty == "lasso"
        is_wide, is_running = p > _NARROW, np.ones(strengths.shape, np.bool_)
        waits, per_edge = np.zeros(strengths.shape, np.bool_), np.log(weight)
        per_edge += 2 * self.gamma * np.log(max(p - 1, 1))
        for i, share in enumerate(shares[targets]):
            slopes = np.zeros((n_penalties, p))
            candidates = np.delete(np.arange(p), i)
            if is_lasso:
                penalties, most = strengths[i, :, None] * scales, _CANDIDATES if is_wide else p
                n_followed = follow_linear_path(covariance, i, penalties, most, slopes)
                # The residual variance of a lasso, by its optimality, and EBIC with it.
                residual = covariance[i, i] - slopes @ covariance[i]
                residual -= (np.abs(slopes) * penalties).sum(axis=1)
                counts = np.count_nonzero(slopes, axis=1)
                ebic = per_edge * counts + weight * np.log(np.maximum(residual, 1e-12))
                waits[i] = ebic > ebic[:n_followed].min() + _WINDOW * per_edge
                waits[i, n_followed:] = False
                slopes = np.clip(slopes / scales[i] ** 2, -_MAX_START, _MAX_START)
                if is_wide:
                    is_running[i, n_followed:] = False
                    size = np.abs(slopes[n_followed - 1] * scales)
                    size[i] = -1.0
                    candidates = np.sort(np.argsort(-size, kind="stable")[:_CANDIDATES])
            slopes, own_columns = slopes[:, candidates], targets[candidates]
            intercepts = logit(share) - slopes @ shares[own_columns]
            columns.append(own_columns)
            values.append(np.column_stack([intercepts, slopes]))
            known = sample.get(int(targets[i]), np.zeros((0, 0)))
            if len(known):
                places = np.minimum(np.arange(n_penalties), len(known) - 1)
                values[-1] = known[places][:, np.append(0, 1 + own_columns)]
        own = make_regressions(targets, columns, values, all_active=not is_lasso)
        own, flat = own._replace(is_running=is_running.ravel()), strengths.ravel()
        if is_lasso:
            return own, flat, np.zeros(len(flat)), waits.ravel()
        return own, np.zeros(len(flat)), np.maximum(flat, _LEAST_RIDGE), waits.ravel()

    def _list_strengths(self, covariances: Array, scales: Array, weight: float) -> Array:
        """Return the penalties of each feature, the largest first, (n_features, n_penalties)."""
        p = len(scales)
        if self.penalty == "none":
            return np.zeros((p, 1))
        if self.strength is not None or self.penalty == "ridge":
            return np.full((p, 1), self.strength or 1 / weight)
        off = np.abs(covariances / scales).max(axis=0)
        np.fill_diagonal(off, 0.0)
        ratio = 1e-4 if weight > p - 1 else 1e-2
        largest = np.maximum(off.max(axis=1, initial=0.0), 1e-12)
        return np.asarray(largest[:, None] * ratio ** np.linspace(0, 1, self.path))

    def _choose_penalties(self, state: FitState) -> FitState:
        """Keep the regression of each feature with the least EBIC, which is summed over groups."""
        own, auxiliary = read_regressions(state.working), state.auxiliary
        n_groups, n_all = self.n_groups, len(own.targets)
        if len(own.groups) == n_all:
            return state
        n_targets = n_all // n_groups
        edges = np.split(own.values, own.places[1:-1])
        per_edge = self._penalize_edges(auxiliary, n_targets)
        ebic = np.repeat(per_edge, len(own.groups) // n_groups) * count_neighbours(own)
        ebic = (ebic - 2 * auxiliary["nats"]).reshape(n_groups, n_targets, -1).sum(axis=0)
        n_penalties = ebic.shape[1]
        chosen = np.tile(ebic.argmin(axis=1), n_groups) + np.arange(n_all) * n_penalties
        values = [edges[r][None] for r in chosen]
        columns = np.split(own.columns, own.starts[1:-1])
        kept = make_regressions(own.targets, columns, values, all_active=False)
        kept = kept._replace(is_running=np.zeros(n_all, np.bool_))
        names = ("lasso", "ridge", "objectives", "nats", "gains")
        after = {name: auxiliary[name][chosen] for name in names}
        after = {**auxiliary, **after, "best_values": kept.values}
        return self._place(state, kept, after)

    def _add_neighbours(self, state: FitState, statistics: NetworkSums) -> FitState | None:
        """Add predictors whose gradient exceeds the penalty, and continue if there are any."""
        own, auxiliary = read_regressions(state.working), state.auxiliary
        rows = np.repeat(auxiliary["group_rows"], len(own.targets) // self.n_groups)
        products = np.abs(statistics.values["products"]) / rows[:, None]
        limits = 1.001 * np.outer(auxiliary["lasso"], auxiliary["scales"])
        columns = np.split(own.columns, own.starts[1:-1])
        values, changes = np.split(own.values, own.places[1:-1]), np.zeros(len(columns), np.bool_)
        limits[:, auxiliary["scales"] == 0] = np.inf
        limits[_find_constant(own, auxiliary)] = np.inf
        limits[np.arange(len(columns)), own.targets] = np.inf
        for r, known in enumerate(columns):
            limits[r, known] = np.inf
            new = np.flatnonzero(products[r] > limits[r])
            changes[r] = len(new) > 0
            columns[r] = np.append(known, new)
            values[r] = np.append(values[r], np.zeros(len(new)))
        if not changes.any():
            return None
        found = make_regressions(own.targets, columns, [v[None] for v in values], all_active=False)
        found = found._replace(is_running=changes)
        after = {
            **auxiliary,
            "best_values": found.values,
            "gains": np.where(changes, _UNKNOWN, 0.0),
            "n_checks": auxiliary["n_checks"] + 1,
        }
        return self._place(state, found, after)

    def finish(self, state: FitState, statistics: NetworkSums) -> FitState:
        """Put the coefficients of all features together, and choose the edges."""
        state = self._choose_penalties(state)
        own, params, auxiliary = read_regressions(state.working), state.params, state.auxiliary
        n, n_targets = len(params.shares), len(own.targets) // self.n_groups
        strengths = np.zeros(n)
        chosen = auxiliary.get("strengths", auxiliary["lasso"] + auxiliary["ridge"])
        strengths[own.targets[:n_targets]] = chosen[:n_targets]
        params = replace(
            params,
            strengths=strengths,
            stability=auxiliary.get("stability"),
            centrality_interval=auxiliary.get("centrality_interval"),
        )
        networks, largest = [], 0.0
        diagnostics: dict[str, Any] = {}
        for group, part in enumerate(iter_networks(own, self.n_groups)):
            slopes, thresholds = place_values(part, n)
            (free,) = np.nonzero(~auxiliary["is_constant"][group])
            shares, rows = auxiliary["group_shares"][group], float(auxiliary["group_rows"][group])
            own_thresholds = bound_logits(shares * rows, rows)
            if n_targets:
                own_thresholds[free] = thresholds[free]
            couplings = self._join_slopes(slopes)
            values = {"thresholds": own_thresholds, "couplings": couplings, "slopes": slopes}
            network = replace(params, shares=shares, **values)
            if self.refit == "likelihood" and n_targets:
                network, off = _maximize_likelihood(network, free, rows, group, auxiliary)
                largest = max(largest, off)
            networks.append(network)
        params = join_groups(networks, auxiliary["group_rows"])
        if "difference_p" in auxiliary and params.groups is not None:
            tests = NetworkTests(**{f.name: auxiliary[f.name] for f in fields(NetworkTests)})
            params = replace(params, groups=replace(params.groups, tests=tests))
            diagnostics["fit_statistics"] = summarize_tests(tests, self.structure.groups)
        n_edges = int(np.count_nonzero(np.triu(params.couplings)))
        warnings = self._warn(networks, n_edges, n_targets)
        if largest > _MAX_DIFFERENCE:
            text = (
                "the margins or covariances of Gibbs chains differ by up to "
                f"{largest:.2g} from those of the data, because the chains mix too slowly, as "
                "they do if features determine each other; do not rely on these couplings, use "
                "{refit=pseudo}"
            )
            warnings = (*warnings, FitWarning(text))
        n_components = params.modes.shape[1]
        is_free_of_penalty = self.penalty == "none" or "is_refit" in auxiliary
        diagnostics |= {
            "n_components": n_components,
            "n_edges": n_edges,
            "objective_is": "pseudo-likelihood" + ("" if is_free_of_penalty else " less penalty"),
        }
        return replace(
            state,
            params=replace(params, modes=find_modes(params.couplings, n_components)),
            diagnostics=diagnostics,
            warnings=(*state.warnings, *warnings),
        )

    def _warn(
        self, networks: Sequence[IsingParams], n_edges: int, n_targets: int
    ) -> tuple[FitWarning, ...]:
        """Warn about coefficients without a finite estimate, and networks without edges."""
        warnings = []
        is_large = np.array([(np.abs(own.slopes) > _LARGE).any(axis=1) for own in networks])
        (large,) = np.nonzero(is_large.any(axis=0))
        if large.size:
            remedy = (
                "choose {penalty=lasso} or {penalty=ridge}, or leave out copies"
                if self.penalty == "none"
                else "leave out copies, or choose a larger {strength}"
            )
            text = (
                "others determine these features almost completely, as copies do, or in too few "
                f"rows, so only a penalty keeps their couplings finite; {remedy}: {{features}}"
            )
            warnings.append(FitWarning(text, tuple(large.tolist())))
        if not n_edges and n_targets > 1:
            text = "no edges: no two features clearly depend on each other; "
            text += "{gamma=0}" if self.strength is None else "a smaller {strength}"
            text += " or more rows may show some"
            warnings.append(FitWarning(text))
        return tuple(warnings)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the squared influences of rows, if the information has been summed."""
        if "inverses" not in state.auxiliary:
            return None
        own = read_regressions(state.working)
        partners = [
            find_partners(part) + first
            for part, first in zip(
                iter_networks(own, self.n_groups), self._list_first_values(own), strict=True
            )
        ]
        return {
            **own._asdict(),
            "partners": np.concatenate(partners),
            "inverses": state.auxiliary["inverses"],
        }

    def _list_first_values(self, own: Regressions) -> Indices:
        """Return the place of the first coefficient of each network, (n_networks,)."""
        return own.places[:: len(own.groups) // self.n_groups][: self.n_groups]

    def summarize_information(
        self, params: IsingParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> NetworkSums:
        """Sum the squared influences of complete rows."""
        rows, own, group = take_complete_rows(block), read_regressions(working), 0
        weights = np.ones(rows.n_samples) if rows.row_weights is None else rows.row_weights
        group = self._find_group(block)
        part, squares = take_network(own, group, self.n_groups), np.zeros(len(own.values))
        first = int(self._list_first_values(own)[group])
        places = slice(first, first + len(part.values))
        n = len(own.groups) // self.n_groups
        edges = own.square_places[[group * n, (group + 1) * n]]
        squares[places] = sum_squared_influences(
            rows.words,
            weights,
            part,
            working["inverses"][slice(*edges)],
            working["partners"][places] - first,
        )
        return NetworkSums(block.n_samples, rows.weight, 0.0, {"squares": squares})

    def finish_information_pass(self, state: FitState, statistics: NetworkSums) -> FitState:
        """Add the standard errors."""
        own, networks = read_regressions(state.working), []
        errors = own._replace(values=np.sqrt(statistics.values["squares"]))
        for group, part in enumerate(iter_networks(errors, self.n_groups)):
            network = state.params.take_group(group)
            couplings, thresholds = place_values(part, len(network.shares))
            # Both triangles agree up to rounding. Large estimates are not finite without a penalty.
            couplings = np.triu(couplings) + np.triu(couplings).T
            is_large = np.abs(network.slopes) > _LARGE
            couplings[is_large | is_large.T] = np.nan
            thresholds[is_large.any(axis=1)] = np.nan
            if self.structure.groups:
                is_constant = state.auxiliary["is_constant"][group]
                couplings[is_constant | is_constant[:, None]] = np.nan
                thresholds[is_constant] = np.nan
            networks.append(
                replace(network, couplings_error=couplings, thresholds_error=thresholds)
            )
        params = join_groups(networks, state.auxiliary["group_rows"])
        return replace(state, params=params)

    def prepare(
        self, params: IsingParams, rng: np.random.Generator, map_items: MapFunction
    ) -> IsingParams:
        """Compute log Z of few features."""
        params = replace(params, log_z=compute_log_z(params))
        if params.groups is None or params.log_z is None:
            return params
        own = [compute_log_z(params.take_group(g)) for g in params.groups.segments.tolist()]
        groups = replace(params.groups, group_log_z=np.array(own, np.float64))
        return replace(params, groups=groups)

    def transform(
        self, params: IsingParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the projections of rows on the modes as `mean`, (n_samples, n_components)."""
        center = -params.shares @ params.modes
        X, mask = block.unpack_values(), block.unpack_mask()
        return {"mean": affine_outputs(params.modes, center, params.shares, X, mask)}

    def log_likelihood(
        self, params: IsingParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row, of at most 20 features."""
        params = params.take_group(block.segment)
        if params.log_z is None:
            raise FitError(
                f"ising computes probabilities of rows of at most {MAX_ENUMERATED} features, but "
                f"there are {len(params.shares):,}. For those of single features given all others, "
                "use transform with {impute=probabilities}."
            )
        X, mask = block.unpack_values(), block.unpack_mask()
        nats = sum_over_missing(params, X, np.ones_like(X) if mask is None else mask) - params.log_z
        return LogLikelihood(nats, np.zeros_like(nats))

    def pseudo_log_likelihood(
        self, params: IsingParams, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return Σ_i log P(x_i | the others) over observed values, nats, (n_samples,).

        Of missing others, the mean counts.
        """
        X, mask, params = (
            block.unpack_values(),
            block.unpack_mask(),
            params.take_group(block.segment),
        )
        inputs = affine_outputs(params.couplings, params.thresholds, params.shares, X, mask)
        nats = -np.logaddexp(0.0, np.where(X, -inputs, inputs))
        return np.asarray((nats if mask is None else nats * mask).sum(axis=1))

    def impute(self, params: IsingParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(x_i = 1 | all other values of the row), (n_samples, n_features)."""
        X, mask = block.unpack_values(), block.unpack_mask()
        mask = np.ones_like(X) if mask is None else mask
        if len(X) and (most := int((mask == 0).sum(axis=1).max())) > _MAX_MISSING:
            raise FitError(
                f"A row has {most} missing values, but ising sums over the states of at most "
                f"{_MAX_MISSING}. Leave out such rows, or features with many missing values."
            )
        probabilities, params = np.empty(X.shape), params.take_group(block.segment)
        impute(params.thresholds, params.couplings, X, mask, probabilities)
        return probabilities

    def get_network(self, params: IsingParams, group: int | None = None) -> FeatureNetwork:
        """Return the couplings of a group; if None, those of all rows, or the mean of groups."""
        own = params if group is None else params.take_group(group)
        return FeatureNetwork(own.couplings, own.couplings_error, own.stability)

    def compare_groups(self, params: IsingParams) -> list[NetworkDifference]:
        """Return the differences of all pairs of groups.

        Without permutations, p is that of a Wald test, if there are standard errors.
        """
        return [] if params.groups is None else list_differences(params.groups)

    def compute_heat_capacity(self, params: IsingParams, temperatures: Array) -> Array | None:
        """Return the variance of the energy per feature and T², (n_temperatures,).

        None if there are more than 200 features.
        """
        return measure_heat_capacity(params, temperatures)

    def sample(
        self,
        params: IsingParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> Bits:
        """Draw rows, (n_samples, n_features): exactly of at most 20 features, else by Gibbs chains.

        With groups, `segments` are those of the rows, (n_samples,); None draws them.
        """
        if params.groups is None:
            return draw_states(params, n_samples, rng)
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        X = np.empty((n_samples, len(params.shares)), np.uint8)
        for segment in np.unique(segments).tolist():
            (rows,) = np.nonzero(segments == segment)
            X[rows] = draw_states(params.take_group(segment), len(rows), rng)
        return X


def _find_constant(own: Regressions, auxiliary: Arrays) -> NDArray[np.bool_]:
    """Return which regressions are of features that are constant in their group."""
    is_constant = auxiliary["is_constant"]
    networks = np.arange(len(own.targets)) // max(len(own.targets) // len(is_constant), 1)
    found: NDArray[np.bool_] = is_constant[networks, own.targets][own.groups]
    return found


def _read_sample(auxiliary: Arrays, n_features: int) -> Mapping[int, Array]:
    """Return the coefficients that a sample gave each target, for the penalties that it fitted.

    They are (n_penalties, 1 + n_features) of each, the intercept first.
    """
    if "sample_targets" not in auxiliary:
        return {}
    own = Regressions(*(auxiliary[f"sample_{name}"] for name in Regressions._fields))
    found: dict[int, Array] = {}
    for g, target in enumerate(own.targets.tolist()):
        rows = np.flatnonzero((own.groups == g) & own.is_running)
        columns = np.append(0, 1 + own.columns[own.starts[g] : own.starts[g + 1]])
        found[target] = np.zeros((len(rows), 1 + n_features))
        for place, r in enumerate(rows.tolist()):
            found[target][place, columns] = own.values[own.places[r] : own.places[r + 1]]
    return found


def _maximize_likelihood(
    params: IsingParams, free: Indices, n_rows: float, group: int, auxiliary: Arrays
) -> tuple[IsingParams, float]:
    """Match the moments of the model and the data; return the largest difference too.

    Features that are constant in the group have no edges.
    """
    square = np.ix_(free, free)
    shares = params.shares[free]
    joint = auxiliary["covariances"][group][square] + np.outer(shares, shares)
    joint[np.diag_indices(len(free))] = shares
    own, rng = params.couplings[square], np.random.default_rng(int(auxiliary["seed"]))
    matched = match_moments(params.thresholds[free], own, own != 0, joint, rng)
    thresholds, couplings = params.thresholds.copy(), params.couplings.copy()
    thresholds[free], couplings[square] = matched.thresholds, matched.couplings
    params = replace(params, thresholds=thresholds, couplings=couplings)
    if matched.covariance is None:
        return params, matched.largest_difference
    errors = np.sqrt(np.diagonal(matched.covariance) / n_rows)
    thresholds_error, couplings_error = np.zeros_like(thresholds), np.zeros_like(couplings)
    left, right = np.nonzero(np.triu(own != 0))
    thresholds_error[free] = errors[: len(free)]
    couplings_error[free[left], free[right]] = errors[len(free) :]
    couplings_error += couplings_error.T
    params = replace(params, thresholds_error=thresholds_error, couplings_error=couplings_error)
    return params, matched.largest_difference


def find_modes(couplings: Array, n_components: int) -> Array:
    """Return √λ v of the leading eigenpairs of couplings, (n_features, n_components).

    Large entries have a positive sum. Modes beyond those with positive eigenvalues are 0.
    """
    values, vectors = np.linalg.eigh(couplings)
    order = np.argsort(-values, kind="stable")[:n_components]
    modes = np.zeros((len(couplings), n_components))
    modes[:, : len(order)] = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    return np.asarray(modes * np.where((modes**3).sum(axis=0) < 0, -1.0, 1.0))
