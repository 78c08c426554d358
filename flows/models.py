"""Lists the models: `python -m flows.models`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from flows.cli.options import Json, command, run
from flows.cli.program import as_typed
from flows.cli.summary import print_json
from pipeline.models.registry import models
from pipeline.models.settings import hyperparameters

HELP = "List the models that can be fitted, with what each is."
EXAMPLES = """Examples:

    python -m flows.models
    python -m flows.fit --model blica --help
"""
app = command("models", HELP, EXAMPLES)


def described() -> dict[str, str]:
    """Give the first sentence of every model's module, by name."""
    docs = {name: sys.modules[model.__module__].__doc__ or "" for name, model in models().items()}
    return {name: " ".join(doc.split("\n\n")[0].split()) for name, doc in sorted(docs.items())}


@app.default
def main(*, json: Json = False) -> None:
    """Print a table of the models, or their settings too as one JSON object."""
    if json:
        settings = {name: list(hyperparameters(model)) for name, model in models().items()}
        told = described().items()
        print_json({name: {"is": is_, "settings": settings[name]} for name, is_ in told})
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, is_ in described().items():
        table.add_row(name, is_)
    console = Console(highlight=False)
    console.print(table)
    console.print(as_typed("python -m flows.fit --model NAME --help lists the settings of one."))


if __name__ == "__main__":
    run(app)
