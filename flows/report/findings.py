"""The findings at the top of a report: sentences by topic, those about problems first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import count_features, format_p
from flows.data.datasets import LoadedModel
from flows.exporting.columns import (
    find_unbounded_weights,
    leave_out_nominal,
    list_segment_names,
    read_factor_columns,
    read_level_columns,
)
from flows.report.figures.causes import find_causes, iter_unit_sentences
from flows.report.figures.network import find_network, iter_network_sentences
from flows.report.figures.paths import PositionChange, find_changes, format_position
from flows.report.figures.states import iter_state_sentences
from flows.report.figures.text import format_number
from flows.report.figures.trees import find_edges, iter_edge_sentences
from flows.report.tables import format_dataset_name
from pipeline.data.features import find_continuous, name_planes, read_features
from pipeline.errors import format_share
from pipeline.evaluation.calibration import ShareComparison
from pipeline.learning.convergence import describe_ending
from pipeline.models.latent_trait.fit_warnings import find_reversed_items
from pipeline.models.loading_pattern import read_trait_names
from pipeline.models.registry import read_vocabulary
from pipeline.models.vocabulary import Vocabulary, format_count
from storage.artifacts.artifacts import Artifact

Array = NDArray[np.float64]

_MAX_COMPONENTS, _MAX_FEATURES = 3, 3
_MAX_ITEMS = 12  # of a problem that are named
_MIN_COMMUNALITY = 0.1
_NORMAL_QUANTILE = 1.96  # of 97.5 %
_MIN_LEADING_SHARE = 0.5  # of the largest value
# A. Maydeu-Olivares, H. Joe, Mult. Behav. Res. 49 (2014)
_CLOSE_RMSEA, _ADEQUATE_RMSEA = 0.05, 0.089
_SIGNIFICANCE_LEVEL = 0.05
_MAX_CHANCE_RATIO = 1.5  # of a root mean square to the one by chance; pairs share features


def summarize_findings(
    fitted: LoadedModel, correlations: Array | None, pairs: ShareComparison | None
) -> dict[str, list[str]]:
    """Summarize the items, components and fit of the model: sentences by topic.

    Parameters
    ----------
    fitted
        The fitted model.
    correlations
        Correlations of features with components, (n_features, n_components), which describe the
        components of models without loadings or weights; None if no rows were read.
    pairs
        The joint frequencies in the figure of the calibration; None if there is no such figure.
    """
    artifact, causes, edges = fitted.artifact, find_causes(fitted), find_edges(fitted)
    network = find_network(fitted)
    words, statistics = read_vocabulary(artifact.manifest), _get_fit_statistics(artifact)
    units = iter_unit_sentences(causes, fitted.feature_names, _MAX_FEATURES) if causes else ()
    indeterminacy = fitted.model.indeterminacy
    if read_trait_names(artifact.manifest):  # a pattern fixes the axes
        indeterminacy = f"the signs of {words.components}, which are such that slopes are positive"
    topics = {
        "Positions": _iter_path_sentences(artifact),
        f"{words.features} to check".capitalize(): _iter_item_sentences(artifact, words),
        words.components.capitalize(): [
            *_iter_number_sentences(artifact, words),
            *_iter_share_sentences(artifact, words),
            *units,
            *(iter_edge_sentences(edges, fitted.feature_names, _MAX_FEATURES) if edges else ()),
            *(
                iter_network_sentences(network, fitted.feature_names, _MAX_FEATURES)
                if network
                else ()
            ),
            *_iter_root_sentences(artifact),
            *iter_state_sentences(artifact),
            *(() if causes else _iter_component_sentences(artifact, words, correlations)),
            *_iter_group_sentences(artifact, words),
            *_iter_test_sentences(statistics),
        ],
        "Not determined": [f"No data determine {indeterminacy}."] if indeterminacy else [],
        "Fit": [
            *_iter_pair_sentences(pairs, statistics),
            *_iter_reliability_sentences(statistics, words),
        ],
        "Data": [_format_fit(artifact.manifest, words)],
    }
    found = {topic: [*sentences] for topic, sentences in topics.items()}
    return {topic: sentences for topic, sentences in found.items() if sentences}


def _iter_path_sentences(artifact: Artifact) -> Iterator[str]:
    """Describe who moved most, who is highest and lowest, and how much positions change."""
    if "member" not in artifact:
        return
    record, changes = artifact.manifest["periods"], find_changes(artifact)
    if changes:
        first, others = changes[0], changes[1:_MAX_FEATURES]
        yield (
            f"{first.name} moved most: from {format_position(first.start)} in {first.first:.10g} "
            f"to {format_position(first.end)} in {first.last:.10g}, {_format_change(first)}."
        )
        if others:
            texts = [f"{own.name}, {_format_change(own)}" for own in others]
            yield f"Then {'; '.join(texts)}."
        n_clear = sum(own.is_clear for own in changes)
        yield f"{n_clear} of the {len(changes)} intervals in the table below exclude 0."
    last = len(artifact["times"]) - 1
    own = np.flatnonzero(artifact["period"] == last)
    order = own[np.argsort(artifact["position"][own], kind="stable")]
    low, high = (
        f"{record['members'][artifact['member'][k]]} ("
        f"{format_position(artifact['position'][k])} ± "
        f"{format_position(artifact['position_error'][k])})"
        for k in (order[0], order[-1])
    )
    if len(own) > 1:
        yield (
            f"In {artifact['times'][last]:.10g}, {high} is highest and {low} lowest; ± is the "
            "standard error."
        )
    if not (np.diff(artifact["member"]) == 0).any():
        yield "No member has rows at several times, so nothing tells how positions change."
        return
    source = "estimated" if artifact.manifest["hyperparameters"]["innovation"] is None else "as set"
    innovation = float(artifact["innovation_variance"])
    text = f"variance s² is {format_number(innovation if changes else 0.0, 2)}, {source}"
    if changes:
        yield (
            f"When {record['time']} rises by 1, a position changes by "
            f"{format_number(innovation**0.5, 2)} (standard deviation; the {text}). First "
            "positions have a standard normal prior."
        )
    else:
        yield f"Positions do not change: their {text}."


def _format_change(own: PositionChange) -> str:
    return f"a change of {format_position(own.change)} (95 % interval {own.interval})"


def _get_fit_statistics(artifact: Artifact) -> Mapping[str, Any]:
    found: Mapping[str, Any] = artifact.manifest["diagnostics"].get("fit_statistics", {})
    return found


def _format_fit(manifest: Mapping[str, Any], words: Vocabulary) -> str:
    components = format_count(manifest["n_components"], words.component)
    rows = f"{manifest.get('n_samples', manifest['dataset']['n_rows']):,} rows"
    rows += f" (split {manifest['split']})" if manifest["split"] else ""
    date = f" on {manifest['created'][:10]}" if manifest.get("created") else ""
    ending = "" if manifest["converged"] else f"; it {describe_ending(False)}"
    n, n_fitted = count_features(manifest)
    features = format_count(n, words.feature)
    features += f" ({n_fitted:,} by level)" * (n_fitted != n)
    data = f"{rows} of {features} of {format_dataset_name(manifest)}"
    return f"{manifest['model']} was fitted with {components} to {data}{date}{ending}."


def _iter_item_sentences(artifact: Artifact, words: Vocabulary) -> Iterator[str]:
    """Name the items that are reversed, that the components hardly explain, or that misfit."""
    names, is_found = artifact.manifest["feature_names"], False
    for subject, verbs, indices in _iter_item_problems(artifact, words):
        is_found = True
        n_more = len(indices) - _MAX_ITEMS
        shown = [names[i] for i in indices[:_MAX_ITEMS]] + [f"{n_more:,} more"] * (n_more > 0)
        yield f"{subject}{_join_words(shown)} {verbs[len(indices) > 1]}."
    if not is_found and "is_nominal" not in artifact and _has_single_trait(artifact):
        yield (
            f"None: no {words.feature} points the other way, and all depend on the "
            f"{words.component}."
        )


def _has_single_trait(artifact: Artifact) -> bool:
    """Return whether items have slopes on one trait, with standard errors."""
    return "difficulty" in artifact and "weights_error" in artifact


def _iter_item_problems(
    artifact: Artifact, words: Vocabulary
) -> Iterator[tuple[str, tuple[str, str], Sequence[int]]]:
    """Yield the kinds of problems: words before the names, verbs for one and several, indices."""
    unbounded = find_unbounded_weights(artifact)
    if _has_single_trait(artifact):
        slopes = leave_out_nominal(artifact, artifact["weights"])[:, 0]
        errors = artifact["weights_error"][:, 0]
        reversed_items, _ = find_reversed_items(slopes, errors)
        if reversed_items.size:
            ending = "the other way than most"
            yield "", (f"points {ending}", f"point {ending}"), reversed_items.tolist()
        # A known slope has no error.
        is_weak = (np.abs(slopes) < _NORMAL_QUANTILE * errors) & ~unbounded
        if is_weak.any():
            ending = f"not depend on the {words.component}"
            yield "", (f"may {ending}", f"may {ending}"), np.flatnonzero(is_weak).tolist()
    if "communality" in artifact and artifact.manifest["n_components"]:
        communality = np.asarray(artifact["communality"])
        weak = np.flatnonzero(communality < _MIN_COMMUNALITY)
        if weak.size:
            shares = "share less than a tenth of {} variance with the " + words.components
            order = weak[np.argsort(communality[weak], kind="stable")]
            one = shares.format("its").replace("share", "shares", 1)
            yield "", (one, shares.format("their")), order.tolist()
    if 0 < unbounded.sum() < len(unbounded):
        ending = f"no finite {words.arrays.get('weights', 'weight')}"
        yield "", (f"has {ending}", f"have {ending}"), np.flatnonzero(unbounded).tolist()
    if "s_x2_p" in artifact:  # corrected for the number of items
        p = np.asarray(artifact["s_x2_p"])
        level = _SIGNIFICANCE_LEVEL / max(np.isfinite(p).sum(), 1)
        misfits = [i for i in np.argsort(p, kind="stable").tolist() if p[i] < level]
        if misfits:
            ending = "beyond chance (S-X²)"
            yield "By sum score ", (f"misfits {ending}", f"misfit {ending}"), misfits


def _iter_number_sentences(artifact: Artifact, words: Vocabulary) -> Iterator[str]:
    """Yield the number of components and the reason for it."""
    manifest = artifact.manifest
    q, diagnostics, settings = (
        manifest[name] for name in ("n_components", "diagnostics", "hyperparameters")
    )
    text = format_count(q, words.component)
    n_set = settings.get("n_components", q) or sum(settings.get("layers") or ())
    if settings.get("prune") and n_set > q:
        reason = f"after pruning {n_set}"
    elif n_set:
        reason = "as set"
    elif "null_eigenvalues" in artifact:
        reason = "whose eigenvalues exceed those of independent features (parallel analysis)"
    elif diagnostics.get("held_out_scores"):
        reason = "the number that describes held-out rows best"
    elif numbers := diagnostics.get("class_numbers"):
        reason = f"of 1 to {len(numbers)} the number with the lowest BIC"
    else:
        reason = "the number that the fit chose"
    by_map = _get_fit_statistics(artifact).get("map_components")
    reason += "" if by_map is None else f"; Velicer's MAP finds {by_map}"
    yield f"{text}, {reason}."
    yield from _iter_class_number_sentences(manifest)


def _iter_class_number_sentences(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers of classes that are best by BIC and by the bootstrap test."""
    table = manifest["diagnostics"].get("class_numbers", ())
    if len(table) < 2 or "bic" not in table[0]:
        return
    best = min(table, key=lambda line: line["bic"])["components"]
    text = f"Of 1 to {len(table)} classes, BIC is lowest at {best}"
    tested = [line for line in table if line.get("blrt_p") is not None]
    if not tested:
        return
    # A test with few draws cannot have a smaller p.
    level = max(_SIGNIFICANCE_LEVEL, 1 / (manifest["hyperparameters"]["blrt"] + 1))
    enough = next((line for line in tested if line["blrt_p"] > level), None)
    if enough is None:
        yield f"{text}; the bootstrap test rejects every number below {len(table)}."
        return
    yield (
        f"{text}; the bootstrap test does not reject {enough['components'] - 1} in favour of "
        f"{enough['components']} (p = {enough['blrt_p']:.2f})."
    )


def _iter_share_sentences(artifact: Artifact, words: Vocabulary) -> Iterator[str]:
    """Describe how much the components explain, or how many rows belong to them."""
    n_shown = min(artifact.manifest["n_components"], _MAX_COMPONENTS)
    if "communality" in artifact:
        columns = {column.array: column.values for column in read_factor_columns(artifact)}
        shares = columns["share_of_variance"][:n_shown]
        verb = "explains" if len(shares) == 1 else "explain"
        if len(shares):
            subject = _join_words(words.names[:n_shown]) if words.names else "the first"
            text = f"{subject} {verb} {_join_shares(shares)}"
            yield f"{text[0].upper()}{text[1:]} of the variance of the {words.features}."
    elif "eigenvalues" in artifact and "loadings" in artifact:
        eigenvalues, n_features = artifact["eigenvalues"], len(artifact.manifest["feature_names"])
        shares = np.asarray(eigenvalues)[:n_shown] / n_features
        verb = "explains" if len(shares) == 1 else "explain"
        yield f"The first {verb} {_join_shares(shares)} of the variance of the correlations."
    elif _is_mixture(artifact):
        shares = np.sort(np.asarray(artifact["weights"]))[::-1][:_MAX_COMPONENTS]
        verb = "holds" if len(shares) == 1 else "hold"
        yield f"The largest {verb} {_join_shares(shares)} of the rows."


def _iter_root_sentences(artifact: Artifact) -> Iterator[str]:
    """Name the feature whose hidden states are the components; none without a hidden tree."""
    if "transitions" not in artifact:
        return
    n_trees, _, n_states, _ = artifact["transitions"].shape
    root = artifact.manifest["feature_names"][int(np.argmin(artifact["parents"]))]
    if n_trees > 1:
        yield (
            f"The fit has {n_trees:,} trees with the same edges. The components are the hidden "
            f"states of {root}, the root of all trees: {n_states:,} per tree, one tree after the "
            "other."
        )
    elif n_states > 1:
        yield f"The components are the hidden states of {root}, the root of the tree."


def _iter_component_sentences(
    artifact: Artifact, words: Vocabulary, correlations: Array | None
) -> Iterator[str]:
    """Describe each component by its leading features."""
    names = artifact.manifest["feature_names"]
    if _is_mixture(artifact):
        yield from _iter_mixture_sentences(artifact, words.component.capitalize())
        return
    # Unbounded weights do not lead.
    columns = [column * ~find_unbounded_weights(artifact) for column in _find_columns(artifact)]
    verb = "is led by"
    if not columns and correlations is not None:
        columns, verb = [*correlations.T], "correlates most with"
    for k, column in enumerate(columns[:_MAX_COMPONENTS]):
        order = np.argsort(-abs(column), kind="stable")[:_MAX_FEATURES]
        leading = [i for i in order if abs(column[i]) > _MIN_LEADING_SHARE * abs(column[order[0]])]
        texts = [f"{names[i]} ({format_number(float(column[i]), 3)})" for i in leading]
        if texts:
            component = words.name_component(k)
            yield f"{component[:1].upper()}{component[1:]} {verb} {_join_words(texts)}."


def _iter_group_sentences(artifact: Artifact, words: Vocabulary) -> Iterator[str]:
    """Describe the means of the traits in the groups with the largest and the smallest mean."""
    if "trait_mean" not in artifact or len(artifact["trait_mean"]) < 2:
        return
    mean, names = artifact["trait_mean"], list_segment_names(artifact)
    error = artifact.get("trait_mean_error")
    for k in range(min(mean.shape[1], _MAX_COMPONENTS) if mean.any() else 0):
        ends = int(mean[:, k].argmin()), int(mean[:, k].argmax())
        texts = [
            f"{names[g]} ({format_number(float(mean[g, k]), 3)}"
            f"{'' if error is None or not error[g, k] else f' ± {format_number(error[g, k], 2)}'})"
            for g in ends
        ]
        subject = f"The mean of {words.name_component(k)}"
        yield f"{subject} is lowest in {texts[0]} and highest in {texts[1]}."


def _iter_test_sentences(statistics: Mapping[str, Any]) -> Iterator[str]:
    """Tell whether networks of groups differ."""
    for test in statistics.get("network_tests", ())[:_MAX_COMPONENTS]:
        values = [
            f"{format_number(abs(test[name]), 3)} (p {format_p(test[f'{name}_p'])})"
            for name in ("largest_difference", "strength_difference")
        ]
        yield (
            f"The networks of {' and '.join(test['groups'])} differ by up to {values[0]} in a "
            f"coupling, and by {values[1]} in the sum of the sizes of all couplings."
        )


def _is_mixture(artifact: Artifact) -> bool:
    """Return whether components are groups of rows, each with its own probabilities of ones."""
    dims = [artifact.dims(name) for name in ("probabilities", "weights") if name in artifact]
    return dims in ([("component", dim), ("component",)] for dim in ("feature", "plane"))


def _iter_mixture_sentences(artifact: Artifact, component: str) -> Iterator[str]:
    """Describe each component by the features that differ most from all rows.

    Two standard deviations of a continuous feature count as much as 0 and 1 of another one.
    """
    features, weights = read_features(artifact.manifest), np.asarray(artifact["weights"])
    levels, columns = read_level_columns(artifact)
    names, p = [f"{feature} = {level}" for feature, level in levels], artifact["probabilities"]
    if columns:
        p = np.array([column.values for column in columns])
    else:
        names = [*name_planes(features)]
    values, margins, units = p, weights @ p, np.ones(p.shape[1])
    if "means" in artifact:
        names += [f"the mean of {features[i].name}" for i in find_continuous(features)]
        values = np.hstack([values, artifact["means"]])
        margins = np.append(margins, artifact["overall_means"])
        units = np.append(units, 2 * artifact["overall_deviations"])
    for k in range(min(len(values), _MAX_COMPONENTS) if len(values) > 1 else 0):
        order = np.argsort(-abs(values[k] - margins) / units, kind="stable")
        texts = []
        for i in order[:_MAX_FEATURES].tolist():
            own, overall = (
                f"{value:.2f}" if i < p.shape[1] else format_number(value, 3)
                for value in (values[k, i], margins[i])
            )
            texts.append(f"{names[i]} ({own}, in all rows {overall})")
        yield f"{component} {k + 1} differs most in {_join_words(texts)}."


def _find_columns(artifact: Artifact) -> list[Array]:
    """Return the loadings or weights of each component, if all features of the model have some."""
    if "is_nominal" in artifact:
        return []
    for name in ("rotated", "loadings", "mixing", "weights"):
        if name in artifact and sorted(artifact.dims(name)) == ["component", "feature"]:
            values = np.asarray(artifact[name], np.float64)
            by_component = values if artifact.dims(name)[0] == "component" else values.T
            return [*by_component]
    return []


def _iter_pair_sentences(
    pairs: ShareComparison | None, statistics: Mapping[str, Any]
) -> Iterator[str]:
    """Judge the fit of pairs of features: by the numbers of the figure, and by RMSEA.

    RMSEA finds smaller misfit, as joint frequencies of rare levels can hardly differ.
    """
    is_by_chance = pairs is not None and pairs.rmse <= _MAX_CHANCE_RATIO * pairs.chance_rmse
    if pairs is not None and not (is_by_chance and statistics.get("rmsea", 0) > _CLOSE_RMSEA):
        rmse, chance = format_number(pairs.rmse, 2), format_number(pairs.chance_rmse, 2)
        verdict = "no more than" if is_by_chance else "more than"
        size = f"root mean square {rmse}, by chance about {chance}"
        yield f"Joint frequencies in data and model differ {verdict} by chance ({size})."
    if "rmsea" in statistics:
        size = statistics["rmsea"]
        well = "adequate" if size <= _ADEQUATE_RMSEA else "poor"
        well = "close" if size <= _CLOSE_RMSEA else well
        interval = " to ".join(format_number(bound, 2) for bound in statistics["rmsea_interval"])
        name = next(name for name in ("RMSR", "SRMSR", "SRMR") if name.lower() in statistics)
        residual = format_number(statistics[name.lower()], 2)
        indices = f"90 % interval {interval}; {name} {residual}"
        yield f"The fit is {well} by RMSEA, {format_number(size, 2)} ({indices})."
    elif "rmsr" in statistics:
        size = format_number(statistics["rmsr"], 2)
        yield f"Correlations in data and model differ by {size} (root mean square, RMSR)."
    elif "m2_missing" in statistics and pairs is None:
        yield f"RMSEA could not be computed: {statistics['m2_missing']}."


def _iter_reliability_sentences(statistics: Mapping[str, Any], words: Vocabulary) -> Iterator[str]:
    if "reliability" in statistics:
        shares = _join_shares(statistics["reliability"])
        code = "code explains" if len(statistics["reliability"]) == 1 else "codes explain"
        components = words.component if len(statistics["reliability"]) == 1 else words.components
        components = _join_words(words.names) if words.names else f"the {components}"
        yield f"A {words.row}'s {code} {shares} of the variance of {components} (reliability)."


def _join_shares(shares: Iterable[float]) -> str:
    return _join_words([format_share(share) for share in shares])


def _join_words(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
