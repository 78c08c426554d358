"""Tables of items on the scale of another fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from flows.data.datasets import LoadedModel
from flows.exporting.files import BatchedTable, make_table
from pipeline.evaluation.linking import ItemLink, compute_link
from pipeline.models.known_items import get_fitted_items


def link_fits(new: LoadedModel, old: LoadedModel) -> ItemLink:
    """Put the items of a fit on the scale of an old one."""
    return compute_link(
        *(
            get_fitted_items(
                fitted.model, fitted.params, fitted.feature_names, str(fitted.artifact.path)
            )
            for fitted in (new, old)
        )
    )


def make_linked_table(new: LoadedModel, link: ItemLink) -> BatchedTable:
    """Make a table of the new items on the old scale, as `fit --items` reads it."""
    return make_table(
        {
            "feature": pa.array(new.feature_names, pa.string()),
            "slope": pa.array(link.slopes),
            "offset": pa.array(link.offsets),
        }
    )


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
