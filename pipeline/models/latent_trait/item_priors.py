"""Prior distributions of the parameters of items, such as `beta(5,17)`.

Guessing and slipping are estimated on the logit scale. A beta prior is a density of the probability
itself, without the Jacobian of the logit, so that its mode is that of the probability.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, expit, log_expit

from pipeline.errors import FitError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

PRIOR_FAMILIES = {
    "slope_prior": ("normal", "lognormal"),
    "offset_prior": ("normal",),
    "guessing_prior": ("beta", "normal"),
    "slipping_prior": ("beta", "normal"),
}
"""Distributions that each setting may have, in the order of the columns of items."""
DEFAULT_ASYMPTOTE_PRIOR = "beta(5,17)"
"""Of guessing and slipping (E. Loken, K. L. Rulison, "Estimation of a four-parameter item response
theory model", British Journal of Mathematical and Statistical Psychology 63, 2010)."""
_PATTERN = re.compile(r"([a-z]+)\(([^,()]+),([^,()]+)\)")
_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_ARGUMENTS = {
    "beta": "beta(5,17) with both numbers at least 1",
    "normal": "normal(0,2) with mean and standard deviation",
    "lognormal": "lognormal(0,0.5) with mean and standard deviation of the logarithm",
}


@dataclass(frozen=True)
class ItemPrior:
    """Prior of a parameter x: `normal`, `lognormal`, or `beta` of the probability σ(x).

    Attributes
    ----------
    family
        Name of the distribution.
    first, second
        The exponents plus 1 of a beta, or mean and standard deviation, of log x if lognormal.
    """

    family: str
    first: float
    second: float

    def compute_log_density(self, x: Array) -> Array:
        """Return log densities of the shape of `x`; −inf outside the support."""
        a, b = self.first, self.second
        if self.family == "beta":
            return np.asarray((a - 1) * log_expit(x) + (b - 1) * log_expit(-x) - betaln(a, b))
        if self.family == "normal":
            return -0.5 * ((x - a) / b) ** 2 - math.log(b) - _LOG_ROOT
        log_x = np.log(np.where(x > 0, x, 1.0))
        density = -0.5 * ((log_x - a) / b) ** 2 - math.log(b) - _LOG_ROOT - log_x
        return np.where(x > 0, density, -np.inf)

    def differentiate(self, x: Array) -> tuple[Array, Array]:
        """Return the gradient of the log density, and minus its second derivative."""
        a, b = self.first, self.second
        if self.family == "beta":
            p = expit(x)
            return (a - 1) * (1 - p) - (b - 1) * p, (a + b - 2) * p * (1 - p)
        if self.family == "normal":
            return -(x - a) / b**2, np.full_like(x, 1 / b**2)
        distance = (np.log(x) - a) / b**2
        return -(1 + distance) / x, (1 / b**2 - distance - 1) / x**2

    @property
    def probability(self) -> float:
        """The most probable probability, of a prior of a guessing or slipping parameter."""
        if self.family == "normal":
            return float(expit(self.first))
        total = self.first + self.second - 2
        return (self.first - 1) / total if total else 0.5


def parse_prior(text: str, name: str, families: tuple[str, ...]) -> ItemPrior | None:
    """Read a prior such as `beta(5,17)`; None if it is `none`.

    Parameters
    ----------
    text
        The value of a setting.
    name
        Name of the setting, for errors.
    families
        The distributions that the setting may have.

    Raises
    ------
    FitError
        If the text is no such distribution.
    """
    compact = text.replace(" ", "").lower()
    if compact == "none":
        return None
    choices = ", ".join(("none", *(_ARGUMENTS[family] for family in families)))
    error = FitError(f"{{{name}}} is {text!r}. Use one of: {choices}.", parameter=name)
    match = _PATTERN.fullmatch(compact)
    if match is None or match[1] not in families:
        raise error
    try:
        prior = ItemPrior(match[1], float(match[2]), float(match[3]))
    except ValueError:
        raise error from None
    numbers = (prior.first, prior.second)
    has_shape = min(numbers) >= 1 if prior.family == "beta" else prior.second > 0
    if not has_shape or not all(map(math.isfinite, numbers)):
        raise error
    return prior


class PlacedPrior(NamedTuple):
    """A prior, and the places of the free parameters that have it."""

    places: Indices
    prior: ItemPrior


def sum_log_prior(free: Array, priors: Sequence[PlacedPrior]) -> float:
    """Return the log prior of the free parameters, (n_free,)."""
    return float(sum(prior.compute_log_density(free[k]).sum() for k, prior in priors))


def differentiate_log_prior(free: Array, priors: Sequence[PlacedPrior]) -> tuple[Array, Array]:
    """Return gradient and minus the second derivatives of the log prior, (n_free,) each."""
    gradient, curvature = np.zeros((2, len(free)))
    for places, prior in priors:
        own_gradient, own_curvature = prior.differentiate(free[places])
        gradient[places] += own_gradient
        curvature[places] += own_curvature
    return gradient, curvature
