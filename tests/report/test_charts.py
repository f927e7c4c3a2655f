"""The drawings of a report: what their numbers count, and what sets their axes."""

import math
from dataclasses import replace

import pytest

from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.report.charts import axis_ends, call_parts
from grasp_tune.runtime.result import Result, Run


def run_of(arm: int, begin: int, end: int, *, first_loss: float) -> Run:
    curve = ((begin + 1, first_loss, 1.0), (end, 0.5, 1.0))
    return Run(arm, "growing", 1.0, 0.0, end - begin, True, ((begin, end),), curve, (0.5,))


def result_of(*runs: Run, chosen: int) -> Result:
    row = Candidate("a", chosen, "growing", 1.0, 90, False, 0.5, 3, 0.3)
    trained = sum(run.calls for run in runs)
    calls = {"probe": 5, "train": trained, "ensemble": 5, "repeated": 0}
    choice = Choice("a", "value", "race", (row,))
    return Result({"budget": trained + 10}, choice, None, None, calls, runs, {})


def test_the_calls_of_a_run_whose_step_changed_are_all_its_own() -> None:
    # Run 1 begins at x0 and lasts 40 calls; after 30 of them its state goes on as run 3, up to 100.
    runs = (
        run_of(1, 0, 40, first_loss=2.0),
        run_of(2, 0, 20, first_loss=2.0),
        run_of(3, 30, 100, first_loss=0.6),
    )
    parts = {words: calls for words, calls, _ in call_parts(result_of(*runs, chosen=3))}
    assert parts["training the run that won"] == 100
    assert parts["training the runs that lost"] == 20 + 10  # run 2, and what was undone of run 1
    assert sum(parts.values()) == 140


def test_the_axis_is_set_by_runs_that_begin_at_the_start_point() -> None:
    # Losses up to four times 2 are shown; 0.01, at which most runs begin in mid-way, sets nothing.
    late = [run_of(arm, 50, 90, first_loss=0.01) for arm in range(2, 9)]
    result = result_of(run_of(1, 0, 50, first_loss=2.0), *late, chosen=1)
    low, high = axis_ends([2.0, 7.9, 8.1, 1e9, math.inf, 0.01], result)
    assert low <= 0.01 and 7.9 <= high < 100


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_an_axis_without_a_sound_first_loss_shows_what_is_known(loss: float) -> None:
    first = replace(run_of(1, 0, 50, first_loss=2.0), curve=((1, loss, loss),))
    low, high = axis_ends([1.0, 1e6, loss], result_of(first, chosen=1))
    assert low <= 1.0 and high >= 1e6
