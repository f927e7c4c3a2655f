"""The lock of a sweep's folder: a marker file with the sweep's name, locked while it is in use.

The kernel releases the lock when the process ends, so a crash never leaves one behind. The file's
text says who holds it. The library `filelock` would empty the file, and knows neither its holder
nor whether the file in the folder is still the locked one.
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

from grasp_tune.core.errors import CheckpointError, InputError, LockedError, expect
from grasp_tune.runtime.files import in_words, open_regular, read_bytes

NAME = ".grasp_tune.json"
# The files of a sweep or a saved result. Without the marker they belong to somebody else.
_SWEEP = ("state.json", "state.previous.json", "state.damaged.json")
_CLOCK = ("clock.json", "clock.previous.json")
OURS = (*_SWEEP, *_CLOCK, "checkpoints", "calls", "result.json", "model.safetensors")
_SIZE = 256  # bytes of the marker; constant, so that it can be rewritten on a full disk
_BEGIN = b'{"sweep": '
_HOST = ascii(socket.gethostname())[1:-1][:80]  # ASCII, so that the marker keeps its size
_OPEN: set[int] = set()  # the markers that this process has locked


@dataclass(frozen=True, slots=True)
class FolderLock:
    """The lock of a driver on a folder, with the name of the sweep in it."""

    folder: Path
    sweep: str
    text: bytes  # the marker's content, unique to this driver
    crashed: bool = False  # the last holder died; its workers may still be alive for a moment

    @property
    def held(self) -> bool:
        """Whether the folder is still the one that was locked."""
        with contextlib.suppress(CheckpointError):  # the marker is gone or unreadable
            return read_bytes(self.folder / NAME, _SIZE) == self.text
        return False

    def check(self) -> None:
        """Raise `CheckpointError` if the lock is not held any more."""
        if not self.held:
            why = "was removed or taken over by another run: nothing more is written there"
            raise CheckpointError(f"{self.folder} {why}")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[FolderLock]:
    """Hold the lock of a folder; a new folder gets its marker first.

    Raises `LockedError` with the holder's name, and `InputError` if the folder has foreign files.
    """
    path = folder / NAME
    while True:
        file = in_words(lambda: _open_marker(folder), path, needed=_SIZE)
        _OPEN.add(file)
        try:
            found = os.pread(file, _SIZE + 1, 0)  # shorter after a crash or on a full disk
            ours = len(found) == _SIZE or _BEGIN.startswith(found[: len(_BEGIN)])
            words = f"{_SIZE} that a sweep wrote: it is somebody else's, and would be overwritten"
            expect(ours, f"out: bytes of {path}", len(found), words)
            _acquire(file, folder)
            held = _read(file)
            sweep = str(held.get("sweep") or os.urandom(16).hex())
            with contextlib.suppress(OSError):  # the lock works without its text
                os.pwrite(file, _record(sweep, os.getpid()), 0)
            lock = FolderLock(folder, sweep, os.pread(file, _SIZE, 0), bool(held.get("pid")))
            if not lock.held:
                continue  # the marker was replaced meanwhile: try the new one
            yield lock
            with contextlib.suppress(OSError):
                os.pwrite(file, _record(sweep, 0), 0)
            return
        finally:
            if file in _OPEN:  # not in a process that was forked meanwhile
                _OPEN.remove(file)
                os.close(file)


def _let_go() -> None:
    """Close the markers in a forked process, which would hold the locks after the driver's end."""
    while _OPEN:
        os.close(_OPEN.pop())


os.register_at_fork(after_in_child=_let_go)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder now."""
    try:
        with open(open_regular(folder / NAME), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as fault:
        return not isinstance(fault, FileNotFoundError)
    return False


def _open_marker(folder: Path) -> int:
    """Return a handle of the marker; it is created unless there are files with our names."""
    if not os.path.lexists(folder / NAME):
        if names := [name for name in OURS if os.path.lexists(folder / name)]:
            found = f"{', '.join(names)}, but no {NAME}: they may be somebody else's and would be"
            raise InputError(f"out: {folder} holds {found} overwritten; use an empty or new folder")
        with contextlib.suppress(FileExistsError), open(folder / NAME, "xb") as file:
            file.write(_record(os.urandom(16).hex(), 0))
            file.flush()
            os.fsync(file.fileno())  # without the marker, the folder's files would not be ours
    return open_regular(folder / NAME, os.O_RDWR)


def _acquire(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held = _read(file)
        who = f"process {held.get('pid') or '?'} on {str(held.get('host'))[:80]}"
        raise LockedError(f"{folder} is in use by {who}; wait for it to end") from None
    except OSError as fault:
        why = f"({fault.strerror}); use one on a file system with locks"
        raise LockedError(f"{folder} cannot be locked {why}") from None


def _record(sweep: str, process: int) -> bytes:
    holder = {"sweep": sweep, "pid": process, "host": _HOST, "since": time.time()}
    return json.dumps(holder).encode().ljust(_SIZE - 1) + b"\n"


def _read(file: int) -> dict[str, object]:
    """Return the content of the marker, empty if it is unreadable or not written yet."""
    try:
        found = json.loads(os.pread(file, _SIZE, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
