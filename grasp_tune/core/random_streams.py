"""Random numbers by address instead of by order: the same, whoever draws them.

An address is a 128-bit hash; the numbers behind it are Philox words, which NumPy keeps the same
across versions and platforms. Its own way of drawing integers may change, so rows are made here.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from grasp_tune.core.errors import whole

Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

_WORDS = 4  # 64-bit words that Philox makes of one counter
# Arrays, not scalars: NumPy turns a scalar into an array at each use.
_LOW: Words = np.array(2**32 - 1, dtype=np.uint64)
_HALF: Words = np.array(32, dtype=np.uint64)


def address(seed: int, *path: str | int) -> int:
    """Return the 128-bit number that stands for `seed` and `path`, the same everywhere."""
    parts = []  # each with its kind and its length: ("a", 1), ("a1",) and ("a", "1") differ
    for part in (seed, *path):
        if isinstance(part, str):
            text = part.encode()
            parts.append(b"s%d:%b" % (len(text), text))
        else:
            parts.append(b"i%d;" % whole("part of an address", part, None))
    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=16).digest(), "little")


def words(seed: int, *path: str | int, count: int) -> Words:
    """Return the first `count` 64-bit words at an address, the same everywhere."""
    return Philox(key=address(seed, *path)).random_raw(count)


def trajectory_indices(seed: int, cell: int, count: int, length: int) -> tuple[int, ...]:
    """Return `count` (K) uniform draws, with replacement, of 0..`length` - 1 for one cell.

    Algorithm 2, line 6: the points of a run's trajectory that become candidates. A draw takes 128
    bits, so that it is uniform to 1e-23 even for a run of 10^15 steps.
    """
    whole("length", length)
    drawn = words(seed, "trajectory", cell, count=2 * whole("count", count)).tolist()
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return tuple(((high << 64 | low) * length) >> 128 for low, high in pairs)


@dataclass(frozen=True, slots=True)
class IndexStream:
    """The row numbers of all minibatches of one purpose, drawn with replacement, by call number."""

    seed: int
    path: tuple[str | int, ...]
    size: int  # rows of one minibatch
    high: int  # rows of the data set

    def __post_init__(self) -> None:
        whole("size", self.size)
        whole("high", self.high, 1, 2**32 - 1)

    def block(self, start: int, count: int) -> Rows:
        """Return the rows of minibatches `start`.. in one go, shape (count, size)."""
        whole("start", start, 0)
        whole("count", count)
        counters = -(-self.size // _WORDS)  # each minibatch begins on a counter of its own
        place = address(self.seed, *self.path, "rows", self.size, self.high, "again")
        bits = Philox(key=place, counter=start * counters)
        drawn = bits.random_raw(count * counters * _WORDS).reshape(count, -1)[:, : self.size]
        # floor(word * high / 2^64), a uniform row below `high`, without 128-bit numbers.
        high = np.array([self.high], dtype=np.uint64)
        upper, lower = (drawn >> _HALF) * high, (drawn & _LOW) * high >> _HALF
        # The sum is at most (2^32 - 1)^2 + 2^32 - 1: no carry is lost.
        return (upper + lower >> _HALF).view(np.int64)
