"""The options of a fit, which are also the parameters of its flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from flows.cli.hyperparameters import ModelName
from flows.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    RUN,
    DatasetName,
    ExampleValue,
    ExecutorOptions,
    Number,
    Option,
    Repeatable,
    Resume,
    Seed,
    Switch,
    Where,
)
from pipeline.data.weights import WeightKind


@Option(name="*")
@dataclass(frozen=True)
class FitOptions:
    """The options of `python -m flows.fit`."""

    dataset: DatasetName
    model: Annotated[ModelName, Option(group=MODEL, metavar="NAME", help="Name of the model.")] = (
        "clipped-pca"
    )
    # Text comes first: on the command line, an integer would be rounded.
    components: Annotated[
        str | int | None,
        Option(group=MODEL, help="Number of latent components, or auto."),
        ExampleValue(2),
    ] = None
    items: Annotated[
        str | None,
        Option(
            group=MODEL,
            metavar="FILE",
            help="Known slopes and offsets: a table, or another fit.",
        ),
        ExampleValue("items.csv"),
    ] = None
    layers: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Units of each layer from the data up: 256,64,16.",
        ),
        ExampleValue("256,64,16"),
    ] = None
    settings: Annotated[
        Repeatable,
        Option(
            name="--set",
            group=MODEL,
            show_default=False,
            metavar="NAME=VALUE",
            help="A setting of the model. Repeatable.",
        ),
        ExampleValue(["correlation=arcsine"]),
    ] = ()
    pattern: Annotated[
        str | None,
        Option(group=MODEL, metavar="FILE", help="Table of items that load on each trait."),
        ExampleValue("pattern.csv"),
    ] = None
    split: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Rows of a split, or all. [default: train if it exists]",
        ),
        ExampleValue("train"),
    ] = None
    weight: Annotated[
        str | None,
        Option(group=DATA, metavar="COLUMN", help="Per-row column that holds the rows' weights."),
        ExampleValue("weight"),
    ] = None
    weights: Annotated[
        WeightKind | None,
        Option(group=DATA, help="Their kind. [default: frequency]"),
    ] = None
    psu: Annotated[
        str | None,
        Option(group=DATA, metavar="COLUMN", help="Column of a survey's primary sampling units."),
        ExampleValue("school"),
    ] = None
    group: Annotated[
        str | None,
        Option(
            group=DATA,
            metavar="COLUMN",
            help="Column of row groups with parameters of their own.",
        ),
        ExampleValue("country"),
    ] = None
    segments: Annotated[
        Literal["auto"] | None,
        # Not among the options of all models: the settings of those that have it explain it.
        Option(group=DATA, show=False, help="Find segments as hidden states of the rows."),
        ExampleValue("auto"),
    ] = None
    covariates: Annotated[
        str | None,
        Option(
            group=DATA,
            metavar="NAMES",
            help="Columns that explain codes: age,school=North.",
        ),
        ExampleValue("age,school=North"),
    ] = None
    row_id: Annotated[
        str | None,
        Option(group=DATA, metavar="COLUMN", help="Column of a row's member or sequence."),
        ExampleValue("member"),
    ] = None
    time: Annotated[
        str | None,
        Option(group=DATA, metavar="COLUMN", help="Column of its time."),
        ExampleValue("congress"),
    ] = None
    features: Annotated[
        Repeatable,
        Option(
            group=DATA,
            show_default=False,
            metavar="NAMES",
            help="Names or patterns of the features to fit: N*,E1.",
        ),
        ExampleValue(["N*,E1"]),
    ] = ()
    drop: Annotated[
        Repeatable,
        Option(
            group=DATA,
            show_default=False,
            metavar="NAMES",
            help="Features to leave out.",
        ),
        ExampleValue(["N5"]),
    ] = ()
    reverse: Annotated[
        Repeatable,
        Option(group=DATA, show_default=False, metavar="NAMES", help="Features to reverse: N5,E2."),
        ExampleValue(["N5,E2"]),
    ] = ()
    scales: Annotated[
        str | None,
        Option(group=DATA, metavar="FILE", help="Fit each scale of a table: item,scale,reversed."),
        ExampleValue("scales.csv"),
    ] = None
    cut: Annotated[
        Repeatable,
        Option(
            group=DATA,
            show_default=False,
            metavar="NAME>=LEVEL",
            help="Make levels binary: q3>=often. Repeatable.",
        ),
        ExampleValue(["q3>=often"]),
    ] = ()
    orient: Annotated[
        Repeatable,
        Option(
            group=MODEL,
            show_default=False,
            metavar="NAME=+1",
            help="Sign of a feature or row on component 1. Repeatable.",
        ),
        ExampleValue(["US=+1"]),
    ] = ()
    anchors: Annotated[
        Repeatable,
        Option(
            name="--anchor",
            group=MODEL,
            show_default=False,
            metavar="NAMES",
            help="Positions of two rows on a trait: US=+1,CU=-1.",
        ),
        ExampleValue(["US=+1,CU=-1"]),
    ] = ()
    output: Annotated[
        str | None,
        Option(group=OUTPUT, help="Folder for the fits. [default: runs/DATASET]"),
        ExampleValue("runs/votes"),
    ] = None
    seed: Seed = 0
    where: Where = field(default_factory=ExecutorOptions)
    resume: Resume = False
    truth: Annotated[
        bool, Switch, Option(group=OUTPUT, help="Compare with the dataset's true mixing matrix.")
    ] = False
    report: Annotated[
        bool, Option(group=OUTPUT, negative="--no-report", help="Write a report into the artifact.")
    ] = True
    warm_start: Annotated[
        bool, Switch, Option(group=RUN, help="Start from the latest fit of an iterative model.")
    ] = False
    runs_to_keep: Annotated[
        str | None,
        Option(  # hidden: for scheduled fits; by hand, `runs --prune` does the same
            group=RUN,
            show=False,
            help="Old fits to delete after the fit, as by `runs --prune`: all but those kept.",
        ),
        ExampleValue("keep=30,days=90"),
    ] = None
    drift_limit: Annotated[
        Number | None,
        Option(
            group=RUN,
            help="Exit with 3 if correlations move by more beyond chance.",
        ),
        ExampleValue(0.1),
    ] = None
    memory: Annotated[
        str | None,
        Option(group=RUN, help="Memory limit, such as 4GB. [default: the free memory]"),
        ExampleValue("4GB"),
    ] = None
    skip_corrupt: Annotated[
        bool, Switch, Option(group=DATA, help="Leave out damaged chunks; reads all chunks first.")
    ] = False
