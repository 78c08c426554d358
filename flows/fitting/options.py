"""What a fit is asked for: its command line, and the parameters that Prefect records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flows.cli.hyperparameters import ModelName
from flows.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    RUN,
    DatasetName,
    ExecutorOptions,
    Option,
    Resume,
    Seed,
    Switch,
)


@Option(name="*")
@dataclass(frozen=True)
class FitOptions:
    """The options of `python -m flows.fit`."""

    dataset: DatasetName
    model: Annotated[ModelName, Option(group=MODEL, help="Name of the model.")] = "clipped-pca"
    components: Annotated[
        str | None,
        Option(group=MODEL, help="Number of latent components, or auto. [default: the model's]"),
    ] = None
    layers: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Hidden units of each layer from the data up, such as 256,64,16, the last being "
            "the components; for models in layers. [default: the model's]",
        ),
    ] = None
    settings: Annotated[
        tuple[str, ...],
        Option(
            name="--set",
            group=MODEL,
            negative="",
            show_default=False,
            help="NAME=VALUE, as `--help` lists them.",
        ),
    ] = ()
    split: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Fit the rows whose `split` column has this value, or all rows. "
            "[default: train where there is one, else all]",
        ),
    ] = None
    output: Annotated[
        str | None, Option(group=OUTPUT, help="Folder of runs. [default: runs/DATASET]")
    ] = None
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: Resume = False
    truth: Annotated[
        bool,
        Switch,
        Option(
            group=OUTPUT, help="Compare the mixing with the one that the dataset was made with."
        ),
    ] = False
    report: Annotated[
        bool, Option(group=OUTPUT, negative="--no-report", help="Draw a report into the artifact.")
    ] = True
    warm_start: Annotated[
        bool,
        Switch,
        Option(
            group=RUN,
            help="Begin at the latest fit in the folder of runs; for models that iterate.",
        ),
    ] = False
    memory: Annotated[
        str | None,
        Option(
            group=RUN,
            help="Memory that the fit's arrays may take, such as 4GB; wide data are counted in "
            "smaller pieces to stay within it. [default: what is free]",
        ),
    ] = None
    skip_corrupt: Annotated[
        bool,
        Switch,
        Option(
            group=DATA, help="Leave out damaged chunks, with a warning; reads all of them first."
        ),
    ] = False
