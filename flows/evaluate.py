"""Compare fitted models on a dataset: `python -m flows.evaluate --dataset PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import OUTPUT, Json, Option, Switch
from flows.data.datasets import split_scales
from flows.evaluating.result_tables import join_scales, make_result_tables
from flows.evaluating.stages import (
    EvaluateOptions,
    EvaluationPlan,
    check_tables_folder,
    prepare_evaluation,
    run_evaluation_stages,
    write_tables,
)
from flows.evaluating.tables import print_evaluation
from flows.fitting.scales import name_scale
from flows.running.flow import make_flow, run_command, run_stages

HELP = """Compare fitted models on a dataset.

Use rows that were not fitted: the split `test` is the default if it exists. The table lists the
models, best first, and two simple baselines:

- log-likelihood per row: exact, estimated or a lower bound
- its difference from the best model, with the standard error of row-wise differences; a star marks
  differences that a paired t test finds at the 5 % level in six rows or more
- how well bits and measurements are reconstructed from the codes of their own row
- how well each value is predicted from all other values of its row, in up to 2,000 rows; only
  measurements if the model cannot compute this exactly
- how well labels are predicted, if the model predicts labels
- how the shares of ones and of joint ones differ between the data and rows
  drawn from the model; `--details` lists the largest differences

The baselines are fitted to the rows that the first artifact was fitted to. If these no longer
exist, they are fitted to the split `train`, or to all rows. A model is called in-sample if it was
fitted to the evaluated rows; in-sample baselines come last.

A second table measures how well codes keep neighbourhoods, on up to 2,000 rows and their 5 nearest
neighbours. Trustworthiness is 1 if all neighbours in code space are neighbours in the data;
continuity is 1 if the reverse holds. Chance gives 0.5. `--label` adds how often the label of a row
is predicted correctly by its 5 nearest neighbours in code space among up to 20,000 fitted rows, and
as a baseline by its 5 nearest neighbours in the data.

`--dif COLUMN` tests which items favour one of two groups among rows of equal sum scores
(Mantel-Haenszel), without any model. `--dif-test likelihood-ratio` takes up to 100 groups. For
each item, it compares one-trait models with separate and with shared slope and offset.
`--dif-purify` repeats these tests without the anchors that were found to be biased.

`--likelihood-ratio` tests nested fits to the same rows, such as equal against free slopes, or one
trait against two: if the smaller model holds, twice the gain in log-likelihood follows a χ²
distribution. `flows.compare` does so without a dataset, with AIC and BIC.

`--outcomes age,party` compares columns between the classes of a mixture: means of numbers and
shares of texts, corrected for rows that are assigned to a wrong class. `--covariates age,party`
regresses the classes on columns, with the same corrections; `--reference 2` compares with class 2.

`--reliability` prints alpha, ordinal alpha and omega of the sum of the features of a fit, with
95 % intervals, for all rows and for each segment or group; and the marginal reliability or omega of
the traits of latent-trait fits. It names items that point the other way, and the values with these
items reversed.

`--roll-calls` measures how well the codes of rows, such as the positions of members of parliament,
classify their own values: the share that is classified correctly, the proportional reduction in
error (PRE, and APRE of all roll calls) and the geometric mean probability (GMP), by feature and by
row. `--tables` writes all of them.

`--folds 5` cross-validates: each model is refitted, with the settings of its artifact, without each
fold in turn, and evaluated on that fold.

With `--dif`, `--outcomes`, `--likelihood-ratio`, `--reliability` or `--roll-calls`, only these
tables are made.
`--all` compares the models too. `--tables FOLDER` writes all tables as .csv files.

`--artifact` may be a folder of `fit --scales`: each scale is evaluated, and a table has a line for
each scale and item, group or test.
"""
EXAMPLES = f"""Examples:

    python -m flows.evaluate --dataset votes.zarr --artifact runs/votes
    python -m flows.evaluate --dataset v.zarr --artifact runs/v --label party
    python -m flows.evaluate --dataset v.zarr --artifact runs/v --folds 5

{EXIT_CODES}"""
app = make_app("evaluate", HELP, EXAMPLES)


@make_flow("evaluate", EvaluateOptions)
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Compare fitted models on a dataset."""
    return _prepare_work(options)()


def _prepare_work(options: EvaluateOptions) -> Callable[[], dict[str, Any]]:
    """Check the options, and return the work."""
    by_scale = split_scales(options.artifacts)
    if "" in by_scale:
        return partial(run_evaluation, prepare_evaluation(options))
    check_tables_folder(options.tables)
    plans = {}
    for scale, paths in by_scale.items():
        with name_scale(scale):
            own = replace(options, artifacts=tuple(paths), tables=None)
            plans[scale] = prepare_evaluation(own)
    return partial(_evaluate_scales, plans, options.tables)


def _evaluate_scales(plans: Mapping[str, EvaluationPlan], tables: str | None) -> dict[str, Any]:
    """Evaluate the fits of each scale, and write tables of all."""
    start, summaries = time.perf_counter(), {}
    for scale, plan in plans.items():
        with name_scale(scale):
            summaries[scale] = run_evaluation(plan)
    if tables is not None:
        by_scale = {scale: make_result_tables(own) for scale, own in summaries.items()}
        write_tables(join_scales(by_scale), Path(tables))
    return {"scales": summaries, "seconds": round(time.perf_counter() - start, 3)}


def run_evaluation(plan: EvaluationPlan) -> dict[str, Any]:
    """Run the stages of a checked evaluation."""
    names = (plan.dataset.feature_names, plan.dataset.segment_names)
    return run_stages(plan.open_executor, names, partial(run_evaluation_stages, plan))


Details = Annotated[
    bool,
    Switch,
    Option(group=OUTPUT, help="List the features and pairs that each model gets wrong."),
]


@app.default
def main(*, options: EvaluateOptions, details: Details = False, json: Json = False) -> None:
    """Run the flow and print its summary."""
    work, show = _prepare_work(options), partial(print_evaluation, details=details)
    run_command("evaluate", options, work, json, show)


if __name__ == "__main__":
    run_app(app)
