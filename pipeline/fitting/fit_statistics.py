"""Likelihood, information criteria and entropy of a fit; see `information_criteria`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.fit_pass import estimate_work
from pipeline.models.base import Model
from pipeline.models.capabilities import HasExactLikelihood, IsMixture
from pipeline.models.state import FitState
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.information_criteria import compute_criteria, describe_entropy
from pipeline.statistics.sums import Sums


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
    summarize = partial(_sum_likelihoods, model, state.params, RowRandom(seed))
    work = estimate_work(model, state, rows)
    sums = collect_statistics(summarize, rows, executor, "likelihood", progress=progress, work=work)
    own = compute_criteria(
        sums.objective,
        n_parameters,
        sums.weight,
        has_sampling_weights=bool(sums.values["n_sampled"]),
    )
    if "mass" in sums.values:
        own |= describe_entropy(float(sums.values["entropy"]), sums.values["mass"])
    return replace(state, diagnostics={**state.diagnostics, "fit_statistics": {**own, **found}})


def _sum_likelihoods(
    model: HasExactLikelihood, params: Any, rng: RowRandom, block: BinaryBlock
) -> Sums:
    """MAP: sum log P(x), and of a mixture the posterior probabilities and their entropy."""
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    values = {"n_sampled": np.array(block.n_samples * block.has_sampling_weights)}
    if isinstance(model, IsMixture):
        posterior, nats = model.compute_posterior(params, block)
        entropy = weights @ scipy.special.entr(posterior).sum(axis=1)
        values |= {"mass": weights @ posterior, "entropy": np.asarray(entropy)}
    else:
        nats = model.log_likelihood(params, block, rng).nats
    return Sums.from_block(block, float(weights @ nats), values)
