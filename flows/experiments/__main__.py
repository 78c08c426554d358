"""The command line of the experiments."""

from __future__ import annotations

from flows.cli.app import format_help, make_app, run_app
from flows.experiments import binary_ica, clipped_pca, denoising, loadings, noisy_or, tipping

HELP = "Reproduce published figures, and draw the loadings of fitted models."
EXAMPLES = "`python -m flows.experiments NAME --help` explains each."

EXPERIMENTS = {
    "clipped-pca": clipped_pca.EXPERIMENT,
    "blica-identifiability": binary_ica.IDENTIFIABILITY,
    "blica-samples": binary_ica.SAMPLES,
    "blica-scaling": binary_ica.SCALING,
    "denoising": denoising.EXPERIMENT,
    "noisy-or": noisy_or.EXPERIMENT,
    "tipping": tipping.EXPERIMENT,
}
_COMMANDS = {
    **{name: (e.make_command(name), e.help, e.examples) for name, e in EXPERIMENTS.items()},
    "loadings": (loadings.main, loadings.HELP, loadings.EXAMPLES),
}

app = make_app("experiments", HELP, EXAMPLES)
for _name, (_main, _help, _examples) in _COMMANDS.items():
    app.command(_main, name=_name, help=format_help(_help), help_epilogue=format_help(_examples))

if __name__ == "__main__":
    run_app(app)
