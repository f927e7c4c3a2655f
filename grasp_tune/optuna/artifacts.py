"""Checkpoints in an Optuna artifact store: what workers share besides the storage."""

import io
import re
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound

from grasp_tune.core.errors import CheckpointError
from grasp_tune.engine.tensor_file import Content
from grasp_tune.runtime.store import BlobStore, spooled

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class ArtifactBlobs:
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
        try:
            self._store.open_reader(name).close()
        except (ArtifactNotFound, OSError):
            return False
        return True

    def remove(self, name: str) -> None:
        with suppress(ArtifactNotFound, OSError):  # what stays costs room, nothing else
            self._store.remove(name)

    def names(self) -> tuple[str, ...]:
        """Return nothing: an artifact store cannot list what it holds."""
        return ()


def artifact_checkpoints(
    artifact_store: ArtifactStore, artifact_id: Callable[[str], str], sweep: str
) -> BlobStore:
    """Return the checkpoints of a sweep, whose keys have artifact ids by a rule that all share."""

    def name(key: str) -> str:
        # Ids come from the study's storage, and are paths in some stores.
        found = artifact_id(key)
        if not _ID.fullmatch(found):
            raise CheckpointError(
                f"checkpoint {key}: got the artifact id {found[:80]!r}, expected 1 to 200 of "
                "a-z A-Z 0-9 . - _ and no dot in front",
                key,
            )
        return found

    return BlobStore(ArtifactBlobs(artifact_store), name, sweep)
