"""Mixture of trees: within each component, every feature depends on one other feature.

Model: P(x) = Σ_k π_k Π_i θ_k(x_i | x_pa(k, i)), where pa(k, i) is the parent of feature i in the
tree of component k (M. Meilă, M. I. Jordan, "Learning with mixtures of trees", Journal of Machine
Learning Research 1, 2000). One component is the Chow–Liu tree (C. K. Chow, C. N. Liu, IEEE
Transactions on Information Theory 14, 1968).

Fit by EM. The M-step finds, for each component, the counts of all pairs of features weighted by its
posterior, the maximum spanning tree of their mutual information, and θ from the counts of its
edges. The prior is `smoothing` pseudo-rows per component from the model in which features are
independent with their overall margins (Meilă & Jordan 2000, section 5); with it, no step decreases
the objective. At each start, components have no edges and the margins of the features, randomly
perturbed; see `pipeline.models.mixture`.

=========  ==========  =============================================
symbol     field       shape
=========  ==========  =============================================
π          weights     (n_components,)
pa         parents     (n_components, n_features), -1 at a root
θ          tables      (n_components, n_features, n_levels, n_levels)
=========  ==========  =============================================

`tables[k, i, b, a]` is P(x_i = a | x_pa = b, k); a root has P(x_i = a | k) at b = 0. Tree k
belongs to component k.

Missing values are summed out by belief propagation, and the M-step takes the expected counts of all
pairs, both exactly; see `pipeline.numerics.trees.messages`. This is also right if observed values
decide which values are missing, but not if the missing values themselves do.

Cost per block: n_samples n_components n_features (1 + n_features / 10), as counting weighted pairs
is a product of matrices. Passes: tens.
Not identifiable: the order of the components, which are sorted by weight; the root of a tree; and
the components themselves if there are few features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, iter_word_ranges, unpack_levels
from pipeline.data.features import (
    MAX_LEVELS,
    Feature,
    FeatureKind,
    are_binary,
    split_into_planes,
)
from pipeline.data.level_probabilities import count_levels
from pipeline.data.weights import WeightKind
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.held_out import (
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import FeatureTree, LogLikelihood
from pipeline.models.mixture import Mixture
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.models.trees.pair_counts import (
    count_level_pairs,
    sum_weighted_pairs,
    with_margins,
)
from pipeline.numerics.trees.dependence import (
    compute_table_correlation,
    compute_table_information,
)
from pipeline.numerics.trees.messages import (
    MISSING,
    fill_log_likelihoods,
    fill_plane_probabilities,
)
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    compute_mutual_information,
    find_maximum_spanning_tree,
    gather_tables,
    make_tables,
    order_from_root,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_level_rows,
    make_constant_feature_warnings,
    make_empty_level_warnings,
    pool_margins,
)
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Levels = NDArray[np.uint8]

_BATCH_WORDS = 64  # rows whose indicators are in memory at once: 4,096
_IMPOSSIBLE = "The tables of the trees give a row the probability 0. Fit again."
_MIN_SMOOTHING = 1e-6  # keeps probabilities above 0 for up to 1e9 rows


@dataclass(frozen=True)
class TreeMixtureParams:
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    margins
        Share of each level of each feature in the fitted rows, and in the pseudo-rows of the prior.
    n_levels
        Numbers of levels of the features; None if all features are binary.
    """

    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    parents: Counts = array_field("tree", "feature", allowed=NumberRange(minimum=ROOT))
    tables: Array = array_field(
        "tree",
        "feature",
        "parent_level",
        "own_level",
        allowed=NumberRange(minimum=0, maximum=1),
    )
    margins: Array = array_field("level", allowed=NumberRange(above=0, maximum=1))
    n_levels: Counts | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=2, maximum=MAX_LEVELS)
    )

    @property
    def levels_per_feature(self) -> Counts:
        """Number of levels of each feature, (n_features,)."""
        if self.n_levels is None:
            return np.full(self.parents.shape[1], 2, np.int64)
        return self.n_levels

    @property
    def orders(self) -> Counts:
        """Features with parents first, (n_components, n_features)."""
        return np.stack([order_from_root(parents) for parents in self.parents])

    def compute_independent_pairs(self) -> Array:
        """Return P(level, level) of pairs of independent features, (n_levels, n_levels) in all."""
        pairs = np.outer(self.margins, self.margins)
        return with_margins(pairs, self.margins, self.levels_per_feature)

    def compute_mean_log_prior(self) -> float:
        """Return Σ_k log π_k + Σ_k E log P(x | k) over rows of independent features."""
        sizes = self.levels_per_feature
        firsts, pairs = np.cumsum(sizes) - sizes, self.compute_independent_pairs()
        total = np.log(self.weights).sum()
        for parents, tables in zip(self.parents, self.tables, strict=True):
            joint = gather_tables(pairs, firsts, sizes, parents)
            total += scipy.special.xlogy(joint, tables).sum()
        return float(total)

    def compute_margins(self) -> Array:
        """Return P(x_i = level | k), (n_components, n_features, n_levels)."""
        margins = np.empty(self.tables.shape[:3])
        for k, order in enumerate(self.orders):
            for i in order.tolist():
                parent = self.parents[k, i]
                table = self.tables[k, i]
                margins[k, i] = table[0] if parent == ROOT else margins[k, parent] @ table
        return margins


@dataclass(frozen=True)
class TreeMixture(Mixture):
    """Hyperparameters of the mixture of trees.

    Attributes
    ----------
    n_components
        Number of trees. None doubles it from 1 while held-out rows gain.
    smoothing
        Pseudo-rows of the independent model in every component.
    starts
        Number of short runs; the fit continues with the best.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats.
    """

    name: ClassVar[str] = "tree-mixture"
    feature_kinds: ClassVar[tuple[FeatureKind, ...]] = ("binary", "ordinal")
    weight_kinds: ClassVar[tuple[WeightKind, ...]] = ("frequency", "sampling")
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[TreeMixtureParams]] = TreeMixtureParams
    max_held_out_components: ClassVar[int] = 64
    short_run_tol: ClassVar[float] = 1e-2
    n_components: int | None = 10
    smoothing: float = setting(1.0, minimum=_MIN_SMOOTHING)
    starts: int = setting(3, minimum=1)
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-4, above=0, below=1)

    def with_structure(self, structure: Structure) -> Model:
        """Return the model of levels, or this model if all features are binary."""
        super().with_structure(structure)
        if are_binary(structure.features):
            return self
        return add_structure(OrdinalTreeMixture, self, Structure(features=structure.features))

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features; none if all are binary."""
        return ()

    @property
    def n_levels(self) -> Counts | None:
        """Number of levels of each feature; None if all have two."""
        return count_levels(self.features) if self.features else None

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's pair counts and of those that the M-step arranges."""
        n_trees = self.n_components or self.max_held_out_components
        return 8 * n_features**2 * (n_trees * (n_threads + 2) + 16)

    def estimate_work(
        self, params: TreeMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step and of counting weighted pairs."""
        n_trees = len(params.weights)
        return WorkEstimate(
            n_trees * n_features * (1.5 + 0.1 * n_features), 8 * n_trees * n_features**2
        )

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from random components around the margins."""
        warnings = self._warn_about_features(first)
        self._check_number_of_components(first)
        auxiliary = {
            "weight": np.array(first.weight),
            "margins": self._compute_margins(first),
            "seed": rng.integers(2**63, size=1),
        }
        state = FitState(None, auxiliary=auxiliary, warnings=warnings)
        return self._begin_fit(state)

    def _compute_margins(self, first: FeatureCounts) -> Array:
        """Return the share of each level among the observed values, (n_levels in all,).

        Half a pseudo-row at each level keeps shares above 0.
        """
        by_feature = [rows + 0.5 for rows in self._count_level_rows(first)]
        return np.concatenate([rows / rows.sum() for rows in by_feature])

    def _count_level_rows(self, first: FeatureCounts) -> Iterable[Array]:
        """Count the rows, or their weight, at each level of each feature, (n_levels,) each."""
        if self.features:
            return count_level_rows(first, self.features)
        observed, ones = pool_margins(first)
        return np.stack([observed - ones, ones], axis=1).astype(np.float64)

    def _warn_about_features(self, first: FeatureCounts) -> tuple[FitWarning, ...]:
        consequence = "only the smoothing determines how often they differ"
        level_rows = [*self._count_level_rows(first)]
        total, largest = (np.array([f(r) for r in level_rows]) for f in (np.sum, np.max))
        warnings = (
            *make_constant_feature_warnings(total, largest, consequence),
            *make_empty_level_warnings(level_rows, consequence),
        )
        names = tuple(feature.name for feature in self.features)
        return tuple(warning.with_names(names) for warning in warnings)

    def _draw_start(self, auxiliary: Arrays, n_components: int, start: int) -> TreeMixtureParams:
        """Perturb the margins, by rank of the levels: reversing levels changes nothing."""
        margins, n_levels = auxiliary["margins"], self.n_levels
        rng = np.random.default_rng([int(auxiliary["seed"][0]), n_components, start])
        sizes = np.full(len(margins) // 2, 2) if n_levels is None else n_levels
        tables = np.zeros((n_components, len(sizes), sizes.max(), sizes.max()))
        for i, own in enumerate(np.split(margins, np.cumsum(sizes)[:-1])):
            noise = rng.standard_normal((n_components, len(own))) if n_components > 1 else 0.0
            order = np.argsort(own, kind="stable")
            shares = own[order] * np.exp(noise)
            tables[:, i, 0, order] = shares / shares.sum(axis=-1, keepdims=True)
        parents = np.full((n_components, len(sizes)), ROOT, np.int64)
        weights = np.full(n_components, 1 / n_components)
        return TreeMixtureParams(weights, parents, tables, margins, n_levels)

    def warm_start(self, state: FitState, params: TreeMixtureParams) -> FitState:
        """Start from an earlier fit, without short runs, with the margins of the rows here."""
        params = replace(params, margins=state.auxiliary["margins"])
        return replace(self._begin_long_run(state, 0.0), params=params)

    def summarize(
        self, params: TreeMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        run = partial(_run_e_step, params)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def objective(self, params: TreeMixtureParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        log_prior = self.smoothing * params.compute_mean_log_prior()
        return float((statistics.objective + log_prior) / statistics.weight)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step: find the tree of each component, and its tables."""
        products, sizes = statistics.values["pairs"], state.params.levels_per_feature
        mass = products[:, 0, 0] + self.smoothing
        pseudo_rows = self.smoothing * state.params.compute_independent_pairs()
        firsts = np.cumsum(sizes) - sizes
        parents, tables = [], []
        for own in products:
            counts = count_level_pairs(own, sizes) + pseudo_rows
            parents.append(find_maximum_spanning_tree(compute_mutual_information(counts, firsts)))
            tables.append(make_tables(counts, firsts, sizes, parents[-1]))
        trees = {"parents": np.stack(parents), "tables": np.stack(tables)}
        return replace(state, params=replace(state.params, weights=mass / mass.sum(), **trees))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by weight, and add diagnostics and warnings."""
        order = np.argsort(-state.params.weights, kind="stable")
        old = state.params
        params = replace(
            old, weights=old.weights[order], parents=old.parents[order], tables=old.tables[order]
        )
        products, empty_rows = statistics.values["pairs"], statistics.values["empty_rows"]
        state = self._describe_components(state, products[:, 0, 0], empty_rows)
        return replace(state, params=params)

    def count_mixture_parameters(self, params: TreeMixtureParams) -> int:
        """Count the free weights and the free entries of tables."""
        sizes = params.levels_per_feature
        above = np.where(params.parents == ROOT, 1, sizes[params.parents])
        return len(params.weights) - 1 + int((above * (sizes - 1)).sum())

    def transform(
        self, params: TreeMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": compute_posterior(params, read_levels(params, block), params.orders)[0]}

    def log_likelihood(
        self, params: TreeMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        _, nats = compute_posterior(params, read_levels(params, block), params.orders)
        return LogLikelihood(nats, np.zeros_like(nats))

    def impute(self, params: TreeMixtureParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(plane = 1 | all other values of the row), (n_samples, n_planes)."""
        planes = np.empty((block.n_samples, block.n_features))
        trees = (params.parents, params.orders, params.tables, params.weights)
        n_planes = params.levels_per_feature - 1
        fill_plane_probabilities(read_levels(params, block), *trees, n_planes, planes)
        if np.isnan(planes).any():
            raise FitError(_IMPOSSIBLE)
        return planes

    def sample(
        self,
        params: TreeMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_planes), feature by feature from the root."""
        components = rng.choice(len(params.weights), n_samples, p=params.weights)
        uniform = rng.random((n_samples, params.parents.shape[1]))
        levels = np.zeros(uniform.shape, np.uint8)
        for k, order in enumerate(params.orders):
            (rows,) = np.nonzero(components == k)
            for i in order.tolist():
                parent = params.parents[k, i]
                above = np.zeros(len(rows), np.uint8) if parent == ROOT else levels[rows, parent]
                steps = np.cumsum(params.tables[k, i], axis=1)[above, :-1]
                levels[rows, i] = (uniform[rows, i, None] > steps).sum(axis=1)
        n_planes = params.levels_per_feature - 1
        return split_into_planes(np.minimum(levels, n_planes).astype(np.uint8), n_planes)

    def get_trees(self, params: TreeMixtureParams) -> list[FeatureTree]:
        """Return the trees of the components, with the dependence along each edge."""
        trees = []
        for k, margins in enumerate(params.compute_margins()):
            parents = params.parents[k]
            is_edge = parents != ROOT
            joint = margins[parents[is_edge], :, None] * params.tables[k, is_edge]
            strengths = np.full((2, len(parents)), np.nan)
            strengths[0, is_edge] = compute_table_information(joint)
            strengths[1, is_edge] = compute_table_correlation(joint)
            trees.append(FeatureTree(float(params.weights[k]), parents, *strengths))
        return trees

    def reconstruct(
        self,
        params: TreeMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k P(plane = 1 | k) clipped to 0 and 1, (n_samples, n_planes)."""
        margins, sizes = params.compute_margins(), params.levels_per_feature
        # P(x ≥ c | k) of each plane c.
        reached = margins[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
        planes = np.concatenate([reached[:, i, 1:size] for i, size in enumerate(sizes)], axis=1)
        probabilities: Array = np.clip(codes @ planes, 0.0, 1.0)
        return probabilities


@dataclass(frozen=True)
class OrdinalTreeMixture(TreeMixture):
    """Hyperparameters of the mixture of trees, for features of which some have several levels.

    Attributes
    ----------
    structure
        The features.
    """

    structure: Structure = field(default_factory=Structure, metadata={"is_setting": False})

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features."""
        return self.structure.features


def read_levels(params: TreeMixtureParams, block: BinaryBlock) -> Levels:
    """Return the levels of a block, `MISSING` if missing, (n_samples, n_features)."""
    levels, mask = unpack_levels(block, params.levels_per_feature - 1)
    return levels if mask is None else np.where(mask != 0, levels, np.uint8(MISSING))


def compute_posterior(
    params: TreeMixtureParams, levels: Levels, orders: Counts
) -> tuple[Array, Array]:
    """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,), nats.

    Raises
    ------
    FitError
        If a row is impossible, which no fit gives.
    """
    joint = np.empty((len(levels), len(params.weights)))
    fill_log_likelihoods(levels, params.parents, orders, params.tables, joint)
    joint += np.log(params.weights)
    nats = scipy.special.logsumexp(joint, axis=1)
    if not np.isfinite(nats).all():
        raise FitError(_IMPOSSIBLE)
    return np.exp(joint - nats[:, None]), nats


def _run_e_step(params: TreeMixtureParams, block: BinaryBlock) -> Sums:
    total, orders, n_levels = 0.0, params.orders, params.levels_per_feature
    trees = (params.parents, orders, params.tables)
    pairs = np.zeros((len(params.weights), 1 + block.n_features, 1 + block.n_features))
    for part in iter_word_ranges(block, _BATCH_WORDS):
        levels = read_levels(params, part)
        posterior, nats = compute_posterior(params, levels, orders)
        if part.row_weights is not None:
            posterior *= part.row_weights[:, None]
            nats = nats * part.row_weights
        total += float(nats.sum())
        pairs += sum_weighted_pairs(part, levels, posterior, *trees, n_levels)
    empty_rows = np.array(block.count_unobserved_rows())
    return Sums.from_block(block, total, {"pairs": pairs, "empty_rows": empty_rows})
