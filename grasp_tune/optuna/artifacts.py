"""Checkpoints in an Optuna artifact store: what workers share besides the storage."""

import io
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress

from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound
from torch import Tensor

from grasp_tune.core.errors import CheckpointError
from grasp_tune.engine.store import Checkpoint
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
SPOOL = 64 * 2**20  # bytes of a checkpoint that are kept in memory on their way


class ArtifactCheckpoints:
    """A store of checkpoints whose keys are artifact ids, by a rule that all workers share.

    An artifact store cannot replace a file in one step, so a reader may meet a file half written:
    its checksum says so, and the search has it made again.
    """

    def __init__(self, artifact_store: ArtifactStore, name: Callable[[str], str]) -> None:
        self._store, self._rule = artifact_store, name

    def _name(self, key: str) -> str:
        """The artifact id of a key; ids come from the study's storage, and are paths in a store."""
        name = self._rule(key)
        if not _ID.fullmatch(name):
            raise CheckpointError(
                f"checkpoint {key}: got the artifact id {name[:80]!r}, expected 1 to 200 of "
                "a-z A-Z 0-9 . - _ and no dot in front",
                key,
            )
        return name

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy under the key, in the place of what was there."""
        content = Content.of(tensors, meta)
        with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
            content.write(file)  # type: ignore[arg-type]
            file.seek(0)
            try:
                self._store.write(self._name(key), file)  # type: ignore[arg-type]
            except OSError as fault:
                raise CheckpointError(
                    f"checkpoint {key}: the artifact store cannot write it: {fault}"
                ) from fault

    def read(self, key: str) -> Checkpoint:
        """What was written, its checksum verified; `CheckpointError` otherwise."""
        try:
            with self._store.open_reader(self._name(key)) as file:
                content = file.read()
        except ArtifactNotFound:
            raise self._missing(key) from None
        except OSError as fault:
            raise CheckpointError(f"checkpoint {key} cannot be read: {fault}", key) from fault
        try:
            # Stores of other machines give streams without a size: all of it is read at once.
            return Checkpoint(*read_tensors(io.BytesIO(content), len(content)))
        except DamagedFile as fault:
            raise CheckpointError(f"checkpoint {key}: its artifact {fault}", key) from None

    def exists(self, key: str) -> bool:
        """Whether there is an artifact; only `read` says whether it is whole."""
        try:
            self._store.open_reader(self._name(key)).close()
        except (ArtifactNotFound, OSError):
            return False
        return True

    def delete(self, key: str) -> None:
        """Remove the artifact, if there is one."""
        with suppress(ArtifactNotFound, OSError):  # what stays costs room, nothing else
            self._store.remove(self._name(key))

    def keys(self) -> tuple[str, ...]:
        """Nothing: an artifact store cannot list what it holds."""
        return ()

    def size(self, key: str) -> int:
        """Bytes of the artifact; `CheckpointError` where it is missing."""
        try:
            with self._store.open_reader(self._name(key)) as file:
                return len(file.read())
        except (ArtifactNotFound, OSError):
            raise self._missing(key) from None

    def path(self, key: str) -> None:
        """None: only the artifact store knows where the bytes are."""

    def _missing(self, key: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {key} is missing: the artifact store has no {self._name(key)}", key
        )
