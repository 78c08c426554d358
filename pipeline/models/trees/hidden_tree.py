"""Hidden tree: a hidden state behind each feature, and a tree along which the states depend.

Model: P(x) = Σ_z P(z_root) Π_i P(z_i | z_pa(i)) Π_i P(x_i | z_i), where z_i is one of a few states
behind feature i. Several trees have the same edges but their own tables, from other random starts;
the model is the mean of their P(x).

The first pass counts all pairs of features, which give the Chow–Liu tree of the features, see
`feature_tree.py`. Pairs of more than 4,000 features, or levels above the lowest ones, are counted
strip by strip. On this tree, the model is the hidden Chow–Liu tree (A. Liu, G. Van den Broeck,
"Tractable regularization of probabilistic circuits", NeurIPS 2021, section 6). A fit of one tree
starts from the tree behind noisy features too, and searches for a better one by short runs on a
sample of rows: these find the noise of each feature, and with it the counts of pairs give other
trees, see `hidden_start.py`.

EM fits the tables of each tree, with `smoothing` pseudo-rows for each state: P(z_i | z_parent) has
a uniform prior, P(x_i | z_i) one with the margins of the feature. Steps are extrapolated by SQUAREM
in the logarithms of the tables. The objective is the mean over the trees.

=================  ===========  =======================================
symbol             field        shape
=================  ===========  =======================================
P(z_root) / trees  weights      (n_components,)
pa                 parents      (n_features,), -1 at the root
P(z_i | z_pa(i))   transitions  (n_trees, n_features, n_states, n_states)
P(x_i | z_i)       emissions    (n_trees, n_features, n_states, n_levels)
=================  ===========  =======================================

Components are the states of the root: all states of the first tree, then all of the second, and so
on. `transitions[t, i, b, a]` is P(z_i = a | z_pa = b), and 0 at the root. The root is the feature
in the middle of the longest path of the tree.

Missing values are summed out exactly. This is also right if observed values decide which values are
missing, but not if the missing values themselves do.

Cost per block: 6 n_samples n_features n_trees n_states² operations, three products of matrices per
edge. Passes: tens to hundreds.
Not identifiable: the order of the states of each variable; the states themselves, if the levels of
the features determine them too weakly; and the order of the trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts, Levels
from pipeline.data.blocks import BinaryBlock, PackedChunk, iter_word_ranges, unpack_levels
from pipeline.data.features import (
    MAX_LEVELS,
    split_into_planes,
)
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.learning.held_out import (
    HELD_OUT_SHARE,
    get_best_params,
    get_held_out_scores,
    record_held_out_score,
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import FeatureTree, LogLikelihood
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
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
    FeaturePairs,
    PseudoRows,
    count_cells,
    find_edges,
    find_strip_edges,
    get_parent_correlation,
    join_strips,
    make_empty_strip,
    prepare_strips,
)
from pipeline.models.trees.hidden_start import (
    draw_emissions,
    find_noisy_tree,
    find_state_tree,
    make_transitions,
)
from pipeline.models.trees.tree_starts import N_SHARE_POWERS
from pipeline.models.vocabulary import STATES, Vocabulary
from pipeline.numerics.trees.dependence import (
    compute_table_correlation,
    compute_table_information,
)
from pipeline.numerics.trees.hidden_messages import (
    TILE_ROWS,
    StateTree,
    add_conditionals,
    add_expected_counts,
    fill_root_posteriors,
)
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    move_root_to_center,
    order_from_root,
    orient_tree,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.feature_strips import MIN_STRIP_HEIGHT, estimate_strip_memory
from pipeline.passes.row_ranges import RangeResults
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    POOLED_KEY,
    FeatureCounts,
    PairCounts,
    count_present_levels,
    count_rows_by_level,
    warn_about_levels,
)
from pipeline.statistics.sums import Sums

MAX_SQUARE_FEATURES = 4000
"""Most planes whose pairs are counted in one table; more are counted in strips."""
MAX_STATES = 64
"""Maximum number of states behind a feature."""
_BATCH_WORDS = 64  # rows whose levels are in memory at once: 4,096
_MIN_SMOOTHING = 1e-6  # keeps probabilities above 0 for up to 1e9 rows
_MIN_ROWS_TO_CHOOSE = 100  # about ten of them are held out
_IMPOSSIBLE = "The tables of the tree give a row the probability 0. Fit again."
_SHORT_PASSES = 20
_SEARCHES = 2  # for trees, each from the ends of the short runs before it
_STARTS_PER_KEPT = 3  # of which one short run continues on its own tree
_MAX_SEARCHED_FEATURES = 500
_MAX_SIZE = 2000  # states of all features, whose pairs are in memory
_SHARE = NumberRange(minimum=0, maximum=1)


@dataclass(frozen=True)
class HiddenTreeParams(TreeParams):
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    margins
        Share of each level of each feature in the fitted rows, and in the pseudo-rows of the prior.
    n_levels
        Numbers of levels of the features; None if all features are binary.
    """

    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    parents: Counts = array_field("feature", allowed=NumberRange(minimum=ROOT))
    transitions: Array = array_field("tree", "feature", "parent_state", "own_state", allowed=_SHARE)
    emissions: Array = array_field("tree", "feature", "own_state", "own_level", allowed=_SHARE)
    margins: Array = array_field("level", allowed=NumberRange(above=0, maximum=1))
    n_levels: Counts | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=2, maximum=MAX_LEVELS)
    )

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.transitions)

    @property
    def n_states(self) -> int:
        """Number of states behind each feature."""
        return int(self.transitions.shape[2])

    @property
    def root_weights(self) -> Array:
        """P(z_root) of each tree, (n_trees, n_states)."""
        return self.weights.reshape(self.n_trees, self.n_states) * self.n_trees

    @property
    def order(self) -> Counts:
        """Features with parents first, (n_features,)."""
        if np.count_nonzero(self.parents == ROOT) != 1:
            raise FitError("The features do not form one tree. Fit again.")
        return order_from_root(self.parents)

    def compute_state_margins(self, root_states: Array) -> Array:
        """Return P(z_i) in a tree given probabilities of the root's states.

        Parameters
        ----------
        root_states
            (n_trees, n_given, n_states).

        Returns
        -------
        ndarray
            (n_trees, n_features, n_given, n_states).
        """
        n_trees, n_given, n_states = root_states.shape
        margins = np.empty((n_trees, len(self.parents), n_given, n_states))
        for i in self.order.tolist():
            parent = self.parents[i]
            margins[:, i] = (
                root_states if parent == ROOT else margins[:, parent] @ self.transitions[:, i]
            )
        return margins

    def compute_state_pairs(self) -> Array:
        """Return P(z_i, z_j) in the first tree, (n_features, n_features, n_states, n_states)."""
        margins = self.compute_state_margins(self.root_weights[:, None])[0, :, 0]
        order = self.order
        pairs = np.zeros((*(2 * [len(order)]), *(2 * [self.n_states])))
        for place, i in enumerate(order.tolist()):
            pairs[i, i] = np.diag(margins[i])
            before, parent = order[:place], self.parents[i]
            pairs[before, i] = pairs[before, parent] @ self.transitions[0, i]
            pairs[i, before] = pairs[before, i].swapaxes(1, 2)
        return pairs


@dataclass(frozen=True)
class HiddenTree(Model):
    """Hyperparameters of the hidden tree.

    Attributes
    ----------
    n_components
        Number of components, which are pairs of a tree and a state of its root: all states of the
        first tree, then all of the second, and so on. None is `states` times `trees`. States of
        different trees are unrelated; with a single tree, components are classes of rows.
    states
        Number of states behind each feature, at most 64. None is `n_components` divided by `trees`;
        without `n_components`, it is doubled from 1 while held-out rows become more likely.
    trees
        Number of sets of tables on the same tree, each fitted from a random start of its own. The
        probability of a row is the mean over the sets.
    smoothing
        Number of pseudo-rows added to each state in each table.
    starts
        Number of short runs, and of trees that each of two searches for a better tree tries. 1
        keeps the tree of the features.
    max_iter
        Maximum number of passes, for each number of states.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats.
    """

    name: ClassVar[str] = "hidden-tree"
    vocabulary: ClassVar[Vocabulary] = STATES
    indeterminacy: ClassVar[str] = "the order of the states and of the trees"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "nominal"), ("frequency", "sampling")
    )
    unlinked_effect: ClassVar[str] = (
        "how the parts are joined, and which levels correspond, is not determined"
    )
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[HiddenTreeParams]] = HiddenTreeParams
    acceleration: ClassVar[str] = "squarem"
    pair_counts: ClassVar[tuple[str, ...]] = ()
    cell_bytes: ClassVar[int] = TREE_CELL_BYTES
    n_components: int | None = None
    states: int | None = setting(None, minimum=1)
    trees: int = setting(1, minimum=1)
    smoothing: float = setting(0.1, minimum=_MIN_SMOOTHING)
    starts: int = setting(2, minimum=1)
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-4, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        n_components, n_states = self.n_components, self.n_states
        if n_components is not None and n_components != (n_states or 0) * self.trees:
            text = f"{{components}} is {n_components}, but "
            if self.states is None:
                text += f"with {{trees={self.trees}}} it must be a multiple of {self.trees}."
            else:
                text += (
                    f"{{states={self.states}}} and {{trees={self.trees}}} make "
                    f"{self.states * self.trees} components. Leave out {{components}}."
                )
            raise FitError(text, parameter="components")
        if n_states is not None and n_states > MAX_STATES:
            name, per_state = self._find_states_setting()
            raise FitError(
                f"{{{name}}} must be at most {per_state * MAX_STATES}, but is "
                f"{per_state * n_states}: the pairs of states would take "
                f"{8 * n_states**2 / 1000:,.0f} kB for each feature and tree.",
                parameter=name,
            )

    @property
    def n_states(self) -> int | None:
        """Number of states behind each feature; None if held-out rows choose it."""
        if self.states is not None or self.n_components is None:
            return self.states
        return self.n_components // self.trees

    def _find_states_setting(self) -> tuple[str, int]:
        """Return the setting that gives the number of states, and its value per state."""
        return ("components", self.trees) if self.states is None else ("states", 1)

    def with_structure(self, structure: Structure) -> Self:
        """Return the model of levels, or of so many features that pairs are counted in strips."""
        model = super().with_structure(structure)
        wide = replace(model, structure=structure)
        return wide if wide.is_wide else model

    @property
    def is_wide(self) -> bool:
        """Whether there are so many planes that their pairs are counted in strips."""
        return sum(feature.n_planes for feature in self.structure.features) > MAX_SQUARE_FEATURES

    @property
    def first_statistics(self) -> type[FeatureCounts | PairCounts]:
        """Counts of ones, or of pairs unless these are counted in strips."""
        return FeatureCounts if self.is_wide else PairCounts

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of pair counts, or of the messages and counts of the passes."""
        if self.is_wide:
            strip = estimate_strip_memory(MIN_STRIP_HEIGHT, n_features, self.cell_bytes)
            return max(n_threads * strip, self._estimate_pass_memory(n_features, n_threads))
        # With missing values, each of the tables that threads sum and merge has four squares.
        squares = 8 * n_features**2 * (8 * n_threads + 16)
        return max(squares, self._estimate_pass_memory(n_features, n_threads))

    def _estimate_pass_memory(self, n_features: int, n_threads: int) -> int:
        n_states = self.n_states or MAX_STATES
        messages = 8 * n_features * n_states * 2 * TILE_ROWS
        tables = 8 * n_features * self.trees * n_states * (n_states + 2)
        return messages * n_threads + tables * (3 * n_threads + 10)

    def estimate_work(
        self, params: HiddenTreeParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step."""
        n_states = params.n_states
        per_value = 3 + n_states + 0.16 * n_states**2
        n_tables = params.n_trees * n_features
        return WorkEstimate(n_tables * per_value, 8 * n_tables * n_states * (n_states + 2))

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> FeatureCounts | PairCounts:
        """Count the ones of a block, or its pairs with all segments pooled."""
        if self.is_wide:
            return FeatureCounts.from_block(block)
        return PairCounts.from_block(block, pooled=True)

    def first_key(self, seed: int) -> str:
        """Return the key of counts of ones, or of pairs with all segments pooled."""
        return super().first_key(seed) if self.is_wide else POOLED_KEY

    def initialize(self, first: FeatureCounts | PairCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, find the tree of the features, and draw the start.

        A tree from strips of pairs follows later.
        """
        if isinstance(first, FeatureCounts):
            state, n_levels = self._check_counts(first, rng)
            pseudo_rows = PseudoRows(0.0, state.auxiliary["margins"])
            return replace(state, working=prepare_strips(first, n_levels, pseudo_rows))
        state, n_levels = self._check_counts(first.to_feature_counts(), rng)
        if len(n_levels) <= _MAX_SEARCHED_FEATURES:
            every = slice(0, first.n_features)
            cells = count_cells(first.table(0, every, every), n_levels, n_levels)
            parents, correlation = find_noisy_tree(cells, n_levels)
            own = {"cells": cells, "noisy_parents": parents, "noisy_correlation": correlation}
            state = replace(state, auxiliary={**state.auxiliary, **own})
        return self._begin_fit(state, find_edges(first, n_levels), len(n_levels))

    def count_columns(self, n_planes: int) -> Counts:
        """Return the number of planes of each feature, (n_features,)."""
        n_levels = self.structure.n_levels
        return np.ones(n_planes, np.int64) if n_levels is None else n_levels - 1

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether there are so many planes that strips are counted."""
        return self.is_wide

    def tabulate(
        self,
        params: HiddenTreeParams | None,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Arrays:
        """Count the pairs of a strip of features, and keep those that the tree may need.

        A warm start, whose `params` are known, has a tree and needs no pair.
        """
        if params is not None:
            return make_empty_strip(features, len(params.parents))
        return find_strip_edges(working, features, chunks)

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the tree, and draw the start; a warm start keeps its tree."""
        if state.params is not None:
            return replace(state, working={"held_out": np.array(0.0)})
        n_features = len(self.structure.features)
        return self._begin_fit(state, join_strips(results, n_features), n_features)

    def _check_counts(
        self, counts: FeatureCounts, rng: np.random.Generator
    ) -> tuple[FitState, Counts]:
        """Return the state before the tree is found, and the number of levels of each feature."""
        level_rows = count_rows_by_level(counts, self.structure.features)
        self._check_number_of_states(counts.weight)
        auxiliary = {
            "weight": np.array(counts.weight),
            "n_present": count_present_levels(level_rows),
            "margins": compute_margins(level_rows),
            "seed": rng.integers(2**63, size=1),
            "is_complete": np.array(counts.is_complete),
        }
        warnings = warn_about_levels(level_rows, self.structure.features)
        n_levels = np.array([len(rows) for rows in level_rows])
        return FitState(None, auxiliary=auxiliary, warnings=warnings), n_levels

    def _begin_fit(self, state: FitState, edges: FeaturePairs, n_features: int) -> FitState:
        """Draw the start on the tree with these edges."""
        parents = move_root_to_center(orient_tree(edges.left, edges.right, n_features))
        correlation = get_parent_correlation(edges, parents)
        auxiliary = {**state.auxiliary, "parents": parents, "correlation": correlation}
        state = replace(state, auxiliary=auxiliary)
        if (n_states := self.n_states) is not None:
            return self._begin_stage(state, n_states, 0.0)
        return self._begin_stage(state, 1, HELD_OUT_SHARE)

    def _check_number_of_states(self, weight: float) -> None:
        """Refuse data with too few rows."""
        if self.n_states is None and weight < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"The dataset has only {weight:.0f} rows; choosing {{states}} needs at least "
                f"{_MIN_ROWS_TO_CHOOSE}. Set {{states}} to a number.",
                parameter="states",
            )
        if self.n_states is not None and self.n_states > weight:
            name, per_state = self._find_states_setting()
            raise FitError(
                f"{{{name}}} is {per_state * self.n_states}, but the dataset has only "
                f"{weight:.0f} rows. Choose at most {per_state * int(weight)}.",
                parameter=name,
            )

    def _begin_stage(self, state: FitState, n_states: int, held_out: float) -> FitState:
        """Begin with this number of states, from several starts if another tree may be better."""
        working, n_starts = {"held_out": np.array(held_out)}, self._count_starts(state, n_states)
        first = replace(state, working=working, diagnostics={})
        starts = tuple(
            self._begin_short_run(
                first, self._draw_start(state.auxiliary, n_states, k), n_searches=0
            )
            for k in range(n_starts)
        )
        return replace(
            first,
            params=self._draw_start(state.auxiliary, n_states, 0),
            starts=() if n_starts == 1 else starts,
        )

    def _count_starts(self, state: FitState, n_states: int) -> int:
        """Return the number of short runs that search for a tree; 1 if there is no search."""
        size = n_states * len(state.auxiliary["parents"])
        if self.trees > 1 or n_states == 1 or "cells" not in state.auxiliary or size > _MAX_SIZE:
            return 1
        return self.starts

    def _begin_short_run(
        self, state: FitState, params: HiddenTreeParams, n_searches: int
    ) -> FitState:
        """Begin a short run on a sample of the rows, after so many searches for a tree."""
        sample = min(1.0, SAMPLE_ROWS / max(float(state.auxiliary["weight"]), 1.0))
        return replace(
            state,
            params=params,
            working={**state.working, "sample": np.array(sample)},
            auxiliary={**state.auxiliary, "n_searches": np.array(n_searches)},
            diagnostics={},
            starts=(),
        )

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Search for better trees from the best runs; continue with the best of the last ones."""
        (runs,) = ranked.values()
        n_searches = int(runs[0].auxiliary["n_searches"]) + 1
        if n_searches > _SEARCHES:
            return self._begin_long_run(runs[0], float(runs[0].working["held_out"]))
        n_starts = self._count_starts(runs[0], runs[0].params.n_states)
        n_kept = -(-n_starts // _STARTS_PER_KEPT)
        starts = [self._begin_short_run(run, run.params, n_searches) for run in runs[:n_kept]]
        for k in range(n_starts):
            run = runs[k % n_kept]
            starts.append(self._begin_short_run(run, self._find_tree(run, k), n_searches))
        return replace(starts[0], starts=tuple(starts))

    def _begin_long_run(self, state: FitState, held_out: float) -> FitState:
        """Begin a run that continues until it has converged."""
        auxiliary = {n: a for n, a in state.auxiliary.items() if n != "n_searches"}
        working = {"held_out": np.array(held_out)}
        return replace(state, working=working, auxiliary=auxiliary, starts=())

    def _find_tree(self, run: FitState, start: int) -> HiddenTreeParams:
        """Return the start on another tree, given a run with its own tree."""
        params: HiddenTreeParams = run.params
        auxiliary = run.auxiliary
        seed, n_searches = int(auxiliary["seed"][0]), int(auxiliary["n_searches"])
        pairs = params.compute_state_pairs()
        parents, transitions = find_state_tree(
            pairs,
            params.emissions[0],
            auxiliary["cells"],
            params.levels_per_feature,
            # All powers of the share of rows that observe a pair are equal if it is 1.
            start * N_SHARE_POWERS if auxiliary["is_complete"] else start,
            np.random.default_rng([seed, params.n_states, n_searches, start]),
        )
        root = int(np.flatnonzero(parents == ROOT)[0])
        return replace(
            params,
            weights=pairs[root, root].diagonal().copy(),
            parents=parents,
            transitions=transitions[None],
        )

    def _draw_start(self, auxiliary: Arrays, n_states: int, start: int) -> HiddenTreeParams:
        """Let most variables have the state of their parent, and draw what states mean."""
        kind = "noisy_" if start % 2 else ""  # the tree of the features, or that behind them
        parents, correlation = auxiliary[f"{kind}parents"], auxiliary[f"{kind}correlation"]
        n_levels = self.structure.n_levels
        sizes = np.full(len(parents), 2) if n_levels is None else n_levels
        margins = np.split(auxiliary["margins"], np.cumsum(sizes)[:-1])
        transitions = np.stack([make_transitions(parents, n_states)] * self.trees)
        seed = int(auxiliary["seed"][0])
        draws = range(start * self.trees, (start + 1) * self.trees)
        rngs = (np.random.default_rng([seed, n_states, draw]) for draw in draws)
        emissions = [draw_emissions(margins, parents, correlation, n_states, rng) for rng in rngs]
        n_components = self.trees * n_states
        weights = np.full(n_components, 1 / n_components)
        return HiddenTreeParams(
            weights, parents, transitions, np.stack(emissions), auxiliary["margins"], n_levels
        )

    def warm_start(self, state: FitState, params: HiddenTreeParams) -> FitState:
        """Start from an earlier fit and its tree, with the margins of the rows here."""
        if (params.n_trees, params.n_states) != (self.trees, self.n_states or params.n_states):
            raise FitError(
                f"{{warm_start}} continues a fit with {{states={params.n_states}}} and "
                f"{{trees={params.n_trees}}}. Use these, or leave out {{warm_start}}.",
                parameter="warm_start",
            )
        params = replace(params, margins=state.auxiliary["margins"])
        started = replace(self._begin_long_run(state, 0.0), params=params)
        return replace(started, working=state.working) if self.is_wide else started

    def summarize(
        self, params: HiddenTreeParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        run, block = partial(_run_e_step, params), take_sample(working, block, rng)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def objective(self, params: HiddenTreeParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        n_states = params.n_states
        log_prior = np.log(params.root_weights).sum() / n_states
        below = params.parents != ROOT
        log_prior += np.log(params.transitions[:, below]).sum() / n_states
        margins = params.place_margins()[:, None]
        log_prior += scipy.special.xlogy(margins, params.emissions).sum()
        log_prior *= self.smoothing / params.n_trees
        return float((statistics.objective + log_prior) / statistics.weight)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        params, values, s = state.params, statistics.values, self.smoothing
        roots = _normalize(values["roots"] + s / params.n_states) / params.n_trees
        transitions = _normalize(values["edges"] + s / params.n_states)
        transitions[:, params.parents == ROOT] = 0.0
        emissions = _normalize(values["levels"] + s * params.place_margins()[:, None])
        params = replace(
            params, weights=roots.ravel(), transitions=transitions, emissions=emissions
        )
        return replace(state, params=params)

    def pack_params(self, params: HiddenTreeParams) -> Array:
        """Return the logarithms of all tables."""
        parts = params.root_weights, *_list_free_entries(params)
        return np.concatenate([np.log(part).ravel() for part in parts])

    def unpack_params(
        self, params: HiddenTreeParams, packed: Array, weight: float
    ) -> HiddenTreeParams:
        """Return the tables, with entries no smaller than an M-step can make them."""
        smallest = self.smoothing * min(1 / params.n_states, float(params.margins.min()))
        least = np.log(smallest / (weight + self.smoothing))
        n_trees, n_states, below = params.n_trees, params.n_states, params.parents != ROOT
        n_above = params.weights.size, _list_free_entries(params)[0].size
        parts = np.split(np.exp(np.clip(packed, least, 0.0)), np.cumsum(n_above))
        roots = _normalize(parts[0].reshape(n_trees, n_states)) / n_trees
        transitions, emissions = (np.zeros_like(a) for a in (params.transitions, params.emissions))
        transitions[:, below] = _normalize(parts[1].reshape(n_trees, -1, n_states, n_states))
        emissions.transpose(1, 3, 0, 2)[_find_levels(params)] = parts[2].reshape(
            -1, n_trees, n_states
        )
        return replace(
            params,
            weights=roots.ravel(),
            transitions=transitions,
            emissions=_normalize(emissions),
        )

    def mean_log_likelihood(self, params: Any, statistics: Sums) -> float:
        """Return the log-likelihood per row, or its bound, nats."""
        return float(statistics.objective / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop on the change of the objective."""
        max_iter = self.max_iter
        if "n_searches" in state.auxiliary:
            max_iter = min(max_iter, _SHORT_PASSES)
        return ObjectiveCriterion(max_iter, self.tol, float(state.auxiliary.get("weight", 1)))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Double the states while held-out rows gain, then continue with all rows."""
        if state.working["held_out"] == 0:
            return None
        auxiliary, is_best = record_held_out_score(state.params, state.auxiliary, statistics)
        state, n_doubled = replace(state, auxiliary=auxiliary), 2 * state.params.n_states
        if is_best and n_doubled <= MAX_STATES:
            return self._begin_stage(state, n_doubled, HELD_OUT_SHARE)
        best = get_best_params(self.params, auxiliary)
        return replace(self._begin_long_run(state, 0.0), params=best)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add diagnostics."""
        diagnostics = {
            "n_components": len(state.params.weights),
            "states": state.params.n_states,
            "rows_without_values": int(statistics.values["empty_rows"]),
            "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
        }
        return replace(state, diagnostics=diagnostics)

    def count_free_parameters(self, state: FitState) -> int:
        """Count the parameters that the tables of all trees determine.

        What lies below a feature depends on its parent only by P(levels below | parent's state), so
        it has at most as many parameters as this table (N. L. Zhang, T. Kocka, "Effective
        dimensions of hierarchical latent class models", JAIR 21, 2004). With more states than
        levels, fewer may be determined.
        """
        params: HiddenTreeParams = state.params
        parents = move_root_to_center(params.parents)
        n_states, sizes = params.n_states, state.auxiliary["n_present"].tolist()
        cells = [1.0] * len(sizes)  # of the levels of a feature and of all below it
        own = [0] * len(sizes)
        for i in order_from_root(parents)[::-1].tolist():
            cells[i] *= sizes[i]
            own[i] += n_states * (sizes[i] - 1)
            parent = parents[i]
            if parent == ROOT:
                n_determined = min(own[i] + n_states - 1, cells[i] - 1)
                continue
            table = n_states * (cells[i] - 1)
            own[parent] += int(min(own[i] + n_states * (n_states - 1), table))
            cells[parent] *= cells[i]
        return params.n_trees * int(n_determined)

    def transform(
        self, params: HiddenTreeParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(tree, state of its root | x) as `mean`, (n_samples, n_components)."""
        return {"mean": self.compute_posterior(params, block)[0]}

    def compute_posterior(
        self, params: HiddenTreeParams, block: BinaryBlock
    ) -> tuple[Array, Array]:
        """Return P(component | x), (n_samples, n_components), and log P(x), (n_samples,)."""
        nats, posteriors = compute_posteriors(params, read_levels(params, block))
        shares = scipy.special.softmax(nats, axis=0)[:, :, None] * posteriors
        mean = scipy.special.logsumexp(nats, axis=0) - np.log(params.n_trees)
        return np.ascontiguousarray(np.concatenate([*shares], axis=1)), mean

    def log_likelihood(
        self, params: HiddenTreeParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        nats, _ = compute_posteriors(params, read_levels(params, block))
        mean = scipy.special.logsumexp(nats, axis=0) - np.log(params.n_trees)
        return LogLikelihood(mean, np.zeros_like(mean))

    def impute(self, params: HiddenTreeParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(plane = 1 | all other values of the row), (n_samples, n_planes)."""
        levels, sizes = read_levels(params, block), params.levels_per_feature
        nats, _ = compute_posteriors(params, levels)
        shares = scipy.special.softmax(nats, axis=0)
        firsts = np.cumsum([0, *sizes])
        found = np.zeros((block.n_samples, int(firsts[-1])))
        for tree, own in zip(list_trees(params), shares, strict=True):
            add_conditionals(levels, own, tree, firsts, found)
        planes = np.empty((len(found), int((sizes - 1).sum())))
        place = 0
        for first, last in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
            reached = found[:, first:last][:, ::-1].cumsum(axis=1)[:, ::-1]
            total = reached[:, :1]
            if not (total > 0).all():
                raise FitError(_IMPOSSIBLE)
            planes[:, place : place + last - first - 1] = reached[:, 1:] / total
            place += last - first - 1
        return planes

    def sample(
        self,
        params: HiddenTreeParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_planes), feature by feature from the root."""
        components = rng.choice(len(params.weights), n_samples, p=params.weights)
        trees, roots = np.divmod(components, params.n_states)
        uniform = rng.random((2, len(params.parents), n_samples))
        states = np.empty((len(params.parents), n_samples), np.int64)
        levels = np.empty((n_samples, len(params.parents)), np.uint8)
        for i in params.order.tolist():
            parent = params.parents[i]
            states[i] = roots
            if parent != ROOT:
                steps = np.cumsum(params.transitions[:, i], axis=2)
                states[i] = _draw(steps[trees, states[parent]], uniform[0, i])
            steps = np.cumsum(params.emissions[:, i, :, : params.levels_per_feature[i]], axis=2)
            levels[:, i] = _draw(steps[trees, states[i]], uniform[1, i])
        return split_into_planes(levels, params.levels_per_feature - 1)

    def reconstruct(
        self,
        params: HiddenTreeParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k P(plane = 1 | k) clipped to 0 and 1, (n_samples, n_planes)."""
        given = np.tile(np.eye(params.n_states), (params.n_trees, 1, 1))
        levels = params.compute_state_margins(given) @ params.emissions
        by_component = np.concatenate([*levels.swapaxes(1, 2)])
        planes = convert_to_planes(by_component, params.levels_per_feature)
        probabilities: Array = np.clip(codes @ planes, 0.0, 1.0)
        return probabilities

    def get_trees(self, params: HiddenTreeParams) -> list[FeatureTree]:
        """Return the tree of the features, with the dependence along each edge."""
        margins = params.compute_state_margins(params.root_weights[:, None])[:, :, 0]
        below = np.flatnonzero(params.parents != ROOT)
        above = params.parents[below]
        states = margins[:, above, :, None] * params.transitions[:, below]
        emissions = params.emissions
        joint = (emissions[:, above].swapaxes(2, 3) @ states @ emissions[:, below]).mean(axis=0)
        strengths = np.full((2, len(params.parents)), np.nan)
        strengths[0, below] = compute_table_information(joint)
        strengths[1, below] = compute_table_correlation(joint)
        return [FeatureTree(1.0, params.parents, *strengths)]


def read_levels(params: HiddenTreeParams, block: BinaryBlock) -> Levels:
    """Return the levels of a block, (n_features, n_samples); one more than all if missing."""
    levels, mask = unpack_levels(block, params.levels_per_feature - 1)
    if mask is not None:
        levels = np.where(mask != 0, levels, np.uint8(params.emissions.shape[3]))
    return np.ascontiguousarray(levels.T)


def list_trees(params: HiddenTreeParams) -> list[StateTree]:
    """Return the trees as kernels take them: with missing values as one more level."""
    pad = ((0, 0), (0, 0), (0, 0), (0, 1))
    emissions = np.pad(params.emissions, pad, constant_values=1.0)
    order, roots = params.order, np.ascontiguousarray(params.root_weights)
    return [
        StateTree(params.parents, order, *tables)
        for tables in zip(roots, params.transitions, emissions, strict=True)
    ]


def compute_posteriors(params: HiddenTreeParams, levels: Levels) -> tuple[Array, Array]:
    """Return log P of each row, nats, and the posterior of the root's state, under each tree.

    The shapes are (n_trees, n_samples) and (n_trees, n_samples, n_states).

    Raises
    ------
    FitError
        If a row is impossible, which no fit gives.
    """
    n_samples = levels.shape[1]
    nats = np.empty((params.n_trees, n_samples))
    posteriors = np.empty((params.n_trees, n_samples, params.n_states))
    for tree, *own in zip(list_trees(params), nats, posteriors, strict=True):
        fill_root_posteriors(levels, tree, *own)
    if not np.isfinite(nats).all():
        raise FitError(_IMPOSSIBLE)
    return nats, posteriors


def _find_levels(params: HiddenTreeParams) -> NDArray[np.bool_]:
    """Return which levels features have, (n_features, most levels)."""
    steps = np.arange(params.emissions.shape[3])
    has_level: NDArray[np.bool_] = steps < params.levels_per_feature[:, None]
    return has_level


def _list_free_entries(params: HiddenTreeParams) -> tuple[Array, Array]:
    """Return the entries of transitions and of emissions that are not 0 by definition."""
    below = params.parents != ROOT
    by_level = params.emissions.transpose(1, 3, 0, 2)
    return params.transitions[:, below], by_level[_find_levels(params)]


def _normalize(counts: Array) -> Array:
    """Return shares along the last axis."""
    shares: Array = counts / counts.sum(axis=-1, keepdims=True)
    return shares


def _draw(steps: Array, uniform: Array) -> NDArray[np.intp]:
    """Draw from distributions given their cumulative sums, (n_samples, n_values)."""
    drawn: NDArray[np.intp] = (uniform[:, None] > steps[:, :-1]).sum(axis=1)
    return drawn


def _run_e_step(params: HiddenTreeParams, block: BinaryBlock) -> Sums:
    trees = list_trees(params)
    nats = np.empty((params.n_trees, block.n_samples))
    roots = np.zeros((params.n_trees, params.n_states))
    edges, level_counts = (np.zeros_like(part) for part in (params.transitions, params.emissions))
    first = 0
    for part in iter_word_ranges(block, _BATCH_WORDS):
        levels, last = read_levels(params, part), first + part.n_samples
        weights = np.ones(part.n_samples) if part.row_weights is None else part.row_weights
        sums = (nats[:, first:last], roots, edges, level_counts)
        for tree, *own in zip(trees, *sums, strict=True):
            add_expected_counts(levels, weights, tree, *own)
        first = last
    total = nats.sum() if block.row_weights is None else (nats @ block.row_weights).sum()
    values = {
        "roots": roots,
        "edges": edges * params.transitions,
        "levels": level_counts,
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums.from_block(block, float(total) / params.n_trees, values)
