"""Likelihood, information criteria, entropy and fit to all patterns; see `information_criteria`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.features import join_values
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.fit_pass import estimate_work
from pipeline.inference.sequences import condition_rows
from pipeline.models.base import Model
from pipeline.models.capabilities import HasExactLikelihood, HasSequences, IsMixture
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.information_criteria import (
    compute_criteria,
    describe_entropy,
    describe_patterns,
)
from pipeline.statistics.sums import Sums

_MAX_PATTERNS = 1 << 16


def add_fit_statistics(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> FitState:
    """Add the statistics of a finished fit to its diagnostics, if its likelihood is exact.

    This takes a pass over the rows, unless the fit has computed the log-likelihood of its final
    parameters itself.
    """
    found = state.diagnostics.get("fit_statistics", {})
    if not isinstance(model, HasExactLikelihood) or "log_likelihood" in found:
        return state
    n_parameters = model.count_free_parameters(state)
    if n_parameters is None:
        return state
    reason = "rows depend on each other" if isinstance(model, HasSequences) else ""
    reason = reason or _explain_missing_patterns(model.structure, rows.n_features)
    counts_patterns = not reason
    rng = RowRandom(seed)
    rows = condition_rows(model, state.params, rows, executor, progress)
    summarize = partial(_sum_likelihoods, model, state.params, rng, counts_patterns)
    work = estimate_work(model, state, rows)
    sums = collect_statistics(summarize, rows, executor, "likelihood", progress=progress, work=work)
    own = compute_criteria(
        sums.objective,
        n_parameters,
        sums.weight,
        has_sampling_weights=bool(sums.values["n_sampled"]),
    )
    values = sums.values
    if "pattern_rows" in values:
        shape = _get_pattern_shape(model.structure, rows.n_features)
        if n_incomplete := int(values["n_incomplete"]):
            row = "1 row has" if n_incomplete == 1 else f"{n_incomplete:,} rows have"
            reason = f"{row} missing values"
        elif values["n_sampled"]:
            reason = "the rows have sampling weights"
        else:
            counts, nats = values["pattern_rows"], values["pattern_nats"]
            own |= describe_patterns(counts.reshape(shape), nats.reshape(shape), n_parameters)
    if reason:
        own["g2_missing"] = reason
    if "mass" in sums.values:
        own |= describe_entropy(float(sums.values["entropy"]), sums.values["mass"])
    return replace(state, diagnostics={**state.diagnostics, "fit_statistics": {**own, **found}})


def _sum_likelihoods(
    model: Any,
    params: Any,
    rng: RowRandom,
    counts_patterns: bool,
    block: BinaryBlock,
) -> Sums:
    """MAP: sum log P(x), also by pattern of values, and the posterior of a mixture."""
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    values = {"n_sampled": np.array(block.n_samples * block.has_sampling_weights)}
    if isinstance(model, IsMixture):
        posterior, nats = model.compute_posterior(params, block)
        entropy = weights @ scipy.special.entr(posterior).sum(axis=1)
        values |= {"mass": weights @ posterior, "entropy": np.asarray(entropy)}
    else:
        nats = model.log_likelihood(params, block, rng).nats
    if counts_patterns:
        values |= _sum_patterns(model.structure, block, weights, nats)
    return Sums.from_block(block, float(weights @ nats), values)


def _get_pattern_shape(structure: Structure, n_planes: int) -> tuple[int, ...]:
    """Return the number of groups, and of levels of each feature."""
    n_levels = structure.n_levels
    own = (2,) * n_planes if n_levels is None else tuple(n_levels.tolist())
    return (max(len(structure.groups), 1), *own)


def _explain_missing_patterns(structure: Structure, n_planes: int) -> str:
    """Return why the rows of each pattern of values are not counted; empty if they are."""
    if structure.continuous.size:
        return "continuous features have no patterns of values"
    if structure.covariates is not None:
        return "the probabilities of a row depend on its covariates"
    if math.prod(_get_pattern_shape(structure, n_planes)) > _MAX_PATTERNS:
        return f"more than {_MAX_PATTERNS:,} patterns of values are possible"
    return ""


def _sum_patterns(
    structure: Structure, block: BinaryBlock, weights: Array, nats: Array
) -> dict[str, Array]:
    """Sum weights and log P of complete rows by group and pattern, and count the other rows."""
    shape = _get_pattern_shape(structure, block.n_features)
    levels, observed = join_values(block.unpack_values(), block.unpack_mask(), structure.features)
    is_complete = np.ones(len(levels), bool) if observed is None else observed.all(axis=1)
    group = np.full(len(levels), block.segment if structure.groups else 0)
    places = np.ravel_multi_index((group, *levels.T), shape)[is_complete]
    sums = {"pattern_rows": weights, "pattern_nats": weights * nats}
    size = math.prod(shape)
    return {
        "n_incomplete": np.array(float((weights[~is_complete] > 0).sum())),
        **{name: np.bincount(places, own[is_complete], size) for name, own in sums.items()},
    }
