"""Prepare a fit: what the user asked becomes rows and a model, with everything checked.

The command, Python, the estimators and refits all take the same steps, in the same order, which
decides what the first error is about:

1. what the model supports
2. `features`, `reverse`, `cut` and the model's own view of levels; then weights and primary
   sampling units
3. groups
4. covariates, and members and times of rows
5. the loading pattern, which sets the number of components
6. the fit to start from, which sets it too
7. known items
8. the structure of the model
9. the poles of `orient`, and `anchors`

Callers hand in what is read from files: tables of items and patterns, and the fit to start from.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, NamedTuple

import numpy as np

from pipeline.data.batches import translate_read_errors
from pipeline.data.column_measures import (
    choose_weight_kind,
    list_groups,
    measure_row_covariates,
    measure_row_periods,
    measure_row_weights,
)
from pipeline.data.covariates import have_same_columns
from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, are_binary, list_features, name_reversed
from pipeline.data.plane_views import (
    DatasetT,
    cut_levels,
    reverse_features,
    select_features,
    view_planes_as_features,
)
from pipeline.data.row_columns import RowColumns
from pipeline.data.tables import list_names
from pipeline.data.weights import RowWeights, WeightKind
from pipeline.errors import FitError
from pipeline.inference.anchors import Anchor, prepare_anchors
from pipeline.inference.from_artifact import LoadedModel
from pipeline.inference.orientation import Pole, prepare_poles
from pipeline.models.base import Model
from pipeline.models.capabilities import HasSequences
from pipeline.models.known_items import (
    KnownItems,
    find_known_values,
    match_items,
)
from pipeline.models.loading_pattern import (
    make_loading_pattern,
    match_traits,
    read_loading_pattern,
)
from pipeline.models.registry import find_model_class, find_models, get_fixed_settings, make_model
from pipeline.models.settings import AUTO
from pipeline.models.structure import Structure
from pipeline.models.support import Part, check_features, check_parts


class PatternTable(NamedTuple):
    """The columns of a loading pattern by name, and where they are from; see `pattern` of `fit`.

    Attributes
    ----------
    reversed_items
        Reversed items, if the pattern is from a table of scales: the fit has only its items. None
        of other patterns, which have all features.
    """

    columns: Mapping[str, Sequence[Any]]
    source: str
    reversed_items: tuple[str, ...] | None = None

    def select(self, names: Container[str]) -> PatternTable:
        """Return the table with only some of its items, in its column `item`."""
        rows = [k for k, name in enumerate(self.columns["item"]) if name in names]
        columns = {key: [own[k] for k in rows] for key, own in self.columns.items()}
        return self._replace(columns=columns)


@dataclass(frozen=True)
class FitRequest:
    """What the user asked of a fit; `latentbits.fit` explains most of it.

    Messages name a field in braces, such as `{weight}`, which commands spell `--weight` and Python
    `weight`. The metadata of a field has its other names: `options`, those of commands, and
    `estimator`, the argument of estimators; `is_column` says that it names a per-row column.

    Attributes
    ----------
    model, settings
        Name of the model, and values of its settings by name.
    components
        The number of components, or `auto`; None if the user set none.
    features, reverse
        Names of the features to fit, in their order, or None for all; and of those to reverse.
    are_segments_groups
        Whether the segments of the dataset are the groups, instead of the values of a column.
    pattern, items
        Functions that read them, once the model is known to use them.
    initial_fit
        The fit to start from, of the same model, with `--warm-start`.
    dataset_name
        What messages call the dataset.
    """

    model: str
    components: int | str | None = field(default=None, metadata={"estimator": "n_components"})
    settings: Mapping[str, Any] = field(
        default_factory=dict, metadata={"options": ("set", "layers", "segments")}
    )
    split: str | None = None
    features: Sequence[str] | None = field(default=None, metadata={"options": ("features", "drop")})
    reverse: Sequence[str] = ()
    cut: Sequence[str] = ()
    weight: str | None = field(
        default=None, metadata={"estimator": "sample_weight", "is_column": True}
    )
    weights: WeightKind | None = None
    psu: str | None = field(default=None, metadata={"is_column": True})
    group: str | None = field(default=None, metadata={"estimator": "segments", "is_column": True})
    are_segments_groups: bool = field(default=False, metadata={"options": ()})
    covariates: Sequence[str] | None = None
    row_id: str | None = field(default=None, metadata={"is_column": True})
    time: str | None = field(default=None, metadata={"is_column": True})
    pattern: Callable[[], PatternTable] | None = None
    items: Callable[[], KnownItems] | None = None
    orient: Sequence[str] = ()
    anchors: Any = field(default=(), metadata={"options": ("anchors", "anchor")})
    seed: int = field(default=0, metadata={"estimator": "random_state"})
    initial_fit: LoadedModel[Any] | None = field(
        default=None, metadata={"options": ("warm_start",)}
    )
    dataset_name: str = field(default="the dataset", metadata={"options": ("dataset",)})

    def __post_init__(self) -> None:
        settings = {name: _copy_to_tuple(name, value) for name, value in self.settings.items()}
        object.__setattr__(self, "settings", settings)
        for name in ("cut", "orient", "covariates"):
            value = getattr(self, name)
            if isinstance(value, str) and name != "covariates":
                value = [value]
            if value is not None or name != "covariates":
                object.__setattr__(self, name, tuple(list_names(value, name)))
        for own in fields(self):
            value = getattr(self, own.name)
            if "is_column" in own.metadata and not isinstance(value, str | None):
                raise FitError(
                    f"{{{own.name}}} must be the name of a per-row column, but is a "
                    f"{type(value).__name__}. Keep the values in the dataset by the argument keep "
                    "of from_numpy or from_dataframe."
                )

    def list_parts(self) -> list[Part]:
        """Return what the fit is to use besides values; see `pipeline.models.support`."""
        parts: Mapping[Part, bool] = {
            "groups": self.group is not None or self.are_segments_groups,
            "covariates": self.covariates is not None,
            "pattern": self.pattern is not None,
            "known items": self.items is not None,
            choose_weight_kind(self.weights): self.weight is not None,
            "clusters": self.psu is not None and self.weights == "sampling",
            "periods": bool(self.periods),
        }
        return [part for part, is_used in parts.items() if is_used]

    def make_model(self) -> Model:
        """Return the model with its settings, before it is matched to other wishes."""
        settings = {**self.settings, **self._sequence_settings}
        return make_model(self.model, self.components, settings)

    @property
    def periods(self) -> Mapping[str, str]:
        """The columns of members and times, by role, unless they are settings of the model."""
        return {} if self._sequence_settings else self._named_columns

    @property
    def _named_columns(self) -> Mapping[str, str]:
        named = {"row_id": self.row_id, "time": self.time}
        return {name: column for name, column in named.items() if column is not None}

    @property
    def _sequence_settings(self) -> Mapping[str, str]:
        has_sequences = issubclass(find_model_class(self.model), HasSequences)
        return self._named_columns if has_sequences else {}


def _copy_to_tuple(name: str, value: Any) -> Any:
    """Return the items of a list or an array, and other values as they are."""
    if not isinstance(value, list | np.ndarray):
        return value
    with translate_read_errors(name):
        return tuple(value if isinstance(value, list) else value.ravel().tolist())


ESTIMATOR_NAMES: Mapping[str, str] = {
    own.name: own.metadata["estimator"] for own in fields(FitRequest) if "estimator" in own.metadata
}
"""The names of fields in estimators, where they differ."""


@dataclass(frozen=True)
class PreparedFit(Generic[DatasetT]):
    """A checked fit; `prepare` creates it.

    Attributes
    ----------
    model
        The model with its structure.
    dataset, weights
        The rows to fit, with the features that the model takes, groups as segments and
        covariates; and their weights, if they have any.
    poles
        Rows and features that choose the signs of components.
    anchors
        Rows that fix the scale of traits.
    choices
        What the user chose besides the model, the split and the seed, as manifests record it.
    """

    request: FitRequest
    model: Model
    dataset: DatasetT
    weights: RowWeights | None
    poles: tuple[Pole, ...]
    anchors: tuple[Anchor, ...]
    choices: Mapping[str, Any]

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features that the model takes."""
        return list_features(self.dataset)


def prepare(request: FitRequest, dataset: DatasetT) -> PreparedFit[DatasetT]:
    """Check everything that a fit needs of its rows, and adapt rows and model to the request.

    Only per-row columns are read, no features.

    Raises
    ------
    ValueError
        If the request contradicts the dataset, the model or itself.
    """
    model, split = request.make_model(), request.split
    parts = request.list_parts()
    check_parts(model, parts, find_models)
    table = None if request.pattern is None else request.pattern()
    if table is not None and table.reversed_items is not None:
        request = _choose_items(request, dataset, table)
        table = table.select(request.features or ())
    if request.features is not None:
        dataset = select_features(dataset, request.features)
    dataset = reverse_features(dataset, request.reverse)
    dataset, split_levels = _adapt_levels(model, dataset, request.cut)
    features = list_features(dataset)
    check_features(model, features, find_models)
    weights = measure_row_weights(dataset, split, request.weight, request.weights, request.psu)
    groups: tuple[str, ...] = ()
    if "groups" in parts:
        dataset = dataset if request.group is None else dataset.segment_by(request.group)
        groups = list_groups(dataset, split, weights)
    if isinstance(model, HasSequences):
        dataset.check_columns(model.list_required_columns())
    covariates = measure_row_covariates(dataset, split, request.covariates, weights)
    periods = measure_row_periods(dataset, split, **request.periods)
    row_columns = RowColumns(covariates, None if periods is None else periods.columns)
    dataset = dataset.with_row_columns(row_columns)
    pattern = None
    if table is not None:
        columns = table.columns
        new_names = {name: name_reversed(name) for name in request.reverse}
        if "item" in columns:
            own_names = [new_names.get(name, name) for name in columns["item"]]
            columns = {**columns, "item": own_names}
        pattern = make_loading_pattern(columns, dataset.feature_names, table.source)
        model = match_traits(model, pattern, request.components)
    if request.initial_fit is not None:
        model = _match_initial_fit(model, request.initial_fit, request, row_columns)
    items, known = None, None
    if request.items is not None:
        is_number_set = request.components is not None or request.initial_fit is not None
        items = request.items()
        model = match_items(model, items, is_number_set)
        known = items.align(features, model.items, request.dataset_name)
    model = model.with_structure(Structure(groups, features, known, pattern, covariates, periods))
    poles = prepare_poles(request.orient, model, dataset, split, has_known_items=items is not None)
    anchors = prepare_anchors(request.anchors, model, dataset, split, poles)
    choices = {
        "reversed": list(request.reverse),
        "split_levels": split_levels,
        "row_weights": weights and weights.describe(),
        "group": request.group,
        "known_items": items and items.describe(),
        "pattern": pattern and pattern.describe(),
        "orient": list(request.orient),
        "anchors": {anchor.name: list(anchor.position) for anchor in anchors},
    }
    chosen = {name: value for name, value in choices.items() if value}
    return PreparedFit(request, model, dataset, weights, poles, anchors, chosen)


def _choose_items(request: FitRequest, dataset: Dataset, table: PatternTable) -> FitRequest:
    """Return the request to fit the items of a table of scales, with its reversed items."""
    items, names = {*table.columns["item"]}, request.features or dataset.feature_names
    features = tuple(name for name in names if name in items)
    turned = {*request.reverse, *(table.reversed_items or ())}
    return replace(
        request, features=features, reverse=tuple(name for name in features if name in turned)
    )


def _adapt_levels(
    model: Model, dataset: DatasetT, cut: Sequence[str]
) -> tuple[DatasetT, Mapping[str, tuple[str, ...]]]:
    """Return the dataset with features cut in two, or with a binary feature per plane.

    The levels are those of the features that are no longer there, by name.
    """
    levels, dataset = dataset.feature_levels, cut_levels(dataset, cut)
    names = dataset.feature_names
    split_levels = {name: own for name, own in levels.items() if own and name not in names}
    if not model.support.splits_levels or are_binary(list_features(dataset)):
        return dataset, split_levels
    return view_planes_as_features(dataset), {**split_levels, **dataset.feature_levels}


def _match_initial_fit(
    model: Model, initial: LoadedModel[Any], request: FitRequest, row_columns: RowColumns
) -> Model:
    """Return the model with the number of components of the fit to start from.

    Raises
    ------
    FitError
        If that fit has other groups or covariates, or a number of components that differs from the
        request's.
    """
    manifest, remedy = initial.artifact.manifest, "Fit once without {warm_start}."
    latest = f"The latest artifact, {initial.artifact.path},"
    if (recorded := manifest.get("group")) != request.group:
        groups = "no groups" if recorded is None else f"groups by {recorded}"
        raise FitError(f"{latest} has {groups}, unlike this fit. {remedy}")
    recorded_columns = RowColumns.read(manifest)
    if recorded_columns.roles != row_columns.roles or not have_same_columns(
        recorded_columns.covariates, row_columns.covariates
    ):  # members may be others
        roles = " or ".join(sorted({*recorded_columns.roles.values(), *row_columns.roles.values()}))
        raise FitError(f"{latest} has other {roles} than this fit. {remedy}")
    n_components = int(manifest["n_components"])
    is_fixed = request.pattern is not None or "n_components" in get_fixed_settings(request.model)
    is_set = is_fixed or request.components not in (None, AUTO)
    if is_set and model.n_components != n_components:
        advice = "Leave" if is_fixed else f"Set {{components={n_components}}}, or leave"
        raise FitError(
            f"{latest} has {n_components} components, not {model.n_components}. {advice} out "
            "{warm_start}."
        )
    if getattr(model, "layers", None) is not None:
        return model  # its warm start compares the layers
    try:
        return replace(model, n_components=n_components)  # type: ignore[call-arg]
    except FitError:
        raise FitError(
            f"{latest} has {n_components} components, which the settings of this fit do not allow. "
            "Use the settings of that fit, or leave out {warm_start}."
        ) from None


def adapt_fitted_model(
    model: Model, params: Any, manifest: Mapping[str, Any], dataset: Dataset, split: str | None
) -> Model:
    """Return the model of a fit, to fit it again to rows that are adapted to that fit."""
    groups = list_groups(dataset, split, None) if "group" in manifest else ()
    known, pattern = find_known_values(model, params), read_loading_pattern(manifest)
    covariates = RowColumns.read(manifest).covariates
    return model.with_structure(
        Structure(groups, list_features(dataset), known, pattern, covariates)
    )
