"""The steps that a task takes through batches of its rows: contrastive divergence.

The biases are weights of a unit that is always on: E = −(x, 1)ᵀ Θ (h, 1) with Θ = [[W, b], [cᵀ,
0]]. So one matrix product gives the whole gradient: ⟨x hᵀ⟩ of the rows minus ⟨x hᵀ⟩ of the chains
(figure 36.13). Gradient and step use the centred model, E = −(x − μ)ᵀ W (h − λ) − …, in which
features that are mostly on, or mostly off, do not drag all weights along (J. Melchior, A. Fischer,
L. Wiskott, "How to center deep Boltzmann machines", JMLR 17, 2016, eqs 11 to 13). The step must be
centred as well, because Adam scales each number by itself and would undo the centring of the
gradient. Single precision is enough for steps.
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

_MISSING_DRAWS = 3  # Gibbs steps of the missing values before a step


@dataclass(frozen=True)
class ContrastRule:
    """How a batch becomes a step.

    Attributes
    ----------
    optimiser
        Turns gradients into steps.
    n_steps
        Gibbs steps of the chains per batch.
    batch
        Maximum number of rows per batch.
    rate
        Learning rate.
    weight_decay
        This times the weights is subtracted from their gradient.
    sparsity, target
        Strength of the pull on the mean of hidden units, and its target.
    """

    optimiser: Optimiser
    n_steps: int
    batch: int
    rate: float
    weight_decay: float
    sparsity: float
    target: float


class UnitDraws:
    """Random draws of some rows; every random word is used once."""

    def __init__(self, rng: RowRandom, rows: RowNumbers) -> None:
        self._states, self._first = row_states(rng.key, rows), 0

    def fill(self, inputs: Singles, width: int, out: Singles) -> None:
        """Draw units given their inputs."""
        fill_draws(inputs, width, self._states, self._first, out)
        self._first += count_draw_words(width)


class ContrastLearner:
    """The parameters while a task takes steps.

    Attributes
    ----------
    theta
        Θ, (n_features + 1, n_components + 1).
    memory
        Memory of the optimizer.
    n_rows
        Number of rows that steps were taken with.
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
        """Prepare the work space; `theta` and `memory` are changed in place.

        Parameters
        ----------
        rule
            How a batch becomes a step.
        theta
            Θ at the start.
        shares
            μ, the share of ones per feature, (n_features,).
        memory
            Memory of the optimizer.
        chains
            Initial persistent chains, (n_chains, n_features); none if chains start at the rows.
        rng
            Draws of the pass.
        """
        self._rule, self.theta, self.memory, self._shares = rule, theta, memory, shares
        self._missing, self._rng = rng.stream("missing"), rng.stream("chains")
        self._n_chains, self._first, self.n_rows = len(chains), -1, 0
        places = rule.batch + (len(chains) or rule.batch)
        # The rows of a batch end where the chains start, so that both form one matrix.
        self._units = np.ones((places, theta.shape[0]), np.float32)
        self._hidden = np.ones((places, theta.shape[1]), np.float32)
        self._units[rule.batch : rule.batch + len(chains), :-1] = chains
        self._draws: UnitDraws | None = None
        # Reused by every step: newly allocated memory would have to be paged in.
        self._hidden_in = np.empty((places, theta.shape[1] - 1), np.float32)
        self._visible_in = np.empty((places, theta.shape[0] - 1), np.float32)
        self._gradient, self._change = np.empty_like(theta), np.empty_like(theta)

    @property
    def chains(self) -> Bits:
        """State of the persistent chains, (n_chains, n_features)."""
        stop = self._rule.batch + self._n_chains
        return self._units[self._rule.batch : stop, :-1].astype(np.uint8)

    @property
    def chain_keys(self) -> NDArray[np.float64]:
        """Random key per chain, (n_chains,); 2, above all others, if no step was taken."""
        if self._draws is None:
            return np.full(self._n_chains, 2.0)
        keys = self._rng.stream(f"kept, row {self._first}")
        return keys.uniform(np.arange(self._n_chains), 1)[:, 0]

    def step(self, batch: TrainingBatch, at: RowNumbers) -> None:
        """Take a step with some rows of a batch, if there are any."""
        if not len(at):
            return
        middle, rows = self._rule.batch, batch.rows[at]
        own = slice(middle - len(at), middle)
        self._units[own, :-1] = batch.X[at]
        if batch.observed is not None:
            self._fill_missing(own, batch.observed[at], UnitDraws(self._missing, rows))
        is_persistent = self._n_chains > 0
        inputs = self._hidden_inputs(slice(own.start, middle + self._n_chains))
        self._fill_hidden(own, inputs[: len(at)], 1 / len(at))
        chains = self._advance_chains(inputs[len(at) :] if is_persistent else inputs, rows)
        both = slice(own.start, chains.stop)
        gradient = np.matmul(self._units[both].T, self._hidden[both], out=self._gradient)
        activity = self._hidden[own, :-1].sum(axis=0)
        centre_gradient(theta_as_layer(gradient), self._shares, activity)
        self._move(self._regularise(gradient, activity), activity)
        self.n_rows += len(at)

    def _hidden_inputs(self, at: slice) -> Singles:
        return np.matmul(self._units[at], self.theta[:, :-1], out=self._hidden_in[at])

    def _visible_inputs(self, at: slice) -> Singles:
        return np.matmul(self._hidden[at], self.theta[:-1].T, out=self._visible_in[at])

    def _fill_hidden(self, at: slice, inputs: Singles, weight: float) -> None:
        """Set hidden units to their probabilities times a row weight."""
        hidden = self._hidden[at]
        hidden[:, -1] = weight
        fill_probabilities(inputs, inputs.shape[1], hidden, np.float32(weight))

    def _advance_chains(self, inputs: Singles, rows: RowNumbers) -> slice:
        """Take the Gibbs steps from the inputs of hidden units; return the places of the chains."""
        middle, n_chains = self._rule.batch, len(inputs)
        chains = slice(middle, middle + n_chains)
        draws = self._get_chain_draws(rows[0]) if self._n_chains else UnitDraws(self._rng, rows)
        for _ in range(self._rule.n_steps):
            self._fill_visible(chains, inputs, draws)
            inputs = self._hidden_inputs(chains)
        self._fill_hidden(chains, inputs, -1 / n_chains)
        return chains

    def _get_chain_draws(self, row: int) -> UnitDraws:
        """Return the draws of persistent chains, keyed by the first row of the task."""
        if self._draws is None:
            self._first = row
            numbers = np.arange(self._n_chains)
            self._draws = UnitDraws(self._rng.stream(f"row {row}"), numbers)
        return self._draws

    def _fill_visible(self, at: slice, inputs: Singles, draws: UnitDraws) -> None:
        """Draw hidden units given their inputs, then visible units."""
        hidden = self._hidden[at]
        hidden[:, -1] = 1
        draws.fill(inputs, inputs.shape[1], hidden)
        draws.fill(self._visible_inputs(at), len(self._shares), self._units[at])

    def _fill_missing(self, own: slice, observed: Bits, draws: UnitDraws) -> None:
        """Draw missing values by Gibbs steps that start from the shares of ones."""
        units, known = self._units[own], self._units[own, :-1].copy()
        mask = observed.astype(np.bool_)
        units[:, :-1] = np.where(mask, known, self._shares)
        for _ in range(_MISSING_DRAWS):
            self._fill_visible(own, self._hidden_inputs(own), draws)
            np.copyto(units[:, :-1], known, where=mask)

    def _regularise(self, gradient: Singles, activity: Singles) -> Singles:
        rule = self._rule
        if rule.weight_decay:
            gradient[:-1, :-1] -= np.float32(rule.weight_decay) * self.theta[:-1, :-1]
        if rule.sparsity:
            gradient[-1, :-1] += np.float32(rule.sparsity) * (np.float32(rule.target) - activity)
        return gradient

    def _move(self, gradient: Singles, activity: Singles) -> None:
        rule, change = self._rule, self._change
        change.fill(0)
        rule.optimiser.step(change.reshape(-1), gradient.reshape(-1), self.memory, rule.rate)
        layer = theta_as_layer(self.theta)
        apply_centred_step(layer, theta_as_layer(change), self._shares, activity)


def theta_as_layer(theta: Singles) -> Layer:
    """Return Θ as a layer whose weights include the biases, because whole rows are faster."""
    return Layer(theta, theta[:, -1], theta[-1])
