"""The summaries that commands print when they are done."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.errors import format_warnings
from pipeline.data.features import read_dataset_features
from pipeline.errors import format_share
from pipeline.learning.convergence import describe_passes
from pipeline.params import get_array
from storage.display import list_trait_names
from storage.quoting import quote

_MAX_STAGES = 3  # the longest ones, so that they fit in a line
_MAX_SHOWN = 8
_WIDE = 400  # of a console that breaks no line of a table
CLASS_NUMBER_COLUMNS = {
    "components": "classes",
    "log_likelihood": "log-likelihood",
    "n_parameters": "parameters",
    "bic": "BIC",
    "adjusted_bic": "aBIC",
    "caic": "CAIC",
    "entropy_r2": "entropy R²",
    "relative_entropy": "relative",
    "smallest_class": "smallest",
    "starts": "starts",
    "starts_at_best": "at best",
    "blrt_statistic": "LR",
    "blrt_p": "p",
}
"""Columns of the table of numbers of classes, with their short names."""
CLASS_NUMBER_NOTE = (
    "*: the classes of this fit; entropy R², relative entropy: 1 if every row is certain to be of "
    "its class; LR, p: bootstrap likelihood-ratio test against one class fewer"
)


def print_json(summary: Mapping[str, Any]) -> None:
    """Print a summary as a JSON object."""
    print(json.dumps(summary))


def make_table(
    *columns: str, left: Collection[str] | None = None, title: str | None = None
) -> Table:
    """Make an empty table without lines.

    Columns are aligned on the right, except for those in `left`; None puts all on the left.
    """
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if left is None or name in left else "right")
    return table


def join_tables(tables: Mapping[str, Table]) -> Table:
    """Return the lines of the tables of several scales as one table, with a column of the scales.

    A single table without the name of a scale stays as it is.
    """
    if "" in tables:
        return tables[""]
    columns = {own.header: own.justify for table in tables.values() for own in table.columns}
    left = ["scale", *(name for name, justify in columns.items() if justify == "left")]
    titles = {scale: f"{table.title}" for scale, table in tables.items() if table.title}
    title = "\n".join(f"{escape(scale)}: {text}" for scale, text in titles.items())
    if len({*titles.values()}) == 1:
        title = next(iter(titles.values()))
    joined = make_table("scale", *map(str, columns), left=[*map(str, left)], title=title or None)
    for scale, table in tables.items():
        cells = {own.header: [*own.cells] for own in table.columns}
        for row in range(table.row_count):
            own_cells = (cells[name][row] if name in cells else "" for name in columns)
            joined.add_row(escape(scale), *own_cells)
    return joined


def format_p(p: float) -> str:
    """Format a p-value with its relation, such as `= 0.0123`."""
    return "< 0.0001" if p < 1e-4 else f"= {p:.4f}"


def print_summary(
    rows: Iterable[tuple[str, str]], results: Mapping[str, str | None], warnings: Sequence[str] = ()
) -> None:
    """Print a table of names and values, the warnings, and the named paths of the results."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    console.print(table)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False)
    for name, path in results.items():
        if path:
            console.print(f"{name}: {path}", markup=False)


def list_scales(scale: Mapping[str, Sequence[Any]] | None) -> list[tuple[str, str]]:
    """List for each component how standardized codes become codes on the scale of the fit."""
    if scale is None:
        return []
    return [
        (f"component {name}", f"code of the fit = {mean:.6g} + {sd:.6g} × standardized code")
        for name, mean, sd in zip(scale["component"], scale["mean"], scale["sd"], strict=True)
    ]


def format_row_count(n_rows: int, split: str | None) -> str:
    """Format the number of rows and their split, such as `1,000 (split test)`."""
    return f"{n_rows:,} ({'all' if split is None else f'split {split}'})"


def list_weights(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the line about the weights of rows in a summary or manifest; empty without weights."""
    weights = record.get("row_weights")
    return [("weights", _format_weights(weights))] if weights else []


def list_covariates(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the line about covariates in a summary or manifest; empty without covariates."""
    covariates = record.get("covariates")
    if not covariates:
        return []
    texts = [
        f"{column['name']} (against {column['levels'][0]})" if column["levels"] else column["name"]
        for column in covariates["columns"]
    ]
    return [("covariates", ", ".join(texts))]


def format_segment_count(n_segments: int, group: str | None) -> tuple[str, str]:
    """Return the number of segments, or of groups by the values of a column, as a fact."""
    if group is None:
        return "segments", f"{n_segments:,}"
    return "groups", f"{n_segments:,} by {group}"


def list_known_items(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the line about known items in a summary or manifest; empty if there are none."""
    items = record.get("known_items")
    if not items:
        return []
    return [("known items", f"{items['n_items']:,} from {Path(items['path']).name}")]


def list_starts(diagnostics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the line about starts in a summary or report; empty for a single start."""
    n_starts = diagnostics.get("starts", 1)
    if n_starts == 1:
        return []
    n_at_best, n_rows = diagnostics["starts_at_best"], diagnostics.get("sample_rows")
    place = "that were not stopped early" if n_rows is None else f"on a sample of {n_rows:,} rows"
    return [("starts", f"{n_at_best} of {n_starts} {place} reached the best")]


def _list_factor_indices(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about the fit of exploratory factors; empty if there are none."""
    if "rmsr" not in statistics:
        return []
    rows = [("RMSR", f"{statistics['rmsr']:.3f}")]
    for prefix, suffix in (("", ""), ("normal_", ", normal theory")):
        if f"{prefix}chi2" in statistics:
            values = _join_numbers(statistics, (f"{prefix}rmsea", f"{prefix}tli"), ".3f")
            rows.append((f"RMSEA, TLI{suffix}", values))
    if "map_components" in statistics:
        rows.append(("factors by MAP", f"{statistics['map_components']:,}"))
    return rows


def list_likelihood(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about likelihood, information criteria, entropy and fit to all patterns.

    Empty if the likelihood of the fit is not exact; see `pipeline.statistics.information_criteria`.
    """
    if "log_likelihood" not in statistics:
        return []
    rows = [("log-likelihood", f"{statistics['log_likelihood']:z,.2f}".replace("-", "−"))]
    if "log_prior" in statistics:
        rows.append(("log prior", f"{statistics['log_prior']:z,.2f}".replace("-", "−")))
    rows.append(("parameters", f"{statistics['n_parameters']:,}"))
    if "aic" in statistics:
        rows.append(("AIC, BIC", _join_numbers(statistics, ("aic", "bic"), ",.1f")))
        rows.append(("adjusted BIC", _join_numbers(statistics, ("adjusted_bic",), ",.1f")))
    if "entropy_r2" in statistics:
        relative = f"relative entropy {statistics['relative_entropy']:.3f}"
        rows.append(("entropy R²", f"{statistics['entropy_r2']:.3f}; {relative}"))
    for name, symbol in (("g2", "G²"), ("pearson", "Pearson's χ²")):
        if name in statistics:
            p = f", p {format_p(statistics[f'{name}_p'])}" if f"{name}_p" in statistics else ""
            df = f"{statistics['pattern_df']:,} degrees of freedom"
            rows.append((symbol, f"{statistics[name]:,.2f} of {df}{p}"))
    return rows


def _join_numbers(values: Mapping[str, Any], names: Sequence[str], form: str) -> str:
    return ", ".join(f"{values[name]:{form}}".replace("-", "−") for name in names)


def list_class_numbers(
    diagnostics: Mapping[str, Any],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns and rows of the table of numbers of classes; none without a comparison.

    A star marks the number that was chosen.
    """
    table = diagnostics.get("class_numbers", ())
    names = [n for n in CLASS_NUMBER_COLUMNS if table and table[-1].get(n) is not None]
    rows = []
    for line in table:
        cells = [_format_class_number(name, line.get(name)) for name in names]
        rows.append((cells[0] + "*" * line["is_chosen"], *cells[1:]))
    return tuple(CLASS_NUMBER_COLUMNS[name] for name in names), rows


def _format_class_number(name: str, value: Any) -> str:
    if value is None:
        return ""
    decimals = {
        "entropy_r2": 3,
        "relative_entropy": 3,
        "blrt_p": 3,
        "log_likelihood": 2,
        "blrt_statistic": 1,
    }
    if name == "smallest_class":
        return format_share(value, 1)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:z,.{decimals.get(name, 1)}f}".replace("-", "−")


def _format_weights(weights: Mapping[str, Any]) -> str:
    """Describe the weights of rows, given their record in a manifest."""
    column, total = weights["column"], weights["total"]
    if weights["kind"] == "frequency":
        return f"{column}, which counts {total:,.0f} rows"
    effective = weights["effective_rows"]
    clusters = f", drawn in clusters of {weights['psu']}" if weights["psu"] else ""
    return f"{column}, with the information of {effective:,.0f} rows of equal weights{clusters}"


def count_features(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of features of the dataset and of the fit, which may split them."""
    n_fitted = len(manifest["feature_names"])
    is_split = "split_levels" in manifest
    return len(read_dataset_features(manifest)) if is_split else n_fitted, n_fitted


def format_feature_count(n_features: int, n_fitted: int) -> str:
    """Write the number of features, and how many they are if they are split by level."""
    return f"{n_features:,}" + f" ({n_fitted:,} by level)" * (n_fitted != n_features)


def summarize_fit(manifest: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """Summarize a fit from its manifest and parameters."""
    names = (
        *("model", "hyperparameters", "split", "n_samples", "n_components"),
        *("iterations", "converged"),
    )
    n_features, n_fitted = count_features(manifest)
    spectrum = get_array(params, "eigenvalues")
    return {
        **{name: manifest[name] for name in names},
        "warnings": format_warnings(manifest["warnings"]),
        "n_features": n_fitted,
        "n_dataset_features": n_features,
        "n_segments": len(manifest["segment_names"]),
        "objective": manifest.get("objective"),
        "diagnostics": manifest["diagnostics"],
        "row_weights": manifest.get("row_weights"),
        "group": manifest.get("group"),
        "known_items": manifest.get("known_items"),
        "traits": list_trait_names(manifest).get("component", []),
        "covariates": manifest.get("covariates"),
        "warm_start": manifest["warm_start"],
        "drift": manifest["drift"],
        "spectrum": [] if spectrum is None else spectrum[:_MAX_SHOWN].tolist(),
    }


def print_fit(summary: Mapping[str, Any]) -> None:
    """Print a table of the fit, its warnings, and the paths of report and artifact."""
    results = {name: summary[name] for name in ("report", "artifact")}
    alerts = [summary["alert"]] if summary["alert"] else []
    columns, rows = list_class_numbers(summary["diagnostics"])
    if rows:
        table = make_table(*columns, left=())
        for row in rows:
            table.add_row(*row)
        console = Console(width=_WIDE, soft_wrap=True, highlight=False, emoji=False)
        console.print(table)
        console.print(f"{CLASS_NUMBER_NOTE}\n", markup=False)
    print_summary(_make_fit_rows(summary), results, [*summary["warnings"], *alerts])


def print_scales(summary: Mapping[str, Any]) -> None:
    """Print a line for each scale, the warnings of all, and the paths of the results."""
    rows, warnings = [], []
    for name, scale in summary["scales"].items():
        n_reversed = len(scale["reversed"])
        items = f"{len(scale['items'])} items" + f" ({n_reversed} reversed)" * bool(n_reversed)
        passes = describe_passes(scale["iterations"], scale["converged"])
        rows.append((name, f"{items}, {scale['n_samples']:,} rows, passes: {passes}"))
        warnings += [f"{name}: {text}" for text in scale["warnings"]]
    rows.append(("seconds", f"{summary['seconds']:.2f}"))
    results = {name: summary.get(name) for name in ("scores", "items", "report")}
    print_summary(rows, results, warnings + [summary["alert"]] * bool(summary["alert"]))


def _make_fit_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    from pipeline.models.registry import find_model_class, read_vocabulary  # slow to import
    from pipeline.models.vocabulary import format_count

    longest = sorted(summary["stages"].values())[-_MAX_STAGES:]
    stages = ", ".join(f"{n} {own:.2f}" for n, own in summary["stages"].items() if own in longest)
    words = read_vocabulary(summary)
    components = format_count(summary["n_components"], words.component)
    if summary["traits"]:
        components += f": {join_names(summary['traits'])}"
    rows = [
        ("model", f"{summary['model']}, {components}"),
        ("rows", format_row_count(summary["n_samples"], summary["split"])),
        *list_weights(summary),
        *list_covariates(summary),
        (
            words.features,
            format_feature_count(summary["n_dataset_features"], summary["n_features"]),
        ),
        format_segment_count(summary["n_segments"], summary["group"]),
        *list_known_items(summary),
        ("passes", describe_passes(summary["iterations"], summary["converged"])),
        *list_starts(summary["diagnostics"]),
        ("seconds", f"{summary['seconds']:.2f} ({stages})"),
    ]
    if summary["warm_start"]:
        name = Path(summary["warm_start"]["path"]).name
        rows.append(("started", f"from {name}, with the same number of components"))
    if summary["objective"]:
        measure = summary["diagnostics"].get("objective_is", "objective")
        rows.append((measure, f"{summary['objective']:.6f} nats per row"))
    statistics = summary["diagnostics"].get("fit_statistics", {})
    rows += [*list_likelihood(statistics), *_list_factor_indices(statistics)]
    if "srmr" in statistics:
        rows.append(("CFI, TLI, SRMR", _join_numbers(statistics, ("cfi", "tli", "srmr"), ".3f")))
        interval = " to ".join(f"{bound:.3f}" for bound in statistics["rmsea_interval"])
        rows.append(("RMSEA", f"{statistics['rmsea']:.3f}, 90 % interval {interval}"))
    for name in find_model_class(summary["model"]).summary_diagnostics:
        if name in summary["diagnostics"]:
            rows.append((name.replace("_", " "), f"{summary['diagnostics'][name]:,.5g}"))
    if summary["spectrum"]:
        rows.append(("spectrum", _format_spectrum(summary["spectrum"], summary["n_features"])))
    if summary["drift"]:
        rows.append(("drift", format_drift(summary["drift"])))
    if "mcs" in summary:
        rows.append(("truth", f"mean cosine similarity {summary['mcs']:.4f}"))
    return rows


def _format_spectrum(values: Sequence[float], n_features: int) -> str:
    more = " …" if len(values) == _MAX_SHOWN < n_features else ""
    return "  ".join(f"{value:.4g}" for value in values) + more


def format_drift(drift: Mapping[str, Any]) -> str:
    """Format the drift since the previous fit as one line."""
    if "note" in drift:
        return str(drift["note"])
    parts = []
    if "similarity" in drift["parameters"]:
        parts.append(f"similarity {drift['parameters']['similarity']:.3f}")
    if "rms" in (shift := drift.get("correlations", {})):
        others = f", without {join_names(shift['left_out'])}" if "left_out" in shift else ""
        moved = f"{shift['rms']:.3f} ({shift['rms_by_chance']:.3f} by chance{others})"
        parts.append(f"correlations moved {moved}")
    if "became_constant" in shift:
        parts.append(f"became constant: {join_names(shift['became_constant'])}")
    if "now" in (scores := drift.get("likelihood", {})):
        before, now = (f"{scores[key]:.4g}".replace("-", "−") for key in ("before", "now"))
        parts.append(f"new rows {before} → {now} {scores['unit']}")
    for kind in ("new", "absent"):
        if names := drift[f"{kind}_features"]:
            parts.append(f"{kind} features {len(names)}")
    if drift["new_segments"]:
        parts.append(f"new segments {len(drift['new_segments'])}")
    return ", ".join(parts) or "nothing to compare"


_MAX_FOUND = 3  # features with the same levels that are named


def print_ingest(summary: Mapping[str, Any]) -> None:
    """Print the size of a new dataset, its warnings and its path."""
    sizes = ("n_rows", "n_features", "n_segments", "n_chunks")
    rows = [(name.removeprefix("n_"), f"{summary[name]:,}") for name in sizes]
    n_with_levels, n_continuous = (
        summary["n_features_with_levels"],
        summary["n_continuous_features"],
    )
    if n_with_levels or n_continuous:
        n_nominal = summary["n_nominal_features"]
        n_by_kind = {"continuous": n_continuous, "with several levels": n_with_levels - n_nominal}
        n_by_kind["nominal"] = n_nominal
        n_by_kind["binary"] = summary["n_features"] - n_with_levels - n_continuous
        kinds = [f"{count:,} {kind}" for kind, count in n_by_kind.items() if count]
        rows[1] = ("features", f"{summary['n_features']:,}: {', '.join(kinds)}")
    for found in summary["found_levels"]:
        levels = " < ".join(found["levels"]) or "continuous, because of more than 16 values"
        if found["is_nominal"]:
            levels = f"nominal: {', '.join(map(quote, found['levels']))}"
        elif len(found["levels"]) == 2 and found["levels"] != ["0", "1"]:
            levels = "{} = 0, {} = 1".format(*map(quote, found["levels"]))
        rows.append((join_names(found["features"], _MAX_FOUND), levels))
    if words := summary.get("words"):
        rows.append(("words read as bits", ", ".join(words)))
    if texts := summary.get("missing_texts"):
        rows.append(("read as missing", join_names(texts)))
    if summary["n_equal_rows"]:
        rows[0] = ("rows", f"{summary['n_rows']:,} different ones of {summary['n_equal_rows']:,}")
    rows.append(("columns", ", ".join(summary["columns"]) or "none"))
    if summary["left_out"]:
        rows.append(("left out", join_names(summary["left_out"])))
    if "n_rows_added" in summary:
        counts = f"{summary['n_rows_added']:,} added, {summary['n_rows_updated']:,} updated"
        rows.append(("rows in the table", counts))
    for action in ("added", "ignored"):
        if names := summary.get(f"features_{action}"):
            rows.append((f"features {action}", f"{len(names):,}: {join_names(names)}"))
    rows.append(("seconds", f"{summary['seconds']:.2f}"))
    print_summary(rows, {"dataset": summary["dataset"]}, summary["warnings"])


def join_names(names: Sequence[str], max_names: int = _MAX_SHOWN) -> str:
    """List the first names, and the number of the others."""
    more = f" and {len(names) - max_names:,} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more
