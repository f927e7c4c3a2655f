"""One driver for one folder: a lock that a crash releases and that names its holder."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grasp_tune.core.errors import CheckpointError, LockedError
from grasp_tune.runtime.files import alive, write_fault

NAME = "lock"
LOOKS = 100  # at a lock whose holder is gone or not yet named, before giving up
PAUSE = 0.1  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the lock."""

    process: int
    host: str

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended."""
        return self.host == socket.gethostname() and not alive(self.process)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; raise `LockedError` naming who has it otherwise.

    The kernel drops the lock with the process and the workers that it forked, so one left by a
    crash is never in the way; the text in the file only tells people who holds it.
    """
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as fault:
        raise CheckpointError(write_fault(path, fault, 100)) from fault
    try:
        _acquire(file, path)
        text = json.dumps(
            {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
        )
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its text
            os.ftruncate(file, 0)
            os.pwrite(file, text.encode(), 0)
        yield
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _acquire(file: int, path: Path) -> None:
    """Take the lock; wait for the workers of a dead holder, which end within a second."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            if holder is not None and not holder.gone:
                raise LockedError(
                    f"{path.parent} is in use by process {holder.process} on {holder.host}; wait "
                    "for it to end"
                ) from None
        except OSError as fault:
            raise LockedError(
                f"{path} cannot be locked ({fault.strerror}); use a folder on a file system with "
                "locks"
            ) from None
        else:
            return
        time.sleep(PAUSE)
    raise LockedError(f"{path.parent} is in use by what another process left running")


def _holder(path: Path) -> Holder | None:
    """Return who says to hold the lock, None where nobody does (yet)."""
    try:
        with path.open() as file:
            found = json.loads(file.read(4096))
        return Holder(int(found["pid"]), str(found["host"])[:80])
    except (OSError, ValueError, KeyError, TypeError):
        return None
