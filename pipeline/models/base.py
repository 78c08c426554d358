"""The protocol of all models; `capabilities` has the methods of some models only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Tile
from pipeline.data.features import are_binary
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.models.settings import check_settings
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.models.support import Support, check_conflicts, check_features, check_parts
from pipeline.models.vocabulary import PLAIN, Vocabulary
from pipeline.params import get_named_arrays, list_arrays
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.measurements import MeasuredCounts
from pipeline.statistics.sums import Statistics

_NANOSECONDS_PER_VALUE = 10.0
"""Work per row, feature and component of a model that does not estimate its own."""


@dataclass(frozen=True)
class HasStructure(Protocol):
    """What a fit knows about its rows and features besides their values; see `with_structure`."""

    structure: Structure = field(
        default=Structure(), kw_only=True, repr=False, metadata={"is_setting": False}
    )


class Model(HasStructure, Protocol):
    """A frozen dataclass of hyperparameters, validated in `__post_init__`.

    A model subclasses this explicitly; methods with a body here are defaults. "MAP" in a docstring
    marks a method that tasks call on workers, "CENTRAL" one that runs once per pass in the process
    that started the fit.

    A setting is an int, float, str, bool, `Literal` or tuple of ints. The class docstring describes
    each under "Attributes", and `pipeline.models.settings.setting` declares its range.

    The module docstring lists under "Not identifiable" the parameters that no data can determine.
    All others are recovered by a fit to rows sampled from the fitted model, up to sampling error
    and a bias that the module docstring states.

    A model has parameters per segment if an array of `params` has the dimension `segment`. It then
    has two more integer arrays, (segment,): `segments`, the index of each segment in the fitted
    data, and `segment_rows`, its number of rows there. `pipeline.data.matching` reads them. Blocks,
    `sample` and `reconstruct` refer to segments by these indices. Any other index, such as
    `UNKNOWN_SEGMENT`, stands for the mean of the fitted segments. Other models ignore segments.
    """

    name: ClassVar[str]
    """Name on the command line."""
    statistics: ClassVar[type[Statistics]]
    """Statistics of a pass; `first_statistics` again for a model without passes."""
    params: ClassVar[type[Any]]
    """A frozen dataclass whose arrays are declared as in `pipeline.params`."""
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("component",)}
    """Arrays of `transform`, and their dimensions after the rows: `component`, `feature`, or these
    with `_j`. No dimension may occur twice in an array."""
    signed_arrays: ClassVar[tuple[str, ...]] = ()
    """Arrays of parameters that change sign if a component is reversed; empty if its sign has a
    meaning."""
    support: ClassVar[Support] = Support()
    """What the model can use of rows and features."""
    independence: ClassVar[str] = "independent features with the same margins"
    """What `independent_log_likelihood` is of."""
    vocabulary: ClassVar[Vocabulary] = PLAIN
    """Words for rows, features, components and arrays, in reports and tables."""
    indeterminacy: ClassVar[str] = ""
    """What no data determine, such as the order of components; empty if there is no such thing."""
    summary_diagnostics: ClassVar[tuple[str, ...]] = ()
    """Diagnostics that the summary of a fit shows, if present."""
    unlinked_effect: ClassVar[str] = "how they depend on each other is not determined"
    """What follows for parts of the features that no row links, after "so"; see
    `pipeline.fitting.linkage`. Empty if rows need no common features."""
    needs_linked_features: ClassVar[bool] = False
    """Whether the model cannot be fitted to parts of the features that no row links."""
    max_iter: int
    tol: float
    n_components: int | None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def first_statistics(self) -> type[Any]:
        """Statistics for `initialize`, computed without parameters.

        By default, they are counts of features, with moments of continuous ones if there are any.
        """
        return MeasuredCounts if self.structure.continuous.size else FeatureCounts

    @property
    def title(self) -> str:
        """What messages call the model, which may have placeholders."""
        return self.name

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to workers: not what the model has computed for itself."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    def with_structure(self, structure: Structure) -> Self:
        """Return the model that a fit with this structure uses.

        Names of binary features alone are no structure: they would only travel with every task.

        Raises
        ------
        FitError
            If `support` or the settings do not allow it.
        """
        check_parts(self, structure.parts)
        check_conflicts(self, structure.parts)
        check_features(self, structure.features)
        if not structure.parts and are_binary(structure.features):
            return self
        return replace(self, structure=structure)

    def find_features_by_group(self) -> NDArray[np.intp]:
        """Return the indices of features with parameters by group, which do not link the groups."""
        return np.zeros(0, np.intp)

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Split a pass by pairs of features so that a task's statistics fit into a budget."""
        return (None,)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the maximum bytes that the central step and the tasks of all threads need."""
        return 0

    def estimate_work(
        self, params: Any, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of `summarize` per row of a chunk of `n_rows` rows.

        Tasks are sized by it. It is only needed for sums that depend on the parameters: others are
        counts, for which reading takes longer.
        """
        n_values = n_features * (self.n_components or 1)
        return WorkEstimate(_NANOSECONDS_PER_VALUE * n_values, 8 * n_values)

    def list_required_columns(self) -> tuple[str, ...]:
        """Return the names of the per-row columns that passes read from `block.columns`.

        Texts are int32 codes in the order of the dataset's list, -1 if empty. Integers are int64;
        other numbers are float64, NaN if missing.
        """
        return ()

    def list_number_columns(self) -> tuple[str, ...]:
        """Return those of the required columns whose texts are read as numbers."""
        return ()

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> Statistics:
        """MAP: summarize a block for `initialize`."""
        first: Statistics = self.first_statistics.from_block(block)
        return first

    def first_key(self, seed: int) -> str:
        """Return a key that tells results of `summarize_first` for the same block apart.

        It must name everything except the block that they depend on, such as the seed or a column.
        """
        return "first"

    def initialize(self, first: Any, rng: np.random.Generator) -> FitState:
        """CENTRAL: check the data and create the state before the first pass.

        Raises
        ------
        FitError
            If the data cannot be fitted, for example because a feature was never observed.
        """

    def find_start(
        self, state: FitState, first: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """CENTRAL: complete the state of `initialize` by work that takes long."""
        return state

    def summarize(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: return the block's sufficient statistics under these parameters."""

    def add_to(
        self, statistics: Any, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Statistics:
        """MAP: add the statistics of a block to a task's sum, possibly in place."""
        sum: Statistics = statistics.merge(self.summarize(params, working, block, rng))
        return sum

    def counts_key(self, n_features: int) -> str | None:
        """Return a key of the statistics of `summarize`; None if they depend on the parameters.

        Statistics that depend on the block alone are stored with the dataset and reused by every
        fit with the same key. A fit then reads the data once, for any number of updates.
        """
        return None

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """CENTRAL: compute new parameters from the statistics of all rows.

        `rng` is new in every pass. The loop itself extrapolates (`capabilities.CanAccelerate`),
        checks convergence and starts the next stage.
        """

    def objective(self, params: Any, statistics: Any) -> float:
        """Return the objective per row, which is maximised, in nats."""
        return float(statistics.objective / statistics.weight)

    def mean_log_likelihood(self, params: Any, statistics: Any) -> float | None:
        """Return the log-likelihood per row of a pass, in nats, without terms of a prior.

        It may be a bound or a pseudo-likelihood, which are equal to it if features are independent.
        The end of a fit compares it with `independent_log_likelihood`. None if it is not known, or
        not comparable: reconstructions of rows that the units have seen are better than
        independent features even if no weight was learned.
        """
        return None

    def independent_log_likelihood(self, state: FitState, statistics: Any) -> float | None:
        """Return the log-likelihood per row of independent features, of the rows of a pass."""
        return state.independent

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Return the convergence criterion of the current stage."""
        return ObjectiveCriterion(self.max_iter, self.tol)

    def next_stage(self, state: FitState, statistics: Any) -> FitState | None:
        """Return the state at the beginning of the next stage, or None after the last.

        A stage may have more components, other rows, another estimator, one more layer or a lower
        temperature, and it has its own history. `state` is the result of the last update.
        """
        return None

    def get_start_kind(self, state: FitState) -> str:
        """Return the kind of a start; objectives are compared among starts of the same kind."""
        return ""

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Return the state of the stage after several starts.

        `ranked` has the starts of each kind, the best first. Their diagnostics `starts` and
        `starts_at_best` describe the last comparison that begins without them.
        """
        (starts,) = ranked.values()
        return self.select_start(starts[0])

    def select_start(self, state: FitState) -> FitState:
        """Return the state of the stage after several starts of one kind, given the best."""
        return state

    def finish(self, state: FitState, statistics: Any) -> FitState:
        """Put the parameters in their final form after the last stage, and add warnings."""
        return state

    def count_parameters(self, state: FitState) -> tuple[int, int] | None:
        """Return the number of parameters of a fit, and of them the data can determine at most.

        None if that is not known, or if a prior determines them.
        """
        return None

    def transform(
        self, params: Any, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: return latent codes: `mean`, (n_samples, n_components), and others in `codes`."""


def has_segments(kind: type[Model]) -> bool:
    """Return whether every fit of a model has parameters per segment."""
    declared = list_arrays(kind.params).values()
    return any("segment" in array.dims for array in declared if array.is_required)


def reverse_components(model: Model, params: Any, signs: NDArray[np.float64]) -> dict[str, Any]:
    """Multiply components by signs, (n_components,); return the arrays that change, by name.

    The model says the same about rows, with codes of the other sign.
    """
    arrays: dict[str, Any] = {}
    named = get_named_arrays(params)
    for name in (name for name in model.signed_arrays if name in named):
        dims, values = named[name]
        axes = [axis for axis, dim in enumerate(dims) if dim.startswith("component")]
        for axis in axes:
            values = values * signs.reshape([-1 if k == axis else 1 for k in range(values.ndim)])
        if not axes:  # positions on the only component
            values = values * signs[0]
        arrays[name] = np.sort(values, axis=0) if dims[0] == "bound" else values
    return arrays
