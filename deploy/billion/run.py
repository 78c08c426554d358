"""Run the pipeline on data of any size whose causes are known, and print what it took.

    python deploy/billion/run.py --store s3://bucket/billion --rows 1e9

For clipped-pca, bernoulli-mixture and latent-trait, each on data of its own model: the workers draw
the rows and write them to the store as Parquet files; then the commands of `latentbits` that are
printed ingest and fit them, and compute the codes of 1 % further rows. Clipped PCA is also fitted
again after these rows were appended. Estimates are compared with the parameters that the rows were
drawn from: the root mean square of (estimate − truth) / standard error is near 1 in a correct fit.

The cluster is that of the variables LATENTBITS_CLUSTER, LATENTBITS_WORKERS and so on; without them,
threads of this machine do the work. A run that was interrupted continues if it is repeated.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import expit, ndtr

from flows.running.executors import open_executor
from pipeline.executors.base import Executor, count_cpus
from storage import load_artifact, open_codes, open_dataset
from storage.stores.locations import AnyPath, delete_tree, parse_path, write_text

Array = NDArray[np.float64]

MODELS = ("clipped-pca", "bernoulli-mixture", "latent-trait")
ROWS_PER_FILE, ROWS_PER_BLOCK = 1 << 22, 1 << 16
FURTHER_ROWS = 0.01  # share of them
CLASS_WEIGHTS = (0.4, 0.3, 0.2, 0.1)
N_FACTORS = 5
_LINK_LIMIT, _LINK_STEPS = 16, 256  # per unit; interpolation is wrong by at most 5e-7


class Truth(NamedTuple):
    """A model that rows are drawn from: P(x_j = 1 | z) = link(offset_j + Σ_k weight_jk z_k).

    Attributes
    ----------
    weights, offsets
        Parameters, (n_features, n_causes) and (n_features,).
    link
        `logistic` or `probit`.
    class_weights
        Probabilities of the classes if z is 1 for the class of a row and 0 for others; empty if z
        is standard normal.
    """

    weights: Array
    offsets: Array
    link: Literal["logistic", "probit"]
    class_weights: tuple[float, ...] = ()


def draw_truth(model: str, n_features: int) -> Truth:
    """Draw the parameters of a model; they are the same in every run."""
    rng = np.random.default_rng([n_features, len(model)])
    if model == "latent-trait":
        slopes = rng.uniform(0.8, 2.0, (n_features, 1))
        return Truth(slopes, rng.standard_normal(n_features), "logistic")
    if model == "bernoulli-mixture":
        probabilities = rng.uniform(0.1, 0.9, (n_features, len(CLASS_WEIGHTS)))
        logits = np.log(probabilities / (1 - probabilities))
        return Truth(logits, np.zeros(n_features), "logistic", CLASS_WEIGHTS)
    loadings = rng.standard_normal((n_features, N_FACTORS))
    communality = rng.uniform(0.3, 0.8, (n_features, 1))
    loadings *= np.sqrt(communality) / np.linalg.norm(loadings, axis=1, keepdims=True)
    noise = np.sqrt(1 - communality)
    return Truth(loadings / noise, rng.uniform(-1, 1, n_features) / noise[:, 0], "probit")


class FileRows(NamedTuple):
    """Rows first to stop − 1, which are written to one file."""

    first: int
    stop: int


def list_files(first: int, stop: int) -> list[FileRows]:
    """Cut rows into files."""
    return [FileRows(k, min(k + ROWS_PER_FILE, stop)) for k in range(first, stop, ROWS_PER_FILE)]


def draw_causes(truth: Truth, rows: FileRows) -> Array:
    """Draw z of rows, (n_rows, n_causes); blocks of rows have random generators of their own."""
    n_causes = truth.weights.shape[1]
    blocks = []
    for first in range(rows.first, rows.stop, ROWS_PER_BLOCK):
        rng = np.random.default_rng([n_causes, first])
        n = min(ROWS_PER_BLOCK, rows.stop - first)
        if truth.class_weights:
            classes = np.searchsorted(np.cumsum(truth.class_weights)[:-1], rng.random(n), "right")
            blocks.append(np.eye(n_causes)[classes])
        else:
            blocks.append(rng.standard_normal((n, n_causes)))
    return np.concatenate(blocks)


def write_file(truth: Truth, folder: AnyPath, rows: FileRows) -> int:
    """Draw rows and write them to a Parquet file of the folder; return its size in bytes."""
    grid = np.arange(-_LINK_LIMIT * _LINK_STEPS, _LINK_LIMIT * _LINK_STEPS + 1) / _LINK_STEPS
    table = (expit if truth.link == "logistic" else ndtr)(grid)
    causes = np.ascontiguousarray(draw_causes(truth, rows).T)
    bits = draw_bits(causes, truth.weights, truth.offsets, table, np.uint64(rows.first))
    n_rows = rows.stop - rows.first
    columns = {
        f"f{j}": pa.Array.from_buffers(pa.bool_(), n_rows, [None, pa.py_buffer(values)])
        for j, values in enumerate(bits)
    }
    content = BytesIO()
    pq.write_table(pa.table(columns), content, compression="none")
    (folder / f"rows-{rows.first:012}.parquet").write_bytes(content.getvalue())
    return content.tell()


@njit(nogil=True)
def draw_bits(
    causes: Array, weights: Array, offsets: Array, table: Array, first: np.uint64
) -> NDArray[np.uint8]:
    """Draw bits, packed along rows, the lowest first, (n_features, n_rows / 8).

    The uniform numbers of two rows are the halves of a hash of row and feature (`splitmix64`).
    """
    n_causes, n_rows = causes.shape
    n_features = len(offsets)
    bits = np.zeros((n_features, (n_rows + 7) // 8), np.uint8)
    middle = (len(table) - 1) // 2
    steps, highest = middle / _LINK_LIMIT, len(table) - 2.0
    for j in range(n_features):
        z = np.uint64(0)
        for i in range(n_rows):
            eta = offsets[j]
            for k in range(n_causes):
                eta += weights[j, k] * causes[k, i]
            place = min(max(eta * steps + middle, 0.0), highest)
            cell = int(place)
            p = table[cell] + (place - cell) * (table[cell + 1] - table[cell])
            if i % 2:
                z >>= np.uint64(32)
            else:
                z = (first + np.uint64(i)) * np.uint64(n_features) + np.uint64(j)
                z *= np.uint64(0x9E3779B97F4A7C15)
                z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                z ^= z >> np.uint64(31)
            is_one = np.float64(z & np.uint64(0xFFFFFFFF)) * 2.0**-32 < p
            bits[j, i >> 3] |= np.uint8(is_one) << np.uint8(i & 7)
    return bits


class Step(NamedTuple):
    """What a step took.

    Attributes
    ----------
    name
        Name of the step.
    rows, passes
        Rows that it worked on, and how often it read all of them.
    bytes
        Bytes of these rows: of the Parquet files where a step reads or writes them, else packed.
    cores
        Threads that worked on it.
    seconds
        Wall time; that of a fit includes starts, standard errors and writing.
    cpu_seconds, memory
        CPU time of all processes, and the largest peak memory of one, in bytes; 0 if unknown.
    check
        Comparison with the truth.
    """

    name: str
    rows: int
    bytes: int
    cores: int
    seconds: float
    passes: int = 1
    cpu_seconds: float = 0.0
    memory: int = 0
    check: str = ""


class Run:
    """A run in a folder of the store; finished steps are recorded there, and not repeated."""

    def __init__(self, store: AnyPath, n_rows: int, n_features: int, cores: int) -> None:
        self.store, self.n_rows, self.n_features, self.cores = store, n_rows, n_features, cores
        self.record = store / f"steps-{n_rows}-{n_features}.json"
        found = json.loads(self.record.read_text()) if self.record.exists() else []
        self.steps = [Step(*values) for values in found]

    def do(self, name: str, work: Callable[[], Step]) -> None:
        """Do a step unless it is recorded, and record it."""
        if any(step.name == name for step in self.steps):
            return
        start = time.perf_counter()
        step = work()
        step = step._replace(name=name, seconds=time.perf_counter() - start)
        self.steps.append(step)
        write_text(self.record, json.dumps(self.steps))

    def describe(self, rows: FileRows, **values: Any) -> Step:
        """Describe a step by its packed rows; `do` adds its name and its time."""
        n_rows = rows.stop - rows.first
        values = {"bytes": n_rows * self.n_features // 8, "cores": self.cores, **values}
        return Step("", n_rows, seconds=0.0, **values)


def run_command(*arguments: str) -> dict[str, Any]:
    """Run a command of `latentbits`, and return its summary."""
    print("$", shlex.join(["latentbits", *arguments]), file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "flows", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def run_model(run: Run, model: str) -> None:
    """Draw, ingest and fit the rows of one model, and compute the codes of further rows."""
    truth, folder = draw_truth(model, run.n_features), run.store / model
    rows = FileRows(0, run.n_rows)
    further = FileRows(run.n_rows, run.n_rows + max(2, int(run.n_rows * FURTHER_ROWS)))
    dataset = folder / "rows.zarr"
    for name, part in (("rows", rows), ("further", further)):
        ingest = partial(_ingest, run, folder / name, folder / f"{name}.zarr", part, "--overwrite")
        run.do(f"{model}: draw {name}", partial(_draw, run, truth, folder / name, part))
        run.do(f"{model}: ingest {name}", ingest)
    delete_tree(folder / "rows")
    run.do(f"{model}: fit", partial(_fit, run, model, truth, folder, rows))
    run.do(f"{model}: codes", partial(_transform, run, truth, folder, further))
    if model == "clipped-pca":
        run.do(f"{model}: append", partial(_append, run, folder / "further", dataset, further))
        everything = FileRows(0, further.stop)
        run.do(f"{model}: fit again", partial(_fit, run, model, truth, folder, everything))


def _draw(run: Run, truth: Truth, folder: AnyPath, rows: FileRows) -> Step:
    folder.mkdir(parents=True, exist_ok=True)
    with open_executor() as executor:
        sizes = executor.map(partial(write_file, truth, folder), list_files(*rows))
        return run.describe(rows, bytes=sum(sizes))


def _ingest(run: Run, source: AnyPath, dataset: AnyPath, rows: FileRows, flag: str) -> Step:
    run_command("ingest", f"{source}/*.parquet", "--dataset", str(dataset), flag)
    n_bytes = next(s.bytes for s in run.steps if s.name.endswith(f"draw {source.name}"))
    return run.describe(rows, bytes=n_bytes, cores=count_cpus())


def _append(run: Run, source: AnyPath, dataset: AnyPath, rows: FileRows) -> Step:
    """Append the further rows, unless an interrupted run has done so already."""
    if open_dataset(dataset).n_rows == rows.stop:
        return run.describe(rows)
    return _ingest(run, source, dataset, rows, "--append")


def _fit(run: Run, model: str, truth: Truth, folder: AnyPath, rows: FileRows) -> Step:
    place = ["--dataset", f"{folder / 'rows.zarr'}", "--output", f"{folder / 'fits'}"]
    choices = ["--model", model, "--components", str(truth.weights.shape[1])]
    summary = run_command("fit", *place, *choices, "--no-report", "--resume")
    fitted = load_artifact(summary["artifact"])
    usage = fitted.manifest["usage_by_stage"].values()
    memory = [max(u["peak_memory"], u["peak_memory_of_largest_worker"] or 0) for u in usage]
    return run.describe(
        rows,
        passes=summary["iterations"],
        cpu_seconds=sum(u["cpu_seconds"] for u in usage),
        memory=max(memory),
        check=compare_parameters(truth, fitted),
    )


def _transform(run: Run, truth: Truth, folder: AnyPath, rows: FileRows) -> Step:
    place = ["--dataset", f"{folder / 'further.zarr'}", "--artifact", f"{folder / 'fits'}"]
    output = folder / "codes.zarr"
    run_command("transform", *place, "--output", f"{output}", "--overwrite")
    return run.describe(rows, check=compare_codes(truth, open_codes(output), rows))


def compare_parameters(truth: Truth, fitted: Mapping[str, Array]) -> str:
    """Compare estimates with the parameters that the rows were drawn from, in standard errors."""
    if truth.link == "probit":
        covariance = truth.weights @ truth.weights.T
        deviation = np.sqrt(1 + np.diag(covariance))
        pairs = np.triu_indices(len(deviation), 1)
        true = (covariance / np.outer(deviation, deviation))[pairs]
        found, errors = fitted["correlation"][pairs], fitted["correlation_error"][pairs]
    elif truth.class_weights:
        order = find_class_order(truth, fitted["probabilities"])
        true, found = expit(truth.weights.T), fitted["probabilities"][order]
        errors = fitted["probabilities_error"][order]
    else:
        true = np.column_stack([truth.weights, truth.offsets])
        found = np.column_stack([fitted["weights"], fitted["offsets"]])
        errors = np.column_stack([fitted["weights_error"], fitted["offsets_error"]])
    z = (found - true) / errors
    return f"rms z of {z.size:,} parameters {np.sqrt(np.mean(z**2)):.3f}"


def find_class_order(truth: Truth, probabilities: Array) -> list[int]:
    """Find the fitted class of each true one."""
    distances = cdist(expit(truth.weights.T), probabilities)
    return [int(k) for k in linear_sum_assignment(distances)[1]]


def compare_codes(truth: Truth, codes: Mapping[str, Array], rows: FileRows) -> str:
    """Compare the codes of rows with the causes that the rows were drawn from."""
    causes = draw_causes(truth, rows)
    if truth.class_weights:
        return f"right class {np.mean(causes.argmax(1) == codes['mean'].argmax(1)):.4f}"
    if truth.link == "logistic":
        z = (codes["mean"] - causes) / np.sqrt(codes["variance"])
        return f"rms z of codes {np.sqrt(np.mean(z**2)):.3f}"
    basis, _ = np.linalg.qr(codes["mean"] - codes["mean"].mean(axis=0))
    explained = (basis.T @ causes) ** 2
    return f"R² of causes {explained.sum() / np.sum(causes**2):.3f}"


def print_table(run: Run, price: float) -> None:
    """Print the steps as a table in Markdown; `price` is that of a core for an hour."""
    columns = ("step", "rows", "GB", "cores", "seconds", "CPU seconds", "passes", "GB/s per core")
    for cells in ((*columns, "GB of memory", "$", "check"), ("---",) * (len(columns) + 3)):
        print("|", " | ".join(cells), "|")
    for step in run.steps:
        speed = step.bytes * step.passes / step.seconds / step.cores
        cells = (
            *(step.name, f"{step.rows:,}", f"{step.bytes / 1e9:.3g}", f"{step.cores}"),
            *(f"{step.seconds:.1f}", f"{step.cpu_seconds:.1f}" if step.cpu_seconds else ""),
            *(f"{step.passes}", f"{speed / 1e9:.3g}"),
            f"{step.memory / 1e9:.2f}" if step.memory else "",
            *(f"{step.seconds / 3600 * run.cores * price:.2g}", step.check),
        )
        print("|", " | ".join(cells), "|")


def count_threads(executor: Executor) -> int:
    """Return the number of threads of a cluster, or of this process."""
    describe = getattr(executor, "describe_workers", None)
    return sum(w["nthreads"] for w in describe().values()) if describe else count_cpus()


def parse_count(text: str) -> int:
    """Read a number such as 1000 or 1e9, at least 10."""
    try:
        count = int(float(text))
    except (ValueError, OverflowError):
        count = 0
    if count < 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 10, such as 1e9.")
    return count


def main() -> None:
    """Run all models, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True, help="folder or URL for all data")
    parser.add_argument("--rows", type=parse_count, default=10**9)
    parser.add_argument("--features", type=parse_count, default=64)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--price", type=float, default=0.04, help="dollars per core-hour")
    options = parser.parse_args()
    with open_executor() as executor:
        cores = count_threads(executor)
    run = Run(parse_path(options.store), options.rows, options.features, cores)
    run.store.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        run_model(run, model)
    print_table(run, options.price)


if __name__ == "__main__":
    main()
