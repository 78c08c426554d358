"""Tree of latent-trait models, each of which describes a share of the rows in a plane of its own.

The top model has two traits for all rows. Its rows are split softly among children, each of them a
model of two traits, and so on (C. M. Bishop, M. E. Tipping, "A hierarchical latent variable model
for data visualization", IEEE Transactions on Pattern Analysis and Machine Intelligence 20, 1998;
for binary features, M. E. Tipping, NIPS 1998, section 6). Row n belongs to child c of node p with
the responsibility

    R_nc = R_np π_c P(t_n | c) / Σ_c' π_c' P(t_n | c'),   R_n = 1 at the top,

with c' the children of p, and P(t_n | c) = ∫ N(x; 0, I) Π_i P(t_ni | x, c) dx, where
P(t_i = 1 | x, c) = σ(w_ci·x + b_ci). The leaves are a mixture of latent-trait models: the weight of
a leaf is the product of the π from the top to it.

Fit level by level, from the top. A level maximizes Σ_n Σ_p R_np log Σ_c π_c P(t_n | c), and the
levels above it stay. Children start as the plane of their parent around points on a circle, at
several angles; the children of each node continue from the best of its starts. A pass of EM
integrates each row over each plane, on a lattice or nodes centred at its posterior, takes a step of
Newton for each item with the responsibilities as weights of rows, and absorbs mean and covariance
of x in the items (parameter expansion). Slopes and offsets have normal priors of precision λ, the
setting `prior_precision`, because a feature is often constant among the rows of a child.

=======  ==============  ==========================================
symbol   field           shape
=======  ==============  ==========================================
w        weights         (n_features, 2), of the top model
b        offsets         (n_features,)
p        node_parents    (n_nodes,), 0 is the top, 1 the first node
π        node_shares     (n_nodes,)
w_c      node_weights    (n_nodes, n_features, 2)
b_c      node_offsets    (n_nodes, n_features)
=======  ==============  ==========================================

Cost per block: for each node, n_samples (n_features + points near a row) if no value is missing,
else n_samples n_features times 25 points. Passes: tens per level.
Not identifiable: rotations of each plane, which are turned to principal axes, and the order of
children, which are sorted by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ObjectiveCriterion
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.latent_trait.checks import find_constant_items
from pipeline.models.latent_trait.params import MAX_PARAMETER
from pipeline.models.latent_trait.starts import (
    convert_to_slopes,
    find_start_loadings,
    stretch_offsets,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.models.vocabulary import ITEM_RESPONSE, Vocabulary
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.lattice_nodes import estimate_lattice_e_step, lattice_e_step
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.newton_step import unpack_triangles
from pipeline.numerics.logistic.parameter_expansion import estimate_trait_gaussian
from pipeline.numerics.spectra.rotations import principal_axes
from pipeline.params import NumberRange, array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.pair_moments import PairMoments, estimate_memory_of_moments
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_TRAITS, _STRETCH = 2, 1.3  # of the distances of quadrature nodes
_STARTS, _SHORT_TOL = 3, 1e-3  # angles at which children start
_RADIUS = 1.0  # of the circle where children start, in standard deviations of the parent's plane
_MAX_STEP = 1.0  # of a weight or offset in a pass
_NEGLIGIBLE = 1e-9  # responsibilities that add nothing to sums
_LEAST_SHARE = 1e-12  # of a child without rows


@dataclass(frozen=True)
class TraitTreeParams:
    """Parameters; the module's table gives shapes and meanings."""

    weights: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    node_parents: Indices = array_field("node", allowed=NumberRange(minimum=0))
    node_shares: Array = array_field("node", allowed=NumberRange(above=0, maximum=1))
    node_weights: Array = array_field("node", "feature", "component")
    node_offsets: Array = array_field("node", "feature")

    @cached_property
    def parents(self) -> Indices:
        """Number of the parent of each node, (1 + n_nodes,), -1 of the top."""
        return np.concatenate([[-1], self.node_parents]).astype(np.int64)

    @cached_property
    def shares(self) -> Array:
        """Share of each node in the rows of its parent, (1 + n_nodes,)."""
        return np.concatenate([[1.0], self.node_shares])

    @cached_property
    def forms(self) -> Array:
        """Weights and offsets of all nodes side by side, (1 + n_nodes, n_features, 3)."""
        top = np.column_stack([self.weights, self.offsets])[None]
        return np.concatenate([top, np.dstack([self.node_weights, self.node_offsets])])

    @property
    def last_level(self) -> slice:
        """The nodes of the last level."""
        return slice(int(self.parents.max()) + 1, len(self.parents))

    def with_last_level(self, shares: Array, forms: Array) -> TraitTreeParams:
        """Return the parameters with other shares and forms of the last level."""
        first = self.last_level.start
        if not first:
            return replace(self, weights=forms[0, :, :-1], offsets=forms[0, :, -1])
        return replace(
            self,
            node_shares=np.concatenate([self.node_shares[: first - 1], shares]),
            node_weights=np.concatenate([self.node_weights[: first - 1], forms[..., :-1]]),
            node_offsets=np.concatenate([self.node_offsets[: first - 1], forms[..., -1]]),
        )

    def split(self, n_children: int, angle: float) -> TraitTreeParams:
        """Return a tree in which each node of the last level has children around its centre."""
        last = self.last_level
        angles = angle + 2 * np.pi * np.arange(n_children) / n_children
        centres = _RADIUS * np.column_stack([np.cos(angles), np.sin(angles)])
        forms = np.repeat(self.forms[last], n_children, axis=0)
        moved = np.tile(centres, (len(self.forms[last]), 1))
        offsets = forms[..., -1] + np.einsum("nik,nk->ni", forms[..., :-1], moved)
        # Along each axis, points on the circle have half of the variance 1 of the traits.
        weights = np.sqrt(1 - _RADIUS**2 / 2) * forms[..., :-1]
        parents = np.repeat(np.arange(last.start, last.stop), n_children)
        return replace(
            self,
            node_parents=np.concatenate([self.node_parents, parents]),
            node_shares=np.concatenate([self.node_shares, np.full(len(moved), 1 / n_children)]),
            node_weights=np.concatenate([self.node_weights, weights]),
            node_offsets=np.concatenate([self.node_offsets, offsets]),
        )

    def list_names(self) -> list[str]:
        """Return the names of the nodes below the top: `1`, …, `1.1` is the first child of `1`."""
        names: list[str] = []
        for node, parent in enumerate(self.node_parents.tolist()):
            place = int((self.node_parents[:node] == parent).sum()) + 1
            names.append(f"{names[parent - 1]}.{place}" if parent else f"{place}")
        return names


class TreePosterior(NamedTuple):
    """What a tree says about rows.

    Attributes
    ----------
    responsibilities
        R of all nodes, (n_samples, 1 + n_nodes), 1 of the top.
    split_nats
        R_np log Σ_c π_c P(t_n | c) of each parent p of the last level, (n_samples, n_parents).
    nats
        Log-likelihood of the mixture of all leaves, (n_samples,).
    """

    responsibilities: Array
    split_nats: Array
    nats: Array


def split_rows(params: TraitTreeParams, nats: Array) -> TreePosterior:
    """Split rows among all nodes, given log P(t_n | c), (n_samples, 1 + n_nodes)."""
    parents, last = params.parents, params.last_level
    responsibilities, log_paths = np.ones_like(nats), np.log(params.shares)
    split_nats = [nats[:, 0]] if last.start == 0 else []
    for parent in range(last.start):
        children = np.flatnonzero(parents == parent)
        joint = nats[:, children] + np.log(params.shares[children])
        total = logsumexp(joint, axis=1, keepdims=True)
        own = responsibilities[:, [parent]]
        responsibilities[:, children] = own * np.exp(joint - total)
        log_paths[children] += log_paths[parent]
        if children[0] >= last.start:
            split_nats.append(own[:, 0] * total[:, 0])
    mixture = logsumexp(nats[:, last] + log_paths[last], axis=1)
    return TreePosterior(responsibilities, np.column_stack(split_nats), mixture)


@dataclass(frozen=True)
class TraitTree(Model):
    """Hyperparameters of the latent-trait model with `tree`.

    Attributes
    ----------
    n_components
        Number of traits of each node, 2.
    tree
        Number of children of each node, level by level: with `3,2`, the top has three children, and
        each of them two.
    prior_precision
        Precision of the normal priors of slopes and offsets.
    constant_features
        `refuse` features with the same answer in all rows, or `keep` them with weights of 0.
    acceleration
        `squarem` or `none`.
    max_iter
        Maximum number of passes, for each level and start.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats.
    """

    name: ClassVar[str] = "latent-trait"
    support: ClassVar[Support] = Support(("binary",), ("frequency", "sampling"))
    vocabulary: ClassVar[Vocabulary] = ITEM_RESPONSE
    indeterminacy: ClassVar[str] = (
        "the signs and axes of traits, and the order of children, sorted by size"
    )
    unlinked_effect: ClassVar[str] = (
        "traits may have opposite signs and other scales in each part, and scores of different "
        "parts cannot be compared"
    )
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[TraitTreeParams]] = TraitTreeParams
    first_statistics: ClassVar[type[PairMoments]] = PairMoments
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "responsibility": ("node",),
        "position": ("node", "component"),
    }
    signed_arrays: ClassVar[tuple[str, ...]] = ("weights",)
    n_components: int | None = _TRAITS
    tree: tuple[int, ...] = setting((2,), minimum=2)
    prior_precision: float = setting(0.1, above=0)
    constant_features: Literal["refuse", "keep"] = "refuse"
    acceleration: Literal["squarem", "none"] = "squarem"
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-4, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_components != _TRAITS:
            raise FitError(
                "Each node of {tree} has two traits. Set {components=2}, or leave it out.",
                parameter="components",
            )

    @property
    def title(self) -> str:
        """What messages call the model."""
        return "latent-trait with {tree}"

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(np.prod(self.tree))

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sums of all tasks, and of pair counts."""
        sums = 8 * 12 * n_features * self.n_leaves * (n_threads + 2)
        return sums + n_threads * estimate_memory_of_moments(n_features, 1)

    def estimate_work(
        self, params: TraitTreeParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of all integrals of a row, and the size of the sums."""
        n_nodes, n_last = len(params.parents), len(params.forms[params.last_level])
        own = *_split_forms(params.forms[0]), bool(working["is_complete"]), n_rows, 5
        by_row = (n_nodes + 2) * estimate_lattice_e_step(*own)
        return WorkEstimate(by_row, 72 * n_features * n_last)

    def initialize(self, first: PairMoments, rng: np.random.Generator) -> FitState:
        """Check the data, and start the top model from the counts of pairs."""
        counts = first.counts
        observed, ones = counts.observed.sum(axis=0), counts.ones.sum(axis=0)
        n_features = len(observed)
        if n_features <= _TRAITS:
            raise FitError(f"{{tree}} needs at least 3 features, but the dataset has {n_features}.")
        if counts.weight < self.n_leaves:
            raise FitError(
                f"The tree has {self.n_leaves} leaves, but the dataset has only "
                f"{counts.weight:.0f} rows. Choose fewer children.",
                parameter="tree",
            )
        constant, warnings = find_constant_items(counts, self.constant_features)
        auxiliary = {"weight": np.array(counts.weight), "constant": constant}
        loads = np.ones((n_features, _TRAITS), np.bool_)
        working = {"is_complete": np.array(counts.is_complete)}
        states = []
        for loadings in find_start_loadings(first, np.ones(n_features, np.int64), loads, rng):
            weights = convert_to_slopes(loadings)
            weights[constant] = 0.0
            offsets = logit((ones + 0.5) / (observed + 1.0)) * stretch_offsets(weights)
            none = np.zeros(0, np.int64), np.zeros(0), np.zeros((0, *weights.shape))
            params = TraitTreeParams(weights, offsets, *none, np.zeros((0, n_features)))
            states.append(FitState(params, working, auxiliary=auxiliary, warnings=tuple(warnings)))
        return _begin_starts(states)

    def summarize(
        self, params: TraitTreeParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: integrate rows over all nodes, and sum those of each node of the last level."""
        X, observed, forms = block.unpack_values(), block.unpack_mask(), params.forms
        weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
        last, sums = range(*params.last_level.indices(len(forms))), []
        nats = np.zeros((block.n_samples, len(forms)))
        unsummed = np.zeros(block.n_samples)  # only their log-likelihoods are needed
        for node in range(min(last[0], 1), len(forms)):
            own = X, observed, *_split_forms(forms[node]), unsummed
            found = lattice_e_step(*own, stretch=_STRETCH)
            nats[:, node] = found.row_log_likelihoods
        split = split_rows(params, nats)
        for node in last:
            own_weights = weights * split.responsibilities[:, node]
            rows = np.flatnonzero(own_weights > _NEGLIGIBLE)
            mask = None if observed is None else observed[rows]
            own = X[rows], mask, *_split_forms(forms[node]), own_weights[rows]
            sums.append(lattice_e_step(*own, stretch=_STRETCH))
        values = {
            "gradient": np.stack([own.gradient for own in sums]),
            "curvature": np.stack([own.curvature for own in sums]),
            "moments": np.stack([own.moments for own in sums]),
            "split_nats": weights @ split.split_nats,
            "nats": np.array(weights @ split.nats),
            "empty_rows": np.array(block.count_unobserved_rows()),
        }
        return Sums.from_block(block, float(values["split_nats"].sum()), values)

    def _compute_split_objectives(self, params: TraitTreeParams, sums: Arrays) -> Array:
        """Return the objective of the children of each parent, nats, (n_parents,)."""
        squares = (params.forms[params.last_level] ** 2).sum(axis=(1, 2))
        by_parent = squares.reshape(len(sums["split_nats"]), -1).sum(axis=1)
        return np.asarray(sums["split_nats"] - 0.5 * self.prior_precision * by_parent)

    def objective(self, params: TraitTreeParams, statistics: Sums) -> float:
        """Return the objective of the last level, with the log prior, per row, nats."""
        return float(
            self._compute_split_objectives(params, statistics.values).sum() / statistics.weight
        )

    def mean_log_likelihood(self, params: TraitTreeParams, statistics: Sums) -> float:
        """Return the log-likelihood of the mixture of leaves per row, nats."""
        return float(statistics.values["nats"] / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ObjectiveCriterion:
        """Stop on the change of the objective, sooner while starts are compared."""
        tol = max(self.tol, _SHORT_TOL if "is_short" in state.auxiliary else 0.0)
        return ObjectiveCriterion(self.max_iter, tol, float(state.auxiliary["weight"]))

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Take a step for the items of each node of the last level, and set its share of rows."""
        params, sums, precision = state.params, statistics.values, self.prior_precision
        old = params.forms[params.last_level]
        size = old.shape[-1]
        triangles = sums["curvature"].reshape(-1, sums["curvature"].shape[-1])
        curvature = unpack_triangles(triangles, size) + precision * np.eye(size)
        gradient = (sums["gradient"] - precision * old).reshape(-1, size, 1)
        step = np.linalg.solve(curvature, gradient).reshape(old.shape)
        step[:, state.auxiliary["constant"], :-1] = 0.0
        longest = np.abs(step).max(axis=-1, keepdims=True)
        forms = old + step * np.minimum(1.0, _MAX_STEP / np.maximum(longest, _MAX_STEP))
        forms = np.stack(
            [_expand(*own, precision) for own in zip(forms, sums["moments"], strict=True)]
        )
        mass = sums["moments"][:, -1, -1].reshape(len(sums["split_nats"]), -1)
        shares = mass / np.maximum(mass.sum(axis=1, keepdims=True), _LEAST_SHARE) + _LEAST_SHARE
        shares = (shares / shares.sum(axis=1, keepdims=True)).ravel()
        kept = {"split_objectives": self._compute_split_objectives(params, sums)}
        return replace(
            state,
            params=params.with_last_level(shares, forms),
            auxiliary={**state.auxiliary, **kept, "mass": mass.ravel()},
        )

    def pack_params(self, params: TraitTreeParams) -> Array:
        """Return forms and logarithms of shares of the last level, (n_last, 3 n_features + 1)."""
        last = params.last_level
        forms = params.forms[last].reshape(last.stop - last.start, -1)
        return np.column_stack([forms, np.log(params.shares[last])])

    def unpack_params(
        self, params: TraitTreeParams, packed: Array, weight: float
    ) -> TraitTreeParams:
        """Return parameters with these forms and shares."""
        last = params.last_level
        shares = np.exp(np.clip(packed[:, -1], np.log(_LEAST_SHARE), 0.0))
        shares /= np.bincount(params.parents[last] + 1, shares)[params.parents[last] + 1]
        forms = np.clip(packed[:, :-1], -MAX_PARAMETER, MAX_PARAMETER)
        return params.with_last_level(shares, forms.reshape(params.forms[last].shape))

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Continue with the best start of the children of each node, which share no parameter."""
        (starts,) = ranked.values()
        best = np.argmax([own.auxiliary["split_objectives"] for own in starts], axis=0)
        params, parents = starts[0].params, np.arange(len(best))
        last = params.last_level

        def choose(parts: Sequence[Array]) -> Array:
            """Return the part of each parent in the arrays of its best start."""
            by_parent = np.stack([own.reshape(len(best), -1, *own.shape[1:]) for own in parts])
            return np.asarray(by_parent[best, parents].reshape(parts[0].shape))

        params = params.with_last_level(
            choose([own.params.shares[last] for own in starts]),
            choose([own.params.forms[last] for own in starts]),
        )
        auxiliary = {name: own for name, own in starts[0].auxiliary.items() if name != "is_short"}
        # That one start reached the best says nothing: each parent has chosen among all.
        state = replace(starts[0], params=params, auxiliary=auxiliary)
        return replace(state, starts=(), diagnostics={})

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Split the nodes of a level when its fit has ended."""
        state = self._end_level(state, statistics)
        level = len(state.auxiliary["level_nats"]) - 1
        if level == len(self.tree):
            return None
        n = self.tree[level]
        angles = 2 * np.pi * np.arange(_STARTS) / (n * _STARTS)
        return _begin_starts(
            [replace(state, params=state.params.split(n, own)) for own in angles.tolist()]
        )

    def _end_level(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the children of each node by size, turn their planes, and keep the likelihood."""
        params, auxiliary = state.params, dict(state.auxiliary)
        last = params.last_level
        order = np.lexsort([-params.shares[last], params.parents[last]])
        forms = params.forms[last][order]
        forms[..., :-1] = np.stack([principal_axes(own) for own in forms[..., :-1]])
        nats = self.mean_log_likelihood(params, statistics)
        auxiliary["level_nats"] = np.append(auxiliary.get("level_nats", ()), nats)
        mass = auxiliary["mass"][order]
        if last.start:
            mass = np.concatenate([auxiliary["masses"], mass])
        auxiliary["masses"] = mass
        params = params.with_last_level(params.shares[last][order], forms)
        return replace(state, params=params, auxiliary=auxiliary)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the leaves; add diagnostics, and a warning about nodes that hardly any row has."""
        state = self._end_level(state, statistics)
        params, masses = state.params, state.auxiliary["masses"][1:]
        names = params.list_names()
        diagnostics = {
            "n_components": _TRAITS,
            "leaves": self.n_leaves,
            "top_log_likelihood": float(state.auxiliary["level_nats"][0]),
            "leaf_log_likelihood": float(state.auxiliary["level_nats"][-1]),
            "node_names": names,
            "node_rows": masses.tolist(),
            "rows_without_values": int(statistics.values["empty_rows"]),
        }
        state = replace(state, diagnostics=diagnostics)
        if (masses >= 1).all():
            return state
        empty = ", ".join(name for name, mass in zip(names, masses, strict=True) if mass < 1)
        text = (
            f"nodes of the tree with less than one row: {empty}; choose fewer children in {{tree}}"
        )
        return state.with_warnings([FitWarning(text, parameter="tree")])

    def transform(
        self, params: TraitTreeParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: return `mean`, the positions in the top plane, and those below.

        `responsibility` are those of all nodes below the top, (n_samples, n_nodes), and `position`
        the position in each, (n_samples, n_nodes, 2).
        """
        found, positions, _ = self._integrate(params, block)
        return {
            "mean": positions[:, 0],
            "responsibility": found.responsibilities[:, 1:],
            "position": positions[:, 1:],
        }

    def log_likelihood(
        self, params: TraitTreeParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """MAP: return log P of the observed values of each row under the mixture of leaves."""
        found, _, error = self._integrate(params, block)
        return LogLikelihood(found.nats, np.zeros_like(found.nats), integration_error=error)

    def _integrate(
        self, params: TraitTreeParams, block: BinaryBlock
    ) -> tuple[TreePosterior, Array, Array]:
        """Return what the tree says about rows, their positions in all nodes, and errors."""
        X, observed = block.unpack_values(), block.unpack_mask()
        parts = [
            posterior_on_lattice(X, observed, TraitItems(*_split_forms(own)))
            for own in params.forms
        ]
        found = split_rows(params, np.column_stack([own.log_likelihood for own in parts]))
        error = np.column_stack([own.standard_error for own in parts]).max(axis=1)
        return found, np.stack([own.mean for own in parts], axis=1), error

    def sample(
        self,
        params: TraitTreeParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: Indices | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows from the mixture of leaves, (n_samples, n_features)."""
        paths = params.shares.copy()
        for node in range(1, len(paths)):
            paths[node] *= paths[params.parents[node]]
        first = params.last_level.start
        leaves = first + rng.choice(len(paths) - first, n_samples, p=paths[first:])
        x = np.column_stack([rng.standard_normal((n_samples, _TRAITS)), np.ones(n_samples)])
        uniform = rng.random((n_samples, len(params.offsets)))
        X = np.zeros(uniform.shape, np.uint8)
        for leaf in range(first, len(paths)):
            rows = np.flatnonzero(leaves == leaf)
            X[rows] = uniform[rows] < expit(x[rows] @ params.forms[leaf].T)
        return X

    def reconstruct(
        self, params: TraitTreeParams, codes: Array, segments: Indices | None = None
    ) -> Array:
        """Return P(t = 1 | x) by the top model, (n_samples, n_features)."""
        return np.asarray(expit(codes @ params.weights.T + params.offsets))


def _begin_starts(states: Sequence[FitState]) -> FitState:
    """Begin a stage from several states, the first of which represents them until it ends."""
    if len(states) == 1:
        return states[0]
    short = [replace(s, auxiliary={**s.auxiliary, "is_short": np.array(1)}) for s in states]
    return replace(short[0], starts=tuple(short))


def _split_forms(forms: Array) -> tuple[Array, Array]:
    """Return weights, (n_features, 2), and offsets, (n_features,)."""
    return np.ascontiguousarray(forms[:, :-1]), np.ascontiguousarray(forms[:, -1])


def _expand(forms: Array, moments: Array, precision: float) -> Array:
    """Absorb mean and covariance of the traits in forms, as the priors allow.

    The mean m maximizes −½ N |m − x̄|² − ½ λ Σ_i (b_i + w_i·m)², and the covariance about it follows
    as in `numerics.logistic.parameter_expansion`.
    """
    weights, offsets = _split_forms(forms)
    n_rows, total = moments[-1, -1], moments[:-1, -1]
    if n_rows < _NEGLIGIBLE:
        return forms
    hessian = n_rows * np.eye(len(total)) + precision * weights.T @ weights
    mean = np.linalg.solve(hessian, total - precision * weights.T @ offsets)
    centred = moments.copy()
    across = np.outer(mean, total)
    centred[:-1, :-1] += n_rows * np.outer(mean, mean) - across - across.T
    centred[:-1, -1] = centred[-1, :-1] = 0.0
    traits = estimate_trait_gaussian(centred, weights, precision)
    return np.column_stack(traits._replace(mean=mean).absorb(weights, offsets))
