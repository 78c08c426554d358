"""Optional abilities of models, as protocols that callers check with `isinstance`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, PackedChunk
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic import information
from pipeline.numerics.logistic.categories import curves
from pipeline.passes.row_ranges import RangeResults
from pipeline.random import RowRandom
from pipeline.statistics.sums import Statistics


class LogLikelihood(NamedTuple):
    """log P(x) of each row, exact or estimated.

    Attributes
    ----------
    nats
        log P(x), (n_samples,).
    standard_error
        Standard error of each row's estimate, independent between rows, 0 if exact: (n_samples,).
    shared_error
        Standard error that all rows share, for example of log Z. More rows do not reduce it.
    integration_error
        Bound of the error of quadrature or another approximation in each row, (n_samples,). Errors
        of different rows may have the same sign, so they add up.
    """

    nats: Array
    standard_error: Array
    shared_error: float = 0.0
    integration_error: Array | float = 0.0


@runtime_checkable
class HasLogLikelihood(Protocol):
    """Computes or estimates log P(x)."""

    def log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> LogLikelihood:
        """MAP: return log P(x) of each row.

        Raises
        ------
        FitError
            If it cannot be computed.
        """


@runtime_checkable
class HasExactLikelihood(HasLogLikelihood, Protocol):
    """Maximizes a likelihood that it computes exactly, so that information criteria follow."""

    def count_free_parameters(self, state: FitState) -> int | None:
        """CENTRAL: return the number of parameters that a finished fit has estimated.

        Those of levels without rows do not count. None if the likelihood of this fit is not exact.
        """


class FitRecord(NamedTuple):
    """A fit to compare with others: its model, parameters and manifest."""

    model: Any
    params: Any
    manifest: Mapping[str, Any]


@runtime_checkable
class HasNestedFits(Protocol):
    """Knows of which larger fits a fit is a special case, for likelihood-ratio tests."""

    def list_penalties(self) -> Sequence[str]:
        """Return the settings whose priors keep a fit from the maximum of the likelihood."""

    def explain_not_nested(self, fit: FitRecord, larger: FitRecord) -> str:
        """Return why a fit is no special case of a larger one of this model; empty if it is.

        The fits are to the same features of the same rows.
        """


@runtime_checkable
class HasLowerBound(Protocol):
    """Computes a lower bound of log P(x)."""

    def lower_bound(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: return the bound of each row, nats, (n_samples,)."""


@runtime_checkable
class HasPseudoLikelihood(Protocol):
    """Computes a pseudo-likelihood: the product over features, each given all others."""

    def pseudo_log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: return Σ_i log P(x_i | the others) of each row, nats, (n_samples,)."""


@runtime_checkable
class HasCompositeLikelihood(Protocol):
    """Computes a composite likelihood: the product over pairs of features."""

    def composite_log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: return Σ_i<j log P(x_i, x_j) of each row, nats, (n_samples,)."""


@runtime_checkable
class CanSample(Protocol):
    """Draws rows from the fitted model."""

    def sample(
        self,
        params: Any,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows from the fitted model, (n_samples, n_features).

        `segments`, (n_samples,), selects the segment of each row if the model has parameters per
        segment. None draws segments with their frequencies in the fitted data.
        """


@runtime_checkable
class CanReconstruct(Protocol):
    """Reconstructs the probabilities of ones from codes."""

    def reconstruct(
        self, params: Any, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(x = 1 | codes, segments), (n_samples, n_features).

        `segments` is (n_samples,); None means that all are unknown.
        """


@runtime_checkable
class CanImpute(Protocol):
    """Computes the exact distribution of each value of a row given all other values."""

    def impute(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: return P(plane = 1 | all other values of the row), (n_samples, n_planes).

        The other values are those observed of all other features, so the planes of a feature do not
        count as given, and the probabilities of its planes decrease. Where the value is missing,
        this is the distribution given all observed values.

        Raises
        ------
        FitError
            If the other values of a row are impossible.
        """


@runtime_checkable
class HasContinuousFeatures(Protocol):
    """Draws and reconstructs values of continuous features, and predicts their distribution."""

    def sample_numbers(
        self,
        params: Any,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows: bits of planes, and values of continuous features.

        Their shapes are (n_samples, n_planes) and (n_samples, n_continuous). Parameters are as for
        `CanSample`.
        """

    def reconstruct_numbers(
        self, params: Any, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return expected values of continuous features given codes, (n_samples, n_continuous)."""

    def number_probabilities(
        self,
        params: Any,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return P(x ≤ number) of continuous features given codes, (n_samples, n_continuous).

        Unlike `reconstruct_numbers`, it takes all results of `transform`, to allow for the
        uncertainty of codes. `numbers` has the shape of the result, which is NaN where it is.
        """


class HiddenCauses(NamedTuple):
    """Layers of hidden units, the lowest first; the components are all units in this order.

    Attributes
    ----------
    strengths
        Probability that a unit alone turns a unit below it on, (n_below, n_above) per layer.
    activity
        Share of rows in which each unit is on, (n_components,); None if unknown.
    exclusive_groups
        Number of the group of units of which at most one is on, (n_components,), 0 for independent
        units; None if all are independent.
    """

    strengths: tuple[Array, ...]
    activity: Array | None
    exclusive_groups: NDArray[np.int64] | None = None


@runtime_checkable
class HasHiddenCauses(Protocol):
    """Has layers of hidden units, each of which may turn units below it on."""

    def get_hidden_causes(self, params: Any) -> HiddenCauses:
        """Return the hidden units with the probabilities that each turns others on."""


class FeatureTree(NamedTuple):
    """A tree over features; each feature but the roots shares an edge with its parent.

    Attributes
    ----------
    weight
        Share of rows that the tree describes, from 0 to 1; 1 if it is the only tree.
    parents
        Parent of each feature, (n_features,), -1 at a root.
    mutual_information
        Mutual information of each feature with its parent under the tree, nats, (n_features,); NaN
        at a root.
    correlation
        Their correlation under the tree, with the scores 0, 1, 2, … of levels, (n_features,); NaN
        at a root or if a feature is constant. Of two binary features, it is phi.
    """

    weight: float
    parents: NDArray[np.int64]
    mutual_information: Array
    correlation: Array


@runtime_checkable
class HasTrees(Protocol):
    """Describes the dependence of features by trees."""

    def get_trees(self, params: Any) -> Sequence[FeatureTree]:
        """Return the fitted trees; if each component has one, in the order of the components."""


class FeatureNetwork(NamedTuple):
    """Features that depend on each other in pairs, given all others.

    Attributes
    ----------
    couplings
        Change of the log-odds of a feature if another is 1 instead of 0, (n_features, n_features),
        symmetric; 0 without an edge.
    standard_errors
        Their standard errors, of the same shape; None if they are not known.
    stability
        Share of bootstrap draws in which two features share an edge; None without draws.
    """

    couplings: Array
    standard_errors: Array | None
    stability: Array | None


class NetworkDifference(NamedTuple):
    """How the networks of two groups of rows differ.

    Attributes
    ----------
    groups
        Indices of the two groups.
    difference
        Couplings of the first less those of the second, (n_features, n_features).
    p
        p of each difference by itself, of the same shape; NaN if it is not known, as of features
        that are constant in a group.
    """

    groups: tuple[int, int]
    difference: Array
    p: Array


@runtime_checkable
class HasNetwork(Protocol):
    """Describes the dependence of features by couplings of pairs."""

    def get_network(self, params: Any, group: int | None = None) -> FeatureNetwork:
        """Return the couplings of a group; if None, those of all rows, or the mean of groups."""

    def compare_groups(self, params: Any) -> Sequence[NetworkDifference]:
        """Return the differences of all pairs of groups; empty without groups."""

    def compute_heat_capacity(self, params: Any, temperatures: Array) -> Array | None:
        """Return the variance of the energy per feature and T², (n_temperatures,).

        None if there are too many features.
        """


@runtime_checkable
class HasPersonFit(Protocol):
    """Measures how well the answers of each row fit its code."""

    def person_fit(
        self, params: Any, block: BinaryBlock, codes: Array
    ) -> Mapping[str, NDArray[np.float64]]:
        """MAP: return indices by name, (n_samples,) each, given the codes `mean`."""


ScoreKind = Literal["eap", "map", "ml", "wle", "sum"]
"""How rows are scored: by the mean of the posterior, its mode, the maximum of the likelihood, or of
Warm's weighted likelihood; or by the sum of the answers."""


@runtime_checkable
class CanScore(Protocol):
    """Scores rows in several ways."""

    def score_rows(
        self, params: Any, block: BinaryBlock, kind: ScoreKind
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: return `score` and `standard_error` of each row, and `is_finite` if some have none.

        Both are (n_samples, n_components), or (n_samples,) for sums.
        """


class ItemCurves(NamedTuple):
    """Curves of items on a single trait.

    Attributes
    ----------
    slopes, offsets
        (n_features,) each; with several levels, the mean offset of the levels. NaN of items without
        an order.
    items
        The items.
    mean, sd
        Of the trait in the population.
    value_means
        Mean of each continuous item; its values are standardized by it and by the item's scale.
    """

    slopes: Array
    offsets: Array
    items: curves.LevelItems
    mean: float = 0.0
    sd: float = 1.0
    value_means: Array | None = None

    def compute_information(self, points: Array) -> Array:
        """Return the information of each item at points of the trait, (n_points, n_features)."""
        return curves.compute_item_information(self.items, points[:, None])[:, :, 0, 0].T

    def compute_expected_score(self, points: Array) -> Array:
        """Return the expected number of ones, or sum of scores 0, 1, 2, …, (n_points,).

        Items that `find_reversed_items` finds count in reverse, and those without an order do not.
        """
        is_reversed = information.find_reversed_items(self.slopes)
        P = curves.compute_plane_probabilities(self.items, points[:, None])
        is_reversed, has_order = (
            np.repeat(own, self.items.n_planes) for own in (is_reversed, ~np.isnan(self.slopes))
        )
        return np.asarray(np.where(is_reversed, 1 - P, P) @ has_order)


@runtime_checkable
class HasItemInformation(Protocol):
    """Measures a single trait by items."""

    def get_item_curves(self, params: Any, segment: int | None = None) -> ItemCurves:
        """Return the curves of all items, in a segment if one is given.

        Raises
        ------
        FitError
            If there are several traits.
        """


@runtime_checkable
class CanPredict(Protocol):
    """Predicts a label per row: a per-row column, or `segment`, the index of the row's segment."""

    column: str

    def predict(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: return P(y | x), (n_samples, n_categories), or a mean, (n_samples, 1)."""

    def categories(self, params: Any) -> Array | None:
        """Return the categories in the fitted data, in ascending order; None for a number."""


@runtime_checkable
class IsMixture(Protocol):
    """Assigns rows to components: the codes `mean` are P(component | x)."""

    def compute_posterior(self, params: Any, block: BinaryBlock) -> tuple[Array, Array]:
        """MAP: return P(component | x), (n_samples, n_components), and log P(x), (n_samples,)."""


@runtime_checkable
class CanPrepare(Protocol):
    """Completes its parameters once after the fit, for example by an estimate of log Z."""

    def prepare(self, params: Any, rng: np.random.Generator, map_items: MapFunction) -> Any:
        """CENTRAL: return the parameters with the optional arrays of the artifact."""


@runtime_checkable
class HasInformationPass(Protocol):
    """Estimates standard errors and fit statistics in one pass after the fit."""

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """CENTRAL: return the arrays that the tasks of this pass need; None to skip the pass."""

    def summarize_information(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: summarize a block at the fitted parameters."""

    def finish_information_pass(self, state: FitState, statistics: Any) -> FitState:
        """CENTRAL: add the results of the pass to parameters and diagnostics."""


@runtime_checkable
class HasSequences(Protocol):
    """Its rows depend on those before and after them, in the order in which they arrived.

    Each pass begins with a sweep that links the blocks. The rows of a finished fit get covariates
    from their neighbours, see `pipeline.inference.sequences`; without, a row stands by itself.
    """

    def summarize_links(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: summarize what a block says about its neighbours; with `paths`, also for paths."""

    def connect_links(self, params: Any, links: Any) -> Arrays:
        """CENTRAL: return what all rows say about each block; `working` has these arrays then."""

    def condition(self, params: Any, working: Arrays, block: BinaryBlock) -> BinaryBlock:
        """MAP: return a block with what its neighbours say about each row as covariates."""


@runtime_checkable
class FindsSegments(Protocol):
    """Finds the segments of rows itself; those of the dataset have no influence."""

    def name_segments(self, params: Any) -> tuple[str, ...]:
        """Return the names of the segments that a fit has found."""


@runtime_checkable
class CanWarmStart(Protocol):
    """Can start from the parameters of an earlier fit, which may have had other settings.

    Models with a single pass do not need this.
    """

    def warm_start(self, state: FitState, params: Any) -> FitState:
        """Return the start of the last stage at parameters with the same number of components.

        `state` is the result of `initialize`, which has checked the data.
        """


@runtime_checkable
class CanBootstrap(CanWarmStart, Protocol):
    """A mixture whose numbers of components can be tested by drawing rows."""

    blrt: int
    """Number of draws of each test."""

    def make_refit_model(self, n_components: int, tol: float) -> Any:
        """Return the model that is fitted to drawn rows."""

    def split_component(self, params: Any, component: int, rng: np.random.Generator) -> Any:
        """Return parameters in which two components that differ at random replace one."""

    def begin_short_runs(self, state: FitState, starts: Sequence[Any]) -> FitState:
        """Return the start of a stage with these parameters as starts."""


@runtime_checkable
class CanAccelerate(Protocol):
    """Lets the loop extrapolate its EM steps by SQUAREM."""

    acceleration: Any
    """`squarem`, or `none`."""

    def pack_params(self, params: Any) -> Array:
        """Return the parameters that passes change, as an unconstrained array."""

    def unpack_params(self, params: Any, packed: Array, weight: float) -> Any:
        """Return `params` with these values, within the bounds of a fit to rows of this weight."""


@runtime_checkable
class CanStartOnSample(Protocol):
    """Starts on a sample of the rows, whose sums count several times (`multiply`)."""

    def count_sample_rows(self, state: FitState) -> int:
        """CENTRAL: return the least number of rows of the sample, given the first state.

        0 if the first passes must read all rows.
        """

    def draw_sample_starts(self, state: FitState) -> Sequence[FitState]:
        """CENTRAL: return the starts on the sample, given the first state.

        They may be more than those of that state, because passes over the sample are short.
        """

    def leave_sample(self, state: FitState, statistics: Any) -> FitState:
        """CENTRAL: return the state in which passes over all rows begin.

        `state` ended the last stage on the sample, and `statistics` are of its last pass.
        """


@runtime_checkable
class CanTakeNewtonSteps(CanStartOnSample, CanAccelerate, Protocol):
    """Takes Newton's steps with the information of the sample on which it starts.

    Gradients, the information and steps are about the same parameters, in the same order.
    """

    def begin_newton_steps(self, state: FitState, n_rows: int) -> Arrays | None:
        """CENTRAL: return the arrays that `summarize_information` needs for a sample of `n_rows`.

        None if the sample does not determine the parameters, so that the fit starts on all rows.
        """

    def summarize_information(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: sum the information of the rows of a block."""

    def invert_information(self, state: FitState, statistics: Any) -> Array:
        """CENTRAL: return the inverse of the information, (p, p)."""

    def differentiate(self, state: FitState, statistics: Any) -> Array | None:
        """CENTRAL: return the gradient of the objective of all rows, (p,), given those of a pass.

        None if the stage does not change all parameters.
        """

    def move_params(self, state: FitState, change: Array, weight: float) -> Any:
        """CENTRAL: return the parameters after a step, (p,), within bounds as `unpack_params`."""


@runtime_checkable
class CanLearnLocally(Protocol):
    """Takes many steps per pass: every task takes its own, over the rows of its chunks.

    `summarize` is never called. A task returns the change of the parameters over its steps,
    weighted by its rows; `update` applies the mean change of all tasks.
    `pipeline.learning.batches` splits rows into batches in keyed random order.
    """

    def learn(
        self,
        params: Any,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> Statistics | None:
        """MAP: take steps over the rows of a group of chunks; None if it has no rows."""


@runtime_checkable
class CanCompareRows(Protocol):
    """Compares every row with all rows before its passes, for example to find neighbours.

    `PassCountCriterion(0)` as convergence criterion means that no passes follow.
    """

    def compare(
        self,
        params: Any,
        working: Arrays,
        left: BinaryBlock,
        right: BinaryBlock,
        before: Arrays | None,
    ) -> Arrays:
        """MAP: update the results of the left rows by the rows of one more chunk.

        A task holds its left rows and reads all chunks, including their own, as right rows in
        order. The final results are stored, not sent. They must not depend on how rows are split
        into chunks. For example, k nearest rows do not if ties are broken by row number.

        Parameters
        ----------
        params, working
            Results of `initialize`.
        left, right
            Rows of all segments in original order. Empty blocks only determine the dtypes.
        before
            Results for the same left rows after the chunk before; None for the first chunk.

        Returns
        -------
        Mapping
            Arrays by name, each (n_left_rows, …). `row` is added by the caller.
        """

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """CENTRAL: use the results of `compare` for all rows, read range by range.

        `results.read(key)` returns the arrays of a range in original row order, with `row`, the
        original rows. It may also be called in a function that `map_items` maps over keys.
        """


@runtime_checkable
class CanTabulatePairs(Protocol):
    """Counts all pairs of features strip by strip if their table is too large for one task.

    The arrays are stored in the artifact and read strip by strip. Passes follow if the state that
    `update_from_pairs` returns is not done.
    """

    pair_counts: tuple[str, ...]
    """Names of the arrays that are sums over rows, if `tabulate` returns them."""
    cell_bytes: int
    """Memory per pair of columns in `tabulate`, with the results as stored."""

    def count_columns(self, n_planes: int) -> NDArray[np.int64]:
        """Return how many columns each feature takes in tables of pairs, (n_features,)."""

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether data with this number of features are counted in strips."""

    def tabulate(
        self,
        params: Any,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Arrays:
        """MAP: compute the arrays of the pairs of a strip of features.

        Parameters
        ----------
        params, working
            Results of `initialize`.
        features
            The strip. Its features are paired with all features from its first on. An empty strip
            after the last feature only determines the dtypes.
        chunks
            The chunks to count. Every iteration reads them again.
        counts
            The arrays `pair_counts` of the strip over the rows of all earlier chunks; None if
            there are none.

        Returns
        -------
        Mapping
            Arrays by name, each (n_strip, n_features − first).
        """

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """CENTRAL: use the results of all strips; without passes, fit and mark the state as done.

        `results.read(key, names)` returns the arrays of a strip. It may also be called in a
        function that `map_items` maps over keys.
        """


def check_can_sample(model: Model) -> CanSample:
    """Return the model if it can draw rows; refuse any other."""
    if isinstance(model, CanSample):
        return model
    raise FitError(f"The model {model.title} cannot draw rows. Fit another model.")


def check_has_continuous_features(model: Model) -> HasContinuousFeatures:
    """Return the model if it draws and reconstructs continuous features; refuse any other."""
    if isinstance(model, HasContinuousFeatures):
        return model
    raise FitError(
        f"The model {model.title} neither draws nor reconstructs continuous features. Fit another "
        "model."
    )


def check_has_person_fit(model: Model) -> HasPersonFit:
    """Return the model if it measures person fit; refuse any other."""
    if isinstance(model, HasPersonFit):
        return model
    raise FitError(f"The model {model.title} has no person fit. Leave out {{person_fit}}.")


def check_can_score(model: Model, params: Any, kind: ScoreKind) -> CanScore:
    """Return the model if it scores rows in this way; refuse any other."""
    if kind not in get_args(ScoreKind):
        kinds = ", ".join(map(repr, get_args(ScoreKind)))
        raise FitError(f"{{scores}} must be {kinds}, not {kind!r}.")
    if not isinstance(model, CanScore):
        raise FitError(
            f"The model {model.title} has no {kind} scores, only its codes. Leave out {{scores}}."
        )
    if kind == "wle" and (q := params.weights.shape[1]) > 1:
        raise FitError(
            f"{{scores=wle}} is of one trait, but the fit has {q}. Choose {{scores=map}}."
        )
    for array, kinds in (("units", "continuous"), ("is_nominal", "nominal")):
        if kind == "sum" and getattr(params, array, None) is not None:
            raise FitError(
                f"{{scores=sum}} is of ordered levels, but some features are {kinds}. Choose eap."
            )
    return model


def check_can_reconstruct(model: Model) -> CanReconstruct:
    """Return the model if it can reconstruct features from codes; refuse any other."""
    if isinstance(model, CanReconstruct):
        return model
    raise FitError(
        f"The model {model.title} cannot reconstruct features from codes. Fit another model."
    )


def check_can_impute(model: Model) -> CanImpute:
    """Return the model if it computes exact distributions of missing values; refuse any other."""
    if isinstance(model, CanImpute):
        return model
    raise FitError(
        f"The model {model.title} cannot compute exact probabilities of missing values. Fit "
        "another model, such as tree-mixture or hidden-tree."
    )
