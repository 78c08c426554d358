"""What every model is. What only some can do is said in `capabilities`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Tile
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.models.settings import check_settings
from pipeline.models.state import Arrays, FitState
from pipeline.random import RowRandom
from pipeline.statistics.sums import Statistics


class Model(Protocol):
    """A frozen dataclass of hyperparameters, validated in `__post_init__`.

    A model subclasses this explicitly; what has a body here is its default. Settings are whole
    numbers, numbers, texts, `Literal`, bool or tuples of whole numbers; the class docstring says
    under "Attributes" what each is.

    Its module says under "Not identifiable" what no data can tell. All else is found again where
    the model is fitted to rows that it sampled, up to sampling error and a bias that the module
    names.

    A model has parameters of single segments where an array of `params` has the dimension
    `segment`. It then has two whole-numbered arrays (segment,) that no other model has: `segments`,
    the index that each has in the data fitted, once each, and `segment_rows`, its rows there.
    `segments.map_fitted_segments` reads them. A block's segment, and those that `sample` and
    `reconstruct` take, are such indices; any other, `segments.UNKNOWN` for one, stands for
    the mean of the segments fitted. To other models segments do not matter.
    """

    name: ClassVar[str]
    """How options spell it."""
    first_statistics: ClassVar[type[Any]]
    """What `initialize` needs: statistics that need no parameters, such as `FeatureCounts`."""
    statistics: ClassVar[type[Statistics]]
    """What a pass gives; of a model without passes the same as `first`."""
    params: ClassVar[type[Any]]
    """A frozen dataclass whose arrays are declared as in `pipeline.params`."""
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("component",)}
    """Arrays that `transform` gives and their dimensions after the row, each once: `component` or
    `feature`, or these with `_j`."""
    summary_diagnostics: ClassVar[tuple[str, ...]] = ()
    """Diagnostics that a summary of a fit shows, where it has them."""
    has_expensive_rows: ClassVar[bool] = False
    """Whether a row costs so much that few chunks are worth more tasks than they are groups."""
    former: ClassVar[tuple[str, ...]] = ()
    """Settings that artifacts of earlier versions record, and that no longer change anything."""
    max_iter: int
    tol: float
    n_components: int | None

    def __post_init__(self) -> None:
        check_settings(self)

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Cut a pass by pairs of features so that a task's statistics stay within a budget."""
        return (None,)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes that the central step and the tasks of so many threads need at the most."""
        return 0

    def list_required_columns(self) -> tuple[str, ...]:
        """Name the per-row columns that passes read: a block has them in `columns`.

        Texts are whole numbers there (int32), in the order of the dataset's list, -1 where empty;
        whole numbers are int64, and fractions float64, not a number where missing.
        """
        return ()

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> Statistics:
        """MAP: summarize a block for `initialize`."""
        first: Statistics = self.first_statistics.from_block(block)
        return first

    def first_key(self, seed: int) -> str:
        """Name what `summarize_first` counts, by all that it depends on beside the block."""
        return "first"

    def initialize(self, first: Any, rng: np.random.Generator) -> FitState:
        """Check the data and make the state before the first pass."""
        ...

    def summarize(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: the block's sufficient statistics under these parameters."""
        ...

    def add_to(
        self, statistics: Any, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: add what `summarize` gives to the sum of a task, which may be changed in place."""
        sum: Statistics = statistics.merge(self.summarize(params, working, block, rng))
        return sum

    def counts_key(self, n_features: int) -> str | None:
        """Name what `summarize` counts, where that depends on the block alone.

        Such statistics are kept beside the data and used again by whoever counts the same. The
        fit reads the data once, however many updates follow. None where they depend on parameters.
        """
        return None

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """CENTRAL: new parameters from the statistics of all rows.

        `rng` draws anew in every pass. It is the loop that extrapolates
        (`capabilities.CanAccelerate`), judges convergence and goes through the stages.
        """
        ...

    def objective(self, params: Any, statistics: Any) -> float:
        """Give the objective of a row, maximised: nats."""
        return float(statistics.objective / statistics.n_samples)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Say how the stage that the state is in converges."""
        return ObjectiveCriterion(self.max_iter, self.tol)

    def next_stage(self, state: FitState, statistics: Any) -> FitState | None:
        """Begin the next stage where one has ended, or give None after the last.

        A stage may have more components, other rows, another estimator, a further layer or a
        lower temperature. Its history is its own. `state` is what `update` made of the last pass,
        `statistics` those of that pass.
        """
        return None

    def select_start(self, state: FitState) -> FitState:
        """Begin the stage that follows several starts with the best of them."""
        return state

    def finish(self, state: FitState, statistics: Any) -> FitState:
        """Put the parameters in order after the last stage, and say what is in doubt."""
        return state

    def transform(
        self, params: Any, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: latent codes, `mean` (n_samples, n_components) and what else `codes` declares."""
        ...
