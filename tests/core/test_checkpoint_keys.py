"""Keys of checkpoints: their text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import (
    MOMENTS,
    START,
    Key,
    average_key,
    iterate_key,
    part_key,
    state_key,
)
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import decode, encode


def test_texts_by_hand() -> None:
    assert START == "x0"
    assert str(MOMENTS) == "probe-moments"
    assert str(part_key(7)) == "probe-part007"
    assert str(iterate_key(3, 250)) == "run003-000000250"
    assert str(state_key(1234, 250)) == "run1234-000000250-state"
    assert str(average_key(3, 250, 8.0)) == "run003-000000250-average8"


runs, calls = st.integers(0, 10**6), st.integers(0, 10**15)
keys = st.one_of(
    st.sampled_from([START, MOMENTS]),
    st.builds(part_key, runs),
    st.builds(iterate_key, runs, calls),
    st.builds(state_key, runs, calls),
    st.builds(average_key, runs, calls, st.sampled_from([0.0, 0.5, 8.0, 1e-9, 1e9])),
)


@given(keys)
def test_every_key_is_read_back_from_its_text_and_from_json(key: Key) -> None:
    assert Key.parse(str(key)) == key
    assert encode(key) == str(key) and decode(Key, encode(key)) == key


@pytest.mark.parametrize(
    "text", ["", "x1", "run-1", "run001", "run001-2-", "run001-2-other", "../x0"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no key of a checkpoint"):
        Key.parse(text)
