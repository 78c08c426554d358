"""The experiments' command line: one file and one line here for each."""

from __future__ import annotations

from flows.experiments import clipped_pca, loadings
from flows.options import command, run

HELP = "Reproduce published figures, and look at fitted models."
EXAMPLES = "`python -m flows.experiments NAME --help` explains each."

app = command("experiments", HELP, EXAMPLES)
for _name, _module in {"clipped-pca": clipped_pca, "loadings": loadings}.items():
    app.command(_module.main, name=_name, help=_module.HELP, help_epilogue=_module.EXAMPLES)

if __name__ == "__main__":
    run(app)
