"""Print an evaluation: one table of all models, then the details of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.summary import (
    format_p,
    format_row_count,
    join_names,
    join_tables,
    make_table,
)
from flows.evaluating.outcomes import print_outcomes
from flows.evaluating.reliability import print_reliability
from flows.evaluating.roll_calls import print_roll_calls
from pipeline.errors import format_share

_CONSOLE_WIDTH = 400  # wide enough not to break lines of the table
LIKELIHOOD_MEASURES = (
    "log_likelihood",
    "lower_bound",
    "pseudo_log_likelihood",
    "composite_log_likelihood",
)
_IN_SAMPLE_TEXTS = {
    "all": "in-sample, fitted to these rows",
    "some": "partly in-sample, fitted to some of these rows",
    "unknown": "perhaps in-sample, as the fitted rows no longer exist",
}
_KIND_ORDER = {"exact": 0, "estimate": 0, "bound": 0, "pseudo": 1, "composite": 2, "none": 3}
_KIND_TEXTS = {
    "exact": "exact",
    "estimate": "log-likelihood by quadrature, draws or expectation propagation; the first ± is "
    "the sampling error of the rows, the second the error of the estimate",
    "bound": "lower bound on the log-likelihood; the model may be better than its bound",
    "pseudo": "sum over features given all others; not comparable with log-likelihoods",
    "composite": "sum over pairs of features; not comparable with log-likelihoods",
    "none": "the model has no likelihood; compare bits, labels, marginals and pairs",
}
_SAMPLE_MARKS = {
    "all": " (in-sample)",
    "some": " (partly in-sample)",
    "unknown": " (perhaps in-sample)",
}
_LOSS_COLUMNS = {
    "wrong bits": "wrong_bits",
    "wrong levels": "wrong_levels",
    "rank correlation": "rank_correlation",
    "nats per bit": "nll_per_bit",
    "R²": "r2",
    "correlation": "correlation",
}
"""Columns of reconstruction losses, which are left out if no model has them."""
_HELD_OUT_COLUMNS = {
    "held-out wrong": "wrong_values",
    "held-out nats": "nll_per_value",
    "held-out R²": "r2",
    "inside 90 %": "inside_90",
}
"""Columns of values predicted from the other values of their row, left out like those above."""
_MARK = "*"
ModelSummary = Mapping[str, Any]
_NEIGHBOURHOODS, _NEIGHBOUR_LABELS = "neighbourhoods", "neighbour_labels"
_MAX_ITEMS = 30
_BIAS_NAMES = {"odds_ratio": "odds ratio", "p_adjusted": "adjusted p"}
_BIAS_NOTES = {
    "mantel-haenszel": "odds ratio: above 1, the item favours the first group among rows of equal "
    "sum scores\ngrade: A negligible or not significant, B moderate, C large",
    "likelihood-ratio": "difference: of the probability of a one, or of the expected score as a "
    "share of the highest, between the first and the other group, averaged over the other; above "
    "0, the item favours the first\narea: its mean absolute value",
}
_LARGEST_NOTE = "group: the group with the largest area, where difference and area are shown"
_OWN_NOTE = "slopes, offsets: of the item in the first and the other group"
_ADJUSTED_NOTE = "adjusted p: for the number of items (Benjamini-Hochberg)"
_COMPLETE_NOTE = "rows with missing answers are left out"
_DRAWN_NOTE = "sum scores include draws of missing answers from a latent-trait fit"
_SHARED_BIAS_NOTES = {
    *(*_BIAS_NOTES.values(), _LARGEST_NOTE, _OWN_NOTE),
    *(_ADJUSTED_NOTE, _COMPLETE_NOTE, _DRAWN_NOTE),
}
"""Notes that do not name the scale that they are about."""
_ENDING_TEXTS = {
    "stable": "the last found the items that were not anchors",
    "repeated": "another would repeat an earlier one, so the choice of anchors is not settled",
    "few-anchors": "another would have fewer than two anchors, so the choice is not settled",
    "max-rounds": "no more are run, although the choice of anchors is not settled",
}


def print_evaluation(summary: Mapping[str, Any], details: bool = False) -> None:
    """Print requested tests and outcomes, or else the comparison of models, and warnings.

    `details` adds where each model differs most from the data. The tests of several scales are in
    one table each.
    """
    console = Console(width=_CONSOLE_WIDTH, soft_wrap=True, highlight=False, emoji=False)
    by_scale: Mapping[str, Mapping[str, Any]] = summary.get("scales", {"": summary})
    lines = (
        f"rows: {format_row_count(own['n_samples'], own['split'])}"
        for own in by_scale.values()
        if any(own[name] for name in ("models", "item_bias", "outcomes", "roll_calls"))
    )
    for line in dict.fromkeys(lines):
        console.print(line, markup=False)
    _print_tests(by_scale, console)
    for scale, own in by_scale.items():
        if scale and (own["models"] or own["outcomes"]):
            console.print(f"scale {scale}", markup=False)
        print_outcomes(own["outcomes"], console)
        if own["models"]:
            _print_comparison(own, console, details)


def _print_comparison(summary: Mapping[str, Any], console: Console, details: bool) -> None:
    models = rank_models(summary["models"])
    for line in _iter_header_lines(models, summary):
        console.print(line, markup=False)
    differences = _index_differences(summary["differences"])
    console.print(_make_comparison_table(models, differences))
    for line in _iter_footnotes(models, differences):
        console.print(line, markup=False)
    print_code_quality(models, console)
    if names := summary["continuous_features"]:
        text = "neighbours by bits, marginals and pairs leave out continuous features"
        text += f": {join_names(names)}"
        console.print(text, markup=False)
    for model in models:
        for line in _iter_model_lines(model, details):
            console.print(line, markup=False)
    if any("pairs" in model for model in models):
        n_compared = summary["n_features_judged"]
        n_features = summary["n_features"] - len(summary["continuous_features"])
        some = f", for {n_compared:,} randomly chosen features" if n_compared < n_features else ""
        if details:
            drawn = f"{summary['n_drawn']:,} rows drawn from the model"
            console.print(f"implied: shares in {drawn}{some}")
        else:
            console.print(f"--details lists features and pairs that a model gets wrong{some}")
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", markup=False)


def _print_tests(summaries: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print what was asked for, by scale: reliability, roll calls, item bias, ratios."""
    print_reliability({scale: own["reliability"] for scale, own in summaries.items()}, console)
    print_roll_calls([model for own in summaries.values() for model in own["roll_calls"]], console)
    biased = {scale: own for scale, own in summaries.items() if own["item_bias"]}
    if biased:
        tables = {scale: _make_bias_table(own["item_bias"]) for scale, own in biased.items()}
        console.print(join_tables(tables))
        notes = (
            line if line in _SHARED_BIAS_NOTES or not scale else f"{scale}: {line}"
            for scale, own in biased.items()
            for line in _iter_bias_notes(own)
        )
        for line in dict.fromkeys(notes):
            console.print(line, markup=False)
    tested = {scale: own for scale, own in summaries.items() if own["likelihood_ratio_tests"]}
    if tested:
        tables = {
            scale: _make_test_table(own["likelihood_ratio_tests"]) for scale, own in tested.items()
        }
        console.print(join_tables(tables))
    if (biased or tested) and any(own["models"] for own in summaries.values()):
        console.print()


def _iter_bias_notes(summary: Mapping[str, Any]) -> Iterator[str]:
    """Explain the columns of a table of item bias, and which rows and items it counts."""
    bias = summary["item_bias"]
    yield _BIAS_NOTES[bias["test"]]
    yield from _iter_fit_lines(bias)
    yield _ADJUSTED_NOTE
    if names := bias.get("reversed"):
        yield f"sum scores count these items in reverse, by their slopes: {join_names(names)}"
    if bias.get("has_only_complete_rows"):
        yield _COMPLETE_NOTE
    if bias["has_drawn_answers"]:
        yield _DRAWN_NOTE
    if names := summary["continuous_features"]:
        yield f"sum scores leave out continuous features: {join_names(names)}"


def _make_test_table(tests: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of likelihood-ratio tests."""
    table = make_table("smaller", "larger", "χ²", "df", "p", left=("smaller", "larger"))
    for test in tests:
        chi2, p = f"{test['chi2']:.2f}", format_p(test["p"]).removeprefix("= ")
        names = (escape(test[name]) for name in ("smaller", "larger"))
        table.add_row(*names, chi2, f"{test['df']}", p)
    return table


def _iter_header_lines(
    models: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Iterator[str]:
    """State which models were fitted to the evaluated rows, and what baselines were fitted to."""
    if n_folds := summary["folds"]:
        yield f"cross-validation: {n_folds} folds, each evaluated by models fitted to the others"
        return
    for fitted, text in _IN_SAMPLE_TEXTS.items():
        if names := [model["name"] for model in models if model["rows_fitted"] == fitted]:
            yield f"{text}: {', '.join(names)}"
    if any(model["artifact"] is None for model in models):
        baselines = summary["baselines"]
        rows = "all rows" if baselines["split"] is None else f"split {baselines['split']}"
        if leading := baselines["leading_chunks"]:
            rows += f" of the first {leading} chunks"
        reason = (
            "like the artifact"
            if baselines["as_artifact"]
            else "because the artifact's rows no longer exist"
        )
        yield f"baselines: fitted to {rows} of {baselines['dataset']}, {reason}"


def rank_models(models: Sequence[ModelSummary]) -> list[ModelSummary]:
    """Sort by likelihood per row, then by reconstruction and predicted labels.

    Baselines that were fitted to the evaluated rows come last: they saw these rows.
    """

    def rank(model: ModelSummary) -> tuple[float, ...]:
        likelihood, loss = get_likelihood(model), model.get("nll_per_bit", float("inf"))
        explained, accuracy = model.get("r2"), model.get("prediction", {}).get("accuracy", 0.0)
        is_in_sample_baseline = model["artifact"] is None and model["rows_fitted"] != "none"
        order = _KIND_ORDER[model["kind"]]
        nats = 0.0 if likelihood is None else -likelihood
        return is_in_sample_baseline, order, nats, loss, -(explained or 0.0), -accuracy

    return sorted(models, key=rank)


def get_likelihood(model: Mapping[str, Any]) -> float | None:
    """Return the likelihood measure of a model in nats per row, of any kind, or None."""
    return next((model[name] for name in LIKELIHOOD_MEASURES if name in model), None)


Differences = Mapping[tuple[str, str], Mapping[str, Any]]


def _index_differences(differences: Sequence[Mapping[str, Any]]) -> Differences:
    """Index differences by the names of both models, in either order."""
    index = {}
    for pair in differences:
        first, second = pair["models"]
        index[first, second] = pair
        index[second, first] = {
            name: {**value, "difference": -value["difference"]}
            for name, value in pair.items()
            if name != "models"
        }
    return index


def _find_difference(
    models: Sequence[ModelSummary], model: ModelSummary, measure: str, differences: Differences
) -> Mapping[str, Any] | None:
    """Return the difference of a model to the best one that it can be compared with, if any.

    `models` are ranked.
    """
    for other in models:
        if other is model:
            return None
        if difference := differences.get((model["name"], other["name"]), {}).get(measure):
            found: Mapping[str, Any] = difference
            return found
    return None


def _format_mark(difference: Mapping[str, Any] | None) -> str:
    return _MARK if difference and difference["is_significant"] else ""


def _make_comparison_table(models: Sequence[ModelSummary], differences: Differences) -> Table:
    columns = ["model", "components", "nats per row", "bits per row", "kind"]
    if any("nats_per_row" in difference for difference in differences.values()):
        columns.insert(3, "difference")
    labels = ["labels"] if any("prediction" in model for model in models) else []
    pairs = ["pairs rmse (by chance)"] if any("pairs" in model for model in models) else []
    columns += [
        name
        for name, key in _LOSS_COLUMNS.items()
        if any(model.get(key) is not None for model in models)
    ]
    held_out = _select_results(models, "held_out")
    columns += [n for n, key in _HELD_OUT_COLUMNS.items() if any(key in own for own in held_out)]
    columns += [*labels, *pairs]
    table = make_table(*columns, left=("model", "kind"))
    for model in models:
        nats, bits = _format_likelihood(model)
        own = model.get("held_out", {})
        cells = {
            "model": escape(model["name"]) + _SAMPLE_MARKS.get(model["rows_fitted"], ""),
            "components": f"{model['n_components']}",
            "nats per row": nats,
            "difference": _format_difference(models, model, differences),
            "bits per row": bits,
            "kind": model["kind"],
            "wrong bits": _format_errors("wrong_bits", models, model, differences),
            "wrong levels": _format_errors("wrong_levels", models, model, differences),
            "rank correlation": _format_mean(model, "rank_correlation"),
            "nats per bit": f"{model['nll_per_bit']:.4f}" if "nll_per_bit" in model else "",
            "R²": _format_mean(model, "r2"),
            "correlation": _format_mean(model, "correlation"),
            "held-out wrong": format_share(own["wrong_values"], 2) if "wrong_values" in own else "",
            "held-out nats": f"{own['nll_per_value']:.4f}" if "nll_per_value" in own else "",
            "held-out R²": _format_mean(own, "r2"),
            "inside 90 %": _format_share(own.get("inside_90")),
            "labels": _format_prediction(model.get("prediction", {})),
            "pairs rmse (by chance)": _format_pair_rmse(model),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _format_difference(
    models: Sequence[ModelSummary], model: ModelSummary, differences: Differences
) -> str:
    difference = _find_difference(models, model, "nats_per_row", differences)
    if difference is None:
        return ""
    error = _format_error(difference["standard_error"])
    mark = _format_mark(difference) or " "
    return f"{difference['difference']:+.4f} ± {error} {mark}"


def _format_errors(
    measure: str, models: Sequence[ModelSummary], model: ModelSummary, differences: Differences
) -> str:
    if measure not in model:
        return ""
    mark = _format_mark(_find_difference(models, model, measure, differences)) or " "
    return f"{format_share(model[measure], 2)} {mark}"


def _format_mean(model: ModelSummary, name: str) -> str:
    value = model.get(name)
    return "" if value is None else f"{value:.3f}"


def _format_share(share: float | None) -> str:
    return "" if share is None else format_share(share, 1)


def _iter_footnotes(models: Sequence[ModelSummary], differences: Differences) -> Iterator[str]:
    if differences:
        yield (
            "difference: from the first model that is comparable, ± its standard error, paired by "
            f"row; {_MARK}: p < 0.05 in a paired t test of six rows or more, also of wrong bits "
            "and levels"
        )
    if any({"wrong_levels", "wrong_bits"} <= {*model} for model in models):
        yield "wrong bits: of the bits that say whether a value is at least a level"
    if any("wrong_levels" in model for model in models):
        yield "wrong levels: the share of values that are not at their most likely level"
    if any(model.get("rank_correlation") is not None for model in models):
        yield (
            "rank correlation: Spearman's, between the expected and the true level, mean over "
            "features"
        )
    if any("r2" in model for model in models):
        yield (
            "R², correlation: between measurements and their expected values given the codes, mean "
            "over features"
        )
    held_out = _select_results(models, "held_out")
    for result in held_out[:1]:
        rows = _format_rows(result["rows"], result["of"])
        yield f"held-out: each value is predicted from all other values of its row, in {rows}"
    if any("wrong_values" in own for own in held_out):
        yield "held-out wrong: the share of values that differ from the most probable value"
        yield "held-out nats: mean −log P(value)"
    if any("inside_90" in own for own in held_out):
        yield "held-out R²: of measurements and their predictions, mean over features"
        yield "inside 90 %: share of held-out values in their predicted 90 % intervals"
    kinds = {model["kind"] for model in models}
    for kind, text in _KIND_TEXTS.items():
        if kind in kinds and kind != "exact":
            yield f"{kind}: {text}"


def _format_prediction(prediction: Mapping[str, Any]) -> str:
    if "accuracy" in prediction:
        return f"{format_share(prediction['accuracy'], 2)} right"
    return f"R² {prediction['r2']:.4f}" if prediction.get("r2") is not None else ""


def _format_pair_rmse(model: Mapping[str, Any]) -> str:
    if "pairs" not in model:
        return ""
    return f"{model['pairs']['rmse']:.4f} ({model['pairs']['rmse_by_chance']:.4f})"


def _format_likelihood(model: Mapping[str, Any]) -> tuple[str, str]:
    likelihood = get_likelihood(model)
    if likelihood is None:
        return "", ""
    estimated = (
        f" ± {_format_error(model['estimation_error'])}" if model["kind"] == "estimate" else ""
    )
    return f"{likelihood:.4f} ± {model['standard_error']:.4f}{estimated}", f"{model['bits']:.4f}"


def _format_error(error: float) -> str:
    return f"{error:.4f}" if error >= 5e-5 else f"{error:.0e}"


def _iter_model_lines(model: ModelSummary, details: bool) -> Iterator[str]:
    """Describe predictions and refusals of a fitted model, its differences from the data, warnings.

    The differences from the data are part of the details.
    """
    if model["artifact"] is not None:
        lines = [*model["refusals"], *_iter_prediction_lines(model.get("prediction", {}))]
        if details:
            lines += _iter_share_lines(model)
        if lines:
            yield f"\n{model['name']}: {model['model']}"
            yield from (f"  {line}" for line in lines)
    yield from (f"warning: {model['name']}: {warning}" for warning in model["warnings"])


def _iter_share_lines(model: ModelSummary) -> Iterator[str]:
    for own in model.get("levels", ()):
        correlation = own["rank_correlation"]
        rank = "" if correlation is None else f", rank correlation {correlation:.3f}"
        yield f"levels: {own['feature']}: wrong {format_share(own['wrong_levels'], 2)}{rank}"
    for kind, scores in (("measurements", model), ("held out", model.get("held_out", {}))):
        for own in scores.get("continuous", ()):
            values = {"rmse": own["rmse"], "R²": own["r2"], "correlation": own["correlation"]}
            texts = [f"{name} {value:.4g}" for name, value in values.items() if value is not None]
            if own.get("inside_90") is not None:
                texts.append(f"{_format_share(own['inside_90'])} inside 90 % intervals")
            yield f"{kind}: {own['feature']}: {', '.join(texts) or 'not observed'}"
    for kind in ("marginals", "pairs"):
        for gap in model.get(kind, {}).get("largest", ()):
            names = ", ".join(gap["features"])
            shares = f"observed {gap['observed']:.4f}, implied {gap['implied']:.4f}"
            yield f"{kind}: {names}: {shares}, z {gap['z']:+.1f}"
    for row in model.get("pairs", {}).get("calibration", ()):
        shares = f"mean implied {row['implied']:.4f}, observed {row['observed']:.4f}"
        yield f"pairs implied {row['from']:g} to {row['to']:g}: {row['number']}, {shares}"


def _iter_prediction_lines(prediction: Mapping[str, Any]) -> Iterator[str]:
    """Describe how well labels are predicted, compared with the commonest label alone."""
    if not prediction:
        return
    column, rows = prediction["column"], f"{prediction['rows']:,} rows"
    if "accuracy" in prediction:
        accuracy = f"{prediction['accuracy']:.4f} ± {prediction['standard_error']:.4f} right"
        baseline = f"{prediction['commonest']:.4f} by always predicting the commonest label"
        yield f"{column}: {accuracy} of {rows}, {baseline}"
    else:
        r2 = "no R², as all are equal" if prediction["r2"] is None else f"R² {prediction['r2']:.4f}"
        yield f"{column}: {r2}, error {prediction['rmse']:.4g} in {rows}"


def _make_bias_table(bias: Mapping[str, Any]) -> Table:
    items = bias["items"][:_MAX_ITEMS]
    if _has_many_groups(bias):
        items = [_show_largest_area(item, bias["focal"]) for item in items]
    columns = [name for name in items[0] if name != "feature"]
    headings = (_BIAS_NAMES.get(name, name) for name in columns)
    title = escape("\n".join(_iter_group_lines(bias)))
    table = make_table("item", *headings, left=("item",), title=title)
    for item in items:
        table.add_row(
            escape(item["feature"]), *(_format_bias_cell(name, item[name]) for name in columns)
        )
    return table


def _has_many_groups(bias: Mapping[str, Any]) -> bool:
    return isinstance(bias["focal"], list)


def _iter_group_lines(bias: Mapping[str, Any]) -> Iterator[str]:
    """Name the groups, with their numbers of rows and, if they were fitted, their traits."""
    focal, traits = bias["focal"], bias.get("focal_trait")
    many = _has_many_groups(bias)
    names, own_traits = (focal, traits) if many else ([focal], [traits] if traits else None)
    first = f"{bias['column']}: {bias['reference']} ({bias['rows'][0]:,} rows) against"
    lines = []
    for g, (name, n_rows) in enumerate(zip(names, bias["rows"][1:], strict=True)):
        line = f"{name} ({n_rows:,})"
        if own_traits:
            trait = own_traits[g]
            line += f", whose trait has mean {trait['mean']:.2f} and sd {trait['sd']:.2f}"
        lines.append(line)
    if many:
        yield first
        yield from (f"  {line}" for line in lines)
    else:
        yield f"{first} {lines[0]}"


def _show_largest_area(item: Mapping[str, Any], focal: Sequence[str]) -> dict[str, Any]:
    """Replace the values of all groups by those of the group with the largest area."""
    largest = max(range(len(focal)), key=lambda g: item["area"][g])
    shown = {name: item[name] for name in item if name not in ("slopes", "offsets")}
    effects = {name: item[name][largest] for name in ("difference", "area")}
    return {**shown, **effects, "group": focal[largest]}


def _iter_fit_lines(bias: Mapping[str, Any]) -> Iterator[str]:
    """Explain the likelihood-ratio tests: columns, anchors, and fits that did not converge."""
    if "focal_trait" not in bias:
        return
    yield _LARGEST_NOTE if _has_many_groups(bias) else _OWN_NOTE
    if "df" in bias:
        yield f"chi2: {bias['df']} degrees of freedom"
    purification = bias.get("purification", {"excluded": []})
    excluded = ", ".join(purification["excluded"])
    yield "anchors: all other items" + (f", without {excluded}" if excluded else "")
    if "ending" in purification:
        n_rounds, ending = purification["n_rounds"], _ENDING_TEXTS[purification["ending"]]
        yield f"purification: {n_rounds} round{'s' * (n_rounds > 1)}; {ending}"
    if unfinished := bias["unfinished"]:
        names = ", ".join(unfinished)
        yield f"warning: the fits of these items did not converge, so chi2 may be wrong: {names}"


def _format_bias_cell(name: str, value: Any) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, list):
        return ", ".join(f"{number:z.2f}" for number in value)
    if name in ("p", "p_adjusted"):
        return format_p(value).removeprefix("= ")
    return f"{value:z.2f}"


def print_code_quality(models: Sequence[ModelSummary], console: Console) -> None:
    """Print how well codes keep neighbourhoods and predict the label, best model first."""
    compared = [m for m in models if _NEIGHBOURHOODS in m or _NEIGHBOUR_LABELS in m]
    if not compared:
        return
    compared.sort(key=_make_code_sort_key)
    for line in _iter_code_header_lines(compared):
        console.print(line, markup=False)
    console.print(_make_code_table(compared))
    for line in _iter_code_footer_lines(compared):
        console.print(line, markup=False)


def _make_code_sort_key(model: ModelSummary) -> tuple[float, float]:
    neighbourhoods, labels = model.get(_NEIGHBOURHOODS, {}), model.get(_NEIGHBOUR_LABELS, {})
    return -labels.get("accuracy", 0.0), -neighbourhoods.get("trustworthiness", 0.0)


def _iter_code_header_lines(models: Sequence[ModelSummary]) -> Iterator[str]:
    for result in _select_results(models, _NEIGHBOURHOODS)[:1]:
        rows = _format_rows(result["rows"], result["of"])
        yield f"\ncodes: the {result['n_neighbors']} nearest neighbours of each row, among {rows}"
    lines = {
        f"{result['column']} of {_format_rows(result['rows'], result['of'])}: predicted by the "
        f"{result['n_neighbors']} nearest of "
        f"{_format_rows(result['neighbours'], result['neighbours_of'])} fitted"
        for result in _select_results(models, _NEIGHBOUR_LABELS)
    }
    yield from sorted(lines)


def _make_code_table(models: Sequence[ModelSummary]) -> Table:
    labels = _select_results(models, _NEIGHBOUR_LABELS)
    columns = [f"{labels[0]['column']} by codes", "by values"] if labels else []
    names = ("model", "components", "trustworthiness", "continuity", *columns)
    table = make_table(*names, left=("model",))
    for model in models:
        near, label = model.get(_NEIGHBOURHOODS), model.get(_NEIGHBOUR_LABELS)
        table.add_row(
            model["name"],
            f"{model['n_components']}",
            *(f"{near[name]:.3f}" if near else "" for name in ("trustworthiness", "continuity")),
            *(_format_accuracy(label, suffix) for suffix in ("", "_by_values") if labels),
        )
    return table


def _format_accuracy(result: Mapping[str, Any] | None, suffix: str) -> str:
    if result is None:
        return ""
    accuracy = format_share(result["accuracy" + suffix], 1)
    return f"{accuracy} ± {result['standard_error' + suffix]:.1%}"


def _iter_code_footer_lines(models: Sequence[ModelSummary]) -> Iterator[str]:
    """Explain the columns, and give the values for chance."""
    if _select_results(models, _NEIGHBOURHOODS):
        yield "trustworthiness: 1 if neighbours by codes are neighbours by values; 0.5 by chance"
        yield "continuity: 1 if neighbours by values are neighbours by codes; 0.5 by chance"
    for result in _select_results(models, _NEIGHBOUR_LABELS)[:1]:
        column, n_without = result["column"], result["rows_without"]
        share = format_share(result["commonest"], 1)
        yield f"{column}: {share} by always predicting the commonest label"
        if n_without:
            yield f"{column}: {n_without:,} rows without a label are left out"


def _select_results(models: Sequence[ModelSummary], name: str) -> list[Mapping[str, Any]]:
    return [model[name] for model in models if name in model]


def _format_rows(n: int, total: int) -> str:
    return f"{n:,} rows" if n == total else f"{n:,} of {total:,} rows"
