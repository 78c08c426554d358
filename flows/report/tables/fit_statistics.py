"""How well a model fits, as a table that says what each number means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows.report.figures.causes import Table
from flows.report.text import format_number

Told = Mapping[str, Any]

_NOTE = (
    "RMSEA, SRMSR, CFI and TLI compare the shares of ones of all features and pairs of them with "
    "the model's (M₂ of Maydeu-Olivares and Joe)."
)
_MEANS = {
    "log-likelihood": "in nats; higher is better",
    "parameters": "that the data tell",
    "AIC, BIC": "lower is better, among fits to the same rows",
    "M₂": "far above its degrees of freedom: the model misses something of the pairs",
    "RMSEA": "misfit a degree of freedom: up to 0.05 is close, up to 0.09 adequate",
    "SRMSR": "root mean square of residual correlations: up to 0.05 is close",
    "CFI, TLI": "from independence, 0, to a perfect fit, 1",
    "reliability": "share of a component's variance that codes hold",
}


def fit_table(manifest: Told) -> Table | None:
    """Give the fit statistics of an artifact, if it has any."""
    told = manifest["diagnostics"].get("fit_statistics")
    if not told:
        return None
    rows = tuple((name, value, _MEANS[name]) for name, value in _rows(told))
    note = _NOTE if "m2" in told else f"M₂ and its indices are missing: {told['m2_missing']}."
    return Table("How well it fits", ("statistic", "value", "meaning"), rows, note)


def _rows(told: Told) -> Iterator[tuple[str, str]]:
    yield "log-likelihood", f"{told['log_likelihood']:,.2f}".replace("-", "−")
    yield "parameters", f"{told['n_parameters']:,}"
    yield "AIC, BIC", f"{told['aic']:,.1f}, {told['bic']:,.1f}"
    if "m2" in told:
        p = "< 0.0001" if told["m2_p"] < 1e-4 else f"= {told['m2_p']:.4f}"
        yield "M₂", f"{format_number(told['m2'], 5)} of {told['m2_df']:,} degrees of freedom, p {p}"
        interval = " to ".join(f"{bound:.3f}" for bound in told["rmsea_interval"])
        yield "RMSEA", f"{told['rmsea']:.3f}, 90 % interval {interval}"
        yield "SRMSR", f"{told['srmsr']:.3f}"
        yield "CFI, TLI", f"{told['cfi']:.3f}, {told['tli']:.3f}"
    yield "reliability", ", ".join(f"{one:.3f}" for one in told["reliability"])
