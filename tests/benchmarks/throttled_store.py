"""A counting pass over an object store with slow requests, against the same pass from disk.

python -m tests.benchmarks throttled_store [ROWS]

A server on loopback answers as S3 does, after 50 ms and with 60 MB/s per request. Prints wall and
CPU seconds of a pass, its speed as a share of that from disk, and the requests in flight. Every
20th request for a chunk is refused in the last line (503).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

import numpy as np

from pipeline.data.datasets import make_row_source
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import collect_pass_statistics
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks._measure import Table
from tests.support.data import ArrayBatch

LATENCY, BYTES_PER_SECOND, PIECE = 0.05, 60e6, 1 << 20
N_FEATURES, WORDS_PER_CHUNK = 64, 1 << 14


def write_dataset(path: Path, n_rows: int) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((1 << 17, N_FEATURES), np.float32) < 0.4).view(np.uint8)
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, words_per_chunk=WORDS_PER_CHUNK) as writer:
        for first in range(0, n_rows, len(X)):
            writer.add(ArrayBatch(np.roll(X, first // 7, axis=0)[: n_rows - first]))


def serve(folder: str, refuse_every: int) -> None:
    """Serve files as the objects of a bucket until the process ends; print the port."""
    lock, n_chunks = Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal n_chunks
            file = Path(folder, *self.path.partition("?")[0].split("/")[2:])
            time.sleep(LATENCY)
            with lock:
                n_chunks += "/c/" in self.path
                is_refused = "/c/" in self.path and refuse_every and n_chunks % refuse_every == 0
            body = file.read_bytes() if file.is_file() else b"<Error><Code>NoSuchKey</Code></Error>"
            self.send_response_only(503 if is_refused else 200 if file.is_file() else 404)
            self.send_header("Content-Length", str(0 if is_refused else len(body)))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            self.end_headers()
            start = time.perf_counter()
            for first in range(0, 0 if is_refused or self.command == "HEAD" else len(body), PIECE):
                self.wfile.write(body[first : first + PIECE])
                due = start + min(first + PIECE, len(body)) / BYTES_PER_SECOND
                time.sleep(max(0.0, due - time.perf_counter()))

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def run_server(folder: Path, refuse_every: int) -> Iterator[str]:
    """Run the server in a process of its own; yield its address."""
    command = [sys.executable, "-m", __spec__.name, "serve", str(folder), str(refuse_every)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure_pass(url: str) -> tuple[float, float]:
    """Return wall and CPU seconds of a pass; the first one also opens the dataset."""
    rows = make_row_source(open_dataset(url))
    seconds = []
    for _ in range(2):
        clear_chunk_cache()
        start = time.perf_counter(), time.process_time()
        collect_pass_statistics(ClippedPCA(), FitState(None), rows, ThreadsExecutor(2), seed=0)
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return seconds[-1]


def main() -> None:
    """Print a line per place."""
    n_rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 64 * 64 * WORDS_PER_CHUNK
    credentials = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    os.environ |= dict.fromkeys(credentials, "testing") | {"AWS_REGION": "us-east-1"}
    with tempfile.TemporaryDirectory() as name:
        write_dataset(Path(name) / "d.zarr", n_rows)
        table = Table("place:<20", "wall:.2f", "CPU:.2f", "speed:.0%")
        disk = measure_pass(str(Path(name) / "d.zarr"))
        table.add("disk", *disk, 1.0)
        for label, refuse_every in {"store": 0, "store, 5 % refused": 20}.items():
            with run_server(Path(name), refuse_every) as address:
                os.environ["AWS_ENDPOINT_URL"] = address
                seconds = measure_pass(f"s3://bucket{refuse_every}/d.zarr")
            table.add(label, *seconds, disk[0] / seconds[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
