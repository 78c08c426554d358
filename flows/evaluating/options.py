"""What an evaluation is asked for: its command line, and the parameters that Prefect records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flows.cli.options import (
    DATA,
    MODEL,
    RUN,
    DatasetName,
    ExecutorOptions,
    Option,
    Seed,
    WholeNumber,
)
from flows.evaluating.dif import DifTest


@Option(name="*")
@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `python -m flows.evaluate`."""

    dataset: DatasetName
    artifacts: Annotated[
        tuple[str, ...],
        Option(
            name="--artifact",
            group=MODEL,
            negative="",
            help="Artifact of a fit, or a folder of runs for the latest; several.",
        ),
    ]
    split: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Evaluate the rows whose `split` column has this value, or all. "
            "[default: test, if there is one; with --folds train, if there is one]",
        ),
    ] = None
    folds: Annotated[
        WholeNumber | None,
        Option(
            group=RUN, help="Judge each of so many folds of the rows by models refitted without it."
        ),
    ] = None
    label: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Per-row column, or segment, to be told by the rows with the nearest codes.",
        ),
    ] = None
    dif: Annotated[
        str | None,
        Option(group=DATA, help="Per-row column of two groups, one of which items may favour."),
    ] = None
    dif_test: DifTest = "mantel-haenszel"
    likelihood_ratio: Annotated[
        bool,
        Option(
            group=MODEL,
            negative="",
            help="Test nested latent-trait fits to the same rows by likelihood.",
        ),
    ] = False
    with_baselines: Annotated[
        bool,
        Option(
            name="--baselines",
            group=MODEL,
            negative="--no-baselines",
            help="Compare with simple models, fitted for the purpose.",
        ),
    ] = True
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)
