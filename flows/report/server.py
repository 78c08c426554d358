"""A summary of a fit for those who look at a Prefect server."""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from flows.environment import server_configured
from flows.report.facts import title_of, what_was_fitted
from storage.artifacts import load_artifact


def publish_summary(artifact: str, report: Path) -> None:
    """Leave facts, warnings and the report's path on the server, if it outlives the run."""
    if server_configured():
        create_markdown_artifact(markdown(artifact, report), key="fit", description="A fit.")


def markdown(artifact: str, report: Path) -> str:
    """Write facts and warnings; names of a dataset are not taken for markup."""
    manifest = load_artifact(artifact).manifest
    facts = [f"| {_code(name)} | {_code(value)} |" for name, value in what_was_fitted(manifest)]
    warnings = [f"- {_code(warning)}" for warning in manifest["warnings"]]
    lines = [f"# {_code(title_of(manifest))}", "", "| | |", "|---|---|", *facts, "", *warnings]
    return "\n".join([*lines, "", f"Report: {_code(str(report.resolve()))}", ""])


def _code(text: str) -> str:
    """Quote a text so that nothing in it is markup."""
    return "`` " + " ".join(text.replace("`", "'").replace("|", "¦").split()) + " ``"
