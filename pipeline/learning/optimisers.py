"""How a gradient becomes a step, uphill: momentum or Adam, with a memory that tasks hand on.

Adam: D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1 in
the order of its section 2. A task begins with the memory that all tasks of the pass before ended
with on the average, weighted by their rows, as parameters do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.networks.gradient_steps import adam_step, momentum_step

Numbers = NDArray[Any]
OptimiserMemory = Mapping[str, Numbers]
OptimiserKind = Literal["adam", "momentum"]

_ADAM_BETA_2 = 0.999


@dataclass(frozen=True)
class Optimiser:
    """Takes steps.

    Attributes
    ----------
    kind
        `adam` or `momentum`.
    momentum
        Share that the mean slope keeps of itself from step to step; of momentum the velocity.
    floor
        Added by Adam to the root of the mean square. Parameters whose slopes are smaller move
        as without Adam, instead of by the noise of their slopes.
    """

    kind: OptimiserKind
    momentum: float
    floor: float

    def make_memory(self, n_numbers: int, dtype: str = "float32") -> OptimiserMemory:
        """Give the memory before the first step of so many parameters."""
        if self.kind == "momentum":
            return {"velocity": np.zeros(n_numbers, dtype)}
        means = {name: np.zeros(n_numbers, dtype) for name in ("first", "second")}
        return {**means, "steps": np.zeros(1, dtype)}

    def step(
        self, parameters: Numbers, slope: Numbers, memory: OptimiserMemory, rate: float
    ) -> None:
        """Change parameters and memory in place.

        Parameters
        ----------
        parameters, slope
            (n_numbers,), of the memory's type.
        memory
            From `memory`.
        rate
            Length of the step.
        """
        number = parameters.dtype.type
        if self.kind == "momentum":
            share = number(self.momentum)
            momentum_step(parameters, slope, memory["velocity"], number(rate), share)
            return
        memory["steps"][0] += 1
        steps, kept = float(memory["steps"][0]), (self.momentum, _ADAM_BETA_2)
        first, second = (1 - share**steps for share in kept)
        length, floor = rate * math.sqrt(second) / first, self.floor * math.sqrt(second)
        gains = (number(1 - kept[0]), number(1 - kept[1]))
        means = memory["first"], memory["second"]
        adam_step(parameters, slope, *means, number(length), gains, number(floor))
