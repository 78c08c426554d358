"""Known items from data frames, dictionaries, files and fitted models, and links of two fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latentbits.fitted import Fitted, FittedEstimator, find_fitted
from pipeline.data.batches import list_columns, read_columns
from pipeline.data.display import DisplayItems, ResultDisplayMixin
from pipeline.data.tables import wrap_frame
from pipeline.evaluation.linking import ItemLink, compute_link
from pipeline.models.known_items import KnownItems, get_fitted_items, parse_known_items

if TYPE_CHECKING:
    from storage.stores.locations import AnyPath


def read_items(items: Any) -> KnownItems:
    """Read known items from anything that `fit` takes.

    Raises
    ------
    ValueError
        If they cannot be read; see `pipeline.models.known_items.parse_known_items`.
    """
    items = getattr(items, "fitted_", items)
    if isinstance(items, Fitted):
        digest = items.manifest.get("manifest_digest")
        return get_fitted_items(items.model, items.params, items.feature_names, "the fit", digest)
    if isinstance(items, str | Path):
        from flows.data.parameter_tables import read_known_items  # imports what reads files

        return read_known_items(str(items))
    if not isinstance(items, Mapping):
        remedy = "Give the columns feature, slope and offset."
        frame = wrap_frame(items, remedy)
        items = read_columns(frame, list_columns(frame))
    return parse_known_items({k: list(np.atleast_1d(v)) for k, v in items.items()}, "the table")


class LinkedItems(ResultDisplayMixin, dict[str, Any]):
    """Results of `link_items`: columns of a table of items, for `fit(items=…)` or a data frame.

    `feature`, `slope` and `offset` are the items of the new fit on the scale of the old one.

    Attributes
    ----------
    A, B
        The constants: a trait x of the new fit is A x + B on the scale of the old one.
    common
        Names of the items in both fits.
    difference
        Root mean squared difference of the test characteristic curves of the common items, in ones.
    """

    def __init__(self, features: tuple[str, ...], link: ItemLink) -> None:
        super().__init__(feature=list(features), slope=link.slopes, offset=link.offsets)
        self.A, self.B = link.A, link.B
        self.common, self.difference = link.common, link.difference

    def _iter_display_items(self) -> DisplayItems:
        yield "A", f"{self.A:.6g}"
        yield "B", f"{self.B:.6g}"
        yield "common items", f"{len(self.common):,}"
        yield "difference", f"{self.difference:.3g}"
        yield "items", f"{len(self['feature']):,}"


def link_items(
    new: Fitted | FittedEstimator | str | AnyPath, old: Fitted | FittedEstimator | str | AnyPath
) -> LinkedItems:
    """Put the items of a latent-trait fit on the scale of another one with common items.

    The constants of the scale minimise the difference of the test characteristic curves of the
    common items (M. L. Stocking, F. M. Lord, Applied Psychological Measurement 7, 1983).

    Parameters
    ----------
    new, old
        Fits with one component each: results of `fit`, fitted estimators, or paths. Items are
        matched by name.

    Raises
    ------
    FitError
        If a fit is of another model or has several components, or fewer than two items are common.
    """
    own = find_fitted(new)
    items = [
        get_fitted_items(fitted.model, fitted.params, fitted.feature_names, source)
        for fitted, source in ((own, "The new fit"), (find_fitted(old), "the old fit"))
    ]
    return LinkedItems(own.feature_names, compute_link(*items))
