"""Tables of an evaluation, as columns by name: for files, and for data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Columns = dict[str, list[Any]]


def make_result_tables(summary: Mapping[str, Any]) -> dict[str, Columns]:
    """Return the tables of an evaluation by name, without empty ones.

    `models` has a line per model, `dif` per item, `likelihood-ratio` per test, `outcomes` per class
    and level of a column, `covariates` per covariate and class, `reliability` per group and
    coefficient, `reliability-items` per group and item, `roll-calls` per model and feature,
    `roll-call-rows` per model and row, and `calibration` per bin of the shares of ones that a model
    implies.
    """
    models = summary.get("models", [])
    lines = {
        "models": [_select_numbers(model) for model in models],
        "dif": [*_iter_items(summary.get("item_bias") or {})],
        "likelihood-ratio": summary.get("likelihood_ratio_tests", []),
        "outcomes": [*_iter_outcomes(summary.get("outcomes", []))],
        "covariates": [*_iter_log_odds(summary.get("outcomes", []))],
        "reliability": [*_iter_coefficients(summary.get("reliability", []))],
        "reliability-items": [
            {"group": group["group"], **item}
            for group in summary.get("reliability", [])
            for item in group.get("by_item", [])
        ],
        "roll-calls": [*_iter_roll_calls(summary.get("roll_calls", []), "by_feature")],
        "roll-call-rows": [*_iter_roll_calls(summary.get("roll_calls", []), "by_row")],
        "calibration": [*_iter_calibration(models)],
    }
    return {name: _collect(own) for name, own in lines.items() if own}


def join_scales(tables: Mapping[str, Mapping[str, Columns]]) -> dict[str, Columns]:
    """Return the tables of several scales, by scale and name, with the scales as first column."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for scale, by_name in tables.items():
        for name, columns in by_name.items():
            rows = zip(*columns.values(), strict=True)
            own = ({"scale": scale, **dict(zip(columns, row, strict=True))} for row in rows)
            lines.setdefault(name, []).extend(own)
    return {name: _collect(own) for name, own in lines.items()}


def _collect(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """Return columns of lines, of which some may lack entries."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def _select_numbers(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a model that are numbers or texts, and those of held-out values."""
    own = {name: value for name, value in model.items() if isinstance(value, str | int | float)}
    held_out = model.get("held_out", {}).items()
    more = {f"held_out_{n}": v for n, v in held_out if isinstance(v, int | float)}
    return {**own, **more}


def _iter_items(bias: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over tested items; lists become columns of the groups, or of the planes."""
    names = [bias.get("reference"), *_list(bias.get("focal"))]
    for item in bias.get("items", []):
        line: dict[str, Any] = {}
        for name, value in item.items():
            if not isinstance(value, list):
                line[name] = value
                continue
            groups = names if len(value) == len(names) else names[1:]
            has_groups = len(groups) == len(value)
            for k, own in enumerate(value):
                line |= _flatten(f"{name}_{groups[k] if has_groups else k + 1}", own)
        yield line


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """Return a value as a column, or the values of a list as numbered columns."""
    if not isinstance(value, list):
        return {name: value}
    return {f"{name}_{k}": own for k, own in enumerate(value, start=1)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _iter_outcomes(outcomes: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for model in outcomes:
        for outcome in model["outcomes"]:
            parts = zip(
                outcome["class_sizes"], outcome["estimates"], outcome["errors"], strict=True
            )
            for k, (size, estimates, errors) in enumerate(parts, start=1):
                levels = outcome["levels"] or [None]
                for level, estimate, error in zip(levels, estimates, errors, strict=True):
                    yield {
                        "model": model["name"],
                        "column": outcome["column"],
                        "level": level,
                        "class": k,
                        "class_size": size,
                        "estimate": estimate,
                        "error": error,
                        **{name: outcome[name] for name in ("chi2", "df", "p")},
                    }


def _iter_log_odds(outcomes: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over coefficients of classes on covariates, without those of the reference class."""
    for model in outcomes:
        found = model.get("regression") or {"names": [], "coefficients": [], "errors": []}
        lines = zip(found["names"], found["coefficients"], found["errors"], strict=True)
        for name, coefficients, errors in lines:
            for k, (value, error) in enumerate(zip(coefficients, errors, strict=True), start=1):
                if k != found["reference"]:
                    yield {
                        "model": model["name"],
                        "covariate": name,
                        "class": k,
                        "reference": found["reference"],
                        "coefficient": value,
                        "error": error,
                        "z": value / error,
                    }


def _iter_coefficients(reliability: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over coefficients, as the items are and with some reversed, then over traits."""
    for group in reliability:
        own = {"group": group["group"], "rows": group["rows"], "items": len(group["items"])}
        for turned, key in (("", "coefficients"), (",".join(group.get("reversed", [])), "turned")):
            for name, entry in (group.get(key) or {}).items():
                if entry is not None:
                    low, high = entry["interval"] or (None, None)
                    values = {"value": entry["value"], "standard_error": entry["standard_error"]}
                    yield {
                        **own,
                        "coefficient": name,
                        "reversed": turned,
                        **values,
                        "low": low,
                        "high": high,
                    }
        for model, traits in group["traits"].items():
            for name, value in traits.items():
                yield {**own, "coefficient": f"{name} of {model}", "reversed": "", "value": value}


def _iter_roll_calls(models: Sequence[Mapping[str, Any]], key: str) -> Iterator[dict[str, Any]]:
    for model in models:
        for line in model[key] or ():
            yield {"model": model["name"], **line}


def _iter_calibration(models: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for model in models:
        for kind in ("marginals", "pairs"):
            for row in model.get(kind, {}).get("calibration", ()):
                yield {"model": model["name"], "of": kind, **row}
