"""Binary ICA with segments that are hidden states: rows in their order follow a Markov chain.

Model: the segment u_n of row n follows a Markov chain with transition matrix T and initial
distribution ρ, and rows of a segment follow the model of `blica`, or that of
`binary-ica-likelihood` (see `hidden_likelihood`). The paper leaves this open (A. Hyttinen,
V. Barin-Pacela, A. Hyvärinen, UAI 2022, section 7), as it was done for continuous data by H. Hälvä,
A. Hyvärinen (UAI 2020).

Fit, from several starts:

1. Windows of 50, 100, 200 and 400 neighbouring rows are clustered by the means of their pairs of
   features: k-means in the space of the first n_segments − 1 principal components, which contains
   the means of mixtures of n_segments distributions. Each length of windows is a start.
2. A pass computes P(u_n | all rows) as `hidden-markov` does, with P(x_n | u) by expectation
   propagation, once for each distinct row of a block. Each row is dealt to one segment, drawn from
   this distribution with the same number in every pass, so that the pairs of a segment are counted
   without bias, which the likeliest segments would not be (stochastic EM: G. Celeux, J. Diebolt,
   Computational Statistics Quarterly 2, 1985). BLICA is fitted to these segments with a weak ridge.
3. The best start goes on while the log-likelihood rises. If `n_segments` is not set, it is
   raised from 3 while BIC falls.
4. BLICA is fitted to the segments with the settings asked for, as if they were given.

==========  =======================  ==============================================
symbol      field                    shape
==========  =======================  ==============================================
ρ           initial                  (n_segments,)
T           transition               (n_segments, n_segments)
shares      weights                  (n_segments,)
==========  =======================  ==============================================

and those of `blica`. Segments are in the order of their numbers of rows, largest first.

Cost per block: that of expectation propagation for each segment and distinct row, twice in a pass.
Passes: 4 for starts and about 10 after that, for every number of segments; then one.
Not identifiable: as `blica`; and segments that are left after a few rows, which windows of 50 rows
do not tell apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, reduce
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.cluster.vq import ClusterError, kmeans2

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PatienceCriterion,
)
from pipeline.models.binary_ica.blica import (
    BLICA,
    MIN_SEGMENTS,
    BLICAParams,
)
from pipeline.models.binary_ica.likelihood import find_patterns
from pipeline.models.binary_ica.probit_ica import ProbitICA, ProbitICAParams
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.hidden_markov.chains import draw_path
from pipeline.models.hidden_markov.states import HiddenStates, split_columns
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.params import array_field, list_arrays
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import CountsAndMore, FeatureCounts, PairCounts
from pipeline.statistics.measurements import MixedStatistics
from pipeline.statistics.sums import ScoreSums, Sums

MAX_SEGMENTS = 32
"""Number of segments at which the search for their number ends."""
_WINDOW, _MERGED_WINDOWS = 50, (1, 2, 4, 8)
_MAX_WINDOWS, _MAX_WINDOW_CELLS = 4000, 1 << 22
_SHORT_PASSES, _PATIENCE = 4, 3
_N_CLUSTERINGS = 10
_RIDGE = 200.0
_FIRST_STAY = 0.99
_PSEUDO_COUNT = 0.1
_MAX_TABULATED = 10  # planes whose 1,024 rows of bits are tabulated
_SEARCH_TOL = 1e-6

DensityFunction = Callable[..., tuple[Array, Array]]
"""Return log P(x) of rows and its error, (n_samples,) each, given `ProbitArguments`."""


@dataclass(frozen=True)
class WindowCounts(CountsAndMore):
    """Counts of features, and those of pairs in windows of neighbouring rows.

    The segments of `windows` are their numbers; the first that have rows are kept.
    """

    label: ClassVar[str] = "window counts"
    counts: FeatureCounts
    windows: PairCounts

    @property
    def is_complete(self) -> bool:
        """Whether no value is missing."""
        return self.counts.is_complete

    @classmethod
    def from_block(cls, block: BinaryBlock) -> Self:
        """Count one block."""
        counts = FeatureCounts.from_block(replace(block, segment=0))
        return cls(counts, PairCounts.from_parts([*_cut_windows(block)]))

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        windows = self.windows.merge(other.windows)
        n_kept = _count_windows(windows.n_features)
        return type(self)(self.counts.merge(other.counts), windows.take_first_segments(n_kept))


def _cut_windows(block: BinaryBlock) -> Iterator[BinaryBlock]:
    """Yield the rows of each window of a block, at most as many windows as are kept."""
    numbers = block.rows // _WINDOW
    order = np.argsort(numbers, kind="stable")
    windows, firsts = np.unique(numbers[order], return_index=True)
    edges = np.append(firsts, len(order))
    for k, window in enumerate(windows.tolist()[: _count_windows(block.n_features)]):
        rows = order[edges[k] : edges[k + 1]]
        yield replace(block.take_rows(rows), segment=window)


def _count_windows(n_planes: int) -> int:
    return max(60, min(_MAX_WINDOWS, _MAX_WINDOW_CELLS // n_planes**2))


@dataclass(frozen=True)
class SegmentSums(MixedStatistics):
    """Sums over the states of rows, with pairs of rows dealt to segments, or scores."""

    label: ClassVar[str] = "states"
    scores: ScoreSums | None = None

    @property
    def objective(self) -> float:
        """Log-likelihood summed over rows, nats."""
        return self.sums.objective

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        scores = None
        if self.scores is not None and other.scores is not None:
            scores = self.scores.merge(other.scores)
        return replace(super().merge(other), scores=scores)


@dataclass(frozen=True, kw_only=True)
class SegmentChain:
    """Parameters of the Markov chain of segments.

    Attributes
    ----------
    weights
        Share of the rows in each segment.
    """

    weights: Array = array_field("segment", total=1)
    initial: Array = array_field("segment", total=1)
    transition: Array = array_field("segment", "segment_j")


@dataclass(frozen=True, kw_only=True)
class HiddenSegmentParams(SegmentChain, BLICAParams):
    """Parameters of BLICA, and of the Markov chain of segments."""


class SegmentParams(ProbitICAParams, Protocol):
    """Parameters of a model and of its chain."""

    segments: NDArray[np.int64]
    source_variances: Array
    weights: Array
    initial: Array
    transition: Array


@dataclass(frozen=True)
class HiddenSegments(HiddenStates, ProbitICA):
    """What models with `segments=auto` share: the search for segments, and what a fit can do."""

    support: ClassVar[Support] = Support(("binary", "ordinal"), has_sequences=True)
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **ProbitICA.codes,
        "likeliest_segment": (),
        "segment_probability": (),
    }
    n_components: int | None = None
    min_rows: int = setting(20, minimum=1)
    segments: Literal["auto"] = "auto"
    n_segments: int | None = setting(None, minimum=MIN_SEGMENTS)

    @property
    def title(self) -> str:
        """What messages call the model."""
        return f"{self.name} with {{segments=auto}}"

    @property
    def statistics(self) -> type[Any]:  # type: ignore[override]
        """Counts of pairs of segments, and sums over states."""
        return SegmentSums

    @property
    def first_statistics(self) -> type[Any]:
        """Counts of the pairs of windows."""
        return WindowCounts

    @property
    def search_tol(self) -> float:
        """Gain per row, relative to its size, below which the search for segments waits."""
        return _SEARCH_TOL

    def name_segments(self, params: SegmentParams) -> tuple[str, ...]:
        """Return the names of the segments that were found."""
        return tuple(str(index + 1) for index in range(len(params.segments)))

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the counts of windows, of the last fit, and of posteriors of rows."""
        n = self.n_segments or MAX_SEGMENTS
        windows = 3 * 8 * _count_windows(n_features) * n_features**2
        posteriors = 8 * 8 * n * (1 << 15) * n_threads
        return max(windows, super().estimate_memory(n_features, n, n_threads)) + posteriors

    def estimate_work(
        self, params: SegmentParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of expectation propagation, for as many distinct rows as possible."""
        n_segments, q = params.source_variances.shape
        share = min(1.0, 2.0 ** min(n_features, 60) / max(n_rows, 1))
        nanoseconds = n_segments * (120.0 * n_features * q * share + 20) + 0.3 * n_segments**3
        return WorkEstimate(nanoseconds, 8 * n_segments * n_features**2)

    def counts_key(self, n_features: int) -> str | None:
        """Return None: counts of pairs depend on the segments found."""
        return None

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> Any:
        """Count the pairs of windows."""
        return WindowCounts.from_block(block)

    def first_key(self, seed: int) -> str:
        """Return a key of the counts of windows."""
        return f"windows of {_WINDOW}"

    def _make_search_model(self, n_features: int) -> BLICA:
        """Return the model that is fitted in every pass."""
        n_components = self.n_components or max(1, n_features // 2)
        return BLICA(
            n_components, _RIDGE, min_rows=self.min_rows, starts=1, structure=self.structure
        )

    def initialize(self, first: Any, rng: np.random.Generator) -> FitState:
        """Refuse features that never vary, and start from clusters of windows."""
        counts = _repeat_segments(first.counts)
        state = super().initialize(counts, rng)  # type: ignore[safe-super]
        windows = {f"window-{name}": a for name, a in first.windows.to_arrays().items()}
        auxiliary = {**state.auxiliary, **windows, "seed": rng.integers(2**31, size=1)}
        n_segments = self.n_segments or MIN_SEGMENTS
        return self._begin_number(replace(state, auxiliary=auxiliary), n_segments)

    def _begin_number(self, state: FitState, n_segments: int) -> FitState:
        """Begin with this number of segments, from windows of each length."""
        arrays = {
            name.removeprefix("window-"): values
            for name, values in state.auxiliary.items()
            if name.startswith("window-")
        }
        windows, seed = PairCounts.from_arrays(arrays), int(state.auxiliary["seed"][0])
        auxiliary = {**state.auxiliary, "short": np.array(1)}
        state = replace(state, working={"is_search": np.array(1)}, auxiliary=auxiliary)
        starts: list[FitState] = []
        for n_merged in _MERGED_WINDOWS:
            merged = windows.sum_segments(windows.segments // n_merged)
            if len(merged.segments) < 2 * n_segments:
                continue
            labels = _cluster_windows(merged, n_segments, seed)
            if labels is not None:
                counts = merged.sum_segments(labels)
                try:
                    params = add_chain(self._fit_segments(counts, len(starts)), self.params)
                except FitError:  # some features hardly vary within these windows
                    continue
                starts.append(replace(state, params=params))
        if not starts:
            raise FitError(
                f"{{n_segments}} is {n_segments}, but {int(windows.rows.sum())} rows have too few "
                f"windows of {_WINDOW} rows that differ. Use fewer segments, or more rows: at "
                f"least {2 * n_segments * _WINDOW}.",
                parameter="n_segments",
            )
        return replace(starts[0], starts=tuple(starts))

    def _fit_segments(self, counts: PairCounts, seed: int) -> Any:
        """Fit BLICA to the pairs of segments, with a weak ridge, and convert its parameters."""
        model = self._make_search_model(len(self.structure.features) or counts.n_features)
        start = model.initialize(counts.to_feature_counts(), np.random.default_rng(seed))
        fitted = model.update(start, counts, map, np.random.default_rng(0))
        return self._convert_params(fitted.params)

    def _convert_params(self, params: BLICAParams) -> Any:
        """Return parameters of this model, without a chain, from a BLICA fit."""
        raise NotImplementedError

    def _fit_pairs(
        self, state: FitState, pairs: PairCounts, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Fit BLICA to the pairs of the final segments, with the settings asked for."""
        raise NotImplementedError

    def count_groups(self, n_features: int) -> int:
        """Return the number of groups that a segment's rows are dealt to for this last fit."""
        raise NotImplementedError

    def _count_parameters(self, params: Any) -> int:
        """Return the number of parameters besides those of the chain."""
        raise NotImplementedError

    def _find_density_function(self, params: Any, working: Arrays) -> DensityFunction:
        """Return what computes the densities of rows; the same function for equal arguments."""
        return _approximate_densities

    def _compute_log_densities(
        self, params: SegmentParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return log P(x_n | u), (n_samples, n_segments), and which rows are held out: none."""
        found = find_densities(self._find_density_function(params, working), params, block)
        return np.ascontiguousarray(found[..., 0]), np.zeros(block.n_samples, np.bool_)

    def summarize(self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom) -> Any:
        """Deal the rows of a block to segments, given its neighbours, and count their pairs."""
        posterior, values, nats = self._find_posterior(params, working, block, rng)
        segments = deal_rows(posterior, block, rng)
        parts = [
            replace(block.take_rows(np.flatnonzero(segments == u)), segment=u)
            for u in np.unique(segments).tolist()
        ]
        n_groups = 1 if "is_search" in working else self.count_groups(block.n_features)
        pairs = [PairCounts.from_groups(part, n_groups) for part in parts]
        return SegmentSums(Sums.from_block(block, nats, values), reduce(PairCounts.merge, pairs))

    def _find_posterior(
        self, params: SegmentParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> tuple[Array, Arrays, float]:
        """Return multiples of P(u_n | all rows), the sums of the chain, and the log-likelihood."""
        logs, _ = self._compute_log_densities(params, working, block, rng)
        paths = self._sum_paths(params, working, block, logs)
        values = {"transitions": paths.transitions, "starts": paths.starts}
        return paths.earlier * paths.densities * paths.later, values, paths.nats

    def add_to(self, statistics: Any, *inputs: Any) -> SegmentSums:
        """Add the statistics of a block."""
        sums: SegmentSums = statistics.merge(self.summarize(*inputs))
        return sums

    def mean_log_likelihood(self, params: Any, statistics: Any) -> float | None:
        """Return the log-likelihood per row, nats."""
        return float(statistics.objective / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop short runs after a few passes, and the fit of the final segments after one.

        Other runs end with their best pass: BLICA matches moments, which need not raise the
        likelihood of rows.
        """
        if "is_search" not in state.working:
            return ObjectiveCriterion(1, 0.0)
        max_iter = _SHORT_PASSES if state.auxiliary["short"] else self.max_iter
        return PatienceCriterion(max_iter, _PATIENCE, self.search_tol)

    def update(
        self,
        state: FitState,
        statistics: Any,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA to the segments of the rows, and find the transitions between them."""
        pairs, n_groups, fitted = statistics.pairs, 1, state
        assert pairs is not None
        if "is_search" in state.working:
            try:
                params = self._fit_segments(pairs, state.iteration % 3)
            except FitError:  # a segment has too few rows; the same parameters end this start
                return state
        else:
            n_groups = self.count_groups(pairs.n_features)
            try:
                fitted = self._fit_pairs(state, pairs, map_items, rng)
            except FitError as error:
                raise error.with_names((), self.name_segments(state.params)) from None
            params = fitted.params
        seen = pairs.list_grouped_segments(n_groups)
        chain = estimate_chain(statistics.sums.values, seen)
        return replace(fitted, params=add_chain(params, self.params, *chain))

    def select_start(self, state: FitState) -> FitState:
        """Go on with the best start until it has converged."""
        return replace(state, auxiliary={**state.auxiliary, "short": np.array(0)}, starts=())

    def next_stage(self, state: FitState, statistics: SegmentSums) -> FitState | None:
        """Try one more segment while BIC falls, then fit BLICA to the best segments."""
        if "is_search" not in state.working:
            return None
        if self.n_segments is not None:
            return self._begin_last(state)
        auxiliary, n_segments = dict(state.auxiliary), len(state.params.segments)
        n_parameters = self._count_parameters(state.params) + n_segments * (n_segments - 1)
        bic = n_parameters * np.log(statistics.weight) - 2 * statistics.weight * max(state.history)
        auxiliary["bic"] = np.append(auxiliary.get("bic", ()), bic)
        is_best = bic <= auxiliary["bic"].min()
        if is_best:
            arrays = {name: getattr(state.params, name) for name in list_arrays(self.params)}
            auxiliary |= {f"best-{n}": a for n, a in arrays.items() if a is not None}
        state, tried = replace(state, auxiliary=auxiliary), MIN_SEGMENTS + len(auxiliary["bic"])
        if is_best and tried <= MAX_SEGMENTS:
            return self._begin_number(state, tried)
        best = {
            name.removeprefix("best-"): values
            for name, values in auxiliary.items()
            if name.startswith("best-")
        }
        return self._begin_last(replace(state, params=self.params(**best)))

    def _begin_last(self, state: FitState) -> FitState:
        """Fit the final segments, in the order of their sizes."""
        order = np.argsort(-state.params.segment_rows, kind="stable")
        return replace(state, params=take_segments(state.params, order), working={})

    def finish(self, state: FitState, statistics: SegmentSums) -> FitState:
        """Add diagnostics, and warn about segments without rows."""
        n_found = len(state.params.segments)
        bic = state.auxiliary.get("bic", np.empty(0)).tolist()
        diagnostics = {**state.diagnostics, "n_segments": n_found, "segments_bic": bic}
        state = replace(state, diagnostics=diagnostics)
        if self.n_segments is not None and n_found < self.n_segments:
            return state.with_warning(
                f"{self.n_segments - n_found} of {self.n_segments} segments have no rows and were "
                "left out; use a smaller {n_segments}"
            )
        return state

    def transform(
        self, params: Any, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the posterior moments of z given all rows, and the likeliest segment, from 1.

        `segment_probability` is the probability of this segment given all rows.
        """
        earlier, later = self._split_covariates(params, block)
        logs, _ = self._compute_log_densities(params, {}, block, rng)
        posterior = scipy.special.softmax(logs + earlier + later, axis=1)
        mean = np.zeros((block.n_samples, params.mixing.shape[1]))
        second, converged = np.zeros_like(mean), np.ones(block.n_samples, np.bool_)
        for index, weights in zip(params.segments.tolist(), posterior.T, strict=True):
            codes = super().transform(params, replace(block, segment=index), rng)
            mean += weights[:, None] * codes["mean"]
            second += weights[:, None] * (codes["variance"] + codes["mean"] ** 2)
            converged &= codes["converged"].astype(bool)
        return {
            "mean": mean,
            "variance": second - mean**2,
            "converged": converged,
            "likeliest_segment": posterior.argmax(axis=1) + 1,
            "segment_probability": posterior.max(axis=1, initial=0.0),
        }

    def _split_covariates(self, params: SegmentParams, block: BinaryBlock) -> tuple[Array, Array]:
        """Return what earlier and what later rows say about the segment of each row, logarithms.

        A row by itself is of a segment with the share of its rows.
        """
        if block.covariates is None:
            shape = (block.n_samples, len(params.segments))
            return np.broadcast_to(np.log(params.weights), shape), np.zeros(shape)
        return split_columns(block.covariates)[:2]

    def log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> LogLikelihood:
        """Return log P(x_n | earlier rows) of each row."""
        earlier, _ = self._split_covariates(params, block)
        compute = self._find_density_function(params, {})
        logs, errors = np.moveaxis(find_densities(compute, params, block), 2, 0)
        nats: Array = scipy.special.logsumexp(logs + earlier, axis=1)
        error = (scipy.special.softmax(logs + earlier, axis=1) * errors).sum(axis=1)
        return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)

    def sample_numbers(
        self,
        params: Any,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows of one sequence, or of these segments."""
        if segments is None:
            segments = np.empty(n_samples, np.int64)
            draw_path(params.transition, params.initial, rng.random(n_samples), segments)
        return super().sample_numbers(params, n_samples, rng, segments)


@dataclass(frozen=True)
class HiddenSegmentBLICA(HiddenSegments, BLICA):
    """Hyperparameters of BLICA with `segments=auto`.

    Attributes
    ----------
    segments
        `auto`: segments are hidden states of the rows, in their order.
    n_segments
        Number of segments. None takes the number with the lowest BIC, from 3 to 32.
    n_components
        Number of components; None takes the fewest within 2.7 standard errors of the best
        held-out pairwise likelihood, among identifiable numbers, given the segments.
    regularization
        Condition number r, above 1, to which correlations are ridged in the last step; None chooses
        it as without `segments=auto`.
    min_rows
        Minimum number of rows of a segment; smaller segments are left out.
    starts
        Number of random starts; the best result is used.
    bootstrap
        Number of replicates for the intervals of the mixing, given the segments: 0 for none, else
        at least 20.
    max_iter
        Maximum number of passes for each number of segments.
    tol
        Stop once the log-likelihood per row has not risen by more than this for three passes,
        relative to its size; the best pass counts.
    """

    params: ClassVar[type[HiddenSegmentParams]] = HiddenSegmentParams
    max_iter: int = setting(100, minimum=1)
    tol: float = setting(_SEARCH_TOL, above=0, below=1)

    @property
    def search_tol(self) -> float:
        """The setting `tol`."""
        return self.tol

    def count_groups(self, n_features: int) -> int:
        """Return the number of groups of BLICA."""
        return BLICA.count_groups(self, n_features)

    def _convert_params(self, params: BLICAParams) -> BLICAParams:
        return params

    def _fit_pairs(
        self, state: FitState, pairs: PairCounts, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        return BLICA.update(self, state, pairs, map_items, rng)

    def _count_parameters(self, params: HiddenSegmentParams) -> int:
        n_components = params.mixing.shape[1]
        n_parameters = params.thresholds.size + params.source_variances.size
        return int(n_parameters + params.mixing.size - n_components)


@dataclass(frozen=True)
class _HashedParams:
    """Parameters that are equal if their bytes are."""

    digest: bytes
    params: SegmentParams = field(compare=False)

    @classmethod
    def of(cls, params: SegmentParams) -> Self:
        arrays = (getattr(params, name) for name in list_arrays(type(params)))
        own = b"".join(array.tobytes() for array in arrays if array is not None)
        return cls(hashlib.sha256(own).digest(), params)


def find_densities(compute: DensityFunction, params: SegmentParams, block: BinaryBlock) -> Array:
    """Return log P(x_n | u) of each row and its error, (n_samples, n_segments, 2)."""
    if block.n_features <= _MAX_TABULATED and block.observed_words is None:
        places = block.unpack_values() @ (1 << np.arange(block.n_features))
        return _tabulate_densities(compute, _HashedParams.of(params), block.n_features)[places]
    patterns = find_patterns(block)
    return _compute_densities(compute, params, patterns.block)[patterns.places]


@lru_cache(maxsize=16)
def _tabulate_densities(compute: DensityFunction, hashed: _HashedParams, n_planes: int) -> Array:
    """Return the densities of all rows of bits, (2**n_planes, n_segments, 2), once per process."""
    bits = np.arange(1 << n_planes)[:, None] >> np.arange(n_planes) & 1
    return _compute_densities(compute, hashed.params, pack_block(bits.astype(np.uint8)))


def _compute_densities(
    compute: DensityFunction, params: SegmentParams, block: BinaryBlock
) -> Array:
    models = (params.segment_model(index) for index in params.segments.tolist())
    return np.stack([np.stack(compute(*m.read_rows(block)), axis=1) for m in models], axis=1)


def _approximate_densities(*rows: Any) -> tuple[Array, Array]:
    """Approximate densities by expectation propagation."""
    posterior = probit_posterior(*rows)
    return posterior.log_evidence, posterior.evidence_error


def deal_rows(posterior: Array, block: BinaryBlock, rng: RowRandom) -> NDArray[np.int64]:
    """Draw the segment of each row from multiples of its probabilities, (n_samples,).

    Numbers are the same in every pass.
    """
    shares = np.cumsum(posterior, axis=1)
    draws = RowRandom(rng.seed).stream("segments").uniform(block.rows, 1)
    segments: NDArray[np.int64] = (shares < draws * shares[:, -1:]).sum(axis=1)
    return segments


def estimate_chain(values: Arrays, seen: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the initial and the transition probabilities of the segments seen."""
    initial, transition = (
        (own + _PSEUDO_COUNT) / (own + _PSEUDO_COUNT).sum(axis=-1, keepdims=True)
        for own in (values["starts"][seen], values["transitions"][np.ix_(seen, seen)])
    )
    return initial, transition


def add_chain(
    params: Any,
    kind: Callable[..., Any] = HiddenSegmentParams,
    initial: Array | None = None,
    transition: Array | None = None,
) -> Any:
    """Return parameters of a kind, with a Markov chain; by default, with that of starts."""
    n = len(params.segments)
    if initial is None or transition is None:
        initial = np.full(n, 1 / n)
        transition = np.full((n, n), (1 - _FIRST_STAY) / max(n - 1, 1))
        np.fill_diagonal(transition, _FIRST_STAY)
    own = {f.name: getattr(params, f.name) for f in fields(params)}
    own |= {"segments": np.arange(n), "initial": initial, "transition": transition}
    return kind(**{**own, "weights": params.segment_rows / params.segment_rows.sum()})


def take_segments(params: Any, order: NDArray[np.intp]) -> Any:
    """Return parameters with a chain, with some segments in another order."""
    dims = {name: own.dims for name, own in list_arrays(type(params)).items()}
    arrays = {
        name: getattr(params, name)[order]
        for name, own in dims.items()
        if own[0] == "segment" and getattr(params, name) is not None
    }
    arrays["transition"] = params.transition[np.ix_(order, order)]
    arrays["segments"] = np.arange(len(order))
    return replace(params, **arrays)


def _repeat_segments(counts: FeatureCounts) -> FeatureCounts:
    """Return the counts as if of as many equal segments as BLICA needs, for its checks."""
    names = ("rows", "observed", "ones")
    repeated: dict[str, Any] = {
        name: np.repeat(getattr(counts, name), MIN_SEGMENTS, axis=0) for name in names
    }
    return replace(counts, segments=np.arange(MIN_SEGMENTS), **repeated)


def _cluster_windows(windows: PairCounts, n_clusters: int, seed: int) -> NDArray[np.int64] | None:
    """Cluster windows by the means of standardized features and their products, (n_windows,).

    None if so many clusters cannot be told apart.
    """
    tables = [windows.table(u) for u in range(len(windows.segments))]
    n, ones_i, ones_j, joint = (
        np.stack([np.broadcast_to(t[k], tables[0].joint.shape) for t in tables]).astype(float)
        for k in range(4)
    )
    total = np.maximum(n.sum(axis=0), 1)
    p = np.diagonal(joint.sum(axis=0)) / np.diagonal(total)
    deviation = np.sqrt(np.maximum(p * (1 - p), 1e-9))
    products = joint - p * ones_i - p[:, None] * ones_j + p * p[:, None] * n
    products /= np.maximum(n, 1) * deviation * deviation[:, None]
    i, j = np.triu_indices(len(p), 1)
    own = np.diagonal(joint - p[:, None] * n, axis1=1, axis2=2) / deviation
    means = own / np.maximum(np.diagonal(n, axis1=1, axis2=2), 1)
    moments = np.hstack([means, products[:, i, j]])
    moments -= moments.mean(axis=0)
    _, _, axes = np.linalg.svd(moments, full_matrices=False)
    scores = moments @ axes[: n_clusters - 1].T
    rng, least = np.random.default_rng(seed), np.inf
    best: NDArray[np.int64] | None = None
    for _ in range(_N_CLUSTERINGS):
        try:
            centres, labels = kmeans2(scores, n_clusters, 20, minit="++", missing="raise", rng=rng)
        except ClusterError:  # a cluster became empty
            continue
        squares = float(((scores - centres[labels]) ** 2).sum())
        if squares < least:
            best, least = labels.astype(np.int64), squares
    return best
