"""The edges of fitted trees, as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.arrays import Array, Indices
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import HasTrees
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
        able = [name for name, kind in find_models().items() if issubclass(kind, HasTrees)]
        raise FitError(f"{source} is of {model.name}, which has no trees. Fit {' or '.join(able)}.")
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


def make_edge_columns(edges: TreeEdges, names: Sequence[str]) -> dict[str, Any]:
    """Return columns by name, with trees counted from 1 and the names of features."""
    return {
        "tree": edges.tree + 1,
        "weight": edges.weight,
        "feature": [names[i] for i in edges.feature.tolist()],
        "parent": [names[i] for i in edges.parent.tolist()],
        "mutual_information": edges.mutual_information,
        "correlation": edges.correlation,
    }
