"""Where checkpoints are kept: a folder of files, the memory of this process, or a store of blobs.

A checkpoint is named tensors and a few numbers or words, never an object: reading one cannot run
code. Which checkpoints are written and how long they stay is decided elsewhere.
"""

import io
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.checkpoints import Checkpoint
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime.files import (
    open_regular,
    reason,
    remove,
    remove_stale,
    replace_atomically,
    retried,
    write_fault,
)
from grasp_tune.runtime.lock import FolderLock

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
SPOOL = 64 * 2**20  # bytes of a checkpoint that are kept in memory on their way to a blob

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
        return read_checkpoint(self.path(key), key, self._sweep)

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def delete(self, key: str) -> None:
        remove(self.path(key))

    def keys(self) -> tuple[str, ...]:
        return _keys(path.name for path in self.folder.glob(f"*{SUFFIX}"))

    def path(self, key: str) -> Path:
        """Return the file of the key, there or not."""
        return self.folder / file_name(key)


def read_checkpoint(path: Path, key: str, sweep: str = "") -> Checkpoint:
    """Return what a store wrote to this file under this key, for this sweep."""

    def load() -> Checkpoint:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return Checkpoint(*read_tensors(file, size, key, sweep))

    return _loaded(load, key, f"{path}")


class MemoryStore:
    """A store in the memory of this process, for runs that keep nothing.

    limit: bytes to hold in memory. A sweep may leave a thousand candidates; those beyond the limit
        go to a temporary folder, which `close` removes.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._kept: dict[str, tuple[int, Checkpoint]] = {}  # with its size as a file
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: CheckpointStore | None = None

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        self.delete(key)
        size = Content.of(tensors, meta, key).size  # refuses what a file could not hold
        if sum(self.sizes().values()) + size <= self._limit:
            self._kept[key] = size, _copy(tensors, meta)
            return
        if self._files is None:
            self._folder = tempfile.TemporaryDirectory(prefix="grasp-tune-")
            self._files = CheckpointStore(self._folder.name)
            logger.info("checkpoints beyond %g bytes go to %s", self._limit, self._folder.name)
        self._files.write(key, tensors, meta)

    def read(self, key: str) -> Checkpoint:
        if key in self._kept:
            kept = self._kept[key][1]
            return _copy(kept.tensors, kept.meta)
        file_name(key)
        if self._files is None:
            raise CheckpointError(f"checkpoint {key} is missing: nothing was written", key)
        return self._files.read(key)

    def exists(self, key: str) -> bool:
        file_name(key)
        return key in self.keys()

    def delete(self, key: str) -> None:
        file_name(key)
        if self._kept.pop(key, None) is None and self._files is not None:
            self._files.delete(key)

    def keys(self) -> tuple[str, ...]:
        return tuple(sorted((*self._kept, *(self._files.keys() if self._files else ()))))

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each checkpoint in memory would take as a file."""
        return {key: size for key, (size, _) in self._kept.items()}

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()


class Blobs(Protocol):
    """Whoever keeps bytes by name and shows an upload when it is complete, such as a bucket."""

    def write(self, name: str, content: BinaryIO) -> None:
        """Keep the bytes; `OSError` where that fails."""

    def read(self, name: str) -> bytes:
        """Return the bytes; `FileNotFoundError` where there are none, else `OSError`."""

    def exists(self, name: str) -> bool:
        """Return whether there are bytes of this name."""

    def remove(self, name: str) -> None:
        """Remove the bytes of a name that exists."""

    def names(self) -> Iterable[str]:
        """Return the names, as far as they can be listed."""


class BlobStore:
    """A store over blobs: the same bytes as `CheckpointStore` writes, one blob per key.

    blobs: where they are.
    name: the name of a key's blob.
    sweep: whose checkpoints these are; those of another sweep are refused.
    """

    def __init__(
        self, blobs: Blobs, name: Callable[[str], str] | None = None, sweep: str = ""
    ) -> None:
        self._blobs, self._name, self._sweep = blobs, name or file_name, sweep

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        name = self._name(key)
        with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
            Content.of(tensors, meta, key, self._sweep).write(file)  # type: ignore[arg-type]
            file.seek(0)
            try:
                self._blobs.write(name, file)  # type: ignore[arg-type]
            except OSError as fault:  # without the key, as above
                sentence = f"checkpoint {key}: {name} cannot be written: {fault}"
                raise CheckpointError(sentence) from fault

    def read(self, key: str) -> Checkpoint:
        name = self._name(key)

        def load() -> Checkpoint:
            content = self._blobs.read(name)  # streams have no size: all of it is read at once
            return Checkpoint(*read_tensors(io.BytesIO(content), len(content), key, self._sweep))

        return _loaded(load, key, name)

    def exists(self, key: str) -> bool:
        return self._blobs.exists(self._name(key))

    def delete(self, key: str) -> None:
        if self.exists(key):
            self._blobs.remove(self._name(key))

    def keys(self) -> tuple[str, ...]:
        return _keys(self._blobs.names())


def file_name(key: str) -> str:
    """Return the name of the key's file; `InputError` for what cannot be a key."""
    if not _KEY.fullmatch(key):
        raise InputError(
            f"checkpoint key {key!r} must be 1 to 120 of a-z, 0-9, '.', '-' and '_', without a "
            "dot in front"
        )
    return f"{key}{SUFFIX}"


def _keys(names: Iterable[str]) -> tuple[str, ...]:
    found = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return tuple(sorted(key for key in found if _KEY.fullmatch(key)))


def _loaded(load: Callable[[], Checkpoint], key: str, where: str) -> Checkpoint:
    """Return what `load` reads; what goes wrong is a sentence that names the key and the place."""
    try:
        return retried(load)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {key} is missing: there is no {where}", key) from None
    except OSError as fault:
        sentence = f"checkpoint {key}: {where} cannot be read: {reason(fault)}"
        raise CheckpointError(sentence, key) from fault
    except DamagedFile as fault:
        raise CheckpointError(f"checkpoint {key}: {where} {fault}", key) from None


def _copy(tensors: Mapping[str, Tensor], meta: Meta) -> Checkpoint:
    # Contiguous and in main memory, as they would come from a file.
    own = {
        name: tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().clone()
        for name, tensor in sorted(tensors.items())
    }
    return Checkpoint(own, dict(meta))
