"""Statistics and fit states on disk, so that an interrupted fit goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from pipeline.errors import Notice
from pipeline.fit import FitState
from pipeline.models.base import Model
from pipeline.params import named_arrays, params_from_arrays
from pipeline.statistics.base import Statistics
from storage.errors import DataError, Unreachable
from storage.locations import Place, children, delete_tree
from storage.packed import load_packed, part, write_packed

S = TypeVar("S", bound=Statistics)


def save_statistics(folder: Place, collect: Callable[[], Statistics]) -> None:
    """Collect statistics into a folder, unless a run before this one did."""
    try:
        load_packed(folder)
    except Unreachable:
        raise
    except DataError:
        write_packed(folder, collect().arrays(), {})


def load_statistics(kind: type[S], folder: Place) -> S:
    """Load what `save_statistics` saved."""
    return kind.from_arrays(load_packed(folder).arrays)


def save_state(folder: Place, state: FitState) -> None:
    """Save the state of a pass beside the one before, then remove that."""
    target = folder / f"{state.iteration:06d}"
    params = {f"params-{name}": a for name, (_, a) in named_arrays(state.params).items()}
    auxiliary = {f"auxiliary-{name}": a for name, a in state.auxiliary.items()}
    described = {
        "iteration": state.iteration,
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [asdict(notice) for notice in state.warnings],
    }
    write_packed(target, {**params, **auxiliary}, described)
    for older in children(folder):
        if older != target:
            delete_tree(older)


def load_state(model: Model, folder: Place) -> FitState | None:
    """Load the latest whole state, or None if there is none."""
    for path in reversed(children(folder)):
        try:
            arrays, meta = load_packed(path)
        except Unreachable:
            raise  # a state that cannot be read now is not to be fitted anew and replaced
        except DataError:
            continue
        return FitState(
            params_from_arrays(type(model), part(arrays, "params-")),
            part(arrays, "auxiliary-"),
            meta["iteration"],
            tuple(meta["history"]),
            meta["diagnostics"],
            tuple(_notice(**w) for w in meta["warnings"]),
        )
    return None


def _notice(text: str, features: list[int], segments: list[int]) -> Notice:
    return Notice(text, tuple(features), tuple(segments))
