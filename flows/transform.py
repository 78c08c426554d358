"""Write the latent codes of rows: `python -m flows.transform --dataset PATH ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import (
    MODEL,
    OUTPUT,
    DatasetName,
    ExampleValue,
    ExecutorOptions,
    Json,
    Option,
    Overwrite,
    Resume,
    Seed,
    Split,
    Standardize,
    Switch,
    Where,
    check_table_file,
    check_table_size,
    has_table_suffix,
)
from flows.cli.startup import pause_garbage_collection
from flows.cli.summary import list_scales, print_summary
from flows.data.datasets import (
    LoadedModel,
    adapt_to_fit,
    check_dataset_features,
    load_fitted_model,
    open_dataset_or_example,
    resolve_split,
)
from flows.data.parameter_tables import read_known_items
from flows.fitting.provenance import compute_fingerprint
from flows.running.executors import prepare_executor
from flows.running.flow import StageRunner, make_flow, run_command, run_stages
from flows.running.row_results import write_row_ranges
from pipeline.data.blocks import RowSource
from pipeline.data.column_measures import check_row_columns
from pipeline.data.datasets import make_row_source
from pipeline.data.features import (
    are_binary,
    list_features,
    list_features_to_reconstruct,
    list_plane_names,
)
from pipeline.data.matching import describe_unknown_segments, find_segment_indices
from pipeline.errors import FitError
from pipeline.evaluation.records import describe_provenance
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.inference.sequences import condition_rows, find_sequence_columns
from pipeline.inference.transform import (
    AddedArrays,
    Reconstruction,
    TransformTask,
    check_can_be_reconstructed,
    describe_codes,
    describe_rows_without_score,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    HasSequences,
    ScoreKind,
    check_can_impute,
    check_can_reconstruct,
    check_can_score,
    check_has_person_fit,
)
from pipeline.models.known_items import KnownItems, match_items
from pipeline.params import get_named_arrays
from pipeline.passes.arrival_order import cut_in_arrival_order
from pipeline.passes.row_ranges import (
    ROW,
    ArrayDescriptions,
    choose_rows_per_range,
    count_rows_by_chunk,
)
from pipeline.random import RowRandom
from storage.artifacts.artifacts import ArtifactReader
from storage.codes.codes import Codes, CodesWriter, UnfinishedCodes, open_codes, seal_codes
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT
from storage.stores.leases import check_leases
from storage.stores.locations import AnyPath, check_target_folder, parse_path

HELP = """Compute the latent codes of every row of a dataset, in the original row order.

The output is a Zarr group of arrays whose first axis is the row: `mean` (row, component) and,
depending on the model, others such as `variance`, `covariance` or `converged`. With `--split`, the
array `row` contains the row of the dataset that each code belongs to, counted from 0.

If the output ends in .csv, .parquet or .xlsx, it is a table as `flows.export` writes it: row
numbers, segments, stored columns and codes, with `sd` instead of `variance`. Codes are on the scale
of the fit's parameters; `--standardize` gives them mean 0 and standard deviation 1 over the rows of
the table, divides their standard errors likewise, and prints how to get back.

Instead of an artifact, `--items` takes a table of slopes and offsets that are known from elsewhere,
with the columns feature, slope and offset, or as `flows.export --what items` writes them; or a
latent-trait fit, whose features may be in another order. Features with several levels and
continuous ones have the columns that the export writes. Rows are then scored by the latent-trait
model, for traits with mean 0 and variance 1.

The dataset must have the features of the fit; others are left out. Segments are matched by name;
segments that were not fitted use the mean of those that were, with a warning. For a fit with
`--group COLUMN`, the segments are the values of this column of the dataset.

`--person-fit` adds `l_z`, the standardized log-likelihood of each row's answers at its code, the
mean squared residuals `infit` and `outfit`, and `l_z_star`, for latent-trait fits. l_z varies less
than a standard normal variable, because the code is estimated from the same answers: -1.645 flags
about 2 % of rows that fit. `l_z_star` (Snijders 2001) corrects this: -1.645 flags about 5 %. A low
l_z_star, or an outfit far above 1, means that the answers do not fit.

`--scores` scores rows of a latent-trait fit in another way than by the posterior mean: the arrays
are then `score`, `standard_error` and, for ml and wle, `is_finite`. Rows with only the lowest or
only the highest answers have no ml score. `sum` adds the levels, counted from 0; items that point
the other way count in reverse, and missing answers as the fit expects them.

`--reconstruct probabilities` adds P(x = 1 | codes) for every row and feature, also where the value
is missing. `--reconstruct bits` adds bits instead: 1 where that probability is above ½. If some
features have several levels, `probabilities` has a column for each level of each feature,
`--reconstruct levels` adds the most likely level, and `--reconstruct expected-levels` the expected
one, counted from 0, or the expected value of a continuous feature. Tables have the levels as they
were ingested; arrays count them from 0. `flows.ingest` converts arrays of bits or levels to a
dataset with the same features.

`--impute` fills in missing values: each is predicted from all observed values of its row. Observed
values are kept. The choices are those of `--reconstruct`; the array is called
`imputed_probabilities`, `imputed_bits` and so on. The probabilities are exact, and do not depend on
the codes. bernoulli-mixture, tree-mixture, hidden-tree, hidden-markov and ising can compute them.
`flows.ingest` also converts completed bits or levels to a dataset.
"""
EXAMPLES = f"""Examples:

    python -m flows.transform --dataset v.zarr --artifact runs/v --output z.zarr
    python -m flows.transform --dataset v.zarr --artifact runs/v --output z.csv

Read z.zarr with `storage.open_codes("z.zarr")["mean"]`, or with any Zarr client.

{EXIT_CODES}"""
app = make_app("transform", HELP, EXAMPLES)
Dtype = Literal["float32", "float64"]
TRANSFORM_MODULE = "pipeline.inference.transform"


@Option(name="*")
@dataclass(frozen=True)
class TransformOptions:
    """The options of the command, and the parameters of the flow."""

    dataset: DatasetName
    output: Annotated[
        str,
        Option(group=OUTPUT, help="Folder or table file to write the codes to."),
        ExampleValue("codes/votes.zarr"),
    ]
    artifact: Annotated[
        str | None,
        Option(group=MODEL, help="Folder of a fitted model, or of runs (the latest is used)."),
        ExampleValue("runs/votes"),
    ] = None
    items: Annotated[
        str | None,
        Option(
            group=MODEL,
            metavar="FILE",
            help="Known slopes and offsets, to score rows without a fit: a table, or a fit.",
        ),
        ExampleValue("items.csv"),
    ] = None
    split: Split = None
    dtype: Annotated[Dtype, Option(group=OUTPUT, help="Type of the stored codes.")] = "float32"
    reconstruct: Annotated[
        Reconstruction | None,
        Option(
            group=OUTPUT,
            help="Also write probabilities, or the most likely or the expected level, of features.",
        ),
    ] = None
    impute: Annotated[
        Reconstruction | None,
        Option(
            group=OUTPUT,
            help="Also write completed rows: missing values predicted from the observed ones.",
        ),
    ] = None
    person_fit: Annotated[
        bool,
        Switch,
        Option(group=OUTPUT, help="Also write how well the answers of each row fit its code."),
    ] = False
    scores: Annotated[
        ScoreKind,
        Option(
            group=OUTPUT,
            help="How to score rows by a latent-trait fit: by the posterior mean (eap) or mode "
            "(map), maximum likelihood (ml), Warm's weighted likelihood (wle), or the sum.",
        ),
    ] = "eap"
    standardize: Standardize = False
    seed: Seed = 0
    where: Where = field(default_factory=ExecutorOptions)
    resume: Resume = False
    overwrite: Overwrite = False


class Coder(NamedTuple):
    """A model with its parameters, from an artifact or from a table of items.

    Attributes
    ----------
    path, digest
        Where the parameters come from, and the digest of their content.
    segments, group
        Index of each segment with its own parameters, by name; and the column that the segments are
        the values of, if they are groups.
    read_arrays
        Returns the arrays of the parameters in any process.
    pattern
        The loading pattern of the fit, as its manifest records it; None if it has none.
    """

    model: Model
    params: Any
    path: str
    digest: str
    segments: Mapping[str, int]
    read_arrays: Callable[[], Mapping[str, NDArray[Any]]]
    group: str | None = None
    pattern: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TransformJob:
    """A checked transform: its model, its rows and its output."""

    options: TransformOptions
    coder: Coder
    dataset: BinaryDataset
    split: str | None
    output: AnyPath
    open_executor: Callable[[], AbstractContextManager[Executor]]

    @property
    def added_arrays(self) -> AddedArrays:
        """What to write besides codes."""
        return AddedArrays(
            self.options.reconstruct,
            self.options.impute,
            self.options.person_fit,
            self.options.scores,
            list_features_to_reconstruct(self.dataset),
        )

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Everything that determines the codes."""
        return {
            **describe_provenance(
                self.coder.model,
                self.dataset,
                self.split,
                self.options.seed,
                TRANSFORM_MODULE,
                choices={} if self.coder.group is None else {"group": self.coder.group},
            ),
            "artifact": self.coder.digest,
            "dtype": self.options.dtype,
            "reconstruct": self.options.reconstruct,
            **({"impute": self.options.impute} if self.options.impute else {}),
            **({"person_fit": True} if self.options.person_fit else {}),
            **({"scores": self.options.scores} if self.options.scores != "eap" else {}),
        }

    @cached_property
    def work_folder(self) -> UnfinishedCodes:
        """The folder of unfinished codes."""
        return UnfinishedCodes(self.output.resolve(), compute_fingerprint(self.provenance))


def _make_rows(job: TransformJob) -> RowSource:
    """Make the rows readable, in smaller chunks if the model has sequences."""
    model = job.coder.model
    columns, numbers = find_sequence_columns(model), model.list_number_columns()
    rows = make_row_source(job.dataset, job.split, columns=columns, number_columns=numbers)
    return cut_in_arrival_order(rows) if isinstance(model, HasSequences) else rows


def _count_rows_by_chunk(job: TransformJob, executor: Executor) -> list[int]:
    rows = _make_rows(job)
    if job.split is None:
        return [*rows.rows_per_chunk]
    counts = count_rows_by_chunk(rows, executor)
    if not any(counts):
        raise DataError(
            f"{job.dataset.path}: the split {job.split!r} has no rows. Choose another {{split}}."
        )
    check_table_size(job.output, sum(counts))
    return counts


def _describe_arrays(job: TransformJob) -> ArrayDescriptions:
    coder, n_planes = job.coder, job.dataset.n_planes
    arrays = describe_codes(
        coder.model, coder.params, n_planes, job.options.dtype, job.added_arrays
    )
    return arrays if job.split is None else {**arrays, ROW: ((), (), "int64")}


def _write_codes(
    job: TransformJob, n_rows: list[int], executor: Executor, progress: Progress
) -> tuple[CodesWriter, list[list[int]]]:
    """Compute and store the codes; return the writer and the checksums of each range of rows."""
    model, params = job.coder.model, job.coder.params
    rows = condition_rows(model, params, _make_rows(job), executor, progress)
    task = TransformTask(
        model,
        job.coder.read_arrays,
        RowRandom(job.options.seed),
        rows.read,
        find_segment_indices(job.coder.segments, job.dataset.segment_names),
        job.options.dtype,
        job.added_arrays,
    )
    report, arrays = partial(progress, "transform"), _describe_arrays(job)
    size = choose_rows_per_range(arrays, sum(n_rows))
    return write_row_ranges(task, arrays, n_rows, size, job.work_folder.results, executor, report)


def _publish_codes(
    job: TransformJob, progress: Progress, writer: CodesWriter, checksums: list[list[int]]
) -> dict[str, Any]:
    """Move the finished codes to the output, as arrays or as a table, and summarize them."""
    warnings = describe_unknown_segments(job.coder.segments, job.dataset.segment_names)
    seal_codes(
        writer,
        checksums,
        {
            **job.provenance,
            "artifact_path": job.coder.path,
            "pattern": job.coder.pattern,
            "warnings": warnings,
        },
    )
    codes = open_codes(job.work_folder.results.codes_folder)
    if "is_finite" in codes:
        n_without = int(np.count_nonzero(~codes["is_finite"][:]))
        n_traits = codes["score"].shape[1]
        warnings += describe_rows_without_score(job.options.scores, n_without, n_traits)
    scale = None
    if isinstance(job.output, Path) and has_table_suffix(job.output.name):
        scale = _publish_table(job, codes, job.output, progress)
    else:
        job.work_folder.publish(job.options.overwrite)
    return {
        "codes": str(job.output),
        "dataset": str(job.dataset.path),
        "artifact": job.coder.path,
        "model": job.coder.model.name,
        "n_rows": codes.n_rows,
        "n_chunks": codes.n_chunks,
        "arrays": {name: codes.manifest["arrays"][name]["shape"] for name in codes},
        "dtype": job.options.dtype,
        "scale": scale,
        "warnings": warnings,
    }


def _publish_table(
    job: TransformJob, codes: Codes, output: Path, progress: Progress
) -> dict[str, list[float]] | None:
    """Write the table; return the scale of the codes if they were standardized."""
    with pause_garbage_collection():
        from flows.exporting.codes import make_code_table, measure_scale
        from flows.exporting.files import write_table
    scale = measure_scale(codes) if job.options.standardize else None
    table = make_code_table(codes, job.dataset, progress, scale)
    check_leases()
    write_table(table, output, job.options.overwrite)
    job.work_folder.discard()
    return None if scale is None else scale.to_lists()


def prepare_transform(options: TransformOptions) -> TransformJob:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    check_seed(options.seed)
    output = _check_output(options)
    if (options.artifact is None) == (options.items is None):
        raise FitError("Give {artifact}, the folder of a fit, or {items}, a table of known items.")
    if options.items is not None:
        items = read_known_items(options.items)
        dataset = open_dataset_or_example(options.dataset)
        coder = _make_item_coder(items, dataset)
    else:
        fitted = load_fitted_model(parse_path(str(options.artifact)))
        dataset = open_dataset_or_example(options.dataset)
        manifest, path = fitted.artifact.manifest, str(fitted.artifact.path.resolve())
        dataset = adapt_to_fit(dataset, manifest, path)
        coder = _make_artifact_coder(fitted, dataset)
    if options.reconstruct:
        check_can_reconstruct(coder.model)
    if options.impute:
        check_can_impute(coder.model)
    if options.person_fit:
        check_has_person_fit(coder.model)
    if options.scores != "eap":
        check_can_score(coder.model, coder.params, options.scores)
        for name in ("reconstruct", "impute", "person_fit", "standardize"):
            if getattr(options, name):
                raise FitError(
                    f"{{scores={options.scores}}} cannot be combined with {{{name}}}, which uses "
                    "the posterior mean. Leave out one of them."
                )
    split = resolve_split(dataset, options.split)
    check_row_columns(dataset, split, coder.params)
    dataset.check_columns(find_sequence_columns(coder.model))
    if split is None:
        check_table_size(output, dataset.n_rows)
    job = TransformJob(options, coder, dataset, split, output, open_executor)
    check_can_be_reconstructed(job.added_arrays, list_features(dataset))
    return job


def _make_artifact_coder(fitted: LoadedModel, dataset: BinaryDataset) -> Coder:
    check_dataset_features(fitted, dataset)
    reader = ArtifactReader.from_artifact(fitted.artifact)
    path = str(fitted.artifact.path.resolve())
    group, pattern = map(fitted.artifact.manifest.get, ("group", "pattern"))
    own = fitted.model, fitted.params, path, fitted.digest, fitted.segments
    return Coder(*own, reader, group, pattern)


def _make_item_coder(known: KnownItems, dataset: BinaryDataset) -> Coder:
    """Make a latent-trait model of known items."""
    from pipeline.models.latent_trait.forms import make_level_params
    from pipeline.models.latent_trait.model import LatentTrait
    from pipeline.models.latent_trait.params import make_params

    features = list_features(dataset)
    model = match_items(LatentTrait(), known, are_components_set=False)
    forms, asymptotes = known.align_all(features, model.items, str(dataset.path))
    if are_binary(features):
        params = make_params(forms[:, :-1], forms[:, -1], asymptotes)
    else:
        params = make_level_params(forms, features, model.items)
    arrays = {name: values for name, (_, values) in get_named_arrays(params).items()}
    return Coder(model, params, known.source, known.digest, {}, partial(dict, arrays))


def _check_output(options: TransformOptions) -> AnyPath:
    if has_table_suffix(options.output):
        return check_table_file(options.output, options.overwrite)
    if options.standardize:
        raise FitError(
            f"{{standardize}} needs a table, but {{output}} is {options.output!r}. Let it end in "
            ".csv, .parquet or .xlsx."
        )
    output = parse_path(options.output)
    check_target_folder(output, CODES_FORMAT, options.overwrite)
    return output


@make_flow("transform", TransformOptions)
def transform(options: TransformOptions) -> dict[str, Any]:
    """Write the latent codes of a dataset's rows."""
    return run_transform(prepare_transform(options))


def run_transform(job: TransformJob) -> dict[str, Any]:
    """Run the stages of a checked job."""
    names = (list_plane_names(job.dataset), job.dataset.segment_names)
    claim = job.work_folder.claim_work(job.options.resume)
    return run_stages(job.open_executor, names, partial(_run_stages, job), claim)


def _run_stages(job: TransformJob, stages: StageRunner, progress: Progress) -> dict[str, Any]:
    executor = stages.executor
    rows = stages.run("count rows", lambda: _count_rows_by_chunk(job, executor))
    transform = partial(_write_codes, job, rows, executor, progress)
    codes = stages.run("transform", transform, ["count rows"])
    return stages.run("write codes", partial(_publish_codes, job, progress, *codes), ["transform"])


@app.default
def main(*, options: TransformOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    work = partial(run_transform, prepare_transform(options))
    run_command("transform", options, work, json, _print_summary)


def _print_summary(summary: Mapping[str, Any]) -> None:
    rows = [("model", summary["model"]), ("rows", f"{summary['n_rows']:,}")]
    for name, shape in summary["arrays"].items():
        rows.append((name, " x ".join(f"{length:,}" for length in shape)))
    rows += list_scales(summary["scale"])
    rows.append(("seconds", f"{summary['seconds']:.2f}"))
    print_summary(rows, {"codes": summary["codes"]}, summary["warnings"])


if __name__ == "__main__":
    run_app(app)
