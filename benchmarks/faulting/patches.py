"""Temporary replacements for parts of the system."""

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def replaced(owner: object, name: str, stand_in: object) -> Iterator[None]:
    """Replace an attribute by `stand_in`."""
    real = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def full_disk(mark: str, after: int) -> Iterator[list[str]]:
    """Let flushes of files with `mark` in their names fail, as on a full disk; yield their list.

    after: number of flushes that succeed first.
    """
    real, flushed = os.fsync, list[str]()

    def fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if mark in os.path.basename(path):
            flushed.append(path)
            if len(flushed) > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with replaced(os, "fsync", fsync):
        yield flushed


PASSING = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY)


@contextmanager
def unreliable_disk(rate: float, seed: int = 0, pause: float = 0.0) -> Iterator[list[int]]:
    """Make file operations slow, and let some fail; yield the list of errors raised.

    With a rate below 1, faults are temporary: the next few operations, enough for one write,
    succeed.
    """
    chance, raised, well = random.Random(seed), list[int](), 0

    def shaky(real: Callable[..., object]) -> Callable[..., object]:
        def action(*args: object, **options: object) -> object:
            nonlocal well
            time.sleep(pause * chance.random())
            well -= 1
            if chance.random() < rate and well < 0:
                well = 4 if rate < 1.0 else 0
                raised.append(chance.choice(PASSING))
                raise OSError(raised[-1], os.strerror(raised[-1]))
            return real(*args, **options)

        return action

    with ExitStack() as stack:
        for name in ("fsync", "replace", "fstat"):
            stack.enter_context(replaced(os, name, shaky(getattr(os, name))))
        yield raised


@contextmanager
def jumping_clocks(seed: int = 0) -> Iterator[None]:
    """Let both clocks jump by days, forward and back, whenever they are read."""
    chance, wall, steady = random.Random(seed), time.time, time.monotonic
    with (
        replaced(time, "time", lambda: wall() + chance.uniform(-1e6, 1e6)),
        replaced(time, "monotonic", lambda: steady() + chance.uniform(-1e6, 1e6)),
    ):
        yield
