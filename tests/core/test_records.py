"""Records to JSON and back: nothing but our own types gets through."""

import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import decode, encode
from grasp_tune.core.tasks import Point


@dataclass(frozen=True)
class Inner:
    """A record inside a record."""

    word: Literal["a", "b"]
    number: float


@dataclass(frozen=True)
class Outer:
    """One of everything."""

    count: int
    flag: bool
    text: str
    inner: Inner
    many: tuple[Inner, ...]
    pair: tuple[int, float]
    maybe: Inner | None


inner = st.builds(Inner, st.sampled_from(["a", "b"]), st.floats(allow_nan=False))
outer = st.builds(
    Outer,
    st.integers(),
    st.booleans(),
    st.text(),
    inner,
    st.lists(inner, max_size=3).map(tuple),
    st.tuples(st.integers(), st.floats(allow_nan=False)),
    st.none() | inner,
)


@given(outer)
def test_records_survive_json_exactly(record: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(record), allow_nan=False))) == record


def test_nan_survives_as_a_word() -> None:
    assert encode(Inner("a", math.nan)) == {"word": "a", "number": "nan"}
    assert math.isnan(decode(Inner, {"word": "a", "number": "nan"}).number)


def test_nan_equals_nan_in_a_record() -> None:
    one, other = (Point(1, 2.0, float("nan")) for _ in range(2))
    assert one == other != Point(1, 3.0, math.nan)
    assert (one != other) is False
    assert one != (1, 2.0, math.nan)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"word": "c", "number": 1.0}, r"Inner.word: got 'c'"),
        ({"word": "a", "number": "1.0"}, r"Inner.number: got '1.0', expected float"),
        ({"word": "a", "number": True}, r"Inner.number: got True, expected float"),
        ({"word": "a"}, r"missing keys \['number'\]"),
        ({"word": "a", "number": 1, "more": 2}, r"unknown keys \['more'\]"),
        ([], "expected Inner"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(data: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode(Inner, data)


def test_what_is_not_a_record_cannot_be_written() -> None:
    with pytest.raises(InputError, match="set"):
        encode({1, 2})
