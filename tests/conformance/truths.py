"""Rows that parameters sampled, with values missing by design, and likelihoods of fits to them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from pipeline.data.features import find_continuous
from pipeline.fitting.loop import fit_model
from pipeline.models.capabilities import CanReconstruct
from pipeline.random import RowRandom
from tests.conformance.facts import Facts, Floats, normal_codes, standard_codes
from tests.conformance.rows import SERIAL, varied
from tests.support.designs import DESIGNS
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_FEATURES = 1200, 12
TOLERANCE = 1e-6 * N_ROWS


@lru_cache
def find_truth(facts: Facts, n_components: int) -> Any:
    """Return parameters to sample from: those of a fit to dependent features."""
    model = make_default(facts, n_components)
    return fit_model(model, make_memory_rows(varied(facts).take_rows(slice(2000))), SERIAL).params


def make_default(facts: Facts, n_components: int | None) -> Any:
    """Return the model with its default settings, and perhaps with a number of components."""
    settings = {} if n_components is None else {"n_components": n_components}
    return facts.model(**settings, **(facts.truthful or {})).with_structure(facts.structure)


def draw_rows(facts: Facts, params: Any, design: str, n_components: int, seed: int) -> DenseData:
    """Draw rows from the parameters, with values missing by design."""
    rng = np.random.default_rng(seed)
    model, segments = make_default(facts, n_components), rng.choice(4, N_ROWS)
    seen = DESIGNS[design](N_ROWS, facts.n_features, rng)
    planes = np.repeat(seen, [feature.n_planes for feature in facts.features], axis=1)
    if continuous := find_continuous(facts.features):
        X, numbers = model.sample_numbers(params, N_ROWS, rng, segments)
        numbers = np.where(seen[:, continuous], numbers, np.nan).astype(np.float32)
    else:
        X, numbers = model.sample(params, N_ROWS, rng, segments), None
    observed = None if seen.all() else planes.astype(np.uint8)
    return DenseData(X * planes, observed, segments, numbers=numbers)


def draw_caused_rows(design: str, seed: int) -> tuple[DenseData, Floats]:
    """Draw binary rows with one cause, some values missing by design, and return it, (n_rows,).

    Its mean and variance differ between segments.
    """
    rng = np.random.default_rng(seed)
    segments = rng.choice(4, N_ROWS)
    cause = np.linspace(-0.5, 0.5, 4)[segments] + rng.standard_normal(N_ROWS) * (1 + segments) / 2
    slopes, offsets = rng.uniform(0.8, 2.0, N_FEATURES), rng.normal(0, 0.7, N_FEATURES)
    X = (cause[:, None] * slopes + offsets + rng.logistic(size=(N_ROWS, N_FEATURES)) > 0) * 1
    seen = DESIGNS[design](N_ROWS, N_FEATURES, rng)
    return DenseData((X * seen).astype(np.uint8), seen.astype(np.uint8), segments), cause


def sum_log_likelihood(facts: Facts, model: Any, params: Any, data: DenseData) -> float:
    """Return log P of all rows: by sums over codes if possible, else by the model itself."""
    total = 0.0
    by_codes = facts.is_binary and not facts.has_edges and isinstance(model, CanReconstruct)
    if by_codes:
        codes, mass, segments = facts.codes(params)
        if facts.codes is standard_codes:
            codes, mass = normal_codes(model.n_components)
        given = np.clip(model.reconstruct(params, codes, segments), 1e-300, 1 - 1e-16)
        X, mask = data.X.astype(np.float64), data.mask.astype(np.float64)
        nats = (X * mask) @ np.log(given).T + ((1 - X) * mask) @ np.log1p(-given).T
        if segments is None:
            return float(scipy.special.logsumexp(nats, b=mass, axis=1).sum())
        for label in np.unique(segments):
            rows, own = data.labels == label, segments == label
            share = mass[own] / mass[own].sum()
            total += scipy.special.logsumexp(nats[np.ix_(rows, own)], b=share, axis=1).sum()
        return float(total)
    for label in np.unique(data.labels):
        block = data.take_rows(data.labels == label).pack(int(label))
        found = model.log_likelihood(params, block, RowRandom(0))
        assert not found.standard_error.any()
        total += float(found.nats.sum())
    return total


def find_codes(model: Any, params: Any, data: DenseData) -> Floats:
    """Return the codes of the rows, in their order."""
    codes = np.zeros((len(data.X), 0))
    for label in np.unique(data.labels):
        at = np.flatnonzero(data.labels == label)
        found = model.transform(params, data.take_rows(at).pack(int(label)), RowRandom(0))["mean"]
        codes = np.zeros((len(data.X), found.shape[1])) if not codes.size else codes
        codes[at] = found
    return codes
