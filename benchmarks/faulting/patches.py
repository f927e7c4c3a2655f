"""Pieces of the system put in the place of the real ones for a while."""

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def replaced(owner: object, name: str, stand_in: object) -> Iterator[None]:
    """Put `stand_in` in the place of an attribute."""
    real = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def quiet() -> Iterator[None]:
    """Write nothing to the log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def full_disk(mark: str, after: int) -> Iterator[list[str]]:
    """Fail, as a full disk does, every flushing of a file with `mark` in its name but the first.

    after: how many of them go well. Yields the list of all of them.
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
    """Let file operations fail now and then with errors that pass, and take their time.

    Yields the list of the errors that were raised. With a rate below 1 a fault passes: the next
    few operations, as many as one write takes, go well.
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
    """Let both clocks jump by days, forward and back, at every look."""
    chance, wall, steady = random.Random(seed), time.time, time.monotonic
    with (
        replaced(time, "time", lambda: wall() + chance.uniform(-1e6, 1e6)),
        replaced(time, "monotonic", lambda: steady() + chance.uniform(-1e6, 1e6)),
    ):
        yield
