"""What a driver and workers on many machines share: a folder, or a bucket that pyarrow reaches.

One sweep's folder in it:

    checkpoints/   what tasks leave for each other
    outcomes/      what tasks found, one small file each
    calls/         oracle calls as they happen, a small file for whoever makes some
    result.json, model.safetensors

An outcome is in its file before anybody hears of it: a driver that dies forgets nothing, and a task
that is started again finds that it has already been done.
"""

import io
import json
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pyarrow import fs as arrow

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.records import decode, encode, fingerprint
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import Store
from grasp_tune.engine.tensor_file import Content
from grasp_tune.runtime.call_counter import CallCounter
from grasp_tune.runtime.store import BlobStore, CheckpointStore, spooled

CHOSEN = "chosen"  # the checkpoint of the chosen model


class ArrowStore(BlobStore):
    """A store in a folder of a pyarrow file system."""

    def __init__(self, filesystem: arrow.FileSystem, folder: str, sweep: str) -> None:
        super().__init__(sweep)
        self._filesystem, self._folder = filesystem, folder.rstrip("/")

    def put_blob(self, name: str, content: Content) -> None:
        self._filesystem.create_dir(self._folder, recursive=True)
        with (
            spooled(content) as file,
            self._filesystem.open_output_stream(f"{self._folder}/{name}") as stream,
        ):
            shutil.copyfileobj(file, stream)

    def open_blob(self, name: str) -> BinaryIO:
        with self._filesystem.open_input_stream(f"{self._folder}/{name}") as stream:
            return io.BytesIO(stream.read())  # it has no size: all of it is read at once

    def remove_blob(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._folder}/{name}")

    def blobs(self) -> Iterable[str]:
        where = arrow.FileSelector(self._folder, allow_not_found=True)
        return (item.base_name for item in self._filesystem.get_file_info(where))


def store_on(filesystem: arrow.FileSystem, folder: str, sweep: str) -> Store:
    """Return a sweep's store in a folder of a file system, which may be this machine's."""
    if isinstance(filesystem, arrow.LocalFileSystem):
        return CheckpointStore(Path(folder), sweep=sweep)
    return ArrowStore(filesystem, folder, sweep)


def sweep_store(storage: str, spec: SweepSpec, out: Path | None) -> Store:
    """Return a sweep's own store in a folder or bucket; the same `out` and spec find it again."""
    values = {**spec.to_dict(), "budget": 0}  # which may be extended
    name = uuid.uuid4().hex[:16] if out is None else fingerprint(str(out.resolve()), values)
    name, place = f"grasp-{name}", storage if "://" in storage else str(Path(storage).resolve())
    try:
        filesystem, path = arrow.FileSystem.from_uri(place)
    except (OSError, ValueError) as fault:
        raise InputError(f"storage: got {storage!r}, expected a folder or URI: {fault}") from fault
    return store_on(filesystem, f"{path}/{name}", name)


class SharedStorage:
    """The folder of one sweep at `path` of a pyarrow file system; see the module."""

    def __init__(self, filesystem: arrow.FileSystem, path: str) -> None:
        local = isinstance(filesystem, arrow.LocalFileSystem)
        self.path, sweep = path, path.rpartition("/")[2]  # wherever the experiment is moved
        self.folder = Path(path) if local else None  # None: not a folder of this machine
        self.store = store_on(filesystem, f"{path}/checkpoints", sweep)
        self._outcomes = store_on(filesystem, f"{path}/outcomes", sweep)
        # Without a folder, only the calls of one process can be counted.
        self.calls = CallCounter(None if self.folder is None else self.folder / "calls")

    def write_outcome(self, task: Task, outcome: Outcome, width: int) -> None:
        """Record how a task ended; `width` is what the model's shape says about batching runs."""
        words = json.dumps(encode(task)), json.dumps(encode(outcome))
        self._outcomes.write(task.id, {}, {"task": words[0], "outcome": words[1], "width": width})

    def read_outcome(self, task: Task) -> tuple[Outcome, int] | None:
        """Return how this very task ended, and the width; None where it has not."""
        try:
            found = self._outcomes.read(task.id).meta
        except CheckpointError:
            return None
        # Another version of the schedule may have used the id for other work.
        if found["task"] != json.dumps(encode(task)):
            return None
        return decode(Outcome, json.loads(str(found["outcome"]))), int(found["width"])

    def forget(self, task: Task) -> None:
        self._outcomes.delete(task.id)
