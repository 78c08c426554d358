"""Tables of an artifact: its items, correlations, edges of trees and key numbers.

Also the information that items give about a trait, and items on the scale of another fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from flows.cli.errors import format_warnings
from flows.data.datasets import LoadedModel
from flows.exporting.classes import check_reference
from flows.exporting.columns import (
    Array,
    ParameterColumn,
    list_segment_names,
    read_factor_columns,
    read_parameter_columns,
)
from flows.exporting.files import BatchedTable, collect_columns
from pipeline.data.features import read_features
from pipeline.errors import FitError
from pipeline.evaluation.linking import ItemLink, compute_link
from pipeline.inference.edges import make_edge_columns
from pipeline.inference.next_items import get_item_curves
from pipeline.models.capabilities import ItemCurves
from pipeline.models.known_items import get_fitted_items
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.logistic.information import choose_short_test, find_reversed_items
from storage.artifacts.artifacts import Artifact
from storage.codes.codes import Codes
from storage.display import list_trait_names
from storage.errors import DataError

_PAIR_DIMS = ("feature", "feature_j")
_STRIP_ARRAYS = ("correlation", "status")
_PAIRS_PER_BATCH = 1 << 17
_TRAIT_LEVELS = np.linspace(-4, 4, 81)


def make_item_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per feature: its name, and all parameters of features."""
    columns = read_parameter_columns(artifact, "feature")
    if not columns:
        raise DataError(
            f"{artifact.path}: {artifact.manifest['model']} has no parameters of features. "
            "Export codes instead."
        )
    names = artifact.manifest["feature_names"]
    texts = _list_curves(artifact)
    # Parents of features in trees are recorded as indices.
    texts |= {c.name: _name_parents(c.values, names) for c in columns if c.array == "parents"}
    columns = [column for column in columns if column.array != "parents"]
    return _make_parameter_table("feature", names, columns, texts)


def _name_parents(parents: Array, names: Sequence[str]) -> pa.Array:
    """Return the name of the parent of each feature; missing at a root."""
    return pa.array([None if i < 0 else names[i] for i in parents.tolist()], pa.string())


def _list_curves(artifact: Artifact) -> dict[str, pa.Array]:
    """Return a column with the curves of latent-trait items with several levels, if there are any.

    Thresholds of graded and other items are numbers alike, so `fit --items` needs it.
    """
    n_levels = artifact.get("n_levels", np.zeros(0, np.int64))
    kind = artifact.manifest["hyperparameters"].get("items")
    if kind is None or not (n_levels > 2).any():
        return {}
    found = {"curves": pa.array([kind if n > 2 else None for n in n_levels.tolist()], pa.string())}
    if "is_nominal" in artifact:  # the order of the columns
        texts = [own.list_categories() or None for own in read_features(artifact.manifest)]
        found["categories"] = pa.array(texts, pa.string())
    return found


def make_group_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per group or segment: its name, and all its parameters."""
    columns = read_parameter_columns(artifact, "segment")
    if not columns:
        raise DataError(
            f"{artifact.path}: the fit has no parameters of groups. Fit with --group COLUMN."
        )
    return _make_parameter_table("group", list_segment_names(artifact), columns)


def make_coefficient_table(artifact: Artifact, reference: int | None = None) -> BatchedTable:
    """Make a table with one line per covariate and component: coefficient, error, z and p.

    Those of a mixture are log-odds against the reference (from 1; by default the first component),
    and the intercept is among them.
    """
    if "coefficients" not in artifact:
        raise DataError(f"{artifact.path}: the fit has no covariates. Fit with --covariates NAMES.")
    names = [*artifact.manifest["covariates"]["names"]]
    values = artifact["coefficients"]
    errors = artifact.get("coefficients_error", np.full(values.shape, np.nan))
    components = np.arange(1, values.shape[1] + 1)
    if "intercepts" in artifact:
        base = check_reference(reference, len(components)) or 0
        names = ["(intercept)", *names]
        values = np.vstack([artifact["intercepts"], values])
        values = values - values[:, [base]]
        errors = np.full(values.shape, np.nan)
        if "log_odds_error" in artifact:
            errors = artifact["log_odds_error"][:, base].T
        values, errors = (np.delete(own, base, axis=1) for own in (values, errors))
        components = np.delete(components, base)
    elif reference is not None:
        raise DataError(f"{artifact.path} is no mixture. Leave out --reference.")
    z = (values / errors).ravel()
    return collect_columns(
        {
            "covariate": [name for name in names for _ in components],
            "component": np.tile(components, len(names)),
            "coefficient": values.ravel(),
            "error": errors.ravel(),
            "z": z,
            "p": 2 * scipy.special.ndtr(-abs(z)),
        }
    )


def _make_parameter_table(
    kind: str,
    names: Sequence[str],
    columns: Sequence[ParameterColumn],
    texts: Mapping[str, pa.Array] = MappingProxyType({}),
) -> BatchedTable:
    arrays = chain.from_iterable(column.iter_arrays() for column in columns)
    return collect_columns({kind: pa.array(names, pa.string()), **texts, **dict(arrays)})


def make_factor_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per factor: its sum of squared loadings, and correlations."""
    names = {"component": np.arange(1, artifact.manifest["n_components"] + 1)}
    if columns := read_factor_columns(artifact):
        own = chain.from_iterable(column.iter_arrays() for column in columns)
        return collect_columns({**names, **list_trait_names(artifact.manifest), **dict(own)})
    raise DataError(
        f"{artifact.path}: the fit has no factors. Fit clipped-pca with "
        "--set estimator=minres or --set rotation=varimax, or latent-trait with --pattern."
    )


def make_edge_table(fitted: LoadedModel) -> BatchedTable:
    """Make a table with one line per edge: tree by tree, the strongest edges first."""
    source, names = str(fitted.artifact.path), fitted.feature_names
    groups = list_segment_names(fitted.artifact) if "segments" in fitted.artifact else []
    columns = make_edge_columns(fitted.model, fitted.params, fitted.features, names, source, groups)
    names_of_features = columns.keys() & {"feature", "parent", "neighbour", "group_a", "group_b"}
    texts: dict[str, Any] = {
        name: pa.array(columns[name], pa.string()) for name in names_of_features
    }
    return collect_columns({**columns, **texts})


def make_correlation_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per pair of features, and per segment if each has its own.

    Correlations that the data do not determine are missing; the status gives the reason.
    """
    if artifact.pairs is not None and "correlation" in artifact.pairs:
        return _make_table_from_strips(artifact, artifact.pairs)
    arrays = {
        name: values
        for name, values in artifact.items()
        if artifact.dims(name)[-2:] == _PAIR_DIMS and values.size
    }
    if not arrays:
        raise DataError(
            f"{artifact.path}: {artifact.manifest['model']} has no correlations of features. "
            "Fit clipped-pca, or blica to segments."
        )
    is_by_segment = artifact.dims(next(iter(arrays)))[:-2] == ("segment",)
    segments = list_segment_names(artifact) if is_by_segment else []
    return _make_table_from_matrices(artifact, arrays, segments)


def _make_table_from_matrices(
    artifact: Artifact, arrays: Mapping[str, Array], segments: list[str]
) -> BatchedTable:
    """List the pairs in arrays (n_features, n_features), for each segment if there are several."""
    names = artifact.manifest["feature_names"]
    p = len(names)
    places: list[tuple[Any, str | None]] = [*enumerate(segments)] or [(..., None)]
    step = max(1, _PAIRS_PER_BATCH // p)
    ranges = [range(first, min(first + step, p)) for first in range(0, p, step)]

    def batch(place: Any, segment: str | None, firsts: range) -> pa.RecordBatch:
        rows = {name: a[place][firsts.start : firsts.stop] for name, a in arrays.items()}
        return _make_batch(names, firsts, rows, segment)

    batches = (batch(*place, firsts) for place in places for firsts in ranges)
    return BatchedTable(
        batch(*places[0], range(0)).schema, len(places) * (p * (p - 1) // 2), batches
    )


def _make_table_from_strips(artifact: Artifact, pairs: Codes) -> BatchedTable:
    """List the pairs in stored strips, reading one at a time."""
    names = artifact.manifest["feature_names"]
    p, step = len(names), max(1, _PAIRS_PER_BATCH // len(names))

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for key in range(pairs.n_chunks):
            strip = pairs.read_chunk(key, _STRIP_ARRAYS)
            height = len(strip["status"])
            for start in range(0, height, step):
                rows = {name: a[start : start + step] for name, a in strip.items()}
                firsts = range(first + start, first + min(start + step, height))
                yield _make_batch(names, firsts, rows, None)
            first += height

    empty = {name: a[:0] for name, a in pairs.read_chunk(0, _STRIP_ARRAYS).items()}
    schema = _make_batch(names, range(0), empty, None).schema
    return BatchedTable(schema, p * (p - 1) // 2, batches())


def _make_batch(
    features: Sequence[str], firsts: range, rows: Mapping[str, Array], segment: str | None
) -> pa.RecordBatch:
    """List the pairs of some first features, from rows (n_firsts, n_features)."""
    i, j = np.nonzero(np.arange(len(features)) > np.array(firsts)[:, None])
    names = pa.array(features, pa.string())
    first, second = names.take(pa.array(i + firsts.start)), names.take(pa.array(j))
    columns = {"feature_1": first, "feature_2": second}
    if segment is not None:
        columns["segment"] = pa.repeat(pa.scalar(segment), len(i))
    return pa.record_batch({**columns, **dict(_iter_pair_columns(rows, (i, j)))})


def _iter_pair_columns(
    arrays: Mapping[str, Array], indices: tuple[NDArray[np.intp], ...]
) -> Iterator[tuple[str, pa.Array]]:
    """Iterate over the columns of pairs; correlations that are not determined are masked."""
    statuses = {name: a[indices] for name, a in arrays.items() if name.endswith("status")}
    unknown = np.any([a >= PairStatus.CONSTANT_FEATURE for a in statuses.values()], axis=0)
    for name, values in arrays.items():
        if name in statuses:
            words = pa.array([status.name.lower().replace("_", " ") for status in PairStatus])
            yield "status", words.take(pa.array(statuses[name]))
        else:
            yield name.removesuffix("s"), pa.array(values[indices], mask=unknown)


def make_fit_table(artifact: Artifact) -> BatchedTable:
    """Make a table with one line per fact: its name and its value as text, with all digits."""
    names, values = zip(*_iter_facts(artifact), strict=True)
    texts = [None if value is None else _format_value(value) for value in values]
    return collect_columns({"name": names, "value": pa.array(texts, pa.string())})


def _iter_facts(artifact: Artifact) -> Iterator[tuple[str, Any]]:
    manifest = artifact.manifest
    dataset = manifest["dataset"]
    yield "model", manifest["model"]
    yield "rows", manifest.get("n_samples", dataset["n_rows"])
    yield "features", len(manifest["feature_names"])
    yield "components", manifest["n_components"]
    yield "segments", len(manifest["segment_names"])
    yield "objective_is", manifest["diagnostics"].get("objective_is", "objective")
    yield "objective_per_row", manifest.get("objective")
    yield from manifest["diagnostics"].get("fit_statistics", {}).items()
    yield "converged", manifest["converged"]
    yield "passes", manifest["iterations"]
    yield "seed", manifest["seed"]
    yield "split", manifest["split"]
    yield "dataset", dataset["path"]
    yield "dataset_digest", dataset["digest"]
    yield "artifact", str(artifact.path.resolve())
    yield "artifact_digest", manifest["manifest_digest"]
    yield "created", manifest.get("created")
    yield "version", manifest["versions"].get("latentbits")
    yield "warnings", len(manifest["warnings"])
    warnings = format_warnings(manifest["warnings"])
    yield from ((f"warning_{k}", text) for k, text in enumerate(warnings, start=1))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_format_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_information_table(fitted: LoadedModel) -> BatchedTable:
    """Make a table of the information of the test and of each item at levels of the trait."""
    curves, levels = _get_item_curves(fitted), _TRAIT_LEVELS
    if "anchors" in fitted.artifact.manifest:
        levels = curves.mean + curves.sd * levels
    by_item, score = curves.compute_information(levels), curves.compute_expected_score(levels)
    total = by_item.sum(axis=1)
    return collect_columns(
        {
            "trait": levels,
            "information": total,
            "standard_error": 1 / np.sqrt(np.where(total > 0, total, np.nan)),
            "expected_score": score,
            **{
                f"information_{name}": np.ascontiguousarray(values)
                for name, values in zip(fitted.feature_names, by_item.T, strict=True)
            },
        }
    )


def list_reversed_items(fitted: LoadedModel) -> list[str]:
    """Return the names of the items that the expected score counts in reverse."""
    is_reversed = find_reversed_items(_get_item_curves(fitted).slopes)
    return [fitted.feature_names[item] for item in np.flatnonzero(is_reversed)]


def make_short_test_table(fitted: LoadedModel, n_items: int) -> BatchedTable:
    """Make a table of the most informative items, in the order in which they are chosen."""
    curves = _get_item_curves(fitted)
    slopes, offsets, asymptotes = curves.slopes, curves.offsets, curves.items.asymptotes
    if not 1 <= n_items <= len(slopes):
        raise FitError(
            f"{{items}} is {n_items}, but the fit has {len(slopes):,} items. "
            f"Choose 1 to {len(slopes):,}."
        )

    def compute_information(standard: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the information about the trait in standard deviations of the population."""
        return curves.sd**2 * curves.compute_information(curves.mean + curves.sd * standard)

    chosen, reliability = choose_short_test(compute_information, n_items)
    names = [fitted.feature_names[item] for item in chosen]
    own = {} if asymptotes is None else {n: v[chosen] for n, v in asymptotes._asdict().items()}
    columns = {"feature": names, "slope": slopes[chosen], "offset": offsets[chosen], **own}
    return collect_columns({**columns, "reliability": reliability})


def _get_item_curves(fitted: LoadedModel) -> ItemCurves:
    return get_item_curves(fitted.model, fitted.params, str(fitted.artifact.path))


def link_fits(new: LoadedModel, old: LoadedModel) -> ItemLink:
    """Put the items of a fit on the scale of an old one."""
    return compute_link(
        *(
            get_fitted_items(
                fitted.model, fitted.params, fitted.features, str(fitted.artifact.path)
            )
            for fitted in (new, old)
        )
    )


def make_linked_table(new: LoadedModel, link: ItemLink) -> BatchedTable:
    """Make a table of the new items on the old scale, as `fit --items` reads it."""
    columns = {"feature": new.feature_names, "slope": link.slopes, "offset": link.offsets}
    return collect_columns(columns)


def describe_link(link: ItemLink) -> dict[str, Any]:
    """Describe a link for the summary."""
    return {"A": link.A, "B": link.B, "common": link.common, "difference": link.difference}


def format_link(link: Mapping[str, Any]) -> str:
    """Format the constants of a link as a line of the summary."""
    n = len(link["common"])
    return (
        f"trait of the old fit = A × trait + B with A = {link['A']:.6g}, B = {link['B']:.6g}; "
        f"curves of {n:,} common items differ by {link['difference']:.3g} ones (RMS)"
    )
