"""Stores for checkpoints: a folder of files, or anything else that keeps bytes by name.

A checkpoint consists of named tensors and a few numbers or strings, never of objects, so reading
one cannot run code.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.checkpoints import Checkpoint, Store
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime import files
from grasp_tune.runtime.lock import FolderLock

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
SHARED = "must be a shared folder (NFS) or a bucket (s3://..., gs://...) that all of them can reach"
SPOOL = 64 * 2**20  # bytes of a checkpoint that are kept in memory during an upload

# No separator and no leading dot, so that a key stays in the folder and is no temporary file.
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,119}")


def file_name(key: str) -> str:
    """Return the name of the key's file; raise `InputError` if the key is not valid."""
    if not _KEY.fullmatch(key):
        words = "must be 1 to 120 of a-z, 0-9, '.', '-' and '_', without a dot in front"
        raise InputError(f"checkpoint key {key!r} {words}")
    return f"{key}{SUFFIX}"


class BlobStore(ABC):
    """A store that keeps one blob per checkpoint, in the format of `engine.tensor_file`.

    Subclasses keep bytes by name; a blob becomes visible when it is complete. They raise `OSError`.

    sweep: the name of the sweep; checkpoints of other sweeps are refused.
    where: the place, for messages, as a prefix of the blob's name.
    """

    def __init__(self, sweep: str = "", where: str = "") -> None:
        self._sweep, self._where = sweep, where

    @abstractmethod
    def put_blob(self, name: str, content: Content) -> None: ...
    @abstractmethod
    def open_blob(self, name: str) -> BinaryIO: ...  # `FileNotFoundError` if there is none
    @abstractmethod
    def remove_blob(self, name: str) -> None: ...  # no error if there is none
    def blobs(self) -> Iterable[str]:
        return ()  # the names of all blobs, if they can be listed

    def name(self, key: str) -> str:
        return file_name(key)

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Replace the key's blob; it is saved permanently when this returns."""
        (name, what), content = self._blob(key), Content.of(tensors, meta, key, self._sweep)
        # Without the key in the error, because there is nothing to make again.
        files.in_words(lambda: self.put_blob(name, content), what, needed=content.size)

    def read(self, key: str) -> Checkpoint:
        name, what = self._blob(key)

        def load() -> Checkpoint:
            try:
                with self.open_blob(name) as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(0)
                    return Checkpoint(*read_tensors(file, size, key, self._sweep))
            except FileNotFoundError:
                missing = f"checkpoint {key} is missing: there is no {self._where}{name}"
                raise CheckpointError(missing, key) from None
            except DamagedFile as fault:
                raise CheckpointError(f"{what} {fault}", key) from None

        return files.in_words(load, what, "read", key=key)

    def exists(self, key: str) -> bool:
        name = self.name(key)
        with contextlib.suppress(OSError):
            self.open_blob(name).close()
            return True
        return False

    def delete(self, key: str) -> None:
        name, what = self._blob(key)
        files.in_words(lambda: self.remove_blob(name), what, "removed")

    def keys(self) -> tuple[str, ...]:
        found = (name.removesuffix(SUFFIX) for name in self.blobs() if name.endswith(SUFFIX))
        return tuple(sorted(key for key in found if _KEY.fullmatch(key)))

    def _blob(self, key: str) -> tuple[str, str]:
        """Return the name of the key's blob, and its description for error messages."""
        name = self.name(key)
        return name, f"checkpoint {key}: {self._where}{name}"


def discard(store: Store, keys: Iterable[str]) -> None:
    for key in keys:
        try:
            store.delete(key)
        except CheckpointError as error:  # the checkpoint only takes up space
            logger.warning("%s", error)


@contextlib.contextmanager
def spooled(content: Content) -> Iterator[BinaryIO]:
    """Yield the content as a file to upload, with at most `SPOOL` bytes in memory."""
    with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
        content.write(file)  # type: ignore[arg-type]
        file.seek(0)
        yield file  # type: ignore[misc]


class CheckpointStore(BlobStore):
    """A store in a folder: one safetensors file per key, complete or not there at all.

    folder: the folder of the files; it is created with the first checkpoint.
    lock: the lock of the sweep's folder, with the sweep's name; nothing is written without it.
    sweep: the sweep's name, if there is no lock.
    durable: whether checkpoints must survive a crash of the machine.
    """

    def __init__(
        self,
        folder: Path | str,
        lock: FolderLock | None = None,
        *,
        sweep: str = "",
        durable: bool = True,
    ) -> None:
        self.folder, self._lock, self._durable = Path(folder), lock, durable
        self._cleaned = False  # whether leftovers of killed writers were removed, before writing
        super().__init__(sweep if lock is None else lock.sweep, f"{self.folder}/")

    def path(self, key: str) -> Path:
        return self.folder / file_name(key)

    def put_blob(self, name: str, content: Content) -> None:
        if self._lock is not None:
            self._lock.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._cleaned:
            files.remove_stale(self.folder)
            self._cleaned = True
        files.replace_atomically(self.folder / name, content.write, durable=self._durable)

    def open_blob(self, name: str) -> BinaryIO:
        return open(files.open_regular(self.folder / name), "rb")

    def remove_blob(self, name: str) -> None:
        files.remove(self.folder / name)

    def blobs(self) -> Iterable[str]:
        return (path.name for path in self.folder.glob(f"*{SUFFIX}"))


class TemporaryStore(CheckpointStore):
    """A store in a temporary folder, which is removed with this object or with the process."""

    def __init__(self) -> None:
        folder, process = tempfile.mkdtemp(prefix="grasp-tune-"), os.getpid()
        super().__init__(folder, durable=False)
        self.close = weakref.finalize(self, _remove_own, folder, process)


def _remove_own(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked process
        shutil.rmtree(folder, ignore_errors=True)
