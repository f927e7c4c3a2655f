"""Where checkpoints are kept: a folder of files, or the memory of this process.

A checkpoint is named tensors and a few numbers or words, never an object: reading one cannot run
code. Which checkpoints are written and how long they stay is decided elsewhere.
"""

import logging
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.store import Checkpoint
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime.files import (
    open_regular,
    reason,
    remove_stale,
    replace_atomically,
    retried,
    write_fault,
)
from grasp_tune.runtime.lock import FolderLock

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"

# No separator and no leading dot: a key cannot leave the folder, nor meet a temporary file.
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,119}")


class CheckpointStore:
    """A store in a folder: one safetensors file per key, whole or not there at all.

    Faults of the file system that pass are tried again; the others raise `CheckpointError`. The
    folder is made with the first checkpoint. Opening it removes what killed writers left.

    folder: where the files are.
    lock: the sweep's folder. Every file then carries the sweep's name, files of other sweeps are
        refused, and nothing is written once the folder is another's.
    """

    def __init__(self, folder: Path | str, lock: FolderLock | None = None) -> None:
        self.folder, self._lock = Path(folder), lock
        self._sweep = "" if lock is None else lock.sweep
        if self.folder.is_dir():
            remove_stale(self.folder)

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Replace the file of the key atomically; on the disk when this returns."""
        path, content = self.path(key), Content.of(tensors, meta, key, self._sweep)
        if self._lock is not None:
            self._lock.check()
        try:
            retried(lambda: self.folder.mkdir(parents=True, exist_ok=True))
            retried(lambda: replace_atomically(path, content.write))
        except OSError as fault:
            # Without the key: there is nothing to make again.
            sentence = f"checkpoint {key}: {write_fault(path, fault, content.size)}"
            raise CheckpointError(sentence) from fault

    def read(self, key: str) -> Checkpoint:
        """What was written, its checksum and owner verified; `CheckpointError` otherwise."""
        return read_checkpoint(self.path(key), key, self._sweep)

    def exists(self, key: str) -> bool:
        """Whether there is a file; only `read` says whether it is whole."""
        return self.path(key).is_file()

    def delete(self, key: str) -> None:
        """Remove the file of the key, if there is one."""
        path = self.path(key)
        try:
            retried(lambda: path.unlink(missing_ok=True))
        except OSError as fault:
            sentence = f"checkpoint {key}: {path} cannot be removed: {reason(fault)}"
            raise CheckpointError(sentence) from fault

    def keys(self) -> tuple[str, ...]:
        """All keys that have a file, sorted."""
        found = (path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}"))
        return tuple(sorted(key for key in found if _KEY.fullmatch(key)))

    def size(self, key: str) -> int:
        """Bytes of the file; `CheckpointError` where it is missing."""
        path = self.path(key)
        try:
            return retried(path.stat).st_size
        except OSError:
            raise _missing(key, path) from None

    def path(self, key: str) -> Path:
        """The file of the key, there or not."""
        return self.folder / f"{_checked(key)}{SUFFIX}"


def read_checkpoint(path: Path, key: str, sweep: str = "") -> Checkpoint:
    """What a store wrote to this file under this key, for this sweep; see `CheckpointStore`."""

    def load() -> Checkpoint:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            return Checkpoint(*read_tensors(file, size, key, sweep))

    try:
        return retried(load)
    except FileNotFoundError:
        raise _missing(key, path) from None
    except OSError as fault:
        sentence = f"checkpoint {key}: {path} cannot be read: {reason(fault)}"
        raise CheckpointError(sentence, key) from fault
    except DamagedFile as fault:
        raise CheckpointError(f"checkpoint {key}: {path} {fault}", key) from None


class MemoryStore:
    """A store in the memory of this process, for runs that keep nothing.

    limit: bytes to hold in memory. A sweep may leave a thousand candidates; those beyond the limit
        go to a temporary folder, which `close` removes.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._kept: dict[str, tuple[int, Checkpoint]] = {}  # with its size as a file
        self._files: CheckpointStore | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy under the key; refuses what a file could not hold, too."""
        size = Content.of(tensors, meta, _checked(key)).size
        self._kept.pop(key, None)
        if sum(held for held, _ in self._kept.values()) + size > self._limit:
            self._spill().write(key, tensors, meta)
            return
        if self._files is not None:
            self._files.delete(key)
        self._kept[key] = size, _copy(tensors, meta)

    def read(self, key: str) -> Checkpoint:
        """A copy of what was written; `CheckpointError` where nothing was."""
        if key in self._kept:
            kept = self._kept[key][1]
            return _copy(kept.tensors, kept.meta)
        return self._spilled(key).read(key)

    def exists(self, key: str) -> bool:
        """Whether something was written under the key."""
        return self.path(key) is not None or key in self._kept

    def delete(self, key: str) -> None:
        """Forget the key, if it is known."""
        if self._kept.pop(_checked(key), None) is None and self._files is not None:
            self._files.delete(key)

    def keys(self) -> tuple[str, ...]:
        """All keys, sorted."""
        spilled = () if self._files is None else self._files.keys()
        return tuple(sorted((*self._kept, *spilled)))

    def size(self, key: str) -> int:
        """Bytes that the checkpoint takes as a file; `CheckpointError` where it is missing."""
        return self._kept[key][0] if key in self._kept else self._spilled(key).size(key)

    def path(self, key: str) -> Path | None:
        """The file of the key where it has one, else None."""
        _checked(key)
        there = self._files is not None and self._files.exists(key)
        return self._files.path(key) if self._files is not None and there else None

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()

    def _spilled(self, key: str) -> CheckpointStore:
        _checked(key)
        if self._files is None:
            raise _missing(key, None)
        return self._files

    def _spill(self) -> CheckpointStore:
        if self._files is None:
            self._folder = tempfile.TemporaryDirectory(prefix="grasp-tune-")
            self._files = CheckpointStore(self._folder.name)
            logger.info("checkpoints beyond %g bytes go to %s", self._limit, self._folder.name)
        return self._files


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise InputError(
            f"checkpoint key {key!r} must be 1 to 120 of a-z, 0-9, '.', '-' and '_', without a "
            "dot in front"
        )
    return key


def _missing(key: str, path: Path | None) -> CheckpointError:
    where = "nothing was written under it" if path is None else f"there is no file {path}"
    return CheckpointError(f"checkpoint {key} is missing: {where}", key)


def _copy(tensors: Mapping[str, Tensor], meta: Meta) -> Checkpoint:
    # Contiguous and in main memory, as they would come from a file.
    own = {
        name: tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().clone()
        for name, tensor in sorted(tensors.items())
    }
    return Checkpoint(own, dict(meta))
