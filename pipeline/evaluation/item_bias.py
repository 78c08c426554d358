"""Tests of item bias: does an item favour a group of rows among rows of equal ability?

Mantel–Haenszel compares rows of two groups with equal sum scores. With N_gk rows of group g (0 the
reference group, 1 the focal group) at score k, O_gik of them with a one in item i,

    α_i = Σ_k O_0ik (N_1k − O_1ik) / N_k  /  Σ_k (N_0k − O_0ik) O_1ik / N_k,
    χ²_i = (|Σ_k O_0ik − E_ik| − ½)² / Σ_k V_ik

where E and V are the mean and variance of the hypergeometric distribution (P. W. Holland,
D. T. Thayer, "Differential item performance and the Mantel–Haenszel procedure", 1988).
Δ = −2.35 ln α is on the scale of ETS. An item has grade A if |Δ| < 1 or Δ is not significant,
grade C if |Δ| ≥ 1.5, and else grade B.

For items with several levels, O_gik are the vectors of their planes, [y ≥ 1], …, [y ≥ m]. The
generalized statistic (G. W. Somes, The American Statistician 40, 1986)

    χ²_i = dᵀ V⁻¹ d,   d = Σ_k O_0ik − E_ik

has m degrees of freedom, and compares all levels. The numerator and denominator of the cumulative
odds ratio α are summed over the planes (I.-M. Liu, A. Agresti, Biometrics 52, 1996). The sum score
is that of the scores 0, …, m.

A row has a score only if it has all answers. Missing answers are therefore drawn from a fit of one
trait to all rows, with equal items in both groups: completed rows are distributed as rows without
missing values. Drawn answers count in the score, but not as answers to their item. With several
levels, rows with missing answers are left out.

Items whose slopes in a fit of one trait have the other sign than most count in the reverse
direction in the sum score, as if they had been recoded.

Equal scores are equal abilities only if all slopes are equal. If slopes differ and one group is
more able, Mantel–Haenszel rejects too many items without bias.

The likelihood-ratio test compares fits of one trait in which an item has the same slope and offset
in all groups, or its own in each (D. Thissen, L. Steinberg, H. Wainer, "Detection of differential
item functioning using the parameters of item response models", 1993). The other items are anchors,
which are equal in all groups. χ² has 2 degrees of freedom per focal group. The fits for all items
start at the common fit, and share their passes over the rows.

Biased anchors make other items look biased. Purification excludes the items with an adjusted p
below 0.05 from the anchors, and tests again, until it finds the same items as before.

Effect sizes average P_0(x) − P_g(x), the difference between the curves of the reference and a focal
group, over the focal group's distribution of the trait: `difference` with its sign, and `area` its
absolute value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import AnnotatedChunk, BinaryBlock, PackedChunk, RowSource, iter_blocks
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import collect_first_statistics, start_fit
from pipeline.fitting.shared_passes import fit_in_shared_passes
from pipeline.models.base import Model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.categories.curves import LevelItems, compute_plane_probabilities
from pipeline.numerics.logistic.latent_nodes import gauss_hermite, iter_responsibilities
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, count_group_level_rows
from pipeline.statistics.sums import Statistics, Sums

MAX_ROUNDS = 10
"""Maximum number of rounds of purification."""
_NODES = gauss_hermite(101, 1)
_MIN_ANCHORS = 2  # the test of an anchor frees it, and groups need another one in common
_MAX_ITER, _TOL = 500, 5e-8  # χ² is then exact to about 1e-3
_MAX_FITS = 50  # which share a pass over the rows; limits their memory
_RANK_TOLERANCE = 1e-10  # relative eigenvalues of levels that occur in neither group
_ETS_DELTA_FACTOR, _SMALL_DELTA, _LARGE_DELTA, _SIGNIFICANCE_LEVEL = -2.35, 1.0, 1.5, 0.05


class GroupTestResults(NamedTuple):
    """Likelihood-ratio tests of all items.

    Attributes
    ----------
    chi2, df, p, p_adjusted
        Test statistic, its degrees of freedom and p-value of each item, and the p-value adjusted
        for the number of items (Y. Benjamini, Y. Hochberg, JRSS B 57, 1995), (n_features,) each.
    difference, area
        Effect sizes in each focal group, (n_features, n_groups − 1); a positive difference favours
        the reference group. They are of expected scores as shares of the highest score.
    slopes, offsets
        Parameters of each item in each group, (n_features, n_groups). An item with several levels
        has the mean of its offsets.
    """

    chi2: Array
    df: Counts
    p: Array
    p_adjusted: Array
    difference: Array
    area: Array
    slopes: Array
    offsets: Array


class GroupTests(NamedTuple):
    """Results for all items, and the fit that they started from.

    Attributes
    ----------
    items
        Results for all items.
    common
        The fit in which all anchors are equal in all groups.
    trait_mean, trait_sd
        Distribution of the trait in each group of this fit, (n_groups,) each; 0 and 1 in the first.
    unfinished
        Items whose fits did not converge, so that their χ² may be wrong.
    """

    items: GroupTestResults
    common: FitState
    trait_mean: Array
    trait_sd: Array
    unfinished: tuple[int, ...]


class Purification(NamedTuple):
    """How anchors were chosen.

    Attributes
    ----------
    n_rounds
        Number of rounds of tests.
    excluded
        Items that are not anchors in the last round.
    ending
        Why there was no other round: it would have the same anchors as the last one (`stable`) or
        as an earlier one (`repeated`), fewer than 2 anchors (`few-anchors`), or be one too many
        (`max-rounds`).
    """

    n_rounds: int
    excluded: tuple[int, ...]
    ending: Literal["stable", "repeated", "few-anchors", "max-rounds"]


@dataclass(frozen=True)
class GroupFits:
    """Fits of one trait to rows in groups; items are equal in all groups unless they are free.

    Attributes
    ----------
    rows
        Rows whose segments are the groups. The first one is the reference group.
    groups
        Names of the groups.
    features
        The items. Those with several levels have a graded response model.
    first
        Counts of the rows.
    executor, seed, progress
        As for `fit_model`.
    """

    rows: RowSource
    groups: tuple[str, ...]
    features: tuple[Feature, ...]
    first: FeatureCounts
    executor: Executor
    seed: int
    progress: Progress

    def fit(self, free_items: Collection[int] = (), start: FitState | None = None) -> FitState:
        """Fit the model with some free items, from the start if there is one."""
        (state,) = self.fit_all([free_items], start)
        return state

    def fit_all(self, choices: Sequence[Collection[int]], start: FitState | None) -> list[FitState]:
        """Fit the model for several choices of free items."""
        return [
            state
            for k in range(0, len(choices), _MAX_FITS)
            for state in self._fit_together(choices[k : k + _MAX_FITS], start)
        ]

    def _fit_together(
        self, choices: Sequence[Collection[int]], start: FitState | None
    ) -> list[FitState]:
        models, states = [self._make_model(free_items) for free_items in choices], []
        for model in models:
            params = None if start is None else start.params
            first = self._first_statistics
            state = start_fit(
                model, first, self.rows, self.executor, self.seed, initial_params=params
            )
            states.append(state if start is None else replace(state, working=start.working))
        return fit_in_shared_passes(
            models, states, self.rows, self.executor, self.seed, self.progress
        )

    @cached_property
    def _first_statistics(self) -> Statistics:
        """The statistics from which fits start, which are the same for all choices of items."""
        model = self._make_model(())
        return collect_first_statistics(model, self.rows, self.executor, self.seed, self.progress)

    def _make_model(self, free_items: Collection[int]) -> Model:
        model = LatentTrait(
            n_components=1,
            free=",".join(map(str, sorted(free_items))),
            constant_features="keep",
            errors="none",
            max_iter=_MAX_ITER,
            tol=_TOL,
        )
        # Names of features may contain commas.
        features = (feature._replace(name=str(k)) for k, feature in enumerate(self.features))
        adapted: Model = model.with_structure(Structure(self.groups, tuple(features)))
        return adapted


def group_rows(rows: RowSource, column: str, values: tuple[int, ...]) -> RowSource:
    """Return the rows with one of these values in a column; its position is their segment.

    The reader of the rows must read the column. Other rows are left out, which the segments of
    `Dataset.segment_by` cannot do.
    """
    read = _GroupReader(rows.read, column, values)
    return replace(rows, read=read, n_segments=len(values))


@dataclass(frozen=True)
class _GroupReader:
    read: Callable[[int], PackedChunk]
    column: str
    values: tuple[int, ...]

    def __call__(self, key: int) -> AnnotatedChunk:
        """Read a chunk, and sort its rows by group."""
        chunk = self.read(key)
        blocks = [
            replace(block.take_rows(np.flatnonzero(block.column(self.column) == value)), segment=g)
            for block in iter_blocks(chunk)
            for g, value in enumerate(self.values)
        ]
        blocks = [block for block in blocks if block.n_samples]
        n_words = np.array([0, *(block.words.shape[1] for block in blocks)])
        table = [
            (block.segment, first_word, block.n_samples)
            for block, first_word in zip(blocks, np.cumsum(n_words), strict=False)
        ]
        masks = [block.observed_words for block in blocks if block.observed_words is not None]
        return AnnotatedChunk(
            np.concatenate([chunk.words[:, :0], *(block.words for block in blocks)], axis=1),
            np.concatenate(masks, axis=1) if masks else None,
            np.array(table, np.int64).reshape(-1, 3),
            np.concatenate([np.zeros(0, np.int64), *(block.rows for block in blocks)]),
            {},
        )


def check_group_tests(
    first: FeatureCounts, groups: tuple[str, ...], features: Sequence[Feature]
) -> None:
    """Check that every item can have parameters of its own in each group.

    Raises
    ------
    FitError
        If there are fewer than 3 items, or an item is constant or never observed in a group.
    """
    if (n_features := len(features)) < _MIN_ANCHORS + 1:
        raise FitError(
            f"{{dif_test=likelihood-ratio}} needs at least {_MIN_ANCHORS + 1} features, but the "
            f"dataset has {n_features}. Use {{dif_test=mantel-haenszel}}."
        )
    n_present = _count_present_levels(count_group_level_rows(first, features), features)
    for group, item in np.argwhere(n_present < 2).tolist():
        state = "constant" if n_present[group, item] else "never observed"
        raise FitError(
            f"{{features}} is {state} in the group {groups[group]!r}, so {{dif}} cannot estimate "
            "its slope and offset there. Leave the feature out, or use "
            "{dif_test=mantel-haenszel}.",
            (features[item].name,),
        )


def _count_present_levels(level_rows: Array, features: Sequence[Feature]) -> Counts:
    """Return how many levels of each feature have rows, (n_groups, n_features).

    `level_rows` are (n_groups, n_levels).
    """
    firsts = np.cumsum([0, *(len(feature.levels) for feature in features[:-1])])
    return np.add.reduceat((level_rows > 0).astype(np.int64), firsts, axis=1)


def run_group_tests(
    fits: GroupFits, excluded: Collection[int] = (), start: FitState | None = None
) -> GroupTests:
    """Test each item, with all other items but the excluded ones as anchors.

    The common fit starts from `start`, if given.
    """
    items, weight = range(len(fits.features)), fits.first.weight
    common = fits.fit(excluded, start)
    others = fits.fit_all([set(excluded) ^ {item} for item in items], common)
    gains = np.array([weight * (other.history[-1] - common.history[-1]) for other in others])
    gains[[*excluded]] *= -1  # in these fits, the item is an anchor
    level_rows = count_group_level_rows(fits.first, fits.features)
    # An item has a slope, and an offset for each of its levels but one.
    n_own = _count_present_levels(level_rows, fits.features).sum(axis=0)
    n_common = _count_present_levels(level_rows.sum(axis=0)[None], fits.features)[0]
    chi2, df = np.maximum(2 * gains, 0.0), n_own - n_common
    p = scipy.stats.chi2.sf(chi2, df)
    own_fits = [(common if k in excluded else others[k]).params for k in items]
    parameters = np.array(
        [
            (params.group_items.weights[:, item, 0], params.group_items.offsets[:, item])
            for item, params in enumerate(own_fits)
        ]
    )
    effects = np.array([_compare_curves(*pair) for pair in enumerate(own_fits)])
    results = GroupTestResults(
        chi2,
        df,
        p,
        scipy.stats.false_discovery_control(p),
        difference=effects[:, 0],
        area=effects[:, 1],
        slopes=parameters[:, 0],
        offsets=parameters[:, 1],
    )
    n_passes = [max(len(fit.history), len(common.history)) for fit in others]
    unfinished = tuple(k for k in items if n_passes[k] >= _MAX_ITER)
    traits = common.params.traits
    mean, variance = traits.mean[:, 0], traits.covariance[:, 0, 0]
    return GroupTests(results, common, mean, np.sqrt(variance), unfinished)


def run_purified_group_tests(fits: GroupFits) -> tuple[GroupTests, Purification]:
    """Test all items in rounds; each one excludes the items found in the round before."""
    seen: list[tuple[int, ...]] = [()]
    tests = run_group_tests(fits)
    while True:
        found = tuple(np.flatnonzero(tests.items.p_adjusted < _SIGNIFICANCE_LEVEL).tolist())
        if ending := _find_ending(found, seen, len(fits.features)):
            return tests, Purification(len(seen), seen[-1], ending)
        seen.append(found)
        tests = run_group_tests(fits, found, tests.common)


def _find_ending(
    found: tuple[int, ...], seen: Sequence[tuple[int, ...]], n_features: int
) -> Literal["stable", "repeated", "few-anchors", "max-rounds"] | None:
    if found == seen[-1]:
        return "stable"
    if found in seen:
        return "repeated"
    if n_features - len(found) < _MIN_ANCHORS:
        return "few-anchors"
    return "max-rounds" if len(seen) == MAX_ROUNDS else None


def _compare_curves(item: int, params: LatentTraitParams) -> Array:
    """Return the mean and the mean absolute difference of an item's curves, (2, n_groups − 1)."""
    assert params.segments is not None
    share = np.exp(_NODES.log_weights)
    effects = []
    for group in range(1, len(params.segments)):
        focal = params.get_group(group)
        x = focal.mean + _NODES.points[:, 0] * focal.root[0, 0]
        reference, own = (_expect_score(item, params, g, x) for g in (0, group))
        effects.append((share @ (reference - own), share @ abs(reference - own)))
    return np.array(effects).T


def _expect_score(item: int, params: LatentTraitParams, group: int, x: Array) -> Array:
    """Return the expected score of an item as a share of the highest, at traits x, (n,)."""
    items = params.get_level_items("graded", group)
    planes = np.repeat(np.arange(len(items.n_planes)), items.n_planes) == item
    return np.asarray(compute_plane_probabilities(items, x[:, None])[:, planes].mean(axis=1))


class ItemBias(NamedTuple):
    """Mantel–Haenszel tests, (n_features,) each; odds ratios are 0 or ∞ if a cell is empty.

    `df` are the degrees of freedom of χ², 0 for constant items. `p_adjusted` is adjusted for the
    number of items (Benjamini & Hochberg).
    """

    odds_ratio: Array
    chi2: Array
    df: Counts
    p: Array
    p_adjusted: Array
    delta: Array
    grade: NDArray[np.str_]


def count_answering_rows(n_groups: int, block: BinaryBlock) -> Sums:
    """Count the rows with any answer in each group: `rows`, (n_groups,)."""
    rows = np.zeros(n_groups, np.int64)
    rows[block.segment] = block.n_samples - block.count_unobserved_rows()
    return Sums.from_block(block, 0.0, {"rows": rows})


def count_by_score(
    params: LatentTraitParams | None,
    is_reversed: NDArray[np.bool_],
    rng: RowRandom,
    block: BinaryBlock,
) -> Sums:
    """Count the rows and ones of a block, which is one of two groups, by sum score and item.

    `params` is the fit from which missing answers are drawn. If it is None, rows with missing
    answers are left out. Items with several levels are counted by plane. `is_reversed` are the
    planes, (n_features,), whose zeros count in the score.

    Returns
    -------
    Sums
        `rows`, (2, n_features + 1, n_features), or (2, n_features + 1, 1) without `params`, and
        `ones`, (2, n_features + 1, n_features).
    """
    X, observed = block.unpack_values(), block.unpack_mask()
    mask = np.ones_like(X) if observed is None else observed
    completed = X if params is None else draw_missing_answers(params, block, rng)
    scores = (completed ^ is_reversed).sum(axis=1, dtype=np.int64)
    has_answers = mask.all(axis=1) if params is None else mask.any(axis=1)
    answered, n_features = X * mask, block.n_features
    rows = np.zeros((2, n_features + 1, 1 if params is None else n_features), np.int64)
    ones = np.zeros((2, n_features + 1, n_features), np.int64)
    for k in np.unique(scores[has_answers]):
        chosen = has_answers & (scores == k)
        rows[block.segment, k] = chosen.sum() if params is None else mask[chosen].sum(axis=0)
        ones[block.segment, k] = answered[chosen].sum(axis=0, dtype=np.int64)
    return Sums.from_block(block, 0.0, {"rows": rows, "ones": ones})


def draw_missing_answers(
    params: LatentTraitParams, block: BinaryBlock, rng: RowRandom
) -> NDArray[np.uint8]:
    """Return the rows of a group with missing values drawn given the observed ones."""
    X, observed = block.unpack_values(), block.unpack_mask()
    mask = np.ones_like(X) if observed is None else observed
    items = LevelItems.from_binary(*params.get_group(block.segment).items)
    draws = rng.stream("missing answers").uniform(block.rows, block.n_features + 1)
    completed = np.empty_like(X)
    for part, shares in iter_responsibilities(X, mask, items, _NODES):
        uniform = draws[part]
        below = np.cumsum(shares, axis=1) < uniform[:, -1:]
        nodes = np.minimum(below.sum(axis=1), shares.shape[1] - 1)
        chances = scipy.special.expit(_NODES.points[nodes] @ items.weights.T + items.offsets)
        completed[part] = np.where(mask[part] > 0, X[part], uniform[:, :-1] < chances)
    return completed


def mantel_haenszel(rows: Counts, ones: Counts, n_planes: Counts | None = None) -> ItemBias:
    """Test each item, stratified by score, given the counts of `count_by_score`.

    `n_planes` is the number of planes of each item, (n_features,); None if all are binary.
    """
    if n_planes is None:
        n_planes = np.ones(ones.shape[2], np.int64)
    in_both = (rows > 0).all(axis=0)
    n_0, n_1 = rows * in_both.astype(np.float64)
    a, c = ones * in_both.astype(np.float64)
    b, d, total = n_0 - a, n_1 - c, np.maximum(n_0 + n_1, 1)
    n_ones, n_zeros = a + c, b + d
    expected = n_0 * n_ones / total
    variance = n_0 * n_1 * n_ones * n_zeros / (total**2 * np.maximum(total - 1, 1))
    excess = np.maximum(abs((a - expected).sum(axis=0)) - 0.5, 0.0)
    spread, firsts = variance.sum(axis=0), np.cumsum(n_planes) - n_planes
    chi2 = np.divide(excess**2, spread, out=np.zeros(len(spread)), where=spread > 0)[firsts]
    df = (spread[firsts] > 0).astype(np.int64)
    for item in np.flatnonzero(n_planes > 1).tolist():
        planes = slice(firsts[item], firsts[item] + n_planes[item])
        differences = (a - expected)[:, planes].sum(axis=0)
        own = (n_0 * n_1 / (total**2 * np.maximum(total - 1, 1)), total, n_ones[:, planes])
        chi2[item], df[item] = _generalize_mantel_haenszel(differences, *own)
    with np.errstate(divide="ignore", invalid="ignore"):
        favours, opposes = (
            np.add.reduceat((odds / total).sum(axis=0), firsts) for odds in (a * d, b * c)
        )
        ratio = favours / opposes
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        delta = _ETS_DELTA_FACTOR * np.log(ratio)
    p = scipy.stats.chi2.sf(chi2, np.maximum(df, 1))
    size = np.where(p < _SIGNIFICANCE_LEVEL, abs(delta), 0.0)
    grade = np.where(size < _SMALL_DELTA, "A", np.where(size < _LARGE_DELTA, "B", "C"))
    return ItemBias(ratio, chi2, df, p, scipy.stats.false_discovery_control(p), delta, grade)


def _generalize_mantel_haenszel(
    differences: Array, factors: Array, total: Array, n_ones: Array
) -> tuple[float, int]:
    """Return dᵀ V⁺ d and the rank of V.

    `differences` are d, (m,). The rows at a score are (n_scores, 1) each: N_0k N_1k / (N_k² (N_k −
    1)) and N_k. `n_ones` are their ones in all planes, (n_scores, m). Two planes of an item have
    the ones of the higher in common.
    """
    m = len(differences)
    both = n_ones[:, np.maximum.outer(np.arange(m), np.arange(m))]
    products = n_ones[:, :, None] * n_ones[:, None]
    V = (factors[:, :, None] * (total[:, :, None] * both - products)).sum(axis=0)
    values, vectors = np.linalg.eigh(V)
    is_positive = values > _RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    along = differences @ vectors[:, is_positive]
    return float((along**2 / values[is_positive]).sum()), int(is_positive.sum())
