"""The folder of runs: finished artifacts, unfinished work, and a pointer to the latest artifact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from storage.stores.locations import (
    LATEST_NAME,
    AnyPath,
    clear_folder,
    delete_tree,
    list_children,
    lock_folder,
    write_text,
)


@dataclass(frozen=True)
class RunFolder:
    """The paths of one fit within the folder of runs.

    Attributes
    ----------
    output
        The folder of runs.
    model
        Name of the model.
    fingerprint
        Digest of everything that determines the result; equal fits have equal fingerprints.
    """

    output: AnyPath
    model: str
    fingerprint: str

    @property
    def work_folder(self) -> AnyPath:
        """Folder for the statistics and states of the unfinished fit."""
        return self.output / ".unfinished" / f"{self.model}-{self.fingerprint[:12]}"

    @property
    def states_folder(self) -> AnyPath:
        """Folder for the state of the unfinished fit after its last pass."""
        return self.work_folder / "states"

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Lock the work folder; with `resume`, keep what an interrupted fit left there.

        Raises
        ------
        DataError
            If the same fit is already running.
        """
        new_folders = [
            folder
            for folder in (self.work_folder, *self.work_folder.parents)
            if not folder.exists()
        ]
        try:
            with lock_folder(self.work_folder):
                if not resume:
                    clear_folder(self.work_folder)
                yield
        finally:
            for folder in new_folders:
                with suppress(OSError):  # not empty: it holds work to resume
                    folder.rmdir()

    def has_states(self) -> bool:
        """Return whether the unfinished fit has completed a pass."""
        return bool(list_children(self.states_folder))

    def delete_work(self) -> None:
        """Delete the work folder of a finished fit."""
        delete_tree(self.work_folder)
        with suppress(OSError):  # another fit may be using it
            self.work_folder.parent.rmdir()

    def make_artifact_path(self) -> AnyPath:
        """Return a path for the artifact, named after the model and the current time."""
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        return self.output / f"{self.model}-{time}"

    def set_latest(self, artifact: AnyPath) -> None:
        """Point `latest` at a complete artifact."""
        write_text(self.output / LATEST_NAME, artifact.name + "\n")
