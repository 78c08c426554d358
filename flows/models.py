"""List the models: `python -m flows.models`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import Json
from flows.cli.startup import rewrite_commands
from flows.cli.summary import print_json
from pipeline.models.registry import ALIASES, find_models
from pipeline.models.settings import list_hyperparameters

HELP = "List the models that can be fitted, each with a one-sentence description."
EXAMPLES = f"""Examples:

    python -m flows.models
    python -m flows.fit --model blica --help

{EXIT_CODES}"""
app = make_app("models", HELP, EXAMPLES)


def describe_models() -> dict[str, str]:
    """Return the first sentence of every model's docstring, by name."""
    docs = {
        name: sys.modules[model.__module__].__doc__ or "" for name, model in find_models().items()
    }
    return {name: " ".join(doc.split("\n\n")[0].split()) for name, doc in sorted(docs.items())}


def _list_aliases(name: str) -> dict[str, Mapping[str, Any]]:
    """Return the aliases of a model, each with the settings that it fixes."""
    return {alias: fixed for alias, (model, fixed) in ALIASES.items() if model == name}


@app.default
def main(*, json: Json = False) -> None:
    """Print a table of the models, or a JSON object that includes their settings."""
    if json:
        settings = {
            name: list(list_hyperparameters(model)) for name, model in find_models().items()
        }
        models = describe_models().items()
        print_json(
            {
                name: {"is": text, "settings": settings[name], "aliases": _list_aliases(name)}
                for name, text in models
            }
        )
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in describe_models().items():
        table.add_row(name, text)
        for alias, fixed in _list_aliases(name).items():
            settings_text = ", ".join(
                f"{key.removeprefix('n_')}={value}" for key, value in fixed.items()
            )
            table.add_row(f"  {alias}", f"{name} with {settings_text}.")
    console = Console(highlight=False, emoji=False)
    console.print(table)
    console.print(
        rewrite_commands("python -m flows.fit --model NAME --help describes the settings.")
    )


if __name__ == "__main__":
    run_app(app)
