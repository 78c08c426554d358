"""What a model can use of rows and features: a table in each model, and the one check of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

from pipeline.data.features import Feature, FeatureKind
from pipeline.errors import LEAVE_OUT, FitError

Part = Literal[
    "groups",
    "covariates",
    "pattern",
    "known items",
    "frequency",
    "sampling",
    "clusters",
    "periods",
]
"""What a fit may know of rows and items besides values. `frequency` and `sampling` are meanings of
row weights, `clusters` those of a survey."""


class _Refusal(NamedTuple):
    """How a part is refused: the parameter that asks for it, the problem and the remedy.

    The blank of the problem is the name of the model, that of the remedy the names of all models
    that can use the part.
    """

    parameter: str
    problem: str
    remedy: str = "These models can: {}."


_REFUSALS: Mapping[Part, _Refusal] = {
    "groups": _Refusal("group", "{} has no parameters by group.", "These models have: {}."),
    "covariates": _Refusal("covariates", "{} cannot use covariates of rows."),
    "pattern": _Refusal(
        "pattern", "{} has no loading pattern. Leave out {{pattern}}.", "These models have one: {}."
    ),
    "known items": _Refusal("items", "{} cannot be fitted with known items."),
    "frequency": _Refusal("weight", "{} cannot use weights of rows by {{weights=frequency}}."),
    "sampling": _Refusal("weight", "{} cannot use weights of rows by {{weights=sampling}}."),
    "clusters": _Refusal(
        "psu", "The standard errors of {} do not allow for clusters.", "Those of {} do."
    ),
    "periods": _Refusal(
        "time",
        "{} has no positions over time.",
        "Choose {{model=latent-trait}} with {{dynamics=walk}}, or {{model=hidden-markov}}.",
    ),
}


_SEQUENCE_REMEDY = (
    " Its rows depend on those before and after them, so a row counts once. Leave out {weight}, or "
    "choose {model=bernoulli-mixture}, which ignores the order of rows."
)


class Conflict(NamedTuple):
    """Two parts that a model cannot use together, and the remedy."""

    part: Part
    other: Part
    remedy: str = "Leave out one of them."


@dataclass(frozen=True)
class Support:
    """What a model can use of rows and features.

    Attributes
    ----------
    features
        Kinds of features that it explains; see `pipeline.data.features`. It learns levels from
        `Structure.features`, as its blocks have a bit per plane.
    parts
        What it can use besides values, with each of these kinds.
    conflicts
        Parts that it cannot combine.
    splits_levels
        Whether it explains the planes of ordinal features, each as a binary feature. Its fits then
        have the names of planes; see `split_levels` in manifests.
    needs_levels
        Whether at least one feature must be binary or ordinal.
    has_sequences
        Whether rows depend on those before and after them, so that none can have a weight.
    """

    features: tuple[FeatureKind, ...] = ("binary",)
    parts: tuple[Part, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    splits_levels: bool = False
    needs_levels: bool = False
    has_sequences: bool = False


class HasSupport(Protocol):
    """A model, of which this file needs the names and the table only."""

    name: ClassVar[str]
    support: ClassVar[Support]

    @property
    def title(self) -> str:
        """What messages call the model."""


FindModels = Callable[[], Mapping[str, type[HasSupport]]]


def check_parts(
    model: HasSupport, parts: Collection[Part], find_models: FindModels | None = None
) -> None:
    """Refuse groups, covariates, … that a model cannot use.

    `find_models` returns all models by name, to name those that can; without it, none is named.
    """
    for part in parts:
        if part not in model.support.parts:
            parameter, problem, remedy = _REFUSALS[part]
            text = problem.format(model.title)
            if parameter == "weight" and model.support.has_sequences:
                text += _SEQUENCE_REMEDY
            elif find_models is not None:
                models = find_models().items()
                able = [name for name, other in models if part in other.support.parts]
                text += f" {remedy.format(', '.join(able))}"
            raise FitError(text, parameter=parameter)


def check_conflicts(model: HasSupport, parts: Collection[Part]) -> None:
    """Refuse parts that a model cannot combine."""
    for part, other, remedy in model.support.conflicts:
        if part in parts and other in parts:
            first, last = (_REFUSALS[each].parameter for each in (part, other))
            text = f"{model.title} takes either {{{first}}} or {{{last}}}. {remedy}"
            raise FitError(text, parameter=last)


def check_features(
    model: HasSupport, features: Sequence[Feature], find_models: FindModels | None = None
) -> None:
    """Refuse features of kinds that a model cannot explain; see `check_parts`."""
    support = model.support
    kinds = dict.fromkeys(f.kind for f in features if f.kind not in support.features)
    if not kinds:
        if support.needs_levels and features and all(f.kind == "continuous" for f in features):
            raise FitError(
                f"All features are continuous, but {model.name} needs at least one binary or "
                "ordinal feature. Cut one in two by {cut=NAME>=VALUE}."
            )
        return
    problems, cuts = [], []
    for kind in kinds:
        first, *others = (feature for feature in features if feature.kind == kind)
        subject = f"{first.name!r}{f' and {len(others)} more' if others else ''}"
        if kind == "nominal":
            problems.append(f"{subject} {'are' if others else 'is'} nominal, without an order")
            continue
        what = "values that are numbers" if kind == "continuous" else "more than two levels"
        problems.append(f"{subject} {'have' if others else 'has'} {what}")
        value = first.levels[len(first.levels) // 2] if first.levels else "VALUE"
        pattern = "*" if all(value in feature.levels for feature in features) else first.name
        cuts.append(f"{{cut={pattern}>={value}}}")
    models = {} if find_models is None else find_models()
    by_splitting = sorted(models.items(), key=lambda item: item[1].support.splits_levels)
    able = [name for name, other in by_splitting if {*kinds} <= {*other.support.features}]
    remedies = [f"Cut each in two, such as by {' '.join(cuts)}"] if cuts else []
    if "nominal" in kinds:
        remedies.append(LEAVE_OUT if len(kinds) == 1 else "Leave nominal ones out by {drop=NAME}")
    parts = (support.features[:-1], support.features[-1:])
    taken = " and ".join(", ".join(part) for part in parts if part)
    raise FitError(
        f"{model.name} takes {taken} features, but "
        f"{' and '.join(problems)}. {'. '.join(remedies)}"
        f"{', or use one of ' + ', '.join(able) if able else ''}."
    )


def tabulate_support(models: Mapping[str, type[HasSupport]]) -> list[tuple[str, ...]]:
    """Return a header and a row for each model that can use more than binary values."""
    parts = get_args(Part)
    rows = [("model", "levels", "nominal", "measurements", *parts)]
    for name, model in models.items():
        support = model.support
        levels = "by plane" if support.splits_levels else "yes"
        cells = (
            levels if "ordinal" in support.features else "",
            "yes" if "nominal" in support.features else "",
            "yes" if "continuous" in support.features else "",
            *("yes" if part in support.parts else "" for part in parts),
        )
        if any(cells):
            rows.append((name, *cells))
    return rows
