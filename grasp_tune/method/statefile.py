"""Files that are there whole or not at all: atomic replacement, and JSON written that way.

A reader, a second process or the next run after a crash sees the old content or the new one. A
temporary file stands beside its target while it is written; its name says who writes it, so that
what a killed process left can be told from what a living one is writing.
"""

import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from grasp_tune.method.errors import CheckpointError

Result = TypeVar("Result")

# Faults of a network file system or a busy machine, which pass.
TRANSIENT = frozenset(
    {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY}
)
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
PAUSES = (0.02, 0.1, 0.5, 2.0)  # seconds between attempts: five attempts, 2.6 s in all

_DAY = 86_400.0  # seconds
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "-"
_TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<owner>[0-9]+)\.[0-9a-f]{16}\.tmp")


def retried(action: Callable[[], Result], sleep: Callable[[float], None] = time.sleep) -> Result:
    """What `action` returns, tried again after a pause where the fault is one that passes.

    Raises the last `OSError` when the attempts are used up, any other error at once. A full disk
    does not pass.
    """
    for pause in PAUSES:
        try:
            return action()
        except OSError as fault:
            if fault.errno not in TRANSIENT:
                raise
        sleep(pause)
    return action()


def replace_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put what `write` writes in the place of `path`, whole, and on the disk before it returns.

    Whatever goes wrong, an interrupt included, `path` keeps its old content and the temporary file
    is removed.
    """
    token = os.urandom(8).hex()  # two threads may write the same path
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{token}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def remove_stale(folder: Path) -> int:
    """How many temporary files were removed: those whose writer is gone, or a day old.

    A file of another machine's process, or of a living one, is left alone until it is a day old.
    """
    removed = 0
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        with suppress(OSError):  # another process may remove it first
            ours = match["host"] == _HOST
            if (
                ours and not _alive(int(match["owner"]))
            ) or time.time() - path.stat().st_mtime > _DAY:
                path.unlink()
                removed += 1
    return removed


def write_json_atomic(path: Path | str, obj: object) -> None:
    """Put `obj` as JSON in the place of `path`, whole. NaN and infinities are written as such.

    Raises `CheckpointError` where the file cannot be written.
    """
    path = Path(path)
    content = json.dumps(obj, separators=(",", ":")).encode()
    try:
        retried(lambda: replace_atomically(path, lambda file: file.write(content)))
    except OSError as fault:
        raise CheckpointError(write_fault(path, fault, len(content))) from fault


def read_json(path: Path | str, limit: int) -> Any:
    """What the JSON file `path` holds.

    Raises `CheckpointError` where it is missing, longer than `limit` bytes, or not JSON.
    """
    path = Path(path)

    def read() -> bytes:
        with open(path, "rb") as file:
            return file.read(limit + 1)  # the size may lie, or change: the reading is bounded

    try:
        content = retried(read)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {fault.strerror or fault}") from fault
    if len(content) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes, which is no file of ours")
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path} is damaged, or no JSON file: {fault}") from None


def write_fault(path: Path, fault: OSError, needed: int) -> str:
    """The sentence for a write that failed; `needed` is the size of the file in bytes."""
    if fault.errno in FULL:
        return f"{path} cannot be written: it needs {needed} bytes and the disk is full"
    return f"{path} cannot be written: {fault.strerror or fault}"


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable, where the system lets a folder be opened."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as fault:
        if fault.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def _alive(process: int) -> bool:
    """Whether the process lives on this machine; yes where that cannot be known."""
    if os.name == "nt":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
