"""Cells that trials of somebody else run: scores, failures, and what a saved state brings back."""

import json

import pytest

import grasp_tune as gt
from grasp_tune.core.tasks import Task
from grasp_tune.runtime.cell_sweep import CellSweep
from grasp_tune.schedules.cells import Cells

PLAN = gt.NonConvex(L_eps=3.0, F_eps=3.0).plan(budget=2000, grad_norm=2.0)


def begin(sweep: CellSweep, trial: str) -> str:
    task = sweep.next(trial)
    assert isinstance(task, Task)
    return task.id


def test_the_reports_of_a_trial_that_failed_do_not_count() -> None:
    sweep = CellSweep(Cells(PLAN), window=3)
    key = begin(sweep, "first")
    sweep.hear(key, 1, 100.0)
    sweep.gone("first", "no memory")
    assert begin(sweep, "second") == key
    for step, score in enumerate((5.0, 2.0, 3.0, 1.0)):
        sweep.hear(key, step, score)
    sweep.completed(key, "second", calls=4)
    assert sweep.best == (PLAN.cells[0].index, "second", 2.0, 4)  # (2 + 3 + 1) / 3
    assert sweep.task_for("second", PLAN.cells[0].index) is None  # it has ended


def test_a_state_brings_reports_and_trials_back_and_other_cells_are_refused() -> None:
    sweep = CellSweep(Cells(PLAN), window=2)
    done, under_way = begin(sweep, "first"), begin(sweep, "second")
    sweep.hear(done, 1, 7.0)
    sweep.completed(done, "first", calls=1)
    sweep.hear(under_way, 1, 4.0)
    state = json.loads(json.dumps(sweep.state()))
    again = CellSweep(Cells(PLAN), window=2)
    again.load(state)
    assert again.best == sweep.best
    again.hear(under_way, 2, 2.0)
    again.completed(under_way, "second", calls=2)
    assert (again.best.trial, again.best.score) == ("second", 3.0)  # (4 + 2) / 2
    with pytest.raises(gt.InputError, match="another plan"):
        CellSweep(Cells.of(None, 500, resume=False), window=2).load(state)


@pytest.mark.parametrize("state", [{"outcomes": {}}, [], {"cells": 3}])
def test_a_state_of_another_kind_is_one_line(state: object) -> None:
    with pytest.raises(gt.InputError, match=r"not a state of cells; where an earlier version"):
        CellSweep(Cells(PLAN), window=1).load(state)
