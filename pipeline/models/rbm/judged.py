"""Rows that a pass is judged by, kept until its last batch: scored at once they cost less."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.batches import Batch
from pipeline.numerics.boltzmann_rows import Machine, pseudo_likelihoods

Bits = NDArray[np.uint8]


class Judged:
    """Rows of batches, with their masks where values are missing."""

    def __init__(self) -> None:
        self._whole: list[Bits] = []
        self._masked: list[tuple[Bits, Bits]] = []

    def add(self, batch: Batch, at: NDArray[np.int64]) -> None:
        """Take some rows of a batch."""
        if batch.observed is None:
            self._whole.append(batch.X[at])
        else:
            self._masked.append((batch.X[at], batch.observed[at]))

    def score(self, machine: Machine) -> tuple[int, float]:
        """Count the rows, and sum their pseudo-log-likelihoods."""
        scores = []
        if self._whole:
            scores.append(pseudo_likelihoods(machine, np.concatenate(self._whole), None))
        if self._masked:
            X, observed = (np.concatenate(parts) for parts in zip(*self._masked, strict=True))
            scores.append(pseudo_likelihoods(machine, X, observed))
        return sum(map(len, scores)), float(sum(nats.sum() for nats in scores))
