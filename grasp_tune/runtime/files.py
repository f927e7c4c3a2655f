"""Files that are there whole or not at all: atomic replacement, and JSON written that way.

A reader, a second process or the next run after a crash sees the old content or the new one. A
temporary file stands beside its target while it is written; its name says who writes it, so that
what a killed process left can be told from what a living one is writing. No link is ever followed,
and what is no regular file is neither read nor replaced.
"""

import errno
import hashlib
import json
import logging
import os
import re
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from grasp_tune.core.errors import CheckpointError, DamagedState

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Faults of a network file system or a busy machine, which pass.
TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY}
PAUSES = (0.02, 0.1, 0.5, 2.0)  # seconds between attempts: five attempts, 2.6 s in all
STATE_LIMIT = 64 * 2**20  # bytes; a state or result file larger than this is not ours

_SEAL, _SEALED = b'{"blake2b":"', b'",'  # the checksum stands between them
_DIGEST = 64  # characters of the checksum
_BYTES_A_VALUE = 8  # our files have more than this for each of their values
_FEW = 1000  # values that no limit forbids
_DAY = 86_400.0  # seconds
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "-"
_TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<owner>[0-9]+)\.[0-9a-f]{16}\.tmp")


def retried(action: Callable[[], Result], sleep: Callable[[float], None] = time.sleep) -> Result:
    """Return what `action` returns, tried again after a pause where the fault is one that passes.

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
    with suppress(FileNotFoundError):
        _check_regular(os.lstat(path))
    temporary = _temporary(path)
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
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the renaming itself
    except OSError as fault:
        if fault.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def _temporary(path: Path) -> Path:
    token = os.urandom(8).hex()  # two threads may write the same path
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{token}.tmp")


def remove_stale(folder: Path, *, alone: bool = False) -> int:
    """Return how many temporary files were removed: those whose writer is gone, or a day old.

    A file of another machine's process, or of a living one, is left alone until it is a day old.
    alone: nobody else writes here, as whoever holds the folder's lock knows; then all of them go.
        A process number may be in use again, the more so in a container.
    """
    removed = 0
    for path in folder.glob(".*.tmp"):
        if (match := _TEMPORARY.fullmatch(path.name)) is None:
            continue
        with suppress(OSError):  # another process may remove it first
            gone = match["host"] == _HOST and not alive(int(match["owner"]))
            if alone or gone or time.time() - path.lstat().st_mtime > _DAY:
                path.unlink()
                removed += 1
    return removed


def write_json_atomic(
    path: Path | str, obj: object, *, seal: bool = False, spare: bool = False
) -> None:
    """Put `obj` as JSON in the place of `path`, whole. NaN and infinities are written as such.

    seal: with a checksum; `obj` must be a dict that is not empty.
    spare: the file before the last stays beside it, see `previous`.
    Raises `CheckpointError` where the file cannot be written.
    """
    path, content = Path(path), json.dumps(obj, separators=(",", ":")).encode()
    if seal:
        content = _SEAL + _digest(content) + _SEALED + content[1:]

    def write() -> None:
        if spare:
            _keep_previous(path)
        replace_atomically(path, lambda file: file.write(content))

    try:
        retried(write)
    except OSError as fault:
        raise CheckpointError(write_fault(path, fault, len(content))) from fault


def read_json(path: Path | str, limit: int, *, seal: bool = False) -> Any:
    """Return what the JSON file `path` holds.

    limit: bytes beyond which it is no file of ours.
    seal: it was written with a checksum, which is verified; `DamagedState` where it does not match.

    Raises `CheckpointError` where it is missing, too long, or not JSON. A value takes some 60 bytes
    of memory, so a file of nothing but brackets is refused by their number.
    """
    path = Path(path)
    content = read_bytes(path, limit)
    if seal:
        digest = content[len(_SEAL) : len(_SEAL) + _DIGEST]
        body = b"{" + content[len(_SEAL) + _DIGEST + len(_SEALED) :]
        # The checksum is over the bytes as they stand, before anything is parsed.
        if content != _SEAL + digest + _SEALED + body[1:] or digest != _digest(body):
            raise DamagedState(f"{path} is damaged: its checksum does not match its content")
        content = body
    if sum(content.count(mark) for mark in (b"[", b"{", b",")) > max(_FEW, limit // _BYTES_A_VALUE):
        raise CheckpointError(f"{path} is damaged, or no JSON file of ours: too many values")
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path} is damaged, or no JSON file: {fault}") from None


def write_sealed(path: Path, obj: object) -> None:
    """Put `obj` as JSON with a checksum in the place of `path`; the file before stays beside it."""
    write_json_atomic(path, obj, seal=True, spare=True)


def read_sealed(path: Path, limit: int) -> Any:
    """Return what `write_sealed` wrote last; where that file is damaged, what it wrote before.

    Raises `DamagedState` where both are damaged, `CheckpointError` where `path` cannot be read.
    """
    try:
        return read_json(path, limit, seal=True)
    except DamagedState as damaged:
        before = previous(path)
        try:
            found = read_json(before, limit, seal=True)
        except CheckpointError:
            raise damaged from None
        logger.warning("%s; going on from %s, which was saved just before", damaged, before.name)
        return found


def previous(path: Path) -> Path:
    """Return where `write_sealed` keeps the file before the last."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _keep_previous(path: Path) -> None:
    """Give the file a second name, so that it outlives its replacement.

    Where the file system knows no links there is no spare, and nothing else changes.
    """
    spare = _temporary(path)
    with suppress(OSError):
        os.link(path, spare)
        os.replace(spare, previous(path))
    with suppress(OSError):
        spare.unlink()  # still there where both names meant the same file already


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST // 2).hexdigest().encode()


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a handle of a file of ours: no link is followed, a pipe is an error, not a wait."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_regular(os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_regular(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a file of ours; `CheckpointError` where it cannot be read or has more than `limit`."""

    def read() -> bytes:
        with open(open_regular(path), "rb") as file:
            return file.read(limit + 1)  # the size may lie, or change: the reading is bounded

    try:
        content = retried(read)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {reason(fault)}") from fault
    if len(content) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes, which is no file of ours")
    return content


def remove(path: Path) -> None:
    """Remove a file, if there is one; `CheckpointError` where that fails."""
    try:
        retried(lambda: path.unlink(missing_ok=True))
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be removed: {reason(fault)}") from fault


def reason(fault: OSError) -> str:
    """Return why the system refused, in its words or better ones."""
    return "it is a link" if fault.errno == errno.ELOOP else fault.strerror or str(fault)


def write_fault(path: Path, fault: OSError, needed: int) -> str:
    """Return the sentence for a write that failed; `needed` is the size of the file in bytes."""
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} cannot be written: it needs {needed} bytes and the disk is full"
    return f"{path} cannot be written: {reason(fault)}"


def alive(process: int) -> bool:
    """Return whether the process lives on this machine; yes where that cannot be known."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
