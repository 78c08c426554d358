"""Withhold standard errors of fits with more parameters than the data can determine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.errors import FitWarning
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays


def withhold_unidentified_errors(model: Model, state: FitState) -> FitState:
    """Return the state with NaN in place of standard errors, and a warning, if not identified.

    The information is singular then, but rounding and the tolerance of the fit may hide it.
    """
    counts = model.count_parameters(state)
    if counts is None or counts[0] <= counts[1]:
        return state
    n_parameters, n_determined = counts
    text = (
        f"not identified: the fit has {n_parameters:,} free parameters, but these features can "
        f"determine at most {n_determined:,} of them, so other parameters fit equally well; no "
        "standard errors. Use more features, or fewer parameters, for example fewer {components}"
    )
    arrays = {name: values for name, (_, values) in get_named_arrays(state.params).items()}
    errors = {
        name: np.full_like(values, np.nan)
        for name, values in arrays.items()
        if name.endswith("_error")
    }
    if "probabilities_interval" in arrays:
        interval = np.zeros_like(arrays["probabilities_interval"])
        interval[1] = 1.0  # any probability
        errors["probabilities_interval"] = interval
    params = replace(state.params, **errors)
    return replace(state, params=params, warnings=(*state.warnings, FitWarning(text)))
