"""The command line of the experiments: one file and one line here per experiment."""

from __future__ import annotations

from flows.cli.app import make_app, run_app
from flows.cli.startup import rewrite_commands
from flows.experiments import binary_ica_identifiability as blica_identifiability
from flows.experiments import binary_ica_samples as blica_samples
from flows.experiments import binary_ica_scaling as blica_scaling
from flows.experiments import clipped_pca, denoising, loadings, noisy_or
from flows.experiments import tipping as tipping

HELP = "Reproduce published figures, and look at fitted models."
EXAMPLES = "`python -m flows.experiments NAME --help` explains each."

_MODULES = {
    "clipped-pca": clipped_pca,
    "blica-identifiability": blica_identifiability,
    "blica-samples": blica_samples,
    "blica-scaling": blica_scaling,
    "denoising": denoising,
    "loadings": loadings,
    "noisy-or": noisy_or,
    "tipping": tipping,
}

app = make_app("experiments", HELP, EXAMPLES)
for _name, _module in _MODULES.items():
    app.command(
        _module.main,
        name=_name,
        help=_module.HELP,
        help_epilogue=rewrite_commands(_module.EXAMPLES),
    )

if __name__ == "__main__":
    run_app(app)
