"""Steps that a task takes through batches of its rows: contrastive divergence, plain or persistent.

Biases are weights of a unit that is always on: E = −(x, 1)ᵀ Θ (h, 1) with Θ = [[W, b], [cᵀ, 0]], so
that one product of matrices gives the whole gradient, ⟨x hᵀ⟩ of the rows less that of the chains
(figure 36.13). It is taken of the model written around means, E = −(x − μ)ᵀ W (h − λ) − …, which is
the same model but not the same step: features that are mostly on, or mostly off, do not drag all
weights along (J. Melchior, A. Fischer, L. Wiskott, "How to center deep Boltzmann machines", JMLR
17, 2016, eqs 11 to 13). Steps are taken there too: Adam, which scales each number by itself, would
else undo what the means are for. Single precision is enough for steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import Optimiser, OptimiserMemory
from pipeline.numerics.logistic.logistic_units import (
    count_draw_words,
    fill_draws,
    fill_probabilities,
    row_states,
)
from pipeline.numerics.networks.gradient_steps import apply_centred_step, centre_gradient
from pipeline.numerics.networks.layered_network import Layer
from pipeline.random import RowRandom

Singles = NDArray[np.float32]
Bits = NDArray[np.uint8]
RowNumbers = NDArray[np.int64]

_MISSING_DRAWS = 3
"""Times that missing values are drawn, given the hidden units, before a step."""


@dataclass(frozen=True)
class ContrastRule:
    """How a batch becomes a step.

    Attributes
    ----------
    optimiser
        Turns gradients into steps.
    n_steps
        Gibbs steps of the chains for a batch.
    batch
        Rows of a batch at the most.
    rate
        Length of a step.
    weight_decay
        Times the weights, is taken off their gradient.
    sparsity, target
        Strength with which hidden units are pulled to a share of ones, and that share.
    """

    optimiser: Optimiser
    n_steps: int
    batch: int
    rate: float
    weight_decay: float
    sparsity: float
    target: float


class UnitDraws:
    """Draws of some rows: no word of theirs is used twice."""

    def __init__(self, rng: RowRandom, rows: RowNumbers) -> None:
        self._states, self._first = row_states(rng.key, rows), 0

    def fill(self, inputs: Singles, width: int, out: Singles) -> None:
        """Draw units by their inputs."""
        fill_draws(inputs, width, self._states, self._first, out)
        self._first += count_draw_words(width)


class ContrastLearner:
    """Parameters on their way through the batches of a task.

    Attributes
    ----------
    theta
        Θ, (n_features + 1, n_components + 1).
    memory
        Of the optimiser.
    n_rows
        Rows that steps were taken with.
    """

    def __init__(
        self,
        rule: ContrastRule,
        theta: Singles,
        shares: Singles,
        memory: OptimiserMemory,
        chains: Bits,
        rng: RowRandom,
    ) -> None:
        """Begin; `theta` and `memory` are changed in place.

        Parameters
        ----------
        rule, theta, memory, rng
            As above.
        shares
            μ, (n_features,).
        chains
            Where chains that go on begin, (n_chains, n_features); none where they begin at the
            rows of every batch.
        """
        self._rule, self.theta, self.memory, self._shares = rule, theta, memory, shares
        self._missing, self._rng = rng.stream("missing"), rng.stream("chains")
        self._n_chains, self._first, self.n_rows = len(chains), -1, 0
        places = rule.batch + (len(chains) or rule.batch)
        # Rows of a batch end where the chains begin, so that both are one matrix.
        self._units = np.ones((places, theta.shape[0]), np.float32)
        self._hidden = np.ones((places, theta.shape[1]), np.float32)
        self._units[rule.batch : rule.batch + len(chains), :-1] = chains
        self._draws: UnitDraws | None = None
        # Used again by every step: memory that is asked for anew is paged in anew.
        self._hidden_in = np.empty((places, theta.shape[1] - 1), np.float32)
        self._visible_in = np.empty((places, theta.shape[0] - 1), np.float32)
        self._slope, self._move = np.empty_like(theta), np.empty_like(theta)

    @property
    def chains(self) -> Bits:
        """Where the chains are, (n_chains, n_features); none where they do not go on."""
        stop = self._rule.batch + self._n_chains
        return self._units[self._rule.batch : stop, :-1].astype(np.uint8)

    @property
    def chain_keys(self) -> NDArray[np.float64]:
        """Draw for each chain, above all others where no step was taken: (n_chains,)."""
        if self._draws is None:
            return np.full(self._n_chains, 2.0)
        keys = self._rng.stream(f"kept, row {self._first}")
        return keys.uniform(np.arange(self._n_chains), 1)[:, 0]

    def step(self, batch: TrainingBatch, at: RowNumbers) -> None:
        """Take the step of some rows of a batch; none where there are no rows."""
        if not len(at):
            return
        middle, rows = self._rule.batch, batch.rows[at]
        own = slice(middle - len(at), middle)
        self._units[own, :-1] = batch.X[at]
        if batch.observed is not None:
            self._fill_missing(own, batch.observed[at], UnitDraws(self._missing, rows))
        goes_on = self._n_chains > 0
        inputs = self._hidden_inputs(slice(own.start, middle + self._n_chains))
        self._fill_hidden(own, inputs[: len(at)], 1 / len(at))
        chains = self._advance_chains(inputs[len(at) :] if goes_on else inputs, rows)
        both = slice(own.start, chains.stop)
        slope = np.matmul(self._units[both].T, self._hidden[both], out=self._slope)
        activity = self._hidden[own, :-1].sum(axis=0)
        centre_gradient(theta_as_layer(slope), self._shares, activity)
        self._climb(self._regularise(slope, activity), activity)
        self.n_rows += len(at)

    def _hidden_inputs(self, at: slice) -> Singles:
        return np.matmul(self._units[at], self.theta[:, :-1], out=self._hidden_in[at])

    def _visible_inputs(self, at: slice) -> Singles:
        return np.matmul(self._hidden[at], self.theta[:-1].T, out=self._visible_in[at])

    def _fill_hidden(self, at: slice, inputs: Singles, weight: float) -> None:
        """Set hidden units to their probabilities times the weight of a row."""
        hidden = self._hidden[at]
        hidden[:, -1] = weight
        fill_probabilities(inputs, inputs.shape[1], hidden, np.float32(weight))

    def _advance_chains(self, inputs: Singles, rows: RowNumbers) -> slice:
        """Let the chains take their steps, given hidden units' inputs; give where they are."""
        middle, n_chains = self._rule.batch, len(inputs)
        chains = slice(middle, middle + n_chains)
        draws = self._get_chain_draws(rows[0]) if self._n_chains else UnitDraws(self._rng, rows)
        for _ in range(self._rule.n_steps):
            self._fill_visible(chains, inputs, draws)
            inputs = self._hidden_inputs(chains)
        self._fill_hidden(chains, inputs, -1 / n_chains)
        return chains

    def _get_chain_draws(self, row: int) -> UnitDraws:
        """Give the draws of chains that go on, keyed by the first row of the task."""
        if self._draws is None:
            self._first = row
            numbered = np.arange(self._n_chains)
            self._draws = UnitDraws(self._rng.stream(f"row {row}"), numbered)
        return self._draws

    def _fill_visible(self, at: slice, inputs: Singles, draws: UnitDraws) -> None:
        """Draw hidden units by their inputs, then visible ones."""
        hidden = self._hidden[at]
        hidden[:, -1] = 1
        draws.fill(inputs, inputs.shape[1], hidden)
        draws.fill(self._visible_inputs(at), len(self._shares), self._units[at])

    def _fill_missing(self, own: slice, observed: Bits, draws: UnitDraws) -> None:
        """Draw missing values, from their shares at first, then given the hidden units."""
        units, known = self._units[own], self._units[own, :-1].copy()
        seen = observed.astype(np.bool_)
        units[:, :-1] = np.where(seen, known, self._shares)
        for _ in range(_MISSING_DRAWS):
            self._fill_visible(own, self._hidden_inputs(own), draws)
            np.copyto(units[:, :-1], known, where=seen)

    def _regularise(self, slope: Singles, activity: Singles) -> Singles:
        rule = self._rule
        if rule.weight_decay:
            slope[:-1, :-1] -= np.float32(rule.weight_decay) * self.theta[:-1, :-1]
        if rule.sparsity:
            slope[-1, :-1] += np.float32(rule.sparsity) * (np.float32(rule.target) - activity)
        return slope

    def _climb(self, slope: Singles, activity: Singles) -> None:
        rule, move = self._rule, self._move
        move.fill(0)
        rule.optimiser.step(move.reshape(-1), slope.reshape(-1), self.memory, rule.rate)
        apply_centred_step(theta_as_layer(self.theta), theta_as_layer(move), self._shares, activity)


def theta_as_layer(theta: Singles) -> Layer:
    """Give Θ as a layer, whose weights go on into the biases: whole rows are faster."""
    return Layer(theta, theta[:, -1], theta[-1])
