"""Reverse components so that named rows or features have positions of chosen signs.

The sign of a component is arbitrary in most models. A pole, `NAME=+1` or `NAME=-2`, chooses it: the
row or feature NAME is to have a positive position on component 1, or a negative one on component 2.
The position of a row counts from the mean of all rows, that of a feature is its loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, RowSource, iter_blocks
from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, find_continuous, join_values
from pipeline.errors import FitError, format_suggestion
from pipeline.executors.base import Executor
from pipeline.models.base import Model, reverse_components
from pipeline.models.state import FitState
from pipeline.params import convert_to_c_order, get_named_arrays, replace_arrays
from pipeline.random import RowRandom

_MAX_CHUNKS = 4
_MIN_ROWS, _MAX_ROWS, _MAX_WORK = 100, 2000, 4 << 20  # work: rows x features x components
_MAX_SEARCHED = 10_000  # texts that an error may suggest
_SPLIT = "split"


class Pole(NamedTuple):
    """A row or feature whose position on a component (from 0) should have this sign.

    `row` is the original index of the row in the dataset of the fit, if `name` means one.
    """

    name: str
    component: int
    sign: int
    row: int | None = None


class RowPositions(NamedTuple):
    """Positions of rows, to choose signs by.

    `named` has the codes of each named row, (n_components,). The rows of `codes`, (n_rows,
    n_components), and `values`, (n_rows, n_features), stand for all rows.
    """

    named: Mapping[str, Array]
    codes: Array
    values: NDArray[np.float32]


def parse_poles(texts: Sequence[str], n_components: int | None) -> list[Pole]:
    """Parse texts such as `NAME=+1` or `NAME=-2`: the sign, and the number of the component.

    `n_components` is None if it is not known yet.

    Raises
    ------
    FitError
        If a text has another form, or a component does not exist or occurs twice.
    """
    poles = [_parse_pole(text, n_components) for text in texts]
    components = [pole.component for pole in poles]
    for component in components:
        if components.count(component) > 1:
            raise FitError(f"{{orient}}: component {component + 1} is given twice. Choose one.")
    return poles


def _parse_pole(text: str, n_components: int | None) -> Pole:
    name, _, number = text.rpartition("=")
    is_number = number[:1] in ("+", "-") and number[1:].isdecimal() and int(number[1:]) > 0
    if not name or not is_number:
        raise FitError(
            f"{{orient}} is {text!r}. Write NAME=+1 for a positive position on component 1, or "
            "NAME=-2 for a negative one on component 2."
        )
    component = int(number[1:])
    if n_components is not None and component > n_components:
        raise FitError(
            f"{{orient}} is {text!r}, but the model has {n_components} component"
            f"{'s' * (n_components != 1)}."
        )
    return Pole(name, component - 1, 1 if number[0] == "+" else -1)


def check_has_free_signs(model: Model) -> None:
    """Refuse models whose components cannot be reversed."""
    if not model.signed_arrays:
        raise FitError(
            f"The sign of a component of {model.name} has a meaning. Leave out {{orient}}."
        )


def prepare_poles(
    texts: Sequence[str],
    model: Model,
    dataset: Dataset,
    split: str | None,
    *,
    has_known_items: bool = False,
) -> tuple[Pole, ...]:
    """Parse the poles of a fit, and find the rows that they name.

    A name of a feature and of a row means the feature, so that columns are read for other names
    only. A row is named by a column of texts in which no other row of the fit has this text; a
    member with rows at several times stands for the first of these.

    Raises
    ------
    FitError
        If a text has another form, the model or the dataset has nothing like it, or the signs of
        the components follow from known items.
    """
    if not texts:
        return ()
    poles = parse_poles(texts, model.n_components)
    check_has_free_signs(model)
    if has_known_items:
        raise FitError("{orient} cannot be combined with {items}, which have signs of their own.")
    features = frozenset(dataset.feature_names)
    periods, found = model.structure.periods, []
    for pole in poles:
        if pole.name not in features:
            row = None if periods is None else periods.find_first_row(pole.name)
            row = find_row(pole.name, dataset, split) if row is None else row
            pole = pole._replace(row=row)
        found.append(pole)
    return tuple(found)


def find_row(
    name: str, dataset: Dataset, split: str | None, option: Literal["orient", "anchors"] = "orient"
) -> int:
    """Return the original index of the row that a column of texts or integers names.

    Raises
    ------
    FitError
        If no row has this name, or several have. The message is about the option.
    """
    may_be_feature = option == "orient"
    columns = [column for column in dataset.levels if column != _SPLIT]
    counts = dict[str, int]()
    for column, code in _iter_codes_of_name(name, columns, dataset):
        parts = (
            rows[codes == code]
            for rows, codes in dataset.iter_codes(column, split)
            if codes.dtype.kind == "i"
        )
        found = [(int(part[0]), len(part)) for part in parts if len(part)]
        n_rows = sum(n for _, n in found)
        if n_rows == 1:
            return found[0][0]
        if n_rows or column in dataset.levels:
            counts[column] = n_rows
    if counts:
        column = max(counts, key=lambda column: counts[column])
        number = f"{counts[column]:,} rows have" if counts[column] else "no row of the fit has"
        wish = "a feature, or a row" if may_be_feature else "a row"
        raise FitError(
            f"{{{option}}} is {name!r}, but {number} this text in column {column!r}. Name {wish} "
            "of the fit by a text of its own."
        )
    texts = (text for column in columns for text in islice(dataset.levels[column], _MAX_SEARCHED))
    if may_be_feature:
        raise make_unknown_name_error(name, [*dataset.feature_names, *texts])
    suggestion = format_suggestion(name, dict.fromkeys(texts))
    if not dataset.column_names:
        suggestion = " Keep a column of names in the dataset by {keep}."
    raise FitError(f"{{{option}}} is {name!r}, but no row has this name.{suggestion}")


def _iter_codes_of_name(
    name: str, text_columns: Sequence[str], dataset: Dataset
) -> Iterator[tuple[str, int]]:
    """Yield the columns that may have a name, and what stands for it there."""
    for column in text_columns:
        code = next((k for k, text in enumerate(dataset.levels[column]) if text == name), None)
        if code is not None:
            yield column, code
    with suppress(ValueError):
        yield from ((c, int(name)) for c in dataset.column_names if c not in dataset.levels)


def make_unknown_name_error(name: str, known: Iterable[str]) -> FitError:
    """Return the error that a pole names neither a row nor a feature."""
    return FitError(
        f"{{orient}} is {name!r}, but no row and no feature has this name."
        f"{format_suggestion(name, dict.fromkeys(known))}"
    )


def orient_fit(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    poles: Sequence[Pole],
    features: Sequence[Feature],
) -> FitState:
    """Reverse components of a finished fit; `prepare_poles` returns the poles.

    A component that the fit does not have, as a model may choose their number, is a warning.
    """
    n_components = int(state.diagnostics["n_components"])
    for pole in poles:
        if pole.component >= n_components:
            state = state.with_warning(
                f"{{orient}} of {pole.name!r} has no effect: the fit has {n_components} component"
                f"{'s' * (n_components != 1)}, so there is no component {pole.component + 1}"
            )
    poles = [pole for pole in poles if pole.component < n_components]
    if not poles:
        return state
    positions = None
    if any(pole.row is not None for pole in poles) or find_loadings(model, state.params) is None:
        rng = RowRandom(seed)
        positions = _code_rows(
            model, state.params, n_components, rows, executor, rng, poles, features
        )
    names = [feature.name for feature in features]
    signs = choose_signs(model, state.params, n_components, names, poles, positions)
    params = replace_arrays(state.params, reverse_components(model, state.params, signs))
    return replace(state, params=convert_to_c_order(params))


def choose_signs(
    model: Model,
    params: Any,
    n_components: int,
    feature_names: Sequence[str],
    poles: Sequence[Pole],
    positions: RowPositions | None,
) -> Array:
    """Return the sign by which to multiply each component, (n_components,).

    A name of `positions.named` means this row, all others mean features. `positions` may be None if
    all names mean features and the model has loadings.
    """
    signs = np.ones(n_components)
    for pole in poles:
        value = _find_position(model, params, feature_names, pole, positions)
        signs[pole.component] = pole.sign * (-1.0 if value < 0 else 1.0)
    return signs


def find_loadings(model: Model, params: Any) -> Array | None:
    """Return the array, (n_features, n_components), whose signs are those of the features."""
    named = get_named_arrays(params)
    for name in (name for name in model.signed_arrays if name in named):
        dims, values = named[name]
        if dims == ("feature", "component"):
            return values
    return None


def _find_position(
    model: Model,
    params: Any,
    feature_names: Sequence[str],
    pole: Pole,
    positions: RowPositions | None,
) -> float:
    if positions is not None and pole.name in positions.named:
        code = positions.named[pole.name][pole.component]
        return float(code - positions.codes[:, pole.component].mean())
    if pole.name not in feature_names:
        names = () if positions is None else positions.named
        raise make_unknown_name_error(pole.name, [*names, *feature_names])
    feature = feature_names.index(pole.name)
    if (loadings := find_loadings(model, params)) is not None:
        return float(loadings[feature, pole.component])
    if positions is None:
        raise FitError("{orient} needs rows, which are no longer available. Use {dataset}.")
    values = positions.values[:, feature].astype(np.float64)
    is_observed = np.isfinite(values)
    centred = values[is_observed] - values[is_observed].mean()
    return float(centred @ positions.codes[is_observed, pole.component])


def _code_rows(
    model: Model,
    params: Any,
    n_components: int,
    rows: RowSource,
    executor: Executor,
    rng: RowRandom,
    poles: Sequence[Pole],
    features: Sequence[Feature],
) -> RowPositions:
    """Code the named rows, and rows spread over some chunks for the mean."""
    names = {pole.row: pole.name for pole in poles if pole.row is not None}
    ends = np.cumsum(rows.rows_per_chunk)
    own = np.searchsorted(ends, list(names), side="right").tolist()
    n_rows = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_WORK // (rows.n_features * n_components)))
    spread = np.unique(np.linspace(0, rows.n_chunks - 1, _MAX_CHUNKS).round().astype(int)).tolist()
    code = partial(_code_chunk, model, params, n_components, rows, rng, names, features)
    parts = list[RowPositions]()
    # The rows of a split may all be in other chunks.
    for keys in (dict.fromkeys([*spread, *own]), range(rows.n_chunks)):
        parts = list(executor.map(partial(code, -(-n_rows // len(keys))), keys))
        if any(len(part.codes) for part in parts):
            break
    return RowPositions(
        {name: code for part in parts for name, code in part.named.items()},
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _code_chunk(
    model: Model,
    params: Any,
    n_components: int,
    rows: RowSource,
    rng: RowRandom,
    names: Mapping[int, str],
    features: Sequence[Feature],
    size: int,
    key: int,
) -> RowPositions:
    """Code the named rows of a chunk, and about `size` rows spread over it."""
    named = dict[str, Array]()
    codes = [np.zeros((0, n_components))]
    values = [np.zeros((0, len(features)), np.float32)]
    blocks = [*iter_blocks(rows.read(key))]
    step = max(1, sum(block.n_samples for block in blocks) // size)
    for block in blocks:
        places = np.flatnonzero(np.isin(block.rows, list(names)))
        own = [names[row] for row in block.rows[places].tolist()]
        own_codes = model.transform(params, block.take_rows(places), rng)["mean"] if own else ()
        named |= dict(zip(own, own_codes, strict=True))
        sample = block.take_rows(np.arange(0, block.n_samples, step))
        codes.append(model.transform(params, sample, rng)["mean"])
        values.append(read_values(sample, features))
    return RowPositions(named, np.concatenate(codes), np.concatenate(values))


def read_values(block: BinaryBlock, features: Sequence[Feature]) -> NDArray[np.float32]:
    """Unpack the values of a block, (n_samples, n_features), NaN where missing.

    Levels are 0, 1, 2, …
    """
    levels, observed = join_values(block.unpack_values(), block.unpack_mask(), features)
    values = levels.astype(np.float32)
    if observed is not None:
        values[observed == 0] = np.nan
    if block.numbers is not None:
        values[:, find_continuous(features)] = block.numbers.T
    return values
