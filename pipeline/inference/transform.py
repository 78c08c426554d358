"""Compute the latent codes or the likelihoods of all rows, and reconstruct or complete rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, PackedChunk, RowNumbers, RowSource, make_mask
from pipeline.data.features import Feature, find_continuous, sum_planes
from pipeline.data.level_probabilities import (
    count_levels,
    find_level_probabilities,
    find_likely_levels,
    order_planes,
)
from pipeline.data.matching import make_empty_rows
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    CanImpute,
    LogLikelihood,
    ScoreKind,
    check_can_impute,
    check_can_reconstruct,
    check_can_score,
    check_has_continuous_features,
    check_has_person_fit,
)
from pipeline.params import params_from_arrays
from pipeline.passes.row_ranges import (
    ROW,
    ArrayDescriptions,
    RowRange,
    count_rows_by_chunk,
    fill_places,
    iter_range_rows,
    split_into_ranges,
)
from pipeline.random import RowRandom

Reconstruction = Literal["probabilities", "bits", "levels", "expected-levels"]
"""What to reconstruct of each feature: P(x = 1 | codes), or of each level if some features have
several; whether P(x = 1 | codes) exceeds ½; the most likely level; or the expected level or, of a
continuous feature, value. In imputed rows, it is the same given all observed values of the row, and
observed values are certain."""

HELD_OUT = "held_out_log_likelihood"
"""Name of what `compute_held_out_likelihoods` computes."""
_N_FEATURE_FOLDS = 5
_LEAST_P = 1e-9  # of a value, so that a single one cannot make a row impossible
_IMPUTED = "imputed_"  # starts the names of arrays of completed rows
LARGEST_SCORE = 1e100
"""Nats of a row; sums of squares of larger ones may overflow."""
_ROWS_PER_RANGE = 1 << 16
_CELLS_AT_ONCE = 1 << 18  # a few seconds of work, even at a millisecond per row
_MIN_PORTION = 256  # models prepare their parameters once per portion


class AddedArrays(NamedTuple):
    """What to return besides codes.

    Attributes
    ----------
    reconstruction
        What to return of rows reconstructed from codes; None for no such rows. The array has the
        same name, with `_` for `-`.
    imputation
        What to return of rows with predictions in place of missing values; None for no such rows.
        The array has the same name, with `_` for `-`, after `imputed_`.
    person_fit
        Whether to return how well the answers of each row fit its code.
    scores
        What to return instead of codes.
    features
        The features of the rows; empty if all are binary.
    """

    reconstruction: Reconstruction | None = None
    imputation: Reconstruction | None = None
    person_fit: bool = False
    scores: ScoreKind = "eap"
    features: tuple[Feature, ...] = ()


CODES_ONLY = AddedArrays()


@dataclass(frozen=True)
class TransformTask:
    """Transforms a range of rows; small enough to send with every task."""

    model: Model
    # Returns the arrays of the parameters on the worker.
    arrays: Callable[[], Mapping[str, NDArray[Any]]]
    rng: RowRandom  # draws random numbers by original row
    read: Callable[[int], PackedChunk]  # reads a chunk by its key
    segments: NDArray[np.int64]  # the model's index of each segment of the data, (n_segments,)
    dtype: str  # type in which floats are stored
    added_arrays: AddedArrays = CODES_ONLY
    # Likelihood to compute instead of codes, such as `log_likelihood`, or `HELD_OUT`; also the name
    # of its array.
    measure: str | None = None

    def __call__(self, row_range: RowRange) -> dict[str, NDArray[Any]]:
        """Return the codes of a range in original row order, and the row numbers as `row`.

        Reconstructed or completed rows are an array, (n_samples, n_features), or (n_samples,
        n_levels in all) for probabilities of levels. Codes that are not finite are an error.
        """
        params = params_from_arrays(self.model.params, self.arrays())
        codes: dict[str, NDArray[Any]] = {}
        for block, places in self._iter_blocks(row_range):
            check_cancelled()
            if self.measure is None:
                coded = _code_block(self.model, params, block, self.rng, self.added_arrays)
            elif self.measure == HELD_OUT:
                own = (params, block, self.rng, self.added_arrays.features)
                coded = {HELD_OUT: compute_held_out_likelihoods(self.model, *own)}
            else:
                nats = compute_likelihoods(self.model, self.measure, params, block, self.rng).nats
                coded = {self.measure: nats}
            stored = {
                name: cast_for_storage(
                    name, values, block.rows, self.dtype, coded.get("is_finite", True)
                )
                for name, values in {ROW: block.rows, **coded}.items()
            }
            fill_places(codes, row_range, places, stored)
        return codes

    def _iter_blocks(self, row_range: RowRange) -> Iterator[tuple[BinaryBlock, RowNumbers]]:
        """Yield the rows of a range in small blocks, and their places in the range."""
        for block, places in iter_range_rows(self.read, row_range):
            segment = int(self.segments[block.segment])
            for part in iter_portions(block.n_samples, block.n_features):
                rows = block.take_rows(range(block.n_samples)[part])
                yield replace(rows, segment=segment), places[part]


def transform_rows(
    task: TransformTask, rows: RowSource, executor: Executor, progress: Progress
) -> dict[str, NDArray[Any]]:
    """Compute the codes of all rows in memory, in original row order."""
    ranges = split_into_ranges(count_rows_by_chunk(rows, executor), _ROWS_PER_RANGE)
    parts, n_rows = [], 0
    for row_range, part in zip(ranges, executor.map(task, ranges), strict=True):
        parts.append(part)
        n_rows += row_range.stop - row_range.start
        progress("transform", len(parts), len(ranges), n_rows)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def describe_codes(
    model: Model,
    params: Any,
    n_planes: int,
    dtype: str,
    added_arrays: AddedArrays = CODES_ONLY,
) -> ArrayDescriptions:
    """Describe the arrays that a `TransformTask` returns, without any data."""
    empty = make_empty_rows(params, 0, n_planes)
    codes = _code_block(model, params, empty, RowRandom(0), added_arrays)
    dims = {**model.codes, "score": ("component",), "standard_error": ("component",)}
    if added_arrays.scores == "sum":
        dims |= {"score": (), "standard_error": ()}
    for prefix, kind in (("", added_arrays.reconstruction), (_IMPUTED, added_arrays.imputation)):
        if kind is not None:
            has_levels = kind == "probabilities" and added_arrays.features
            dims[prefix + _name_array(kind)] = ("level",) if has_levels else ("feature",)
    return {
        name: (
            dims.get(name, ()),
            values.shape[1:],
            str(cast_for_storage(name, values, empty.rows, dtype).dtype),
        )
        for name, values in codes.items()
    }


def _code_block(
    model: Model, params: Any, block: BinaryBlock, rng: RowRandom, added_arrays: AddedArrays
) -> dict[str, NDArray[Any]]:
    """Return the codes of a block's rows, and the added arrays."""
    if (scores := added_arrays.scores) != "eap":
        return dict(check_can_score(model, params, scores).score_rows(params, block, scores))
    codes = dict(model.transform(params, block, rng))
    if added_arrays.person_fit:
        codes |= check_has_person_fit(model).person_fit(params, block, codes["mean"])
    segments, features = np.full(block.n_samples, block.segment), added_arrays.features
    kinds, numbers = (added_arrays.reconstruction, added_arrays.imputation), None
    if find_continuous(features) and "expected-levels" in kinds:
        able = check_has_continuous_features(model)
        numbers = able.reconstruct_numbers(params, codes["mean"], segments)
    if (kind := added_arrays.reconstruction) is not None:
        planes = check_can_reconstruct(model).reconstruct(params, codes["mean"], segments)
        codes[_name_array(kind)] = _reconstruct_features(kind, planes, numbers, features)
    if (kind := added_arrays.imputation) is not None:
        planes = _complete_planes(check_can_impute(model), params, block, rng)
        if numbers is not None and block.numbers is not None:
            # Given the code of a mixture, a missing number depends on no other value.
            numbers = np.where(np.isnan(block.numbers.T), numbers, block.numbers.T)
        codes[_IMPUTED + _name_array(kind)] = _reconstruct_features(kind, planes, numbers, features)
    return codes


def _name_array(kind: Reconstruction) -> str:
    return kind.replace("-", "_")


def _complete_planes(
    model: CanImpute, params: Any, block: BinaryBlock, rng: RowRandom
) -> NDArray[np.float64]:
    """Return the values of planes, and P(plane = 1 | all observed values) of missing ones."""
    planes = block.unpack_values().astype(np.float64)
    mask = block.unpack_mask()
    if mask is not None:
        incomplete = np.flatnonzero(~mask.all(axis=1))
        found = model.impute(params, block.take_rows(incomplete), rng)
        planes[incomplete] = np.where(mask[incomplete] == 1, planes[incomplete], found)
    return planes


def _reconstruct_features(
    kind: Reconstruction,
    planes: NDArray[np.float64],
    numbers: NDArray[np.float64] | None,
    features: tuple[Feature, ...],
) -> NDArray[Any]:
    """Convert probabilities of planes, and values of continuous features, to a `Reconstruction`."""
    if not features:
        is_discrete = kind in ("bits", "levels")
        return (planes > 0.5).astype(np.uint8) if is_discrete else planes
    if kind == "expected-levels":
        values = sum_planes(planes, features)
        if numbers is not None:
            values[:, find_continuous(features)] = numbers
        return values
    levels = find_level_probabilities(order_planes(planes, features), count_levels(features))
    return find_likely_levels(levels, features) if kind == "levels" else levels


def describe_rows_without_score(kind: ScoreKind, n_rows: int, n_traits: int) -> list[str]:
    """Return a warning if some rows have no score of this kind on these traits."""
    if not n_rows:
        return []
    rows = "1 row has" if n_rows == 1 else f"{n_rows:,} rows have"
    reason, others = ("no answers", "eap")
    if kind == "ml":
        reason, others = "only the lowest or only the highest answers", "wle or sum"
        if n_traits > 1:
            reason, others = f"{reason} to the items of a trait", "map or sum"
    return [
        f"{rows} no {kind} score (score is NaN, is_finite is false), such as rows with {reason}; "
        f"{others} scores them too"
    ]


def check_can_be_reconstructed(added_arrays: AddedArrays, features: Sequence[Feature]) -> None:
    """Refuse levels of continuous features, and bits of features with several levels."""
    for option, kind in (
        ("reconstruct", added_arrays.reconstruction),
        ("impute", added_arrays.imputation),
    ):
        _check_kind(option, kind, features)


def _check_kind(option: str, kind: Reconstruction | None, features: Sequence[Feature]) -> None:
    continuous = [feature.name for feature in features if feature.kind == "continuous"]
    several = [feature for feature in features if len(feature.levels) > 2]
    nominal = [feature.name for feature in several if feature.is_nominal]
    if kind in ("bits", "levels") and continuous:
        remedy = f"{{{option}=expected-levels}}, which is its expected value"
        if nominal:
            remedy = f"{{{option}=probabilities}}, which leave it out"
        raise FitError(
            f"Feature {continuous[0]!r} is continuous, so it has no levels. Choose {remedy}."
        )
    if kind == "expected-levels" and nominal:
        remedy = "" if continuous else f", or {{{option}=levels}} for the most likely category"
        raise FitError(
            f"Feature {nominal[0]!r} is nominal, so it has no expected level. Choose "
            f"{{{option}=probabilities}}{remedy}."
        )
    if kind == "bits" and several:
        raise FitError(
            f"Feature {several[0].name!r} has {several[0].describe_levels()}, so its values are "
            f"not bits. Choose {{{option}=levels}}."
        )


def compute_likelihoods(
    model: Model, measure: str, params: Any, block: BinaryBlock, rng: RowRandom
) -> LogLikelihood:
    """Return a measure of the likelihood of each row, such as `lower_bound`, and its errors."""
    values = getattr(model, measure)(params, block, rng)
    zeros = np.zeros(block.n_samples)
    scores = values if isinstance(values, LogLikelihood) else LogLikelihood(values, zeros)
    if not (is_usable := np.abs(scores.nats) < LARGEST_SCORE).all():
        k = int(np.argmin(is_usable))
        raise FitError(
            f"row {block.rows[k] + 1}: the {measure} is {scores.nats[k]}. "
            "Fit again with other settings."
        )
    return scores


def compute_held_out_likelihoods(
    model: Model,
    params: Any,
    block: BinaryBlock,
    rng: RowRandom,
    features: Sequence[Feature],
) -> Array:
    """Return Σ log P(value | code of the other features) of each row, nats, (n_samples,).

    The features are held out by turns, every fifth at a time; a value with several levels counts by
    P(at least the next level | at least this one).
    """
    owners = np.repeat(np.arange(len(features)), [feature.n_planes for feature in features])
    is_first = np.diff(owners, prepend=-1) > 0
    X, mask, observed = block.unpack_values(), block.unpack_mask(), make_mask(block)
    reached = np.where(is_first, 1, np.roll(X, 1, axis=1)) * (1 if mask is None else mask)
    nats, segments = np.zeros(block.n_samples), np.full(block.n_samples, block.segment)
    for fold in range(min(_N_FEATURE_FOLDS, len(features))):
        is_held_out = owners % _N_FEATURE_FOLDS == fold
        left = np.where(is_held_out[:, None], np.uint64(0), observed)
        others = replace(block, words=block.words & left, observed_words=left)
        codes = model.transform(params, others, rng)["mean"]
        P = check_can_reconstruct(model).reconstruct(params, codes, segments)
        before = np.where(is_first, 1.0, np.roll(P, 1, axis=1))
        p = np.clip(P / np.maximum(before, _LEAST_P), _LEAST_P, 1 - _LEAST_P)
        logs = np.where(X == 1, np.log(p), np.log1p(-p)) * reached
        nats += logs[:, is_held_out].sum(axis=1)
    return nats


def iter_portions(n_rows: int, n_features: int) -> Iterator[slice]:
    """Cut rows into portions that take at most a few seconds to transform."""
    size = max(_MIN_PORTION, _CELLS_AT_ONCE // max(n_features, 1))
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


def cast_for_storage(
    name: str,
    values: NDArray[Any],
    rows: NDArray[np.int64],
    dtype: str,
    is_finite: NDArray[np.bool_] | bool = True,
) -> NDArray[Any]:
    """Cast values to the type in which they are stored; rows that are not finite may be NaN."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if not (finite := np.isfinite(stored)).all():
        finite = finite.reshape(len(rows), -1).all(axis=1) | np.logical_not(is_finite)
        if finite.all():
            return stored
        k = int(np.argmin(finite))
        raise FitError(
            f"row {rows[k] + 1}: the codes in {name} are not finite. Fit again with other settings."
        )
    return stored
