"""Where checkpoints are kept: a folder of files, or whatever else keeps bytes by name.

A checkpoint is named tensors and a few numbers or words, never an object: reading one cannot run
code. Which checkpoints are written and how long they stay is decided elsewhere.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.checkpoints import Checkpoint, Store
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime.files import (
    in_words,
    open_regular,
    remove,
    remove_stale,
    replace_atomically,
)
from grasp_tune.runtime.lock import FolderLock

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
SPOOL = 64 * 2**20  # bytes of a checkpoint that are kept in memory on their way to a blob

# No separator and no leading dot: a key cannot leave the folder, nor meet a temporary file.
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,119}")


class Blobs(Protocol):
    """Whoever keeps bytes by name and shows what is written when it is complete.

    What fails is an `OSError`, and a `FileNotFoundError` where `open` finds nothing; to `remove`
    what is not there is no fault. `names` are those that can be listed.
    """

    def write(self, name: str, content: Content) -> None: ...
    def open(self, name: str) -> BinaryIO: ...
    def exists(self, name: str) -> bool: ...
    def remove(self, name: str) -> None: ...
    def names(self) -> Iterable[str]: ...


def file_name(key: str) -> str:
    """Return the name of the key's file; `InputError` for what cannot be a key."""
    if not _KEY.fullmatch(key):
        raise InputError(
            f"checkpoint key {key!r} must be 1 to 120 of a-z, 0-9, '.', '-' and '_', without a "
            "dot in front"
        )
    return f"{key}{SUFFIX}"


class BlobStore:
    """Checkpoints as blobs, one for each key, in the format of `engine.tensor_file`.

    Faults that pass are tried again; the others raise `CheckpointError`.

    blobs: where they are.
    name: the name of a key's blob; by default that of a file.
    sweep: whose checkpoints these are; those of another sweep are refused.
    where: the place in words, in front of the name.
    """

    def __init__(
        self, blobs: Blobs, name: Callable[[str], str] = file_name, sweep: str = "", where: str = ""
    ) -> None:
        self._blobs, self._name, self._sweep, self._where = blobs, name, sweep, where

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Replace the blob of the key; kept for good when this returns."""
        (name, what), content = self._blob(key), Content.of(tensors, meta, key, self._sweep)
        # The error is without the key: there is nothing to make again.
        in_words(lambda: self._blobs.write(name, content), what, needed=content.size)

    def read(self, key: str) -> Checkpoint:
        name, what = self._blob(key)

        def load() -> Checkpoint:
            try:
                with self._blobs.open(name) as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(0)
                    return Checkpoint(*read_tensors(file, size, key, self._sweep))
            except FileNotFoundError:
                missing = f"checkpoint {key} is missing: there is no {self._where}{name}"
                raise CheckpointError(missing, key) from None
            except DamagedFile as fault:
                raise CheckpointError(f"{what} {fault}", key) from None

        return in_words(load, what, "read", key=key)

    def exists(self, key: str) -> bool:
        return self._blobs.exists(self._name(key))

    def delete(self, key: str) -> None:
        name, what = self._blob(key)
        in_words(lambda: self._blobs.remove(name), what, "removed")

    def keys(self) -> tuple[str, ...]:
        found = (name.removesuffix(SUFFIX) for name in self._blobs.names() if name.endswith(SUFFIX))
        return tuple(sorted(key for key in found if _KEY.fullmatch(key)))

    def _blob(self, key: str) -> tuple[str, str]:
        """Return the name of the key's blob, and how it is called in errors."""
        name = self._name(key)
        return name, f"checkpoint {key}: {self._where}{name}"


def discard(store: Store, keys: Iterable[str]) -> None:
    """Remove checkpoints that nobody will read again."""
    for key in keys:
        try:
            store.delete(key)
        except CheckpointError as error:  # it takes room and does no other harm
            logger.warning("%s", error)


@contextlib.contextmanager
def spooled(content: Content) -> Iterator[BinaryIO]:
    """Give the content's bytes as a file to upload, of which few are held in memory."""
    with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
        content.write(file)  # type: ignore[arg-type]
        file.seek(0)
        yield file  # type: ignore[misc]


class FolderBlobs:
    """Files of a folder, which is made with the first of them; see `CheckpointStore`."""

    def __init__(self, folder: Path, lock: FolderLock | None, durable: bool) -> None:
        self._folder, self._lock, self._durable = folder, lock, durable
        self._cleaned = False  # of what killed writers left: not by those who only read

    def write(self, name: str, content: Content) -> None:
        if self._lock is not None:
            self._lock.check()
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._cleaned:
            remove_stale(self._folder)
            self._cleaned = True
        replace_atomically(self._folder / name, content.write, durable=self._durable)

    def open(self, name: str) -> BinaryIO:
        return open(open_regular(self._folder / name), "rb")

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def remove(self, name: str) -> None:
        remove(self._folder / name)

    def names(self) -> Iterable[str]:
        return (path.name for path in self._folder.glob(f"*{SUFFIX}"))


class CheckpointStore(BlobStore):
    """A store in a folder: one safetensors file per key, whole or not there at all.

    folder: where the files are; made with the first checkpoint.
    lock: the sweep's folder. Every file then carries the sweep's name, files of other sweeps are
        refused, and nothing is written once the folder is another's.
    sweep: the sweep's name, where there is no lock.
    durable: whether checkpoints must outlive the machine's going down.
    """

    def __init__(
        self,
        folder: Path | str,
        lock: FolderLock | None = None,
        *,
        sweep: str = "",
        durable: bool = True,
    ) -> None:
        self.folder, sweep = Path(folder), sweep if lock is None else lock.sweep
        blobs = FolderBlobs(self.folder, lock, durable)
        super().__init__(blobs, sweep=sweep, where=f"{self.folder}/")

    def path(self, key: str) -> Path:
        """Return the file of the key, there or not."""
        return self.folder / file_name(key)


class TemporaryStore(CheckpointStore):
    """A store for runs that keep nothing: its folder goes with it, or with this process."""

    def __init__(self) -> None:
        folder, process = tempfile.mkdtemp(prefix="grasp-tune-"), os.getpid()
        super().__init__(folder, durable=False)
        self.close = weakref.finalize(self, _remove_own, folder, process)


def _remove_own(folder: str, process: int) -> None:
    if os.getpid() == process:  # else it was forked
        shutil.rmtree(folder, ignore_errors=True)
