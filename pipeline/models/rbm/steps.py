"""What tasks give of their steps: sums over rows, and chains, each of one of the tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.models.rbm.contrast import Learner
from pipeline.models.state import Arrays
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Steps(Sums):
    """Sums over rows; but `chains`, (n_chains, n_features), and `chain_keys`, (n_chains,), are not.

    Each chain is that of the task with the smallest key.
    """

    label: ClassVar[str] = "steps"

    def merge(self, other: Self) -> Self:
        """Add further rows, and choose among chains."""
        added, here, there = super().merge(other), self.values, other.values
        first = here["chain_keys"] <= there["chain_keys"]
        chosen = {
            "chains": np.where(first[:, None], here["chains"], there["chains"]),
            "chain_keys": np.minimum(here["chain_keys"], there["chain_keys"]),
        }
        return replace(added, values={**added.values, **chosen})


def steps_of(learner: Learner, change: Array, n_rows: int, n_judged: int, nats: float) -> Steps:
    """Give what a task has done.

    Parameters
    ----------
    learner
        After the last batch.
    change
        Of Θ.
    n_rows
        All rows of the task.
    n_judged, nats
        Rows that the pass is judged by, and their score.
    """
    means = {"theta": change, **learner.memory}
    values = {name: learner.n_rows * np.asarray(a, np.float64) for name, a in means.items()}
    counts = {"n_fitted": np.array(learner.n_rows), "n_judged": np.array(n_judged)}
    chains: Arrays = {"chains": learner.chains, "chain_keys": learner.chain_keys}
    return Steps(n_rows, nats, {**values, **counts, **chains})
