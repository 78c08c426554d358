"""Latent-trait model: binary items that depend on a few Gaussian traits through logistic curves.

Model: x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_i·x + b_i), items independent given x (M. E. Tipping,
"Probabilistic visualisation of high-dimensional binary data", NIPS 1998).

Fit by parameter-expanded EM with one of four E-steps, extrapolated by SQUAREM:

=============  =========================================================================  =======
estimator      E-step                                                                     q
=============  =========================================================================  =======
`variational`  of the paper: the bound of Jaakkola & Jordan; slopes of strongly dependent  any
               items are biased, and slopes of sparse items shrink towards 0
`quadrature`   exact marginal likelihood on a lattice or, with missing values, on          ≤ 3
               Gauss–Hermite nodes (Bock & Aitkin 1981), or on nodes centred at each row
               if posteriors are narrow (Naylor & Smith 1982); more with a bifactor pattern
`ep`           nearly exact likelihood, by expectation propagation (Minka 2001)           any
`sampling`     also of the paper: fixed random draws of x                                any
=============  =========================================================================  =======

`auto` is quadrature, or `ep` if q > 3. The variational fit precedes if q > 2. Fits start from the
counts of pairs of features, see `starts`; where these leave several starts open, a fit tries them.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
w          weights         (n_features, n_components)
b          offsets         (n_features,)
s.e. of w  weights_error   (n_features, n_components)
s.e. of b  offsets_error   (n_features,)
=========  ==============  ================================

Cost per block: n_samples n_features q² per round of the variational E-step (5 to 20 rounds per row)
and of `ep` (4 rounds; a pass takes 1 to 3 times as long); n_samples n_features n_nodes for
quadrature with missing values, without them n_samples (n_features + nodes near a row). Passes: tens
to hundreds. Missing values are left out of a row's likelihood. This is also right if observed
values decide which values are missing, but not if the missing values themselves do.
Not identifiable: rotations of x. The columns of w are its principal axes. The slopes of one trait
have a positive sum; of several traits, the largest slopes of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature, are_binary, count_free_moments
from pipeline.data.matching import UNKNOWN_SEGMENT, draw_segments
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    find_final_objective,
)
from pipeline.learning.held_out import (
    HELD_OUT_SHARE,
    get_best_params,
    get_held_out_scores,
    record_held_out_score,
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import ItemCurves, LogLikelihood
from pipeline.models.latent_trait.em import (
    MAX_INTEGRATION_ERROR,
    NODES_PER_AXIS_LIMITS,
    ItemKind,
    LatentTraitParams,
    NodeGrid,
    begin_finer_stage,
    choose_first_grid,
    count_max_nodes,
    count_own_nodes,
    describe_own_nodes,
    e_step,
    estimate_integration_error,
    find_steep_features,
    grid_from_working,
    has_likelihood,
    is_variational,
    m_step,
    make_params,
    needs_own_nodes,
    nodes_from_working,
    principal_axes,
    represents_all_scales,
    rotate_weights,
    turn_to_principal_axes,
    unpack_answers,
    use_last_lattice,
    variational_posterior,
)
from pipeline.models.latent_trait.integrators import compute_codes, compute_log_likelihood
from pipeline.models.latent_trait.item_fit import add_fit_statistics, make_binary_items
from pipeline.models.latent_trait.item_priors import (
    DEFAULT_ASYMPTOTE_PRIOR,
    PRIOR_FAMILIES,
    parse_prior,
)
from pipeline.models.latent_trait.standard_errors import (
    MAX_PARAMETERS,
    choose_error_form,
    choose_row_share,
    count_parameters,
    estimate_information,
    is_wide,
    standard_errors,
    summarize_information,
    summarize_scores,
)
from pipeline.models.latent_trait.starts import (
    convert_to_slopes,
    find_moved_features,
    find_start_loadings,
    stretch_offsets,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.models.support import Conflict, Support
from pipeline.numerics.gaussian.predictive import compute_predictive_probabilities
from pipeline.numerics.logistic.categories.curves import compute_plane_probabilities
from pipeline.numerics.logistic.categories.fit import compute_person_fit
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    draw_nodes,
)
from pipeline.numerics.logistic.lattice_nodes import estimate_lattice_e_step
from pipeline.numerics.logistic.parameter_expansion import estimate_trait_gaussian
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.pair_moments import PairMoments, estimate_memory_of_moments
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]

_STRUCTURED_CLASS = "pipeline.models.latent_trait.structured:StructuredTrait"
_DEFAULT_DRAWS = 500
_FIRST_STAGE_TOL = 1e-3  # of the variational stage of `auto`
SHORT_RUN_TOL = 1e-4  # of several starts
_LEAST_GAIN = 3.0  # of held-out rows by one more component, nats; chance gives one or two
SEARCH_TOL = 1e-5  # of the search for the number of components
_MAX_FAST_COMPONENTS = 2
_MAX_START_COLUMNS = 4  # further components start at random
_MAX_STRETCH = 0.018  # of the traits' standard deviation by a prior of slopes
_STRETCH, _STRETCHED_TOL = 1.3, 1e-4  # of the stage on a lattice with fewer nodes
_REFINING_PASSES = 30  # with more centred nodes; steep slopes would move on, by hardly any nats
_EMPTY_COLUMN_SIZE = 0.1  # columns with a smaller root mean square are drawn again
_ZERO_WEIGHT = 0.02  # components and features whose largest weight is below this count as empty
_MIN_ROWS_PER_PARAMETER = 3  # with fewer, the inverse of the products of scores is meaningless
_MAX_DIFFICULTY = 1e6
_CLEAR_NATS = 3.0  # by which a fit is better than one with other signs
_CLEAR_ERRORS = 3.0  # a slope of more standard errors has a sign
_MAX_REVERSED_SHARE = 0.3  # of items; if more point the other way, both ways are usual


@dataclass(frozen=True)
class LatentTrait(Model):
    """Hyperparameters of the latent-trait model.

    Attributes
    ----------
    n_components
        Number of traits. None chooses it by the objective of held-out rows.
    estimator
        `auto`, `variational`, `quadrature` (up to 3 components), `ep` (expectation propagation) or
        `sampling`. `auto` is quadrature, or `ep` above 3 components. Above 2 components,
        it begins with the variational fit.
    nodes
        Nodes per axis for quadrature, or number of draws for sampling. None uses a lattice for rows
        without missing values. With missing values, it starts with 41, 21 or 15 nodes for 1, 2 or 3
        components, and ends with equally spaced ones, or with up to 31, 17 or 9 per axis for each
        row, until the log-likelihood of all rows is exact to 1e-3 nats. None takes 500 draws.
    prior_precision
        Precision of a normal prior on the weights; above 0, separable items stay finite. Where it
        would stretch the traits, their scale is estimated afterwards.
    equal_slopes
        `yes` gives all items the same weight; requires one component and quadrature or sampling.
        Continuous items have weights of their own.
    constant_features
        `refuse` constant features, or `pin` them to weights of 0 and the offset of their margin.
    acceleration
        `squarem` or `none`.
    rotation
        Rotation of the weights in `rotated`: `principal` axes, `varimax` or `promax`.
    errors
        Standard errors from the observed information (`louis`), from the products of scores
        (`crossproduct`, always used above 3 components), from both (`sandwich`, also right if the
        model is wrong, and always used for rows with sampling weights), or `none`. With more than
        3,000 parameters they are `louis`, computed by item, for up to 3 components; a warning
        names fits that have none. The variational and sampling fits have none, because their own
        error is larger.
    max_iter
        Maximum number of passes of a stage. There is a stage for each number of components,
        estimator and density of nodes.
    invariance
        Parameters of items that are equal in all groups: none (`configural`), slopes (`metric`),
        or slopes and offsets (`scalar`). `strict` also makes residual variances equal; binary items
        have none, so it is the same as `scalar`.
    free
        Names of items, separated by commas, whose slopes and offsets differ by group.
    traits
        What is estimated of the distribution of the traits in groups other than the first, and in
        all rows if there are known items: mean and covariance (`free`), only the mean (`mean`), or
        nothing (`standard`: mean 0, covariance I).
    correlations
        Correlations of the traits of a loading pattern: `free`, or `none`, that is 0. `auto` is
        `none` if all items load on one of the traits, as in a bifactor model, else `free`.
    guessing
        Probability of a one far below an item's difficulty: 0 (`none`), the same for all items
        (`common`), or one per item (`item`). Needs one component and quadrature.
    slipping
        Probability of a zero far above an item's difficulty, likewise.
    guessing_prior, slipping_prior
        Prior of the probability, such as `beta(5,17)`, or of its logit, such as `normal(-1.1,0.5)`;
        `none` for maximum likelihood.
    slope_prior, offset_prior
        Prior in a fit with guessing or slipping: `none`, or such as `normal(0,2)`; for slopes also
        `lognormal(0,0.5)`.
    items
        Curves of items with more than two levels: `graded` (response), (generalized)
        `partial-credit`, `rating-scale` or `nominal`. With `equal_slopes`, partial credit is that
        of Masters. They need quadrature. Continuous items are normal given the traits.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats. The limit for all rows together is 10,000
        times this. The variational stage of `auto` stops at 1e-3, a lattice with fewer nodes at
        1e-4.
    """

    name: ClassVar[str] = "latent-trait"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "continuous"),
        ("groups", "covariates", "pattern", "known items", "frequency", "sampling", "clusters"),
        (Conflict("pattern", "covariates"), Conflict("pattern", "known items")),
    )
    unlinked_effect: ClassVar[str] = (
        "traits may have opposite signs and other scales in each part, and "
        "scores of different parts cannot be compared"
    )
    first_statistics: ClassVar[type[PairMoments]] = PairMoments
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[LatentTraitParams]] = LatentTraitParams
    signed_arrays: ClassVar[tuple[str, ...]] = (
        "weights",
        "level_weights",
        "level_difficulty",
        "rotated",
        "component_correlation",
        "difficulty",
        "trait_mean",
        "trait_covariance",
        "group_weights",
        "group_level_weights",
        "coefficients",
        "population_mean",
        "population_covariance",
    )
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "covariance": ("component", "component_j"),
    }
    n_components: int | None = 2
    estimator: Literal["auto", "variational", "quadrature", "ep", "sampling"] = "auto"
    nodes: int | None = setting(None, minimum=2)
    prior_precision: float = setting(0.0, minimum=0)
    equal_slopes: Literal["no", "yes"] = "no"
    constant_features: Literal["refuse", "pin"] = "refuse"
    acceleration: Literal["squarem", "none"] = "squarem"
    rotation: Literal["principal", "varimax", "promax"] = "principal"
    errors: Literal["louis", "sandwich", "crossproduct", "none"] = "louis"
    invariance: Literal["configural", "metric", "scalar", "strict"] = "scalar"
    free: str = ""
    traits: Literal["free", "mean", "standard"] = "free"
    correlations: Literal["auto", "free", "none"] = "auto"
    guessing: Literal["none", "common", "item"] = "none"
    slipping: Literal["none", "common", "item"] = "none"
    guessing_prior: str = DEFAULT_ASYMPTOTE_PRIOR
    slipping_prior: str = DEFAULT_ASYMPTOTE_PRIOR
    slope_prior: str = "none"
    offset_prior: str = "none"
    items: ItemKind = "graded"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-7, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        q = self.n_components
        if self.estimator == "quadrature" and (q or 1) > MAX_COMPONENTS:
            raise FitError(
                f"{{components}} is {q}, but quadrature takes at most {MAX_COMPONENTS}. "
                "Use {estimator=auto}.",
                parameter="components",
            )
        if self._has_equal_slopes and (self.estimator in ("variational", "ep") or q != 1):
            raise FitError(
                f"{{equal_slopes=yes}} cannot be combined with {{components={q}}} and "
                f"{{estimator={self.estimator}}}. It needs {{components=1}} and "
                "{estimator=auto}, {estimator=quadrature} or {estimator=sampling}.",
                parameter="equal_slopes",
            )
        for name, families in PRIOR_FAMILIES.items():
            parse_prior(getattr(self, name), name, families)

    @property
    def mean_reach(self) -> float:
        """How much farther the nodes reach because rows have means of their own, in deviations."""
        return 0.0

    @property
    def has_asymptotes(self) -> bool:
        """Whether items have guessing or slipping."""
        return self.guessing != "none" or self.slipping != "none"

    def with_structure(self, structure: Structure) -> Any:
        """Return the model of groups, known items, a pattern, asymptotes or covariates, or this."""
        plain = super().with_structure(structure)
        has_items, has_pattern = structure.known_items is not None, structure.pattern is not None
        if self.correlations != "auto" and not has_pattern:
            raise FitError(
                f"{{correlations={self.correlations}}} needs a loading pattern. Give it by "
                "{pattern}.",
                parameter="correlations",
            )
        if not (structure.groups or has_items):
            self.check_unused_settings("invariance", "free", "traits")
        if are_binary(structure.features) and self.items != "graded":
            raise FitError(
                f"No feature has more than two levels, so no item is {self.items}. Leave the kind "
                "of items out.",
            )
        if not self.has_asymptotes:
            self._check_unused_priors()
        is_plain = are_binary(structure.features) and not structure.parts
        if is_plain and not self.has_asymptotes:
            return plain
        return resolve_name(_STRUCTURED_CLASS).from_model(self, structure)

    def check_unused_settings(self, *names: str) -> None:
        """Refuse settings of groups in a fit without groups, unless they have their defaults."""
        for name in names:
            if (value := getattr(self, name)) != getattr(LatentTrait, name):
                remedy = "Name them by {group}."
                if name == "traits":
                    remedy = "Name them by {group}, or give known {items}."
                raise FitError(f"{{{name}={value}}} needs groups. {remedy}", parameter=name)

    def _check_unused_priors(self) -> None:
        """Refuse priors of a fit with guessing or slipping in other fits."""
        for name in PRIOR_FAMILIES:
            if (value := getattr(self, name)) != getattr(type(self), name):
                needed = "slipping" if name == "slipping_prior" else "guessing"
                raise FitError(
                    f"{{{name}={value}}} needs items with asymptotes. Set {{{needed}=item}}.",
                    parameter=name,
                )

    @property
    def _has_equal_slopes(self) -> bool:
        return self.equal_slopes == "yes"

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sums over nodes, or of the curvatures, of all tasks."""
        q = self.n_components or n_features
        width = (q + 1) * (q + 2)
        if self.estimator in ("auto", "ep"):
            width *= 2
        if self.estimator not in ("variational", "ep"):
            width = max(width, 2 * self._n_nodes(n_features, min(q, MAX_COMPONENTS)))
        n_segments = self._count_start_segments() or 1
        pairs = estimate_memory_of_moments(n_features, n_segments) // n_segments
        return (8 * n_features * width * 4 + pairs) * n_threads

    def estimate_work(
        self, params: LatentTraitParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of the scores in the pass for errors."""
        weights, is_complete = params.weights, bool(working.get("is_complete", False))
        q = weights.shape[1]
        width = (q + 1) * (q + 2)
        if "has_own_nodes" in working:
            n_nodes = count_own_nodes(params, working)
            nanoseconds = estimate_lattice_e_step(
                weights, params.offsets, is_complete, n_rows, n_nodes
            )
        elif "by_sites" in working:
            nanoseconds = (110 + q**2) * n_features + 1500
        elif (nodes := nodes_from_working(working)) is not None:
            n_nodes = len(nodes.points)
            nanoseconds, width = (20 + 0.3 * n_nodes) * n_features + 8 * n_nodes + 500, 2 * n_nodes
        else:
            nanoseconds = (20 + 1.1 * q**2) * n_features
        n_sums = n_features * width
        if "share" in working:
            nanoseconds += estimate_information(params, float(working["share"]), is_complete)
            n_sums += 3 * min(n_features * (q + 1), MAX_PARAMETERS) ** 2
        return WorkEstimate(nanoseconds, 8 * n_sums)

    def _n_nodes(self, n_features: int, n_components: int) -> int:
        if self.estimator == "sampling":
            return self.nodes or _DEFAULT_DRAWS
        most = int((self.nodes or NODES_PER_AXIS_LIMITS[n_components]) ** n_components)
        return most if self.nodes else max(most, count_max_nodes(n_features, n_components))

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> PairMoments:
        """Count features, and their pairs with anchors, with all segments pooled without groups."""
        return PairMoments.from_block(block, self._list_n_planes(), self._count_start_segments())

    def first_key(self, seed: int) -> str:
        """Return the key of the counts of pairs with anchors."""
        n_segments = self._count_start_segments()
        return "pair-moments" + ("" if n_segments is None else f"-by-group-{n_segments}")

    def _list_n_planes(self) -> NDArray[np.int64] | None:
        """Return the number of planes of each feature, None if all are binary."""
        return None

    def _count_start_segments(self) -> int | None:
        """Return the number of groups within which pairs are counted, None to pool all rows."""
        return None

    def initialize(self, first: PairMoments, rng: np.random.Generator) -> FitState:
        """Check the data, and start from the counts of pairs, several times if they are unclear."""
        seed = rng.integers(2**63, size=1)
        starts = []
        for loadings in self._find_starts(first, self.n_components or 1, seed):
            state = self._start_from(first.counts, loadings, seed)
            starts.append(state)
        if self.n_components is None:
            columns = self._find_starts(first, _MAX_START_COLUMNS, seed)[0]
            slopes = convert_to_slopes(columns, self._list_n_planes())
            auxiliary = {**starts[0].auxiliary, "start_weights": slopes}
            return replace(starts[0], auxiliary=auxiliary)
        if len(starts) == 1:
            return starts[0]
        is_short = {"is_short": np.array(1)}
        shorts = (replace(s, auxiliary={**s.auxiliary, **is_short}) for s in starts)
        return replace(starts[0], starts=tuple(shorts))

    def _find_starts(
        self, first: PairMoments, n_components: int, seed: NDArray[np.int64]
    ) -> list[Array]:
        """Return loadings to start from, the most likely first, (n_features, n_components) each."""
        n_planes = self._list_n_planes()
        if n_planes is None:
            n_planes = np.ones(first.counts.observed.shape[1], np.int64)
        pattern = self._get_start_pattern()
        loads = np.ones((len(n_planes), n_components), np.bool_) if pattern is None else pattern
        return find_start_loadings(
            first,
            n_planes,
            loads,
            np.random.default_rng([*seed.tolist(), n_components]),
            are_correlated=self.correlations == "free",
            known=self._get_known_slopes(),
        )

    def _get_start_pattern(self) -> NDArray[np.bool_] | None:
        """Return which slopes may differ from 0, (n_features, n_components); None if all may."""
        return None

    def _get_known_slopes(self) -> Array | None:
        """Return slopes known before the fit, NaN if unknown, (n_features, n_components)."""
        return None

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Continue the best start; warn if it is hardly better than one with other signs."""
        (starts,) = ranked.values()
        best, *others = starts
        criterion, weight = self.get_convergence_criterion(best), float(best.auxiliary["weight"])
        objective = find_final_objective(criterion, best.history)
        warnings: list[FitWarning] = []
        for other in others:
            own = self.get_convergence_criterion(other)
            loss = weight * (objective - find_final_objective(own, other.history))
            moved = find_moved_features(best.params.weights, other.params.weights)
            if loss < _CLEAR_NATS and moved.size:
                warnings.append(self._warn_about_weak_links(moved, loss))
        return self.select_start(best).with_warnings(warnings[:1])

    def _warn_about_weak_links(self, moved: NDArray[np.intp], loss: float) -> FitWarning:
        names = getattr(self, "structure", Structure()).feature_names
        indices: Any = tuple(names[k] for k in moved) if names else tuple(moved.tolist())
        text = (
            "too few rows or features link parts of the data: the signs or directions of the "
            "traits in these features, against those in the others, are hardly determined (another "
            f"fit has {max(loss, 0.0):.1f} nats less): {{features}}. Do not compare scores across "
            "the parts, or add rows or features that link them"
        )
        return FitWarning(text, indices)

    def select_start(self, state: FitState) -> FitState:
        """Continue the best start until it has converged."""
        auxiliary = {name: value for name, value in state.auxiliary.items() if name != "is_short"}
        return replace(state, auxiliary=auxiliary, starts=())

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the margins, and start from these loadings and the offsets of the margins."""
        observed, ones = pool_margins(first)
        n_features = len(ones)
        if self.n_components is not None and self.n_components >= n_features:
            raise FitError(
                f"{{components}} is {self.n_components}, but the dataset has only {n_features} "
                f"features. Choose at most {n_features - 1}.",
                parameter="components",
            )
        constant = self._find_constant_features(observed, ones)
        if constant.size and self.constant_features == "refuse":
            raise FitError(
                f"These features are constant: {{features}}. {LEAVE_OUT}, or use "
                "{constant_features=pin}.",
                constant.tolist(),
                parameter="constant_features",
            )
        weights = convert_to_slopes(loadings)
        if self._has_equal_slopes:
            weights[:] = 0.5
        weights[constant] = 0.0
        margins = scipy.special.logit(np.clip(ones, 0.5, observed - 0.5) / observed)
        auxiliary = {
            "constant": constant,
            "margins": margins,
            "seed": seed,
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "is_complete": np.array(first.is_complete),
            "has_sampling_weights": np.array(first.has_sampling_weights),
        }
        text = "constant features, pinned at their margins: {features}"
        warnings = (FitWarning(text, tuple(constant.tolist())),) if constant.size else ()
        offsets = margins * stretch_offsets(weights)
        state = FitState(make_params(weights, offsets), auxiliary=auxiliary, warnings=warnings)
        if self.n_components is None:
            return self._begin_stage(state, weights, HELD_OUT_SHARE, self._last_estimator(1))
        # With up to two components, a pass on nodes costs little more than a variational one.
        has_first_stage = self.estimator == "auto" and self.n_components > _MAX_FAST_COMPONENTS
        estimator = "variational" if has_first_stage else self._last_estimator(self.n_components)
        return self._begin_stage(state, weights, 0.0, estimator)

    def _find_constant_features(
        self, observed: NDArray[np.int64], ones: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        return np.flatnonzero((ones == 0) | (ones == observed))

    def _last_estimator(self, n_components: int) -> str:
        if self.estimator != "auto":
            return self.estimator
        return "quadrature" if n_components <= MAX_COMPONENTS else "ep"

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start a stage with these weights, held-out share and E-step."""
        working = self._make_working(state, weights, held_out, estimator)
        return replace(state, params=make_params(weights, state.params.offsets), working=working)

    def _make_working(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> Arrays:
        """Return the working state of a stage with these weights."""
        working, q = {"held_out": np.array(held_out)}, weights.shape[1]
        if estimator == "quadrature":
            grid = NodeGrid(self.nodes, q) if self.nodes else choose_first_grid(weights)
            is_complete = bool(state.auxiliary["is_complete"])
            working["is_complete"] = np.array(is_complete)
            if not self.nodes and needs_own_nodes(weights, state.params.offsets, is_complete):
                grid = NodeGrid(NODES_PER_AXIS_LIMITS[q], q)
                working["has_own_nodes"] = np.array(1)
                if is_complete and held_out == 0:
                    working["stretch"] = np.array(_STRETCH)
            working |= grid.make_working_state(self.mean_reach > 0)
        elif estimator == "sampling":
            rng = np.random.default_rng(state.auxiliary["seed"])
            working |= draw_nodes(self.nodes or _DEFAULT_DRAWS, q, rng)._asdict()
        elif estimator == "ep":
            working["by_sites"] = np.array(1)
        return working

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start the last stage from an earlier fit, on the axes of its last pass."""
        constant, margins = state.auxiliary["constant"], state.auxiliary["margins"]
        weights, offsets = params.weights @ params.axes.T, params.offsets.copy()
        weights[constant], offsets[constant] = 0.0, margins[constant]
        state = replace(state, params=replace(params, offsets=offsets))
        estimator = self._last_estimator(weights.shape[1])
        return use_last_lattice(self._begin_stage(state, weights, 0.0, estimator))

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        run = partial(e_step, params, working)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row (or its bound) plus the log prior, nats."""
        return (statistics.objective + self._get_log_prior(params)) / statistics.weight

    def _get_log_prior(self, params: LatentTraitParams) -> float:
        """Return the log prior of `prior_precision`, on the scale of the traits before the last."""
        if params.log_prior is not None:
            return float(params.log_prior)
        if not self.prior_precision:
            return 0.0
        return -0.5 * self.prior_precision * self._sum_squared_slopes(params)

    def _sum_squared_slopes(self, params: LatentTraitParams) -> float:
        """Return Σ w² of the slopes that have the prior of `prior_precision`."""
        return float((params.weights**2).sum())

    def _get_precision(self, params: LatentTraitParams) -> float:
        """Return the precision of the prior on the final scale of the traits."""
        if params.log_prior is None:
            return self.prior_precision
        return -2 * float(params.log_prior) / self._sum_squared_slopes(params)

    def mean_log_likelihood(self, params: Any, statistics: Sums) -> float:
        """Return the log-likelihood per row, or its bound, nats."""
        return float(statistics.objective / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop on the change of the objective, sooner in the first stages."""
        is_first = self.estimator == "auto" and is_variational(state.working)
        tol = max(self.tol, is_first * _FIRST_STAGE_TOL)
        if "is_short" in state.auxiliary:
            tol = max(tol, SHORT_RUN_TOL)
        if state.working.get("held_out", 0.0) > 0:
            tol = max(tol, SEARCH_TOL)
        if float(state.working.get("stretch", 1.0)) > 1:
            tol = max(tol, _STRETCHED_TOL)
        enough = _REFINING_PASSES if "coarse" in state.working else math.inf
        weight = float(state.auxiliary.get("weight", 1))
        return ObjectiveCriterion(self.max_iter, tol, weight, enough)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step; constant features keep their parameters."""
        nodes = nodes_from_working(state.working)
        is_expanded = represents_all_scales(state.params, state.working, statistics)
        if state.params.log_prior is not None:
            return self._scale_traits(state, statistics) if is_expanded else state
        free, diverging = m_step(
            state.params,
            nodes,
            statistics,
            self.prior_precision,
            self._has_equal_slopes,
            is_expanded,
        )
        constant = state.auxiliary["constant"]
        free[constant], diverging[constant] = 0.0, False
        free[constant, -1] = state.auxiliary["margins"][constant]
        if (grid := grid_from_working(state.working)) is not None:
            diverging |= grid.is_diverging(free[:, :-1])
        auxiliary = {**state.auxiliary, "diverging": np.flatnonzero(diverging)}
        return replace(state, params=state.params.with_free_parameters(free), auxiliary=auxiliary)

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return weights and offsets side by side, (n_features, n_components + 1)."""
        return params.free_parameters

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Return the parameters with these weights and offsets."""
        return params.with_free_parameters(packed)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more components, all rows, the final estimator, or more nodes."""
        if state.working["held_out"] > 0:
            return self._add_component(state, statistics)
        if self.estimator == "auto" and is_variational(state.working):
            weights = _restart_empty_components(
                state.params.weights, _component_rng(state), state.auxiliary["constant"]
            )
            return self._begin_stage(state, weights, 0.0, self._last_estimator(weights.shape[1]))
        finer = None
        if self.nodes is None:
            items = self._list_group_items(state.params)
            finer = begin_finer_stage(state, statistics, items, self.mean_reach > 0)
        if finer is None:
            return self._begin_scaling(state, statistics)
        # Estimates of the scale keep the ratios of slopes.
        return finer if state.params.log_prior is None else replace(finer, params=state.params)

    def _scale_traits(self, state: FitState, statistics: Sums) -> FitState:
        """Estimate the distribution of the traits, and absorb it in the items."""
        params = state.params
        traits = estimate_trait_gaussian(statistics.values["moments"], params.weights)
        moved = np.column_stack(traits.absorb(params.weights, params.offsets))
        return replace(state, params=params.with_free_parameters(moved))

    def _begin_scaling(self, state: FitState, statistics: Sums) -> FitState | None:
        """Start a last stage, which only estimates the distribution of the traits.

        With many items and few rows, a prior that pulls all slopes towards 0 stretches the traits
        of the fitted rows beyond the variance 1 that scores assume. Given the ratios of the slopes,
        the stage finds the likeliest distribution of the traits, and makes it standard again. None
        if the prior hardly moved the traits, or known items fix their scale.
        """
        if not self.prior_precision or state.params.log_prior is not None:
            return None
        log_prior = np.array(self._get_log_prior(state.params))
        scaling = replace(state, params=replace(state.params, log_prior=log_prior))
        moved = self.update(scaling, statistics, map, np.random.default_rng(0)).params
        squares = self._sum_squared_slopes(moved), self._sum_squared_slopes(state.params)
        return scaling if squares[0] > (1 + _MAX_STRETCH) ** 2 * squares[1] else None

    def _list_group_items(self, params: LatentTraitParams) -> list[TraitItems]:
        """Return the items of all groups as functions of standard normal traits."""
        return [params.items]

    def _add_component(self, state: FitState, statistics: Sums) -> FitState:
        """Add a component while held-out rows gain; then fit all rows with the best number."""
        auxiliary, is_best = record_held_out_score(
            state.params, state.auxiliary, statistics, _LEAST_GAIN
        )
        state = replace(state, auxiliary=auxiliary)
        n_features, q = state.params.weights.shape
        limit = MAX_COMPONENTS if self.estimator == "quadrature" else n_features - 1
        if is_best and q < min(limit, n_features - 1):
            column = 0.5 * _component_rng(state).standard_normal((n_features, 1))
            if q < _MAX_START_COLUMNS:
                column = state.auxiliary["start_weights"][:, q : q + 1].copy()
            column[state.auxiliary["constant"]] = 0.0
            weights = np.column_stack([state.params.weights, column])
            return self._begin_stage(state, weights, HELD_OUT_SHARE, self._last_estimator(q + 1))
        if is_best and q == limit:
            state = replace(state, warnings=(*state.warnings, _warn_about_component_limit(q)))
        state = replace(state, params=get_best_params(LatentTraitParams, auxiliary))
        weights = state.params.weights
        return self._begin_stage(state, weights, 0.0, self._last_estimator(weights.shape[1]))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Rotate the weights, and add diagnostics and warnings."""
        q = state.params.weights.shape[1]
        estimator = "variational" if is_variational(state.working) else self._last_estimator(q)
        params, working = self.choose_axes(state), state.working
        rotated, correlation = rotate_weights(params.weights, self.rotation)
        params = replace(params, rotated=rotated, component_correlation=correlation)
        if q == 1:
            difficulty = compute_difficulties(params.weights[:, 0], params.offsets)
            params = replace(params, difficulty=difficulty)
        if "points" in working:
            working = {**working, "points": working["points"] @ params.axes}
        sums = statistics.values
        diagnostics = {
            "n_components": params.weights.shape[1],
            "rows_without_values": int(sums["empty_rows"]),
            "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
            "estimator": estimator,
        }
        if estimator == "variational":
            diagnostics["objective_is"] = "lower bound"
        if "rounds" in sums:
            diagnostics["rounds_per_row"] = float(sums["rounds"]) / statistics.n_rows
        prior = f"{{prior_precision={max(1.0, 10 * self.prior_precision):g}}}"
        scaled = params.get_group(UNKNOWN_SEGMENT).items.weights
        warnings = [*state.warnings, *_warn_about_fit(scaled, state, diagnostics, prior)]
        is_complete, diverging = bool(state.auxiliary["is_complete"]), state.auxiliary["diverging"]
        steep = find_steep_features(params, working, is_complete)
        if "has_own_nodes" in working:
            diagnostics |= describe_own_nodes(params, working, is_complete)
            warnings += _warn_about_steep_features(np.setdiff1d(steep, diverging), prior)
        elif "node_stretch" in working:
            diagnostics["node_spacing"] = float(working["node_spacing"])
            warnings += _warn_about_steep_features(np.setdiff1d(steep, diverging), prior)
        elif (grid := grid_from_working(working)) is not None:
            peak = float(sums["peak"]) / statistics.weight
            warnings += grid.warn_about_nodes(state.params.weights, diverging, peak, prior)
            diagnostics["nodes_an_axis"] = grid.nodes_per_axis
        if self.nodes is None:
            error = estimate_integration_error(state, statistics)
            has_steps = bool(np.intersect1d(steep, diverging).size)
            warnings += _warn_about_integrals(error, has_steps)
        if self.prior_precision and not represents_all_scales(state.params, working, statistics):
            warnings += _warn_about_unknown_scale(statistics)
        state = replace(state, params=params, working=working)
        return replace(state, diagnostics=diagnostics, warnings=tuple(warnings))

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Return the parameters on the axes that identify them."""
        return turn_to_principal_axes(state.params)

    def _get_error_shape(self, params: LatentTraitParams) -> tuple[int, int]:
        """Return the shape of weights that decides about the form of standard errors."""
        n_features, q = params.weights.shape
        return n_features, q

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors and fit statistics of a likelihood fit.

        The errors that a bound or random draws cause are not sampling errors of the rows.
        """
        if self.errors == "none" or not has_likelihood(state.working):
            return None
        n_rows, shape = int(state.auxiliary["n_rows"]), self._get_error_shape(state.params)
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        form = choose_error_form(self.errors, shape, is_sampled)
        share = choose_row_share(n_rows, shape, form, is_sampled)
        return {**state.working, "share": np.array(share)}

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, the residuals and the counts."""
        share = float(working["share"])
        if grid_from_working(working) is None:
            return summarize_scores(params, share, block, rng)
        nodes = None if "has_own_nodes" in working else nodes_from_working(working)
        n_own = count_own_nodes(params, working)
        return summarize_information(params, nodes, share, block, rng, n_own)

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors and, with quadrature, fit statistics."""
        n_features, q = state.params.weights.shape
        varying = np.setdiff1d(np.arange(n_features), state.auxiliary["constant"])
        if grid_from_working(state.working) is not None:
            state = self._add_fit_statistics(state, statistics, varying)
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        if (form := choose_error_form(self.errors, (n_features, q), is_sampled)) == "none":
            return _warn_no_errors(state, "sampling weights need fewer components or items")
        if is_wide(state.params) and q > MAX_COMPONENTS:
            return _warn_no_errors(state, f"more than {MAX_PARAMETERS} parameters")
        n_rows = _MIN_ROWS_PER_PARAMETER
        rank = count_parameters(len(varying), q, self._has_equal_slopes)
        if q > MAX_COMPONENTS and statistics.values["weight_informing"] < n_rows * rank:
            return _warn_no_errors(state, f"fewer than {n_rows} rows per parameter")
        state = replace(state, diagnostics={**state.diagnostics, "errors": form})
        return self._add_errors(state, statistics, varying)

    def _add_fit_statistics(
        self, state: FitState, statistics: Sums, varying: NDArray[np.intp]
    ) -> FitState:
        nodes, q = nodes_from_working(state.working), state.params.weights.shape[1]
        assert nodes is not None
        n = len(state.params.offsets)
        jacobian = scipy.sparse.eye_array(n * (q + 1), format="csr")
        if self._has_equal_slopes:  # the slope is the first parameter
            columns = np.column_stack([np.zeros(n, np.int64), 1 + np.arange(n)]).ravel()
            places = (np.arange(2 * n), columns)
            jacobian = scipy.sparse.csr_array((np.ones(2 * n), places))
        model = make_binary_items(state.params, nodes, varying, jacobian)
        rank = count_parameters(len(varying), q, self._has_equal_slopes)
        return add_fit_statistics(state, statistics, model, rank)

    def _add_errors(self, state: FitState, statistics: Sums, varying: NDArray[np.intp]) -> FitState:
        params, is_complete = state.params, bool(state.auxiliary["is_complete"])
        fixed = np.ones(len(params.offsets), bool)
        fixed[varying] = False
        fixed[state.auxiliary["diverging"]] = True
        fixed[find_steep_features(params, state.working, is_complete)] = True
        errors = standard_errors(
            params.weights,
            _scale_sums(state, statistics),
            state.diagnostics["errors"],
            self._get_precision(params),
            fixed,
            self._has_equal_slopes,
        )
        arrays = {"weights_error": errors.weights, "offsets_error": errors.offsets}
        if params.weights.shape[1] == 1:
            slopes = params.weights[:, 0]
            arrays["difficulty_error"] = errors.difficulties(slopes, params.offsets)
        warnings = state.warnings
        if errors.unknown.size:  # other warnings explain why the fixed features have none
            text = "the data do not determine these features' parameters; no standard errors: "
            text += "{features}"
            warnings = (*warnings, FitWarning(text, tuple(errors.unknown.tolist())))
        params = replace(params, **arrays)
        warnings = (*warnings, *warn_about_reversed_items(params))
        return replace(state, params=params, warnings=warnings)

    def count_parameters(self, state: FitState) -> tuple[int, int] | None:
        """Return the numbers of free parameters and of cells or moments, unless it has priors."""
        structure: Structure = getattr(self, "structure", Structure())
        found = state.diagnostics.get("fit_statistics", {}).get("n_parameters")
        asymptotes = (self.guessing_prior, self.slipping_prior) if self.has_asymptotes else ()
        priors = {self.slope_prior, self.offset_prior, *asymptotes} - {"none"}
        if found is None or priors or self.prior_precision or structure.covariates is not None:
            return None
        features = structure.features or (Feature(""),) * len(state.params.offsets)
        moments = count_free_moments(features)
        return None if moments is None else (found, moments * max(1, len(structure.groups)))

    def transform(
        self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the posterior of x: `mean` and `variance` (n_samples, n_components), `covariance`.

        Computed by quadrature for up to 3 components and bifactor models, else by expectation
        propagation. For 10 traits of 16 x 16 digits, the latter's means are off by 0.005 standard
        deviations (median; at most 0.06), and its variances are 0.98 times the exact ones (median;
        at least 0.74).
        """
        mean, covariance = compute_codes(params, self.items, block)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        return {"mean": mean, "variance": variance, "covariance": covariance}

    def person_fit(
        self, params: LatentTraitParams, block: BinaryBlock, codes: Array
    ) -> Mapping[str, Array]:
        """Return `l_z`, `infit`, `outfit` and `l_z_star` of each row at its code, (n_samples,)."""
        X, observed = unpack_answers(params, block)
        items = params.get_level_items(self.items, block.segment)
        return compute_person_fit(X, observed, items, codes)._asdict()

    def get_item_curves(self, params: LatentTraitParams) -> ItemCurves:
        """Return the curves of a fit with one trait."""
        if (q := params.weights.shape[1]) != 1:
            raise FitError(f"The fit has {q} traits. Fit again with {{components=1}}.")
        items = params.get_level_items(self.items)
        return ItemCurves(params.weights[:, 0], params.offsets, items)

    def lower_bound(self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return the variational lower bound on log P(t) of each row, (n_samples,), nats.

        With guessing or slipping, or items with several levels, it is the log-likelihood itself.
        """
        has_asymptotes = params.asymptotes is not None or params.group_guessing is not None
        if has_asymptotes or params.n_levels is not None:
            return self.log_likelihood(params, block, rng).nats
        return variational_posterior(params, block).bound

    def log_likelihood(
        self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P(t) of each row.

        Computed by quadrature for up to 3 components and bifactor models, else by sampling.
        """
        return compute_log_likelihood(params, self.items, block, rng)

    def sample(
        self,
        params: LatentTraitParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_planes), of the groups of these segments if there are any.

        If the fit has covariates, the traits have the mean and covariance of those in the fitted
        rows.
        """
        return self.sample_numbers(params, n_samples, rng, segments)[0]

    def sample_numbers(
        self,
        params: LatentTraitParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows as `sample` does, with values of continuous items."""
        if params.segments is not None and segments is None:
            segments = draw_segments(params, n_samples, rng)
        codes = rng.standard_normal((n_samples, params.weights.shape[1]))
        for rows, segment in _iter_segments(params, segments, n_samples):
            group = params.get_population(segment)
            codes[rows], _ = group.to_traits(codes[rows], np.empty((0, *group.root.shape)))
        uniform = rng.random((n_samples, len(params.weights)))
        uniform = np.repeat(uniform, params.get_level_items(self.items).n_planes, axis=1)
        bits = (uniform < self.reconstruct(params, codes, segments)).astype(np.uint8)
        numbers = self.reconstruct_numbers(params, codes, segments)
        if numbers.size:
            noise = rng.standard_normal(numbers.shape)
            for rows, items in self._iter_gaussians(params, segments, n_samples):
                numbers[rows] += items.scales * items.deviations * noise[rows]
        return bits, numbers

    def reconstruct(
        self, params: LatentTraitParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(t = 1 | x), (n_samples, n_features), by the items of each row's group.

        Items with several levels have P(y ≥ level | x) of all planes, (n_samples, n_planes).
        """
        n_columns = len(params.get_level_items(self.items).offsets)
        probabilities = np.empty((len(codes), n_columns))
        for rows, segment in _iter_segments(params, segments, len(codes)):
            items = params.get_level_items(self.items, segment)
            probabilities[rows] = compute_plane_probabilities(items, codes[rows])
        return probabilities

    def reconstruct_numbers(
        self, params: LatentTraitParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return expected values of continuous items given codes, (n_samples, n_continuous)."""
        means = np.zeros(0) if params.means is None else params.means
        numbers = np.tile(means, (len(codes), 1))
        for rows, items in self._iter_gaussians(params, segments, len(codes)):
            numbers[rows] += items.scales * items.compute_means(codes[rows]).T
        return numbers

    def number_probabilities(
        self,
        params: LatentTraitParams,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return P(y ≤ number) of continuous items given codes, (n_samples, n_continuous)."""
        residuals = numbers - self.reconstruct_numbers(params, codes["mean"], segments)
        probabilities = np.empty(numbers.shape)
        for rows, items in self._iter_gaussians(params, segments, len(numbers)):
            slopes, noise = items.scales[:, None] * items.weights, items.scales * items.deviations
            probabilities[rows] = compute_predictive_probabilities(
                residuals[rows], slopes, noise, codes["covariance"][rows]
            )
        return probabilities

    def _iter_gaussians(
        self, params: LatentTraitParams, segments: NDArray[np.int64] | None, n_rows: int
    ) -> Iterator[tuple[Any, GaussianItems]]:
        """Yield the rows and the continuous items of each group; nothing without such items."""
        if params.deviations is None:
            return
        for rows, segment in _iter_segments(params, segments, n_rows):
            items = params.get_level_items(self.items, segment).gaussians
            assert items is not None
            yield rows, items


def _iter_segments(
    params: LatentTraitParams, segments: NDArray[np.int64] | None, n_rows: int
) -> Iterator[tuple[Any, int]]:
    """Yield the rows of each segment; without groups, or without segments, all rows are one."""
    if params.segments is None or segments is None:
        yield slice(0, n_rows), UNKNOWN_SEGMENT
        return
    for segment in np.unique(segments).tolist():
        yield np.flatnonzero(segments == segment), segment


def _component_rng(state: FitState) -> np.random.Generator:
    """Return the generator for the weights of a new component, keyed by the current number."""
    return np.random.default_rng([int(state.auxiliary["seed"][0]), state.params.weights.shape[1]])


def _restart_empty_components(
    weights: Array, rng: np.random.Generator, constant: NDArray[np.int64]
) -> Array:
    """Replace the components that the variational fit shrank to nothing by random weights.

    Weights of 0 are a stationary point of every objective, so no fit would ever change them. The
    weights of `constant` features stay 0.
    """
    rotated = principal_axes(weights)
    empty = np.sqrt((rotated**2).mean(axis=0)) < _EMPTY_COLUMN_SIZE
    if not empty.any():
        return weights
    rotated[:, empty] = 0.5 * rng.standard_normal((len(weights), int(empty.sum())))
    rotated[constant] = 0.0
    return rotated


def _warn_about_component_limit(n_components: int) -> FitWarning:
    return FitWarning(
        f"held-out rows gained up to {n_components} components, the maximum for quadrature; "
        "{estimator=auto} tries more"
    )


def _warn_about_fit(
    weights: Array, state: FitState, diagnostics: Mapping[str, Any], prior: str
) -> list[FitWarning]:
    """Return warnings about the fit; `prior` is a setting that keeps the weights smaller."""
    constant, diverging = state.auxiliary["constant"], state.auxiliary["diverging"]
    warnings = _warn_about_zero_weights(weights, constant, diagnostics["estimator"])
    if diverging.size:
        text = (
            "the data separate these features, so that their weights diverge and must not be "
            f"interpreted: {{features}}; {prior} keeps them finite"
        )
        warnings.append(FitWarning(text, tuple(diverging.tolist())))
    if empty := diagnostics["rows_without_values"]:
        warnings.append(FitWarning(f"rows without any value: {empty}; their codes are 0"))
    return warnings


def _warn_about_steep_features(steep: NDArray[np.intp], prior: str) -> list[FitWarning]:
    if not steep.size:
        return []
    text = (
        "features too steep for any nodes: {features}. Their weights may be far off, or diverge "
        f"because the data separate them, and they have no standard errors; use {prior}"
    )
    return [FitWarning(text, tuple(steep.tolist()))]


def _warn_about_unknown_scale(statistics: Sums) -> list[FitWarning]:
    """Warn if a prior stretches the traits, and the nodes are too coarse to undo it."""
    moments = statistics.values["moments"]
    moments = moments.reshape(-1, *moments.shape[-2:])[0]
    deviation = float(np.sqrt(np.diag(moments)[:-1].max() / moments[-1, -1]))
    if deviation <= 1 + _MAX_STRETCH:
        return []
    text = (
        f"{{prior_precision}} stretches the traits of the rows to a standard deviation of "
        f"{deviation:.2f} instead of 1, so that scores of other rows are on another scale; these "
        "nodes cannot estimate the scale. Leave out {nodes}, or use another {estimator}"
    )
    return [FitWarning(text)]


def _warn_about_integrals(error: float, has_steps: bool) -> list[FitWarning]:
    """Warn about an error of the log-likelihood of all rows, NaN if it is unknown.

    It is larger if some curves are so steep that they are steps for the nodes.
    """
    size, reason = f"{error:.1g} nats", "more nodes than are possible would be needed"
    if has_steps:
        size, reason = "some tenths of a nat", "no nodes resolve weights that diverge"
    elif not error > MAX_INTEGRATION_ERROR:
        return []
    text = (
        f"the log-likelihood of all rows may be off by {size}, because {reason}; likelihood-ratio "
        "tests of this fit share the error"
    )
    return [FitWarning(text)]


def _warn_about_zero_weights(
    weights: Array, constant: NDArray[np.int64], estimator: str
) -> list[FitWarning]:
    size, q = np.abs(weights), weights.shape[1]
    empty, warnings = int((size.max(axis=0) < _ZERO_WEIGHT).sum()), []
    if empty:
        remedy = "sparse data have this effect on the variational fit; try {estimator=auto}"
        advice = remedy if estimator == "variational" else "fewer would describe the rows as well"
        warnings.append(FitWarning(f"components without weight: {empty} of {q}; {advice}"))
    unused = np.setdiff1d(np.flatnonzero(size.max(axis=1) < _ZERO_WEIGHT), constant)
    if empty < q and unused.size:
        warnings.append(FitWarning("features without weight: {features}", tuple(unused.tolist())))
    return warnings


def _warn_no_errors(state: FitState, reason: str) -> FitState:
    return replace(state, warnings=(*state.warnings, FitWarning(f"no standard errors: {reason}")))


def warn_about_reversed_items(
    params: LatentTraitParams, names: tuple[str, ...] = ()
) -> list[FitWarning]:
    """Name the items of one trait whose slopes have the other sign than most.

    Slopes that may be 0 do not count. If many items point each way, as votes of two parties do,
    nothing is reversed. `names` are those of the items if blocks have several planes per item.
    """
    if params.weights.shape[1] != 1 or params.weights_error is None:
        return []
    slopes, errors = params.weights[:, 0], params.weights_error[:, 0]
    is_clear = np.abs(slopes) > _CLEAR_ERRORS * errors  # not of NaN
    reversed_items = np.flatnonzero(is_clear & (slopes * slopes[is_clear].sum() < 0))
    n_clear = int(is_clear.sum())
    if not 0 < len(reversed_items) <= _MAX_REVERSED_SHARE * n_clear:
        return []
    n = len(reversed_items)
    subject = "1 item points" if n == 1 else f"{n} items point"
    reversal = "it" if n == 1 else "them"
    text = (
        f"{subject} the other way than the other {n_clear - n}: {{features}}. To reverse {reversal}"
        ", replace the values x by 1 - x (levels: in reverse order) in the table of the data, or "
        "at ingest by {map=NAME:0=1,1=0} or {levels=NAME:HIGHEST<...<LOWEST}"
    )
    indices = tuple(reversed_items.tolist())
    return [FitWarning(text, tuple(names[k] for k in indices) if names else indices)]


def _scale_sums(state: FitState, statistics: Sums) -> dict[str, Array]:
    """Scale sums over a sample of rows to all rows.

    The inverse of a sample covariance of normal scores is too large by a known factor. The
    correction matters if there are many parameters.
    """
    sums, q = statistics.values, state.params.weights.shape[1]
    n_informing = max(float(sums["weight_informing"]), 1.0)
    share = n_informing / statistics.weight
    if is_wide(state.params):
        names: tuple[str, ...] = ("curvature", "item_variance", "shared_variance")
        return {name: sums[name] / share for name in names}
    scale = 1 / share
    if q > MAX_COMPONENTS:
        scale *= n_informing / (n_informing - state.params.free_parameters.size - 1)
    names = ("spread", "products", "curvature", "weighted_products")
    scaled = {name: scale * sums[name] for name in names if name in sums}
    if isinstance(statistics, ClusteredSums):
        scaled["weighted_products"] = statistics.sum_score_products()
    return scaled


def compute_difficulties(slopes: Array, offsets: Array) -> Array:
    """Return −b / w, where P is one half, clipped at `_MAX_DIFFICULTY` for slopes near 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(-offsets / slopes, -_MAX_DIFFICULTY, _MAX_DIFFICULTY))
