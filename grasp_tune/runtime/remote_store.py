"""Checkpoints in a storage that is no folder of this machine: a bucket, or any pyarrow file system.

Same files as `CheckpointStore` writes. An object store shows an upload when it is complete, so a
reader sees the old content or the new one there too.
"""

import io
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pyarrow import fs as arrow
from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.store import Checkpoint, Store
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime.store import SUFFIX, CheckpointStore, MemoryStore


class RemoteStore:
    """A store over a pyarrow file system: one safetensors file per key."""

    def __init__(self, filesystem: arrow.FileSystem, folder: str) -> None:
        self._filesystem, self._folder = filesystem, PurePosixPath(folder)

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Upload the checkpoint in the place of what was there."""
        content, path = io.BytesIO(), self._path(key)
        Content.of(tensors, meta, key).write(content)
        try:
            self._filesystem.create_dir(str(self._folder), recursive=True)
            with self._filesystem.open_output_stream(path) as stream:
                stream.write(content.getbuffer())
        except OSError as fault:
            # Without the key: there is nothing to make again.
            sentence = f"checkpoint {key}: {path} cannot be written: {fault}"
            raise CheckpointError(sentence) from fault

    def read(self, key: str) -> Checkpoint:
        """Return what was written, its checksum verified; `CheckpointError` otherwise."""
        path = self._path(key)
        try:
            with self._filesystem.open_input_stream(path) as stream:
                content = stream.read()
        except FileNotFoundError:
            raise _missing(key, path) from None
        except OSError as fault:
            sentence = f"checkpoint {key}: {path} cannot be read: {fault}"
            raise CheckpointError(sentence, key) from fault
        try:
            return Checkpoint(*read_tensors(io.BytesIO(content), len(content), key))
        except DamagedFile as fault:
            raise CheckpointError(f"checkpoint {key}: {path} {fault}", key) from None

    def exists(self, key: str) -> bool:
        """Return whether there is a file; only `read` says whether it is whole."""
        found = self._filesystem.get_file_info(self._path(key))
        return bool(found.type == arrow.FileType.File)

    def delete(self, key: str) -> None:
        """Remove the file of the key, if there is one."""
        if self.exists(key):
            self._filesystem.delete_file(self._path(key))

    def keys(self) -> tuple[str, ...]:
        """Return all keys that have a file, sorted."""
        where = arrow.FileSelector(str(self._folder), allow_not_found=True)
        names = (item.base_name for item in self._filesystem.get_file_info(where))
        return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))

    def size(self, key: str) -> int:
        """Return the bytes of the file; `CheckpointError` where it is missing."""
        found = self._filesystem.get_file_info(self._path(key))
        if found.type != arrow.FileType.File:
            raise _missing(key, self._path(key))
        return int(found.size)

    def path(self, key: str) -> None:
        """Return None: there is no file on this machine."""
        self._path(key)

    def _path(self, key: str) -> str:
        MemoryStore().path(key)  # the one place that knows what a key may be
        return str(self._folder / f"{key}{SUFFIX}")


def _missing(key: str, path: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {key} is missing: there is no file {path}", key)


def store_at(storage: str, name: str) -> Store:
    """Return the store called `name` in a folder, or in a bucket such as s3://bucket/runs."""
    if "://" not in storage:
        return CheckpointStore(Path(storage).resolve() / name)
    try:
        filesystem, path = arrow.FileSystem.from_uri(storage)
    except (OSError, ValueError) as fault:
        raise InputError(f"storage: got {storage!r}, expected a folder or URI: {fault}") from fault
    if isinstance(filesystem, arrow.LocalFileSystem):
        return CheckpointStore(Path(path) / name)
    return RemoteStore(filesystem, f"{path}/{name}")
