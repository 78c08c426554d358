"""The tables of a report: facts about the fit, parameters of features, and their explanations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import (
    CLASS_NUMBER_NOTE,
    count_features,
    format_feature_count,
    format_p,
    format_row_count,
    format_segment_count,
    join_names,
    list_class_numbers,
    list_covariates,
    list_known_items,
    list_likelihood,
    list_starts,
    list_weights,
)
from flows.exporting.columns import (
    ParameterColumn,
    list_segment_names,
    read_factor_columns,
    read_level_columns,
    read_parameter_columns,
    read_trait_correlations,
)
from flows.report.figures.causes import TextTable
from flows.report.figures.text import format_number, format_shown_count
from pipeline.data.datasets import IN_MEMORY
from pipeline.learning.convergence import describe_passes
from pipeline.models.registry import get_known_model, read_vocabulary
from pipeline.models.vocabulary import Vocabulary, make_plural
from storage.artifacts.artifacts import Artifact

FactRows = list[tuple[str, str]]
Manifest = Mapping[str, Any]
_MAX_NAMES = 5
_MAX_ROWS, _MAX_CELLS = 500, 10_000  # of the table of parameters
_NOTES = {
    "M₂": "RMSEA, SRMSR, CFI and TLI compare the frequencies of ones of {words.features} and pairs "
    "of {words.features} with those of the model (M₂ of Maydeu-Olivares and Joe).",
    "C₂": "RMSEA, SRMSR, CFI and TLI compare the frequencies of levels and the mean products of "
    "the scores 0, 1, 2, … of pairs of {words.features} with those of the model "
    "(C₂ of Cai and Monroe).",
}
_NORMAL_NOTE = (
    "χ², RMSEA and TLI allow for the errors of the correlations. The values by normal theory are "
    "those of fa in R's psych, which takes tetrachoric and polychoric correlations for those of "
    "measured values: χ² and RMSEA are then too large, and TLI is too small."
)
_PATTERN_NOTE = (
    "χ², RMSEA, SRMR, CFI and TLI are those of the pattern for the polychoric correlations of the "
    "{words.features}, as by WLSMV in lavaan and Mplus, with normal curves."
)
_MEANINGS = {
    "M": "largest absolute difference of two couplings; p by permutation of group labels",
    "S": "difference of the sum of the sizes of all couplings; p by permutation of group labels",
    "RMSR": "root mean square of residual correlations: close up to 0.05",
    "χ²": "far above its degrees of freedom if the factors do not explain the correlations",
    "TLI": "from 0 (independence) to 1 (perfect fit)",
    "χ², normal theory": "the same by normal theory",
    "RMSEA, normal theory": "the same by normal theory",
    "TLI, normal theory": "the same by normal theory",
    "BIC, normal theory": "χ² minus log(rows) per degree of freedom; lower is better",
    "factors by MAP": "number of {words.components} with the least partial correlations (Velicer)",
    "log-likelihood": "in nats; higher is better",
    "log prior": "log density of the priors at the estimates, not in the other values",
    "parameters": "number of parameters estimated from the data",
    "AIC, BIC": "lower is better, for fits to the same rows",
    "adjusted BIC": "BIC with (n + 2) / 24 in the place of the number of rows n",
    "entropy R²": "1 if rows clearly belong to classes, 0 if their values say no more than the "
    "sizes of the classes; relative entropy is 0 if all classes are equally probable",
    "G²": "far above its degrees of freedom if the model does not describe how many rows have each "
    "pattern of values",
    "Pearson's χ²": "the same, with more weight of rare patterns",
    "M₂": "far above its degrees of freedom if the model does not describe the pairs",
    "C₂": "far above its degrees of freedom if the model does not describe the pairs",
    "RMSEA": "misfit per degree of freedom: close up to 0.05, adequate up to 0.09",
    "SRMR": "standardized root mean square of residual correlations: close up to 0.08",
    "SRMSR": "root mean square of residual correlations: close up to 0.05",
    "CFI, TLI": "from 0 (independence) to 1 (perfect fit)",
    "marginal reliability": "mean of I / (I + 1) over the {words.component}, with information I",
    "alpha": "of the sum of answers without missing values; evaluate --reliability has intervals",
    "reliability": "share of each {words.component}'s variance that the codes explain",
}

_FACT_EXPLANATIONS = {
    "nats per row": "A nat is the unit of natural logarithms: with 0.01 nats per row more, rows "
    "are 1 % more likely.",
    "regularization": "Regularization is added to the variances of the features, so that a few "
    "rows cannot dominate; the stronger it is, the weaker the correlations that the model sees.",
    "stability of starts": "Stability is the similarity of the mixing of two fits, from 0 to 1: of "
    "the two best starts (below 1, there is more than one solution)",
    "stability of halves": "and of two halves of the rows.",
    "likelihood error": "The likelihood error is how far the objective may be off, in nats per "
    "row.",
    "half agrees": "Kernel lost is the share of the kernel that the landmarks do not span. Half "
    "agrees is how well half of the landmarks reproduce the codes; 1 is perfect.",
    "unmixed": "Unmixed is the share of rows whose two chains of draws disagree.",
    "vertices": "Vertices are the distinct rows in the graph; parts are its connected components.",
    "before fine tuning": "Before fine tuning is the objective after the layers were trained one "
    "by one.",
}
_ASYMPTOTES = (
    "With guessing g and slipping s, the curve is g plus 1 − s − g times this one: at the "
    "difficulty, it is halfway between g and 1 − s."
)
_COLUMN_EXPLANATIONS = {
    "difficulty": "Slopes a and intercepts d are those of logistic curves, "
    "1 / (1 + exp(−a x − d)), so D = 1. At the difficulty b = −d / a, the curve is at ½.",
    "communality": "Rows are sorted by the {words.component} with the largest loading. The "
    "communality is the share of each {words.feature}'s variance that the {words.components} "
    "explain, the uniqueness the rest.",
    "sum_of_squares": "Sums of squared loadings allow for correlated {words.components}: they add "
    "up to the communalities.",
    "guessing": _ASYMPTOTES,
    "slipping": _ASYMPTOTES,
    "coefficients_1": "Coefficients are the change of a trait per unit of the covariate, or "
    "against the reference level, in standard deviations of the trait that covariates leave.",
    "log_odds_2": "Log-odds compare each {words.component} with the first. The table has their "
    "change per unit of the covariate, or against the reference level.",
    "level_difficulty_1": "A threshold is the position on the {words.component} where "
    "the level or a higher one has probability ½; of items with partial credit, where the level "
    "and the one below are equally likely.",
    "deviations": "Weights of continuous {words.features} are for (value − mean) / scale. The "
    "deviation is the standard deviation given the {words.components}, in the same units.",
    "infit": "Infit and outfit are mean squared residuals, with and without weighting by "
    "information: about 1 if the model holds, larger if answers are more erratic.",
    "s_x2": "S-X² compares the frequencies of levels at each sum score with those of the model; a "
    "small p means that they differ by more than chance.",
}


# Arrays that the table of parameters leaves out if it has another one, and the first arrays then.
_REPLACED_BY_LEVELS = {
    "level_difficulty": ("offsets", "difficulty", "level_offsets", "group_offsets"),
    "level_probabilities": ("probabilities", "continuation"),
}
_LEVELS_NOTE = (
    "Log-odds of a level against the first one of its item are the slope times the trait plus the "
    "intercept; those of the first one are 0."
)
_OWN_TABLE = ("level_probabilities", "level_weights", "level_offsets")
_NOT_SHOWN = ("n_levels", "is_nominal", "status")  # codes, which other columns and warnings tell
_FACTOR_ORDER = {"loadings": 0, "communality": 1, "uniqueness": 2}
_LEVEL_ORDER = {"weights": 0, "level_difficulty": 1}


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
    path = manifest["dataset"]["path"]
    return "data in memory" if path == IN_MEMORY else Path(path).name.removesuffix(".zarr")


def describe_fit(manifest: Manifest) -> FactRows:
    """Describe the fit in a few names and values."""
    split, words = manifest["split"], read_vocabulary(manifest)
    facts = [
        ("model", manifest["model"]),
        ("dataset", format_dataset_name(manifest)),
        ("rows", format_row_count(manifest.get("n_samples", manifest["dataset"]["n_rows"]), split)),
        *list_weights(manifest),
        *list_covariates(manifest),
        (words.features, format_feature_count(*count_features(manifest))),
        format_segment_count(len(manifest["segment_names"]), manifest.get("group")),
        *list_known_items(manifest),
        (words.components, _format_component_count(manifest, words)),
        ("passes", describe_passes(manifest["iterations"], manifest["converged"])),
        *list_starts(manifest["diagnostics"]),
    ]
    if objective := manifest.get("objective"):
        measure = manifest["diagnostics"].get("objective_is", "objective")
        facts.append((measure, f"{format_number(objective, 7)} nats per row"))
    model, values = get_known_model(manifest["model"]), manifest["diagnostics"]
    names = model.summary_diagnostics if model else ()
    return facts + [
        (name.replace("_", " "), _format_value(values[name])) for name in names if name in values
    ]


def _format_component_count(manifest: Manifest, words: Vocabulary) -> str:
    names = f": {join_names(words.names)}" if words.names else ""
    return f"{manifest['n_components']:,}{names}"


def describe_drift(manifest: Manifest) -> FactRows:
    """Describe the changes since the last fit; empty if there was none to compare with."""
    drift = manifest.get("drift")
    if not drift:
        return []
    if "note" in drift:
        return [("drift", drift["note"])]
    facts = [
        ("last fit", f"{drift['created']}, {drift['path']}"),
        ("rows", f"{drift['rows_then']:,} then, {drift['rows_new']:,} new"),
    ]
    for name in ("new_features", "absent_features", "new_segments", "settings_changed"):
        if drift.get(name):
            facts.append((name, join_names(drift[name], _MAX_NAMES)))
    changes = drift["parameters"]
    if "similarity" in changes:
        facts.append((f"similarity of {changes['array']}", format_number(changes["similarity"], 5)))
    if largest := changes.get("largest_move"):
        text = f"{largest['feature']}: {_format_change(largest['before'], largest['now'])}"
        facts.append((f"largest change of {largest['array']}", text))
    return facts + _describe_correlation_shift(drift) + _describe_likelihood_change(drift)


def _describe_correlation_shift(drift: Manifest) -> FactRows:
    shift = drift.get("correlations", {})
    constant = shift.get("became_constant", ())
    facts = [("became constant", join_names(constant, _MAX_NAMES))] if constant else []
    if "note" in shift:
        return [*facts, ("correlations", shift["note"])]
    if not shift:
        return []
    rms, chance = format_number(shift["rms"], 3), format_number(shift["rms_by_chance"], 3)
    text = f"{rms} root mean square, {chance} by chance, of {shift['pairs']:,} pairs"
    if n_left_out := shift.get("pairs_left_out", 0):
        text += f" ({n_left_out:,} more have too few rows in a cell)"
    if "left_out" in shift:
        text += f", without the continuous features {join_names(shift['left_out'], _MAX_NAMES)}"
    pairs = (
        f"{', '.join(pair['features'])}: {_format_change(pair['before'], pair['new'])}, "
        f"z = {format_number(pair['z'], 2)}"
        for pair in shift["largest"]
    )
    return [
        *facts,
        ("correlations of new rows minus earlier ones", text),
        ("chance", shift["chance"]),
        *(("moved most", pair) for pair in pairs),
    ]


def _describe_likelihood_change(drift: Manifest) -> FactRows:
    scores = drift.get("likelihood", {})
    if "note" in scores:
        return [("likelihood of new rows", scores["note"])]
    if not scores:
        return []
    measure = f"{scores['measure']} of {scores['rows']:,} new rows"
    text = f"{_format_change(scores['before'], scores['now'], 5)} {scores['unit']}"
    return [(f"{measure}, by the last fit and this one", text)]


def _format_change(before: float, now: float, digits: int = 3) -> str:
    return f"{format_number(before, digits)} → {format_number(now, digits)}"


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


def format_values(values: Mapping[str, Any]) -> FactRows:
    """Format settings or diagnostics as text, without those that have their own table."""
    own_tables = ("fit_statistics", "class_numbers")
    return [(name, _format_value(v)) for name, v in values.items() if name not in own_tables]


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
    """List the resources that each stage used."""
    by_stage = manifest.get("usage_by_stage", {})
    total = sum(usage["seconds"] for usage in by_stage.values()) or 1.0
    return [
        StageUsage(
            name,
            format_number(usage["seconds"], 3),
            100 * usage["seconds"] / total,
            format_number(usage["cpu_seconds"], 3),
            _format_megabytes(usage["bytes_read"]),
            _format_megabytes(usage["peak_memory"]),
            _format_megabytes(usage["peak_memory_of_largest_worker"]),
        )
        for name, usage in by_stage.items()
    ]


def _format_megabytes(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 1e6:,.0f} MB"


_OPTIONAL_INDICES = (
    ("aic", "AIC, BIC and adjusted BIC", "use"),
    ("m2", "{form} and its indices", "use"),
    ("s_x2", "S-X²", "uses"),
    ("g2", "G² and Pearson's χ²", "use"),
    ("chi2", "χ² of the pattern and its indices", "use"),
)
"""Entry of the fit statistics, symbol and verb of the indices that a fit may leave out."""


def make_fit_statistics_table(manifest: Manifest) -> TextTable | None:
    """Return the table of fit statistics, if the fit has any."""
    statistics = manifest["diagnostics"].get("fit_statistics")
    if not statistics:
        return None
    words, is_factors = read_vocabulary(manifest), "rmsr" in statistics
    found = _iter_factor_rows(statistics) if is_factors else _iter_rows(statistics, words)
    rows = tuple((name, value, _MEANINGS[name].format(words=words)) for name, value in found)
    if is_factors:
        note = _NORMAL_NOTE
        if reason := statistics.get("normal_missing"):
            note = f"χ² and its indices could not be computed: {reason}."
        elif reason := statistics.get("rmsea_missing"):
            note += f" Here, they could not be computed: {reason}."
        return TextTable("How well it fits", ("statistic", "value", "meaning"), rows, note)
    form = _name_limited_information(statistics)
    notes = [_NOTES[form].format(words=words)] if "m2" in statistics else []
    if "g2" in statistics and "g2_p" not in statistics:
        notes.append(
            f"{statistics['n_rows']:,} rows are too few for p of G² and Pearson's χ², because "
            f"{statistics['n_patterns']:,} patterns of values are possible."
        )
    if "srmr" in statistics:
        notes.append(_PATTERN_NOTE.format(words=words))
    n_fitted = _count_fitted_rows(manifest)
    missing: dict[str, list[str]] = {}
    for name, pattern, verb in _OPTIONAL_INDICES:
        symbol = pattern.format(form=form)
        if reason := statistics.get(f"{name}_missing"):
            missing.setdefault(reason, []).append(symbol)
        elif (n_rows := statistics.get(f"{name}_rows", n_fitted)) < n_fitted:
            rows_used = "only row" if n_rows == 1 else f"{n_rows:,} rows"
            notes.append(f"{symbol} {verb} the {rows_used} without missing values.")
    for reason, symbols in missing.items():
        notes.append(f"{'; '.join(symbols)} could not be computed: {reason}.")
    if not rows and not notes:
        return None
    return TextTable("How well it fits", ("statistic", "value", "meaning"), rows, " ".join(notes))


def _name_limited_information(statistics: Manifest) -> str:
    """Return the symbol of the statistic of pairs: C₂ for items with several levels, else M₂."""
    return "C₂" if statistics.get("m2_form") == "C2" else "M₂"


def _count_fitted_rows(manifest: Manifest) -> int:
    """Return the number of rows; rows with frequencies count as often as they say."""
    weights = manifest.get("row_weights")
    if weights is not None and weights["kind"] == "frequency":
        return int(weights["total"])
    return int(manifest.get("n_samples", 0))


def _iter_factor_rows(statistics: Manifest) -> Iterator[tuple[str, str]]:
    """Iterate over the indices of exploratory factors."""
    yield "RMSR", f"{statistics['rmsr']:.3f}"
    yield "parameters", f"{statistics['n_parameters']:,}"
    for prefix, suffix in (("", ""), ("normal_", ", normal theory")):
        own = {
            name.removeprefix(prefix): statistics[name]
            for name in statistics
            if name.startswith(prefix)
        }
        if "chi2" not in own:
            continue
        p = format_p(own["chi2_p"])
        chi2, df = format_number(own["chi2"], 6), f"{own['chi2_df']:,}"
        yield f"χ²{suffix}", f"{chi2} of {df} degrees of freedom, p {p}"
        interval = " to ".join(f"{bound:.3f}" for bound in own["rmsea_interval"])
        yield f"RMSEA{suffix}", f"{own['rmsea']:.3f}, 90 % interval {interval}"
        yield f"TLI{suffix}", f"{own['tli']:.3f}"
        if "bic" in own:
            yield f"BIC{suffix}", f"{own['bic']:z,.1f}".replace("-", "−")
    if "map_components" in statistics:
        yield "factors by MAP", f"{statistics['map_components']:,}"


def _iter_rows(statistics: Manifest, words: Vocabulary) -> Iterator[tuple[str, str]]:
    yield from list_likelihood(statistics)
    if "m2" in statistics:
        p = format_p(statistics["m2_p"])
        m2, df = format_number(statistics["m2"], 5), f"{statistics['m2_df']:,}"
        yield _name_limited_information(statistics), f"{m2} of {df} degrees of freedom, p {p}"
    if "chi2" in statistics:
        p = format_p(statistics["chi2_p"])
        chi2, df = format_number(statistics["chi2"], 5), f"{statistics['chi2_df']:,}"
        yield "χ²", f"{chi2} of {df} degrees of freedom, p {p}"
    if "rmsea" in statistics:
        interval = " to ".join(f"{bound:.3f}" for bound in statistics["rmsea_interval"])
        yield "RMSEA", f"{statistics['rmsea']:.3f}, 90 % interval {interval}"
        name = "SRMSR" if "srmsr" in statistics else "SRMR"
        yield name, f"{statistics[name.lower()]:.3f}"
        yield "CFI, TLI", f"{statistics['cfi']:.3f}, {statistics['tli']:.3f}"
    if "reliability" in statistics:
        shares = [f"{share:.3f}" for share in statistics["reliability"]]
        named = [f"{name} {share}" for name, share in zip(words.names, shares, strict=False)]
        yield "reliability", ", ".join(named or shares)
    if "marginal_reliability" in statistics:
        yield "marginal reliability", f"{statistics['marginal_reliability']:.3f}"
    if "alpha" in statistics:
        text = f"{statistics['alpha']:.3f}"
        if "alpha_turned" in statistics:
            text += (
                f"; {statistics['alpha_turned']:.3f} with items reversed that point the other way"
            )
        yield "alpha", text
    for test in statistics.get("network_tests", ()):
        groups = " and ".join(test["groups"])
        for symbol, name in (("M", "largest_difference"), ("S", "strength_difference")):
            p = format_p(test[f"{name}_p"])
            yield symbol, f"{format_number(test[name], 3)} between {groups}, p {p}"


class NumberCell(NamedTuple):
    """A cell: its text, the text of its uncertainty, and the value that sorts the column."""

    text: str
    uncertainty: str
    value: float


class NumberTable(NamedTuple):
    """A table of numbers that the page can sort: a name of this kind and its cells for each row."""

    title: str
    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[NumberCell, ...]], ...]
    note: str


def make_level_table(artifact: Artifact) -> NumberTable | None:
    """Return the parameters of levels, if the fit has some and features have several levels."""
    names, columns = read_level_columns(artifact)
    texts = [f"{feature} = {level}" for feature, level in names]
    words = read_vocabulary(artifact.manifest)
    if "level_weights" not in artifact:
        return _make_number_table("Probabilities of levels", "level", texts, columns, words)
    table = _make_number_table("Levels", "level", texts, columns, words)
    return table and table._replace(note=f"{_LEVELS_NOTE} {table.note}")


def make_parameter_table(
    artifact: Artifact, correlations: NDArray[np.float64] | None
) -> NumberTable | None:
    """Return the parameters of features, or else their correlations with components, if known.

    The parameters of trees are left out, as there are a figure and a table of edges. `correlations`
    have shape (n_features, n_components).
    """
    columns, words, title = [], read_vocabulary(artifact.manifest), "Parameters"
    if "parents" not in artifact:
        distinct = _iter_distinct_columns(read_parameter_columns(artifact, "feature"))
        columns = _select_columns([*distinct])
    if read_level_columns(artifact)[1]:  # a table of its own
        columns = [column for column in columns if column.array not in _OWN_TABLE]
    elif not columns and correlations is not None and correlations.any():  # a single tree has 0
        labels = words.label_components(correlations.shape[1])
        columns = [
            ParameterColumn("correlation", f"_{label}", values)
            for label, values in zip(labels, correlations.T, strict=True)
        ]
        title = f"Correlations of {words.features} with {words.components}"
    names = artifact.manifest["feature_names"]
    if "communality" not in artifact:
        return _make_number_table(title, words.feature, names, columns, words)
    order = _sort_by_factor(np.asarray(artifact["loadings"], np.float64))
    columns.sort(key=lambda column: _FACTOR_ORDER.get(column.array, 3))
    sorted_columns = [
        column._replace(**{n: a[order] for n, a in column._asdict().items() if np.ndim(a) == 1})
        for column in columns
    ]
    names = [names[i] for i in order]
    return _make_number_table(title, words.feature, names, sorted_columns, words)


def _sort_by_factor(loadings: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the order of features by their main factor, and by their loading on it."""
    sizes = np.abs(loadings)
    if not sizes.shape[1]:
        return np.arange(len(sizes))
    return np.lexsort((-sizes.max(axis=1), sizes.argmax(axis=1)))


def make_factor_table(artifact: Artifact) -> NumberTable | None:
    """Return what each factor explains and its correlations, or the correlations of traits."""
    words = read_vocabulary(artifact.manifest)
    columns = read_factor_columns(artifact)
    if words.names:
        title = f"Correlations of the {words.components}"
        return _make_number_table(title, words.component, words.names, columns, words)
    names = words.label_components(artifact.manifest["n_components"])
    return _make_number_table("Factors", words.component, names, columns, words)


def _select_columns(columns: Sequence[ParameterColumn]) -> list[ParameterColumn]:
    """Leave out the parameters that thresholds or probabilities of levels replace.

    Columns must be distinct, or else a parameter that is left out may be there as that of a group.
    """
    arrays = {column.array for column in columns}
    found = (names for key, names in _REPLACED_BY_LEVELS.items() if key in arrays)
    replaced = {*chain.from_iterable(found)}
    kept = [column for column in columns if column.array not in replaced]
    return sorted(kept, key=lambda column: _LEVEL_ORDER.get(column.array, 2)) if replaced else kept


def make_group_table(artifact: Artifact) -> NumberTable | None:
    """Return the parameters of groups or segments, if there are any."""
    is_grouped = artifact.manifest.get("group") is not None
    title, kind = ("Groups", "group") if is_grouped else ("Segments", "segment")
    words = read_vocabulary(artifact.manifest)
    if "segments" not in artifact:
        if read_trait_correlations(artifact):  # nothing else is estimated, see `make_factor_table`
            return None
        title, kind = f"Distribution of the {words.components}", "rows"
    columns = [
        column._replace(array=column.array.removeprefix("group_").removeprefix("segment_"))
        for column in read_parameter_columns(artifact, "segment")
    ]
    return _make_number_table(title, kind, list_segment_names(artifact), columns, words)


def make_class_table(artifact: Artifact) -> NumberTable | None:
    """Return the sizes of the classes of a mixture with standard errors, if they are known."""
    if "weights_error" not in artifact or artifact.dims("weights") != ("component",):
        return None
    size = ParameterColumn("size", "", artifact["weights"], artifact["weights_error"])
    names = [f"{k}" for k in range(1, len(size.values) + 1)]
    return _make_number_table("Classes", "class", names, [size], read_vocabulary(artifact.manifest))


def make_class_number_table(manifest: Manifest) -> TextTable | None:
    """Return the table of the numbers of classes that the fit compared, if any."""
    columns, rows = list_class_numbers(manifest["diagnostics"])
    if not rows:
        return None
    note = f"BIC, aBIC and CAIC: lower is better. {CLASS_NUMBER_NOTE}."
    return TextTable("Number of classes", columns, tuple(rows), note)


def make_coefficient_table(artifact: Artifact) -> NumberTable | None:
    """Return the coefficients of covariates, if the fit has some."""
    if "coefficients" not in artifact:
        return None
    names = artifact.manifest["covariates"]["names"]
    columns = [c for c in read_parameter_columns(artifact, "covariate") if c.error is not None]
    if "intercepts" in artifact:  # of a mixture, whose first component is the reference
        columns = [column._replace(array="log_odds") for column in columns[1:]]
    words = read_vocabulary(artifact.manifest)
    return _make_number_table("Covariates", "covariate", names, columns, words)


def _make_number_table(
    title: str,
    kind: str,
    names: Sequence[str],
    columns: Sequence[ParameterColumn],
    words: Vocabulary,
) -> NumberTable | None:
    """Make a table of the first columns, and of the rows that are largest in the first."""
    distinct = [*_iter_distinct_columns(columns)]
    if not distinct:
        return None
    shown = distinct[: max(1, _MAX_CELLS // min(len(names), _MAX_ROWS))]
    size = np.abs(np.nan_to_num(shown[0].values.astype(np.float64)))
    indices = np.sort(np.argsort(-size, kind="stable")[:_MAX_ROWS])
    cells = [_make_cells(column) for column in shown]
    rows = tuple((names[i], tuple(column[i] for column in cells)) for i in indices)
    note = ""
    if errors := [column.error for column in shown if column.error is not None]:
        note += "± is the standard error. "
        note += "Fixed values were not estimated. " if not np.all(errors) else ""
    if any(column.low is not None and column.error is None for column in shown):
        note += "The 95 % interval is in brackets. "
    headings = [_format_column(column, words) for column in shown]
    largest = f", those with the largest {headings[0]}"
    note += format_shown_count(make_plural(kind), len(indices), len(names), largest)
    note += format_shown_count("columns", len(shown), len(distinct))
    shown_names = [column.name for column in shown]
    note = f"{note.strip()} {explain_columns(shown_names, words)}".strip()
    return NumberTable(title, kind, tuple(headings), rows, note)


def _iter_distinct_columns(columns: Iterable[ParameterColumn]) -> Iterator[ParameterColumn]:
    """List columns of numbers that are known and not equal to an earlier one."""
    earlier: list[NDArray[Any]] = []
    for column in columns:
        values = column.values
        is_shown = column.array not in _NOT_SHOWN
        is_new = not any(np.array_equal(values, other) for other in earlier)
        if is_shown and is_new and values.dtype.kind in "fiub" and np.isfinite(values).any():
            earlier.append(values)
            yield column


def _count_decimals(values: np.ndarray) -> int:
    """Return the decimals that show four digits of large values; 0 for integers.

    The largest tenth does not count, because a single diverging value would hide all decimals.
    """
    values = values[np.isfinite(values)].astype(np.float64)
    if (values == np.rint(values)).all():
        return 0
    large = np.quantile(abs(values), 0.9, method="higher") or abs(values).max()
    return int(np.clip(3 - np.floor(np.log10(large)), 0, 6))


def _make_cells(column: ParameterColumn) -> list[NumberCell]:
    decimals = _count_decimals(column.values)
    return [
        NumberCell(
            _format_decimals(float(value), decimals),
            _format_uncertainty(column, i, decimals),
            float(value),
        )
        for i, value in enumerate(column.values)
    ]


def _format_uncertainty(column: ParameterColumn, i: int, decimals: int) -> str:
    if not np.isfinite(column.values[i]):
        return ""
    if column.error is not None:
        error = float(column.error[i])
        if error == 0:
            return "(fixed)"
        return f"± {_format_decimals(error, decimals)}" if np.isfinite(error) else "(unknown)"
    if column.low is not None and column.high is not None:
        bounds = (_format_decimals(float(end[i]), decimals) for end in (column.low, column.high))
        return f"({' to '.join(bounds)})"
    return ""


def _format_decimals(value: float, decimals: int) -> str:
    return f"{value:z,.{decimals}f}".replace("-", "−") if np.isfinite(value) else "–"


def _format_column(column: ParameterColumn, words: Vocabulary) -> str:
    name = words.format_array(column.array, column.label)
    return name.replace("s x2", "S-X²").replace("level difficulty", "threshold")


def explain_facts(facts: Sequence[tuple[str, str]]) -> str:
    """Explain the terms that occur in facts."""
    text = " ".join(word for fact in facts for word in fact)
    return " ".join(meaning for term, meaning in _FACT_EXPLANATIONS.items() if term in text)


def explain_columns(columns: Sequence[str], words: Vocabulary) -> str:
    """Explain the columns of the table of parameters."""
    meanings = [text for name, text in _COLUMN_EXPLANATIONS.items() if name in columns]
    return " ".join(dict.fromkeys(meanings)).format(words=words)
