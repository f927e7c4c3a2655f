"""One driver for one folder: a lock that a crash releases and that names its holder."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from grasp_tune.method.errors import LockedError

NAME = "lock"


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; raise `LockedError` naming who has it otherwise.

    The kernel drops the lock with its process, so one left by a crash is never in the way; the
    text in the file only tells people who holds it.
    """
    path = folder / NAME
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedError(
                f"{folder} is in use by {_holder(path)}; wait for it to end"
            ) from None
        text = json.dumps(
            {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
        )
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
        yield
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def _holder(path: Path) -> str:
    try:
        with path.open() as file:
            found = json.loads(file.read(4096))
        return f"process {int(found['pid'])} on {str(found['host'])[:80]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
