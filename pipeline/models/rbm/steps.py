"""What tasks give of their steps: sums over rows, and chains, each of one of the tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from pipeline.models.rbm.contrast import Learner
from pipeline.models.state import Arrays
from pipeline.statistics.sums import Sums


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


def steps_of(learner: Learner, sums: Sums | None) -> Steps | None:
    """Add where the chains of a task are; None where it had no rows."""
    if sums is None:
        return None
    chains: Arrays = {"chains": learner.chains, "chain_keys": learner.chain_keys}
    return Steps(sums.n_samples, sums.objective, {**sums.values, **chains})
