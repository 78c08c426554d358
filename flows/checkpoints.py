"""Statistics and fit states on disk, so that an interrupted fit goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import Notice
from pipeline.fit import FitState
from pipeline.models.base import Model
from pipeline.params import named_arrays, params_from_arrays
from pipeline.statistics.base import Statistics
from storage.artifacts import NamedArray, load_artifact, write_artifact
from storage.errors import DataError, Unreachable
from storage.locations import Place, children, delete_tree

S = TypeVar("S", bound=Statistics)


def save_statistics(folder: Place, collect: Callable[[], Statistics]) -> str:
    """Collect statistics into a folder, unless a run before this one did."""
    try:
        load_artifact(folder)
    except Unreachable:
        raise
    except DataError:
        write_artifact(folder, _unnamed(collect().arrays()), {})
    return str(folder)


def load_statistics(kind: type[S], folder: Place) -> S:
    """Load what `save_statistics` saved."""
    return kind.from_arrays(load_artifact(folder))


def save_state(folder: Place, state: FitState) -> None:
    """Save the state of a pass beside the one before, then remove that."""
    target = folder / f"{state.iteration:06d}"
    params = {f"params-{name}": NamedArray(*a) for name, a in named_arrays(state.params).items()}
    auxiliary = _unnamed({f"auxiliary-{name}": a for name, a in state.auxiliary.items()})
    described = {
        "iteration": state.iteration,
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [asdict(notice) for notice in state.warnings],
    }
    write_artifact(target, {**params, **auxiliary}, described)
    for older in children(folder):
        if older != target:
            delete_tree(older)


def load_state(model: Model, folder: Place) -> FitState | None:
    """Load the latest whole state, or None if there is none."""
    for path in reversed(children(folder)):
        try:
            saved = load_artifact(path)
        except Unreachable:
            raise  # a state that cannot be read now is not to be fitted anew and replaced
        except DataError:
            continue
        meta = saved.manifest
        return FitState(
            params_from_arrays(type(model), _part(saved, "params-")),
            _part(saved, "auxiliary-"),
            meta["iteration"],
            tuple(meta["history"]),
            meta["diagnostics"],
            tuple(_notice(**w) for w in meta["warnings"]),
        )
    return None


def _notice(text: str, features: list[int], segments: list[int]) -> Notice:
    return Notice(text, tuple(features), tuple(segments))


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    names = (name for name in arrays if name.startswith(prefix))
    return {name.removeprefix(prefix): arrays[name] for name in names}


def _unnamed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NamedArray]:
    values = {name: np.asarray(a) for name, a in arrays.items()}
    return {
        name: NamedArray(tuple(f"{name}_{axis}" for axis in range(a.ndim)), a)
        for name, a in values.items()
    }
