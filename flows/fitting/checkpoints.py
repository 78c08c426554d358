"""Save statistics and fit states, so that an interrupted fit can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.statistics.sums import Statistics, pass_statistics_from_arrays
from storage.artifacts.artifacts import load_packed, select_prefix, write_packed
from storage.errors import DataError, StoreUnreachableError
from storage.format.manifest_schemas import check_schema
from storage.stores.locations import AnyPath, delete_tree, list_children

_ARRAY_FIELDS = ("working", "auxiliary", "acceleration")


@dataclass
class CheckpointStore:
    """Keeps the latest state of a fit: in memory for a retry, on disk for `--resume`."""

    folder: AnyPath
    latest: FitState | None = None

    def save(self, state: FitState) -> None:
        """Save the state after a pass."""
        save_state(self.folder, state)
        self.latest = state


def collect_or_load(
    kind: type[Statistics], folder: AnyPath, resume: bool, collect: Callable[[], Statistics]
) -> Statistics:
    """Collect statistics and save them; a resumed fit loads the saved statistics."""
    if resume:
        try:
            return load_statistics(kind, folder)
        except StoreUnreachableError:
            raise
        except DataError:
            pass  # the interrupted run had not saved them
    statistics = collect()
    save_statistics(folder, statistics)
    # The memory layout after loading: sums of another layout differ in the last bits.
    arrays = {name: np.asarray(a, order="C") for name, a in statistics.to_arrays().items()}
    return pass_statistics_from_arrays(kind, arrays)


def save_statistics(folder: AnyPath, statistics: Statistics) -> None:
    """Save statistics."""
    write_packed(folder, statistics.to_arrays(), {})


def load_statistics(kind: type[Statistics], folder: AnyPath) -> Statistics:
    """Load statistics from `save_statistics`."""
    return pass_statistics_from_arrays(kind, load_packed(folder).arrays)


def save_state(folder: AnyPath, state: FitState) -> None:
    """Save the state after a pass, then remove the previous one."""
    target = folder / f"{state.iteration:06d}"
    write_packed(target, _collect_arrays(state), _describe_state(state))
    for older in list_children(folder):
        if older != target:
            delete_tree(older)


def _collect_arrays(state: FitState) -> dict[str, NDArray[Any]]:
    """Collect all arrays of a state and of its starts, named `GROUP-NAME`."""
    params = {"params": state.params} | ({} if state.best is None else {"best": state.best})
    groups: dict[str, Mapping[str, NDArray[Any]]] = {
        group: {name: a for name, (_, a) in get_named_arrays(values).items()}
        for group, values in params.items()
    }
    groups |= {name: getattr(state, name) for name in _ARRAY_FIELDS}
    groups |= {f"start{k}": _collect_arrays(start) for k, start in enumerate(state.starts)}
    return {f"{group}-{name}": a for group, arrays in groups.items() for name, a in arrays.items()}


def _describe_state(state: FitState) -> dict[str, Any]:
    return {
        "iteration": state.iteration,
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [asdict(warning) for warning in state.warnings],
        "starts": [_describe_state(start) for start in state.starts],
        "done": state.done,
        "independent": state.independent,
        "converged": state.converged,
    }


class _WarningRecord(TypedDict):
    text: str
    features: list[int] | list[str]
    segments: list[int] | list[str]
    parameter: str | None


class _StateRecord(TypedDict):
    """The values that `_describe_state` records."""

    iteration: int
    history: list[float]
    diagnostics: dict[str, Any]
    warnings: list[_WarningRecord]
    starts: list[_StateRecord]
    done: bool
    independent: float | None
    converged: bool


def load_state(model: Model, folder: AnyPath) -> FitState | None:
    """Load the latest complete state, or return None if there is none."""
    for path in reversed(list_children(folder)):
        try:
            arrays, meta = load_packed(path)
            check_schema(str(path), _StateRecord, meta, "Fit again.")
            return _rebuild_state(model, arrays, meta)
        except StoreUnreachableError:
            raise  # the state may be intact, so do not fit again and replace it
        except (DataError, KeyError):  # damaged, or without some arrays
            continue
    return None


def _rebuild_state(
    model: Model, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]
) -> FitState:
    best, starts = select_prefix(arrays, "best-"), enumerate(record["starts"])
    return FitState(
        params_from_arrays(model.params, select_prefix(arrays, "params-")),
        **{name: select_prefix(arrays, f"{name}-") for name in _ARRAY_FIELDS},
        iteration=record["iteration"],
        history=tuple(record["history"]),
        best=params_from_arrays(model.params, best) if best else None,
        diagnostics=record["diagnostics"],
        warnings=tuple(_make_warning(w) for w in record["warnings"]),
        starts=tuple(
            _rebuild_state(model, select_prefix(arrays, f"start{k}-"), d) for k, d in starts
        ),
        done=record["done"],
        independent=record["independent"],
        converged=record["converged"],
    )


def _make_warning(record: Mapping[str, Any]) -> FitWarning:
    """Restore a warning, whose features and segments JSON keeps as lists."""
    features, segments = tuple(record["features"]), tuple(record["segments"])
    return FitWarning(record["text"], features, segments, record["parameter"])
