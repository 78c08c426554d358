"""The options of a fit, which are also the parameters of its flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flows.cli.hyperparameters import ModelName
from flows.cli.options import DATA, MODEL, OUTPUT, RUN, DatasetName, ExecutorOptions, Option, Resume, Seed, Switch


@Option(name="*")
@dataclass(frozen=True)
class FitOptions:
    """The options of `python -m flows.fit`."""

    dataset: DatasetName
    model: Annotated[ModelName, Option(group=MODEL, help="Name of the model.")] = "clipped-pca"
    components: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Number of latent components, or auto. [default: depends on the model]",
        ),
    ] = None
    layers: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Units of each layer, from the data upwards, such as 256,64,16; the last number is "
            "that of the components. Only for layered models. [default: depends on the model]",
        ),
    ] = None
    settings: Annotated[
        tuple[str, ...],
        Option(
            name="--set",
            group=MODEL,
            negative="",
            show_default=False,
            help="A setting of the model: NAME=VALUE. Repeatable. See --model NAME --help.",
        ),
    ] = ()
    split: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Fit the rows whose `split` column has this value, or `all` rows. "
            "[default: train if it exists, else all]",
        ),
    ] = None
    output: Annotated[
        str | None, Option(group=OUTPUT, help="Folder for the fits. [default: runs/DATASET]")
    ] = None
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: Resume = False
    truth: Annotated[
        bool,
        Switch,
        Option(group=OUTPUT, help="Compare with the true mixing matrix stored in the dataset."),
    ] = False
    report: Annotated[
        bool, Option(group=OUTPUT, negative="--no-report", help="Write a report into the artifact.")
    ] = True
    warm_start: Annotated[
        bool,
        Switch,
        Option(
            group=RUN,
            help="Start from the latest fit in the output folder. Only for iterative models.",
        ),
    ] = False
    memory: Annotated[
        str | None,
        Option(
            group=RUN,
            help="Memory limit for the arrays of the fit, such as 4GB. Data with many features are "
            "then counted in smaller pieces. [default: the free memory]",
        ),
    ] = None
    skip_corrupt: Annotated[
        bool,
        Switch,
        Option(
            group=DATA, help="Leave out damaged chunks, with a warning. Reads all chunks first."
        ),
    ] = False
