"""One sweep's folder in a storage that a driver and workers on many machines share.

    checkpoints/   what tasks leave for each other
    outcomes/      what tasks found, one small file each
    calls/         oracle calls as they happen, one file a process
    result.json, model.safetensors

An outcome is in its file before anybody hears of it: a driver that dies forgets nothing, and a task
that is started again finds that it has already been done.
"""

import json
from pathlib import Path

from pyarrow import fs as arrow

from grasp_tune.core.errors import CheckpointError
from grasp_tune.core.records import Json
from grasp_tune.core.tasks import (
    Outcome,
    Task,
    outcome_from_dict,
    outcome_to_dict,
    task_to_dict,
)
from grasp_tune.runtime.call_counter import CallCounter
from grasp_tune.runtime.remote_store import store_on

CHOSEN = "chosen"  # the checkpoint of the chosen model
SEARCH = "search"  # the state of a finished search, among the outcomes


class SharedStorage:
    """The folder of one sweep at `path` of a pyarrow file system; see the module."""

    def __init__(self, filesystem: arrow.FileSystem, path: str) -> None:
        local = isinstance(filesystem, arrow.LocalFileSystem)
        self.path = path
        self.folder = Path(path) if local else None  # None: not a folder of this machine
        self.store = store_on(filesystem, f"{path}/checkpoints")
        self._outcomes = store_on(filesystem, f"{path}/outcomes")
        # Without a folder, only the calls of one process can be counted.
        self.calls = CallCounter(None if self.folder is None else self.folder / "calls")

    def write_outcome(self, task: Task, outcome: Outcome, width: int) -> None:
        """Record how a task ended; `width` is what the model's shape says about batching runs."""
        words = json.dumps(task_to_dict(task)), json.dumps(outcome_to_dict(outcome))
        self._outcomes.write(task.id, {}, {"task": words[0], "outcome": words[1], "width": width})

    def read_outcome(self, task: Task) -> tuple[Outcome, int] | None:
        """Return how this very task ended, and the width; None where it has not."""
        try:
            found = self._outcomes.read(task.id).meta
        except CheckpointError:
            return None
        # Another version of the schedule may have used the id for other work.
        if found["task"] != json.dumps(task_to_dict(task)):
            return None
        return outcome_from_dict(json.loads(str(found["outcome"]))), int(found["width"])

    def write_search(self, state: Json) -> None:
        """Leave the state of a search for whoever makes a result of it."""
        self._outcomes.write(SEARCH, {}, {"state": json.dumps(state)})

    def read_search(self) -> Json:
        return json.loads(str(self._outcomes.read(SEARCH).meta["state"]))
