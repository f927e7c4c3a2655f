"""Whose folder it is: a marker file that owns it, names its sweep, and is locked while it is used.

The lock is the kernel's: it goes with the process and the workers that it forked, so one left by a
crash is never in the way. The text in the file holds the sweep's name, and tells people who holds
the lock. The library `filelock` knows neither the holder nor whether the file that it locked is
still the one in the folder, which is why this is not it.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grasp_tune.core.errors import CheckpointError, InputError, LockedError
from grasp_tune.runtime.files import alive, open_regular, replace_atomically, write_fault

NAME = ".grasp_tune.json"
# What a sweep or a saved result writes. In a folder without the marker they are somebody else's.
OURS = (
    "state.json",
    "state.previous.json",
    "state.damaged.json",
    "checkpoints",
    "calls",
    "clock.json",
    "result.json",
    "model.safetensors",
)
LOOKS = 30  # at a lock whose holder is gone or not yet named, before it is taken over
PAUSE = 0.1  # seconds between two looks
_SIZE = 256  # bytes of the marker: always as many, so that rewriting it needs no room on the disk
_HOST = socket.gethostname()[:80]

Identity = tuple[int, int] | None  # device and inode of a file; None: there is none


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A folder that this process holds, and the name of the sweep in it."""

    folder: Path
    sweep: str
    identity: Identity  # of the marker, which stays open: no other file can have it

    def __reduce__(self) -> tuple[object, ...]:
        return _sent, (self.folder, self.sweep, self.identity, _HOST)

    def check(self) -> None:
        """Raise `CheckpointError` where the folder is no longer the one that was locked."""
        if _identity(self.folder / NAME) != self.identity:
            raise CheckpointError(
                f"{self.folder} was removed or taken over by another run while this one used it: "
                "nothing more is written there"
            )


def _sent(folder: Path, sweep: str, identity: Identity, host: str) -> FolderLock:
    """Return a lock that another process holds; a device has another number on another machine."""
    return FolderLock(folder, sweep, identity if host == _HOST else _identity(folder / NAME))


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[FolderLock]:
    """Hold the folder for this process, claiming it first where nobody has.

    Raises `LockedError` naming who has it, `InputError` where it holds files that are not ours.
    """
    path = folder / NAME
    while True:
        _claim(folder)
        try:
            file = open_regular(path, os.O_RDWR)
        except OSError as fault:
            raise CheckpointError(write_fault(path, fault, _SIZE)) from fault
        try:
            if _acquire(file, path) and _identity(path) == _identity(file):
                break
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was replaced meanwhile, or its holder is gone: there is another now
    try:
        sweep = str(_read(file).get("sweep") or os.urandom(16).hex())
        with contextlib.suppress(OSError):  # the lock holds without its text
            os.pwrite(file, _record(sweep, os.getpid()), 0)
        yield FolderLock(folder, sweep, _identity(file))
        with contextlib.suppress(OSError):
            os.pwrite(file, _record(sweep, 0), 0)
    finally:
        os.close(file)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder now: a run is under way."""
    try:
        file = open_regular(folder / NAME)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _claim(folder: Path) -> None:
    """Mark the folder as ours; `InputError` where it holds files of our names without a mark."""
    path = folder / NAME
    if os.path.lexists(path):
        return
    if names := [name for name in OURS if os.path.lexists(folder / name)]:
        raise InputError(
            f"out: {folder} holds {', '.join(names)}, but no {NAME}: they may be somebody else's "
            "and would be overwritten; use an empty or new folder"
        )
    try:
        with open(path, "xb") as file:
            file.write(_record(os.urandom(16).hex(), 0))
    except FileExistsError:
        pass  # another process was faster
    except OSError as fault:
        raise CheckpointError(write_fault(path, fault, _SIZE)) from fault


def _acquire(file: int, path: Path) -> bool:
    """Take the lock; False where it is held by what a dead process left, and was set aside.

    The workers of a dead driver end within a second. What lives on holds a marker that is no
    longer the folder's, and writes nothing more.
    """
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            held = _read(file)
            process, host = held.get("pid"), held.get("host")
            dead = host == _HOST and isinstance(process, int) and not alive(process)
            if process and not dead:
                raise LockedError(
                    f"{path.parent} is in use by process {process} on {str(host)[:80]}; wait for "
                    "it to end"
                ) from None
        except OSError as fault:
            raise LockedError(
                f"{path} cannot be locked ({fault.strerror}); use a folder on a file system with "
                "locks"
            ) from None
        time.sleep(PAUSE)
    if not process:
        raise LockedError(f"{path.parent} is in use by a process that has not said its name")
    if _identity(path) == _identity(file):  # else another process was faster
        replace_atomically(path, lambda fresh: fresh.write(_record(str(held.get("sweep")), 0)))
    return False


def _identity(file: Path | int) -> Identity:
    try:
        found = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _record(sweep: str, process: int) -> bytes:
    holder = {"sweep": sweep, "pid": process, "host": _HOST, "since": int(time.time())}
    return json.dumps(holder).encode().ljust(_SIZE - 1) + b"\n"


def _read(file: int) -> dict[str, object]:
    """Return what the marker says; nothing where it says nothing (yet)."""
    try:
        found = json.loads(os.pread(file, _SIZE, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
