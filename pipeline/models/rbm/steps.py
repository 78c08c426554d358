"""What tasks give of their steps: sums over rows, and chains, each of one of the tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipeline.models.rbm.contrast import ContrastLearner
from pipeline.models.state import Arrays
from pipeline.statistics.sums import StepSums


@dataclass(frozen=True)
class ChainSteps(StepSums):
    """Sums over rows; but `chains`, (n_chains, n_features), and `chain_keys`, (n_chains,), are not.

    Each chain is that of the task with the smallest key.
    """

    def merge(self, other: Self) -> Self:
        """Add further rows, and choose among chains."""
        added, here, there = super().merge(other), self.values, other.values
        first = here["chain_keys"] <= there["chain_keys"]
        chosen = {
            "chains": np.where(first[:, None], here["chains"], there["chains"]),
            "chain_keys": np.minimum(here["chain_keys"], there["chain_keys"]),
        }
        return replace(added, values={**added.values, **chosen})


def add_chains(learner: ContrastLearner, sums: StepSums | None) -> ChainSteps | None:
    """Add where the chains of a task are; None where it had no rows."""
    if sums is None:
        return None
    chains: Arrays = {"chains": learner.chains, "chain_keys": learner.chain_keys}
    return ChainSteps(sums.n_samples, sums.objective, {**sums.values, **chains})
