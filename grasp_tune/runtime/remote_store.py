"""Checkpoints in a bucket, or any other pyarrow file system that is no folder of this machine."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from pyarrow import fs as arrow

from grasp_tune.core.errors import InputError
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.checkpoints import Store
from grasp_tune.runtime.store import BlobStore, CheckpointStore


class ArrowBlobs:
    """Blobs in a folder of a pyarrow file system."""

    def __init__(self, filesystem: arrow.FileSystem, folder: str) -> None:
        self._filesystem, self._folder = filesystem, folder.rstrip("/")

    def write(self, name: str, content: BinaryIO) -> None:
        self._filesystem.create_dir(self._folder, recursive=True)
        with self._filesystem.open_output_stream(f"{self._folder}/{name}") as stream:
            shutil.copyfileobj(content, stream)

    def read(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(f"{self._folder}/{name}") as stream:
            return bytes(stream.read())

    def exists(self, name: str) -> bool:
        found = self._filesystem.get_file_info(f"{self._folder}/{name}")
        return bool(found.type == arrow.FileType.File)

    def remove(self, name: str) -> None:
        self._filesystem.delete_file(f"{self._folder}/{name}")

    def names(self) -> Iterable[str]:
        where = arrow.FileSelector(self._folder, allow_not_found=True)
        return (item.base_name for item in self._filesystem.get_file_info(where))


def store_on(filesystem: arrow.FileSystem, folder: str) -> Store:
    """Return the store in a folder of a file system, which may be this machine's."""
    if isinstance(filesystem, arrow.LocalFileSystem):
        return CheckpointStore(Path(folder))
    return BlobStore(ArrowBlobs(filesystem, folder))


def sweep_store(storage: str, spec: SweepSpec, out: Path | None) -> Store:
    """Return a store of a sweep's own; the same `out` and spec find it again.

    storage: a folder, or a bucket such as s3://bucket/runs.
    """
    name = uuid.uuid4().hex
    if out is not None:
        text = json.dumps([str(out.resolve()), spec.to_dict()], sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    name = f"grasp-{name[:16]}"
    if "://" not in storage:
        return CheckpointStore(Path(storage).resolve() / name)
    try:
        filesystem, path = arrow.FileSystem.from_uri(storage)
    except (OSError, ValueError) as fault:
        raise InputError(f"storage: got {storage!r}, expected a folder or URI: {fault}") from fault
    return store_on(filesystem, f"{path}/{name}")
