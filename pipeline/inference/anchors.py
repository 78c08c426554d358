"""Anchors: rows that fix the scale of the traits of a latent-trait fit.

The likelihood does not change with the place, the scale and the sign of a trait, nor with the axes
of several traits. Two rows with one number each, `US=+1` and `CU=-1`, fix the first trait: it is
moved so that the posterior means of these rows are 1 and −1. One row more than there are traits,
with as many numbers each, `US=1:0`, fixes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.arrays import Array
from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.datasets import Dataset
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.inference.orientation import Pole, find_row
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.params import convert_to_c_order
from pipeline.random import RowRandom

if TYPE_CHECKING:
    from pipeline.models.latent_trait.model import LatentTrait

_TEXT = re.compile(r"\s*(.+?)\s*=\s*([^,=]*)(?:,|$)")
_CLEAR = 2.0  # standard errors between anchors
_MAX_POSITION, _MIN_DISTANCE = 1_000_000, 1e-6  # of positions


class Anchor(NamedTuple):
    """A row, by its original index in the dataset of the fit, and its position."""

    name: str
    position: tuple[float, ...]
    row: int


def parse_anchors(anchors: Any) -> dict[str, tuple[float, ...]]:
    """Return the positions of named rows.

    Parameters
    ----------
    anchors
        Texts such as `US=+1,CU=-1`, or numbers or sequences of numbers by name.

    Raises
    ------
    FitError
        If a text has another form, or a name occurs twice.
    """
    if isinstance(anchors, Mapping):
        given = [(str(name), np.atleast_1d(value).tolist()) for name, value in anchors.items()]
    else:
        texts = [anchors] if isinstance(anchors, str) else list(anchors)
        given = [part for text in texts for part in _split_text(str(text))]
    positions = dict[str, tuple[float, ...]]()
    for name, values in given:
        if name in positions:
            raise FitError(f"{{anchors}} has {name!r} twice. Name different rows.")
        positions[name] = tuple(_parse_number(name, value) for value in values)
    return positions


def _split_text(text: str) -> list[tuple[str, list[str]]]:
    parts, end = [], 0
    while end < len(text):
        if (found := _TEXT.match(text, end)) is None:
            raise FitError(
                f"{{anchors}} is {text!r}. Write the names of two rows with their positions, such "
                "as US=+1,CU=-1."
            )
        parts.append((found[1], found[2].split(":")))
        end = found.end()
    return parts


def _parse_number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not abs(number) <= _MAX_POSITION:
        raise FitError(
            f"{{anchors}}: the position of {name!r} is {value!r}, but must be a number from "
            f"-{_MAX_POSITION:,} to {_MAX_POSITION:,}."
        )
    return number


def prepare_anchors(
    anchors: Any, model: Model, dataset: Dataset, split: str | None, poles: Sequence[Pole]
) -> tuple[Anchor, ...]:
    """Parse the anchors of a fit, check them, and find the rows that they name.

    Raises
    ------
    FitError
        If a text has another form, the model has a scale of its own, the dataset has no such row,
        or the positions do not fix a scale.
    """
    positions = parse_anchors(anchors)
    if not positions:
        return ()
    from pipeline.models.latent_trait.model import LatentTrait  # slow to import

    if not isinstance(model, LatentTrait) and model.name == LatentTrait.name:
        raise FitError(
            "{anchors} cannot be combined with {dynamics=walk}, whose members have many positions. "
            "Choose the sign by a member or a feature, with {orient}."
        )
    if not isinstance(model, LatentTrait):
        raise FitError(f"{{anchors}} fix the scale of latent-trait, not of {model.title}.")
    for part in ("known items", "pattern"):
        if part in model.structure.parts:
            raise FitError(f"{{anchors}} cannot be combined with {part}, which have a scale.")
    _check_positions(positions, model)
    n_moved = len(next(iter(positions.values())))
    if n_moved > 1 and {"groups", "covariates"} & {*model.structure.parts}:
        raise FitError(
            "{anchors} of several traits cannot be combined with groups or covariates. Give two "
            "rows one number each."
        )
    for pole in poles:
        if pole.component < n_moved:
            raise FitError(
                f"{{anchors}} and {{orient}} both choose the sign of component "
                f"{pole.component + 1}. Leave out {{orient}} of {pole.name!r}."
            )
    return tuple(
        Anchor(name, position, find_row(name, dataset, split, "anchors"))
        for name, position in positions.items()
    )


def _check_positions(positions: Mapping[str, tuple[float, ...]], model: LatentTrait) -> None:
    """Refuse positions that do not fix a scale."""
    q = model.n_components
    lengths = {len(position) for position in positions.values()}
    if lengths == {1} and len(positions) == 2:
        first, second = positions
        if abs(positions[first][0] - positions[second][0]) < _MIN_DISTANCE:
            raise FitError(
                f"{{anchors}}: {first!r} and {second!r} have the same position. Give them positions"
                f" that differ by {_MIN_DISTANCE:g} or more."
            )
    elif q is None or q == 1 or lengths != {q} or len(positions) != q + 1:
        wishes = "two rows with one number each, such as US=+1,CU=-1"
        if q is not None and q > 1:
            wishes += f"; or of {q + 1} rows with {q} numbers each, such as US={'0:' * (q - 1)}1"
        raise FitError(f"{{anchors}} need the names of {wishes}.")
    elif np.linalg.matrix_rank(_subtract_first([*positions.values()]), _MIN_DISTANCE) < q:
        raise FitError(
            "{anchors}: the positions lie on a line or a plane, so they do not fix all traits. "
            "Choose others."
        )
    if model.rotation != "principal":
        raise FitError(
            f"{{anchors}} choose the axes, and so does {{rotation={model.rotation}}}. Leave out one"
            " of them."
        )


def _subtract_first(points: Any) -> Array:
    points = np.asarray(points, np.float64)
    return np.asarray(points[1:] - points[0])


def anchor_fit(
    model: Any,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    anchors: Sequence[Anchor],
) -> FitState:
    """Move the traits of a finished fit so that the anchors have their positions.

    If the fit does not tell the anchors apart, or one has the weight 0, a warning says so.
    """
    if not anchors:
        return state
    from pipeline.models.latent_trait.trait_scale import TraitScale, move_traits  # slow to import

    ends, wanted = np.cumsum(rows.rows_per_chunk), [anchor.row for anchor in anchors]
    keys = np.unique(np.searchsorted(ends, wanted, side="right")).tolist()
    code = partial(_code_rows, model, state.params, rows, RowRandom(seed), wanted)
    found = {row: own for part in executor.map(code, keys) for row, own in part.items()}
    if unread := [anchor.name for anchor in anchors if anchor.row not in found]:
        return state.with_warning(
            f"{{anchors}} have no effect: the row {unread[0]!r} has the weight 0"
        )
    targets = np.array([anchor.position for anchor in anchors])
    q, n_moved = len(found[wanted[0]][0]), targets.shape[1]
    codes, variances = (np.array([found[row][k][:n_moved] for row in wanted]) for k in range(2))
    names = " and ".join(repr(anchor.name) for anchor in anchors)
    distance = np.linalg.svd(_subtract_first(codes), compute_uv=False).min()
    error = np.sqrt(2 * variances.mean())
    if distance <= np.sqrt(np.finfo(float).eps) * error:
        return state.with_warning(
            f"{{anchors}} have no effect: the fit has {names} at the same position"
        )
    if distance < _CLEAR * error:
        state = state.with_warning(
            f"{{anchors}}: {names} are {distance:.2g} apart in the fit, with a standard error of "
            f"{error:.2g}, so the scale is hardly determined; choose rows that differ more"
        )
    solved = np.linalg.solve(np.column_stack([codes, np.ones(len(codes))]), targets)
    matrix, shift = np.eye(q), np.zeros(q)
    matrix[:n_moved, :n_moved], shift[:n_moved] = solved[:-1].T, solved[-1]
    names_of_sums = {"item": "item_covariance", "plane": "plane_covariance"}
    covariances = {
        name: state.auxiliary[key] for name, key in names_of_sums.items() if key in state.auxiliary
    }
    params = move_traits(state.params, model.items, TraitScale(matrix, shift), covariances)
    return replace(state, params=convert_to_c_order(params))


def _code_rows(
    model: Any, params: Any, rows: RowSource, rng: RowRandom, wanted: Sequence[int], key: int
) -> dict[int, tuple[Array, Array]]:
    """Return posterior means and variances of the wanted rows of a chunk, (n_components,) each."""
    found = dict[int, tuple[Array, Array]]()
    for block in iter_blocks(rows.read(key)):
        places = np.flatnonzero(np.isin(block.rows, wanted))
        if len(places):
            codes = model.transform(params, block.take_rows(places), rng)
            pairs = zip(codes["mean"], codes["variance"], strict=True)
            found |= dict(zip(block.rows[places].tolist(), pairs, strict=True))
    return found
