"""Keys of checkpoints: their text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import (
    MOMENTS,
    START,
    average_key,
    iterate_key,
    part_key,
    place_of,
    state_key,
)
from grasp_tune.core.errors import InputError


def test_texts_by_hand() -> None:
    assert (START, MOMENTS, part_key(7)) == ("x0", "probe-moments", "probe-part007")
    assert iterate_key(3, 250) == "run003-000000250"
    assert state_key(1234, 250) == "run1234-000000250-state"
    assert average_key(3, 250, 8.0) == "run003-000000250-average8"


runs, calls = st.integers(0, 10**6), st.integers(0, 10**15)


@given(runs, calls, st.sampled_from([0.0, 0.5, 8.0, 1e-9, 1e9]))
def test_every_key_says_its_place(run: int, call: int, gamma: float) -> None:
    assert place_of(iterate_key(run, call)) == (run, call, "iterate")
    assert place_of(state_key(run, call)) == (run, call, "state")
    assert place_of(average_key(run, call, gamma)) == (run, call, "average")
    assert {place_of(key) for key in (START, MOMENTS, part_key(run))} == {(0, 0, "")}


@pytest.mark.parametrize(
    "text", ["", "x1", "run-1", "run001", "run001-2-", "run001-2-other", "run1-2-average", "../x0"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no key of a checkpoint"):
        place_of(text)
