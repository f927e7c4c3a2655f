"""Plans check themselves, survive files and pickles, and read well."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from grasp_tune.core.errors import InputError, PlanError
from grasp_tune.core.methods import Convex, ConvexFree, NonConvex
from grasp_tune.core.plan import Cell, Plan, Recipe


def small_plan() -> Plan:
    return Plan(
        method=Recipe("convex", d_eps=0.3, L_eps=2.0, option="smooth", value_floor=0.0, delta=0.1),
        budget=100,
        range=(0.3, 1.9),
        cells=(Cell(1, 0.6, 20), Cell(2, 1.2, 10)),
        skipped=(Cell(3, 2.4, 1),),
        probe_gradients=12,
        probe_values=11,
        candidates_per_cell=1,
        samples_per_candidate=8,
        score="value",
        quantity="radius",
        ensemble="resample",
        grad_norm=0.1,
        value=0.2,
    )


def test_totals_by_hand() -> None:
    plan = small_plan()
    assert plan.probe_calls == 23
    assert plan.training_calls == 30
    assert plan.ensemble_calls == 16
    assert plan.total_calls == 69


def test_plan_that_overspends_is_refused() -> None:
    with pytest.raises(PlanError, match="spends 69 oracle calls but the budget is 68; allow at le"):
        replace(small_plan(), budget=68)
    assert replace(small_plan(), budget=69).total_calls == 69


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"range": (1.9, 0.3)}, "range="),
        ({"range": (0.3, math.inf)}, "range="),
        ({"probe_values": -1}, "probe_values=-1"),
        ({"unrepresentable": -2}, "unrepresentable=-2"),
        ({"candidates_per_cell": 0}, "candidates_per_cell=0"),
        ({"cells": (Cell(2, 0.6, 20), Cell(1, 1.2, 10))}, "increase"),
        ({"cells": (Cell(1, 0.6, 20), Cell(2, 0.6, 10))}, "increase"),
        ({"skipped": (Cell(2, 2.4, 1),)}, r"cells \[2\] are listed both"),
        ({"cells": (Cell(1, 0.6, 0),)}, "without oracle calls"),
        ({"stationary": True}, "no cells"),
    ],
)
def test_plan_checks_itself(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(small_plan(), **change)


@pytest.mark.parametrize(
    "row", [(0, 1.0, 1), (1, 0.0, 1), (1, math.nan, 1), (1, math.inf, 1), (1, 1.0, -1)]
)
def test_cell_checks_itself(row: tuple[int, float, int]) -> None:
    with pytest.raises(PlanError, match="index >= 1"):
        Cell(*row)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5, 0.0])
def test_a_cell_checks_itself(value: float) -> None:
    with pytest.raises(PlanError, match="index >= 1"):
        Cell(1, value, 1)
    with pytest.raises(PlanError, match="budget=-1"):
        Cell(1, 0.5, -1)


def test_cells_and_plans_are_frozen() -> None:
    plan = small_plan()
    with pytest.raises(FrozenInstanceError):
        plan.budget = 7  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.cells[0].value = 7.0  # type: ignore[misc]
    assert not hasattr(plan.cells[0], "__dict__")


@pytest.mark.parametrize(
    "plan",
    [
        small_plan(),
        NonConvex(base="adagrad", probe=1 / 3).plan(10**15, grad_norm=0.1 + 0.2),
        Convex(option="universal", value_floor=-1 / 3).plan(9_999, value=2 / 3),
        ConvexFree(d_eps=1e-12).plan(10**15),
        NonConvex().plan(100, grad_norm=0.0),
    ],
)
def test_save_and_load_gives_the_same_plan(plan: Plan) -> None:
    text = json.dumps(plan.to_dict(), allow_nan=False)
    loaded = Plan.from_dict(json.loads(text))
    assert loaded == plan
    assert [cell.value.hex() for cell in loaded.cells] == [cell.value.hex() for cell in plan.cells]
    assert pickle.loads(pickle.dumps(plan)) == plan


def _without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {**d, "extra": 1}, "unknown keys .*extra"),
        (lambda d: _without(d, "budget"), "missing keys .*budget"),
        (lambda d: {**d, "budget": "100"}, "budget"),
        (lambda d: {**d, "budget": True}, "budget"),
        (lambda d: {**d, "budget": 100.5}, "budget"),
        (lambda d: {**d, "score": "beauty"}, "score"),
        (lambda d: {**d, "range": [1.0]}, "range"),
        (lambda d: {**d, "stationary": 0}, "stationary"),
        (lambda d: {**d, "cells": [{"index": 1, "value": 0.6}]}, "budget"),
        (lambda d: {**d, "cells": [{"index": 1, "value": None, "budget": 1}]}, "value"),
        (lambda d: {**d, "cells": [{"index": 1, "value": -0.6, "budget": 1}]}, "index >= 1"),
        (lambda d: {**d, "method": {"name": "convex"}}, "missing keys"),
        (lambda d: {**d, "budget": 68}, "allow at least 69"),
        (lambda d: [d], "expected Plan"),
        (lambda d: None, "got None"),
    ],
)
def test_reading_is_strict(change: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(change(small_plan().to_dict()))


def test_a_broken_plan_is_a_value_error() -> None:
    assert issubclass(PlanError, InputError)
    with pytest.raises(ValueError, match="not a plan"):
        Plan.from_dict({})


def test_table_says_what_runs_and_what_it_costs() -> None:
    table = str(small_plan())
    assert table == small_plan().table()
    lines = table.splitlines()
    assert lines[0] == "convex: radius from 0.3 to 1.9"
    assert lines[2].split() == ["1", "0.6", "20"]
    assert "cells 3" in lines[4]
    assert lines[-1].split()[:4] == ["total", "69", "of", "100"]
    assert repr(small_plan()) == "<Plan convex: 2 cells, radius 0.3 to 1.9, 69 of 100 oracle calls>"


def test_table_of_a_long_grid_stays_short() -> None:
    plan = ConvexFree().plan(10**6)
    # 1000 points; 2 <= 303963 / i^2 up to i = 389, the rest is skipped.
    assert len(plan.cells) == 389
    lines = plan.table().splitlines()
    assert len(lines) < 40
    assert any("365 more cells" in line for line in lines)
    assert any("cells 390-1000" in line for line in lines)


def test_table_of_a_stationary_start_says_so() -> None:
    assert "x0 is the answer" in NonConvex().plan(100, grad_norm=0.0).table()
