"""A variational autoencoder that is affine in both directions, with a Gaussian prior per segment.

Decoder: logits y = A z + c of independent bits, z ~ N(μ_u, diag d_u) in segment u. Encoder:
q(z | x, u) is normal with mean Wᵀx + w_u and variances exp(Vᵀx + v_u), where x is centred by given
means and 0 where missing. The bound below log P(x) is E_q log P(x | z) − KL(q ‖ N(μ_u, diag d_u)).
It has a closed form except for an expectation over each y_i, which is normal under q.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.logistic.logistic_units import mean_softplus

Numbers = NDArray[Any]
Array = NDArray[np.float64]
Index = NDArray[np.int64]


class AffineVAE(NamedTuple):
    """Parameters, or their gradient, all of one dtype.

    Attributes
    ----------
    mixing, offsets
        A, (n_features, n_components), and c, (n_features,).
    code_weights, spread_weights
        W and V, (n_features, n_components).
    code_offsets, spread_offsets
        w and v, (n_segments, n_components).
    source_means, log_variances
        μ and log d, (n_segments, n_components).
    """

    mixing: Numbers
    offsets: Numbers
    code_weights: Numbers
    spread_weights: Numbers
    code_offsets: Numbers
    spread_offsets: Numbers
    source_means: Numbers
    log_variances: Numbers

    def flatten(self) -> Numbers:
        """Return all parameters in one vector, (n_numbers,)."""
        return np.concatenate([part.ravel() for part in self])

    def unflatten(self, flat: Numbers) -> AffineVAE:
        """Return parameters of these shapes whose arrays are views of `flat`."""
        ends = np.cumsum([part.size for part in self])[:-1]
        parts = zip(np.split(flat, ends), self, strict=True)
        return AffineVAE(*(values.reshape(part.shape) for values, part in parts))


class VAEBatch(NamedTuple):
    """Rows as numbers of one dtype.

    Attributes
    ----------
    X
        Bits, (n_samples, n_features), 0 where missing.
    inputs
        Bits minus the means of their features, 0 where missing.
    seen
        1 where observed, 0 where missing; None if all values are observed.
    segments
        Place of each row's segment, (n_samples,).
    """

    X: Numbers
    inputs: Numbers
    seen: Numbers | None
    segments: Index


def encoder_moments(vae: AffineVAE, rows: VAEBatch) -> tuple[Numbers, Numbers]:
    """Return the means and the log-variances of q, (n_samples, n_components) each."""
    means = rows.inputs @ vae.code_weights + vae.code_offsets[rows.segments]
    return means, rows.inputs @ vae.spread_weights + vae.spread_offsets[rows.segments]


def lower_bound_gradient(vae: AffineVAE, rows: VAEBatch, noise: Numbers) -> AffineVAE:
    """Compute the gradient of the mean lower bound of rows, with one draw of z per row.

    D. P. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014, eq. 10.

    Parameters
    ----------
    vae, rows
        Parameters and rows of one dtype.
    noise
        Standard normal, (n_samples, n_components): z is the mean of q plus noise times its
        deviation.
    """
    share = rows.X.dtype.type(1 / len(rows.X))
    means, log_spreads = encoder_moments(vae, rows)
    deviations = np.exp(log_spreads / 2)
    z = means + deviations * noise
    error = (rows.X - expit(z @ vae.mixing.T + vae.offsets)) * share
    if rows.seen is not None:
        error *= rows.seen
    down = error @ vae.mixing
    precisions = np.exp(-vae.log_variances[rows.segments]) * share
    pull = (means - vae.source_means[rows.segments]) * precisions
    spread = deviations**2 * precisions
    by_mean = down - pull
    by_log_spread = (down * noise * deviations - spread + share) / 2
    by_log_variance = (spread + pull**2 / precisions - share) / 2
    up = (rows.inputs.T @ by_mean, rows.inputs.T @ by_log_spread)
    row_gradients = np.stack([by_mean, by_log_spread, pull, by_log_variance], axis=1)
    sums = np.zeros((len(vae.source_means), *row_gradients.shape[1:]), row_gradients.dtype)
    np.add.at(sums, rows.segments, row_gradients)
    by_segment = np.ascontiguousarray(np.moveaxis(sums, 1, 0))
    return AffineVAE(error.T @ z, error.sum(axis=0), *up, *by_segment)


def row_lower_bounds(vae: AffineVAE, rows: VAEBatch) -> Array:
    """Compute the bound of each row over its observed values, in nats, (n_samples,)."""
    means, log_spreads = encoder_moments(vae, rows)
    spreads = np.exp(log_spreads)
    logits = means @ vae.mixing.T + vae.offsets
    nats = rows.X * logits - mean_softplus(logits, np.sqrt(spreads @ vae.mixing.T**2))
    if rows.seen is not None:
        nats *= rows.seen
    return np.asarray(nats.sum(axis=1) - _kl_divergences(vae, rows, means, log_spreads), np.float64)


def _kl_divergences(
    vae: AffineVAE, rows: VAEBatch, means: Numbers, log_spreads: Numbers
) -> Numbers:
    """Compute KL(q ‖ prior) of each row, (n_samples,)."""
    differences = means - vae.source_means[rows.segments]
    log_ratios = log_spreads - vae.log_variances[rows.segments]
    scaled = differences**2 * np.exp(-vae.log_variances[rows.segments])
    return np.asarray((np.exp(log_ratios) - log_ratios - 1 + scaled).sum(axis=1) / 2)
