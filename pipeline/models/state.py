"""The state of a fit, which models update and checkpoints store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from pipeline.errors import FitWarning

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class FitState:
    """State of a fit; everything that a resumed run needs.

    Attributes
    ----------
    params
        The model's parameters, a frozen dataclass of arrays, which the artifact will hold.
    working
        Values that tasks need only during the fit, such as the share of held-out rows, a
        temperature or a learning rate. They are sent with every task.
    auxiliary
        Values that only the central step needs; they are not sent to tasks.
    acceleration
        Memory of the acceleration, managed by the loop.
    iteration
        Number of passes done.
    history
        Objective per row after each pass of this stage.
    best
        Parameters of the best pass of this stage, if the criterion keeps them.
    diagnostics
        Small values for the artifact, by name.
    warnings
        Warnings for the user.
    starts
        Starts that share passes until all have ended; the fit continues from the best. Until then
        `params` are the parameters of the first start.
    done
        Whether the fit has ended; for a start, whether its stage has.
    independent
        Log-likelihood per row of independent features with the margins of the data, nats; None if
        it is not known.
    converged
        Whether the last stage had converged when it ended; False before.
    is_on_sample
        Whether passes read a sample of the rows, see `pipeline.fitting.sample_start`. Such states
        are not stored.
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
    independent: float | None = None
    converged: bool = False
    is_on_sample: bool = False

    def with_feature_names(self, names: Sequence[str]) -> FitState:
        """Return the state with names in place of the indices of features in its warnings."""
        return replace(self, warnings=tuple(w.with_names(names) for w in self.warnings))

    def with_warning(self, text: str) -> FitState:
        """Return the state with one more warning."""
        return replace(self, warnings=(*self.warnings, FitWarning(text)))

    def with_warnings(self, warnings: Sequence[FitWarning]) -> FitState:
        """Return the state, and its starts, with more warnings."""
        starts = tuple(start.with_warnings(warnings) for start in self.starts)
        return replace(self, warnings=(*self.warnings, *warnings), starts=starts)

    @property
    def running_states(self) -> tuple[FitState, ...]:
        """The states that the next pass updates: the running starts, or this state."""
        return tuple(start for start in self.starts if not start.done) or (self,)
