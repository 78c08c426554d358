"""Facts about a fit: model and dataset, statistics, drift, provenance, time and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.cli.summary import format_row_count
from flows.report.figures.causes import TextTable
from flows.report.figures.text import format_number
from pipeline.learning.convergence import describe_ending
from pipeline.models.registry import find_models
from storage.artifacts.artifacts import Artifact

FactRows = list[tuple[str, str]]
Manifest = Mapping[str, Any]
_MAX_NAMES = 5
_NOTE = (
    "RMSEA, SRMSR, CFI and TLI compare the frequencies of ones of features and pairs of features "
    "with those of the model (M₂ of Maydeu-Olivares and Joe)."
)
_MEANINGS = {
    "log-likelihood": "in nats; higher is better",
    "parameters": "that are estimated from the data",
    "AIC, BIC": "lower is better, for fits to the same rows",
    "M₂": "far above its degrees of freedom if the model does not describe the pairs",
    "RMSEA": "misfit per degree of freedom: close up to 0.05, adequate up to 0.09",
    "SRMSR": "root mean square of residual correlations: close up to 0.05",
    "CFI, TLI": "from 0 (independence) to 1 (perfect fit)",
    "reliability": "share of a component's variance that the codes explain",
}


class StageUsage(NamedTuple):
    """Resources that a stage used; `share` is its percentage of all seconds."""

    name: str
    seconds: str
    share: float
    cpu_seconds: str
    read: str
    memory: str
    worker_memory: str


def format_title(manifest: Manifest) -> str:
    """Return the title of the report."""
    return f"{manifest['model']} of {format_dataset_name(manifest)}"


def format_dataset_name(manifest: Manifest) -> str:
    """Return the name of the dataset's folder, without its suffix."""
    return Path(manifest["dataset"]["path"]).name.removesuffix(".zarr")


def describe_fit(manifest: Manifest) -> FactRows:
    """Describe the fit in a few names and values."""
    split = manifest["split"]
    facts = [
        ("model", manifest["model"]),
        ("dataset", format_dataset_name(manifest)),
        ("rows", format_row_count(manifest.get("n_samples", manifest["dataset"]["n_rows"]), split)),
        ("features", f"{len(manifest['feature_names']):,}"),
        ("segments", f"{len(manifest['segment_names']):,}"),
        ("components", f"{manifest['n_components']:,}"),
        ("passes", f"{manifest['iterations']:,}, {describe_ending(manifest['converged'])}"),
    ]
    if objective := manifest.get("objective"):
        named = manifest["diagnostics"].get("objective_is", "objective")
        facts.append((named, f"{format_number(objective, 7)} nats per row"))
    model = find_models().get(manifest["model"])
    shown = model.summary_diagnostics if model else ()
    found = manifest["diagnostics"]
    return facts + [
        (name.replace("_", " "), _format_value(found[name])) for name in shown if name in found
    ]


def describe_drift(manifest: Manifest) -> FactRows:
    """Describe what changed since the last fit; empty if there was none to compare with."""
    drift = manifest.get("drift")
    if not drift:
        return []
    facts = [
        ("last fit", f"{drift['created']}, {drift['path']}"),
        ("rows", f"{drift['rows_then']:,} then, {drift['rows_new']:,} new"),
    ]
    for name in ("new_segments", "settings_changed"):
        if drift[name]:
            facts.append((name, _shorten_names(drift[name])))
    found = drift["parameters"]
    if "similarity" in found:
        facts.append((f"similarity of {found['array']}", format_number(found["similarity"], 5)))
    if moved := found.get("largest_move"):
        text = f"{moved['feature']}: {_format_change(moved['before'], moved['now'])}"
        facts.append((f"largest change of {moved['array']}", text))
    return facts + _describe_correlation_shift(drift) + _describe_likelihood_change(drift)


def _describe_correlation_shift(drift: Manifest) -> FactRows:
    moved = drift.get("correlations", {})
    if "note" in moved:
        return [("correlations", moved["note"])]
    if not moved:
        return []
    spread, chance = format_number(moved["rms"], 3), format_number(moved["rms_by_chance"], 3)
    text = f"{spread} root mean square, {chance} by chance, of {moved['pairs']:,} pairs"
    pairs = (
        (f"{', '.join(pair['features'])}: {_format_change(pair['before'], pair['new'])}", pair["z"])
        for pair in moved["largest"]
    )
    return [
        ("correlations of new rows minus earlier ones", text),
        ("chance", moved["chance"]),
        *(("moved most", f"{told}, z = {format_number(z, 2)}") for told, z in pairs),
    ]


def _describe_likelihood_change(drift: Manifest) -> FactRows:
    scored = drift.get("likelihood", {})
    if "note" in scored:
        return [("likelihood of new rows", scored["note"])]
    if not scored:
        return []
    of = f"{scored['measure']} of {scored['rows']:,} new rows"
    text = f"{_format_change(scored['before'], scored['now'], 5)} {scored['unit']}"
    return [(f"{of}, by the last fit and this one", text)]


def _format_change(before: float, now: float, digits: int = 3) -> str:
    return f"{format_number(before, digits)} → {format_number(now, digits)}"


def _shorten_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def list_provenance(artifact: Artifact) -> FactRows:
    """List the artifact, the dataset, the seed and the versions behind the fit."""
    manifest, dataset = artifact.manifest, artifact.manifest["dataset"]
    versions = (f"{name} {version}" for name, version in manifest["versions"].items())
    start = manifest.get("warm_start")
    warm_start = [("warm start", f"{start['path']}, digest {start['digest']}")] if start else []
    return [
        ("artifact", str(artifact.path)),
        ("artifact digest", manifest["manifest_digest"]),
        ("dataset", dataset["path"]),
        ("dataset digest", dataset["digest"]),
        ("dataset rows, chunks", f"{dataset['n_rows']:,}, {dataset['n_chunks']:,}"),
        *warm_start,
        ("seed", str(manifest["seed"])),
        ("versions", ", ".join(versions)),
        ("code digest", manifest["code"]),
    ]


def drop_fit_statistics(diagnostics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop the fit statistics, which have their own table."""
    return {name: value for name, value in diagnostics.items() if name != "fit_statistics"}


def format_values(values: Mapping[str, Any]) -> FactRows:
    """Write settings or diagnostics as text."""
    return [(name, _format_value(value)) for name, value in values.items()]


def _format_value(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return format_number(value, 6)
    if isinstance(value, list):
        return ", ".join(map(_format_value, value)) or "none"
    return str(value)


def describe_arrays(artifact: Artifact) -> list[tuple[str, str, str]]:
    """List name, dimensions and shape of every array."""
    return [
        (name, ", ".join(artifact.dims(name)) or "–", " × ".join(map(str, values.shape)) or "1")
        for name, values in artifact.items()
    ]


def describe_stages(manifest: Manifest) -> list[StageUsage]:
    """List the resources that every stage used."""
    by_stage = manifest.get("usage_by_stage", {})
    total = sum(used["seconds"] for used in by_stage.values()) or 1.0
    return [
        StageUsage(
            name,
            format_number(used["seconds"], 3),
            100 * used["seconds"] / total,
            format_number(used["cpu_seconds"], 3),
            _format_megabytes(used["bytes_read"]),
            _format_megabytes(used["peak_memory"]),
            _format_megabytes(used["peak_memory_of_largest_worker"]),
        )
        for name, used in by_stage.items()
    ]


def _format_megabytes(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 1e6:,.0f} MB"


def make_fit_statistics_table(manifest: Manifest) -> TextTable | None:
    """Return the table of fit statistics, if the fit has any."""
    statistics = manifest["diagnostics"].get("fit_statistics")
    if not statistics:
        return None
    rows = tuple((name, value, _MEANINGS[name]) for name, value in _iter_rows(statistics))
    note = (
        _NOTE
        if "m2" in statistics
        else f"M₂ and its indices are unknown: {statistics['m2_missing']}."
    )
    return TextTable("How well it fits", ("statistic", "value", "meaning"), rows, note)


def _iter_rows(statistics: Manifest) -> Iterator[tuple[str, str]]:
    yield "log-likelihood", f"{statistics['log_likelihood']:,.2f}".replace("-", "−")
    yield "parameters", f"{statistics['n_parameters']:,}"
    yield "AIC, BIC", f"{statistics['aic']:,.1f}, {statistics['bic']:,.1f}"
    if "m2" in statistics:
        p = "< 0.0001" if statistics["m2_p"] < 1e-4 else f"= {statistics['m2_p']:.4f}"
        m2, df = format_number(statistics["m2"], 5), f"{statistics['m2_df']:,}"
        yield "M₂", f"{m2} of {df} degrees of freedom, p {p}"
        interval = " to ".join(f"{bound:.3f}" for bound in statistics["rmsea_interval"])
        yield "RMSEA", f"{statistics['rmsea']:.3f}, 90 % interval {interval}"
        yield "SRMSR", f"{statistics['srmsr']:.3f}"
        yield "CFI, TLI", f"{statistics['cfi']:.3f}, {statistics['tli']:.3f}"
    yield "reliability", ", ".join(f"{one:.3f}" for one in statistics["reliability"])
