"""Passes over an object store with slow requests, against the same passes from disk.

python -m tests.benchmarks throttled_store [ROWS [WORDS_PER_CHUNK]]

A server on loopback answers as S3 does, after 50 ms and with 60 MB/s per request. A counting pass
and an EM pass run from disk and from this store in turns. Because server and transport share the
cores with the pass, two more lines tell what the store allows: `download` reads all chunks with as
many requests at a time as the pass, and uses none; `disk + download` does that beside a pass from
disk, which is what a pass would take that never waits for a request. In the last line of each pass,
every 20th request for a chunk is refused (503).

Prints medians of wall and CPU seconds of this process, speeds relative to `disk` and to
`disk + download`, requests per chunk, and the mean number of requests in flight.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Lock
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
from obstore import get

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.datasets import make_row_source
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import initialize_fit
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import create_dataset
from storage.stores.object_store import open_bucket
from tests.benchmarks._measure import Table
from tests.support.data import ArrayBatch

LATENCY, BYTES_PER_SECOND, PIECE = 0.05, 60e6, 1 << 20
N_FEATURES, WORDS_PER_CHUNK, REPEATS, REFUSED = 64, 1 << 14, 3, 20
N_THREADS, N_REQUESTS = 2, 26  # a thread reads a chunk and 12 ahead


def write_dataset(path: Path, n_rows: int, words_per_chunk: int) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((1 << 17, N_FEATURES), np.float32) < 0.4).view(np.uint8)
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, words_per_chunk=words_per_chunk) as writer:
        for first in range(0, n_rows, len(X)):
            writer.add(ArrayBatch(np.roll(X, first // 7, axis=0)[: n_rows - first]))


def serve(folder: str) -> None:
    """Serve files as the objects of buckets until the process ends; print the port.

    Each 20th chunk of a bucket called `refusing` is refused. The path `/usage` tells the requests
    for chunks, and the seconds that they took together, as JSON.
    """
    lock, n_chunks, busy = Lock(), 0, 0.0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal n_chunks, busy
            start = time.perf_counter()
            if self.path == "/usage":
                self.answer(200, json.dumps([n_chunks, busy]).encode())
                return
            bucket, *parts = self.path.partition("?")[0].split("/")[1:]
            file, is_chunk = Path(folder, *parts), "/c/" in self.path
            time.sleep(LATENCY)
            with lock:
                n_chunks += is_chunk
                is_refused = is_chunk and bucket == "refusing" and n_chunks % REFUSED == 0
            if is_refused:
                self.answer(503)
            elif not file.is_file():
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            elif self.command == "HEAD":
                self.answer(200, length=file.stat().st_size)
            else:
                self.send_file(file)
            with lock:
                busy += is_chunk * (time.perf_counter() - start)

        do_HEAD = do_GET

        def answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def send_file(self, file: Path) -> None:
            length, start = file.stat().st_size, time.perf_counter()
            self.answer(200, length=length)
            with file.open("rb") as content:
                for first in range(0, length, PIECE):
                    self.connection.sendfile(content, first, min(PIECE, length - first))
                    due = start + min(first + PIECE, length) / BYTES_PER_SECOND
                    time.sleep(max(0.0, due - time.perf_counter()))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def run_server(folder: Path) -> Iterator[str]:
    """Run the server in a process of its own; yield its address."""
    command = [sys.executable, "-m", __spec__.name, "serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run_pass(model: Model, state: FitState, rows: RowSource) -> str:
    """Run a pass without cached chunks; return the digest of its statistics."""
    clear_chunk_cache()
    sums = collect_pass_statistics(model, state, rows, ThreadsExecutor(N_THREADS), seed=0)
    return hashlib.sha256(pickle.dumps(sums)).hexdigest()


def download(n_chunks: int) -> None:
    """Read all chunks of bits, and use none."""
    bucket = open_bucket("s3://bucket")
    with ThreadPoolExecutor(N_REQUESTS) as pool:
        paths = [f"d.zarr/bits/c/0/{k}" for k in range(n_chunks)]
        sizes = pool.map(lambda path: len(get(bucket, path).bytes()), paths)
        assert min(sizes) > 0


class Usage(NamedTuple):
    """What a call took: wall and CPU seconds, the server's requests, and their seconds."""

    wall: float
    cpu: float
    n_requests: float
    busy: float


def measure(address: str, call: Callable[[], object]) -> Usage:
    def read() -> Usage:
        n_requests, busy = json.loads(urlopen(f"{address}/usage").read())
        return Usage(time.perf_counter(), time.process_time(), n_requests, busy)

    before = read()
    call()
    return Usage(*(b - a for a, b in zip(before, read(), strict=True)))


def compare(
    table: Table, name: str, model: Model, state: FitState, folder: Path, address: str
) -> None:
    """Run a pass in all ways in turns; print a line for each."""
    places = {"disk": folder / "d.zarr"} | {
        place: f"s3://{bucket}/d.zarr"
        for place, bucket in {"store": "bucket", f"1 of {REFUSED} refused": "refusing"}.items()
    }
    rows = {place: make_row_source(open_dataset(path)) for place, path in places.items()}
    n_chunks = rows["disk"].n_chunks
    passes = {place: partial(run_pass, model, state, source) for place, source in rows.items()}
    digests = {run() for run in passes.values()}
    if len(digests) > 1:
        raise RuntimeError("the bytes differ")
    fetch = partial(download, n_chunks)

    def do_both() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fetch)
            passes["disk"]()

    calls = {"disk": passes["disk"], "download": fetch, "disk + download": do_both, **passes}
    usages: dict[str, list[Usage]] = {label: [] for label in calls}
    for _ in range(REPEATS):
        for label, call in calls.items():
            usages[label].append(measure(address, call))
    medians = {
        label: Usage(*map(median, zip(*usage, strict=True))) for label, usage in usages.items()
    }
    for label, usage in medians.items():
        speeds = [medians[other].wall / usage.wall for other in ("disk", "disk + download")]
        requests = usage.n_requests / n_chunks, usage.busy / usage.wall
        table.add(name, label, usage.wall, usage.cpu, *speeds, *requests)


def main() -> None:
    """Print the lines of both passes."""
    n_rows, n_words = (*map(int, map(float, sys.argv[1:3])), *(0, 0))[:2]
    n_words = n_words or WORDS_PER_CHUNK
    credentials = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    os.environ |= dict.fromkeys(credentials, "testing") | {"AWS_REGION": "us-east-1"}
    with tempfile.TemporaryDirectory() as name, run_server(Path(name)) as address:
        os.environ["AWS_ENDPOINT_URL"] = address
        write_dataset(Path(name) / "d.zarr", n_rows or 64 * 64 * WORDS_PER_CHUNK, n_words)
        table = Table(
            *("pass:<8", "place:<16", "wall:.2f", "CPU:.2f", "of disk:.0%", "of limit:.0%"),
            *("requests:.2f", "in flight:.1f"),
        )
        chunk = make_row_source(open_dataset(Path(name) / "d.zarr")).read(0)
        block = next(iter_blocks(chunk))
        mixture = BernoulliMixture(4, starts=1)
        start = initialize_fit(mixture, mixture.summarize_first(block, RowRandom(0)), 0)
        for label, model, state in (
            ("counting", ClippedPCA(), FitState(None)),
            ("EM", mixture, start),
        ):
            compare(table, label, model, state, Path(name), address)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1:2] == ["serve"] else main()
