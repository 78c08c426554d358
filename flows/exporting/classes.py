"""Tables of the classes of a mixture: their sizes, differences and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import scipy

from flows.cli.summary import CLASS_NUMBER_COLUMNS
from flows.data.datasets import LoadedModel
from flows.exporting.columns import Array, list_segment_names, read_level_columns
from flows.exporting.files import BatchedTable, collect_columns
from pipeline.data.features import read_features
from pipeline.errors import FitError
from pipeline.evaluation.class_outcomes import check_reference_class
from pipeline.models.capabilities import IsMixture
from storage.artifacts.artifacts import Artifact
from storage.errors import DataError

_TWO_SIDED = float(scipy.special.ndtri(0.975))


def make_class_table(fitted: LoadedModel) -> BatchedTable:
    """Make a table with one line per class: its size, error, interval, and expected rows.

    Groups have a size and an error of their own. Intervals are symmetric in log-odds.
    """
    _check_is_mixture(fitted)
    artifact, sizes = fitted.artifact, np.asarray(fitted.params.weights)
    columns: dict[str, Any] = {"class": np.arange(1, len(sizes) + 1), "size": sizes}
    errors = artifact.get("weights_error")
    if errors is not None:
        spread = _TWO_SIDED * errors / np.maximum(sizes * (1 - sizes), np.finfo(float).tiny)
        centre = scipy.special.logit(sizes)
        columns |= {"error": errors, "low": scipy.special.expit(centre - spread)}
        columns["high"] = scipy.special.expit(centre + spread)
    columns["rows"] = sizes * _count_rows(artifact)
    if "group_class_weights" in artifact:
        own_errors = artifact.get("group_class_weights_error")
        for k, name in enumerate(list_segment_names(artifact)):
            columns[f"size_{name}"] = artifact["group_class_weights"][k]
            if own_errors is not None:
                columns[f"error_{name}"] = own_errors[k]
    return collect_columns(columns)


def make_level_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per feature and level: its probability in each class, and errors.

    Levels of nominal items have slopes and offsets instead. Binary features have only the level
    that means 1.
    """
    names, columns = read_level_columns(artifact)
    if not columns:
        raise DataError(
            f"{artifact.path}: {artifact.manifest['model']} has no parameters of levels. Fit "
            "bernoulli-mixture to features with several levels, or latent-trait with "
            "--set items=nominal, or use --what items."
        )
    features, levels = zip(*names, strict=True)
    texts = {"feature": pa.array(features, pa.string()), "level": pa.array(levels, pa.string())}
    return collect_columns({**texts, **dict(chain.from_iterable(c.iter_arrays() for c in columns))})


def _check_is_mixture(fitted: LoadedModel) -> None:
    if not isinstance(fitted.model, IsMixture):
        raise FitError(
            f"{fitted.artifact.path} is of {fitted.model.name}, which has no classes. Fit "
            "bernoulli-mixture."
        )


def _count_rows(artifact: Artifact) -> float:
    """Return the number of rows, or the sum of their weights."""
    weights = artifact.manifest.get("row_weights")
    return float(artifact.manifest["n_samples"] if weights is None else weights["total"])


def make_contrast_table(fitted: LoadedModel, reference: int | None) -> BatchedTable:
    """Make a table of the differences of classes: one line per feature, level and pair of classes.

    They are of the probability of 1 of a binary feature, of each level of others, and of means.
    Each pair stands there once, or, with a reference class (from 1), every class against this one.
    """
    artifact = fitted.artifact
    errors = artifact.get("contrasts_error")
    if errors is None or len(errors) < 2:
        raise DataError(
            f"{artifact.path}: {artifact.manifest['model']} has no differences between classes "
            "with standard errors. Fit bernoulli-mixture with two or more classes."
        )
    n_classes = len(errors)
    pairs = _list_pairs(n_classes, check_reference(reference, n_classes))
    names, levels, values = zip(*_iter_quantities(artifact), strict=True)
    by_class = np.stack(values)
    one, other = np.array(pairs).T
    differences = (by_class[:, one] - by_class[:, other]).ravel()
    own_errors = np.moveaxis(errors[one, other], 0, 1).ravel()
    z = np.divide(
        differences, own_errors, out=np.full(len(differences), np.nan), where=own_errors > 0
    )
    n_pairs, n = len(pairs), len(names)
    return collect_columns(
        {
            "feature": pa.array([name for name in names for _ in pairs], pa.string()),
            "level": pa.array([level for level in levels for _ in pairs], pa.string()),
            "class": np.tile(one + 1, n),
            "other_class": np.tile(other + 1, n),
            "value": by_class[:, one].ravel(),
            "other_value": by_class[:, other].ravel(),
            "difference": differences,
            "error": own_errors,
            "z": z,
            "p": 2 * scipy.special.ndtr(-abs(z)),
        }
        if n_pairs
        else {}
    )


def check_reference(reference: int | None, n_classes: int) -> int | None:
    """Return the index of the reference class, from 0, given its number from 1."""
    check_reference_class(reference, n_classes)
    return None if reference is None else reference - 1


def _list_pairs(n_classes: int, reference: int | None) -> list[tuple[int, int]]:
    if reference is not None:
        return [(k, reference) for k in range(n_classes) if k != reference]
    return [(k, other) for other in range(n_classes) for k in range(other + 1, n_classes)]


def _iter_quantities(artifact: Artifact) -> Iterator[tuple[str, str | None, Array]]:
    """Yield feature, level and values by class, in the order of `contrasts_error`."""
    features = read_features(artifact.manifest)
    with_levels = [feature for feature in features if feature.levels]
    planes, levels = artifact["probabilities"], artifact.get("level_probabilities")
    plane = level = 0
    for feature in with_levels:
        if len(feature.levels) == 2:
            yield feature.name, feature.levels[1], planes[:, plane]
        else:
            assert levels is not None
            for k, name in enumerate(feature.levels):
                yield feature.name, name, levels[:, level + k]
        plane += feature.n_planes
        level += len(feature.levels)
    numbers = [feature.name for feature in features if not feature.levels]
    for k, name in enumerate(numbers):
        yield name, None, artifact["means"][:, k]


def make_class_number_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per number of classes that a fit compared."""
    table = artifact.manifest["diagnostics"].get("class_numbers")
    if not table:
        raise DataError(
            f"{artifact.path}: the fit compared no numbers of classes. Fit a mixture with "
            "--set max_components=N."
        )
    names = ["components", "is_chosen", *(n for n in CLASS_NUMBER_COLUMNS if n in table[-1])]
    return collect_columns(
        {name: [line.get(name) for line in table] for name in dict.fromkeys(names)}
    )
