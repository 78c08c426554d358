"""Hidden Markov model: rows in sequences, each in one of a few states, which follow a Markov chain.

Model: P(z_1 = k) = ρ_k at the begin of a sequence, P(z_n = l | z_n−1 = k) = A_kl, and features are
independent given the state of their row, P(x_ni = 1 | z_n = k) = p_ki (L. R. Rabiner, Proceedings
of the IEEE 77, 1989). Rows are in the order in which they arrived; `row_id` names the column
whose changes end a sequence. Rows that are left out, such as those of another split, end it too.

Fit by EM (Baum–Welch) with pseudo-counts: p, ρ and each line of A have the priors of
`bernoulli_mixture` with s = `smoothing`. A pass reads the rows twice. In the first sweep, tasks
multiply the matrices A diag(P(x_n | k)) of the rows of each block, see `chains.py`; the central
step multiplies the blocks, see `links.py`. In the second one, tasks know what all rows before and
after a block say, and compute P(z_n | all rows), so the log-likelihood is that of whole sequences
however rows are cut. Given the other rows, a row is of a mixture of the states, so everything about
features is shared with `bernoulli_mixture`: levels, continuous features, missing values.

Each fit begins with short runs as in `pipeline.models.mixture`: every fifth from clusters of
windows of eight rows, see `windows.py`, the others from random states. States that end with less
than one row are restarted once, beside the largest states; the fit goes on with the likelier end.
Held-out rows, which choose the number of states, count as rows without values; their score is
log P(x_n | all rows that are not held out) (G. Celeux, J.-B. Durand, Computational Statistics 23,
2008). A row by itself, or in a call that does not know its neighbours, has the class weights π, the
share of rows in each state.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
p          probabilities   (n_components, n_features)
π          weights         (n_components,)
ρ          initial         (n_components,)
A          transition      (n_components, n_components)
μ, σ       means,          (n_components, n_continuous)
           deviations
=========  ==============  ================================

Cost per block: three times that of the E-step of `bernoulli_mixture`, and n_components³ per row.
Passes: tens to hundreds. Memory: two vectors for every 32,768 rows.
Not identifiable: the order of the states, which are sorted by their share of the rows; and ρ if
there are few sequences, as each says only once what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.learning.held_out import is_held_out
from pipeline.models.bernoulli_mixture.classes import MIN_SMOOTHING, ClassMixture, prepare_rows
from pipeline.models.bernoulli_mixture.e_step import (
    compute_log_joint,
    mixture_posterior,
    sum_mixture_statistics,
)
from pipeline.models.bernoulli_mixture.gaussians import sum_gaussian_statistics
from pipeline.models.bernoulli_mixture.levels import cumulate_planes, mask_unreached_planes
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.hidden_markov.chains import draw_path
from pipeline.models.hidden_markov.links import SequenceColumns
from pipeline.models.hidden_markov.states import LEAST_WEIGHT, HiddenStates, split_columns
from pipeline.models.hidden_markov.windows import RowWindows, draw_clusters
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.models.vocabulary import STATES, Vocabulary
from pipeline.params import NumberRange, array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

_FIRST_STAY = 0.9  # probability to stay in a state at the beginning of starts
_STARTS_PER_CLUSTERING = 5  # starts from clusters of windows hardly differ


@dataclass(frozen=True, kw_only=True)
class HiddenMarkovParams(BernoulliMixtureParams):
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    weights
        Mean of P(z_n = k | all rows) over the fitted rows.
    """

    initial: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    transition: Array = array_field("component", "component_j", allowed=NumberRange(above=0))

    @property
    def free_parameters(self) -> Array:
        """An unconstrained vector: that of classes, then logarithms of ρ and A."""
        chances = np.vstack([self.initial, self.transition])
        return np.concatenate([super().free_parameters, np.log(chances).ravel()])

    def with_free_parameters(self, packed: Array, limit: float) -> Self:
        """Return the parameters of such a vector."""
        n_states = len(self.weights)
        own, logs = np.split(packed, [-n_states * (n_states + 1)])
        logs = np.clip(logs.reshape(-1, n_states), -limit, limit)
        chances = np.exp(scipy.special.log_softmax(logs, axis=1))
        params = super().with_free_parameters(own, limit)
        return replace(params, initial=chances[0], transition=chances[1:])

    def take_components(self, order: NDArray[np.intp]) -> Self:
        """Return the states in another order."""
        params, transition = super().take_components(order), self.transition[np.ix_(order, order)]
        return replace(params, initial=self.initial[order], transition=transition)

    def compute_class_weights(self, block: BinaryBlock) -> tuple[Array, Array]:
        """Return P(z_n = k | all other rows) and its logarithm, (n_samples, n_components).

        They are π for rows whose neighbours are not known.
        """
        if block.covariates is None:
            return super().compute_class_weights(block)
        earlier, later, _ = split_columns(block.covariates)
        logs = scipy.special.log_softmax(earlier + later, axis=1)
        return np.exp(logs), logs


@dataclass(frozen=True)
class HiddenMarkov(HiddenStates, ClassMixture):
    """Hyperparameters of the hidden Markov model.

    Attributes
    ----------
    n_components
        Number of states. None doubles it from 1 while held-out rows become more likely, and then
        tries numbers in between.
    row_id
        Per-row column of the sequence that a row is of, such as a person; its rows follow each
        other. If empty, all rows are one sequence.
    time
        Per-row column of the time, a number that must ascend within each sequence; if empty, rows
        are in order. Steps count as equally long.
    smoothing
        Pseudo-counts of ones and zeros in every state, of each transition and of each first state;
        also the number of rows with the mean and the variance of all rows that is added for every
        continuous feature.
    starts
        Number of short runs; the fit continues with the best. None takes 10; unless values are
        missing, only the best 3 go on after 8 passes.
    acceleration
        `squarem` or `none`.
    max_iter
        Maximum number of passes, for each start and number of states.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats. The limit for all rows together is 10,000
        times this.
    """

    name: ClassVar[str] = "hidden-markov"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "nominal", "continuous"), has_sequences=True
    )
    vocabulary: ClassVar[Vocabulary] = STATES._replace(
        arrays={"probabilities": "probability in state"}
    )
    indeterminacy: ClassVar[str] = (
        "the order of the states, sorted by size unless a warm start keeps it"
    )
    unlinked_effect: ClassVar[str] = (
        "only neighbouring rows with values in different parts tell which state of one part "
        "belongs to which of another"
    )
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[HiddenMarkovParams]] = HiddenMarkovParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("component",), "state": ()}
    max_held_out_components: ClassVar[int] = 32
    refines_number: ClassVar[bool] = True
    short_run_tol: ClassVar[float] = 1e-3
    n_components: int | None = 4
    row_id: str = ""
    time: str = ""
    smoothing: float = setting(0.1, minimum=MIN_SMOOTHING)
    starts: int | None = setting(None, minimum=1)
    acceleration: Literal["squarem", "none"] = "squarem"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-6, above=0, below=1)

    @property
    def n_compared(self) -> None:
        """Numbers of states are not compared in a table."""
        return

    @property
    def columns(self) -> SequenceColumns:
        """The columns that say which sequence a row is of, and when."""
        return SequenceColumns(self.row_id, self.time)

    def list_required_columns(self) -> tuple[str, ...]:
        """Return the columns of sequences and times."""
        return tuple(dict.fromkeys(filter(None, self.columns)))

    def list_number_columns(self) -> tuple[str, ...]:
        """Return the column of times: codes of texts are not in their order."""
        return (self.time,) if self.time else ()

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's sums, logarithms and rows."""
        n_states = self.most_components
        return 8 * n_states * ((6 * n_features + 8 * (1 << 15)) * n_threads + 10 * n_features)

    def estimate_work(
        self, params: HiddenMarkovParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of a sweep."""
        n_states = len(params.weights)
        nanoseconds = 50 + n_features * (0.5 + 0.25 * n_states) + 0.3 * n_states**3 + 60 * n_states
        nanoseconds += 10 * n_states * params.n_numbers
        return WorkEstimate(nanoseconds, 8 * n_states * (2 * n_features + n_states))

    @property
    def first_statistics(self) -> type[RowWindows]:
        """Counts of features, also in windows of rows."""
        return RowWindows

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> RowWindows:
        """MAP: count features, and draw windows."""
        is_measured = self.structure.continuous.size > 0
        return RowWindows.from_block(block, RowRandom(rng.seed), is_measured=is_measured)

    def first_key(self, seed: int) -> str:
        """Return a key that includes the seed, which draws windows."""
        return f"first, windows {seed}"

    def initialize(self, first: RowWindows, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from states around the margins or from windows."""
        state = self._describe_counts(first.counts, rng)
        auxiliary = {**state.auxiliary, **first.list_arrays()}
        return self._begin_fit(replace(state, auxiliary=auxiliary))

    def _draw_start(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        """Return states from clusters of windows, or random ones for most starts."""
        params = super()._draw_start(auxiliary, n_components, start)
        if n_components == 1 or start % _STARTS_PER_CLUSTERING:
            return params
        rng = np.random.default_rng([int(auxiliary["seed"][0]), n_components, start, 1])
        margins = cumulate_planes(scipy.special.expit(auxiliary["margins"])[None], self.n_levels)
        measured = np.zeros(0), np.zeros(0)
        if params.gaussians is not None:
            measured = params.gaussians.overall_means, params.gaussians.overall_deviations
        shares, means = draw_clusters(auxiliary, margins[0], measured, n_components, rng)
        if params.gaussians is not None:
            params = replace(params, gaussians=replace(params.gaussians, means=means))
        return replace(params, probabilities=shares)

    def _begin_params(self, params: BernoulliMixtureParams) -> HiddenMarkovParams:
        n_states = len(params.weights)
        transition = np.full((n_states, n_states), (1 - _FIRST_STAY) / max(n_states - 1, 1))
        np.fill_diagonal(transition, _FIRST_STAY if n_states > 1 else 1.0)
        return HiddenMarkovParams(**vars(params), initial=params.weights, transition=transition)

    def warm_start(self, state: FitState, params: HiddenMarkovParams) -> FitState:
        """Start from an earlier fit, without short runs."""
        params = self._measure_again(state, params)
        state = self.keep_order(self._begin_long_run(state, 0.0), params.probabilities)
        return replace(state, params=params)

    def _compute_log_densities(
        self, params: HiddenMarkovParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return log P(x_n | k), (n_samples, n_components), and which rows are held out."""
        terms = params.compute_terms(block, np.zeros(len(params.weights)))
        masked = mask_unreached_planes(block, params.n_levels)
        logs = compute_log_joint(masked.words, masked.observed_words, block.n_samples, terms)
        share = float(working.get("held_out", 0.0))
        if not share:
            return logs, np.zeros(block.n_samples, np.bool_)
        return logs, is_held_out(block.rows, share, rng.seed)

    def summarize(
        self, params: HiddenMarkovParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block given its neighbours, and score held-out rows."""
        logs, is_out = self._compute_log_densities(params, working, block, rng)
        held_out_logs = logs[is_out]
        logs[is_out] = 0.0
        paths = self._sum_paths(params, working, block, logs)
        weights = np.maximum(paths.earlier * paths.later, LEAST_WEIGHT)
        log_weights = np.log(weights / weights.sum(axis=1, keepdims=True))
        masked = mask_unreached_planes(block, params.n_levels)
        terms = params.compute_terms(block, log_weights)
        is_in = None if not is_out.any() else (~is_out).astype(np.float64)
        posterior = np.empty_like(logs) if params.gaussians is not None else None
        words = (masked.words, masked.observed_words, block.n_samples)
        sums = sum_mixture_statistics(*words, terms, is_in, posterior)
        values: dict[str, NDArray[Any]] = {
            "ones": sums.ones,
            "missing": sums.missing,
            "mass": sums.mass[None],
            "transitions": paths.transitions,
            "starts": paths.starts,
            "empty_rows": np.array(block.count_unobserved_rows()),
        }
        if posterior is not None:
            assert block.numbers is not None
            assert params.gaussians is not None
            values |= sum_gaussian_statistics(block.numbers, params.gaussians, posterior)
        if "held_out" in working and working["held_out"] > 0:
            scores = scipy.special.logsumexp(held_out_logs + log_weights[is_out], axis=1)
            values |= {
                "held_out": np.array(scores.sum()),
                "held_out_weight": np.array(float(is_out.sum())),
            }
        n_in = block.n_samples - int(is_out.sum())
        return Sums(n_in, float(n_in), paths.nats, values)

    def objective(self, params: HiddenMarkovParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        log_prior = self._compute_log_prior_of_features(params)
        log_prior += np.log(params.initial).sum() + np.log(params.transition).sum()
        return float((statistics.objective + self.smoothing * log_prior) / statistics.weight)

    def _run_m_step(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> BernoulliMixtureParams:
        s, values = self.smoothing, statistics.values
        lines = (values["mass"][0], values["starts"], values["transitions"])
        weights, initial, transition = (
            (own + s) / (own + s).sum(axis=-1, keepdims=True) for own in lines
        )
        params = self._update_features(params, statistics)
        assert isinstance(params, HiddenMarkovParams)
        return replace(params, weights=weights, initial=initial, transition=transition)

    def pack_params(self, params: HiddenMarkovParams) -> Array:
        """Return log-odds, then logarithms of weights, first states and transitions."""
        return params.free_parameters

    def unpack_params(self, params: HiddenMarkovParams, packed: Array, weight: float) -> Any:
        """Return the parameters, within the bounds that an M-step can reach."""
        most = 1 if self.n_levels is None else max(int(self.n_levels.max()) - 1, 1)
        limit = np.log((weight + len(params.weights)) / self.smoothing + most)
        return params.with_free_parameters(packed, limit)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Restart states with less than one row, once; the fit goes on with the better end."""
        empty = np.flatnonzero(statistics.values["mass"][0] < 1)
        if not empty.size or state.working["held_out"] > 0 or "restarted" in state.auxiliary:
            return super().next_stage(state, statistics)
        state = replace(state, auxiliary={**state.auxiliary, "restarted": np.array(True)})
        rng = np.random.default_rng([int(state.auxiliary["seed"][0]), len(state.params.weights)])
        params = self._split_states(state.params, empty, rng)
        return replace(state, starts=(state, replace(state, params=params)))

    def _split_states(
        self, params: HiddenMarkovParams, empty: NDArray[np.intp], rng: np.random.Generator
    ) -> HiddenMarkovParams:
        """Put empty states beside the largest ones, which share their rows with them."""
        n_states = len(params.weights)
        own = np.argsort(-params.weights, kind="stable")[: n_states - len(empty)]
        own = np.resize(own, len(empty))
        order = np.arange(n_states)
        order[empty] = own
        n_copies = np.bincount(order, minlength=n_states)[order]
        split = params.take_components(order)
        logs = scipy.special.logit(split.continuation[empty])
        logs += rng.standard_normal(logs.shape)
        probabilities = split.probabilities.copy()
        probabilities[empty] = cumulate_planes(scipy.special.expit(logs), self.n_levels)
        if split.gaussians is not None:
            means, deviations = split.gaussians.means.copy(), split.gaussians.deviations
            means[empty] += deviations[empty] * rng.standard_normal((len(empty), means.shape[1]))
            split = replace(split, gaussians=replace(split.gaussians, means=means))
        transition = split.transition / n_copies
        return replace(
            split,
            probabilities=probabilities,
            weights=split.weights / n_copies,
            initial=split.initial / n_copies / (split.initial / n_copies).sum(),
            transition=transition / transition.sum(axis=1, keepdims=True),
        )

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the states by their share of the rows, and add diagnostics and warnings."""
        state = self._finish_classes(state, state.params, statistics)
        n_sequences = round(float(statistics.values["starts"].sum()))
        diagnostics = {**state.diagnostics, "sequences": n_sequences}
        state = replace(state, diagnostics=diagnostics)
        if n_sequences == statistics.n_rows > 1:
            state = state.with_warning(
                "every sequence has one row, so transitions are not determined. Sort the rows by "
                "sequence, or choose another {row_id}"
            )
        return state

    def count_free_parameters(self, state: FitState) -> int:
        """Count the free probabilities of features, transitions and first states."""
        n_planes = int((state.auxiliary["n_present"] - 1).sum())
        n_states, n_numbers = len(state.params.weights), int(state.params.n_numbers)
        n_measured = n_states * (n_planes + 2 * n_numbers)
        return n_measured + (n_states + 1) * (n_states - 1)

    def transform(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(z_n = k | all rows) as `mean`, and the `state` of the likeliest path, from 1."""
        posterior, _ = self.compute_posterior(params, block)
        if block.covariates is None:
            return {"mean": posterior, "state": posterior.argmax(axis=1) + 1}
        return {"mean": posterior, "state": block.covariates[:, -1].astype(np.int64) + 1}

    def compute_posterior(
        self, params: BernoulliMixtureParams, block: BinaryBlock
    ) -> tuple[Array, Array]:
        """Return P(z_n = k | all rows), (n_samples, n_components), and log P(x_n | earlier rows).

        The logarithms, (n_samples,), add up to the log-likelihood of sequences.
        """
        posterior, nats = super().compute_posterior(params, block)
        if block.covariates is None:
            return posterior, nats
        earlier, _, _ = split_columns(block.covariates)
        masked, terms = prepare_rows(params, block)
        terms = params.compute_terms(block, earlier)
        _, nats = mixture_posterior(masked.words, masked.observed_words, block.n_samples, terms)
        return posterior, nats

    def log_likelihood(
        self, params: HiddenMarkovParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P(x_n | earlier rows of the sequence) of each row."""
        _, nats = self.compute_posterior(params, block)
        return LogLikelihood(nats, np.zeros_like(nats))

    def _draw_components(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Draw the states of one sequence."""
        assert isinstance(params, HiddenMarkovParams)
        path = np.empty(n_samples, np.int64)
        draw_path(params.transition, params.initial, rng.random(n_samples), path)
        return path
