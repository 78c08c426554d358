"""Tables of the information that items give about a trait."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flows.data.datasets import LoadedModel
from flows.exporting.files import BatchedTable, make_table
from pipeline.errors import FitError
from pipeline.models.capabilities import HasItemInformation, ItemCurves
from pipeline.models.registry import find_models
from pipeline.numerics.logistic.information import choose_short_test, find_reversed_items

_LEVELS = np.linspace(-4, 4, 81)


def make_information_table(fitted: LoadedModel) -> BatchedTable:
    """Make a table of the information of the test and of each item at levels of the trait."""
    curves = _get_item_curves(fitted)
    by_item, score = curves.compute_information(_LEVELS), curves.compute_expected_score(_LEVELS)
    total = by_item.sum(axis=1)
    columns = {
        "trait": _LEVELS,
        "information": total,
        "standard_error": 1 / np.sqrt(np.where(total > 0, total, np.nan)),
        "expected_score": score,
        **{
            f"information_{name}": np.ascontiguousarray(values)
            for name, values in zip(fitted.feature_names, by_item.T, strict=True)
        },
    }
    return make_table(
        {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    )


def list_reversed_items(fitted: LoadedModel) -> list[str]:
    """Return the names of the items that the expected score counts in reverse."""
    is_reversed = find_reversed_items(_get_item_curves(fitted).slopes)
    return [fitted.feature_names[item] for item in np.flatnonzero(is_reversed)]


def make_short_test_table(fitted: LoadedModel, n_items: int) -> BatchedTable:
    """Make a table of the most informative items, in the order in which they are chosen."""
    curves = _get_item_curves(fitted)
    slopes, offsets, asymptotes = curves.slopes, curves.offsets, curves.asymptotes
    if not 1 <= n_items <= len(slopes):
        raise FitError(
            f"{{items}} is {n_items}, but the fit has {len(slopes):,} items. "
            f"Choose 1 to {len(slopes):,}."
        )
    chosen, reliability = choose_short_test(curves.compute_information, n_items)
    names = [fitted.feature_names[item] for item in chosen]
    columns = {"feature": pa.array(names, pa.string())}
    columns |= {"slope": pa.array(slopes[chosen]), "offset": pa.array(offsets[chosen])}
    if asymptotes is not None:
        columns |= {name: pa.array(v[chosen]) for name, v in asymptotes._asdict().items()}
    return make_table({**columns, "reliability": pa.array(reliability)})


def _get_item_curves(fitted: LoadedModel) -> ItemCurves:
    if not isinstance(fitted.model, HasItemInformation):
        kinds = find_models().items()
        able = [name for name, kind in kinds if issubclass(kind, HasItemInformation)]
        raise FitError(
            f"{fitted.artifact.path} is of {fitted.model.name}, whose items have no information "
            f"curves. Fit {', '.join(able)} with {{components=1}}."
        )
    return fitted.model.get_item_curves(fitted.params)
