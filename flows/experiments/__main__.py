"""The experiments' command line: one file and one line here for each."""

from __future__ import annotations

from flows.experiments import clipped_pca, loadings
from flows.options import command, run

app = command("experiments", "Reproduce published figures, and look at fitted models.")
app.command(clipped_pca.main, name="clipped-pca", help=clipped_pca.HELP)
app.command(loadings.main, name="loadings", help=loadings.HELP)

if __name__ == "__main__":
    run(app)
