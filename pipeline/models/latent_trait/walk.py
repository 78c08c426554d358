"""Latent-trait model of the same members in several periods: positions follow random walks.

Row n has the answers of member m in a period at time t. With one trait and binary items,

    P(t_ni = 1 | x_n) = σ(w_i x_n + b_i),   x_m1 ~ N(0, 1),   x_mk ~ N(x_m,k−1, s² (t_k − t_k−1))

(A. D. Martin, K. M. Quinn, Political Analysis 10, 2002). Weights and offsets have normal priors of
precision λ, the setting `prior_precision`, because items with few answers often separate members:
b ~ N(0, 1 / λ) and w σ ~ N(0, 1 / λ), where σ² is the mean variance of x over all rows under the
walk.

Fit by EM, with expectation propagation between rows (T. Minka, UAI 2001). The likelihood L_n of row
n is replaced by a Gaussian site, so that Kalman smoothing gives the distribution of all positions
of a member, see `numerics.gaussian.random_walk`. In a pass,

1. tasks integrate L_n over the cavity N(m_n, v_n) of each row, its distribution given all other
   rows of the member, on nodes centred at the row's posterior. This gives the moments of x_n, and
   the sums of the M-step as without a walk;
2. the central step divides these moments by the cavities, which gives the sites, and takes the mean
   of these and the last ones (damping); takes a step of Newton for each item; finds the likeliest
   s², mean and scale of positions given the sites, and absorbs the latter two in the items
   (parameter expansion); and smooths. Periods that no item links have a mean and scale each, which
   else would follow one another slowly.

At convergence, log P(data) ≈ Σ_n log Z_n − Σ_n log ∫ N(x; m_n, v_n) site_n(x) dx + Σ_m log ∫ prior
× sites, which does not change with the sites to first order. The first passes find the direction
of the largest variance in each period by the power method. Members in several periods then give
all periods the same sign.

=========  ===================  ==================
symbol     name in artifacts    shape
=========  ===================  ==================
w          weights              (n_features, 1)
b          offsets              (n_features,)
s²         innovation_variance  ()
m, v       prior_mean,          (n_member_periods,)
           prior_variance
⟨x⟩, s.e.  position,            (n_member_periods,)
           position_error
=========  ===================  ==================

Cost per block: n_samples n_features (n_nodes + 5) for the features that its rows observe, and
smoothing of all rows in each central step. Passes: tens. Rows are missing by design: a feature
without answers in a period costs nothing there.
Not identifiable: the sign of x, which is such that slopes have a positive sum; and the direction
and scale of periods that neither members nor features link. Errors of positions are given the
items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.data.periods import RowPeriods
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PassCountCriterion,
)
from pipeline.models.base import Model
from pipeline.models.latent_trait.checks import find_constant_items
from pipeline.models.latent_trait.fit_warnings import MAX_STRETCH
from pipeline.models.latent_trait.model import compute_difficulties
from pipeline.models.latent_trait.params import MAX_PARAMETER
from pipeline.models.latent_trait.starts import convert_to_slopes, stretch_offsets
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.models.support import Support
from pipeline.models.vocabulary import ITEM_RESPONSE, Vocabulary
from pipeline.numerics.bits.kernels import unpack_rows
from pipeline.numerics.bits.packed_rows import transpose_bits
from pipeline.numerics.gaussian.random_walk import (
    MIN_INNOVATION,
    ItemPenalty,
    RowGaussian,
    Scales,
    Sites,
    WalkTimes,
    WalkUnits,
    estimate_units,
    find_cavities,
    smooth_walk,
)
from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.newton_step import NewtonStatistics
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_POWER_PASSES = 8
_NODES = 9
_MAX_STEP = 1.0  # of a weight or offset in a pass
_MAX_LOADING = 0.9
_FEW_LINKS = 3  # members that link a period to earlier ones
_INNOVATION = 0.1  # start of s² in the unit of times
_FADING = 0.8  # of earlier scores from period to period
_DAMPING = 0.5  # share of the last sites; without, those of a member who never moves oscillate
_MAX_SCALE = 3.0  # standard deviation of first positions, beyond that of the prior
_NO_CHANGE = 1e-4  # mean variance of changes since first positions, which have 1
_FEW_ANSWERS = 20  # of an item: with 9, a simulated variance of changes of 0.1 came out as 0.03


@dataclass(frozen=True)
class WalkParams:
    """Parameters.

    Attributes
    ----------
    weights, offsets
        Of the items.
    difficulty
        Where P is one half; only after the fit.
    log_prior
        Logarithm of the prior of items, nats, before the scale of positions was estimated; None if
        it was not, because the prior hardly moved them.
    innovation_variance
        Variance of the change of a position in a unit of time.
    times
        The times of all periods, ascending.
    member, period
        Index of the member and of the period of each position, sorted by both.
    prior_mean, prior_variance
        Distribution of each position given all other rows of the member.
    position, position_error
        Mean and standard deviation of each position given all rows.
    """

    weights: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    innovation_variance: Array = array_field(allowed=NumberRange(minimum=0))
    times: Array = array_field("period")
    member: Indices = array_field("member_period")
    period: Indices = array_field("member_period")
    prior_mean: Array = array_field("member_period")
    prior_variance: Array = array_field("member_period", allowed=NumberRange(above=0))
    position: Array = array_field("member_period")
    position_error: Array = array_field("member_period")
    difficulty: Array | None = optional_array_field("feature")
    log_prior: Array | None = optional_array_field()

    def find_positions(self, block: BinaryBlock) -> Indices:
        """Return the index of the position of each row of a block, (n_samples,).

        Raises
        ------
        FitError
            If the fit has no position of a row.
        """
        if not block.n_samples:
            return np.zeros(0, np.int64)
        if block.covariates is None:
            raise FitError(
                "Positions over time need the member and the time of each row, which are not read "
                "here. Use `transform`."
            )
        member, time = block.covariates[:, 0].astype(np.int64), block.covariates[:, 1]
        period = np.minimum(np.searchsorted(self.times, time), len(self.times) - 1)
        keys, n_periods = self.member * len(self.times) + self.period, len(self.times)
        own = member * n_periods + period
        places = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
        is_known = (member >= 0) & (self.times[period] == time) & (keys[places] == own)
        if not is_known.all():
            k = int(np.argmin(is_known))
            raise FitError(
                f"row {block.rows[k] + 1}: the fit has no position of this member at time "
                f"{time[k]:.10g}. Fit again with this row, or leave it out."
            )
        return places


class _PeriodRows(NamedTuple):
    """The rows of a block at one time, and the features that they observe.

    Attributes
    ----------
    rows
        Indices within the block, (n_rows,).
    features
        Indices of the features, (n_observed,).
    X, observed
        Values and mask, (n_rows, n_observed).
    """

    rows: NDArray[np.intp]
    features: NDArray[np.intp]
    X: NDArray[np.uint8]
    observed: NDArray[np.uint8]


@dataclass(frozen=True)
class WalkingTrait(Model):
    """Hyperparameters of the latent-trait model with `dynamics=walk`.

    Attributes
    ----------
    n_components
        Number of traits, 1.
    dynamics
        `walk`: the position of each member follows a random walk.
    innovation
        Variance of the change of a position in a unit of time, in units of the variance of first
        positions; None estimates it. With 0, positions do not change.
    prior_precision
        Precision of the normal priors of weights and offsets.
    constant_features
        `refuse` features with the same answer in all rows, or `keep` them with weights of 0.
    nodes
        Number of quadrature nodes of each row; None takes 9.
    acceleration
        `squarem` or `none`.
    max_iter
        Maximum number of passes of a stage.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats.
    """

    name: ClassVar[str] = "latent-trait"
    support: ClassVar[Support] = Support(("binary",), ("periods",))
    unlinked_effect: ClassVar[str] = ""  # members link periods; see `_warn_about_links`
    vocabulary: ClassVar[Vocabulary] = ITEM_RESPONSE._replace(row="row")
    indeterminacy: ClassVar[str] = (
        "the sign of positions, which is such that slopes have a positive sum"
    )
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[WalkParams]] = WalkParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
    }
    signed_arrays: ClassVar[tuple[str, ...]] = ("weights", "difficulty", "prior_mean", "position")
    n_components: int | None = 1
    dynamics: Literal["walk"] = "walk"
    innovation: float | None = setting(None, minimum=0)
    prior_precision: float = setting(0.1, minimum=0)
    constant_features: Literal["refuse", "keep"] = "refuse"
    nodes: int | None = setting(None, minimum=3)
    acceleration: Literal["squarem", "none"] = "squarem"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-4, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_components != 1:
            raise FitError(
                "{dynamics=walk} has one trait. Set {components=1}, or leave it out.",
                parameter="components",
            )

    @property
    def title(self) -> str:
        """What messages call the model."""
        return "latent-trait with {dynamics=walk}"

    def with_structure(self, structure: Structure) -> Self:
        """Return the model of a fit to rows with members and times."""
        if structure.periods is None:
            raise FitError(
                "{dynamics=walk} needs the member and the time of each row. Name their columns by "
                "{row_id=COLUMN} and {time=COLUMN}.",
                parameter="time",
            )
        return super().with_structure(structure)

    @cached_property
    def _times(self) -> WalkTimes:
        return WalkTimes.from_states(self._periods.member, self._periods.time)

    @property
    def _periods(self) -> RowPeriods:
        assert self.structure.periods is not None
        return self.structure.periods

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sums of all tasks."""
        if self.structure.periods is None:
            return 96 * n_features * (n_threads + 2)
        n_states, n_periods = len(self._periods.member), len(np.unique(self._periods.time))
        return 8 * ((12 + n_periods) * n_features + 6 * n_states) * (n_threads + 2)

    def estimate_work(
        self, params: WalkParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the values of a row, and the size of the sums."""
        per_value = 5.0 if "direction" in working else 20.0 + 10.0 * (self.nodes or _NODES)
        n_sums = 6 * n_features + 3 * len(params.member)
        return WorkEstimate(per_value * float(working["values_per_row"]), 8 * n_sums)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the items, and start the power method at a random direction."""
        observed, ones = first.observed.sum(axis=0), first.ones.sum(axis=0)
        constant, warnings = find_constant_items(first, self.constant_features)
        periods = self._periods
        warnings += periods.make_warnings()
        times, period = np.unique(periods.time, return_inverse=True)
        n_states = len(period)
        innovation = self.innovation
        if innovation is None:
            innovation = _INNOVATION / self._times.unit
        margins = (ones + 0.5) / (observed + 1.0)
        params = WalkParams(
            np.zeros((len(ones), 1)),
            logit(margins),
            np.array(innovation),
            times,
            periods.member,
            period.astype(np.int64),
            np.zeros(n_states),
            np.ones(n_states),
            np.zeros(n_states),
            np.ones(n_states),
        )
        direction = rng.standard_normal(len(ones))
        direction[constant] = 0.0
        working = {
            "direction": direction,
            "margins": margins,
            "values_per_row": np.array(observed.sum() / max(first.n_rows, 1)),
        }
        auxiliary = {"constant": constant}
        state = FitState(params, working, auxiliary, warnings=tuple(warnings))
        return state.with_feature_names(self.structure.feature_names)

    def warm_start(self, state: FitState, params: WalkParams) -> FitState:
        """Start from the items of an earlier fit."""
        weights = params.weights.copy()
        weights[state.auxiliary["constant"]] = 0.0
        innovation = state.params if self.innovation is not None else params
        changed = {"offsets": params.offsets, "innovation_variance": innovation.innovation_variance}
        working = {"values_per_row": state.working["values_per_row"]}
        params = replace(state.params, weights=weights, **changed)
        return replace(state, params=params, working=working)

    def summarize(
        self, params: WalkParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: integrate the rows over their cavities, or multiply them by the direction."""
        n_features, n_states = len(params.offsets), len(params.member)
        values = {
            "linear": np.zeros((n_features, 2)),
            "curvature": np.zeros((n_features, 3)),
            "mean": np.zeros(n_states),
            "empty_rows": np.array(block.count_unobserved_rows()),
        }
        if "direction" not in working:
            values["variance"] = np.zeros(n_states)
        elif "factors" in working:
            values["answers"] = np.zeros((n_features, len(params.times)), np.int64)
        places, objective = params.find_positions(block), 0.0
        for part in _split_by_time(block):
            own = places[part.rows]
            if "direction" in working:
                _multiply(part, working, values, own, params.period[own[0]])
                continue
            found = _integrate(params, part, own, self.nodes or _NODES)
            values["linear"][part.features] += found.gradient
            values["curvature"][part.features] += found.curvature
            values["mean"][own] = found.codes[:, 0]
            values["variance"][own] = found.variances[:, 0]
            objective += found.log_likelihood
        return Sums.from_block(block, objective, values)

    def objective(self, params: WalkParams, statistics: Sums) -> float:
        """Return the approximate log-likelihood plus log prior, per row, nats; 0 before EM."""
        if "variance" not in statistics.values:
            return 0.0
        if params.log_prior is not None:
            log_likelihood = self._compute_log_likelihood(params, statistics)
            return (log_likelihood + float(params.log_prior)) / statistics.weight
        log_prior = self._compute_log_prior(params)
        return (self._compute_log_likelihood(params, statistics) + log_prior) / statistics.weight

    def _compute_log_prior(self, params: WalkParams) -> float:
        """Return the log prior of items, nats."""
        squares = params.weights**2 * self._compute_spread(params)
        return -0.5 * self.prior_precision * float(squares.sum() + (params.offsets**2).sum())

    def _compute_spread(self, params: WalkParams) -> float:
        """Return the variance of positions over all rows before any answer is known.

        Priors of weights are those of w times its root. Otherwise, positions that move far away
        from the first ones would make weights small, and so more probable.
        """
        return 1.0 + float(params.innovation_variance) * self._times.mean_age

    def mean_log_likelihood(self, params: WalkParams, statistics: Sums) -> float:
        """Return the approximate log-likelihood per row, nats."""
        return self._compute_log_likelihood(params, statistics) / statistics.weight

    def _compute_log_likelihood(self, params: WalkParams, statistics: Sums) -> float:
        cavity, sites = _find_sites(params, statistics)
        smoothed = smooth_walk(self._times, float(params.innovation_variance), sites)
        own = float(sites.integrate(*cavity).sum())
        return statistics.objective - own + smoothed.log_integral

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop on the change of the objective, after a number of passes of the power method."""
        if "direction" in state.working:
            return PassCountCriterion(1 if "factors" in state.working else _POWER_PASSES)
        return ObjectiveCriterion(self.max_iter, self.tol)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Take a step for items and the walk, and smooth; or a step of the power method."""
        sums = statistics.values
        if "direction" in state.working:
            direction = sums["linear"][:, 0]
            largest = max(float(np.abs(direction).max()), 1e-300)
            return replace(state, working={**state.working, "direction": direction / largest})
        params = state.params
        cavity, sites = _find_sites(params, statistics)
        last = Sites.divide(params.position, params.position_error**2, cavity)
        share = _DAMPING * (last.precision > 0)
        sites = Sites(*(share * a + (1 - share) * b for a, b in zip(last, sites, strict=True)))
        forms = np.column_stack([params.weights, params.offsets])
        scales = Scales.make_common(len(params.member), len(forms))
        precision = 0.0
        if params.log_prior is None:  # items stay when the scale of positions is estimated
            forms, precision = self._step_items(state, sums), self.prior_precision
            if (periods := state.auxiliary.get("period_scales")) is not None:
                scales = Scales(periods[params.period], state.auxiliary["item_scales"])
        penalty = ItemPenalty(precision, *forms.T)
        largest = self._find_largest_scale(state)
        units = self._estimate_units(params, sites, scales, penalty, largest)
        sites = sites.standardize(units.mean[scales.state], units.deviation[scales.state])
        offsets = forms[:, 1] + units.mean[scales.item] * forms[:, 0]
        offsets[state.auxiliary["constant"]] = params.offsets[state.auxiliary["constant"]]
        params = replace(
            params,
            weights=units.deviation[scales.item, None] * forms[:, :1],
            offsets=offsets,
            innovation_variance=np.array(units.innovation),
        )
        return replace(state, params=self._smooth(params, sites))

    def _find_largest_scale(self, state: FitState) -> float:
        """Return the largest standard deviation of first positions in the next step.

        It is bounded because answers that separate members only bound it from below.
        """
        if state.params.log_prior is None:
            return np.inf
        slopes = float(np.linalg.norm(state.params.weights))
        return max(_MAX_SCALE * float(state.auxiliary["slopes"]) / max(slopes, 1e-300), 1.0)

    def _estimate_units(
        self,
        params: WalkParams,
        sites: Sites,
        scales: Scales,
        penalty: ItemPenalty,
        largest: float = np.inf,
    ) -> WalkUnits:
        smallest = MIN_INNOVATION / self._times.unit
        start = max(float(params.innovation_variance), smallest)
        return estimate_units(self._times, sites, scales, start, self.innovation, penalty, largest)

    def pack_params(self, params: WalkParams) -> Array:
        """Return weights and offsets, (n_features, 2)."""
        return np.column_stack([params.weights, params.offsets])

    def unpack_params(self, params: WalkParams, packed: Array, weight: float) -> WalkParams:
        """Return parameters with these weights and offsets."""
        forms = np.clip(packed, -MAX_PARAMETER, MAX_PARAMETER)
        return replace(params, weights=forms[:, :1], offsets=forms[:, 1])

    def _step_items(self, state: FitState, sums: Arrays) -> Array:
        """Return weights and offsets after a step of Newton for each item, (n_features, 2)."""
        params = state.params
        precision = self.prior_precision * np.array([self._compute_spread(params), 1.0])
        forms = np.column_stack([params.weights, params.offsets])
        gradient = sums["linear"] - forms * precision
        (a, c, b), ridge = sums["curvature"].T, 1e-9
        a, b = a + precision[0] + ridge, b + precision[1] + ridge
        step = (
            np.column_stack(
                [b * gradient[:, 0] - c * gradient[:, 1], a * gradient[:, 1] - c * gradient[:, 0]]
            )
            / (a * b - c * c)[:, None]
        )
        step *= np.minimum(1.0, _MAX_STEP / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
        step[state.auxiliary["constant"]] = 0.0
        return np.asarray(np.clip(forms + step, -MAX_PARAMETER, MAX_PARAMETER))

    def _smooth(self, params: WalkParams, sites: Sites) -> WalkParams:
        """Return the parameters with the positions and cavities that follow from sites."""
        innovation = float(params.innovation_variance)
        posterior = smooth_walk(self._times, innovation, sites).posterior
        cavity = find_cavities(posterior, sites)
        return replace(
            params,
            prior_mean=cavity.mean,
            prior_variance=cavity.variance,
            position=posterior.mean,
            position_error=np.sqrt(posterior.variance),
        )

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Sum loadings with periods of the same sign; begin EM where these end; then scale."""
        if "direction" not in state.working:
            return self._begin_scaling(state, statistics)
        params, sums, working = state.params, statistics.values, state.working
        if "factors" not in working:
            factors, warnings = self._align_periods(params, sums["mean"])
            state = replace(state, working={**working, "factors": factors[params.period]})
            return state.with_warnings(warnings)
        covariance, variance = sums["linear"].T
        scale = np.sqrt(variance * sums["curvature"][:, 0])
        loadings = np.divide(covariance, scale, out=np.zeros(len(scale)), where=scale > 0)
        weights = convert_to_slopes(np.clip(loadings, -_MAX_LOADING, _MAX_LOADING)[:, None])
        weights[state.auxiliary["constant"]] = 0.0
        weights *= -1.0 if weights.sum() < 0 else 1.0
        params = replace(params, weights=weights, offsets=params.offsets * stretch_offsets(weights))
        working = {"values_per_row": working["values_per_row"]}
        periods, items = _find_linked_periods(sums["answers"] > 0)
        auxiliary = {**state.auxiliary, "period_scales": periods, "item_scales": items}
        return replace(state, params=params, working=working, auxiliary=auxiliary)

    def _begin_scaling(self, state: FitState, statistics: Sums) -> FitState | None:
        """Start a last stage, which only estimates the distribution of positions given the items.

        With many items and few members, the priors of items stretch positions beyond the variance
        1 of first ones. None if they hardly do.
        """
        params = state.params
        if not self.prior_precision or params.log_prior is not None:
            return None
        _, sites = _find_sites(params, statistics)
        scales = Scales.make_common(len(params.member), len(params.offsets))
        penalty = ItemPenalty(0.0, params.weights[:, 0], params.offsets)
        units = self._estimate_units(params, sites, scales, penalty)
        if abs(float(units.deviation[0]) - 1) < MAX_STRETCH:
            return None
        log_prior = np.array(self._compute_log_prior(params))
        auxiliary = {**state.auxiliary, "slopes": np.array(np.linalg.norm(params.weights))}
        return replace(state, params=replace(params, log_prior=log_prior), auxiliary=auxiliary)

    def _align_periods(
        self, params: WalkParams, scores: Array
    ) -> tuple[Array, tuple[FitWarning, ...]]:
        """Return a factor of the scores of each period, (n_periods,), so that members keep theirs.

        In each period, members have the sign that agrees best with their earlier scores.
        """
        scales, earlier = np.ones(len(params.times)), np.zeros(len(self._periods.columns.members))
        is_known = np.zeros(len(earlier), np.bool_)
        weak: list[str] = []
        for k, time in enumerate(params.times.tolist()):
            own = np.flatnonzero(params.period == k)
            members = params.member[own]
            n_links = int(is_known[members].sum())
            agreement = float(scores[own] @ earlier[members])
            size = float(np.sqrt(np.mean(scores[own] ** 2)))
            scales[k] = (-1.0 if agreement < 0 else 1.0) / max(size, 1e-300)
            if k and n_links < _FEW_LINKS:
                weak.append(f"{time:.10g} ({n_links})")
            earlier[members] = _FADING * earlier[members] + scales[k] * scores[own]
            is_known[members] = True
        if not weak:
            return scales, ()
        shown = ", ".join(weak[:8]) + (f" and {len(weak) - 8} more" if len(weak) > 8 else "")
        text = (
            f"fewer than {_FEW_LINKS} members link these times to earlier ones (number of "
            f"members): {shown}. Unless features link them, the sign and scale of positions there "
            "are hardly determined"
        )
        return scales, (FitWarning(text, parameter="time"),)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Make the sum of slopes positive; add difficulties, diagnostics and warnings."""
        params = state.params
        sign = -1.0 if params.weights.sum() < 0 else 1.0
        weights = sign * params.weights
        params = replace(
            params,
            weights=weights,
            prior_mean=sign * params.prior_mean,
            position=sign * params.position,
            difficulty=compute_difficulties(weights[:, 0], params.offsets),
        )
        innovation = float(params.innovation_variance)
        diagnostics = {
            "n_components": 1,
            "innovation_variance": innovation,
            "members": len(self._periods.columns.members),
            "periods": len(params.times),
            "rows_without_values": int(statistics.values["empty_rows"]),
            "objective_is": "approximate log-likelihood",
        }
        warnings = []
        if empty := diagnostics["rows_without_values"]:
            text = f"rows without any value: {empty:,}; their positions follow from other periods"
            warnings.append(FitWarning(text))
        if self._find_largest_scale(state) < 1 + MAX_STRETCH:
            text = (
                "answers nearly separate members, so that the scale of positions, and of the "
                "variance of changes, is hardly determined; their order is"
            )
            warnings.append(FitWarning(text))
        if self.innovation is None and not self._times.n_steps:
            text = (
                "no member has rows at several times, so the variance of changes is not "
                "determined, and positions are those of a fit without {dynamics=walk}"
            )
            warnings.append(FitWarning(text))
        elif self.innovation is None and innovation * self._times.mean_age < _NO_CHANGE:
            text = (
                "the variance of changes is estimated as 0: positions hardly differ from period "
                "to period"
            )
            warnings.append(FitWarning(text))
        n_answers = float(state.working["values_per_row"]) * statistics.n_rows / len(weights)
        if self.innovation is None and self._times.n_steps and n_answers < _FEW_ANSWERS:
            text = (
                f"items have only {n_answers:.1f} answers on average. With so few, the variance of "
                f"changes, here {innovation:.2g}, is estimated too small, and positions change too "
                "little. Set it, such as {innovation=0.1}"
            )
            warnings.append(FitWarning(text, parameter="innovation"))
        return replace(state, params=params, diagnostics=diagnostics).with_warnings(warnings)

    def transform(
        self, params: WalkParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: return `mean` and `variance` of each row given all rows of its member."""
        mean, variance = np.zeros((2, block.n_samples, 1))
        places = params.find_positions(block)
        for part in _split_by_time(block):
            found = _integrate(params, part, places[part.rows], self.nodes or _NODES)
            mean[part.rows], variance[part.rows] = found.codes, found.variances
        return {"mean": mean, "variance": variance}

    def reconstruct(
        self, params: WalkParams, codes: Array, segments: Indices | None = None
    ) -> Array:
        """Return P(t = 1 | x), (n_samples, n_features)."""
        probabilities: Array = expit(codes @ params.weights.T + params.offsets)
        return probabilities


def _split_by_time(block: BinaryBlock) -> Iterator[_PeriodRows]:
    """Yield the rows of each time, with the features that they observe."""
    if not block.n_samples or block.covariates is None:
        return
    _, inverse = np.unique(block.covariates[:, 1], return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    features = [np.arange(block.n_features)] * len(starts)
    if block.observed_words is not None:  # before rows are taken, as most features are missing
        masks = transpose_bits(block.observed_words, block.n_samples)[:, order]
        answered = np.bitwise_or.reduceat(masks, starts, axis=1)
        features = [np.flatnonzero(bits) for bits in unpack_rows(answered.T, block.n_features).T]
    for rows, own in zip(np.split(order, starts[1:]), features, strict=True):
        is_range = len(rows) == rows[-1] + 1 - rows[0]  # which is cut without unpacking
        part = block.take_features(own) if len(own) < block.n_features else block
        part = part.take_rows(range(rows[0], rows[-1] + 1) if is_range else rows)
        X, observed = part.unpack_values(), part.unpack_mask()
        yield _PeriodRows(rows, own, X, np.ones_like(X) if observed is None else observed)


def _integrate(
    params: WalkParams, part: _PeriodRows, places: Indices, n_nodes: int
) -> NewtonStatistics:
    """Integrate rows over their cavities."""
    own = params.weights[part.features], params.offsets[part.features]
    means, variances = params.prior_mean[places, None], params.prior_variance[places]
    if not part.features.size:  # rows without values
        none = np.zeros((0, 2)), np.zeros((0, 3)), np.zeros((2, 2)), 0.0, 0
        return NewtonStatistics(*none, means, variances[:, None])
    return centred_e_step(
        part.X,
        part.observed,
        *own,
        row_means=means,
        nodes_per_axis=n_nodes,
        row_variances=variances,
        row_starts=params.position[places, None],
    )


def _multiply(
    part: _PeriodRows,
    working: Arrays,
    values: Mapping[str, NDArray[Any]],
    places: Indices,
    period: int,
) -> None:
    """Add the products of standardized values with the direction, and of these with the values."""
    margins = working["margins"][part.features]
    residuals = (part.X - margins) * part.observed / np.sqrt(margins * (1 - margins))
    scores = residuals @ working["direction"][part.features]
    values["mean"][places] = scores
    if "factors" in working:
        scores = scores * working["factors"][places]
        values["answers"][part.features, period] += part.observed.sum(axis=0, dtype=np.int64)
    values["linear"][part.features, 0] += scores @ residuals
    values["linear"][part.features, 1] += scores**2 @ part.observed
    values["curvature"][part.features, 0] += (residuals**2).sum(axis=0)


def _find_linked_periods(answered: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Number the sets of periods that items link, for each period and for each item.

    `answered` tells in which periods an item has answers, (n_features, n_periods).
    """
    graph = csr_array(answered.astype(np.int64))
    _, periods = connected_components(graph.T @ graph, directed=False)
    return periods.astype(np.int64), periods[answered.argmax(axis=1)].astype(np.int64)


def _find_sites(params: WalkParams, statistics: Sums) -> tuple[RowGaussian, Sites]:
    """Return the cavities of a pass, and the sites that follow from its moments."""
    cavity = RowGaussian(params.prior_mean, params.prior_variance)
    mean, variance = statistics.values["mean"], statistics.values["variance"]
    return cavity, Sites.divide(mean, variance, cavity)
