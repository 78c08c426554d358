"""What some models can do beside being fitted: asked for by `isinstance`, and never assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.state import Arrays, FitState
from pipeline.passes.row_ranges import RangeResults
from pipeline.random import RowRandom
from pipeline.statistics.sums import Statistics

Array = NDArray[np.float64]


class LogLikelihood(NamedTuple):
    """log P(x) of each row, exact or estimated.

    Attributes
    ----------
    nats
        (n_samples,).
    standard_error
        Of the estimate of each row, independent between rows, 0 where exact: (n_samples,).
    shared_error
        Standard error that all rows share, as of an estimated log Z: more rows do not lessen it.
    integration_error
        What quadrature or another approximation may be off by in each row, of one sign or another,
        so that these add up: (n_samples,).
    """

    nats: Array
    standard_error: Array
    shared_error: float = 0.0
    integration_error: Array | float = 0.0


@runtime_checkable
class HasLogLikelihood(Protocol):
    """Gives log P(x), exact or estimated."""

    def log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> LogLikelihood:
        """MAP: give log P(x) of each row; refuse, by a `FitError`, what cannot be computed."""
        ...


@runtime_checkable
class HasLowerBound(Protocol):
    """Gives a bound below log P(x)."""

    def lower_bound(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: give the bound of each row, nats, (n_samples,)."""
        ...


@runtime_checkable
class HasPseudoLikelihood(Protocol):
    """Gives a pseudo-likelihood: every feature given all others."""

    def pseudo_log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: give Σ_i log P(x_i | the others) of each row, nats, (n_samples,)."""
        ...


@runtime_checkable
class HasCompositeLikelihood(Protocol):
    """Gives a composite likelihood: every pair of features."""

    def composite_log_likelihood(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: give Σ_i<j log P(x_i, x_j) of each row, nats, (n_samples,)."""
        ...


@runtime_checkable
class CanSample(Protocol):
    """Draws rows from the fitted model."""

    def sample(
        self,
        params: Any,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows from the fitted model, of these segments where it has any.

        `segments` is (n_samples,); without it they come as often as in the data. The rows are
        (n_samples, n_features).
        """
        ...


@runtime_checkable
class CanReconstruct(Protocol):
    """Turns codes back into probabilities of ones."""

    def reconstruct(
        self, params: Any, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give P(x = 1 | codes, segments), (n_samples, n_features).

        `segments` is (n_samples,); without it all are `segments.UNKNOWN`.
        """
        ...


class HiddenCauses(NamedTuple):
    """Layers of hidden units, the lowest first: the components are the units of all in this order.

    Attributes
    ----------
    strengths
        Probability that a unit alone turns one below it on, (n_below, n_above) a layer.
    activity
        Share of rows that each unit is on in, (n_components,); None where it is not known.
    """

    strengths: tuple[Array, ...]
    activity: Array | None


@runtime_checkable
class HasHiddenCauses(Protocol):
    """Has layers of hidden units, each of which may turn units below it on."""

    def get_hidden_causes(self, params: Any) -> HiddenCauses:
        """Give what each unit turns on."""
        ...


@runtime_checkable
class CanPredict(Protocol):
    """Predicts a label of each row: a per-row column, or `segment`, the index of its segment."""

    column: str

    def predict(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Array:
        """MAP: give P(y | x), (n_samples, n_categories), or the expected number, (n_samples, 1)."""
        ...

    def categories(self, params: Any) -> Array | None:
        """Give the values of the categories in the data fitted, rising; None of a number."""
        ...


@runtime_checkable
class CanPrepare(Protocol):
    """Completes its parameters once after the fit, such as by an estimate of log Z."""

    def prepare(self, params: Any, rng: np.random.Generator, map_items: MapFunction) -> Any:
        """CENTRAL: give parameters with their optional arrays; they are stored and used by all."""
        ...


@runtime_checkable
class HasInformationPass(Protocol):
    """Learns in one pass after the fit how sure its parameters are, and how well they fit."""

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """CENTRAL: give what tasks of this pass need; None where there is to be none."""
        ...

    def summarize_information(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: summarize a block at the fitted parameters."""
        ...

    def finish_information_pass(self, state: FitState, statistics: Any) -> FitState:
        """CENTRAL: add to parameters and diagnostics what the pass tells."""
        ...


@runtime_checkable
class CanWarmStart(Protocol):
    """Can begin its passes at the parameters of an earlier fit.

    One-pass models need no start. Settings may differ between the two fits: they decide where
    passes lead, not where they begin.
    """

    def warm_start(self, state: FitState, params: Any) -> FitState:
        """Begin the last stage at parameters of as many components.

        `state` is what `initialize` makes of the data to fit: its checks have been passed.
        """
        ...


@runtime_checkable
class CanAccelerate(Protocol):
    """Lets the loop extrapolate its steps by SQUAREM, as EM's may be."""

    acceleration: Any
    """`squarem`, or `none`."""

    def pack_params(self, params: Any) -> Array:
        """Give the parameters that passes move, as an array without bounds."""
        ...

    def unpack_params(self, params: Any, packed: Array, n_samples: int) -> Any:
        """Undo `packed`, all else as in `params`; back within what so many rows allow."""
        ...


@runtime_checkable
class CanLearnLocally(Protocol):
    """Takes many steps in a pass: each task its own, over the rows of its chunks.

    `summarize` is never called. What a task gives is the change of the parameters over its steps,
    weighted by its rows, so that `update` moves by the mean change of all tasks.
    `pipeline.learning.batches` cuts rows into batches in keyed random order.
    """

    def learn(
        self,
        params: Any,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> Statistics | None:
        """MAP: step through the rows of a group of chunks; None where it has none."""
        ...


@runtime_checkable
class CanCompareRows(Protocol):
    """Compares every row with all rows before its passes, such as to find nearest neighbours.

    Passes follow where `convergence` allows any; `ByPasses(0)` says that the model needs none.
    """

    def compare(
        self,
        params: Any,
        working: Arrays,
        left: BinaryBlock,
        right: BinaryBlock,
        before: Arrays | None,
    ) -> Arrays:
        """MAP: fold what the rows of one more chunk say of each row on the left.

        A task keeps its rows on the left while all chunks come by on the right in order, those
        that the rows are in among them. What comes of the last is stored, not sent. It must not
        depend on how rows are cut into chunks: the nearest k rows do not where ties go by row.

        Parameters
        ----------
        params, working
            As `initialize` made them.
        left, right
            Rows of all segments in original order; none for a start: then the arrays only tell
            their types.
        before
            What this gave for the same rows on the left and the chunk before; None at first.

        Returns
        -------
        Mapping
            Arrays by name, each (n rows on the left, …); `row` is not among them.
        """
        ...

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """CENTRAL: take up what `compare` gave for all rows, read run by run.

        `results.read(key)` gives the arrays of a run, here or in a function that `map_items` maps
        over keys, in original row order, with `row`, the original rows.
        """
        ...


@runtime_checkable
class CanTabulatePairs(Protocol):
    """Counts all pairs of features strip by strip, where a table of them is too large for a task.

    No passes follow. The arrays are kept in the artifact, and read strip by strip.
    """

    def has_pair_tables(self, n_features: int) -> bool:
        """Say whether data of so many features are counted this way."""
        ...

    def tabulate(
        self, params: Any, working: Arrays, features: slice, chunks: Iterator[PackedChunk]
    ) -> Arrays:
        """MAP: give what there is to know of the pairs of a strip of features.

        Parameters
        ----------
        params, working
            As `initialize` made them.
        features
            The strip. Its pairs are those with all features from its first on. A strip of none
            behind the last only tells the types of the arrays.
        chunks
            All chunks, to be gone through once.

        Returns
        -------
        Mapping
            Arrays by name, each (n_strip, n_features − first).
        """
        ...

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """CENTRAL: fit, given all strips, and say that all is done.

        `results.read(key, names)` gives the arrays of a strip, here or in a function that
        `map_items` maps over keys.
        """
        ...


def check_can_sample(model: Model) -> CanSample:
    """Give the model as one that draws rows.

    Raises
    ------
    FitError
        If it does not.
    """
    if isinstance(model, CanSample):
        return model
    raise FitError(
        f"The model {model.name} cannot draw rows. Choose another {{model}}.", parameter="model"
    )


def check_can_reconstruct(model: Model) -> CanReconstruct:
    """Give the model as one that turns codes back into probabilities.

    Raises
    ------
    FitError
        If it does not.
    """
    if isinstance(model, CanReconstruct):
        return model
    raise FitError(
        f"The model {model.name} cannot reconstruct features from codes. Choose another {{model}}.",
        parameter="model",
    )
