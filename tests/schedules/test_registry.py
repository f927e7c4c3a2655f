"""The registry of schedules: names, objects, options, and their way through JSON."""

import json
import math
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grasp_tune as gt
from grasp_tune.core.spec import Rounds, SweepSpec
from grasp_tune.schedules import find_schedule, register, schedule_names, written_schedule
from tests.core.simulation import run


def test_names_and_objects_mean_the_same() -> None:
    assert find_schedule("promote") == gt.Promote() == find_schedule({"name": "promote"})
    assert find_schedule("paper") == find_schedule(gt.Paper()) == gt.Paper()
    assert set(schedule_names()) >= {"paper", "promote"}


@pytest.mark.parametrize("given_", ["papier", 3, None, {"jump": 2.0}, object(), gt.NonConvex()])
def test_anything_else_is_an_error_that_names_the_known_ones(given_: object) -> None:
    with pytest.raises(gt.InputError, match=r"schedule: got .*, expected 'paper' or 'promote'"):
        find_schedule(given_)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(gt.InputError, match=r"unknown keys .'jumps'."):
        find_schedule({"name": "promote", "jumps": 3.0})


def test_a_schedule_that_is_not_registered_is_refused() -> None:
    @dataclass(frozen=True)
    class Promote:
        name: ClassVar[str] = "promote"
        default_base: ClassVar[str | None] = None

        def rounds(self, spec: SweepSpec) -> Rounds:
            raise NotImplementedError

    with pytest.raises(gt.InputError, match="is not the registered 'promote'"):
        find_schedule(Promote())
    with pytest.raises(gt.InputError, match="the name 'promote' is taken"):
        register(Promote)


def test_only_changed_options_are_written() -> None:
    assert written_schedule(gt.Promote()) == "promote"
    assert written_schedule(gt.Promote(jump=math.inf, parts=4)) == {
        "name": "promote",
        "parts": 4,
        "jump": "inf",
    }


def changed(name: str, value: Any) -> st.SearchStrategy[Any]:
    """Other values of an option."""
    if name in ("doublings", "spacing"):
        return st.integers(2, 24).map(type(value))
    if isinstance(value, bool):
        return st.booleans()
    if value is None or isinstance(value, int):
        return st.integers(1, 1000)
    if isinstance(value, float):
        return st.floats(0.01, 0.99)
    if isinstance(value, str):
        return st.sampled_from(["adam", "muon"])
    return st.just(value[::-1])


@given(st.data())
def test_every_option_comes_back_from_json(data: st.DataObject) -> None:
    usual = gt.Promote()
    item = data.draw(st.sampled_from(fields(usual)))
    schedule = replace(
        usual, **{item.name: data.draw(changed(item.name, getattr(usual, item.name)))}
    )
    spec = SweepSpec(gt.NonConvex(), 1000, schedule)
    again = SweepSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec and again.schedule == schedule
    assert not spec.difference(again.to_dict())
    assert bool(spec.difference(SweepSpec(gt.NonConvex(), 1000).to_dict())) == (schedule != usual)


WRONG: dict[type, list[Any]] = {
    type(None): [1.5, "x", True, -1, math.nan, (3,)],
    int: [1.5, "x", True, None, -1, math.nan, (3,)],
    float: ["0.5", True, None, -0.5, math.nan, -math.inf, (0.5,), 10**400],
    bool: [1, "yes", None],
    str: [3, None, True],
    tuple: [0.5, None, "abc", ("x",), (None,), (True,), (math.nan,), (math.inf,), [1]],
}
ODD: dict[str, list[Any]] = {
    "backoff": [0.0],
    "doublings": [25],
    "parts": [10**9],
    "first_length": [math.inf],
    "length_power": [2.0],
    "places": [(2.5,), ()],
    "probe_share": [1.0],
    "spacing": [1.0],
}


@pytest.mark.parametrize("item", fields(gt.Promote()), ids=lambda item: item.name)
def test_an_option_that_cannot_be_used_is_named(item: Field[Any]) -> None:
    for bad in WRONG[type(item.default)] + ODD.get(item.name, []):
        with pytest.raises(
            gt.InputError, match=rf"^{item.name}: got .*, expected|^need .*{item.name}"
        ):
            gt.Promote(**{item.name: bad})


@given(st.data())
def test_options_that_are_accepted_can_be_run(data: st.DataObject) -> None:
    item = data.draw(st.sampled_from(fields(gt.Promote())))
    numbers = st.integers(-3, 10**9) | st.floats() | st.sampled_from([0.0, math.inf, 1e-300])
    try:
        options: dict[str, Any] = {item.name: data.draw(numbers | st.tuples(numbers))}
        schedule = gt.Promote(**options)
    except gt.InputError:
        return
    search, _ = run(SweepSpec(gt.NonConvex(), 5000, schedule))
    assert search.choice is not None
