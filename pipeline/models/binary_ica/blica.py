"""BLICA: binary ICA of non-stationary data, whose source variances differ between segments.

Model, in segment u: z ~ N(μ, diag σ²), y = A z, P(x_i = 1 | z) = Φ(√(π/8) y_i). Segments share A
(A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, eqs 2–11 and algorithm 1, BLICA).

The fit (`moment_matching`) has three steps:

1. Estimate the tetrachoric correlations C of all pairs in each segment, and ridge each matrix:
   (C + δ I) / (1 + δ) with the least δ for which the condition number is at most r.
2. Find the A, σ² and scales Q that maximise the scaled Gaussian likelihood, from several starts.
3. Keep A, and fit σ² and Q again with the ridge in the model too. With a ridge on the data alone,
   σ² is several times too small.

r and the number of components are chosen by held-out pairwise likelihood. A ridge also biases A,
however many rows there are: by up to 0.006 per entry if one of 4 segments has δ = 0.1.

==========  =======================  ==============================================
symbol      field                    shape
==========  =======================  ==============================================
A           mixing                   (n_features, n_components)
σ²          source_variances         (n_segments, n_components)
μ           source_means             (n_segments, n_components)
t           thresholds               (n_segments, n_features)
Q           scales                   (n_segments, n_features)
C           correlations             (n_segments, n_features, n_features)
δ           ridge                    (n_segments,)
==========  =======================  ==============================================

A feature with several levels has level c or higher iff √(π/8) a_i·z + ε > τ_ic; a plane is the
indicator of a level c and all higher ones. The τ are common to all segments and have a mean of 0 in
each feature, as the threshold of a binary feature is 0. The fit differs in two ways. Correlations
are polychoric: two-step estimates by maximum likelihood (Olsson 1979), see
`numerics.gaussian.polychoric`. And the thresholds of a feature are equally far apart in all
segments, so the levels of a segment measure the standard deviation s_ui of its latent, up to a
constant of the feature; see `level_margins`. Step 3 matches them too: log Q_ui = constant_i −
log s_ui, with an error that depends on the rows at each level. Step 2 does not: in simulated data,
the errors of the s_ui made the mixing worse. Held-out rows are scored by the likelihood of all
pairs of planes of two features.

A continuous feature is m_i + s_i (√(π/8) a_i·z + ε), with ε ~ N(0, 1). All segments share s_i, but
not the mean of the feature, as the thresholds of other features. To count pairs, the fit cuts each
continuous feature at 21 points, 0.3 standard deviations of all rows apart. In a segment with the
variance of all rows, cut values have 98 % of the information about a correlation of 0, 93 % at 0.8
and 76 % at 0.95. Nothing was lost in the mixing: Pearson correlations of the values instead, with 4
of 6 or 6 of 10 features continuous, gave the same 1 − mean cosine similarity (0.0082 instead of
0.0081, mean of six data sets, and 0.0017 twice, mean of three). Codes, likelihoods and the means of
segments use the values themselves. s_i is the mean over segments, on a log scale, of the standard
deviation of the values over the model's for s_i = 1.

Thresholds come from the margins: x_i = 1 iff a standard normal with the model's correlations
exceeds t_i. `sample`, `transform` and the likelihoods use the thresholds. μ is the source mean that
explains them best; `mean_misfit` is the remaining distance.

Cost per block: as for clipped PCA, in each segment, with 21 planes for a continuous feature. One
pass, before which one counts levels and sums moments of continuous features. One evaluation of the
likelihood costs n_segments n_features² n_components.
Missing values: pairs are counted in each segment where both values are observed. Values must be
missing completely at random within a segment; the missing share may differ between segments.
Not identifiable: order, sign and length of columns (ordered by explained variance, largest entry
positive, length 1); sources whose variances are proportional over segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, Tile, pack_block
from pipeline.data.features import (
    MAX_LEVELS,
    Feature,
    find_first_planes,
    select_with_levels,
)
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.binary_ica.gaussian_likelihood import LBFGS_MEMORY
from pipeline.models.binary_ica.moment_matching import (
    MAX_ROUNDS,
    MatchSettings,
    MomentMatch,
    count_surplus_equations,
    estimate_source_means,
    match_moments,
)
from pipeline.models.binary_ica.probit_ica import (
    PROBIT_SCALE,
    ContinuousUnits,
    ProbitICA,
    SegmentModel,
)
from pipeline.models.binary_ica.rotations import (
    UNLINKED_SOURCES,
    find_rotatable_sources,
    warn_about_rotations,
)
from pipeline.models.binary_ica.segment_correlations import (
    MAX_UNDEFINED_SHARE,
    GroupSums,
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
    mark_varying_features,
)
from pipeline.models.binary_ica.selection import MAX_PAIRS, MAX_SPLITS, RIDGE_GRID
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import (
    NumberRange,
    array_field,
    list_arrays,
    optional_array_field,
    params_from_arrays,
)
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    PairCounts,
    count_level_rows,
    make_empty_level_warnings,
    make_tiles,
)
from pipeline.statistics.measurements import (
    MeasuredCounts,
    MixedStatistics,
    check_numbers,
    standardize_numbers,
)
from pipeline.statistics.nested_features import warn_about_nested_features
from pipeline.statistics.sums import Sums

ParamsT = TypeVar("ParamsT")

MIN_SEGMENTS = 3
_CUTS = np.linspace(-3.0, 3.0, 21)  # of standardized values of continuous features
_MAX_GROUP_CELLS, _MAX_GROUPS = 1 << 16, 8
_PAIRS_PER_SLICE = 1 << 18  # pairs whose correlations a thread estimates at once
_MIN_HALVES_AGREEMENT = 0.95
_MAX_RIDGE = 9.0
_EMPTY_SHARE = 0.5  # of the rows, in segments where the table of a pair has an empty cell
_DISPERSION = 2.5  # of errors of log variances, against those from independent correlations
_PRIOR_PRECISION = 0.25  # of a log variance, as in `BinaryICALikelihood`
_SINGLE_FEATURE_SHARE, _PARALLEL_COSINE = 0.95, 0.98
_MIN_START_SIMILARITY = 0.7


@dataclass(frozen=True)
class BLICAParams:
    """Parameters, for segments that have rows; the module's table gives shapes.

    Attributes
    ----------
    segments, segment_rows, segment_status
        Index in the dataset, number of rows and `SegmentStatus` of each segment. Segments that were
        left out have the mean variances of the others.
    thresholds
        The mean threshold of each feature, if features have several levels.
    mean_misfit
        Root mean square distance of the thresholds from those that μ implies, in standard errors.
    pair_status, varies
        `PairStatus` of every pair; 0 if a feature is constant in a segment.
    start_objectives, start_similarities
        For each start that stayed finite, best first: mean log-likelihood per row in nats up to a
        constant, and mean cosine similarity of its mixing to the best start's.
    candidate_components, candidate_regularization, candidate_scores
        Settings tried on held-out rows, and their nats per pair of features and row. The first,
        with no components, is independence.
    mixing_interval
        Ends of the 95 % bootstrap intervals; empty without a bootstrap, and NaN for sources of
        which any rotation fits as well.
    n_levels
        Number of levels of each feature, 1 of a continuous one; None if all are binary.
    level_thresholds
        Thresholds of planes; None if all features are binary.
    number_means, number_deviations, number_scales
        Mean and standard deviation of each continuous feature, and the standard deviation of its
        noise; None if there are none.
    """

    mixing: Array = array_field("feature", "component")
    source_variances: Array = array_field("segment", "component", allowed=NumberRange(minimum=0))
    source_means: Array = array_field("segment", "component")
    mean_misfit: Array = array_field("segment")
    thresholds: Array = array_field("segment", "feature")
    scales: Array = array_field("segment", "feature")
    correlations: Array = array_field("segment", "feature", "feature_j")
    pair_status: NDArray[np.uint8] = array_field("segment", "feature", "feature_j")
    varies: NDArray[np.uint8] = array_field("segment", "feature")
    ridge: Array = array_field("segment")
    segments: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=0))
    segment_rows: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=1))
    segment_status: NDArray[np.uint8] = array_field("segment")
    start_objectives: Array = array_field("start")
    start_similarities: Array = array_field("start")
    candidate_components: NDArray[np.int64] = array_field("candidate")
    candidate_regularization: Array = array_field("candidate")
    candidate_scores: Array = array_field("candidate")
    mixing_interval: Array = array_field("bound", "feature", "component", may_be_nan=True)
    n_levels: NDArray[np.int64] | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=1, maximum=MAX_LEVELS)
    )
    level_thresholds: Array | None = optional_array_field("segment", "plane")
    number_means: Array | None = optional_array_field("continuous")
    number_deviations: Array | None = optional_array_field(
        "continuous", allowed=NumberRange(above=0)
    )
    number_scales: Array | None = optional_array_field("continuous", allowed=NumberRange(above=0))

    def segment_model(self, index: int) -> SegmentModel:
        """Return the model of a segment; unfitted segments get the mean of the others."""
        is_segment = self.segments == index
        is_used = self.segment_status == SegmentStatus.USED
        weights = is_segment if is_segment.any() else self.segment_rows * is_used
        if not weights.any():
            raise FitError("The artifact says that no segment was used. Fit again.")
        shares = weights / weights.sum()
        thresholds = self.thresholds if self.level_thresholds is None else self.level_thresholds
        model = SegmentModel(
            PROBIT_SCALE * self.mixing,
            shares @ thresholds,
            shares @ self.source_means,
            shares @ self.source_variances,
            np.full(len(self.mixing), 2) if self.n_levels is None else self.n_levels,
        )
        if self.number_means is None or self.number_scales is None:
            return model
        shifts = -(shares @ self.thresholds * model.deviations)[model.is_continuous]
        return model._replace(
            continuous=ContinuousUnits(shifts, self.number_means, self.number_scales)
        )


@dataclass(frozen=True)
class BLICA(ProbitICA):
    """Hyperparameters of BLICA.

    Attributes
    ----------
    n_components
        Number of components; None takes the fewest within 2.7 standard errors of the best
        held-out pairwise likelihood, among identifiable numbers.
    segments
        `given`: the dataset says which segment each row is of. `auto`: segments are hidden states
        of the rows, in their order.
    n_segments
        Number of segments with `segments=auto`. None takes the number with the lowest BIC, from 3
        to 32.
    regularization
        Condition number r, above 1, to which correlations are ridged; larger means a weaker ridge.
        None takes the weakest ridge within one standard error of the best held-out pairwise
        likelihood on which halves of the rows agree.
    min_rows
        Minimum number of rows of a segment; smaller segments are left out.
    starts
        Number of random starts; the best result is used.
    bootstrap
        Number of replicates for the intervals of the mixing: 0 for none, else at least 20. Each
        replicate chooses its own ridge unless `regularization` is set. The number of components is
        fixed.
    """

    name: ClassVar[str] = "blica"
    indeterminacy: ClassVar[str] = (
        "the order, signs and lengths of the components, and those whose variances change alike"
    )
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "continuous"), ("groups",), needs_levels=True
    )
    unlinked_effect: ClassVar[str] = UNLINKED_SOURCES
    params: ClassVar[type[BLICAParams]] = BLICAParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("mixing", "source_means", "mixing_interval")
    summary_diagnostics: ClassVar[tuple[str, ...]] = (
        "regularization",
        "stability_of_starts",
        "stability_of_halves",
    )
    n_components: int | None = None
    regularization: float | None = setting(None, above=1)
    min_rows: int = setting(20, minimum=1)
    starts: int = setting(3, minimum=1)
    bootstrap: int = setting(0, minimum=20, or_zero=True)
    segments: Literal["given", "auto"] = "given"
    n_segments: int | None = setting(None, minimum=MIN_SEGMENTS)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_segment_settings(self.segments, self.n_segments)

    @property
    def statistics(self) -> type[PairCounts | MixedStatistics]:  # type: ignore[override]
        """Counts of pairs, with sums of continuous features if there are any."""
        return MixedStatistics if self.structure.continuous.size else PairCounts

    def find_first_planes(self, n_planes: int) -> NDArray[np.int64]:
        """Return the first plane of each feature after cutting, and the number of planes.

        `n_planes` is the number of planes if all features are binary.
        """
        if not self.structure.features:
            return np.arange(n_planes + 1)
        levels = tuple(map(str, range(len(_CUTS) + 1)))
        cut = [f if f.levels else Feature(f.name, levels) for f in self.structure.features]
        return find_first_planes(cut)

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Split the pairs of features so that a task's counts stay within a budget."""
        if self.structure.continuous.size:
            return (None,)
        return make_tiles(n_features, n_segments * self.count_groups(n_features), budget)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of counts by group, and of correlations of all rows and of folds."""
        n_features = int(self.find_first_planes(n_features)[-1])
        n_groups, n_pairs = self.count_groups(n_features), n_features**2
        n_folds = 2 * min(MAX_SPLITS, n_groups - 1)
        counts, estimates = 8, 8 + 1  # per pair and segment: int64; float64 and a status
        gaps = estimates + 1  # correlations with filled gaps, and a mask of the gaps
        resampled = counts + estimates if self.bootstrap else 0
        after_all_rows = max(n_folds * estimates, gaps + resampled)
        bytes_per_segment = n_pairs * (n_groups * counts + estimates + after_all_rows)
        bytes_per_segment += n_folds * 4 * 2 * min(n_pairs // 2, MAX_PAIRS)  # tables of uint16
        bytes_per_segment += 2 * 8 * LBFGS_MEMORY * n_features  # of the search, mostly scales
        # Tables and correlations of a strip with copies, or a matrix for its eigenvalues.
        bytes_per_thread = 5 * 8 * max(n_pairs, _PAIRS_PER_SLICE)
        return n_segments * bytes_per_segment + n_threads * bytes_per_thread

    def count_groups(self, n_features: int) -> int:
        """Return the number of groups that a segment's rows are dealt to.

        Groups make up the folds, and the bootstrap resamples them.
        """
        if self.n_components and self.regularization and not self.bootstrap:
            return 1
        # A bootstrap must not change this number, on which the choice of settings depends.
        fitting = max(2, min(_MAX_GROUPS, _MAX_GROUP_CELLS // n_features**2))
        return 1 << (fitting.bit_length() - 1)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Refuse fewer than 3 usable segments, and features that vary in none of them.

        Reports levels without rows, and standardizes continuous features.
        """
        features, working = self.structure.features, {}
        if isinstance(first, MeasuredCounts):
            check_numbers(first, features)
            working = {
                "number_means": first.means,
                "number_deviations": np.sqrt(first.squares / first.number_weights),
                "segments": first.segments,
            }
        ordinal = select_with_levels(features)
        level_rows = count_level_rows(first, ordinal)
        with self._name_features():
            self._check_margins(first)
        seeds = {
            "starts": rng.integers(2**63, size=self.starts),
            "bootstrap": rng.integers(2**63, size=self.bootstrap),
        }
        consequence = "the fit gives these levels a probability of nearly 0"
        warnings = make_empty_level_warnings(level_rows, consequence)
        empty = make_empty_params(BLICAParams)
        state = FitState(empty, working=working, auxiliary=seeds, warnings=warnings)
        return state.with_feature_names([feature.name for feature in ordinal])

    def _check_margins(self, first: FeatureCounts) -> None:
        """Refuse too many components, too few segments, and features that never vary."""
        ordinal = select_with_levels(self.structure.features)
        firsts = find_first_planes(ordinal) if ordinal else np.arange(first.ones.shape[1] + 1)
        varies = mark_varying_features(first.observed, first.ones, firsts)
        for i in self.structure.continuous.tolist():  # they are checked after they were cut
            varies = np.insert(varies, i, True, axis=1)
        n_features = varies.shape[1]
        if self.n_components is not None and self.n_components > n_features:
            raise FitError(
                f"{{components}} is {self.n_components}, but there are only {n_features} features.",
                parameter="components",
            )
        if len(first.segments) < MIN_SEGMENTS:
            raise FitError(
                f"BLICA needs at least {MIN_SEGMENTS} segments, but there are "
                f"{len(first.segments)}. Give the segment of each row by {{segment}}, or fit "
                "another model."
            )
        usable = first.rows >= self.min_rows
        self._check_n_segments(usable, first.segments, ())
        _check_varying(varies, usable)

    def _check_n_segments(
        self, usable: NDArray[np.bool_], segments: NDArray[np.int64], undefined: Sequence[int]
    ) -> None:
        if usable.sum() < MIN_SEGMENTS:
            pairs = " or pairs without a correlation, among {features}" if undefined else ""
            raise FitError(
                f"BLICA needs at least {MIN_SEGMENTS} usable segments, but there are "
                f"{usable.sum()}. Left out: {{segments}}, for fewer than {self.min_rows} rows "
                f"({{min_rows={self.min_rows}}}) or features that do not vary{pairs}. Use longer "
                "segments, or leave out rare features.",
                undefined,
                segments[~usable].tolist(),
            )

    def warn_about_nested_features(self, statistics: PairCounts) -> tuple[FitWarning, ...]:
        """Name features that are equal, opposite or nested in all segments."""
        first_planes = self.find_first_planes(statistics.n_features)
        return warn_about_nested_features(statistics, first_planes)

    def summarize(
        self, params: BLICAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> PairCounts | MixedStatistics:
        """Count the pairs of a block, with its rows dealt to groups, and sum its values."""
        if not self.structure.continuous.size:
            return PairCounts.from_groups(block, self.count_groups(block.n_features))
        z = standardize_numbers(block, working["number_means"], working["number_deviations"])
        cut = self._cut_numbers(block, z)
        pairs = PairCounts.from_groups(cut, self.count_groups(cut.n_features))
        return MixedStatistics(Sums.from_block(block, 0.0, _sum_values(block, z, working)), pairs)

    def add_to(
        self,
        statistics: PairCounts | MixedStatistics,
        params: BLICAParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> PairCounts | MixedStatistics:
        """Add the statistics of a block, the counts of pairs of bits in place."""
        if isinstance(statistics, PairCounts):
            return statistics.add_block_groups(block, self.count_groups(block.n_features))
        return super().add_to(statistics, params, working, block, rng)  # type: ignore[return-value]

    def _cut_numbers(self, block: BinaryBlock, z: Array) -> BinaryBlock:
        """Return a block with the planes of all features, given its standardized values."""
        n_planes = np.diff(self.find_first_planes(block.n_features))
        is_cut = np.repeat(np.isin(np.arange(len(n_planes)), self.structure.continuous), n_planes)
        bits = (z[:, None] >= _CUTS[:, None]).reshape(-1, block.n_samples).view(np.uint8)
        known = np.repeat(~np.isnan(z), len(_CUTS), axis=0).view(np.uint8)
        cut = pack_block(bits.T, known.T)
        words = np.empty((len(is_cut), block.words.shape[1]), block.words.dtype)
        words[is_cut], words[~is_cut] = cut.words, block.words
        mask = None
        if block.observed_words is not None or not known.all():
            assert cut.observed_words is not None
            full = pack_block(np.ones((block.n_samples, 1), np.uint8)).words
            mask = np.empty_like(words)
            mask[is_cut] = cut.observed_words
            mask[~is_cut] = full if block.observed_words is None else block.observed_words
        return replace(block, words=words, observed_words=mask, numbers=None)

    def counts_key(self, n_features: int) -> str | None:
        """Return a key of the pair counts of each segment's groups; None if cuts depend on rows."""
        return None if self.structure.continuous.size else f"{self.count_groups(n_features)} groups"

    def update(
        self,
        state: FitState,
        statistics: PairCounts | MixedStatistics,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Match the correlations of the segments, and add units and warnings."""
        pairs = statistics if isinstance(statistics, PairCounts) else statistics.pairs
        assert pairs is not None
        with self._name_features():
            state = self._match_correlations(state, pairs, map_items)
        if isinstance(statistics, MixedStatistics):
            state = replace(state, params=self._add_units(state, statistics.sums.values))
        return state.with_feature_names(self.structure.feature_names)

    def _match_correlations(
        self, state: FitState, counts: PairCounts, map_items: MapFunction
    ) -> FitState:
        n_groups = self.count_groups(counts.n_features)
        first_planes = self.find_first_planes(counts.n_features)
        indices = counts.list_grouped_segments(n_groups)
        sums = GroupSums(counts, n_groups, np.ones((len(indices), n_groups), np.int64))
        segments = estimate_segments(sums, self.min_rows, map_items, first_planes)
        undefined = np.flatnonzero(segments.find_undefined_pairs().any(axis=(0, 1)))
        self._check_n_segments(segments.is_used, indices, undefined.tolist())
        _check_varying(segments.varies, segments.is_used)
        settings = MatchSettings(
            self.n_components, self.regularization, n_groups, self.min_rows, first_planes
        )
        match = match_moments(counts, segments, settings, state.auxiliary, map_items)
        params = params_from_match(match, indices, first_planes)
        diagnostics = describe_match(match, params.start_similarities)
        new_warnings = warn_about_segments(match.segments, indices, self.min_rows, match.ridge)
        new_warnings += self.warn_about_nested_features(counts)
        new_warnings += warn_about_mixing(
            params.mixing, "fewer components or a smaller regularization"
        )
        new_warnings += warn_about_choice(match)
        new_warnings += warn_about_fit(diagnostics, match.n_starts)
        rotatable = find_rotatable_sources(*_estimate_variance_covariances(match))
        params.mixing_interval[:, :, [k for own in rotatable for k in own]] = np.nan
        params.mixing_interval[:, find_features_with_empty_cells(segments)] = np.nan
        new_warnings += warn_about_rotations(rotatable)
        warnings = (*state.warnings, *new_warnings)
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def _add_units(self, state: FitState, sums: Arrays) -> BLICAParams:
        """Return parameters with units of continuous features, and without their cuts."""
        params: BLICAParams = state.params
        own = self.structure.continuous
        assert params.n_levels is not None
        assert params.level_thresholds is not None
        rows = np.maximum(sums["rows"], 1)
        means = sums["values"] / rows
        variances = sums["squares"] / rows - means**2
        signal = PROBIT_SCALE**2 * params.source_variances @ params.mixing[own].T ** 2
        deviations = np.sqrt(1 + signal)
        weights = np.where(variances > 0, sums["rows"], 0) * params.varies[:, own]
        ratios = 0.5 * np.log(np.where(weights > 0, variances, 1.0)) - np.log(deviations)
        scales = np.exp((weights * ratios).sum(axis=0) / weights.sum(axis=0))
        thresholds, n_levels = params.thresholds.copy(), params.n_levels.copy()
        thresholds[:, own] = -means / scales / deviations
        is_cut = np.repeat(np.isin(np.arange(len(n_levels)), own), n_levels - 1)
        n_levels[own] = 1
        return replace(
            params,
            thresholds=thresholds,
            n_levels=n_levels,
            level_thresholds=params.level_thresholds[:, ~is_cut],
            number_means=state.working["number_means"],
            number_deviations=state.working["number_deviations"],
            number_scales=state.working["number_deviations"] * scales,
        )


def check_segment_settings(segments: str, n_segments: int | None) -> None:
    """Refuse a number of segments if the dataset gives them."""
    if segments == "given" and n_segments is not None:
        raise FitError(
            f"{{n_segments}} is {n_segments}, but segments are given by the dataset. Find them by "
            "{segments=auto}, or leave out {n_segments}.",
            parameter="n_segments",
        )


def _sum_values(block: BinaryBlock, z: Array, working: Arrays) -> Arrays:
    """Sum standardized values and their squares in each segment, (n_segments, n_continuous)."""
    known = ~np.isnan(z)
    values = np.where(known, z, 0.0)
    sums = {"rows": known, "values": values, "squares": values**2}
    is_own = (working["segments"] == block.segment)[:, None]
    return {name: is_own * own.sum(axis=1) for name, own in sums.items()}


def find_features_with_empty_cells(segments: SegmentCorrelations) -> NDArray[np.bool_]:
    """Return the features of pairs with an empty cell in most rows, (n_features,).

    To these, halves were added, of which resampled rows know nothing.
    """
    rows = segments.pair_rows * segments.is_used
    share = np.tensordot(rows / max(rows.sum(), 1.0), segments.empty_cells(), axes=1)
    return np.asarray((share > _EMPTY_SHARE).any(axis=1))


def _estimate_variance_covariances(match: MomentMatch) -> tuple[Array, Array]:
    """Return log σ² in the segments used, and covariances of their errors given A.

    They follow from the errors of the correlations, see `estimate_correlation_errors`. As if these
    were independent of each other and weighted by their information, they would be up to half of
    what was measured in simulated data without differences between sources.
    """
    used, mixing = match.segments.is_used, match.solution.mixing
    log_variances = match.solution.log_variances[used]
    i, j = np.triu_indices(len(mixing), 1)
    covariances = []
    for logs, place in zip(log_variances, np.flatnonzero(used).tolist(), strict=True):
        errors = match.segments.estimate_correlation_errors(place)[i, j]
        signal = mixing**2 * np.exp(logs)  # variance of each feature by each source
        total = 1 + signal.sum(axis=1)
        deviations = np.sqrt(total)
        products = mixing[i] * mixing[j] * np.exp(logs)  # covariances of pairs by each source
        slopes = products / (deviations[i] * deviations[j])[:, None]
        shrinkage = (signal / total[:, None])[i] + (signal / total[:, None])[j]
        slopes -= 0.5 * slopes.sum(axis=1, keepdims=True) * shrinkage
        weighted = slopes / errors[:, None]
        information = weighted.T @ weighted + _PRIOR_PRECISION * np.eye(len(logs))
        covariances.append(_DISPERSION * np.linalg.inv(information))
    return log_variances, np.array(covariances)


def _check_varying(varies: NDArray[np.bool_], usable: NDArray[np.bool_]) -> None:
    """Refuse features that vary in no usable segment."""
    if (constant := np.flatnonzero(~varies[usable].any(axis=0))).size:
        raise FitError(
            f"These features vary within no usable segment: {{features}}. {LEAVE_OUT}.",
            constant.tolist(),
        )


def make_empty_params(kind: type[ParamsT]) -> ParamsT:
    """Return empty parameters for the state before the fit, which is sent to tasks."""
    required = {name: array for name, array in list_arrays(kind).items() if array.is_required}
    empty = {name: np.zeros((0,) * len(array.dims)) for name, array in required.items()}
    params: ParamsT = params_from_arrays(kind, empty)
    return params


def params_from_match(
    match: MomentMatch, indices: NDArray[np.int64], first_planes: NDArray[np.int64]
) -> BLICAParams:
    """Convert fitted values to the model's units: variances × 8/π, outputs in units of y."""
    solution, segments = match.solution, match.segments
    optima, candidates = match.optima, match.candidates
    variances = np.exp(solution.log_variances)
    deviations = np.sqrt(1 + variances @ solution.mixing.T**2) / PROBIT_SCALE
    n_planes, levels = np.diff(first_planes), {}
    thresholds = np.add.reduceat(segments.thresholds, first_planes[:-1], axis=1) / n_planes
    if (n_planes > 1).any():
        levels = {"n_levels": n_planes + 1, "level_thresholds": segments.thresholds}
    means, misfit = estimate_source_means(
        solution.mixing, -thresholds * deviations, segments.threshold_errors * deviations
    )
    ridge = np.zeros(len(segments.is_used))
    ridge[segments.is_used] = match.ridge
    best = optima[0].solution.mixing
    similarities = [mean_cosine_similarity(optimum.solution.mixing, best) for optimum in optima]
    return BLICAParams(
        mixing=solution.mixing,
        source_variances=variances / PROBIT_SCALE**2,
        source_means=means,
        mean_misfit=misfit,
        thresholds=thresholds,
        scales=np.exp(-solution.log_precisions),
        correlations=segments.correlation,
        pair_status=segments.pair_status,
        varies=segments.varies.astype(np.uint8),
        ridge=ridge,
        segments=indices,
        segment_rows=segments.rows,
        segment_status=segments.status,
        start_objectives=np.array([optimum.objective for optimum in optima]),
        start_similarities=np.array(similarities),
        candidate_components=np.array([c.n_components for c in candidates], np.int64),
        candidate_regularization=np.array([c.regularization for c in candidates], np.float64),
        candidate_scores=np.array([c.score for c in candidates], np.float64),
        mixing_interval=match.interval,
        **levels,
    )


def describe_match(match: MomentMatch, start_similarities: Array) -> dict[str, Any]:
    """Return the diagnostics of a match, given `params.start_similarities`."""
    n_features, n_components = match.solution.mixing.shape
    scores = [candidate.score for candidate in match.candidates]
    return {
        "n_components": n_components,
        "regularization": match.regularization,
        "surplus": count_surplus_equations(
            n_features, n_components, int(match.segments.is_used.sum())
        ),
        "stability_of_starts": float(start_similarities[1:2].min(initial=1.0)),
        **({} if match.agreement is None else {"stability_of_halves": match.agreement}),
        "starts_finite": len(match.optima),
        "iterations": match.best.iterations,
        "optimiser_converged": match.best.converged,
        "gap_rounds": match.gap_rounds,
        "gain": max(scores[1:]) - scores[0] if scores else 0.0,
        **count_statuses(match.segments),
    }


def count_statuses(segments: SegmentCorrelations) -> dict[str, int]:
    """Count segments by `SegmentStatus`; in used segments, count pairs by `PairStatus`."""
    used = segments.is_used
    counts = {
        f"segments_{status.name.lower()}": int((segments.status == status).sum())
        for status in SegmentStatus
    }
    counts["constant_in_a_segment"] = int((~segments.varies[used]).sum())
    by_status = np.zeros(len(PairStatus), np.int64)
    for varies, status in zip(segments.varies[used], segments.pair_status[used], strict=True):
        pairs = np.triu(varies & varies[:, None], 1)
        by_status += np.bincount(status[pairs], minlength=len(PairStatus))
    return counts | {f"pairs_{s.name.lower()}": int(by_status[s]) for s in PairStatus}


def warn_about_segments(
    segments: SegmentCorrelations, indices: NDArray[np.int64], min_rows: int, ridge: Array
) -> tuple[FitWarning, ...]:
    """Warn about segments, features and pairs that were left out or guessed.

    `indices` are the indices of the segments in the dataset; `ridge` is δ of each segment used.
    """
    used = segments.is_used
    texts = {
        SegmentStatus.TOO_SMALL: f"segments left out, fewer than {min_rows} rows: {{segments}}; "
        "{min_rows=1} keeps them",
        SegmentStatus.UNOBSERVED: "segments left out, no observed values: {segments}",
        SegmentStatus.CONSTANT: "segments left out, fewer than two features vary: {segments}",
        SegmentStatus.UNDEFINED_PAIRS: "segments left out, more than "
        f"{MAX_UNDEFINED_SHARE:.0%} of the pairs without a correlation: {{segments}}",
    }
    warnings = [
        FitWarning(text, segments=tuple(indices[segments.status == status].tolist()))
        for status, text in texts.items()
        if (segments.status == status).any()
    ]
    constant = ~segments.varies & used[:, None]
    if constant.any():
        segment_list = indices[constant.any(axis=1)].tolist()
        features = np.flatnonzero(constant.any(axis=0)).tolist()
        text = f"features left out of segments where they never vary, {constant.sum()} times: "
        text += "{features}, in some of the segments {segments}; see `varies`"
        warnings.append(FitWarning(text, tuple(features), tuple(segment_list)))
    pairs_by_text = {
        "pairs with an empty cell, estimated after adding ½ to every cell": segments.empty_cells(),
        "pairs without a correlation, set to the model's": segments.find_undefined_pairs(),
    }
    for text, pairs in pairs_by_text.items():
        if (affected := pairs & used[:, None, None]).any():
            features = np.flatnonzero(affected.any(axis=(0, 1))).tolist()
            segment_list = indices[affected.any(axis=(1, 2))].tolist()
            text += f": {affected.sum() // 2}, among {{features}} in {{segments}}"
            warnings.append(FitWarning(text, tuple(features), tuple(segment_list)))
    always_undefined = (segments.find_undefined_pairs() | ~used[:, None, None]).all(axis=0)
    if always_undefined.any():
        text = "pairs without a correlation in any segment, so the mixing is in doubt: {features}"
        features = np.flatnonzero(always_undefined.any(axis=0)).tolist()
        warnings.append(FitWarning(text, tuple(features)))
    if (is_strong := ridge > _MAX_RIDGE).any():
        text = "correlations of segments shrunk to less than a tenth by the ridge: {segments}; a "
        text += "larger regularization shrinks less"
        warnings.append(FitWarning(text, segments=tuple(indices[used][is_strong].tolist())))
    return tuple(warnings)


def warn_about_mixing(mixing: Array, remedy: str) -> tuple[FitWarning, ...]:
    """Warn about columns of length 1 with a single feature, and pairs that are almost the same.

    `remedy` is the change that the warning suggests.
    """
    warnings = []
    if (single := np.flatnonzero((mixing**2).max(axis=0) > _SINGLE_FEATURE_SHARE)).size:
        features = np.unique(np.abs(mixing[:, single]).argmax(axis=0)).tolist()
        text = "components with a single feature: {features}; "
        warnings.append(FitWarning(f"{text}{remedy} may do better", tuple(features)))
    cosines = np.triu(np.abs(mixing.T @ mixing), 1)
    if cosines.max(initial=0.0) > _PARALLEL_COSINE:
        k, l = np.unravel_index(int(cosines.argmax()), cosines.shape)  # noqa: E741
        text = f"components {k + 1} and {l + 1} are almost the same; {remedy} may do better"
        warnings.append(FitWarning(text))
    return tuple(warnings)


def warn_about_choice(match: MomentMatch) -> tuple[FitWarning, ...]:
    """Warn if the chosen ridge is at an end of the grid, or if halves of the rows disagree."""
    if match.choice is None or match.agreement is None:
        return ()
    texts, r = [], match.regularization
    if len({candidate.regularization for candidate in match.choice.ridges}) > 1:
        if r == RIDGE_GRID[0]:
            texts.append(f"regularization {r:g} is the strongest that auto tries")
        if r == RIDGE_GRID[-1] and match.ridge.any():
            texts.append(
                f"regularization {r:g} is the weakest that auto tries: held-out rows favour a "
                "ridge that only just keeps correlations positive definite"
            )
    if match.agreement < _MIN_START_SIMILARITY:
        texts.append(
            "halves of the rows disagree on the mixing: mean cosine similarity "
            f"{match.agreement:.3f}; take fewer components or more rows"
        )
    return tuple(map(FitWarning, texts))


def warn_about_fit(diagnostics: Mapping[str, Any], n_starts: int) -> tuple[FitWarning, ...]:
    """Warn about a doubtful fit; `n_starts` is the number of starts requested."""
    texts = []
    if (missing := -diagnostics["surplus"]) > 0:
        # Lengths of columns count as unknowns although variances can compensate for them.
        verb = "is not" if missing > diagnostics["n_components"] else "may not be"
        texts.append(
            f"{missing} more unknowns than correlations: the mixing {verb} identifiable; use fewer "
            "components or more segments"
        )
    if diagnostics["gain"] < 0:
        texts.append("held-out rows are explained no better than by independent features")
    if (diverged := n_starts - diagnostics["starts_finite"]) > 0:
        texts.append(f"{diverged} of {n_starts} starts diverged and were left out")
    if not diagnostics["optimiser_converged"]:
        texts.append(f"stopped after {diagnostics['iterations']} iterations before converging")
    if diagnostics["stability_of_starts"] < _MIN_HALVES_AGREEMENT:
        texts.append(
            "the two best starts disagree: mean cosine similarity "
            f"{diagnostics['stability_of_starts']:.3f}; the likelihood has several optima, or "
            "the mixing is not identifiable"
        )
    if diagnostics["gap_rounds"] == MAX_ROUNDS:
        texts.append("pairs set to the model's correlations had not converged")
    return tuple(map(FitWarning, texts))
