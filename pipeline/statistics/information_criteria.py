"""Statistics of fits by maximum likelihood: information criteria, entropy, fit to all patterns.

=================  =============================  ==================================================
statistic          definition                     source
=================  =============================  ==================================================
log_likelihood     Σ w log P(x), without priors
n_parameters       number p of free parameters
n_rows             n = Σ w
aic                2 p − 2 log L                  H. Akaike, IEEE Trans. Automatic Control 19 (1974)
bic                p log n − 2 log L              G. Schwarz, Annals of Statistics 6 (1978)
adjusted_bic       p log((n + 2) / 24) − 2 log L  S. L. Sclove, Psychometrika 52 (1987)
caic               p (log n + 1) − 2 log L        H. Bozdogan, Psychometrika 52 (1987)
entropy_r2         1 − E / (n H(π))               J. K. Vermunt, J. Magidson, Technical Guide for
                                                  Latent GOLD 5.1 (2016), section 7.2.3
relative_entropy   1 − E / (n log K)              V. Ramaswamy et al., Marketing Science 12 (1993)
g2                 2 Σ_c n_c log(n_c / e_c)       A. Agresti, Categorical Data Analysis (2013), 1.5
pearson            Σ_c (n_c − e_c)² / e_c         K. Pearson, Philosophical Magazine 50 (1900)
=================  =============================  ==================================================

w are the weights of rows, K is the number of classes, E = Σ w Σ_k −p_k log p_k is the entropy of
the posterior probabilities p of classes, and H(π) that of their means π. n_c of n rows have the
pattern of values c, and e_c = n P(c) are expected.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from pipeline.arrays import Array

_MIN_ROWS_PER_PATTERN = 5  # on average; with fewer, G² and χ² are far from a χ² distribution


def compute_criteria(
    log_likelihood: float, n_parameters: int, weight: float, *, has_sampling_weights: bool
) -> dict[str, Any]:
    """Return the log-likelihood and the information criteria, or why there are none.

    Parameters
    ----------
    log_likelihood
        Of all rows times their weights, nats, without terms of a prior.
    n_parameters
        Number of free parameters.
    weight
        Sum of the weights of the rows.
    has_sampling_weights
        Whether weights are of a survey, for which the criteria are not defined.
    """
    found: dict[str, Any] = {
        "log_likelihood": log_likelihood,
        "n_parameters": n_parameters,
        "n_rows": int(weight) if float(weight).is_integer() else weight,
    }
    if has_sampling_weights:
        return {**found, "aic_missing": "the rows have sampling weights"}
    deviance, log_rows = -2 * log_likelihood, float(np.log(weight))
    return {
        **found,
        "aic": 2 * n_parameters + deviance,
        "bic": n_parameters * log_rows + deviance,
        "adjusted_bic": n_parameters * float(np.log((weight + 2) / 24)) + deviance,
        "caic": n_parameters * (log_rows + 1) + deviance,
    }


def describe_entropy(entropy: float, mass: Array) -> dict[str, float]:
    """Return how clearly rows belong to classes: 1 if certainly, 0 if by chance.

    Parameters
    ----------
    entropy
        Entropy of the posterior probabilities of all rows times their weights, nats.
    mass
        Sum of these probabilities of each class, (n_components,).
    """
    weight, n_components = float(mass.sum()), len(mass)
    if n_components == 1:
        return {}
    by_chance = weight * float(scipy.special.entr(mass / weight).sum())
    return {
        "entropy_r2": 1 - entropy / by_chance if by_chance > 0 else 1.0,
        "relative_entropy": 1 - entropy / (weight * float(np.log(n_components))),
    }


def describe_patterns(counts: Array, nats: Array, n_parameters: int) -> dict[str, Any]:
    """Return G² and Pearson's χ² of the table of all patterns of values, or why there are none.

    Patterns with a level that no row has do not count. As in poLCA, the degrees of freedom of a
    table with more patterns than rows are those of as many patterns as rows. G² and χ² have a χ²
    distribution only if there are several rows per pattern.

    Parameters
    ----------
    counts
        Number of rows by group and pattern, (n_groups, n_levels of each feature …).
    nats
        Sum of log P of these rows, of the same shape.
    n_parameters
        Number of free parameters.
    """
    n_features = counts.ndim - 1
    others = (tuple({*range(n_features + 1)} - {k}) for k in range(n_features + 1))
    n_groups, *n_levels = (int((counts.sum(axis=axes) > 0).sum()) for axes in others)
    n_patterns, n_rows = n_groups * math.prod(n_levels), float(counts.sum())
    df = int(min(n_rows, n_patterns - n_groups)) - n_parameters
    if df < 1:
        return {
            "g2_missing": f"{n_parameters:,} parameters leave no degree of freedom of "
            f"{n_patterns:,} patterns of values"
        }
    totals = np.broadcast_to(
        counts.sum(axis=tuple(range(1, n_features + 1)), keepdims=True), counts.shape
    )
    is_present = counts > 0
    observed = counts[is_present]
    expected = totals[is_present] * np.exp(nats[is_present] / observed)
    # Patterns without rows add nothing to G², and what is expected of them to χ².
    pearson = float(((observed - expected) ** 2 / expected).sum() + n_rows - expected.sum())
    found = {
        "g2": 2 * float(scipy.special.rel_entr(observed, expected).sum()),
        "pearson": pearson,
        "pattern_df": df,
        "n_patterns": n_patterns,
    }
    if n_rows < _MIN_ROWS_PER_PATTERN * n_patterns:
        return found
    return found | {
        f"{name}_p": float(scipy.special.chdtrc(df, found[name])) for name in ("g2", "pearson")
    }
