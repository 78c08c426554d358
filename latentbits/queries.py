"""Conditional probabilities of features of a fitted model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latentbits.fitted import Fitted, FittedEstimator, find_fitted
from pipeline.data.matching import find_segment_index, map_fitted_segments
from pipeline.data.tables import list_names
from pipeline.errors import FitError
from pipeline.inference.query import SEGMENT_REMEDY, QueryAnswer, answer_query, make_query

if TYPE_CHECKING:
    from storage.stores.locations import AnyPath


def query(
    fitted: Fitted | FittedEstimator | str | AnyPath,
    given: Mapping[str, Any] | None = None,
    of: Sequence[str] | str = (),
    *,
    joint: bool = False,
    segment: str | None = None,
) -> QueryAnswer:
    """Compute probabilities of features, given the values of other features.

    Features that are neither in `given` nor in `of` may have any value: the likelihood of the model
    integrates them out.

    Parameters
    ----------
    fitted
        The fitted model: the result of `fit`, a fitted estimator, or the path of a fit.
    given
        The evidence: a level, or the number of a continuous feature, by feature. None means no
        evidence.
    of
        Names of the features whose probabilities to compute, or one name.
    joint
        Compute the probabilities of all combinations of their levels, instead of each feature.
    segment
        Name of a segment, or group, of the fit. None takes all, with their shares of the fitted
        rows.

    Returns
    -------
    QueryAnswer
        Columns of a table, also for a data frame: one line per level of each feature, with
        `probability`, `marginal` (without evidence) and `lift`, their ratio. `log_evidence` is the
        log-probability of the evidence.

    Raises
    ------
    FitError
        If a name or a level is unknown, the evidence is impossible, or the model has no accurate
        likelihood.

    Examples
    --------
    >>> import pandas as pd
    >>> answer = query("runs/baskets", {"milk": 1}, ["bread", "butter"])  # doctest: +SKIP
    >>> pd.DataFrame(answer)  # doctest: +SKIP
    """
    own = find_fitted(fitted)
    names = [of] if isinstance(of, str) else list_names(of, "of")
    if not isinstance(given, Mapping | None):
        raise FitError(f"given must be a dictionary of values, but is a {type(given).__name__}.")
    checked = make_query(own.features, given or {}, names, joint=joint)
    index = None
    if segment is not None:
        segments = map_fitted_segments(own.params, own.segment_names)
        index = find_segment_index(segments, segment, SEGMENT_REMEDY)
    return answer_query(own.model, own.params, checked, index)
