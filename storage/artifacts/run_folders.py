"""The folder of runs: finished artifacts, work in progress, and which one is the latest."""

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
    """One fit's places within the folder of runs.

    Attributes
    ----------
    output
        The folder of runs.
    model
        Name of the model.
    fingerprint
        Digest of everything that decides the result: the same fit, the same fingerprint.
    """

    output: AnyPath
    model: str
    fingerprint: str

    @property
    def work_folder(self) -> AnyPath:
        """Statistics and states of the unfinished fit."""
        return self.output / ".unfinished" / f"{self.model}-{self.fingerprint[:12]}"

    @property
    def states_folder(self) -> AnyPath:
        """State of the unfinished fit after its last pass."""
        return self.work_folder / "states"

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Claim the work folder; keep what an interrupted fit left there, or start anew.

        Raises
        ------
        DataError
            If the same fit is running already.
        """
        made = [
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
            for folder in made:
                with suppress(OSError):  # something lies there, to keep or to go on with
                    folder.rmdir()

    def has_states(self) -> bool:
        """Tell whether the unfinished fit has finished a pass."""
        return bool(list_children(self.states_folder))

    def delete_work(self) -> None:
        """Remove the work of a finished fit."""
        delete_tree(self.work_folder)
        with suppress(OSError):  # another fit may be at work beside
            self.work_folder.parent.rmdir()

    def make_artifact_path(self) -> AnyPath:
        """Name the artifact after the model and the time."""
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        return self.output / f"{self.model}-{time}"

    def set_latest(self, artifact: AnyPath) -> None:
        """Make an artifact, whole by now, the latest."""
        write_text(self.output / LATEST_NAME, artifact.name + "\n")
