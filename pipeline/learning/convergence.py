"""When an iterative fit is done: converged and stopped are different answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ConvergenceMonitor:
    """Judges a history of objectives.

    Attributes
    ----------
    max_iter
        Number of passes at the most.
    tol
        Change of the objective per row, relative where that is above 1, below which a fit has
        converged; 0 for a model that is done after its one pass.
    """

    max_iter: int
    tol: float

    def converged(self, history: Sequence[float]) -> bool:
        """Tell whether the last pass changed nothing that matters."""
        if self.max_iter == 1 and self.tol == 0:
            return len(history) >= 1
        if len(history) < 2:
            return False
        before, last = history[-2:]
        return abs(last - before) <= self.tol * max(1.0, abs(last))

    def stopped(self, history: Sequence[float]) -> bool:
        """Tell whether there are no passes left, converged or not."""
        return len(history) >= self.max_iter

    def warning(self, history: Sequence[float]) -> str | None:
        """Say so when the fit stopped before it converged."""
        if self.converged(history) or not self.stopped(history):
            return None
        last = ", ".join(f"{value:.6f}" for value in history[-2:])
        return f"stopped at max_iter={self.max_iter} before converging; last objectives: {last}"
