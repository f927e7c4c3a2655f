"""Files that are there whole or not at all: atomic replacement, and JSON written that way.

A temporary file stands beside its target while it is written; its name says who writes it, so that
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
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from grasp_tune.core.errors import CheckpointError, DamagedState
from grasp_tune.core.records import fingerprint

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Faults of a network file system or a busy machine, which pass.
TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY}
PAUSES = (0.02, 0.1, 0.5, 2.0)  # seconds between attempts: five attempts, 2.6 s in all
STATE_LIMIT = 64 * 2**20  # bytes; a state or result file larger than this is not ours

_BYTES_A_VALUE = 8  # our files have more than this for each of their values
_FEW = 1000  # values that no limit forbids
_DAY = 86_400.0  # seconds
_TEMPORARY = re.compile(r"\..+\.(?P<owner>[A-Za-z0-9-]+\.[0-9]+)\.[0-9a-f]{16}\.tmp")
try:  # a name for this machine and the space of its process numbers
    _boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    _MACHINE = fingerprint(_boot, os.stat("/proc/self/ns/pid").st_ino)
except OSError:  # not Linux
    _MACHINE = fingerprint(socket.gethostname())


def retried(action: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Return what `action` returns, tried again after a pause where a fault is one that passes."""
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
    """Return `retried(action)`; its `OSError` is a `CheckpointError`: `what` cannot be `doing`.

    needed: the file's size in bytes. key: the checkpoint in it, where that can be made again.
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
    """Put what `write` writes in the place of `path`, whole, or nothing; on the disk if durable."""
    check_place(path)
    token = os.urandom(8).hex()  # two threads may write the same path
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
    if not durable:
        return
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the renaming itself
    except OSError as fault:
        if fault.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def remove_stale(folder: Path, *, alone: bool = False) -> None:
    """Remove the temporary files whose writer is gone, or that are a day old.

    alone: nobody else writes here, since the caller holds the folder's lock; then all of them are
        removed. A process number may be in use again, above all in a container.
    """
    for path in folder.glob(".*.tmp"):
        if match := _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # another process may remove it first
                if alone or is_dead(match["owner"]) or time.time() - path.lstat().st_mtime > _DAY:
                    path.unlink()


def _sealed(body: bytes) -> bytes:
    """Return a JSON object with the checksum of its bytes as a first entry."""
    digest = hashlib.blake2b(body, digest_size=32).hexdigest()
    return b'{"blake2b":"%s",' % digest.encode() + body[1:]


_SEAL = len(_sealed(b"{"))  # bytes in front of what the object itself holds


def write_json_atomic(
    path: Path | str, obj: object, *, seal: bool = False, spare: bool = False
) -> None:
    """Put `obj` as JSON in the place of `path`, whole. NaN and infinities are written as such.

    seal: with a checksum; `obj` must be a dict that is not empty.
    spare: the file before the last stays beside it, see `previous`.
    """
    path, content = Path(path), json.dumps(obj, separators=(",", ":")).encode()
    content = _sealed(content) if seal else content

    def write() -> None:
        if spare:
            check_place(previous(path))
            with suppress(OSError):  # some file systems know no links: then there is none
                previous(path).unlink(missing_ok=True)
                os.link(path, previous(path))
        replace_atomically(path, lambda file: file.write(content))

    in_words(write, path, needed=len(content))


def read_json(path: Path | str, limit: int, *, seal: bool = False) -> Any:
    """Return what a JSON file holds; `CheckpointError` where it is missing, too long, or not JSON.

    limit: bytes beyond which it is no file of ours. A value takes some 60 bytes of memory, so a
        file of nothing but brackets is refused by their number.
    seal: it was written with a checksum; `DamagedState` where that does not match.
    """
    content = read_bytes(Path(path), limit)
    if seal:  # verified as the bytes stand, before anything is parsed
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


# As JSON with a checksum; the file before stays beside it.
write_sealed = partial(write_json_atomic, seal=True, spare=True)


def read_sealed(path: Path, limit: int = STATE_LIMIT) -> Any:
    """Return what `write_sealed` wrote last, or before; `DamagedState` where both are damaged."""
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
    """Return a handle of a file of ours: no link is followed, a pipe is an error, not a wait."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_regular(os.fstat(handle), path.name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_place(path: Path) -> None:
    """Raise `OSError` where a link, a pipe or a folder stands in the place of a file of ours."""
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
    """Return a file of ours; `CheckpointError` where it cannot be read or has more than `limit`."""

    def read() -> bytes:
        with open(open_regular(path), "rb") as file:
            return file.read(limit + 1)  # the size may lie, or change: the reading is bounded

    content = in_words(read, path, "read")
    if len(content) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes, which is no file of ours")
    return content


def process_name() -> str:
    """Return a name for this process that says whether it lives to others on its machine."""
    return f"{_MACHINE}.{os.getpid()}"


def is_dead(process: str) -> bool:
    """Return whether the process of this name is known to be gone; of other machines nothing is."""
    machine, _, number = process.partition(".")
    try:
        if machine == _MACHINE:
            os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        pass
    return False
