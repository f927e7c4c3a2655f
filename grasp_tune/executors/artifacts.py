"""Checkpoints in an Optuna artifact store: what workers share besides the storage."""

import io
from contextlib import suppress
from typing import BinaryIO

from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound

from grasp_tune.engine.tensor_file import Content
from grasp_tune.runtime.store import BlobStore, file_name, spooled


class _Artifacts:
    """The artifacts of a store by their ids.

    An artifact store cannot replace a file in one step, so a reader may meet a file half written:
    its checksum says so, and the search has it made again.
    """

    def __init__(self, artifact_store: ArtifactStore) -> None:
        self._store = artifact_store

    def write(self, name: str, content: Content) -> None:
        with spooled(content) as file:
            self._store.write(name, file)

    def open(self, name: str) -> BinaryIO:
        try:
            with self._store.open_reader(name) as file:
                return io.BytesIO(file.read())
        except ArtifactNotFound:
            raise FileNotFoundError(name) from None

    def exists(self, name: str) -> bool:
        with suppress(ArtifactNotFound, OSError):
            self._store.open_reader(name).close()
            return True
        return False

    def remove(self, name: str) -> None:
        with suppress(ArtifactNotFound, OSError):  # what stays costs room, nothing else
            self._store.remove(name)

    def names(self) -> tuple[str, ...]:
        return ()  # an artifact store cannot list what it holds


def artifact_name(sweep: str, key: str) -> str:
    """Return the id of the artifact that holds a checkpoint of a sweep."""
    return f"grasp-{sweep}-{file_name(key)}"


def artifact_checkpoints(artifact_store: ArtifactStore, sweep: str) -> BlobStore:
    """Return the checkpoints of a sweep."""
    return BlobStore(_Artifacts(artifact_store), lambda key: artifact_name(sweep, key), sweep)
