"""Parameters of models: frozen dataclasses of arrays that know the names of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pipeline.models.base import Model


def array(*dims: str) -> Any:
    """Declare a parameter array and its dimensions."""
    return field(metadata={"dims": dims})


def named_arrays(params: Any) -> dict[str, tuple[tuple[str, ...], NDArray[Any]]]:
    """Give a model's parameters as named arrays with their dimensions."""
    return {f.name: (f.metadata["dims"], getattr(params, f.name)) for f in fields(params)}


def params_from_arrays(model: type[Model], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Undo `named_arrays`."""
    return model.params(**{f.name: arrays[f.name] for f in fields(model.params)})


def in_c_order(params: Any) -> Any:
    """Lay arrays out as they come back from storage: products of others differ in the last bits."""
    arrays = {f.name: np.asarray(getattr(params, f.name), order="C") for f in fields(params)}
    return replace(params, **arrays)
