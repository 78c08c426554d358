"""Where a fit is: what a model makes, the loop passes on and a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pipeline.errors import FitWarning

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class FitState:
    """Everything that a resumed run needs.

    Attributes
    ----------
    params
        The model's parameters, a frozen dataclass of arrays: what the artifact holds.
    working
        What tasks need during the fit alone, such as the share of rows held out, a temperature or
        a learning rate. It is sent with every task.
    auxiliary
        What the central step keeps from pass to pass; tasks never see it.
    acceleration
        Memory of the extrapolation, kept by the loop.
    iteration
        Passes done.
    history
        Objective per row after each pass of this stage.
    best
        Parameters of the best pass of this stage, where it ends with these.
    diagnostics
        Small values for the artifact, by name.
    warnings
        What the user must be told.
    starts
        Starts that share the passes until all of them have ended; the best goes on. Meanwhile the
        parameters are those of the first.
    done
        The fit has ended; of a start: its stage has.
    """

    params: Any
    working: Arrays = field(default_factory=dict)
    auxiliary: Arrays = field(default_factory=dict)
    acceleration: Arrays = field(default_factory=dict)
    iteration: int = 0
    history: tuple[float, ...] = ()
    best: Any = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[FitWarning, ...] = ()
    starts: tuple[FitState, ...] = ()
    done: bool = False

    @property
    def running_states(self) -> tuple[FitState, ...]:
        """The states that the next pass is made with: the starts under way, or this one."""
        return tuple(start for start in self.starts if not start.done) or (self,)
