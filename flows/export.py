"""Write results as tables for other programs: `python -m flows.export --artifact RUN ...`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    ExampleValue,
    Json,
    Option,
    Overwrite,
    Standardize,
    WholeNumber,
    check_table_file,
    check_table_size,
)
from flows.cli.progress import report_progress
from flows.cli.startup import pause_garbage_collection
from flows.cli.summary import join_names, list_scales, print_json
from flows.data.datasets import LoadedModel, load_fitted_model, open_dataset_or_example
from flows.running.flow import make_flow
from pipeline.errors import FitError
from storage.codes.codes import Codes, open_codes
from storage.errors import DataError
from storage.stores.locations import parse_path

if TYPE_CHECKING:
    from flows.exporting.codes import CodeScale
    from flows.exporting.files import BatchedTable
    from pipeline.evaluation.linking import ItemLink
    from pipeline.executors.progress import Progress
    from storage.artifacts.artifacts import Artifact

HELP = """Write results as a table for R, pandas or Excel: .csv, .parquet or .xlsx.

`--what items`: one line per feature with its name and parameters, such as loadings, thresholds or
probabilities (one column per component), and standard errors and confidence intervals if available.

`--what groups`: one line per group or segment with its parameters, such as the mean and variance of
each trait, and their standard errors if available.

`--what coefficients`: one line per covariate and trait or class with the coefficient, its standard
error, z and p.

`--what classes`: one line per class of a mixture with its size, standard error, 95 % interval and
expected number of rows; with groups, also its size in each.

`--what levels`: the probabilities of levels and categories in the classes of a bernoulli-mixture,
one line per feature and level, with standard errors. For latent-trait with `items=nominal`, their
slopes (`weights`) and `offsets`, which are 0 for a feature's first level in use.

`--what contrasts`: how the classes of a bernoulli-mixture differ, one line per feature, level and
pair of classes: the difference of their probabilities, or means, with standard error, z and p.
`--reference 2` compares each class with class 2 only, here and for coefficients.

`--what class-numbers`: the numbers of classes that a fit with `--set max_components=N` compared.

`--what codes`: one line per row transformed by `flows.transform`, with its number `row` counted
from 0, its segment, its stored columns, its codes, and their standard errors `sd` if available.
Codes are on the scale of the fit's parameters, or with `--standardize` have mean 0 and standard
deviation 1 over the rows of the table.

`--what ranking`: the rows in the order of their codes of one trait, the highest first, with the
position, the score and its standard error, the expected rank and its 95 % interval, and the number
of the group. No two rows of a group can be told apart at the 5 % level.

`--what correlations`: one line per pair of features (and segment, if there are several) with their
tetrachoric correlation and its status. The correlation is missing if the data do not determine it.

`--what factors`: one line per factor of a clipped-pca fit with `estimator` minres or ml, or with a
rotation: the sum of its squared loadings, their share of the variance, and, if factors correlate,
its correlation with each. Traits of a loading pattern have their correlations and standard errors.

`--what edges`: one line per edge of a fitted tree with the number and the weight of the tree, the
two features, and their mutual information in nats and their correlation under the tree. Of an ising
fit, one line per edge of the network, with the coupling, its standard error and its stability.

`--what information`: one line per level of the trait from −4 to 4, or in a fit with anchors up to
four standard deviations from the mean, with the information of the test and of each item, the
standard error that follows, and the expected score: the number of ones, or with several levels the
sum of the scores 0, 1, 2, … of the levels. Items whose slopes have the other sign than most count
in reverse; they are printed. For a latent-trait fit with one component.

`--what short-test --items 40`: the most informative items of such a fit, one after the other, with
the marginal reliability of a test of the items so far.

`--what linked-items --link-to OLD`: slope and offset of every item of a latent-trait fit with one
component, on the scale of an older fit with common items (Stocking and Lord). It prints the
constants A and B of the scale. `flows.fit --items` and `flows.transform --items` take the table.

`--what fit`: the key numbers and warnings of the fit, in two columns, `name` and `value`.
"""
EXAMPLES = f"""Examples:

    python -m flows.export --artifact runs/v --what items --output items.csv
    python -m flows.export --codes z.zarr --what codes --output codes.parquet
    python -m flows.export --codes z.zarr --what ranking --output ranking.csv
    python -m flows.export --artifact runs/v --what fit --output fit.xlsx

`.xlsx` needs `pip install 'latentbits[excel]'`. In `.csv`, texts that a spreadsheet would run as
formulas, such as =1+1, get an apostrophe in front.

{EXIT_CODES}"""
app = make_app("export", HELP, EXAMPLES)
ExportKind = Literal[
    "items",
    "groups",
    "coefficients",
    "classes",
    "levels",
    "contrasts",
    "class-numbers",
    "codes",
    "ranking",
    "correlations",
    "factors",
    "edges",
    "information",
    "short-test",
    "linked-items",
    "fit",
]


@Option(name="*")
@dataclass(frozen=True)
class ExportOptions:
    """The options of the command, and the parameters of the flow."""

    what: Annotated[ExportKind, Option(group=OUTPUT, help="Kind of table to write.")]
    output: Annotated[
        str,
        Option(group=OUTPUT, help="File to write: .csv, .parquet or .xlsx."),
        ExampleValue("items.csv"),
    ]
    artifact: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Folder of a fitted model, or of runs (the latest is used). Not needed for codes "
            "and rankings.",
        ),
        ExampleValue("runs/votes"),
    ] = None
    codes: Annotated[
        str | None,
        Option(group=DATA, help="Folder of codes from `flows.transform`."),
        ExampleValue("codes/votes.zarr"),
    ] = None
    dataset: Annotated[
        str | None,
        Option(group=DATA, help="Dataset that the codes belong to. [default: the recorded one]"),
        ExampleValue("data/votes.zarr"),
    ] = None
    items: Annotated[
        WholeNumber | None,
        Option(group=OUTPUT, help="Number of items of the short test."),
        ExampleValue(10),
    ] = None
    link_to: Annotated[
        str | None,
        Option(group=MODEL, help="Fitted model whose scale linked items get."),
        ExampleValue("runs/last_year"),
    ] = None
    reference: Annotated[
        WholeNumber | None,
        Option(group=OUTPUT, help="Class that contrasts or coefficients are against."),
        ExampleValue(2),
    ] = None
    standardize: Standardize = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ExportJob:
    """A checked export."""

    options: ExportOptions
    output: Path
    fitted: LoadedModel | None
    codes: Codes | None
    link: ItemLink | None


def prepare_export(options: ExportOptions) -> ExportJob:
    """Check the options, the output file, and that codes and artifact belong together."""
    output = check_table_file(options.output, options.overwrite)
    _check_options(options)
    fitted = None if options.artifact is None else load_fitted_model(parse_path(options.artifact))
    codes = None if options.codes is None else open_codes(parse_path(options.codes))
    if codes is not None:
        check_table_size(output, codes.n_rows)
        _check_same_fit(fitted, codes)
    link = None
    if fitted is not None and options.link_to is not None:
        from flows.exporting.artifacts import link_fits  # slow to import

        link = link_fits(fitted, load_fitted_model(parse_path(options.link_to)))
    return ExportJob(options, output, fitted, codes, link)


def _check_options(options: ExportOptions) -> None:
    of_rows = options.what in ("codes", "ranking")
    needed = "codes" if of_rows else "artifact"
    if getattr(options, needed) is None:
        raise FitError(f"{{what={options.what}}} needs {{{needed}}}.")
    if (options.what == "short-test") != (options.items is not None):
        raise FitError("{what=short-test} and {items} need each other.")
    if (options.what == "linked-items") != (options.link_to is not None):
        raise FitError("{what=linked-items} and {link_to} need each other.")
    if options.reference is not None and options.what not in ("contrasts", "coefficients"):
        raise FitError("{reference} needs {what=contrasts} or {what=coefficients}.")
    misplaced = [] if of_rows else ["codes", "dataset"]
    misplaced += [] if options.what == "codes" else ["standardize"]
    for name in misplaced:
        if getattr(options, name) not in (None, False):
            raise FitError(f"{{{name}}} cannot be used with {{what={options.what}}}. Leave it out.")


def _check_same_fit(fitted: LoadedModel | None, codes: Codes) -> None:
    recorded = codes.manifest.get("artifact")
    if fitted is not None and recorded != fitted.digest:
        raise DataError(
            f"{codes.path} was not computed with {fitted.artifact.path}. Use the artifact of the "
            "codes, or leave out {artifact}."
        )


@make_flow("export", ExportOptions)
def export(options: ExportOptions) -> dict[str, Any]:
    """Write results as a table."""
    return run_export(prepare_export(options))


def run_export(job: ExportJob) -> dict[str, Any]:
    """Write the table of a checked export."""
    with pause_garbage_collection():
        from flows.exporting.artifacts import describe_link
        from flows.exporting.codes import measure_scale
        from flows.exporting.files import write_table
    with report_progress() as progress:
        scale = measure_scale(job.codes) if job.codes and job.options.standardize else None
        table = _make_table(job, progress, scale)
        write_table(table, job.output, job.options.overwrite)
    return {
        "output": str(job.output),
        "what": job.options.what,
        "n_rows": table.n_rows,
        "columns": table.schema.names,
        "scale": None if scale is None else scale.to_lists(),
        "reversed": _list_reversed_items(job),
        "link": None if job.link is None else describe_link(job.link),
    }


def _list_reversed_items(job: ExportJob) -> list[str]:
    """Return the items that the expected score of the table counts in reverse."""
    from flows.exporting.artifacts import list_reversed_items  # slow to import

    if job.options.what != "information" or job.fitted is None:
        return []
    return list_reversed_items(job.fitted)


def _make_table(job: ExportJob, progress: Progress, scale: CodeScale | None) -> BatchedTable:
    """Make the table; the imports are slow, so they wait until here."""
    if job.codes is not None:
        from flows.exporting.codes import (
            find_coded_dataset,
            make_code_table,
            make_ranking_table,
        )

        name = job.options.dataset
        dataset = find_coded_dataset(
            job.codes, None if name is None else open_dataset_or_example(name)
        )
        if job.options.what == "ranking":
            return make_ranking_table(job.codes, dataset)
        return make_code_table(job.codes, dataset, progress, scale)
    from flows.exporting.artifacts import (
        make_coefficient_table,
        make_correlation_table,
        make_edge_table,
        make_factor_table,
        make_fit_table,
        make_group_table,
        make_information_table,
        make_item_table,
        make_linked_table,
        make_short_test_table,
    )
    from flows.exporting.classes import (
        make_class_number_table,
        make_class_table,
        make_contrast_table,
        make_level_table,
    )

    assert job.fitted is not None
    if job.link is not None:
        return make_linked_table(job.fitted, job.link)
    if job.options.what == "edges":
        return make_edge_table(job.fitted)
    if job.options.what == "information":
        return make_information_table(job.fitted)
    if job.options.items is not None:
        return make_short_test_table(job.fitted, job.options.items)
    if job.options.what == "classes":
        return make_class_table(job.fitted)
    if job.options.what == "contrasts":
        return make_contrast_table(job.fitted, job.options.reference)
    make: dict[ExportKind, Callable[[Artifact], BatchedTable]] = {
        "items": make_item_table,
        "groups": make_group_table,
        "coefficients": partial(make_coefficient_table, reference=job.options.reference),
        "levels": make_level_table,
        "class-numbers": make_class_number_table,
        "correlations": make_correlation_table,
        "factors": make_factor_table,
        "fit": make_fit_table,
    }
    return make[job.options.what](job.fitted.artifact)


@app.default
def main(*, options: ExportOptions, json: Json = False) -> None:
    """Write the table and print its size; no Prefect server is needed."""
    summary = run_export(prepare_export(options))
    if json:
        print_json(summary)
        return
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    console.print(f"{summary['n_rows']:,} rows, {len(summary['columns']):,} columns")
    for name, value in list_scales(summary["scale"]):
        console.print(f"{name}: {value}")
    if summary["reversed"]:
        text = "the expected score counts these items in reverse, by their slopes: "
        console.print(text + join_names(summary["reversed"]), markup=False)
    if summary["link"]:
        from flows.exporting.artifacts import format_link

        console.print(format_link(summary["link"]))
    console.print(f"{summary['what']}: {summary['output']}", markup=False)


if __name__ == "__main__":
    run_app(app)
