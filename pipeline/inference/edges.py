"""The edges of fitted trees and networks, as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from pipeline.arrays import Array, Indices
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import HasNetwork, HasTrees
from pipeline.models.registry import find_models
from pipeline.numerics.trees.spanning_tree import ROOT


class TreeEdges(NamedTuple):
    """Edges of fitted trees, (n_edges,) each: tree by tree, the strongest first.

    Attributes
    ----------
    tree
        Number of the tree, counted from 0.
    weight
        Share of rows that the tree describes.
    feature, parent
        Indices of the two features.
    mutual_information
        Mutual information of the two features under the tree, nats.
    correlation
        Correlation of their scores 0, 1, 2, … under the tree, which is phi if both are binary; NaN
        if a feature is constant or nominal.
    """

    tree: Indices
    weight: Array
    feature: Indices
    parent: Indices
    mutual_information: Array
    correlation: Array

    def select(self, places: slice) -> TreeEdges:
        """Return the edges at these places."""
        return TreeEdges._make(values[places] for values in self)


def find_tree_edges(
    model: Model, params: Any, features: Sequence[Feature], source: str
) -> TreeEdges:
    """Return the edges of a fit of these features; `source` names the fit in errors.

    Raises
    ------
    FitError
        If the model has no trees.
    """
    if not isinstance(model, HasTrees):
        kinds = find_models().items()
        able = [name for name, kind in kinds if issubclass(kind, HasTrees | HasNetwork)]
        raise FitError(f"{source} is of {model.name}, which has no edges. Fit {' or '.join(able)}.")
    is_nominal, trees = np.array([own.kind == "nominal" for own in features]), []
    for k, tree in enumerate(model.get_trees(params)):
        (feature,) = np.nonzero(tree.parents != ROOT)
        feature = feature[np.argsort(-tree.mutual_information[feature], kind="stable")]
        has_order = ~(is_nominal[feature] | is_nominal[tree.parents[feature]])
        trees.append(
            TreeEdges(
                np.full(len(feature), k),
                np.full(len(feature), tree.weight),
                feature,
                tree.parents[feature],
                tree.mutual_information[feature],
                np.where(has_order, tree.correlation[feature], np.nan),
            )
        )
    return TreeEdges(*map(np.concatenate, zip(*trees, strict=True)))


class NetworkEdges(NamedTuple):
    """Edges of a network of features, (n_edges,) each, the strongest first.

    Attributes
    ----------
    feature, neighbour
        Indices of the two features.
    coupling
        Change of the log-odds of one if the other is 1 instead of 0.
    standard_error
        Standard error of the coupling; NaN if it is not known.
    stability
        Share of bootstrap draws in which the two share an edge; NaN without draws.
    """

    feature: Indices
    neighbour: Indices
    coupling: Array
    standard_error: Array
    stability: Array

    def select(self, places: slice | Indices) -> NetworkEdges:
        """Return the edges at these places."""
        return NetworkEdges._make(values[places] for values in self)


def find_network_edges(model: HasNetwork, params: Any, group: int | None = None) -> NetworkEdges:
    """Return the edges of a fitted network, or of that of a group."""
    couplings, *others = model.get_network(params, group)
    feature, neighbour = np.nonzero(np.triu(couplings))
    order = np.argsort(-np.abs(couplings[feature, neighbour]), kind="stable")
    feature, neighbour = feature[order], neighbour[order]
    errors, stability = (
        np.full(len(order), np.nan) if values is None else values[feature, neighbour]
        for values in others
    )
    return NetworkEdges(feature, neighbour, couplings[feature, neighbour], errors, stability)


class EdgeDifferences(NamedTuple):
    """Differences of the edges of two groups, (n_edges,) each, the largest first.

    An edge is listed if it is in either network.

    Attributes
    ----------
    groups
        Indices of the groups a and b.
    feature, neighbour
        Indices of the two features.
    coupling_a, coupling_b, difference
        Coupling in each group, and that of a less that of b.
    p, adjusted_p
        p of the difference, and adjusted for the number of pairs of features, with an edge or not
        (Y. Benjamini, Y. Hochberg, JRSS B 57, 1995); NaN if they are not known.
    """

    groups: tuple[int, int]
    feature: Indices
    neighbour: Indices
    coupling_a: Array
    coupling_b: Array
    difference: Array
    p: Array
    adjusted_p: Array


def find_edge_differences(model: HasNetwork, params: Any) -> list[EdgeDifferences]:
    """Return the differences of the edges of all pairs of groups; none without groups."""
    found = []
    for own in model.compare_groups(params):
        first, second = (model.get_network(params, group).couplings for group in own.groups)
        feature, neighbour = np.nonzero(np.triu((first != 0) | (second != 0)))
        order = np.argsort(-np.abs(own.difference[feature, neighbour]), kind="stable")
        feature, neighbour = feature[order], neighbour[order]
        adjusted, known = own.p.copy(), np.nonzero(np.triu(np.isfinite(own.p), 1))
        if known[0].size:
            adjusted[known] = scipy.stats.false_discovery_control(own.p[known])
        matrices = (first, second, own.difference, own.p, adjusted)
        values = [matrix[feature, neighbour] for matrix in matrices]
        found.append(EdgeDifferences(own.groups, feature, neighbour, *values))
    return found


def make_edge_columns(
    model: Model,
    params: Any,
    features: Sequence[Feature],
    names: Sequence[str],
    source: str,
    groups: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the edges of a fit as columns by name, with the names of features and groups.

    Trees are counted from 1. `source` names the fit in errors.

    Raises
    ------
    FitError
        If the model has neither trees nor a network.
    """
    if isinstance(model, HasNetwork):
        if differences := find_edge_differences(model, params):
            columns = {
                "feature": [names[i] for own in differences for i in own.feature.tolist()],
                "neighbour": [names[i] for own in differences for i in own.neighbour.tolist()],
            }
            for k, side in enumerate("ab"):
                columns[f"group_{side}"] = [
                    groups[own.groups[k]] for own in differences for _ in own.feature
                ]
            return {
                **columns,
                **{
                    name: np.concatenate([getattr(own, name) for own in differences])
                    for name in EdgeDifferences._fields[3:]
                },
            }
        network = find_network_edges(model, params)
        return {
            "feature": [names[i] for i in network.feature.tolist()],
            "neighbour": [names[i] for i in network.neighbour.tolist()],
            "coupling": network.coupling,
            "standard_error": network.standard_error,
            "stability": network.stability,
        }
    edges = find_tree_edges(model, params, features, source)
    return {
        "tree": edges.tree + 1,
        "weight": edges.weight,
        "feature": [names[i] for i in edges.feature.tolist()],
        "parent": [names[i] for i in edges.parent.tolist()],
        "mutual_information": edges.mutual_information,
        "correlation": edges.correlation,
    }
