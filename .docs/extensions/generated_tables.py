"""Directives that show settings, arrays and help pages as the code defines them.

`{model-support}` is a table of what each model can use of rows and features, `{model-settings}
latent-trait` one of the settings of a model, `{model-arrays} latent-trait` one of its stored
arrays, and `{command-help} fit` the text of `latentbits fit --help`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import fields
from importlib import import_module
from types import NoneType
from typing import Any, get_args, get_type_hints

from docutils import nodes
from rich.console import Console
from sphinx.util.docutils import SphinxDirective

from flows.cli.hyperparameters import format_setting
from flows.cli.startup import find_module
from pipeline.models.registry import find_known_model, find_models
from pipeline.models.settings import describe_settings, list_hyperparameters
from pipeline.models.support import tabulate_support
from pipeline.params import list_arrays

TYPE_NAMES = {
    int: "whole number",
    float: "number",
    bool: "`yes`, `no`",
    str: "text",
    tuple[int, ...]: "whole numbers",
    NoneType: "`auto`",
}
PACKAGES = ("experiments", "report")
"""Commands that are packages, with their application in `__main__`."""


def format_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Write a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)


def format_support() -> str:
    """Write the table of what models can use of rows and features, and what they cannot combine."""
    models = find_models()
    header, *rows = tabulate_support(models)
    table = format_table(header, ((f"[{name}]({name}.md)", *cells) for name, *cells in rows))
    conflicts = (
        f"`{name}` takes either {conflict.part} or {conflict.other}."
        for name, model in models.items()
        for conflict in model.support.conflicts
    )
    return f"{table}\n\n{' '.join(conflicts)}"


def format_settings(name: str) -> str:
    """Write the table of a model's settings."""
    model: Any = find_known_model(name)
    hints, descriptions = get_type_hints(model), describe_settings(model)
    declared = {field.name: field for field in fields(model)}
    names = ["n_components", *list_hyperparameters(model)]
    rows = (
        (
            "`--components`" if setting == "n_components" else f"`{setting}`",
            format_values(hints[setting], declared[setting].metadata.get("range")),
            f"`{format_setting(declared[setting].default)}`",
            descriptions[setting].replace("None", "`auto`"),
        )
        for setting in names
    )
    return format_table(("setting", "values", "default", "meaning"), rows)


def format_values(kind: Any, allowed: Any) -> str:
    """Describe the values of a setting by its type and range."""
    if kind not in TYPE_NAMES:
        parts = [f"`{c}`" if isinstance(c, str) else format_values(c, None) for c in get_args(kind)]
    else:
        parts = [TYPE_NAMES[kind]]
    if limits := str(allowed or ""):
        parts[0] += f" {limits}"
    return ", ".join(parts)


def format_arrays(name: str) -> str:
    """Write the table of the arrays that a model stores."""
    rows = []
    for array, declared in list_arrays(find_known_model(name).params).items():
        suffix = "_k" if declared.is_per_layer else ""
        rows.append((f"`{array}{suffix}`", ", ".join(declared.dims) or "a number"))
    return format_table(("array", "dimensions"), rows)


def format_help(command: str) -> str:
    """Return the help page of a command, such as `fit` or `fit --model blica`."""
    name = command.split()[0]
    app = import_module(find_module(name) + ".__main__" * (name in PACKAGES)).app
    text = io.StringIO()
    with redirect_stdout(text):
        app.help_print(console=Console(file=text, width=100, highlight=False, color_system=None))
    return text.getvalue().strip()


class ModelSupport(SphinxDirective):
    """Table of what each model can use of rows and features."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return self.parse_text_to_nodes(format_support())


class ModelSettings(SphinxDirective):
    """Table of the settings of a model."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return self.parse_text_to_nodes(format_settings(self.arguments[0]))


class ModelArrays(SphinxDirective):
    """Table of the arrays that a model stores."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return self.parse_text_to_nodes(format_arrays(self.arguments[0]))


class CommandHelp(SphinxDirective):
    """Help page of a command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the text as the command prints it."""
        text = format_help(self.arguments[0])
        return [nodes.literal_block(text, text, language="none", classes=["help"])]


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("model-support", ModelSupport)
    app.add_directive("model-settings", ModelSettings)
    app.add_directive("model-arrays", ModelArrays)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
