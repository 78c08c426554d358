"""Contrastive divergence of one layer on shares between 0 and 1, one Gibbs step long.

Hidden units are drawn given what goes in; the way down and up again takes probabilities, as
G. E. Hinton and R. R. Salakhutdinov do (Science 313, 2006, note 13), whose layers above the first
are given those of the layer below. The slope is ⟨v hᵀ⟩ of what goes in less that of what comes
back, taken of the model written around means (J. Melchior, A. Fischer, L. Wiskott, JMLR 17, 2016),
in which the step should be taken, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.logistic_units import fill_draws
from pipeline.numerics.networks.gradient_steps import centre_gradient
from pipeline.numerics.networks.layered_network import Layer, sigmoid

Singles = NDArray[np.float32]


def fill_contrastive_gradient(
    layer: Layer,
    given: Singles,
    seen: Singles | None,
    states: NDArray[np.uint64],
    slope: Layer,
) -> tuple[Singles, Singles]:
    """Fill in the slope of the model around the rows' means, summed over rows.

    Parameters
    ----------
    layer
        Parameters.
    given
        Shares, 0 where nothing is seen, (n_rows, n_below).
    seen
        1 where something is, else 0; None where everything is. The rest is left out of all sums.
    states
        What the draws of rows come from, (n_rows,).
    slope
        As the layer; overwritten.

    Returns
    -------
    tuple
        The means: of the units below and above, (n_below,) and (n_above,).
    """
    inputs = given @ layer.weights + layer.hidden
    drawn, up = np.empty_like(inputs), sigmoid(inputs)
    fill_draws(inputs, inputs.shape[1], states, 0, drawn)
    back = sigmoid(drawn @ layer.weights.T + layer.visible)
    if seen is not None:
        back *= seen
    up_again = sigmoid(back @ layer.weights + layer.hidden)
    np.matmul(given.T, up, out=slope.weights)
    slope.weights[:] -= back.T @ up_again
    slope.visible[:] = (given - back).sum(axis=0)
    slope.hidden[:] = (up - up_again).sum(axis=0)
    around = given.mean(axis=0), up.mean(axis=0)
    centre_gradient(slope, *around)
    return around
