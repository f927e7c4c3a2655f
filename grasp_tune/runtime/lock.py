"""The lock of a sweep's folder: a marker file that names the sweep, locked while it is in use.

The kernel releases the lock when the process ends, so a crash never leaves one behind. The text in
the file says who holds it. The library `filelock` would empty the file, and does not know its
holder, nor whether the file in the folder is still the one that was locked.
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
# What a sweep or a saved result writes. In a folder without the marker they are somebody else's.
_SWEEP = ("state.json", "state.previous.json", "state.damaged.json")
_CLOCK = ("clock.json", "clock.previous.json")
OURS = (*_SWEEP, *_CLOCK, "checkpoints", "calls", "result.json", "model.safetensors")
_SIZE = 256  # bytes of the marker: always as many, so that rewriting it needs no room on the disk
_BEGIN = b'{"sweep": '
_HOST = ascii(socket.gethostname())[1:-1][:80]  # a byte for each letter: the marker has its size
_OPEN: set[int] = set()  # the markers that this process has locked


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A folder that a driver holds, and the name of the sweep in it."""

    folder: Path
    sweep: str
    text: bytes  # of the marker, which no other driver would write
    crashed: bool = False  # the last holder died: its workers may live for another moment

    @property
    def held(self) -> bool:
        """Whether the folder is still the one that was locked."""
        with contextlib.suppress(CheckpointError):  # it is gone, or no longer ours to read
            return read_bytes(self.folder / NAME, _SIZE) == self.text
        return False

    def check(self) -> None:
        """Raise `CheckpointError` where it is not."""
        if not self.held:
            why = "was removed or taken over by another run: nothing more is written there"
            raise CheckpointError(f"{self.folder} {why}")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[FolderLock]:
    """Hold the folder for this process, claiming it first where nobody has.

    Raises `LockedError` naming who has it, `InputError` where it holds files that are not ours.
    """
    path = folder / NAME
    while True:
        file = in_words(lambda: _open_marker(folder), path, needed=_SIZE)
        _OPEN.add(file)
        try:
            found = os.pread(file, _SIZE + 1, 0)  # shorter where a crash or a full disk cut it
            ours = len(found) == _SIZE or _BEGIN.startswith(found[: len(_BEGIN)])
            words = f"{_SIZE} that a sweep wrote: it is somebody else's, and would be overwritten"
            expect(ours, f"out: bytes of {path}", len(found), words)
            _acquire(file, folder)
            held = _read(file)
            sweep = str(held.get("sweep") or os.urandom(16).hex())
            with contextlib.suppress(OSError):  # the lock holds without its text
                os.pwrite(file, _record(sweep, os.getpid()), 0)
            lock = FolderLock(folder, sweep, os.pread(file, _SIZE, 0), bool(held.get("pid")))
            if not lock.held:
                continue  # it was replaced meanwhile: there is another now
            yield lock
            with contextlib.suppress(OSError):
                os.pwrite(file, _record(sweep, 0), 0)
            return
        finally:
            if file in _OPEN:  # else this is a forked process by now
                _OPEN.remove(file)
                os.close(file)


def _let_go() -> None:
    """Close the markers in a forked process: one that outlives the driver would hold them."""
    while _OPEN:
        os.close(_OPEN.pop())


os.register_at_fork(after_in_child=_let_go)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder now: a run is under way."""
    try:
        with open(open_regular(folder / NAME), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as fault:
        return not isinstance(fault, FileNotFoundError)
    return False


def _open_marker(folder: Path) -> int:
    """Return a handle of the marker, made where no files of our names are there without one."""
    if not os.path.lexists(folder / NAME):
        if names := [name for name in OURS if os.path.lexists(folder / name)]:
            found = f"{', '.join(names)}, but no {NAME}: they may be somebody else's and would be"
            raise InputError(f"out: {folder} holds {found} overwritten; use an empty or new folder")
        with contextlib.suppress(FileExistsError), open(folder / NAME, "xb") as file:
            file.write(_record(os.urandom(16).hex(), 0))
            file.flush()
            os.fsync(file.fileno())  # without its name, what is in the folder is nobody's
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
    """Return what the marker says; nothing where it says nothing (yet)."""
    try:
        found = json.loads(os.pread(file, _SIZE, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
