"""What every model is, and the registry that finds it by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock, Tile
from pipeline.errors import FitError
from pipeline.executors.base import Map
from pipeline.fit import FitState
from pipeline.random import RowRandom
from pipeline.statistics.base import FirstStatistics, Statistics
from pipeline.statistics.counts import Counts, FeatureCounts


class LogLikelihood(NamedTuple):
    """log P(x) of each row in nats, and its standard error, 0 where exact: (n_samples,) each."""

    nats: NDArray[np.float64]
    standard_error: NDArray[np.float64]


class Model(Protocol):
    """A frozen dataclass of hyperparameters, validated in `__post_init__`.

    A model subclasses this explicitly; what has a body here is its default.

    Its module says under "Not identifiable" what no data can tell. All else is found again where
    the model is fitted to rows that it sampled, up to sampling error and a bias that the module
    names.

    A model has parameters of single segments where an array of `params` has the dimension
    `segment`. It then has two whole-numbered arrays (segment,) that no other model has: `segments`,
    the index that each has in the data fitted, once each, and `segment_rows`, its rows there.
    `known_segments.fitted_segments` reads them. A block's segment, and those that `sample` and
    `reconstruct` take, are such indices; any other, `known_segments.UNKNOWN` for one, stands for
    the mean of the segments fitted. To other models segments do not matter.
    """

    name: ClassVar[str]
    """How options spell it."""
    first: ClassVar[type[FirstStatistics]]
    """What `initialize` needs."""
    statistics: ClassVar[type[Statistics]]
    """What `summarize` gives."""
    params: ClassVar[type[Any]]
    """A frozen dataclass whose arrays are declared by `array`."""
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("component",)}
    """Arrays that `transform` gives and their dimensions after the row, each once: `component` or
    `feature`, or these with `_j`."""
    shown: ClassVar[tuple[str, ...]] = ()
    """Diagnostics that a summary of a fit shows."""
    max_iter: int
    tol: float
    n_components: int | None

    def tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Cut a pass by pairs of features so that a task's statistics stay within a budget."""
        return (None,)

    def memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes that the central step and the tasks of so many threads need at the most."""
        return 0

    def initialize(self, first: Any, rng: np.random.Generator) -> FitState:
        """Check the data and make the state before the first pass."""
        ...

    def summarize(self, params: Any, block: BinaryBlock, rng: RowRandom) -> Statistics:
        """MAP: the block's sufficient statistics under these parameters."""
        ...

    def counted(self, n_features: int) -> str | None:
        """Name what `summarize` counts, where that hangs on the block alone.

        Such statistics are kept beside the data and used again by whoever counts the same; None
        where they hang on parameters.
        """
        return None

    def update(self, state: FitState, statistics: Any, map_items: Map) -> FitState:
        """CENTRAL: new parameters from the statistics of all rows."""
        ...

    def objective(self, params: Any, statistics: Any) -> float:
        """Give the objective of a row, maximised: nats."""
        return float(statistics.objective / statistics.n_samples)

    def prepare(self, params: Any, rng: np.random.Generator, map_items: Map) -> Any:
        """Complete parameters once before evaluation."""
        return params

    def transform(
        self, params: Any, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """MAP: latent codes, `mean` (n_samples, n_components) and what else `codes` declares."""
        ...

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

    def reconstruct(
        self,
        params: Any,
        codes: NDArray[np.float64],
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """Give P(x = 1 | codes, segments), (n_samples, n_features).

        `segments` is (n_samples,); without it all are `known_segments.UNKNOWN`.
        """
        ...


@runtime_checkable
class Warm(Protocol):
    """What a model offers whose passes can begin at the parameters of an earlier fit.

    One-pass models need no start. Settings may differ between the two fits: they decide where
    passes lead, not where they begin.
    """

    def warm(self, state: FitState, params: Any) -> FitState:
        """Begin the last stage at parameters of as many components; the acceleration starts anew.

        `state` is what `initialize` makes of the data to fit: its checks have been passed.
        """
        ...


M = TypeVar("M", bound=type[Model])
MODELS: dict[str, type[Model]] = {}


def register(model: M) -> M:
    """Enter a model into the registry under its name."""
    MODELS[model.name] = model
    return model


def model_class(name: str) -> type[Model]:
    """Find a model by its name.

    Raises
    ------
    FitError
        If there is none; the message names the nearest.
    """
    if name not in MODELS:
        raise FitError(
            f"--model: Expected {_one_of(MODELS)}, got {name!r}.{suggestion(name, MODELS)}"
        )
    return MODELS[name]


def hyperparameters(model: type[Model]) -> tuple[str, ...]:
    """Name the settings of a model, the structural ones left out."""
    settings = (f for f in fields(model) if f.init)  # type: ignore[arg-type]
    return tuple(f.name for f in settings if f.name != "n_components")


def recorded_model(model: type[Model], recorded: Mapping[str, Any]) -> Model:
    """Make a model again from all fields of its dataclass; those that no caller sets are left."""
    given = {f.name for f in fields(model) if f.init}  # type: ignore[arg-type]
    return model(**{name: value for name, value in recorded.items() if name in given})


def check_choices(model: Model) -> None:
    """Check the settings that are declared as `Literal`.

    Raises
    ------
    FitError
        If a setting is none of its choices.
    """
    for name, kind in get_type_hints(type(model)).items():
        if get_origin(kind) is Literal and (value := getattr(model, name)) not in get_args(kind):
            raise FitError(f"{name}: Expected {_one_of(get_args(kind))}, got {value!r}.")


def check_components(model: Model) -> None:
    """Check the number of components, where one is given.

    Raises
    ------
    FitError
        If it is below 1.
    """
    if model.n_components is not None and model.n_components < 1:
        raise FitError(f"--components: Expected at least 1, got {model.n_components}.")


def pooled_margins(first: FeatureCounts) -> tuple[Counts, Counts]:
    """Give observed values and ones of each feature in all segments, (n_features,) each.

    Raises
    ------
    FitError
        If a feature was never observed.
    """
    observed, ones = first.observed.sum(axis=0), first.ones.sum(axis=0)
    if (missing := np.flatnonzero(observed == 0)).size:
        raise FitError(
            "Expected observed values in every feature, got none in {features}. "
            "Leave these features out.",
            missing.tolist(),
        )
    return observed, ones


def suggestion(word: str, known: Iterable[str]) -> str:
    """Guess what was meant."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _one_of(names: Iterable[str]) -> str:
    return "one of " + ", ".join(sorted(names))
