"""Reverse components for a report, so that a named row or feature is at a chosen pole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.data.datasets import LoadedModel
from flows.report.figures.row_plots import ColourLabels
from flows.report.figures.rows import CodedRows, DatasetSample
from pipeline.errors import FitError, format_suggestion
from pipeline.models.base import reverse_components
from storage.named_values import collect_values

Array = NDArray[np.float64]


class Pole(NamedTuple):
    """A row or feature whose position on a component (from 0) should have this sign."""

    name: str
    component: int
    sign: int


def parse_poles(texts: Sequence[str], n_components: int) -> list[Pole]:
    """Parse texts such as `NAME=+1` or `NAME=-2`: the sign, and the number of the component.

    Raises `FitError` or `DataError` if a text has another form, or a component occurs twice.
    """
    poles = [_parse_pole(text, n_components) for text in texts]
    by_component = ((f"component {pole.component + 1}", pole) for pole in poles)
    return [*collect_values("{orient}", by_component).values()]


def _parse_pole(text: str, n_components: int) -> Pole:
    name, _, number = text.rpartition("=")
    is_number = number[:1] in ("+", "-") and number[1:].isdecimal() and int(number[1:]) > 0
    if not name or not is_number:
        raise FitError(
            f"{{orient}} is {text!r}. Write NAME=+1 for a positive position on component 1, or "
            "NAME=-2 for a negative one on component 2."
        )
    if (component := int(number[1:])) > n_components:
        raise FitError(
            f"{{orient}} is {text!r}, but the model has {n_components} component"
            f"{'s' * (n_components != 1)}."
        )
    return Pole(name, component - 1, 1 if number[0] == "+" else -1)


def orient_components(
    fitted: LoadedModel,
    sample: DatasetSample | None,
    names: ColourLabels | None,
    texts: Sequence[str],
) -> tuple[LoadedModel, DatasetSample | None]:
    """Reverse components so that named rows or features have positions of the given signs.

    Parameters
    ----------
    fitted, sample
        The fitted model and, if available, some rows.
    names
        Names of these rows, if they have any. A name of a row and of a feature means the row. The
        position of a row counts from the mean of all rows, that of a feature is its loading.
    texts
        See `parse_poles`.
    """
    if not texts:
        return fitted, sample
    if not fitted.model.signed_arrays:
        raise FitError(
            f"The sign of a component of {fitted.model.name} has a meaning. Leave out {{orient}}."
        )
    coded = sample.coded_rows if sample else None
    row_names = [str(value) for value in names.values] if names else []
    signs = np.ones(int(fitted.artifact.manifest["n_components"]))
    for pole in parse_poles(texts, len(signs)):
        value = _find_position(fitted, coded, row_names, pole)
        signs[pole.component] = pole.sign * (-1.0 if value < 0 else 1.0)
    arrays = reverse_components(fitted.model, fitted.params, signs)
    params = replace(fitted.params, **arrays)
    fitted = replace(fitted, params=params, artifact=fitted.artifact.replace_arrays(arrays))
    if sample is not None and coded is not None:
        sample = replace(sample, coded_rows=replace(coded, codes=coded.codes * signs))
    return fitted, sample


def _find_position(
    fitted: LoadedModel, coded: CodedRows | None, names: list[str], pole: Pole
) -> float:
    if pole.name in names and coded is not None:
        codes = coded.codes[:, pole.component]
        return float(codes[names.index(pole.name)] - codes.mean())
    if pole.name not in fitted.feature_names:
        known = [*dict.fromkeys(names), *fitted.feature_names]
        raise FitError(
            f"{{orient}} is {pole.name!r}, but no row of the report and no feature has this name."
            f"{format_suggestion(pole.name, known)}"
        )
    feature = fitted.feature_names.index(pole.name)
    for name in fitted.model.signed_arrays:
        if fitted.artifact.dims(name) == ("feature", "component"):
            return float(fitted.artifact[name][feature, pole.component])
    if coded is None:
        raise FitError("{orient} needs rows, which are no longer available. Use {dataset}.")
    values = coded.values[:, feature].astype(np.float64)
    is_observed = np.isfinite(values)
    centred = values[is_observed] - values[is_observed].mean()
    return float(centred @ coded.codes[is_observed, pole.component])
