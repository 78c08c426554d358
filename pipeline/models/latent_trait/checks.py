"""Which settings of the latent-trait model can be combined with a structure and its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, are_binary, find_first_planes
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.models.latent_trait.asymptotes import check_asymptotes
from pipeline.models.latent_trait.group_design import find_free_items
from pipeline.models.latent_trait.identification import check_group_means, check_identification
from pipeline.models.latent_trait.known_values import check_free_items, check_known_slopes
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.bifactor import TraitBlocks, find_trait_blocks
from pipeline.numerics.logistic.categories.curves import count_item_levels
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.statistics.counts import FeatureCounts

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def find_constant_items(
    counts: FeatureCounts, constant_features: str
) -> tuple[NDArray[np.intp], list[FitWarning]]:
    """Return the binary items with the same answer in all rows, and warnings about them.

    Raises
    ------
    FitError
        If items were never observed, all are constant, or constant ones are to be refused.
    """
    observed, ones = counts.observed.sum(axis=0), counts.ones.sum(axis=0)
    if (unknown := np.flatnonzero(observed == 0)).size:
        text = f"These features were never observed: {{features}}. {LEAVE_OUT}."
        raise FitError(text, tuple(unknown.tolist()))
    constant = np.flatnonzero((ones == 0) | (ones == observed))
    names = tuple(constant.tolist())
    if constant.size and constant_features == "refuse":
        raise FitError(
            f"These features are constant: {{features}}. {LEAVE_OUT}, or keep them with weights of "
            "zero by {constant_features=keep}.",
            names,
            parameter="constant_features",
        )
    if constant.size == len(ones):
        raise FitError("All features are constant. Add features whose answers differ.")
    text = "constant features, kept with weights of zero: {features}"
    return constant, [FitWarning(text, names)] if names else []


def adapt_to_structure(model: Any, structure: Structure) -> Any:
    """Check settings, and return the model with the estimator and traits that a structure needs.

    Raises
    ------
    FitError
        If the settings or parts of the structure cannot be combined, or the pattern does not
        identify the slopes.
    """
    is_binary = are_binary(structure.features)
    if structure.covariates is not None:
        _check_covariates(model, structure)
    if is_binary and model.has_asymptotes:
        check_asymptotes(model, structure)
    if not structure.groups:
        model.check_unused_settings("invariance", "free")
    if not is_binary:
        _check_levels(model, structure)
    if structure.pattern is not None:
        model = _adapt_to_pattern(model, structure, structure.pattern)
    what, has_pattern = _name_structure(structure), structure.pattern is not None
    is_reduced = is_binary and reduce_pattern(structure, model.correlations) is not None
    q = model.n_components
    if what and not has_pattern and (q or MAX_COMPONENTS + 1) > MAX_COMPONENTS:
        raise FitError(
            f"{{{what}}} needs 1 to {MAX_COMPONENTS} components. Set {{components=1}}.",
            parameter="components",
        )
    allowed = ["auto", "quadrature"]
    if not is_reduced and (has_pattern or not what):
        allowed.append("ep")
    if model.estimator not in allowed:
        raise FitError(
            f"{{{what}}} cannot be combined with {{estimator={model.estimator}}}. It needs "
            f"{' or '.join(f'{{estimator={name}}}' for name in allowed[1:])}.",
            parameter="estimator",
        )
    if structure.known_items is not None:
        # The last plane of an item has its slopes, and an offset of its own.
        known = structure.known_items
        if not is_binary:
            known = _select_last_forms(structure)
        check_known_slopes(known)
        check_free_items(model.free, structure.feature_names, known)
    find_free_items(model.free, structure.feature_names)
    # `quadrature` is for up to 3 components, and a pattern may have more.
    estimator = "ep" if model.estimator == "ep" or (q or 1) > MAX_COMPONENTS else "quadrature"
    return replace(model, estimator="auto" if is_reduced else estimator)


def _select_last_forms(structure: Structure) -> Any:
    """Return slopes and offset of the last form of each item, (n_features, q + 1)."""
    assert structure.known_items is not None
    n_planes = np.diff(find_first_planes(structure.features))
    last, is_continuous = np.cumsum(n_planes) - 1, n_planes == 0
    last[is_continuous] = n_planes.sum() + 2 * np.arange(np.count_nonzero(is_continuous))
    return structure.known_items[last]


def _name_structure(structure: Structure) -> str:
    """Return the name of a part of the structure; empty if there is none."""
    parts = {
        "covariates": structure.covariates,
        "group": structure.groups or None,
        "pattern": structure.pattern,
        "items": structure.known_items,
    }
    return next((name for name, part in parts.items() if part is not None), "")


def _check_covariates(model: Any, structure: Structure) -> None:
    for name, is_other in (
        ("guessing", model.guessing != "none"),
        ("slipping", model.slipping != "none"),
    ):
        if is_other:
            raise FitError(
                f"{{covariates}} cannot be combined with {{{name}}}. Leave out one of them.",
                parameter="covariates",
            )
    if structure.groups and model.invariance == "configural":
        raise FitError(
            "{covariates} cannot be combined with {invariance=configural}, as their "
            "coefficients need traits of one scale in all groups. Use {invariance=metric}.",
            parameter="covariates",
        )


def _check_levels(model: Any, structure: Structure) -> None:
    """Refuse settings that items with several levels, or continuous, do not have."""
    for name in ("guessing", "slipping", "estimator"):
        value = getattr(model, name)
        if value not in (getattr(type(model), name), "quadrature", "ep"):
            raise FitError(
                f"{{{name}={value}}} cannot be combined with features that have several levels or "
                "are continuous yet. Leave it out, or cut the features in two by "
                "{cut=NAME>=VALUE}.",
                parameter=name,
            )
    nominal = [feature.name for feature in structure.features if feature.kind == "nominal"]
    if nominal and model.items != "nominal":
        one = "" if model.n_components == 1 else " and {components=1}"
        raise FitError(
            f"Items of {{items={model.items}}} have ordered levels, but these features are "
            f"nominal: {{features}}. Use {{items=nominal}}{one}, or leave them out by "
            "{drop=NAME}.",
            tuple(nominal),
            parameter="items",
        )
    pattern = structure.pattern
    if model.items == "nominal" and pattern is not None:
        raise FitError(
            "Nominal items have a slope per level, which {pattern} cannot describe. Leave it "
            "out, or choose graded or partial-credit items.",
            parameter="pattern",
        )
    if pattern is not None and model.items == "rating-scale":
        _check_rating_scale(pattern, structure.features)
    if model.items == "rating-scale" and model.equal_slopes == "no" and pattern is None:
        raise FitError(
            "Items of a rating scale have the same slope. Set {equal_slopes=yes}.",
            parameter="equal_slopes",
        )
    if model.items == "nominal" and model.n_components != 1:
        raise FitError(
            "Nominal items need one component. Set {components=1}.", parameter="components"
        )
    if model.items == "nominal" and model.equal_slopes == "yes":
        raise FitError(
            "Nominal items have slopes of their own. Leave out {equal_slopes=yes}.",
            parameter="equal_slopes",
        )


def _check_rating_scale(pattern: LoadingPattern, features: tuple[Feature, ...]) -> None:
    """Refuse a pattern in which the items of a trait, apart from continuous ones, differ."""
    has_levels = np.array([feature.n_planes > 0 for feature in features])
    for k, trait in enumerate(pattern.traits):
        slopes = pattern.slopes[:, k]
        items = np.flatnonzero((slopes >= 0) & has_levels)
        others = items[slopes[items] != slopes[items[:1]]]
        if len(others):
            one, other = (features[own[0]].name for own in (items, others))
            raise FitError(
                "{pattern}: items of a rating scale have the same slope on a trait, but "
                f"{one} and {other} have different entries for {trait!r}. Write "
                "the same label, such as a, for all items of the trait.",
                parameter="pattern",
            )


def _adapt_to_pattern(model: Any, structure: Structure, pattern: LoadingPattern) -> Any:
    """Set the number of traits and the kind of correlations, and check that all are identified."""
    for name, is_other in (
        ("equal_slopes", model.equal_slopes == "yes"),
        ("rotation", model.rotation != "principal"),
    ):
        if is_other:
            raise FitError(
                f"{{{name}={getattr(model, name)}}} cannot be combined with {{pattern}}. Leave out "
                "one of them.",
                parameter=name,
            )
    correlations = _choose_correlations(model, pattern)
    if correlations == "free" and structure.groups and model.traits != "free":
        raise FitError(
            f"{{traits={model.traits}}} cannot be combined with {{group}} and correlated traits. "
            "Use {traits=free} or {correlations=none}.",
            parameter="traits",
        )
    check_identification(pattern, structure.feature_names, correlations == "free")
    has_means = model.invariance in ("scalar", "strict") and model.traits != "standard"
    if structure.groups and has_means:
        check_group_means(pattern)
    return replace(model, n_components=len(pattern.traits), correlations=correlations)


def _choose_correlations(model: Any, pattern: LoadingPattern) -> str:
    if model.correlations != "auto":
        return str(model.correlations)
    return "none" if (pattern.slopes >= 0).all(axis=0).any() else "free"


def reduce_pattern(structure: Structure, correlations: str) -> TraitBlocks | None:
    """Return the blocks of a bifactor pattern, or None if they save no integrals."""
    if structure.pattern is None or correlations == "free":
        return None
    loads = structure.pattern.slopes >= 0
    blocks = find_trait_blocks(loads)
    is_smaller = blocks is not None and len(blocks.general) + 1 < loads.shape[1]
    return blocks if is_smaller else None


def check_own_offsets(structure: Structure, counts: Array, has_own: Flags) -> None:
    """Refuse items that have offsets of their own in a group where they are constant.

    Parameters
    ----------
    counts
        Rows with each level of each item in each group, (n_groups, n_levels).
    has_own
        Items with offsets of their own in each group, (n_features,).
    """
    owners, n = _list_level_owners(structure), len(has_own)
    for group, own in zip(structure.groups, counts, strict=True):
        n_present = np.bincount(owners[own > 0], minlength=n)
        for item in np.flatnonzero(has_own & (n_present < 2)).tolist():
            state = "constant" if n_present[item] else "never observed"
            raise FitError(
                f"{{group}}: {{features}} is {state} in the group {group!r}, so its own parameters "
                "there cannot be estimated. Leave out the feature or the group, or use "
                "{invariance=scalar}.",
                (structure.feature_names[item],),
                parameter="group",
            )


def warn_about_empty_levels(
    structure: Structure, counts: Array, has_own: Flags
) -> list[FitWarning]:
    """Warn about levels that only rows of other groups have; arguments as `check_own_offsets`."""
    owners, warnings = _list_level_owners(structure), []
    for group, own in zip(structure.groups, counts, strict=True):
        is_empty = has_own[owners] & (own == 0) & (counts.sum(axis=0) > 0)
        if (items := np.unique(owners[is_empty])).size:
            text = (
                f"no row of the group {group!r} has some levels of these features, so these levels "
                "count as improbable there: {features}"
            )
            names = tuple(structure.feature_names[item] for item in items.tolist())
            warnings.append(FitWarning(text, names))
    return warnings


def _list_level_owners(structure: Structure) -> NDArray[np.int64]:
    """Return the item of each level, (n_levels,)."""
    n_levels = count_item_levels(np.diff(find_first_planes(structure.features)))
    return np.repeat(np.arange(len(n_levels)), n_levels)
