"""Whether items favour a group of rows of equal trait: likelihood-ratio tests of item bias.

Model: x ~ N(0, 1) in the reference group and N(μ, s²) in the focal one, P(t_i = 1 | x) =
σ(w_i x + b_i). The likelihood L where both groups share all w_i and b_i is compared with L_i, where
item i has its own in each and the others are shared: 2 (log L_i − log L) is χ² of 2 degrees of
freedom where the item favours neither (D. Thissen, L. Steinberg, H. Wainer, "Detection of
differential item functioning using the parameters of item response models", 1993). EM on the nodes
of one rule, whose weights the focal group's density changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.executors.base import Executor, MapFunction
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import (
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    initialize_fit,
)
from pipeline.models.base import Model
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_NODES = gauss_hermite(101, 1)
_CERTAIN_LOG_ODDS = 40.0  # log-odds of a one that all rows have: its mass is that of the nodes
_DF = 2


class GroupTestResults(NamedTuple):
    """What the tests find.

    Attributes
    ----------
    chi2, p
        (n_features,) each.
    slopes, offsets
        Of each item in the reference and the focal group, (n_features, 2) each.
    """

    chi2: Array
    p: Array
    slopes: Array
    offsets: Array


@dataclass(frozen=True)
class GroupParams:
    """Slope and offset of each item; the last item is the tested one in the focal group.

    Attributes
    ----------
    items
        Without a tested item (n_features, 2), else a row more.
    focal
        Mean and logarithm of the standard deviation of the focal group's trait.
    """

    items: Array = array_field("item", "moment")
    focal: Array = array_field("moment")


@dataclass(frozen=True)
class GroupTraits(Model):
    """One trait in two groups of rows.

    Attributes
    ----------
    column
        Per-row column that names the group.
    groups
        Its value in the reference group and in the focal one.
    item
        Feature that has parameters of its own in each group; none if below 0.
    """

    name: ClassVar[str] = "group-traits"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[GroupParams]] = GroupParams
    column: str
    groups: tuple[int, int]
    item: int = -1
    acceleration: str = "squarem"
    n_components: int | None = 1
    max_iter: int = 1000
    tol: float = 1e-9

    def list_required_columns(self) -> tuple[str, ...]:
        """Name the column of the groups."""
        return (self.column,)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin with equal slopes and groups."""
        observed, ones = pool_margins(first)
        offsets = scipy.special.logit(np.clip(ones, 0.5, observed - 0.5) / observed)
        return FitState(GroupParams(np.column_stack([np.ones(len(ones)), offsets]), np.zeros(2)))

    def summarize(
        self, params: GroupParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Do the E-step of each group's rows on its own nodes."""
        parts = []
        for group, (rows, *given) in enumerate(self._iter_groups(params, block)):
            found = node_statistics(*given)
            focal = found.mass[-1] * group
            sums = {"ones": found.ones[:-1], "mass": found.mass[:-1], "focal": focal}
            parts.append(Sums(len(rows), found.log_likelihood, sums))
        return parts[0].merge(parts[1])

    def transform(
        self, params: GroupParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give the posterior mean of x, (n_samples, 1); 0 of rows of neither group."""
        mean = np.zeros((block.n_samples, 1))
        for rows, *given in self._iter_groups(params, block):
            mean[rows] = node_posterior(*given).mean
        return {"mean": mean}

    def _iter_groups(self, params: GroupParams, block: BinaryBlock) -> Iterator[Any]:
        """Give each group's rows, their bits and mask, slopes, offsets and nodes."""
        X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(self.column)
        seen = np.ones_like(X) if observed is None else observed
        slopes, offsets = np.vstack([params.items, [0.0, _CERTAIN_LOG_ODDS]]).T
        for group, value in enumerate(self.groups):
            rows = np.flatnonzero(labels == value)
            columns = self._append_group_columns(X[rows], seen[rows], group)
            yield rows, *columns, slopes[:, None], offsets, _weigh_nodes(params.focal * group)

    def _append_group_columns(
        self, X: NDArray[np.uint8], seen: NDArray[np.uint8], group: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Add the tested item's copy for the focal group, and a one that all rows have."""
        certain = np.ones((len(X), 1), np.uint8)
        if self.item < 0:
            return np.hstack([X, certain]), np.hstack([seen, certain])
        own = slice(self.item, self.item + 1)
        bits, mask = np.hstack([X, X[:, own], certain]), np.hstack([seen, seen[:, own], certain])
        mask[:, self.item if group else -2] = 0
        return bits, mask

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Do the M-step."""
        sums, (slopes, offsets) = statistics.values, state.params.items.T
        found = logistic_m_step(_NODES.points, sums["ones"], sums["mass"], slopes[:, None], offsets)
        x, mass = _NODES.points[:, 0], sums["focal"] / sums["focal"].sum()
        mean = mass @ x
        focal = np.array([mean, 0.5 * np.log(mass @ (x - mean) ** 2)])
        items = np.column_stack([found.weights, found.offsets])
        return replace(state, params=GroupParams(items, focal))

    def pack_params(self, params: GroupParams) -> Array:
        """Give all parameters as a vector."""
        return np.append(params.items, params.focal)

    def unpack_params(self, params: GroupParams, packed: Array, n_samples: int) -> Any:
        """Undo `packed`."""
        return GroupParams(packed[:-2].reshape(-1, 2).copy(), packed[-2:].copy())


def _weigh_nodes(focal: Array) -> Nodes:
    """Weigh the nodes by the focal group's density."""
    mean, log_sd = focal
    x = _NODES.points[:, 0]
    log_ratio = (x**2 - ((x - mean) * np.exp(-log_sd)) ** 2) / 2 - log_sd
    return Nodes(_NODES.points, _NODES.log_weights + log_ratio)


def run_group_tests(
    column: str, groups: tuple[int, int], rows: RowSource, executor: Executor, progress: Progress
) -> tuple[GroupTestResults, Array]:
    """Test every item by a fit of its own, all others being shared by the groups.

    Parameters
    ----------
    column, groups
        As of `GroupTraits`.
    rows, executor, progress
        As of `pipeline.fitting.loop.fit_model`.

    Returns
    -------
    tests, focal
        The tests, and mean and standard deviation of the focal group's trait where all items are
        shared.
    """

    def fitted(model: GroupTraits, state: FitState) -> tuple[GroupParams, float]:
        done = fit_model(model, rows, executor, state=state, progress=progress)
        reached = collect_pass_statistics(model, done, rows, executor, 0, progress)
        return done.params, float(reached.objective)

    shared = GroupTraits(column, groups)
    begun = initialize_fit(shared, collect_first_statistics(shared, rows, executor, 0, progress), 0)
    at, least = fitted(shared, begun)
    chi2, own = np.zeros(len(at.items)), np.zeros((len(at.items), 2, 2))
    for item, both in enumerate(at.items):
        apart = FitState(replace(at, items=np.vstack([at.items, both])))
        found, reached = fitted(replace(shared, item=item), apart)
        chi2[item], own[item] = max(2 * (reached - least), 0.0), found.items[[item, -1]]
    focal = np.array([at.focal[0], np.exp(at.focal[1])])
    p = scipy.stats.chi2.sf(chi2, _DF)
    return GroupTestResults(chi2, p, own[:, :, 0], own[:, :, 1]), focal
