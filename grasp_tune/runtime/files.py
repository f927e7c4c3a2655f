"""Atomic replacement of files, and JSON files written that way: complete or not there at all.

While a file is written, its temporary name contains the process, so that leftovers of a killed one
can be recognized. Links are never followed, and only regular files are read or replaced.
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
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from grasp_tune.core.errors import CheckpointError, DamagedState
from grasp_tune.core.records import fingerprint

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Temporary errors of a network file system or a busy machine.
TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY}
PAUSES = (0.02, 0.1, 0.5, 2.0)  # seconds between attempts: five attempts, 2.6 s in all
STATE_LIMIT = 64 * 2**20  # bytes; a larger state or result file is not ours

_BYTES_A_VALUE = 8  # our files have more bytes than this per value
_FEW = 1000  # this many values are always allowed
_DAY = 86_400.0  # seconds
_TEMPORARY = re.compile(r"\..+\.(?P<owner>[A-Za-z0-9-]+\.[0-9]+)\.[0-9a-f]{16}\.tmp")
try:  # a name for this machine and its namespace of process ids
    _boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    _MACHINE = fingerprint(_boot, os.stat("/proc/self/ns/pid").st_ino)
except OSError:  # not Linux
    _MACHINE = fingerprint(socket.gethostname())


def retried(action: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Return what `action` returns; after a temporary error it is tried again."""
    for pause in PAUSES:
        try:
            return action()
        except OSError as fault:
            if fault.errno not in TRANSIENT:
                raise
        sleep(pause)
    return action()


def in_words(
    action: Callable[[], T], what: object, doing: str = "written", needed: int = 0, key: str = ""
) -> T:
    """Return `retried(action)`; an `OSError` becomes a `CheckpointError`: `what` cannot be `doing`.

    needed: the file's size in bytes. key: the file's checkpoint, if it can be made again.
    """
    try:
        return retried(action)
    except OSError as fault:
        full = f"it needs {needed} bytes and the disk is full"
        ours = {errno.ELOOP: "it is a link", errno.ENOSPC: full, errno.EDQUOT: full}
        ours[errno.ENOENT] = "there is no such file or folder"
        why = ours.get(fault.errno or 0, fault.strerror or str(fault))
        raise CheckpointError(f"{what} cannot be {doing}: {why}", key or None) from fault


def replace_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, durable: bool = True
) -> None:
    """Replace `path` atomically by what `write` writes; if durable, sync it to the disk."""
    check_place(path)
    token = os.urandom(8).hex()  # because two threads may write the same path
    temporary = path.with_name(f".{path.name}.{process_name()}.{token}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)  # syncs the renaming itself
        except OSError as fault:
            if fault.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported everywhere
                raise
        finally:
            os.close(handle)


def remove_stale(folder: Path, *, alone: bool = False) -> None:
    """Remove the temporary files whose writer is gone, or that are a day old.

    alone: remove all of them, because the caller holds the folder's lock.
    """
    for path in folder.glob(".*.tmp"):
        if match := _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # another process may remove it first
                if alone or is_dead(match["owner"]) or time.time() - path.lstat().st_mtime > _DAY:
                    path.unlink()


def _sealed(body: bytes) -> bytes:
    """Return a JSON object with the checksum of its bytes as the first entry."""
    digest = hashlib.blake2b(body, digest_size=32).hexdigest()
    return b'{"blake2b":"%s",' % digest.encode() + body[1:]


_SEAL = len(_sealed(b"{"))  # bytes before the object's own content


def write_json_atomic(
    path: Path | str, obj: object, *, seal: bool = False, spare: bool = False
) -> None:
    """Replace `path` atomically by `obj` as JSON, in which NaN and infinities are allowed.

    seal: add a checksum; `obj` must be a non-empty dict.
    spare: keep the previous version of the file, see `previous`.
    """
    path, content = Path(path), json.dumps(obj, separators=(",", ":")).encode()
    content = _sealed(content) if seal else content

    def write() -> None:
        if spare:
            check_place(previous(path))
            with suppress(OSError):  # without hard links there is no previous version
                previous(path).unlink(missing_ok=True)
                os.link(path, previous(path))
        replace_atomically(path, lambda file: file.write(content))

    in_words(write, path, needed=len(content))


def read_json(path: Path | str, limit: int, *, seal: bool = False) -> Any:
    """Return the content of a JSON file; `CheckpointError` if it is missing, too long, or not JSON.

    limit: the largest size in bytes; the number of values is limited, too: each takes 60 bytes.
    seal: the file has a checksum; `DamagedState` if it does not match.
    """
    content = read_bytes(Path(path), limit)
    if seal:  # the bytes are verified before anything is parsed
        body = b"{" + content[_SEAL:]
        if content != _sealed(body):
            raise DamagedState(f"{path} is damaged: its checksum does not match its content")
        content = body
    if sum(map(content.count, (b"[", b"{", b","))) > max(_FEW, limit // _BYTES_A_VALUE):
        raise CheckpointError(f"{path} is damaged, or no JSON file of ours: too many values")
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path} is damaged, or no JSON file: {fault}") from None


# Writes JSON with a checksum, and keeps the previous version.
write_sealed = partial(write_json_atomic, seal=True, spare=True)


def read_sealed(path: Path, limit: int = STATE_LIMIT) -> Any:
    """Return what `write_sealed` wrote, or the previous version; `DamagedState` if both fail."""
    try:
        return read_json(path, limit, seal=True)
    except DamagedState as damaged:
        try:
            found = read_json(previous(path), limit, seal=True)
        except CheckpointError:
            raise damaged from None
        logger.warning("%s; going on from %s, saved just before", damaged, previous(path).name)
        return found


def previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a handle of a regular file; links and pipes are errors, and nothing blocks."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_regular(os.fstat(handle), path.name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_place(path: Path) -> None:
    """Raise `OSError` if `path` is a link, a pipe or a folder instead of one of our files."""
    with suppress(FileNotFoundError):
        _check_regular(os.lstat(path), path.name)


def remove(path: Path) -> None:
    check_place(path)
    path.unlink(missing_ok=True)


def _check_regular(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{name} is no regular file")


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of one of our files; `CheckpointError` if unreadable or above `limit`."""

    def read() -> bytes:
        with open(open_regular(path), "rb") as file:
            return file.read(limit + 1)  # bounded, because the file's size may be wrong or change

    content = in_words(read, path, "read")
    if len(content) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes, which is no file of ours")
    return content


def process_name() -> str:
    """Return a name for this process, with which `is_dead` can check whether it is alive."""
    return f"{_MACHINE}.{os.getpid()}"


def is_dead(process: str) -> bool:
    """Return whether the process with this name is known to be gone; False on other machines."""
    machine, _, number = process.partition(".")
    try:
        if machine == _MACHINE:
            os.kill(int(number), 0)
    except (OSError, OverflowError, ValueError) as fault:
        return isinstance(fault, ProcessLookupError)
    return False
