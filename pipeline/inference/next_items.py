"""The items to ask next in an adaptive test of one trait.

Given the answers so far, the trait θ of a person has the posterior

    p(θ | t) ∝ p(θ) Π_i P(t_i | θ)                                                               (1)

and an item that has not been answered is worth its expected information

    ∫ I_i(θ) p(θ | t) dθ                                                                         (2)

with the Fisher information I_i of the item (W. J. J. Veerkamp, M. P. F. Berger, Journal of
Educational and Behavioral Statistics 22, 1997). Both are sums over nodes. Answers and information
are tabulated at the nodes once, so that a call takes a fraction of a millisecond.

Content groups get their shares of a test: the next item is from the group that is furthest below
its share (G. G. Kingsbury, A. R. Zara, Applied Measurement in Education 2, 1989). Items that too
many tests had before are left out (J. Revuelta, V. Ponsoda, Journal of Educational Measurement 35,
1998).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.features import Feature
from pipeline.data.tables import is_missing
from pipeline.errors import FitError, format_suggestion
from pipeline.inference.query import Assignment, find_values
from pipeline.models.base import Model
from pipeline.models.capabilities import HasItemInformation, ItemCurves
from pipeline.models.registry import find_models
from pipeline.numerics.logistic.categories.curves import (
    compute_plane_probabilities,
    number_planes,
)

_REACH = 8.0  # of the nodes, in standard deviations of the trait
_MAX_NODES = 1601
_NODES_PER_SD = 4  # of the posterior; fewer nodes would blur steep curves
_NEGLIGIBLE = 1e-12  # share of a node


class NextItems(NamedTuple):
    """The items to ask next.

    Attributes
    ----------
    items
        Names of the items, the first to ask first; empty if the test is done.
    information
        Expected information of each item.
    mean, error
        Mean and standard deviation of the trait given the answers so far.
    is_done
        Whether the standard error is small enough, or no item is left.
    """

    items: tuple[str, ...]
    information: tuple[float, ...]
    mean: float
    error: float
    is_done: bool


class ScorePrediction(NamedTuple):
    """The score that a person would have with all items.

    Attributes
    ----------
    score, error
        Expected sum of the levels, counted from 0, and its standard deviation. Items with an answer
        count as they were answered; continuous and nominal items do not count.
    maximum
        The highest possible score. Of binary items, `score / maximum` is the share of ones.
    """

    score: float
    error: float
    maximum: int


@dataclass(frozen=True)
class ItemLimits:
    """Which items a test may have.

    Attributes
    ----------
    exclude
        Names of items that are not asked.
    content
        Content group of each item. Items that it does not name are a group of their own.
    shares
        Share of each content group in a test; None for the shares in the item bank.
    exposure
        Share of earlier tests that had an item; 0 for items that it does not name.
    max_exposure
        Items with this exposure or more are not asked.
    """

    exclude: Collection[str] = ()
    content: Mapping[str, str] | None = None
    shares: Mapping[str, float] | None = None
    exposure: Mapping[str, float] | None = None
    max_exposure: float = 1.0


@dataclass(frozen=True)
class ItemBank:
    """Items tabulated at nodes of the trait.

    Attributes
    ----------
    features
        The items.
    points, log_prior
        Nodes and their log-weights under the distribution of the trait, (n_nodes,) each.
    slopes, constants
        log P of the values of planes, then of continuous items; see `NodeCurves`.
    first_planes, n_planes
        Place of each item in `slopes`, and its number of planes, 0 if it is continuous.
    information
        Information of each item, (n_nodes, n_features).
    score_mean, score_variance
        Mean and variance of the score of all items given the trait, (n_nodes,) each.
    value_means, value_scales
        Of continuous items, (n_features,).
    has_order
        Which items count in scores, (n_features,): all but nominal ones.
    """

    features: tuple[Feature, ...]
    points: Array
    log_prior: Array
    slopes: Array
    constants: Array
    first_planes: NDArray[np.int64]
    n_planes: NDArray[np.int64]
    information: NDArray[np.float32]
    score_mean: Array
    score_variance: Array
    value_means: Array
    value_scales: Array
    has_order: NDArray[np.bool_]

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of each item by name."""
        return {feature.name: index for index, feature in enumerate(self.features)}

    def find_answers(self, answers: Mapping[str, Any]) -> Assignment:
        """Return the answers that are not missing, by the index of the item."""
        observed = {name: value for name, value in answers.items() if not is_missing(value)}
        return find_values(self.features, self.places, observed)

    def compute_posterior(self, answers: Assignment) -> Array:
        """Return the share of each node given the answers, eq. 1, (n_nodes,)."""
        log_joint = self.log_prior.copy()
        for item, value in answers.items():
            first, n_planes = self.first_planes[item], self.n_planes[item]
            log_joint += self.constants[first : first + max(n_planes, 1)].sum(axis=0)
            if n_planes:
                log_joint += self.slopes[first : first + int(value)].sum(axis=0)
            else:
                scaled = (value - self.value_means[item]) / self.value_scales[item]
                log_joint += scaled * self.slopes[first]
        shares = np.exp(log_joint - log_joint.max())
        return np.asarray(shares / shares.sum())

    def predict_score(self, answers: Assignment) -> ScorePrediction:
        """Predict the score of all items given some answers."""
        shares, score = self.compute_posterior(answers), 0.0
        mean, variance = self.score_mean.copy(), self.score_variance.copy()
        for item, level in answers.items():
            if (n_planes := int(self.n_planes[item])) and self.has_order[item]:
                own = slice(self.first_planes[item], self.first_planes[item] + n_planes)
                steps = np.cumsum(self.slopes[own], axis=0)
                P = np.exp(self.constants[own.start] + steps)  # of the levels above the lowest
                numbers = np.arange(1, n_planes + 1)
                own_mean = numbers @ P
                mean -= own_mean
                variance -= numbers**2 @ P - own_mean**2
                score += level
        expected = float(shares @ mean)
        spread = float(shares @ (variance + (mean - expected) ** 2))
        return ScorePrediction(
            score + expected, math.sqrt(max(spread, 0.0)), int(self.n_planes @ self.has_order)
        )

    def average_information(self, shares: Array, sd: float) -> Array:
        """Return the expected information of each item, eq. 2, (n_features,).

        Wide posteriors need fewer nodes than there are.
        """
        step = max(1, int(sd / (_NODES_PER_SD * (self.points[1] - self.points[0]))))
        first = int(shares.argmax()) % step
        used = shares[first::step]
        nodes = np.flatnonzero(used > _NEGLIGIBLE * used.max())
        weights = used[nodes] / used[nodes].sum()
        average: Array = weights.astype(np.float32) @ self.information[first + step * nodes]
        return average


def get_item_curves(
    model: Model, params: Any, source: str, segment: int | None = None
) -> ItemCurves:
    """Return the curves of the items of a fit, whose name in messages is `source`.

    Raises
    ------
    FitError
        If the model has no items with information, or several traits.
    """
    if isinstance(model, HasItemInformation):
        return model.get_item_curves(params, segment)
    kinds = find_models().items()
    able = [name for name, kind in kinds if issubclass(kind, HasItemInformation)]
    raise FitError(
        f"{source} is of {model.name}, whose items have no information curves. "
        f"Fit {', '.join(able)} with {{components=1}}."
    )


def make_item_bank(
    model: Model, params: Any, features: Sequence[Feature], segment: int | None = None
) -> ItemBank:
    """Tabulate the items of a fit with one trait, for persons of a segment if one is given.

    Raises
    ------
    FitError
        If the model has no items with information, or several traits.
    """
    curves = get_item_curves(model, params, "The fit", segment)
    items, n_planes = curves.items, curves.items.n_planes
    coarse = curves.mean + curves.sd * np.linspace(-_REACH, _REACH, 161)
    largest = float(curves.compute_information(coarse).sum(axis=1).max())
    # All items answered leave this standard deviation, which the nodes must resolve.
    narrowest = 1 / math.sqrt(largest + 1 / curves.sd**2)
    n_nodes = min(_MAX_NODES, 2 * math.ceil(_REACH * curves.sd / narrowest) + 1)
    standard = np.linspace(-_REACH, _REACH, max(n_nodes, len(coarse)))
    points = curves.mean + curves.sd * standard
    table = items.tabulate(points[:, None])
    first_planes = np.cumsum(n_planes) - n_planes
    P = compute_plane_probabilities(items, points[:, None])
    has_levels, numbers = n_planes > 0, number_planes(n_planes)
    has_order = np.array([feature.kind != "nominal" for feature in features])
    P *= np.repeat(has_order, n_planes)
    item_means = np.add.reduceat(P, first_planes[has_levels], axis=1)
    is_continuous = ~has_levels
    first_planes[is_continuous] = n_planes.sum() + np.arange(is_continuous.sum())
    means, scales = np.zeros(len(n_planes)), np.ones(len(n_planes))
    if items.gaussians is not None and curves.value_means is not None:
        means[is_continuous], scales[is_continuous] = curves.value_means, items.gaussians.scales
    return ItemBank(
        tuple(features),
        points,
        -0.5 * standard**2,
        table.slopes,
        table.constants,
        first_planes,
        n_planes,
        curves.compute_information(points).astype(np.float32),
        P.sum(axis=1),
        P @ (2 * numbers - 1) - (item_means**2).sum(axis=1),
        means,
        scales,
        has_order,
    )


def choose_next_items(
    bank: ItemBank,
    answers: Assignment,
    n: int = 1,
    limits: ItemLimits = ItemLimits(),
    max_error: float = 0.0,
) -> NextItems:
    """Choose the `n` items with the largest expected information, within the limits.

    None is chosen once the standard error is at most `max_error`.

    Raises
    ------
    FitError
        If the limits name items that do not exist, or a number is out of range.
    """
    if n < 1:
        raise FitError(f"{{n}} is {n}. Choose at least 1.")
    if not max_error >= 0:
        raise FitError(f"{{max_error}} is {max_error}. Choose 0 or more.")
    names = [*bank.places]
    is_open = _find_open_items(bank.places, limits)
    is_open[[*answers]] = False
    posterior = bank.compute_posterior(answers)
    mean = float(posterior @ bank.points)
    error = math.sqrt(float(posterior @ (bank.points - mean) ** 2))
    if error <= max_error or not is_open.any():
        return NextItems((), (), mean, error, is_done=True)
    information = bank.average_information(posterior, error)
    order = np.argsort(-information, kind="stable")
    order = order[is_open[order]]
    if limits.content is None:
        chosen = order[:n].tolist()
    else:
        chosen = _balance_content(names, order.tolist(), [*answers], n, limits)
    return NextItems(
        tuple(names[item] for item in chosen),
        tuple(information[chosen].tolist()),
        mean,
        error,
        is_done=False,
    )


def _find_open_items(places: Mapping[str, int], limits: ItemLimits) -> NDArray[np.bool_]:
    """Return the items that are neither excluded nor exposed too often, (n_features,)."""
    if not 0 < limits.max_exposure <= 1:
        raise FitError(
            f"{{max_exposure}} is {limits.max_exposure}. Choose a share above 0, up to 1."
        )
    if limits.shares is not None and limits.content is None:
        raise FitError("{shares} needs {content}.")
    exposure = limits.exposure or {}
    for parameter, own in (
        ("exclude", {*limits.exclude}),
        ("content", (limits.content or {}).keys()),
        ("exposure", exposure.keys()),
    ):
        for name in sorted(own - places.keys(), key=str):
            raise FitError(
                f"The fit has no item {name!r}.{format_suggestion(str(name), places)} Leave out "
                "what is not an item of the fit.",
                parameter=parameter,
            )
    is_open = np.ones(len(places), np.bool_)
    is_open[[places[name] for name in limits.exclude]] = False
    shares = np.fromiter(exposure.values(), np.float64, len(exposure))
    if not (is_valid := (shares >= 0) & (shares <= 1)).all():
        name = [*exposure][int(is_valid.argmin())]
        raise FitError(
            f"The exposure of {name!r} is {exposure[name]}. Give the share of tests, from 0 to 1.",
            parameter="exposure",
        )
    if limits.max_exposure < 1:
        exposed = [places[name] for name in exposure]
        is_open[exposed] &= shares < limits.max_exposure
    return is_open


def _balance_content(
    names: Sequence[str],
    order: Sequence[int],
    answered: Sequence[int],
    n: int,
    limits: ItemLimits,
) -> list[int]:
    """Choose `n` items of `order`, each from the group that is furthest below its share."""
    content = limits.content or {}
    sizes = Counter(content.values())
    shares: dict[str | None, float] = {group: n / len(names) for group, n in sizes.items()}
    shares[None] = 1 - len(content) / len(names)
    if limits.shares is not None:
        for name, share in limits.shares.items():
            if name not in sizes or not share >= 0:
                raise FitError(
                    f"{name!r}: {share} is not the share of a content group. The groups are "
                    f"{', '.join(sorted(map(str, sizes)))}.",
                    parameter="shares",
                )
        if not (total := sum(limits.shares.values())) > 0:
            raise FitError("{shares} are all 0. Give one group a share.")
        shares = {name: share / total for name, share in limits.shares.items()}
    open_groups = [group for group, share in shares.items() if share > 0]
    counts, chosen = Counter(content.get(names[item]) for item in answered), list[int]()
    while open_groups and len(chosen) < n:
        n_next = counts.total() + 1
        group = max(open_groups, key=lambda group: shares[group] * n_next - counts[group])
        own = (i for i in order if content.get(names[i]) == group and i not in chosen)
        if (item := next(own, None)) is None:
            open_groups.remove(group)
        else:
            chosen.append(item)
            counts[group] += 1
    return chosen
