"""Where checkpoints are kept: a folder of files, or the memory of this process.

A checkpoint is named tensors and a few numbers or words, never an object: reading one cannot run
code. Which checkpoints are written and how long they stay is decided elsewhere.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.store import Checkpoint
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors
from grasp_tune.runtime.files import remove_stale, replace_atomically, retried, write_fault

SUFFIX = ".safetensors"

# No separator and no leading dot: a key cannot leave the folder, nor meet a temporary file.
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,119}")


class CheckpointStore:
    """A store in a folder: one safetensors file per key, whole or not there at all.

    Faults of the file system that pass are tried again; the others raise `CheckpointError`. The
    folder is made with the first checkpoint. Opening it removes what killed writers left.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if self.folder.is_dir():
            remove_stale(self.folder)

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Replace the file of the key atomically; on the disk when this returns."""
        path, content = self.path(key), Content.of(tensors, meta)
        try:
            retried(lambda: self.folder.mkdir(parents=True, exist_ok=True))
            retried(lambda: replace_atomically(path, content.write))
        except OSError as fault:
            # Without the key: there is nothing to make again.
            sentence = f"checkpoint {key}: {write_fault(path, fault, content.size)}"
            raise CheckpointError(sentence) from fault

    def read(self, key: str) -> Checkpoint:
        """What was written, its checksum verified; `CheckpointError` otherwise."""
        path = self.path(key)

        def load() -> Checkpoint:
            with open(path, "rb") as file:
                return Checkpoint(*read_tensors(file, os.fstat(file.fileno()).st_size))

        try:
            return retried(load)
        except FileNotFoundError:
            raise _missing(key, path) from None
        except OSError as fault:
            sentence = f"checkpoint {key}: {path} cannot be read: {fault.strerror or fault}"
            raise CheckpointError(sentence, key) from fault
        except DamagedFile as fault:
            raise CheckpointError(f"checkpoint {key}: {path} {fault}", key) from None

    def exists(self, key: str) -> bool:
        """Whether there is a file; only `read` says whether it is whole."""
        return self.path(key).is_file()

    def delete(self, key: str) -> None:
        """Remove the file of the key, if there is one."""
        path = self.path(key)
        try:
            retried(lambda: path.unlink(missing_ok=True))
        except OSError as fault:
            sentence = f"checkpoint {key}: {path} cannot be removed: {fault.strerror or fault}"
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


class MemoryStore:
    """A store in the memory of this process, for runs that keep nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, Checkpoint] = {}
        self._sizes: dict[str, int] = {}

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy under the key; refuses what a file could not hold, too."""
        size = Content.of(tensors, meta).size
        self._kept[_checked(key)] = _copy(tensors, meta)
        self._sizes[key] = size

    def read(self, key: str) -> Checkpoint:
        """A copy of what was written; `CheckpointError` where nothing was."""
        kept = self._found(key)
        return _copy(kept.tensors, kept.meta)

    def exists(self, key: str) -> bool:
        """Whether something was written under the key."""
        return _checked(key) in self._kept

    def delete(self, key: str) -> None:
        """Forget the key, if it is known."""
        self._kept.pop(_checked(key), None)
        self._sizes.pop(key, None)

    def keys(self) -> tuple[str, ...]:
        """All keys, sorted."""
        return tuple(sorted(self._kept))

    def size(self, key: str) -> int:
        """Bytes that the checkpoint would take as a file; `CheckpointError` where it is missing."""
        self._found(key)
        return self._sizes[key]

    def path(self, key: str) -> None:
        """None: there is no file."""
        _checked(key)

    def _found(self, key: str) -> Checkpoint:
        if (kept := self._kept.get(_checked(key))) is None:
            raise _missing(key, None)
        return kept


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
