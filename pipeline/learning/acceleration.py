"""SQUAREM: extrapolates the steps of EM, with a safeguard that keeps the objective rising.

R. Varadhan, C. Roland, "Simple and globally convergent methods for accelerating the convergence of
any EM algorithm", Scandinavian Journal of Statistics 35 (2008), scheme S3. A cycle has three
passes: from θ₀ to θ₁, from θ₁ to θ₂, and one from θ' = θ₀ − 2 α r + α² v with r = θ₁ − θ₀,
v = θ₂ − 2 θ₁ + θ₀ and α = −‖r‖ / ‖v‖. Where θ' is worse than θ₁ was, the fit goes on from θ₂.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
AccelerationMemory = Mapping[str, NDArray[np.float64]]

_FIRST_LIMIT, _GROWTH = 4.0, 4.0


class SquaremStep(NamedTuple):
    """Where the next pass is made.

    Attributes
    ----------
    parameters
        θ of the next pass.
    memory
        What the next call is given.
    accepted
        False where the pass just made was at an extrapolation that is taken back.
    """

    parameters: Array
    memory: AccelerationMemory
    accepted: bool


def choose_squarem_step(
    at: Array, mapped: Array, objective: float, memory: AccelerationMemory
) -> SquaremStep:
    """Choose the next parameters.

    Parameters
    ----------
    at, mapped
        θ of the pass just made, and what EM makes of it: vectors.
    objective
        At `at`.
    memory
        From the step before; empty before the first.
    """
    place, limit = int(memory.get("place", 0)), float(memory.get("limit", _FIRST_LIMIT))
    if place == 0:
        return SquaremStep(mapped, _make_memory(1, limit, start=at), True)
    if place == 1:
        return _extrapolate(memory["start"], at, mapped, objective, limit)
    if objective < float(memory["objective"]):
        return SquaremStep(memory["fallback"], _make_memory(0, max(limit / _GROWTH, 1.0)), False)
    return SquaremStep(mapped, _make_memory(0, limit), True)


def _extrapolate(
    start: Array, middle: Array, end: Array, objective: float, limit: float
) -> SquaremStep:
    r, v = middle - start, end - 2 * middle + start
    length = float(np.linalg.norm(r) / max(np.linalg.norm(v), np.finfo(float).tiny))
    alpha = -float(np.clip(length, 1.0, limit))
    if alpha == -limit:
        limit *= _GROWTH
    memory = _make_memory(2, limit, fallback=end, objective=np.array(objective))
    return SquaremStep(start - 2 * alpha * r + alpha**2 * v, memory, True)


def _make_memory(place: int, limit: float, **more: Array) -> AccelerationMemory:
    return {"place": np.array(float(place)), "limit": np.array(limit), **more}
