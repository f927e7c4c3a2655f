"""Addressed randomness: the same everywhere, against a twin written from Philox's definition."""

import hashlib
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.errors import InputError
from grasp_tune.core.random_streams import IndexStream, address, trajectory_indices, words

MASK = 2**64 - 1


def philox(counter: int, key: int) -> list[int]:
    """Philox4x64-10 of Salmon, Moraes, Dror and Shaw (2011), in plain integers."""
    x = [counter >> 64 * i & MASK for i in range(4)]
    k = [key & MASK, key >> 64]
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [
            second >> 64 ^ x[1] ^ k[0],
            second & MASK,
            first >> 64 ^ x[3] ^ k[1],
            first & MASK,
        ]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return x


def slow_words(key: int, first: int, count: int) -> list[int]:
    """Return words from block `first` on; NumPy counts up before it draws."""
    blocks = range(first + 1, first + 2 + count // 4)
    return [word for block in blocks for word in philox(block, key)][:count]


def at(stream: IndexStream, call: int) -> list[int]:
    """Return the rows of one minibatch."""
    rows: list[int] = stream.block(call, 1)[0].tolist()
    return rows


def slow_rows(seed: int, path: bytes, size: int, high: int, call: int) -> list[int]:
    """Return one minibatch as the module's text says, one row at a time."""
    written = b"i%d;" % seed + path + b"s4:rowsi%d;i%d;s5:again" % (size, high)
    key = int.from_bytes(hashlib.blake2b(written, digest_size=16).digest(), "little")
    blocks = (size + 3) // 4
    return [word * high >> 64 for word in slow_words(key, call * blocks, size)]


def test_twin_matches_the_published_vector() -> None:
    # Random123's known answer for philox4x64-10 with counter and key zero.
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox(0, 0) == expected


def test_address_is_the_hash_of_its_parts() -> None:
    written = b"i7;s5:traini-3;s2:\xc3\xa9"
    digest = hashlib.blake2b(written, digest_size=16).digest()
    assert address(7, "train", -3, "é") == int.from_bytes(digest, "little")
    numpys: Any = np.int64(-3)
    assert address(7, "train", numpys, "é") == address(7, "train", -3, "é")


def test_no_two_paths_are_written_alike() -> None:
    paths: list[tuple[str | int, ...]] = [
        ("a", 1), ("a1",), ("a", "1"), ("a", "i1;"), ("ai1;",), ("a", "", 1), ("a", 1, ""),
        (1, "a"), (11,), (1, 1), ("s1:a",), (), ("",), (-1,), ("a", -1), (10**30,),
    ]  # fmt: skip
    found = {address(seed, *path) for path in paths for seed in (0, 1, -1, 2**70)}
    assert len(found) == 4 * len(paths)


@pytest.mark.parametrize("part", [True, 1.0, None, b"a"])
def test_address_refuses_what_has_no_one_spelling(part: Any) -> None:
    with pytest.raises(InputError, match="whole number"):
        address(0, part)
    with pytest.raises(InputError, match="whole number"):
        address(part, "a")


def test_words_are_philox_words() -> None:
    assert words(5, "x", 9, count=11).tolist() == slow_words(address(5, "x", 9), 0, 11)


@pytest.mark.parametrize(("size", "high"), [(1, 2), (5, 7), (64, 60_000), (30, 31), (6, 2**32 - 1)])
def test_rows_match_the_slow_twin(size: int, high: int) -> None:
    stream = IndexStream(3, ("train",), size, high)
    for call in (0, 1, 12_345_678_901):
        assert at(stream, call) == slow_rows(3, b"s5:train", size, high, call)


@given(
    size=st.integers(1, 40),
    extra=st.integers(0, 30),
    start=st.integers(0, 2**40),
    count=st.integers(1, 9),
)
def test_many_minibatches_at_once_are_the_same_bits(
    size: int, extra: int, start: int, count: int
) -> None:
    stream = IndexStream(11, ("probe", 2), size, size + extra)
    together = stream.block(start, count)
    assert together.shape == (count, size)
    assert together.dtype == np.int64
    assert 0 <= together.min() <= together.max() < size + extra
    assert together.tolist() == [at(stream, start + more) for more in range(count)]


def test_every_row_is_equally_likely() -> None:
    drawn = IndexStream(1, ("even",), 4, 10).block(0, 5000)
    counts = np.bincount(drawn.ravel(), minlength=10)
    # 20000 draws of 10 rows: 2000 each, standard deviation at most sqrt(20000 * 0.09) = 42.4.
    assert np.abs(counts - 2000).max() < 4 * 42.5


def test_streams_of_other_purpose_or_shape_share_nothing() -> None:
    rows = {
        tuple(at(IndexStream(seed, path, 12, high), 0))
        for seed in (0, 1)
        for path in (("train",), ("probe",), ("train", 0))
        for high in (10**6, 10**6 + 1)
    }
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IndexStream(0, (), 0, 5), "size: got 0"),
        (lambda: IndexStream(0, (), 3, 0), "high: got 0"),
        (lambda: IndexStream(0, (), 6, 2**32), "<= 4294967295"),
        (lambda: IndexStream(0, (), 6, 9).block(-1, 1), "start: got -1"),
        (lambda: IndexStream(0, (), 6, 9).block(0, 0), "count: got 0"),
        (lambda: trajectory_indices(0, 1, 0, 5), "count: got 0"),
        (lambda: trajectory_indices(0, 1, 3, 0), "length: got 0"),
    ],
)
def test_bad_shapes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_trajectory_indices_match_the_slow_twin() -> None:
    drawn = slow_words(address(9, "trajectory", 4), 0, 10)
    for length in (1, 7, 10**15):
        expected = [(drawn[2 * k] + (drawn[2 * k + 1] << 64)) * length >> 128 for k in range(5)]
        assert list(trajectory_indices(9, 4, 5, length)) == expected


def test_trajectory_indices_are_uniform_with_replacement() -> None:
    counts = Counter(i for cell in range(1, 1001) for i in trajectory_indices(0, cell, 6, 5))
    # 6000 draws of 5: 1200 each, standard deviation sqrt(6000 * 0.16) = 31.
    assert set(counts) == set(range(5))
    assert max(abs(count - 1200) for count in counts.values()) < 4 * 31
    assert any(len(set(trajectory_indices(0, cell, 6, 5))) < 5 for cell in range(1, 20))


def test_threads_do_not_disturb_each_other() -> None:
    stream = IndexStream(2, ("train",), 50, 999)
    alone = [at(stream, call) for call in range(300)]
    seen: dict[int, list[list[int]]] = {}

    def draw(name: int) -> None:
        seen[name] = [at(stream, call) for call in range(300)]

    threads = [threading.Thread(target=draw, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(seen[name] == alone for name in range(4))
