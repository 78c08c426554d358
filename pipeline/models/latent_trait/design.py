"""How the linear forms of items of any kind depend on the parameters of a fit.

The forms η_j = a_j·x + d_j of `numerics.logistic.categories.curves` are v = J φ + v₀, where v has
a_j and d_j side by side for all planes, and φ are the free parameters:

===============  =======================  =====================================
items            a_j                      d_j
===============  =======================  =====================================
graded           w_i                      free, in decreasing order
partial-credit   j w_i                    free
rating-scale     j w, the same for all    j b_i + τ_j; τ_j of all items with as
                                          many levels, 0 for their last level
nominal          free                     free
continuous       w_i                      free, and log σ_i
===============  =======================  =====================================

The two forms of each continuous item, see `numerics.logistic.categories.gaussian_items`, follow
after all planes. So do those of the asymptotes of binary items: their offsets are the logits of
guessing and slipping, of each item or of all.

A level that no row has leaves its parameters without an estimate. They are tied to those of its
neighbours so that the level is improbable: as near as `_GAP` to the next threshold of a graded
item, and `UNUSED_LOG_ODDS` nats below its neighbours in other items. All ties stay true if the mean
and scale of the traits change.

Known weights and offsets are constants, in v₀.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.params import ItemKind
from pipeline.numerics.logistic.asymptotes import MAX_LOGIT
from pipeline.numerics.logistic.categories.curves import count_item_levels, iter_alike

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_GAP, UNUSED_LOG_ODDS = 1e-8, 18.0
_TIED_SHARE = 1e-6
Form = dict[Hashable, float]
"""Coefficients of parameters, by their keys; that of the constant has the key `_CONSTANT`."""
_CONSTANT = "constant"


@dataclass(frozen=True)
class LevelDesign:
    """The map from free parameters to weights and offsets of all forms.

    Attributes
    ----------
    matrix, constant
        J, (n_forms (q + 1), n_free), and v₀, (n_forms (q + 1),). With groups of rows, the forms of
        all groups follow each other.
    is_slope
        Which free parameters are slopes, (n_free,).
    n_planes
        Number of planes of each item, (n_features,), 0 if it is continuous.
    n_components
        Number of traits, q.
    are_priors_shared
        Whether a slope of several items has one prior, not one per item.
    n_groups
        Number of groups; 1 without groups.
    is_known
        Which entries of v are known, (n_groups n_forms (q + 1),).
    """

    matrix: scipy.sparse.csr_array
    constant: Array
    is_slope: NDArray[np.bool_]
    n_planes: Indices
    n_components: int
    are_priors_shared: bool
    n_groups: int
    is_known: NDArray[np.bool_]

    def select_group(self, group: int) -> LevelDesign:
        """Return the forms of a group as functions of all free parameters."""
        size = len(self.constant) // self.n_groups
        rows = slice(group * size, (group + 1) * size)
        arrays = {name: getattr(self, name)[rows] for name in ("matrix", "constant", "is_known")}
        return replace(self, **arrays, n_groups=1)

    @property
    def n_free(self) -> int:
        """Number of free parameters."""
        return len(self.is_slope)

    @cached_property
    def item_of_row(self) -> Indices:
        """Item of each entry of v, (n_groups n_forms (q + 1),)."""
        items = np.repeat(np.arange(len(self.n_planes)), self.n_planes)
        further = np.flatnonzero(self.n_planes == 0)
        if self.has_asymptotes:
            further = np.arange(len(self.n_planes))
        by_form = np.concatenate([items, np.repeat(further, 2)])
        return np.tile(np.repeat(by_form, self.n_components + 1), self.n_groups)

    @property
    def has_asymptotes(self) -> bool:
        """Whether binary items have guessing or slipping."""
        width = self.n_groups * (self.n_components + 1)
        n_forms = int(np.maximum(self.n_planes, 2 - 2 * self.n_planes).sum())
        return len(self.constant) // width > n_forms

    def find_offsets(self, kind: str) -> Indices:
        """Return the free parameters that are offsets of planes, or of `guessing` or `slipping`."""
        width, n = self.n_components + 1, int(self.n_planes.sum())
        forms = np.arange(len(self.constant) // width).reshape(self.n_groups, -1)
        own = {"offset": forms[:, :n], "guessing": forms[:, n::2], "slipping": forms[:, n + 1 :: 2]}
        rows = own[kind].ravel() * width + self.n_components
        return np.unique(self.matrix[rows].indices).astype(np.int64)

    @cached_property
    def free_items(self) -> Indices:
        """Items with free parameters."""
        return np.unique(self.item_of_row[self.matrix.nonzero()[0]])

    @cached_property
    def separate_items(self) -> Indices | None:
        """Items with free parameters, if each has one plane, and all of its parameters to itself.

        The parameters are then in the order of these items, q + 1 of each. None otherwise.
        """
        rows, width = self.matrix.nonzero()[0], self.n_components + 1
        is_simple = self.n_groups == 1 and len(self.constant) == len(self.n_planes) * width
        if not is_simple or (self.n_planes != 1).any() or len(rows) != self.n_free:
            return None
        is_own = len(rows) == len(self.free_items) * width and (self.matrix.data == 1).all()
        return self.free_items if is_own else None

    @cached_property
    def n_priors(self) -> Array:
        """Number of priors of each slope, 0 for other parameters, (n_free,)."""
        if self.are_priors_shared:
            return self.is_slope.astype(np.float64)
        return np.where(self.is_slope, self._count_items(), 0).astype(np.float64)

    @property
    def is_common(self) -> NDArray[np.bool_]:
        """Which free parameters several items have in common, (n_free,)."""
        return np.asarray(self._count_items() > 1)

    def _count_items(self) -> Indices:
        """Return the number of items with each free parameter, (n_free,)."""
        rows, columns = self.matrix.nonzero()
        pairs = np.unique(np.stack([self.item_of_row[rows], columns]), axis=1)
        return np.bincount(pairs[1], minlength=self.n_free)

    @cached_property
    def independent_sets(self) -> tuple[int, Indices, Indices]:
        """Number of sets of items without common parameters, and who is in which.

        The sets are those of each item, (n_features,), and of each free parameter, (n_free,).
        """
        n_features = len(self.n_planes)
        rows, columns = self.matrix.nonzero()
        edges = (np.ones(len(rows)), (self.item_of_row[rows], n_features + columns))
        size = n_features + self.n_free
        graph = scipy.sparse.coo_array(edges, shape=(size, size))
        n_sets, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
        sets = labels.astype(np.int64)
        return int(n_sets), sets[:n_features], sets[n_features:]

    @cached_property
    def _collector(self) -> tuple[Any, Callable[[Array], Array]]:
        """Jᵀ W, where forms with constants hardly count, and the solver of Jᵀ W J."""
        weights = np.where(self.constant == 0, 1.0, _TIED_SHARE)
        weighted = (self.matrix.T * weights).tocsr()
        return weighted, scipy.sparse.linalg.factorized((weighted @ self.matrix).tocsc())

    def fill(self, free: Array) -> Array:
        """Return weights and offsets of all forms side by side, (n_groups n_forms, q + 1)."""
        v = self.matrix @ free + self.constant
        return np.asarray(v.reshape(-1, self.n_components + 1))

    def collect(self, forms: Array) -> Array:
        """Return the free parameters of these forms, or of the nearest that the design allows.

        Forms of improbable levels, which have constants, hardly count.
        """
        return self.collect_changes((forms.reshape(-1) - self.constant)[:, None])[:, 0]

    def collect_changes(self, changes: Array) -> Array:
        """Return the changes of the free parameters, (n_free, k), that change v thus, (…, k)."""
        if not self.n_free:
            return np.zeros((0, changes.shape[1]))
        weighted, solve = self._collector
        return np.column_stack([solve(weighted @ change) for change in changes.T])


class OwnParameters(NamedTuple):
    """Which parameters differ by group; all others are equal in all groups.

    Attributes
    ----------
    slopes, offsets
        Whether each item has slopes, or offsets, of its own in each group, (n_features,).
    steps, deviations
        Whether the common steps of rating scales, and σ of continuous items, differ by group.
    """

    slopes: NDArray[np.bool_]
    offsets: NDArray[np.bool_]
    steps: bool
    deviations: bool

    def select(self, item: int, key: Hashable) -> bool:
        """Return whether a parameter of an item, given its key, differs by group."""
        kind = key[0] if isinstance(key, tuple) else key
        if kind in ("guessing", "slipping"):
            is_common = isinstance(key, tuple) and len(key) == 1
            return bool(self.steps or (self.slopes.all() if is_common else self.offsets[item]))
        if kind in ("step", "deviation"):
            return self.steps if kind == "step" else self.deviations
        return bool(self.offsets[item] if kind in ("offset", "location") else self.slopes[item])


def make_level_design(
    level_counts: Array,
    n_planes: Indices,
    n_components: int,
    kind: ItemKind,
    equal_slopes: bool,
    loadings: Indices | None = None,
    own: OwnParameters | None = None,
    known: Array | None = None,
    asymptotes: tuple[str, str] = ("none", "none"),
) -> LevelDesign:
    """Return the design of items of a kind.

    Parameters
    ----------
    level_counts
        Number of rows with each level of each item, one item after the other, (n_levels,), or in
        each group, (n_groups, n_levels).
    n_planes
        Number of planes of each item, (n_features,).
    n_components, kind, equal_slopes
        As in the settings of the model. Items with a single level in the data are pinned at their
        margins. Continuous items have slopes of their own in any case.
    loadings
        Number of each slope, (n_features, n_components), see `LoadingPattern.slopes`; None if all
        items load on all traits. Nominal items have no numbers.
    own
        Parameters that differ by group; None without groups.
    known
        Known weights and offsets, (n_forms, n_components + 1), NaN where they are estimated; None
        if all are. Pinned items count as known only if all of theirs are.
    asymptotes
        Whether guessing, and slipping, is 0 (`none`), the same for all items (`common`), or one per
        item (`item`). Items without free weights and offsets have none.
    """
    order = np.argsort(n_planes == 0, kind="stable")
    by_group, pooled = np.atleast_2d(level_counts), np.atleast_2d(level_counts).sum(axis=0)
    forms = []
    for group, counts in enumerate(by_group):
        if own is not None:
            counts = np.where(np.repeat(own.offsets, count_item_levels(n_planes)), counts, pooled)
        of_group = _list_forms(counts, n_planes, kind, equal_slopes)
        forms += [ItemForms(item, group, *of_group[item]) for item in order.tolist()]
    has_asymptotes = asymptotes != ("none", "none")
    is_plain = loadings is None and own is None and known is None and not has_asymptotes
    if known is not None:
        known = _leave_out_pinned(known, pooled, n_planes)
    if has_asymptotes:
        forms = _add_asymptotes(forms, known, asymptotes)
        if known is not None:
            known = np.vstack([known, np.full((2 * len(known), known.shape[1]), np.nan)])
    design = _assemble(forms, n_planes, n_components, loadings, own, known)
    return replace(design, are_priors_shared=not is_plain, n_groups=len(by_group))


def _add_asymptotes(
    forms: Sequence[ItemForms], known: Array | None, kinds: tuple[str, str]
) -> list[ItemForms]:
    """Add the forms of asymptotes after those of each group."""
    groups: dict[int, list[ItemForms]] = {}
    for own in forms:
        groups.setdefault(own.group, []).append(own)
    added: list[ItemForms] = []
    for group, items in groups.items():
        added += items
        for item, _, (weight,), _ in items:
            is_fixed = not weight or (known is not None and not np.isnan(known[item]).any())
            offsets: list[Form] = []
            for name, kind in zip(("guessing", "slipping"), kinds, strict=True):
                key: Hashable = (name,) if kind == "common" else (name, item)
                is_zero = kind == "none" or is_fixed
                offsets.append({_CONSTANT: -MAX_LOGIT} if is_zero else {key: 1.0})
            added.append(ItemForms(item, group, [{}, {}], offsets))
    return added


def _leave_out_pinned(known: Array, level_counts: Array, n_planes: Indices) -> Array:
    """Return the known values without those of items that have to be pinned."""
    items, n = np.arange(len(n_planes)), int(n_planes.sum())
    owners = np.repeat(items, n_planes)
    n_present = np.bincount(
        np.repeat(items, count_item_levels(n_planes)), level_counts > 0, len(items)
    )
    n_unknown = np.bincount(owners, np.isnan(known[:n]).any(axis=1), len(items))
    left = known.copy()
    left[:n][((n_present == 1) & (n_unknown > 0))[owners]] = np.nan
    return left


class ItemForms(NamedTuple):
    """Weights and offsets of the forms of an item in a group, given the parameters."""

    item: int
    group: int
    weights: list[Form]
    offsets: list[Form]


def _list_forms(
    level_counts: Array, n_planes: Indices, kind: ItemKind, equal_slopes: bool
) -> list[tuple[list[Form], list[Form]]]:
    """Return weights and offsets of the forms of all items."""
    forms: list[tuple[list[Form], list[Form]]] = [
        ([{("slope", item): 1.0}, {}], [{("offset", item): 1.0}, {("deviation", item): 1.0}])
        for item in range(len(n_planes))
    ]
    for alike in iter_alike(n_planes):
        counts = level_counts[alike.levels]
        pooled = counts.sum(axis=0)
        for item, own in zip(alike.features.tolist(), counts, strict=True):
            present = np.flatnonzero(own).tolist()
            if len(present) == 1:
                forms[item] = _pin_item(own, kind)
                continue
            slope: Hashable = ("slope",) if equal_slopes else ("slope", item)
            m = len(own) - 1
            if kind == "rating-scale":
                steps = _list_common_steps(np.flatnonzero(pooled).tolist(), m)
                forms[item] = (
                    [{slope: float(j)} for j in range(1, m + 1)],
                    [{("location", item): float(j), **steps[j]} for j in range(1, m + 1)],
                )
            elif kind == "graded":
                forms[item] = [{slope: 1.0}] * m, _list_thresholds(present, m, item)
            else:
                forms[item] = _list_baseline_forms(present, m, item, slope, kind == "nominal")
    return forms


def _pin_item(counts: Array, kind: ItemKind) -> tuple[list[Form], list[Form]]:
    """Return forms without slopes, and with the margins of the item."""
    offsets = find_margin_offsets(counts[None], kind)[0]
    constants: list[Form] = [{_CONSTANT: value} for value in offsets.tolist()]
    return [{}] * len(offsets), constants


def find_margin_offsets(counts: Array, kind: ItemKind) -> Array:
    """Return offsets of items without slopes that have their margins, (n_items, n_planes).

    `counts` are the rows with each level, (n_items, n_levels); half a row is added to each.
    """
    share = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    if kind == "graded":
        above = np.cumsum(share[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return np.asarray(np.log(above / (1 - above)))
    return np.asarray(np.log(share[:, 1:] / share[:, :1]))


def _list_thresholds(present: Sequence[int], m: int, item: int) -> list[Form]:
    """Return the offsets of a graded item, given its levels in the data."""
    first, last = present[0], present[-1]
    offsets: list[Form] = []
    for j in range(1, m + 1):
        if j <= first:
            key, shift = present[1], UNUSED_LOG_ODDS + (first - j) * _GAP
        elif j > last:
            key, shift = last, -UNUSED_LOG_ODDS - (j - last) * _GAP
        else:
            key = min(level for level in present if level >= j)
            shift = (key - j) * _GAP
        offsets.append({("offset", item, key): 1.0, _CONSTANT: shift})
    return offsets


def _list_baseline_forms(
    present: Sequence[int], m: int, item: int, slope: Hashable, is_nominal: bool
) -> tuple[list[Form], list[Form]]:
    """Return weights and offsets of an item with baseline forms, given its levels in the data."""
    first, last = present[0], present[-1]
    offsets: dict[int, Form] = {0: {}}
    weights: dict[int, Form] = {j: {slope: float(j)} for j in range(1, m + 1)}
    weights[0] = {}
    for j in present:
        if j > 0:
            offsets[j] = {("offset", item, j): 1.0}
            if is_nominal:
                weights[j] = {(slope, j): 1.0}
    if first > 0:
        # The lowest level is not in the data: the first that is takes its part.
        if is_nominal:
            weights[first], offsets[first] = {}, {_CONSTANT: UNUSED_LOG_ODDS}
        else:
            share = first / present[1]
            offsets[first] = {
                ("offset", item, present[1]): share,
                _CONSTANT: UNUSED_LOG_ODDS * (1 - share),
            }
    known = sorted({0, *present})
    for j in sorted({*range(m + 1)} - {*known}):
        if j > last:
            share = 1.0 if is_nominal else j / last
            parts = [(last, share)]
        else:
            low = max(level for level in known if level < j)
            high = min(level for level in known if level > j)
            parts = [(low, (high - j) / (high - low)), (high, (j - low) / (high - low))]
        offsets[j] = _combine(offsets, parts, -UNUSED_LOG_ODDS)
        if is_nominal:
            weights[j] = _combine(weights, parts)
    return [weights[j] for j in range(1, m + 1)], [offsets[j] for j in range(1, m + 1)]


def _list_common_steps(present: Sequence[int], m: int) -> list[Form]:
    """Return τ_j of all levels, given those in the data of items with as many levels."""
    first, last = present[0], present[-1]
    base = UNUSED_LOG_ODDS if first > 0 else 0.0
    steps: dict[int, Form] = {0: {}}
    for j in present:
        if j > 0:
            is_fixed = j in (first, last)
            steps[j] = {_CONSTANT: base} if is_fixed else {("step", m, j): 1.0}
    known = sorted({0, *present})
    for j in sorted({*range(m + 1)} - {*known}):
        if j > last:
            steps[j] = _combine(steps, [(last, 1.0)], -UNUSED_LOG_ODDS)
        else:
            low = max(level for level in known if level < j)
            high = min(level for level in known if level > j)
            parts = [(low, (high - j) / (high - low)), (high, (j - low) / (high - low))]
            steps[j] = _combine(steps, parts, -UNUSED_LOG_ODDS)
    return [steps[j] for j in range(m + 1)]


def _combine(
    forms: dict[int, Form], parts: Sequence[tuple[int, float]], shift: float | None = None
) -> Form:
    total: Form = {} if shift is None else {_CONSTANT: shift}
    for level, share in parts:
        for key, value in forms[level].items():
            total[key] = total.get(key, 0.0) + share * value
    return total


def _assemble(
    forms: Sequence[ItemForms],
    n_planes: Indices,
    n_components: int,
    loadings: Indices | None,
    own: OwnParameters | None,
    known: Array | None,
) -> LevelDesign:
    """Number the parameters in the order in which they occur."""
    width = n_components + 1
    places: dict[Hashable, int] = {}
    is_slope: list[bool] = []
    entries: list[tuple[int, int, float]] = []
    constant = np.zeros(sum(len(form.weights) for form in forms) * width)
    is_known = np.zeros(len(constant), np.bool_)
    if known is not None:
        values = np.tile(known.ravel(), len(constant) // known.size)
        is_known = ~np.isnan(values)
        constant[is_known] = values[is_known]
    row = 0
    for item, group, weights, offsets in forms:
        for weight, offset in zip(weights, offsets, strict=True):
            for component in range(n_components):
                number = None if loadings is None else int(loadings[item, component])
                is_known[row + component] |= number == -1
                if is_known[row + component]:
                    continue
                for key, value in weight.items():
                    name: Hashable = (key, component) if number is None else ("loading", number)
                    if own is not None and own.select(item, key):
                        name = (name, group)
                    place = places.setdefault(name, len(places))
                    is_slope += [True] * (place == len(is_slope))
                    entries.append((row + component, place, value))
            for key, value in offset.items():
                if is_known[row + n_components]:
                    break
                if key == _CONSTANT:
                    constant[row + n_components] = value
                    is_known[row + n_components] |= value == -MAX_LOGIT
                    continue
                if own is not None and own.select(item, key):
                    key = (key, group)
                place = places.setdefault(key, len(places))
                is_slope += [False] * (place == len(is_slope))
                entries.append((row + n_components, place, value))
            row += width
    rows, columns, factors = zip(*entries, strict=True) if entries else ((), (), ())
    shape = (len(constant), len(places))
    matrix = scipy.sparse.coo_array((np.array(factors), (rows, columns)), shape=shape).tocsr()
    slopes = np.array(is_slope, np.bool_)
    return LevelDesign(matrix, constant, slopes, n_planes, n_components, False, 1, is_known)
