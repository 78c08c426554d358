"""Create TLS certificates to try out a cluster: `python -m flows.certificates FOLDER`."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from rich.console import Console

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import OUTPUT, Option, Overwrite, Repeatable
from storage.errors import DataError
from storage.extras import check_installed
from storage.stores.locations import check_outside_datasets

HELP = """Create certificates to try out a Dask cluster over TLS, valid for 30 days.

For development only: scheduler, workers and commands share one key, and the key of the CA is
discarded. In production, use certificates of your organisation.
"""
EXAMPLES = f"""Examples:

    python -m flows.certificates certificates --host scheduler.example.org

Writes ca.pem, node.pem and node-key.pem. Anyone who has node-key.pem can run code on the cluster.

{EXIT_CODES}"""
app = make_app("certificates", HELP, EXAMPLES)


@app.default
def main(
    folder: Annotated[Path, Option(group=OUTPUT, help="Folder to write the certificates to.")],
    *,
    host: Annotated[
        Repeatable,
        Option(group=OUTPUT, help="Name or address of a machine of the cluster. Repeatable."),
    ] = (),
    overwrite: Overwrite = False,
) -> None:
    """Write the files and print their paths."""
    check_installed("A certificate", "cryptography")
    from flows.running.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, LIFETIME, issue_certificates

    check_outside_datasets(folder / KEY_FILE)
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        if (folder / name).exists() and not overwrite:
            raise DataError(f"{folder / name} exists already. Add {{overwrite}} to replace it.")
    # Valid at once, even for a clock that is a little behind.
    files = issue_certificates(host, datetime.now(UTC) - timedelta(minutes=5))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    for name, content in files.items():
        _write_private_file(folder / name, content)
        console.print(str(folder / name), markup=False)
    console.print(f"For development, valid for {LIFETIME.days} days.")


def _write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


if __name__ == "__main__":
    run_app(app)
