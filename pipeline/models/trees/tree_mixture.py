"""Mixture of trees: within each class of rows, features depend on each other along a tree.

Model: P(x) = Σ_k π_k Π_i θ_k(x_i | x_pa(k, i)), where pa(k, i) is the parent of feature i in the
tree of component k (M. Meilă, M. I. Jordan, "Learning with mixtures of trees", Journal of Machine
Learning Research 1, 2000). One component is the Chow–Liu tree (C. K. Chow, C. N. Liu, IEEE
Transactions on Information Theory 14, 1968).

Fit by EM. In every third pass, the M-step finds, for each component, the counts of all pairs of
features weighted by its posterior, the maximum spanning tree of their mutual information, and θ
from the counts of its edges. In the other passes it keeps the trees, and only counts their edges.
The prior is `smoothing` pseudo-rows per component from the model in which features are
independent with their overall margins (Meilă & Jordan 2000, section 5); with it, no step decreases
the objective. See `pipeline.models.mixture` for the short runs at the start. They are of two kinds:

* components without edges, in which features are independent; the first trees grow from the best
  of these runs
* trees of random groups of rows; in the first passes, the component of each row is drawn at random
  from its posterior, and trees are found with noise that decreases, see `tree_starts.py`; only a
  sample of the rows is used

Both kinds then continue with all rows for a few passes, and the better one until it has converged.
A single tree has starts of the second kind, if values are missing.

=========  ==========  =============================================
symbol     field       shape
=========  ==========  =============================================
π          weights     (n_components,)
pa         parents     (n_components, n_features), -1 at a root
θ          tables      (n_components, n_features, n_levels, n_levels)
=========  ==========  =============================================

`tables[k, i, b, a]` is P(x_i = a | x_pa = b, k); a root has P(x_i = a | k) at b = 0. Tree k
belongs to component k.

The pairs of a single tree of more than 2,000 features, or levels above the lowest ones, are counted
strip by strip, so that no square of all features is held in memory; see `feature_tree.py`. EM then
keeps this tree. With missing values, it is that of the counted pairs, not of the expected ones.

Missing values are summed out by belief propagation, and the M-step takes the expected counts of all
pairs, both exactly; see `pipeline.numerics.trees.messages`. This is also right if observed values
decide which values are missing, but not if the missing values themselves do.

Cost per block: n_samples n_components n_features; in passes that find trees, also n_features² for
each row and each component whose probability given the row is not negligible. Passes: tens; two for
a single tree if no value is missing.
Not identifiable: the order of the components, which are sorted by weight; the root of a tree; and
the components themselves if there are few features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts, Levels
from pipeline.data.blocks import BinaryBlock, PackedChunk, iter_word_ranges, unpack_levels
from pipeline.data.features import MAX_LEVELS, split_into_planes
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ObjectiveCriterion
from pipeline.learning.held_out import run_e_step_with_held_out
from pipeline.models.capabilities import FeatureTree, FitRecord, LogLikelihood
from pipeline.models.mixture import Mixture
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.models.trees.base import (
    SAMPLE_ROWS,
    TreeParams,
    compute_margins,
    convert_to_planes,
    take_sample,
)
from pipeline.models.trees.feature_tree import (
    TREE_CELL_BYTES,
    PseudoRows,
    find_strip_edges,
    join_strips,
    prepare_strips,
)
from pipeline.models.trees.pair_counts import (
    add_edge_tables,
    add_expected_pairs,
    count_level_pairs,
    drop_negligible,
    symmetrize,
    with_margins,
)
from pipeline.models.trees.tree_starts import (
    add_noise,
    add_observed_pairs,
    draw_components,
    find_start_tree,
)
from pipeline.numerics.bits.kernels import split_into_bit_planes
from pipeline.numerics.bits.weighted_pairs import ROWS_AT_ONCE, add_weighted_pairs
from pipeline.numerics.trees.binary_rows import (
    compute_complete_log_likelihoods,
    count_edges,
    make_log_polynomials,
)
from pipeline.numerics.trees.dependence import (
    compute_table_correlation,
    compute_table_information,
    sum_information,
)
from pipeline.numerics.trees.messages import (
    MISSING,
    fill_log_likelihoods,
    fill_plane_probabilities,
)
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    find_maximum_spanning_tree,
    make_tables,
    normalize_tables,
    order_from_root,
    orient_tree,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.feature_strips import MIN_STRIP_HEIGHT, estimate_strip_memory
from pipeline.passes.row_ranges import RangeResults
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_present_levels,
    count_rows_by_level,
    warn_about_levels,
)
from pipeline.statistics.sums import Sums

_BATCH_WORDS = ROWS_AT_ONCE // 64  # rows whose levels are in memory at once
_IMPOSSIBLE = "The tables of the trees give a row the probability 0. Fit again."
_SHORT_PASSES = 20  # of the features as independent, before the first trees
_TREE_STARTS = 3  # starts from trees for each start from independent features
_STARTS_PER_FINALIST = 2
_DRAWN_PASSES, _NOISY_PASSES = 150, 60  # of starts from trees; the latter of a single tree
_GROUPED_SHARE = 1 / 16  # of rows in the first groups; larger ones would be too alike
_FEWEST_PASSES = 12  # of starts from trees
_STARTS_PER_NOISY = 4  # of a single tree: every fourth start has noise in many passes
_FIRST_NOISE = 0.5  # of the other starts of a single tree, after the first ones
_MAX_FINALISTS = 8
_FINALIST_PASSES = 60
_EDGE_NOISE, _MAX_NOISE = 2.0, 1.0  # at first; the former divided by the number of components
_START_CELLS = 1 << 16  # pairs of planes that all starts from trees count at the same time
_COMPARED_PASSES = 9  # of the best starts of both kinds
_TREE_PERIOD = 3  # passes from one search for the trees to the next, if none is drawn
MAX_SQUARE_FEATURES = 2000
"""Most planes of a single tree whose pairs are counted in one table; more are counted in strips."""
_MIN_SMOOTHING = 1e-6  # keeps probabilities above 0 for up to 1e9 rows


@dataclass(frozen=True)
class TreeMixtureParams(TreeParams):
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

    @cached_property
    def orders(self) -> Counts:
        """Features with parents first, (n_components, n_features)."""
        return np.stack([order_from_root(parents) for parents in self.parents])

    def compute_independent_pairs(self) -> Array:
        """Return P(level, level) of pairs of independent features, (n_levels, n_levels) in all."""
        pairs = np.outer(self.margins, self.margins)
        return with_margins(pairs, self.margins, self.levels_per_feature)

    def compute_independent_tables(self, parents: Counts) -> Array:
        """Return P(x_parent = b, x_i = a) of independent features, at [i, b, a].

        `parents` are those of a tree, (n_features,). A root has its margins at b = 0.
        """
        by_feature = self.place_margins()
        joint: Array = by_feature[parents][:, :, None] * by_feature[:, None]
        joint[parents == ROOT] = 0.0
        joint[parents == ROOT, 0] = by_feature[parents == ROOT]
        return joint

    def compute_mean_log_prior(self) -> float:
        """Return Σ_k log π_k + Σ_k E log P(x | k) over rows of independent features."""
        total = np.log(self.weights).sum()
        for parents, tables in zip(self.parents, self.tables, strict=True):
            joint = self.compute_independent_tables(parents)
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
        Number of trees. None doubles it from 1 while held-out rows become more likely.
    smoothing
        Number of pseudo-rows added to every component; their features are independent.
    starts
        Number of short runs from mixtures of independent features. Three times as many begin with
        the trees of random groups of rows, or fewer if there are many features.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats.
    """

    name: ClassVar[str] = "tree-mixture"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "nominal"), ("frequency", "sampling")
    )
    unlinked_effect: ClassVar[str] = (
        "the parts are taken as independent given the tree, and which tree of "
        "one part belongs to which of another is not determined"
    )
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[TreeMixtureParams]] = TreeMixtureParams
    max_held_out_components: ClassVar[int] = 64
    short_run_tol: ClassVar[float] = 1e-2
    single_start_is_short: ClassVar[bool] = True
    pair_counts: ClassVar[tuple[str, ...]] = ()
    cell_bytes: ClassVar[int] = TREE_CELL_BYTES
    n_components: int | None = 10
    smoothing: float = setting(1.0, minimum=_MIN_SMOOTHING)
    starts: int = setting(3, minimum=1)
    max_components: int | None = setting(None, minimum=1)
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-4, above=0, below=1)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's pair counts and of those that the M-step arranges.

        For a wide single tree, return those of the smallest strips of all threads.
        """
        if self.has_pair_tables(n_features):
            return n_threads * estimate_strip_memory(MIN_STRIP_HEIGHT, n_features, self.cell_bytes)
        n_trees = self.most_components
        n_trees *= self._count_tree_starts(n_features, n_trees)
        # With missing values, a task has six squares besides its counts: see `add_missing_pairs`.
        return 8 * n_features**2 * (n_trees * (n_threads + 2) + 6 * n_threads + 16)

    def estimate_work(
        self, params: TreeMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of counting pairs or edges."""
        n_trees, finds_trees = len(params.weights), bool(working["finds_trees"])
        n_pairs = n_trees * n_features * (n_features if finds_trees else 4)
        pair_time = 0.008 * n_features if finds_trees else 0.0
        nanoseconds = n_features * (2 + n_trees * (1.0 + pair_time))
        return WorkEstimate(float(working.get("sample", 1.0)) * nanoseconds, 8 * n_pairs)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from random components around the margins."""
        level_rows = count_rows_by_level(first, self.structure.features)
        self._check_number_of_components(first)
        n_levels = np.array([len(rows) for rows in level_rows])
        is_wide = self.has_pair_tables(int((n_levels - 1).sum()))
        auxiliary = {
            "weight": np.array(first.weight),
            "n_present": count_present_levels(level_rows),
            "margins": compute_margins(level_rows),
            "seed": rng.integers(2**63, size=1),
            "is_complete": np.array(first.is_complete),
            "is_wide": np.array(is_wide),
            "sample": np.array(min(1.0, SAMPLE_ROWS / max(first.weight, 1.0))),
        }
        warnings = warn_about_levels(level_rows, self.structure.features)
        state = self._begin_fit(FitState(None, auxiliary=auxiliary, warnings=warnings))
        if not is_wide:
            return state
        pseudo_rows = PseudoRows(self.smoothing, auxiliary["margins"])
        return replace(state, working=prepare_strips(first, n_levels, pseudo_rows))

    def count_columns(self, n_planes: int) -> Counts:
        """Return the number of planes of each feature, (n_features,)."""
        n_levels = self.structure.n_levels
        return np.ones(n_planes, np.int64) if n_levels is None else n_levels - 1

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether this is a single tree of so many planes that strips are counted."""
        is_single = self.n_components == 1 and self.n_compared is None
        return is_single and n_features > MAX_SQUARE_FEATURES

    def tabulate(
        self,
        params: TreeMixtureParams,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Arrays:
        """Count the pairs of a strip of features, and keep those that the tree may need."""
        return find_strip_edges(working, features, chunks)

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the tree; edges that are new to a warm start begin as independent."""
        old, n_features = state.params, state.params.parents.shape[1]
        edges = join_strips(results, n_features)
        parents = orient_tree(edges.left, edges.right, n_features)
        tables = normalize_tables(old.compute_independent_tables(parents))
        is_known = parents == old.parents[0]
        tables[is_known] = old.tables[0, is_known]
        params = replace(old, parents=parents[None], tables=tables[None])
        working = {"held_out": np.array(0.0), "finds_trees": np.array(False)}
        return replace(state, params=params, working=working)

    def _draw_start(self, auxiliary: Arrays, n_components: int, start: int) -> TreeMixtureParams:
        """Perturb the margins, by rank of the levels: reversing levels changes nothing."""
        margins, n_levels = auxiliary["margins"], self.structure.n_levels
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

    def _begin_stage(self, state: FitState, n_components: int, held_out: float) -> FitState:
        """Begin with starts of both kinds; a single tree, if values are missing, with trees."""
        own = {n: a for n, a in state.auxiliary.items() if n not in ("tree_start", "is_finalist")}
        began = super()._begin_stage(replace(state, auxiliary=own), n_components, held_out)
        is_exact = n_components == 1 and bool(state.auxiliary["is_complete"])
        if is_exact or state.auxiliary["is_wide"]:
            return began
        n_starts = self._count_tree_starts(
            int((began.params.levels_per_feature - 1).sum()), n_components
        )
        trees = (self._begin_tree_start(began, k) for k in range(n_starts))
        return replace(began, starts=(*began.starts, *trees))

    def _count_tree_starts(self, n_planes: int, n_components: int) -> int:
        """Return the number of starts from trees, whose pairs are in memory at the same time."""
        n_at_once = _START_CELLS // (n_components * n_planes**2)
        n_starts = _TREE_STARTS * self.starts * (_STARTS_PER_NOISY if n_components == 1 else 1)
        return max(1, min(n_starts, n_at_once))

    def _begin_tree_start(self, state: FitState, start: int) -> FitState:
        """Begin with the trees of random groups of rows, which the first pass counts."""
        params, n_components = state.params, len(state.params.weights)
        independent = self._draw_start(state.auxiliary, 1, 0)
        parents, tables = (
            np.repeat(own, n_components, axis=0)
            for own in (independent.parents, independent.tables)
        )
        return replace(
            state,
            params=replace(params, parents=parents, tables=tables),
            working={
                "held_out": state.working["held_out"],
                "finds_trees": np.array(True),
                "sample": state.auxiliary["sample"],
                "draws": np.array(True),
                "counts_observed": np.array(True),
            },
            auxiliary={**state.auxiliary, "short": np.array(True), "tree_start": np.array(start)},
            starts=(),
        )

    def get_start_kind(self, state: FitState) -> str:
        """Return the kind of a short run; "" for states that use all rows and find trees."""
        if not state.auxiliary.get("short", False):
            return ""
        if "tree_start" not in state.auxiliary:
            return "features"
        return "finalists" if "is_finalist" in state.auxiliary else "trees"

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Go on with the best starts from trees, then compare the best of both kinds on all rows.

        Starts from independent features go on with trees.
        """
        if list(ranked) == [""]:
            return self._end_comparison(ranked)
        starts: list[FitState] = []
        for kind, own in ranked.items():
            if kind == "trees":
                n_finalists = min(-(-len(own) // _STARTS_PER_FINALIST), _MAX_FINALISTS)
                is_finalist = {"is_finalist": np.array(True)}
                starts += [
                    replace(
                        s,
                        auxiliary={**s.auxiliary, **is_finalist},
                        working={**s.working, "draws": np.array(False)},
                        diagnostics={},
                    )
                    for s in own[:n_finalists]
                ]
            else:
                starts.append(self._begin_comparison(own[0], finds_trees=kind != "finalists"))
        if len(starts) == 1 and self.get_start_kind(starts[0]) == "":
            return self._end_comparison({"": starts})
        return replace(starts[0], starts=tuple(starts))

    def _begin_comparison(self, state: FitState, *, finds_trees: bool) -> FitState:
        """Begin a few passes over all rows; states of different kinds find trees by turns."""
        state = self._begin_long_run(state, float(state.working["held_out"]))
        auxiliary = {**state.auxiliary, "phase": np.array(int(finds_trees))}
        working = {**state.working, "finds_trees": np.array(finds_trees)}
        return replace(state, auxiliary=auxiliary, working=working)

    def _end_comparison(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Continue with the best start until it has converged."""
        chosen = super().select_starts(ranked)
        auxiliary = {name: own for name, own in chosen.auxiliary.items() if name != "phase"}
        return replace(chosen, auxiliary=auxiliary)

    def warm_start(self, state: FitState, params: TreeMixtureParams) -> FitState:
        """Start from an earlier fit, without short runs, with the margins of the rows here.

        A single tree whose pairs are counted in strips is found anew; its edges that the earlier
        tree had start from their tables.
        """
        params = replace(params, margins=state.auxiliary["margins"])
        if state.auxiliary["is_wide"]:
            return replace(state, params=params)
        state = self.keep_order(self._begin_long_run(state, 0.0), _list_profiles(params))
        return replace(state, params=params)

    def summarize(
        self, params: TreeMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        block = take_sample(working, block, rng)
        run = partial(_run_e_step, params, working, rng)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def objective(self, params: TreeMixtureParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        log_prior = self.smoothing * params.compute_mean_log_prior()
        return float((statistics.objective + log_prior) / statistics.weight)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step: find the tree of each component if pairs were counted, and its tables."""
        old, values = state.params, statistics.values
        mass = values["mass"] + self.smoothing
        noise = self._choose_noise(state)
        if "observed_pairs" in values:
            start = int(state.auxiliary["tree_start"])
            found = self._find_start_trees(old, values["observed_pairs"], start, noise, rng)
        elif "pairs" in values:
            found = self._find_trees(old, values, noise, rng)
        else:
            found = [
                (parents, normalize_tables(own + self.smoothing * independent))
                for parents, own, independent in zip(
                    old.parents,
                    values["tables"],
                    map(old.compute_independent_tables, old.parents),
                    strict=True,
                )
            ]
        parents, tables = map(np.stack, zip(*found, strict=True))
        n_passes = len(state.history) + 1 + int(state.auxiliary.get("phase", 0))
        keeps_trees = self.get_start_kind(state) == "features" or bool(state.auxiliary["is_wide"])
        draws = bool(state.working.get("draws", False)) and len(parents) > 1
        is_due = draws or n_passes % _TREE_PERIOD == 0
        finds_trees = np.array(not keeps_trees and is_due)
        working = {**state.working, "finds_trees": finds_trees, "counts_observed": np.array(False)}
        return replace(
            state,
            params=replace(old, weights=mass / mass.sum(), parents=parents, tables=tables),
            working=working,
        )

    def _count_drawn_passes(self, state: FitState) -> int:
        """Return the passes of a start from trees in which edges are noisy.

        Most starts of a single tree keep to the pairs that many rows observe.
        """
        is_single = len(state.params.weights) == 1
        start = int(state.auxiliary["tree_start"])
        if not is_single:
            return _DRAWN_PASSES
        return _NOISY_PASSES if start % _STARTS_PER_NOISY == 1 else 1

    def _choose_noise(self, state: FitState) -> float:
        """Return the noise of the weights of edges, which decreases to 0 while a start draws."""
        if not state.working.get("draws", False):
            return 0.0
        n_passes, n_drawn = len(state.history), self._count_drawn_passes(state)
        if n_drawn == 1:
            is_noisy = n_passes == 0 and state.auxiliary["tree_start"] > _STARTS_PER_NOISY
            return _FIRST_NOISE if is_noisy else 0.0
        noise = min(_EDGE_NOISE / len(state.params.weights), _MAX_NOISE)
        return float(noise * max(1 - n_passes / n_drawn, 0.0))

    def _find_start_trees(
        self,
        params: TreeMixtureParams,
        groups: Array,
        start: int,
        noise: float,
        rng: np.random.Generator,
    ) -> list[tuple[Counts, Array]]:
        """Return the parents and tables of each group, given pairs of observed values."""
        sizes = params.levels_per_feature
        pseudo_rows = self.smoothing * params.compute_independent_pairs()
        return [find_start_tree(own, pseudo_rows, sizes, start, noise, rng) for own in groups]

    def _find_trees(
        self, params: TreeMixtureParams, values: Arrays, noise: float, rng: np.random.Generator
    ) -> list[tuple[Counts, Array]]:
        """Return the parents and tables of each component, given its sums of products of planes."""
        sizes, found = params.levels_per_feature, []
        pseudo_rows = self.smoothing * params.compute_independent_pairs()
        firsts = np.cumsum(sizes) - sizes
        for products, mass in zip(values["pairs"], values["mass"], strict=True):
            counts = count_level_pairs(products, mass, sizes) + pseudo_rows
            n_rows = counts.diagonal()[: sizes[0]].sum()  # all pairs have as many
            weights = sum_information(counts, sizes, sizes) / n_rows
            if noise > 0:
                weights = add_noise(weights, noise, rng)
            parents = find_maximum_spanning_tree(weights)
            found.append((parents, make_tables(counts, firsts, sizes, parents)))
        return found

    def _make_working(self, held_out: float, *, is_short: bool) -> Arrays:
        working = super()._make_working(held_out, is_short=is_short)
        return {**working, "finds_trees": np.array(not is_short)}

    def get_convergence_criterion(self, state: FitState) -> ObjectiveCriterion:
        """Stop on the change of the objective; short runs after a few passes.

        The first M-step of a single tree is exact if no value is missing; a second pass scores it.
        """
        criterion = super().get_convergence_criterion(state)
        if state.auxiliary.get("is_complete", False) and len(state.params.weights) == 1:
            return replace(criterion, tol=np.inf)
        kind = self.get_start_kind(state)
        if kind == "features":
            return replace(criterion, max_iter=min(self.max_iter, _SHORT_PASSES))
        if kind == "trees":
            max_iter = min(self.max_iter, max(self._count_drawn_passes(state), _FEWEST_PASSES))
            return replace(criterion, max_iter=max_iter, tol=-np.inf)  # it never converges
        if kind == "finalists":
            max_iter = min(self.max_iter, _FINALIST_PASSES)
            return replace(criterion, max_iter=max_iter, tol=self.tol)
        if "phase" in state.auxiliary:
            return replace(criterion, max_iter=min(self.max_iter, _COMPARED_PASSES))
        return criterion

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by weight, and add diagnostics and warnings."""
        old = state.params
        order = self.sort_components(state, old.weights, _list_profiles(old))
        params = replace(
            old, weights=old.weights[order], parents=old.parents[order], tables=old.tables[order]
        )
        mass, empty_rows = statistics.values["mass"], statistics.values["empty_rows"]
        state = self._describe_components(state, mass, empty_rows)
        return replace(state, params=params)

    def count_free_parameters(self, state: FitState) -> int:
        """Count the free weights and the free entries of tables; trees do not count."""
        parents, sizes = state.params.parents, state.auxiliary["n_present"]
        above = np.where(parents == ROOT, 1, sizes[parents])
        return len(parents) - 1 + int((above * (sizes - 1)).sum())

    def explain_not_nested(self, fit: FitRecord, larger: FitRecord) -> str:
        """Return why a fit is no special case of another one, which has trees of its own."""
        return super().explain_not_nested(fit, larger) or "the trees are chosen by the data"

    def transform(
        self, params: TreeMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": compute_posterior(params, block)[0]}

    def compute_posterior(
        self, params: TreeMixtureParams, block: BinaryBlock
    ) -> tuple[Array, Array]:
        """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,)."""
        return compute_posterior(params, block)

    def log_likelihood(
        self, params: TreeMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        _, nats = compute_posterior(params, block)
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
        planes = convert_to_planes(params.compute_margins(), params.levels_per_feature)
        probabilities: Array = np.clip(codes @ planes, 0.0, 1.0)
        return probabilities


def read_levels(params: TreeMixtureParams, block: BinaryBlock) -> Levels:
    """Return the levels of a block, `MISSING` if missing, (n_samples, n_features)."""
    levels, mask = unpack_levels(block, params.levels_per_feature - 1)
    return levels if mask is None else np.where(mask != 0, levels, np.uint8(MISSING))


def compute_posterior(params: TreeMixtureParams, block: BinaryBlock) -> tuple[Array, Array]:
    """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,), nats.

    Raises
    ------
    FitError
        If a row is impossible, which no fit gives.
    """
    joint = _compute_log_likelihoods(params, block) + np.log(params.weights)
    largest = joint.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise FitError(_IMPOSSIBLE)
    shares = np.exp(joint - largest)
    totals = shares.sum(axis=1, keepdims=True)
    return shares / totals, (largest + np.log(totals))[:, 0]


def _compute_log_likelihoods(params: TreeMixtureParams, block: BinaryBlock) -> Array:
    """Return log P(x | k), (n_samples, n_components)."""
    if _is_binary_and_complete(params, block):
        polynomials = make_log_polynomials(params.parents, params.tables)
        if polynomials is not None:
            return compute_complete_log_likelihoods(block.words, block.n_samples, polynomials)
    nats = np.empty((block.n_samples, len(params.weights)))
    levels = read_levels(params, block)
    fill_log_likelihoods(levels, params.parents, params.orders, params.tables, nats)
    return nats


def _is_binary_and_complete(params: TreeMixtureParams, block: BinaryBlock) -> bool:
    return params.n_levels is None and block.observed_words is None


def _list_profiles(params: TreeMixtureParams) -> Array:
    """Return the mean tables of each component over the levels of parents, (n_components, n)."""
    means: Array = params.tables.mean(axis=2)
    return means.reshape(len(means), -1)


def _run_e_step(
    params: TreeMixtureParams, working: Arrays, rng: RowRandom, block: BinaryBlock
) -> Sums:
    """Sum the log-likelihood, and the pairs of features or only the edges of each component.

    Components are drawn from the posterior at the beginning of some starts, whose first pass counts
    pairs of observed values only.
    """
    counts_observed = bool(working.get("counts_observed", False))
    if len(params.weights) == 1 and block.observed_words is None and not counts_observed:
        return _count_single_tree(params, bool(working["finds_trees"]), block)
    total, n_levels = 0.0, params.levels_per_feature
    draws = bool(working.get("draws", False)) and len(params.weights) > 1
    if counts_observed:
        name, sizes = "observed_pairs", (n_levels.sum(), n_levels.sum())
    elif working["finds_trees"]:
        name, sizes = "pairs", (block.n_features, block.n_features)
    else:
        name, sizes = "tables", params.tables.shape[1:]
    count = add_expected_pairs if name == "pairs" else add_edge_tables
    counts, mass = np.zeros((len(params.weights), *sizes)), np.zeros(len(params.weights))
    for part in iter_word_ranges(block, _BATCH_WORDS):
        posterior, nats = compute_posterior(params, part)
        levels = orders = None
        if counts_observed or draws or not _is_binary_and_complete(params, part):
            levels = read_levels(params, part)
        if draws and levels is not None:
            share = _GROUPED_SHARE if counts_observed else 1.0
            posterior = draw_components(levels, n_levels, posterior, rng, share)
        weights = drop_negligible(posterior)
        if part.weights is not None:
            weights *= part.weights[:, None]
            nats = nats * part.weights
        total += float(nats.sum())
        mass += weights.sum(axis=0)
        if counts_observed and levels is not None:
            add_observed_pairs(levels, weights, n_levels, counts)
            continue
        if _is_binary_and_complete(params, part):
            levels = None
        else:
            orders = params.orders
        count(part, levels, weights, params.parents, orders, params.tables, n_levels, counts)
    if name == "pairs":
        symmetrize(counts)
    unit, empty_rows = block.weight_unit, np.array(block.count_unobserved_rows())
    values = {name: unit * counts, "mass": unit * mass, "empty_rows": empty_rows}
    return Sums.from_block(block, unit * total, values)


def _count_single_tree(params: TreeMixtureParams, finds_trees: bool, block: BinaryBlock) -> Sums:
    """Count complete rows for a single tree, whose log-likelihood follows from the counts."""
    weights = np.ones(block.n_samples, np.int64) if block.weights is None else block.weights
    n_levels, unit = params.levels_per_feature, block.weight_unit
    planes = split_into_bit_planes(weights)
    tables = unit * count_edges(block.words, planes, params.parents[0], n_levels)
    total = float(scipy.special.xlogy(tables, params.tables[0]).sum())
    values = {"mass": np.array([block.weight]), "empty_rows": np.array(0)}
    if finds_trees:
        products = np.zeros((1, block.n_features, block.n_features))
        add_weighted_pairs(block.words, weights[:, None].astype(np.float64), products)
        symmetrize(products)
        values["pairs"] = unit * products
    else:
        values["tables"] = tables[None]
    return Sums.from_block(block, total, values)
