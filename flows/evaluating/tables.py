"""Print an evaluation: one table of all models, then the details of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.summary import format_row_count

_CONSOLE_WIDTH = 200  # wide enough not to break lines of the table
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
    "bound": "lower bound on the log-likelihood",
    "pseudo": "sum over features given all others; not comparable with log-likelihoods",
    "composite": "sum over pairs of features; not comparable with log-likelihoods",
    "none": "the model has no likelihood; compare bits, labels, marginals and pairs",
}
ModelSummary = Mapping[str, Any]
_NEIGHBOURHOODS, _NEIGHBOUR_LABELS = "neighbourhoods", "neighbour_labels"
_MAX_ITEMS = 30
_BIAS_NAMES = {"odds_ratio": "odds ratio", "p_adjusted": "adjusted p", "grade": "class"}
_BIAS_NOTES = {
    "mantel-haenszel": "odds ratio: above 1, the item favours the first group among rows of equal "
    "sum scores\nclass: A negligible or not significant, B moderate, C large",
    "likelihood-ratio": "difference: of the probability of a one between the first and the second "
    "group, averaged over the second; above 0, the item favours the first\narea: its mean absolute "
    "value\nslopes, offsets: of the item in the first and the second group, if all other items are "
    "equal in both; chi2 with 2 degrees of freedom",
}


def print_evaluation(summary: Mapping[str, Any]) -> None:
    """Print the comparison, the details of each artifact, and the warnings."""
    console = Console(width=_CONSOLE_WIDTH, soft_wrap=True, highlight=False)
    console.print(f"rows: {format_row_count(summary['n_samples'], summary['split'])}", markup=False)
    models = rank_models(summary["models"])
    for line in _iter_header_lines(models, summary):
        console.print(line, markup=False)
    console.print(_make_comparison_table(models))
    kinds = {model["kind"] for model in models}
    for kind in (kind for kind in _KIND_TEXTS if kind in kinds and kind != "exact"):
        console.print(f"{kind}: {_KIND_TEXTS[kind]}", markup=False)
    print_code_quality(models, console)
    for model in models:
        for line in _iter_model_details(model):
            console.print(line, markup=False)
    if any("pairs" in model for model in models):
        n_compared, n_features = summary["n_features_judged"], summary["n_features"]
        some = f", for {n_compared:,} randomly chosen features" if n_compared < n_features else ""
        console.print(f"implied: shares in {summary['n_drawn']:,} rows drawn from the model{some}")
    if bias := summary["item_bias"]:
        console.print(_make_bias_table(bias))
        console.print(_BIAS_NOTES[bias["test"]], markup=False)
        console.print("adjusted p: for the number of items (Benjamini-Hochberg)", markup=False)
        if bias["has_drawn_answers"]:
            text = "sum scores include draws of missing answers from a latent-trait fit"
            console.print(text, markup=False)
    for test in summary["likelihood_ratio_tests"]:
        p = "< 0.0001" if test["p"] < 1e-4 else f"= {test['p']:.4f}"
        text = f"{test['larger']} over {test['smaller']}: χ² = {test['chi2']:.2f}"
        console.print(f"likelihood ratio, {text}, {test['df']} df, p {p}", markup=False)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", markup=False)


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


def rank_models(models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort by likelihood per row, then by reconstruction and predicted labels."""

    def rank(model: Mapping[str, Any]) -> tuple[float, ...]:
        likelihood, loss = get_likelihood(model), model.get("nll_per_bit", float("inf"))
        accuracy = model.get("prediction", {}).get("accuracy", 0.0)
        order = _KIND_ORDER[model["kind"]]
        return order, 0.0 if likelihood is None else -likelihood, loss, -accuracy

    return sorted(models, key=rank)


def get_likelihood(model: Mapping[str, Any]) -> float | None:
    """Return the likelihood measure of a model in nats per row, of any kind, or None."""
    return next((model[name] for name in LIKELIHOOD_MEASURES if name in model), None)


def _make_comparison_table(models: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = ("model", "components", "nats per row", "bits per row", "kind")
    labels = ["labels"] if any("prediction" in model for model in models) else []
    pairs = ["pairs rmse (by chance)"] if any("pairs" in model for model in models) else []
    for name in (*columns, "wrong bits", "nats per bit", *labels, *pairs):
        table.add_column(name, justify="left" if name in ("model", "kind") else "right")
    for model in models:
        table.add_row(
            model["name"],
            f"{model['n_components']}",
            *_format_likelihood(model),
            model["kind"],
            f"{model['wrong_bits']:.2%}" if "wrong_bits" in model else "",
            f"{model['nll_per_bit']:.4f}" if "nll_per_bit" in model else "",
            *(_format_prediction(model.get("prediction", {})) for _ in labels),
            *(_format_pair_rmse(model) for _ in pairs),
        )
    return table


def _format_prediction(prediction: Mapping[str, Any]) -> str:
    if "accuracy" in prediction:
        return f"{prediction['accuracy']:.2%} right"
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


def _iter_model_details(model: Mapping[str, Any]) -> Iterator[str]:
    """Describe where a fitted model differs most from the data."""
    if model["artifact"] is not None:
        if "folds" not in model:
            yield f"\n{model['name']}: {model['model']}"
        yield from (f"  {refusal}" for refusal in model["refusals"])
        yield from _iter_prediction_lines(model.get("prediction", {}))
        for kind in ("marginals", "pairs"):
            for gap in model.get(kind, {}).get("largest", ()):
                names = ", ".join(gap["features"])
                shares = f"observed {gap['observed']:.4f}, implied {gap['implied']:.4f}"
                yield f"  {kind}: {names}: {shares}, z {gap['z']:+.1f}"
        for row in model.get("pairs", {}).get("calibration", ()):
            shares = f"mean implied {row['implied']:.4f}, observed {row['observed']:.4f}"
            yield f"  pairs implied {row['from']:g} to {row['to']:g}: {row['number']}, {shares}"
    yield from (f"warning: {model['name']}: {warning}" for warning in model["warnings"])


def _iter_prediction_lines(prediction: Mapping[str, Any]) -> Iterator[str]:
    """Describe how well labels are predicted, compared with the commonest label alone."""
    if not prediction:
        return
    column, rows = prediction["column"], f"{prediction['rows']:,} rows"
    if "accuracy" in prediction:
        accuracy = f"{prediction['accuracy']:.4f} ± {prediction['standard_error']:.4f} right"
        baseline = f"{prediction['commonest']:.4f} by always predicting the commonest label"
        yield f"  {column}: {accuracy} of {rows}, {baseline}"
    else:
        r2 = "no R², as all are equal" if prediction["r2"] is None else f"R² {prediction['r2']:.4f}"
        yield f"  {column}: {r2}, error {prediction['rmse']:.4g} in {rows}"


def _make_bias_table(bias: Mapping[str, Any]) -> Table:
    (reference, focal), rows = (bias["reference"], bias["focal"]), bias["rows"]
    title = f"{bias['column']}: {reference} ({rows[0]:,} rows) against {focal} ({rows[1]:,})"
    if trait := bias.get("focal_trait"):
        title += f", whose trait has mean {trait['mean']:.2f} and sd {trait['sd']:.2f}"
    table = Table(box=None, padding=(0, 2, 0, 0), title=escape(title), title_justify="left")
    table.add_column("item")
    columns = [name for name in bias["items"][0] if name != "feature"]
    for name in columns:
        table.add_column(_BIAS_NAMES.get(name, name), justify="right")
    for item in bias["items"][:_MAX_ITEMS]:
        table.add_row(
            escape(item["feature"]), *(_format_bias_cell(name, item[name]) for name in columns)
        )
    return table


def _format_bias_cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(f"{number:.2f}" for number in value)
    return f"{value:.4f}" if name in ("p", "p_adjusted") else f"{value:.2f}"


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
    table = Table(box=None, padding=(0, 2, 0, 0))
    labels = _select_results(models, _NEIGHBOUR_LABELS)
    columns = [f"{labels[0]['column']} by codes", "by bits"] if labels else []
    for name in ("model", "components", "trustworthiness", "continuity", *columns):
        table.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        near, label = model.get(_NEIGHBOURHOODS), model.get(_NEIGHBOUR_LABELS)
        table.add_row(
            model["name"],
            f"{model['n_components']}",
            *(f"{near[name]:.3f}" if near else "" for name in ("trustworthiness", "continuity")),
            *(_format_accuracy(label, suffix) for suffix in ("", "_by_bits") if labels),
        )
    return table


def _format_accuracy(result: Mapping[str, Any] | None, suffix: str) -> str:
    if result is None:
        return ""
    return f"{result['accuracy' + suffix]:.1%} ± {result['standard_error' + suffix]:.1%}"


def _iter_code_footer_lines(models: Sequence[ModelSummary]) -> Iterator[str]:
    """Explain the columns, and give the values for chance."""
    if _select_results(models, _NEIGHBOURHOODS):
        yield "trustworthiness: 1 if neighbours by codes are neighbours by bits; 0.5 by chance"
        yield "continuity: 1 if neighbours by bits are neighbours by codes; 0.5 by chance"
    for result in _select_results(models, _NEIGHBOUR_LABELS)[:1]:
        column, n_without = result["column"], result["rows_without"]
        yield f"{column}: {result['commonest']:.1%} by always predicting the commonest label"
        if n_without:
            yield f"{column}: {n_without:,} rows without a label are left out"


def _select_results(models: Sequence[ModelSummary], name: str) -> list[Mapping[str, Any]]:
    return [model[name] for model in models if name in model]


def _format_rows(n: int, total: int) -> str:
    return f"{n:,} rows" if n == total else f"{n:,} of {total:,} rows"
