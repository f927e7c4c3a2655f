"""The folder of a run: what is in it, and leaving none behind where there is nothing to keep."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grasp_tune.method.errors import CheckpointError
from grasp_tune.method.lock import NAME as LOCK
from grasp_tune.method.statefile import previous, write_fault

STATE, CHECKPOINTS, CALLS = "state.json", "checkpoints", "calls"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that a run was given, and how it was found."""

    path: Path
    made: bool  # it did not exist before
    fresh: bool  # no run had begun in it

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """Return the folder, made where it is missing."""
        made = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise CheckpointError(write_fault(path, fault, 1)) from fault
        return cls(path, made, not (path / STATE).exists())

    def clear(self) -> None:
        """Remove what a run that never got anywhere has written, and nothing else."""
        if not self.fresh:
            return
        state = self.path / STATE
        for file in (state, previous(state), self.path / CALLS, self.path / LOCK):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        if self.made:
            with suppress(OSError):  # somebody else has put something there
                self.path.rmdir()
