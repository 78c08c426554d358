"""Reverse components for a report, so that a named row or feature is at a chosen pole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flows.data.datasets import LoadedModel
from flows.report.figures.row_plots import ColourLabels
from flows.report.figures.rows import DatasetSample
from pipeline.inference.orientation import (
    RowPositions,
    check_has_free_signs,
    choose_signs,
    parse_poles,
)
from pipeline.models.base import reverse_components
from pipeline.params import replace_arrays


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
    check_has_free_signs(fitted.model)
    n_components = int(fitted.artifact.manifest["n_components"])
    positions = None
    if sample is not None:
        coded = sample.coded_rows
        row_names = [str(value) for value in names.values] if names else []
        # The first row of a name that several rows have.
        named = dict(zip(reversed(row_names), coded.codes[: len(row_names)][::-1], strict=True))
        positions = RowPositions(named, coded.codes, coded.values)
    signs = choose_signs(
        fitted.model,
        fitted.params,
        n_components,
        fitted.feature_names,
        parse_poles(texts, n_components),
        positions,
    )
    arrays = reverse_components(fitted.model, fitted.params, signs)
    params = replace_arrays(fitted.params, arrays)
    fitted = replace(fitted, params=params, artifact=fitted.artifact.replace_arrays(arrays))
    if sample is not None:
        codes = sample.coded_rows.codes * signs
        sample = replace(sample, coded_rows=replace(sample.coded_rows, codes=codes))
    return fitted, sample
