"""Checkpoints of a run that keeps nothing: in memory while they are small, else in a folder.

A sweep may leave a thousand candidates. Held in memory they would cost a thousand models; so what
goes beyond a fixed amount is written to a temporary folder, which goes away with the run.
"""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from grasp_tune.engine.store import Checkpoint
from grasp_tune.engine.tensor_file import Content, Meta
from grasp_tune.runtime.store import CheckpointStore, MemoryStore

logger = logging.getLogger(__name__)

IN_MEMORY = 256 * 2**20  # bytes


class SpillingStore:
    """A store that holds so many bytes in memory and the rest in files of its own."""

    def __init__(self, limit: int = IN_MEMORY) -> None:
        self._limit, self._held = limit, 0
        self._memory = MemoryStore()
        self._files: CheckpointStore | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy under the key, in the place of what was there."""
        size = Content.of(tensors, meta).size
        before = self._memory.size(key) if self._memory.exists(key) else 0
        if self._held - before + size <= self._limit:
            self._memory.write(key, tensors, meta)
            self._held += size - before
            if self._files is not None:
                self._files.delete(key)
            return
        self._spill().write(key, tensors, meta)
        self._memory.delete(key)
        self._held -= before

    def read(self, key: str) -> Checkpoint:
        """What was written; `CheckpointError` where it is missing or damaged."""
        return self._of(key).read(key)

    def exists(self, key: str) -> bool:
        """Whether something is kept under the key."""
        return self._of(key).exists(key)

    def delete(self, key: str) -> None:
        """Forget the key, if it is known."""
        if self._memory.exists(key):
            self._held -= self._memory.size(key)
        self._of(key).delete(key)

    def keys(self) -> tuple[str, ...]:
        """All keys, sorted."""
        spilled = () if self._files is None else self._files.keys()
        return tuple(sorted((*self._memory.keys(), *spilled)))

    def size(self, key: str) -> int:
        """Bytes of the checkpoint as a file; `CheckpointError` where it is missing."""
        return self._of(key).size(key)

    def path(self, key: str) -> Path | None:
        """The file of the key where it has one, else None."""
        return self._of(key).path(key)

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()

    def _of(self, key: str) -> MemoryStore | CheckpointStore:
        if self._files is None or self._memory.exists(key):
            return self._memory
        return self._files

    def _spill(self) -> CheckpointStore:
        if self._files is None:
            self._folder = tempfile.TemporaryDirectory(prefix="grasp-tune-")
            self._files = CheckpointStore(self._folder.name)
            logger.info(
                "checkpoints beyond %d MB go to %s", self._limit // 2**20, self._folder.name
            )
        return self._files
