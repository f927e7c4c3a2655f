"""Cells for a loop of the user's own, as a search: the best so far, what is lost, what overran."""

import json

import pytest

import grasp_tune as gt
from grasp_tune.core.search import ATTEMPTS, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import TrainTask
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.cells import Cells, CellSearch, cell_outcome

PLAN = gt.NonConvex(L_eps=3.0, F_eps=3.0).plan(budget=2000, grad_norm=2.0)


def tell(search: CellSearch, score: float, calls: int = 1) -> int:
    """Run the next cell; returns its index."""
    task = search.ask()
    assert isinstance(task, TrainTask)
    (part,) = task.segments
    search.tell(task, cell_outcome(part.arm.index, part.calls, score, calls))
    return part.arm.index


def test_the_best_cell_so_far_counts_at_any_time() -> None:
    search = CellSearch(Cells(PLAN).spec())
    assert search.partial().chosen.arm == 0  # x0
    first, second, _ = (tell(search, score) for score in (3.0, 2.0, float("inf")))
    assert search.partial().partial and search.partial().chosen.arm == second
    again = CellSearch.from_state(json.loads(json.dumps(search.state())))
    assert again.partial() == search.partial()
    while search.choice is None:
        tell(again, 9.0)
        tell(search, 9.0)
    assert search.choice == again.choice
    assert search.choice.chosen.arm == second != first and not search.choice.partial


def test_a_cell_that_is_lost_does_not_hold_up_a_step_search() -> None:
    search = CellSearch(Cells.of(None, 1000, resume=False).spec())
    for _ in range(ATTEMPTS):
        task = search.ask()
        assert isinstance(task, TrainTask)
        search.tell(task, None, "no memory")
    assert search.growing
    while not isinstance(search.ask(), Step):
        pass
    for key in list(search.tasks)[1:]:
        search.tell(key, cell_outcome(int(key[4:]), 1, 1.0, 1))
    assert len(search.tasks) > 9 and search.lost == {"cell001": "no memory"}


def test_calls_beyond_a_cell_s_budget_are_noted_and_not_counted() -> None:
    search = CellSearch(Cells(PLAN).spec())
    budget = PLAN.cells[0].budget
    tell(search, 1.0, budget + 7)
    result = Result.of(search, {})
    assert result.calls["train"] == budget
    assert f"made {budget + 7} oracle calls, but its budget was {budget}" in result.notes[-1]


def test_cells_are_a_schedule_with_options_and_none_without() -> None:
    spec = Cells(PLAN).spec(seed=3)
    assert SweepSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    with pytest.raises(gt.InputError, match="needs a plan or a step search"):
        CellSearch(SweepSpec(gt.NonConvex(), 100, "cells"))
