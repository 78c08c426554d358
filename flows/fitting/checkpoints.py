"""Statistics and fit states on disk, so that an interrupted fit goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from pipeline.errors import Notice
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.params import named_arrays, params_from_arrays
from pipeline.statistics.base import Statistics
from pipeline.statistics.several_starts import of_pass
from storage.artifacts.packed import load_packed, part, write_packed
from storage.errors import DataError, Unreachable
from storage.format.manifest_schemas import check_parts
from storage.stores.locations import Place, children, delete_tree

_MAPPINGS = ("working", "auxiliary", "acceleration")


@dataclass
class States:
    """The latest state of a fit: in memory for another try, on disk for another run."""

    folder: Place
    latest: FitState | None = None

    def save(self, state: FitState) -> None:
        """Save the state of a pass."""
        save_state(self.folder, state)
        self.latest = state


def counted(
    kind: type[Statistics], folder: Place, resume: bool, collect: Callable[[], Statistics]
) -> Statistics:
    """Collect statistics and save them; a run that goes on takes those of the run before."""
    if resume:
        try:
            return load_statistics(kind, folder)
        except Unreachable:
            raise
        except DataError:
            pass  # that run had not come so far
    statistics = collect()
    save_statistics(folder, statistics)
    # Laid out as they come back from storage: sums of others differ in the last bits.
    arrays = {name: np.asarray(a, order="C") for name, a in statistics.arrays().items()}
    return of_pass(kind, arrays)


def save_statistics(folder: Place, statistics: Statistics) -> None:
    """Save statistics."""
    write_packed(folder, statistics.arrays(), {})


def load_statistics(kind: type[Statistics], folder: Place) -> Statistics:
    """Load what `save_statistics` saved."""
    return of_pass(kind, load_packed(folder).arrays)


def save_state(folder: Place, state: FitState) -> None:
    """Save the state of a pass beside the one before, then remove that."""
    target = folder / f"{state.iteration:06d}"
    write_packed(target, _arrays(state), _described(state))
    for older in children(folder):
        if older != target:
            delete_tree(older)


def _arrays(state: FitState) -> dict[str, NDArray[Any]]:
    """Give all arrays of a state and of its starts, by part and name."""
    params = {"params": state.params} | ({} if state.best is None else {"best": state.best})
    parts: dict[str, Mapping[str, NDArray[Any]]] = {
        part: {name: a for name, (_, a) in named_arrays(found).items()}
        for part, found in params.items()
    }
    parts |= {name: getattr(state, name) for name in _MAPPINGS}
    parts |= {f"start{k}": _arrays(start) for k, start in enumerate(state.starts)}
    return {f"{part}-{name}": a for part, arrays in parts.items() for name, a in arrays.items()}


def _described(state: FitState) -> dict[str, Any]:
    return {
        "iteration": state.iteration,
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [asdict(notice) for notice in state.warnings],
        "starts": [_described(start) for start in state.starts],
        "done": state.done,
    }


class _Note(TypedDict):
    """A warning of a state."""

    text: str
    features: list[int]
    segments: list[int]


class _State(TypedDict):
    """What `_described` records."""

    iteration: int
    history: list[float]
    diagnostics: dict[str, Any]
    warnings: list[_Note]
    starts: list[_State]
    done: bool


def load_state(model: Model, folder: Place) -> FitState | None:
    """Load the latest whole state, or None if there is none."""
    for path in reversed(children(folder)):
        try:
            arrays, meta = load_packed(path)
            check_parts(str(path), _State, meta, "Fit again.")
            return _state(model, arrays, meta)
        except Unreachable:
            raise  # a state that cannot be read now is not to be fitted anew and replaced
        except (DataError, KeyError):  # damaged, or of arrays that are not there
            continue
    return None


def _state(
    model: Model, arrays: Mapping[str, NDArray[Any]], described: Mapping[str, Any]
) -> FitState:
    best, starts = part(arrays, "best-"), enumerate(described["starts"])
    return FitState(
        params_from_arrays(model.params, part(arrays, "params-")),
        **{name: part(arrays, f"{name}-") for name in _MAPPINGS},
        iteration=described["iteration"],
        history=tuple(described["history"]),
        best=params_from_arrays(model.params, best) if best else None,
        diagnostics=described["diagnostics"],
        warnings=tuple(_notice(**w) for w in described["warnings"]),
        starts=tuple(_state(model, part(arrays, f"start{k}-"), d) for k, d in starts),
        done=described["done"],
    )


def _notice(text: str, features: list[int], segments: list[int]) -> Notice:
    return Notice(text, tuple(features), tuple(segments))
