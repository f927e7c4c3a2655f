"""The folder of one sweep in the experiment's storage, seen by the driver and by every worker.

    <experiment>/grasp/<run>/checkpoints/   what tasks leave for each other
                             outcomes/      what tasks found, one small file each
                             calls/         oracle calls as they happen, one file a process
                             result.json, model.safetensors

An outcome is in its file before Tune hears of it: a driver that dies forgets nothing, and a task
that is started again finds that it has already been done.
"""

import json
import mmap
import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

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
from grasp_tune.engine.store import Store
from grasp_tune.ray.remote_store import RemoteStore
from grasp_tune.runtime.files import read_json, retried, write_json_atomic
from grasp_tune.runtime.store import CheckpointStore

FOLDER = "grasp"  # below the experiment's folder
LIMIT = 64 * 2**20  # bytes of an outcome that is still read
_COUNT = struct.Struct("<q")


class Depot:
    """One sweep's folder; see the module."""

    def __init__(self, filesystem: arrow.FileSystem, experiment: str, run: str) -> None:
        self._filesystem = filesystem
        self._path = PurePosixPath(experiment) / FOLDER / run
        local = isinstance(filesystem, arrow.LocalFileSystem)
        self.folder = Path(self._path) if local else None  # None: not a folder of this machine
        self.store: Store = (
            CheckpointStore(self.folder / "checkpoints")
            if self.folder is not None
            else RemoteStore(filesystem, str(self._path / "checkpoints"))
        )

    @classmethod
    def at(cls, path: str) -> "Depot":
        """Return the depot in a folder of this machine."""
        folder = Path(path)
        return cls(arrow.LocalFileSystem(), str(folder.parent.parent), folder.name)

    def __str__(self) -> str:
        return str(self._path)

    # -- outcomes -------------------------------------------------------------------------------

    def write_outcome(self, task: Task, outcome: Outcome, width: int) -> None:
        """Record how a task ended; `width` is what the model's shape says about batching runs."""
        self._write_json(
            self._path / "outcomes" / f"{task.id}.json",
            {"task": task_to_dict(task), "outcome": outcome_to_dict(outcome), "width": width},
        )

    def read_outcome(self, task: Task) -> tuple[Outcome, int] | None:
        """Return how this very task ended, and the width; None where it has not."""
        found = self._read_json(self._path / "outcomes" / f"{task.id}.json")
        # Another version of the schedule may have used the id for other work.
        if found is None or found.get("task") != task_to_dict(task):
            return None
        return outcome_from_dict(found["outcome"]), int(found["width"])

    # -- oracle calls ---------------------------------------------------------------------------

    def counter(self) -> Callable[[int], None]:
        """Return a function that adds to this process's count, which outlives the process."""
        if self.folder is None:
            return lambda calls: None
        (self.folder / "calls").mkdir(parents=True, exist_ok=True)
        with open(self.folder / "calls" / uuid.uuid4().hex, "w+b") as file:
            file.write(_COUNT.pack(0))
            file.flush()
            memory = mmap.mmap(file.fileno(), _COUNT.size)
        total = 0

        def add(calls: int) -> None:
            nonlocal total
            total += calls
            _COUNT.pack_into(memory, 0, total)

        return add

    def calls(self) -> int:
        """Return the oracle calls of all processes that ever worked here; 0 if not counted."""
        if self.folder is None or not (self.folder / "calls").is_dir():
            return 0
        total = 0
        for path in sorted((self.folder / "calls").iterdir()):
            content = retried(path.read_bytes)
            if len(content) == _COUNT.size:  # else its process is just making it
                total += _COUNT.unpack(content)[0]
        return total

    # -- files ----------------------------------------------------------------------------------

    def _write_json(self, path: PurePosixPath, data: Json) -> None:
        if self.folder is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(Path(path), data)
            return
        self._filesystem.create_dir(str(path.parent), recursive=True)
        with self._filesystem.open_output_stream(str(path)) as stream:
            stream.write(json.dumps(data).encode())

    def _read_json(self, path: PurePosixPath) -> Json | None:
        """Return the content; None where there is no such file, or one that cannot be read."""
        with suppress(FileNotFoundError, CheckpointError, ValueError):
            if self.folder is not None:
                return read_json(Path(path), LIMIT) if Path(path).exists() else None
            with self._filesystem.open_input_stream(str(path)) as stream:
                return json.loads(stream.read(LIMIT))
        return None
