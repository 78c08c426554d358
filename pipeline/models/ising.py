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
the model are enumerated for at most 15 features; otherwise they are estimated by Gibbs chains that
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

The penalty of a regression is per row, λ Σ_j s_j |b_j| or λ / 2 Σ_j s_j² b_j² for `penalty=ridge`,
where s_j is the standard deviation of x_j, as in glmnet. The path has glmnet's range, from the
largest penalty that leaves a neighbour to 1/10,000 of it, or 1/100 if there are fewer rows than
features. It has no early stop.

All regressions, for all features and penalties, take Newton's steps at the same time, so that few
passes serve the whole path. A pass sums their gradients, and the information about the coefficients
that are not 0. The regressions of more than 128 features consider 64 neighbours each, those that a
linear regression on all features finds; a further pass then computes the gradients by all features,
and adds those that should be neighbours.

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
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from pipeline.arrays import Array, Bits, Indices
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ExpectedGainCriterion,
    PassCountCriterion,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import FeatureNetwork, LogLikelihood
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.bits import kernels
from pipeline.numerics.logistic.node_regressions import (
    Regressions,
    RegressionSums,
    fill_residuals,
    follow_linear_paths,
    sum_regressions,
    take_newton_steps,
)
from pipeline.numerics.networks.boltzmann_rows import affine_outputs
from pipeline.numerics.networks.ising_states import (
    impute,
    resample,
    run_chains,
    sum_missing,
)
from pipeline.numerics.networks.unit_states import list_states
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import Sums

MAX_ENUMERATED = 20
"""Most features whose states are enumerated, for log Z and samples."""
_MAX_MISSING = 16  # values of a row whose states are enumerated
_DEFAULT_COMPONENTS = 2
_NARROW, _CANDIDATES = 128, 64  # features, and predictors of each if there are more
_MOST_CHECKS = 5
_LEAST_RIDGE = 1e-8
_MAX_START = 1.5  # of coefficients: linear regressions of rare features would overshoot
_LARGE = 8.0  # a coefficient by which the odds change 3,000-fold
_CHECK_ROWS = 4096
# For samples: number of chains, temperatures of the annealing, Gibbs sweeps between two rows.
_SAMPLING_CHAINS, _BURN_IN, _SWEEPS_BETWEEN_SAMPLES = 5000, 300, 10
_UNKNOWN = 1e300  # a gain, or minus an objective; stored numbers are finite
_NOT_WORSE = 1e-12  # relative change of an objective by rounding
_SHARE = NumberRange(minimum=0, maximum=1)


@dataclass(frozen=True)
class IsingParams:
    """Parameters; the module's table gives shapes. `shares` are shares of ones, (n_features,)."""

    thresholds: Array = array_field("feature")
    couplings: Array = array_field("feature", "feature_j")
    slopes: Array = array_field("feature", "feature_j")
    strengths: Array = array_field("feature", allowed=NumberRange(minimum=0))
    shares: Array = array_field("feature", allowed=_SHARE)
    modes: Array = array_field("feature", "component")
    couplings_error: Array | None = optional_array_field("feature", "feature_j")
    thresholds_error: Array | None = optional_array_field("feature")
    log_z: Array | None = optional_array_field()


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
        Number of leading eigenvectors of the couplings that rows are projected on. None takes 2.
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
    max_iter
        Maximum number of passes of a stage.
    tol
        Stop once further steps should raise the mean log-likelihood per row of a feature by less
        than this, nats.
    """

    name: ClassVar[str] = "ising"
    support: ClassVar[Support] = Support(("binary",), ("frequency",))
    unlinked_effect: ClassVar[str] = "they cannot be fitted together"
    statistics: ClassVar[type[NetworkSums]] = NetworkSums
    params: ClassVar[type[IsingParams]] = IsingParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("modes",)
    indeterminacy: ClassVar[str] = "the signs of the components"
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("n_edges",)
    n_components: int | None = None
    penalty: Literal["lasso", "ridge", "none"] = "lasso"
    strength: float | None = setting(None, above=0)
    gamma: float = setting(0.25, minimum=0, maximum=1)
    path: int = setting(100, minimum=2)
    rule: Literal["and", "or"] = "and"
    max_iter: int = setting(100, minimum=1)
    tol: float = setting(1e-9, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty == "none" and self.strength is not None:
            raise FitError(
                "{strength} needs {penalty=lasso} or {penalty=ridge}.", parameter="strength"
            )

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of squares of pairs, and of the sums of all regressions."""
        n_columns = n_features if n_features <= _NARROW else _CANDIDATES
        is_path = self.penalty == "lasso" and self.strength is None
        n_regressions = n_features * (self.path if is_path else 1)
        n_active = n_columns // 2 if self.penalty == "lasso" else n_features
        sums = n_regressions * (3 * n_columns + n_active**2)
        return 8 * (n_features**2 * (2 * n_threads + 8) + sums * (n_threads + 2))

    def estimate_work(
        self, params: IsingParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of counting pairs, or of the regressions that have not converged."""
        if "targets" not in working:
            return WorkEstimate(0.01 * n_features**2, 8 * n_features**2)
        own = _read_regressions(working)
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
        modes = np.zeros((p, self.n_components or _DEFAULT_COMPONENTS))
        params = IsingParams(zeros, square, square, zeros, ones / observed, modes)
        incomplete = np.flatnonzero(first.observed.sum(axis=0) < first.total)
        return FitState(params, auxiliary={"incomplete": incomplete})

    def summarize(
        self, params: IsingParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> NetworkSums:
        """Count the pairs of complete rows, or sum the regressions over them."""
        rows = take_complete_rows(block)
        weights = np.ones(rows.n_samples) if rows.row_weights is None else rows.row_weights
        sizes = block.n_samples, rows.weight
        if "targets" not in working:
            joint = np.zeros((rows.n_features, rows.n_features), np.int64)
            kernels.add_joint_counts(rows.words, rows.words, joint, rows.split_weights())
            counts = joint if rows.weight_unit == 1 else rows.weight_unit * joint
            return NetworkSums(*sizes, 0.0, {"joint": counts, "all_rows": np.array(block.weight)})
        regressions = _read_regressions(working)
        words = np.ascontiguousarray(rows.words)
        if "checks" in working:
            return NetworkSums(
                *sizes, 0.0, {"products": _sum_products(words, weights, regressions)}
            )
        sums = sum_regressions(words, weights, regressions)
        objective = float(sums.nats.sum() + working["constant"] * rows.weight)
        return NetworkSums(*sizes, objective / float(working["path"]), sums._asdict())

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop once no regression has anything to gain; counts and checks take one pass."""
        if "gains" not in state.auxiliary or "checks" in state.working:
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
        return self._step(state, statistics)

    def _step(self, state: FitState, statistics: NetworkSums) -> FitState:
        """Take Newton's steps; a regression whose last step was too long goes half of it back."""
        own, before = _read_regressions(state.working), state.auxiliary
        sums = RegressionSums(**statistics.values)
        penalties = _sum_penalties(own, before["scales"], before["lasso"], before["ridge"])
        objectives = sums.nats / statistics.weight - penalties
        best = before["objectives"]
        is_worse = own.is_running & (objectives < best - _NOT_WORSE * np.abs(best))
        is_moving = own.is_running & ~is_worse
        gains = np.where(is_worse, _UNKNOWN, 0.0)
        values, is_active = own.values.copy(), own.is_active.copy()
        take_newton_steps(
            own,
            own.square_places,
            sums,
            statistics.weight,
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
        return self._place(state, moved, {**before, **after})

    def _place(self, state: FitState, own: Regressions, auxiliary: Arrays) -> FitState:
        """Return a state with these regressions; the objective is that of finished ones as well."""
        penalties = _sum_penalties(own, auxiliary["scales"], auxiliary["lasso"], auxiliary["ridge"])
        constant = np.where(own.is_running, -penalties, auxiliary["objectives"]).sum()
        n_penalties = len(own.groups) / max(len(own.targets), 1)
        shared = {"constant": np.array(constant), "path": np.array(max(n_penalties, 1.0))}
        return replace(state, working={**own._asdict(), **shared}, auxiliary=auxiliary)

    def objective(self, params: IsingParams, statistics: NetworkSums) -> float:
        """Return the penalised pseudo-likelihood per row, the mean over the path; 0 of counts."""
        return float(statistics.objective / max(statistics.weight, 1e-300))

    def next_stage(self, state: FitState, statistics: NetworkSums) -> FitState | None:
        """Fit the path after the counts; then choose penalties, and check other neighbours."""
        if "joint" in statistics.values:
            return self._begin_path(state, statistics)
        if "products" in statistics.values:
            return self._add_neighbours(state, statistics)
        is_wide = self.penalty == "lasso" and len(state.working["targets"]) > _NARROW
        if is_wide and int(state.auxiliary["n_checks"]) < _MOST_CHECKS:
            state = self._choose_penalties(state)
            return replace(state, working={**state.working, "checks": np.array(True)})
        return None

    def _begin_path(self, state: FitState, counts: NetworkSums) -> FitState:
        """Start the regressions of all features and penalties near those of linear regressions."""
        joint, weight = counts.values["joint"], counts.weight
        incomplete = tuple(state.auxiliary["incomplete"].tolist())
        n_rows = float(counts.values["all_rows"])
        if incomplete and weight < 2:
            raise FitError(
                f"Only {weight:,.0f} of {n_rows:,.0f} rows have values of all features, and ising "
                "uses no others. Leave out those with missing values by {drop=NAME}: {features}.",
                incomplete,
            )
        warnings = list(state.warnings)
        if incomplete:
            text = (
                f"{n_rows - weight:,.0f} of {n_rows:,.0f} rows have missing values and are left "
                "out; values are missing of: {features}"
            )
            warnings.append(FitWarning(text, incomplete))
        ones = np.diagonal(joint).copy()
        warnings += make_constant_feature_warnings(
            np.full_like(ones, weight), ones, "they have no edges"
        )
        shares = ones / weight
        covariance = joint / weight - np.outer(shares, shares)
        covariance = np.where(np.outer(*2 * [(ones > 0) & (ones < weight)]), covariance, 0.0)
        scales = np.sqrt(np.diagonal(covariance))
        params = replace(state.params, shares=shares, thresholds=_bound_logits(ones, weight))
        own, lasso, ridge = self._start_regressions(covariance, scales, shares, weight)
        n = len(own.groups)
        auxiliary = {
            "weight": np.array(weight),
            "covariance": covariance,
            "scales": scales,
            "lasso": lasso,
            "ridge": ridge,
            "objectives": np.full(n, -_UNKNOWN),
            "best_values": own.values,
            "nats": np.zeros(n),
            "gains": np.full(n, _UNKNOWN),
            "n_checks": np.array(0),
        }
        return self._place(replace(state, params=params, warnings=tuple(warnings)), own, auxiliary)

    def _start_regressions(
        self, covariance: Array, scales: Array, shares: Array, weight: float
    ) -> tuple[Regressions, Array, Array]:
        """Return the regressions, and λ of the lasso and of ridge of each."""
        (targets,) = np.nonzero(scales)
        p = len(targets)
        if p < 2:
            targets = targets[:0]
        covariance, scales = covariance[np.ix_(targets, targets)], scales[targets]
        strengths = self._list_strengths(covariance, scales, weight)
        n_penalties = strengths.shape[1]
        columns, values, is_lasso = [], [], self.penalty == "lasso"
        for i, share in enumerate(shares[targets]):
            slopes = np.zeros((n_penalties, p))
            candidates = np.delete(np.arange(p), i)
            if is_lasso:
                penalties = strengths[i, :, None] * scales
                follow_linear_paths(covariance, i, penalties, slopes)
                slopes = np.clip(slopes / scales[i] ** 2, -_MAX_START, _MAX_START)
                if p > _NARROW:
                    size = np.abs(slopes[-1] * scales)
                    size[i] = -1.0
                    candidates = np.sort(np.argsort(-size, kind="stable")[:_CANDIDATES])
            slopes = slopes[:, candidates]
            intercepts = logit(share) - slopes @ shares[targets][candidates]
            columns.append(targets[candidates])
            values.append(np.column_stack([intercepts, slopes]))
        own = _make_regressions(targets, columns, values, all_active=not is_lasso)
        flat = strengths.ravel()
        if is_lasso:
            return own, flat, np.zeros(len(flat))
        return own, np.zeros(len(flat)), np.maximum(flat, _LEAST_RIDGE)

    def _list_strengths(self, covariance: Array, scales: Array, weight: float) -> Array:
        """Return the penalties of each feature, the largest first, (n_features, n_penalties)."""
        p = len(scales)
        if self.penalty == "none":
            return np.zeros((p, 1))
        if self.strength is not None or self.penalty == "ridge":
            return np.full((p, 1), self.strength or 1 / weight)
        off = np.abs(covariance / scales)
        np.fill_diagonal(off, 0.0)
        ratio = 1e-4 if weight > p - 1 else 1e-2
        largest = np.maximum(off.max(axis=1, initial=0.0), 1e-12)
        return np.asarray(largest[:, None] * ratio ** np.linspace(0, 1, self.path))

    def _choose_penalties(self, state: FitState) -> FitState:
        """Keep the regression of each feature with the least EBIC."""
        own, auxiliary = _read_regressions(state.working), state.auxiliary
        n_targets = len(own.targets)
        if len(own.groups) == n_targets:
            return state
        edges = np.split(own.values, own.places[1:-1])
        n_neighbours = np.array([np.count_nonzero(values[1:]) for values in edges])
        per_edge = np.log(auxiliary["weight"]) + 2 * self.gamma * np.log(max(n_targets - 1, 1))
        ebic = (per_edge * n_neighbours - 2 * auxiliary["nats"]).reshape(n_targets, -1)
        chosen = ebic.argmin(axis=1) + np.arange(n_targets) * ebic.shape[1]
        values = [edges[r][None] for r in chosen]
        columns = np.split(own.columns, own.starts[1:-1])
        kept = _make_regressions(own.targets, columns, values, all_active=False)
        kept = kept._replace(is_running=np.zeros(n_targets, np.bool_))
        names = ("lasso", "ridge", "objectives", "nats", "gains")
        after = {name: auxiliary[name][chosen] for name in names}
        after = {**auxiliary, **after, "best_values": kept.values, "ebic": ebic.min(axis=1)}
        return self._place(state, kept, after)

    def _add_neighbours(self, state: FitState, statistics: NetworkSums) -> FitState | None:
        """Add predictors whose gradient exceeds the penalty, and continue if there are any."""
        own, auxiliary = _read_regressions(state.working), state.auxiliary
        products = np.abs(statistics.values["products"]) / statistics.weight
        limits = 1.001 * np.outer(auxiliary["lasso"], auxiliary["scales"])
        columns = np.split(own.columns, own.starts[1:-1])
        values, changes = np.split(own.values, own.places[1:-1]), np.zeros(len(columns), np.bool_)
        limits[:, auxiliary["scales"] == 0] = np.inf
        limits[np.arange(len(columns)), own.targets] = np.inf
        for r, known in enumerate(columns):
            limits[r, known] = np.inf
            new = np.flatnonzero(products[r] > limits[r])
            changes[r] = len(new) > 0
            columns[r] = np.append(known, new)
            values[r] = np.append(values[r], np.zeros(len(new)))
        if not changes.any():
            return None
        found = _make_regressions(own.targets, columns, [v[None] for v in values], all_active=False)
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
        own, params = _read_regressions(state.working), state.params
        slopes, thresholds = np.zeros_like(params.slopes), params.thresholds.copy()
        strengths = np.zeros_like(thresholds)
        columns = np.split(own.columns, own.starts[1:-1]) if len(own.targets) else []
        values = np.split(own.values, own.places[1:-1]) if len(own.targets) else []
        for target, predictors, coefficients in zip(own.targets, columns, values, strict=True):
            thresholds[target], slopes[target, predictors] = coefficients[0], coefficients[1:]
        strengths[own.targets] = state.auxiliary["lasso"] + state.auxiliary["ridge"]
        couplings = (slopes + slopes.T) / 2
        if self.rule == "and":
            couplings[(slopes == 0) | (slopes.T == 0)] = 0.0
        n_components = params.modes.shape[1]
        params = replace(
            params,
            thresholds=thresholds,
            couplings=couplings,
            slopes=slopes,
            strengths=strengths,
            modes=find_modes(couplings, n_components),
        )
        n_edges = int(np.count_nonzero(np.triu(couplings)))
        diagnostics = {
            "n_components": n_components,
            "n_edges": n_edges,
            "objective_is": "pseudo-likelihood less penalty",
        }
        warnings = (*state.warnings, *self._warn(slopes, n_edges, len(own.targets)))
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def _warn(self, slopes: Array, n_edges: int, n_targets: int) -> tuple[FitWarning, ...]:
        """Warn about coefficients without a finite estimate, and networks without edges."""
        warnings = []
        (large,) = np.nonzero((np.abs(slopes) > _LARGE).any(axis=1))
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

    def prepare(
        self, params: IsingParams, rng: np.random.Generator, map_items: MapFunction
    ) -> IsingParams:
        """Compute log Z of few features."""
        if len(params.shares) > MAX_ENUMERATED:
            return params
        nothing = np.zeros((1, len(params.shares)), np.uint8)
        return replace(params, log_z=_sum_missing(params, nothing, nothing)[0])

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
        if params.log_z is None:
            raise FitError(
                f"ising computes probabilities of rows of at most {MAX_ENUMERATED} features, but "
                f"there are {len(params.shares):,}. Use their pseudo-likelihood."
            )
        X, mask = block.unpack_values(), block.unpack_mask()
        nats = _sum_missing(params, X, np.ones_like(X) if mask is None else mask) - params.log_z
        return LogLikelihood(nats, np.zeros_like(nats))

    def pseudo_log_likelihood(
        self, params: IsingParams, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return Σ_i log P(x_i | the others) over observed values, nats, (n_samples,).

        Of missing others, the mean counts.
        """
        X, mask = block.unpack_values(), block.unpack_mask()
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
        probabilities = np.empty(X.shape)
        impute(params.thresholds, params.couplings, X, mask, probabilities)
        return probabilities

    def get_network(self, params: IsingParams) -> FeatureNetwork:
        """Return the couplings."""
        return FeatureNetwork(params.couplings, params.couplings_error)

    def sample(
        self,
        params: IsingParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> Bits:
        """Draw rows, (n_samples, n_features): exactly of at most 20 features, else by Gibbs chains.

        Chains are annealed from independent features and resampled by their weights, as those of
        `pipeline.models.rbm`; then each yields one row every ten sweeps. Segments are ignored.
        """
        p = len(params.shares)
        if p <= MAX_ENUMERATED:
            nats = np.concatenate([nats for _, nats in iter_states(params)])
            shares = np.cumsum(np.exp(nats - nats.max()))
            states = np.searchsorted(shares, rng.random(n_samples) * shares[-1], side="right")
            return np.asarray(states[:, None] >> np.arange(p) & 1, np.uint8)
        key, n_chains = RowRandom(int(rng.integers(2**63))).key, min(n_samples, _SAMPLING_CHAINS)
        chains = (rng.random((n_chains, p)) < params.shares).astype(np.uint8)
        given = params.thresholds, params.couplings, _bound_logits(params.shares, 1.0), key
        weights, rows = np.zeros(n_chains), np.empty((n_samples, p), np.uint8)
        betas, draw = np.linspace(0, 1, _BURN_IN + 1), 0
        for first in range(0, n_samples, max(n_chains, 1)):
            run_chains(*given, draw, betas, chains, weights)
            draw += p * (len(betas) - 1)
            if not first:
                chains = chains[resample(weights, rng)]
                betas = np.ones(_SWEEPS_BETWEEN_SAMPLES + 1)
            rows[first : first + n_chains] = chains[: n_samples - first]
        return rows


def take_complete_rows(block: BinaryBlock) -> BinaryBlock:
    """Return the rows of a block without missing values."""
    if block.observed_words is None:
        return block
    words = np.bitwise_and.reduce(block.observed_words, axis=0)
    is_complete = kernels.unpack_rows(words[None], block.n_samples)[:, 0]
    return replace(block.take_rows(np.flatnonzero(is_complete)), observed_words=None)


def find_modes(couplings: Array, n_components: int) -> Array:
    """Return √λ v of the leading eigenpairs of couplings, (n_features, n_components).

    Large entries have a positive sum. Modes beyond those with positive eigenvalues are 0.
    """
    values, vectors = np.linalg.eigh(couplings)
    order = np.argsort(-values, kind="stable")[:n_components]
    modes = np.zeros((len(couplings), n_components))
    modes[:, : len(order)] = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    return np.asarray(modes * np.where((modes**3).sum(axis=0) < 0, -1.0, 1.0))


def iter_states(params: IsingParams, n_at_once: int = 1 << 14) -> Any:
    """Yield states, (n_states, n_features), and h x + ½ x J x of each, (n_states,)."""
    p = len(params.shares)
    for first in range(0, 1 << p, n_at_once):
        X = list_states(p, first, min(first + n_at_once, 1 << p)).astype(np.float64)
        yield X, X @ params.thresholds + np.einsum("ni,ni->n", X @ params.couplings, X) / 2


def _sum_missing(params: IsingParams, X: Bits, mask: Bits) -> Array:
    nats = np.empty(len(X))
    sum_missing(params.thresholds, params.couplings, X, mask, nats)
    return nats


def _bound_logits(ones: Array, weight: float) -> Array:
    """Return the log-odds of features, with half a row added to each value if there are rows."""
    half = 0.5 if weight > 1 else 1e-6
    return np.asarray(logit((ones + half) / (weight + 2 * half)))


def _make_regressions(
    targets: Indices,
    columns: Sequence[Indices],
    values: Sequence[Array],
    *,
    all_active: bool,
) -> Regressions:
    """Return regressions of targets on columns, with the coefficients (n_penalties, n) of each."""
    n_columns = np.array([len(own) for own in columns], np.int64)
    n_penalties = np.array([len(own) for own in values], np.int64)
    groups = np.repeat(np.arange(len(targets)), n_penalties)
    places = np.concatenate([[0], np.cumsum(1 + n_columns[groups])])
    flat = np.concatenate([own.ravel() for own in values]) if len(values) else np.zeros(0)
    is_active = (flat != 0) | all_active
    is_active[places[:-1]] = True
    return Regressions(
        targets,
        np.concatenate([[0], np.cumsum(n_columns)]),
        np.concatenate(columns) if len(columns) else np.zeros(0, np.int64),
        groups,
        places,
        flat,
        is_active,
        np.ones(len(groups), np.bool_),
    )


def _read_regressions(working: Arrays) -> Regressions:
    return Regressions(*(working[name] for name in Regressions._fields))


def _sum_penalties(own: Regressions, scales: Array, lasso: Array, ridge: Array) -> Array:
    """Return the penalty per row of each regression, (n_regressions,)."""
    if not len(own.groups):
        return np.zeros(0)
    n_columns = np.diff(own.starts)[own.groups]
    first = own.starts[own.groups]
    places = np.arange(len(own.values)) - np.repeat(own.places[:-1], 1 + n_columns) - 1
    is_slope = places >= 0
    columns = own.columns[np.where(is_slope, np.repeat(first, 1 + n_columns) + places, 0)]
    sizes = np.where(is_slope, np.abs(own.values) * scales[columns], 0.0)
    total = np.add.reduceat(sizes, own.places[:-1])
    squares = np.add.reduceat(sizes**2, own.places[:-1])
    return np.asarray(lasso * total + ridge * squares / 2)


def _sum_products(words: NDArray[np.uint64], weights: Array, own: Regressions) -> Array:
    """Return Σ_n w (x_i − p_i) x_j of each regression and feature, in single precision."""
    total = np.zeros((len(own.targets), len(words)))
    for first in range(0, len(weights), _CHECK_ROWS):
        n = min(_CHECK_ROWS, len(weights) - first)
        residuals = np.empty((len(own.targets), n), np.float32)
        fill_residuals(words, weights, first, own, residuals)
        X = kernels.unpack_rows(words[:, first // 64 : (first + n + 63) // 64], n)
        total += residuals @ X.astype(np.float32)
    return total
