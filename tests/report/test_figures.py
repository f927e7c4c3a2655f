"""A sweep as figures."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grasp_tune as gt
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.report.figures import (
    CHOSEN,
    LARGE,
    TOP,
    axis,
    axis_ends,
    call_figure,
    call_parts,
    curve_figure,
    score_figure,
    validation_looks,
    winning_curve,
)
from grasp_tune.runtime.result import Look, Result, Run
from tests.engine import workbench


@pytest.fixture(scope="module", params=["promote", "paper"])
def result(request: pytest.FixtureRequest) -> Result:
    base = "adam" if request.param == "promote" else None  # with a base it searches: many runs
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5, base=base)
    problem = workbench.problem()
    return gt.minimize(problem, 1500, method, schedule=request.param, progress=False)


def test_a_result_has_three_figures(result: Result) -> None:
    figures = result.figures()
    assert list(figures) == ["scores", "curves", "calls"]
    for figure in figures.values():
        assert figure.data
        assert figure.to_json()


def test_runs_stand_at_their_step_sizes_with_their_calls_as_size(result: Result) -> None:
    figure = score_figure(result)
    assert figure.layout.xaxis.type == "log"
    runs = [trace for trace in figure.data if trace.name not in ("chosen", "start point")]
    values = {run.value for run in result.runs}
    assert all(set(trace.x) <= values for trace in runs)
    assert all(math.isfinite(height) for trace in figure.data for height in trace.y)
    assert max(size for t in runs if t.name == "runs" for size in t.marker.size) <= LARGE
    star = [trace for trace in figure.data if trace.name == "chosen"]
    chosen = result.choice.chosen
    assert [(trace.x[0], trace.y[0]) for trace in star] == (
        [(chosen.value, chosen.score)] if chosen.arm else []
    )
    expected = "mean loss" if result.choice.by == "value" else "norm of the mean gradient"
    assert figure.layout.yaxis.title.text == expected


def test_the_curves_are_those_of_the_best_runs(result: Result) -> None:
    figure = curve_figure(result)
    assert len(figure.data) <= TOP
    by_name = {f"run {run.arm}:": run for run in result.runs}
    for trace in figure.data:
        run = by_name[" ".join(trace.name.split()[:2])]
        curve = winning_curve(result) if run.arm == result.choice.chosen.arm else run.curve
        assert list(trace.x) == [call for call, _, _ in curve]
        assert list(trace.y) == [loss for _, loss, _ in curve]
    shown = {int(trace.name.split()[1].strip(":")) for trace in figure.data}
    ends = {run.arm: run.last_loss for run in result.runs if math.isfinite(run.last_loss)}
    assert not result.choice.chosen.arm or result.choice.chosen.arm in shown
    worst = max(ends[arm] for arm in shown if arm != result.choice.chosen.arm)
    assert all(loss >= worst for arm, loss in ends.items() if arm not in shown)


def test_the_bars_add_up_to_the_budget(result: Result) -> None:
    figure = call_figure(result)
    total = sum(trace.x[0] for trace in figure.data if trace.y[0] != "repeated")
    assert total == result.spec["budget"]
    faulty = replace(result, calls={**result.calls, "repeated": 77})
    repeated = [trace for trace in call_figure(faulty).data if trace.y[0] == "repeated"]
    assert [trace.x[0] for trace in repeated] == [77]


def test_losses_below_zero_get_a_plain_axis(result: Result) -> None:
    runs = tuple(
        replace(run, curve=tuple((call, loss - 9.0, norm) for call, loss, norm in run.curve))
        for run in result.runs
    )
    assert curve_figure(replace(result, runs=runs)).layout.yaxis.type is None


def test_training_loads_no_plotly_and_its_absence_names_the_extra() -> None:
    code = (
        "import sys; import grasp_tune.runtime.result, grasp_tune.report.figures as figures\n"
        "assert 'plotly' not in sys.modules\n"
        "sys.modules['plotly'] = None\n"
        "from grasp_tune.core.errors import MissingExtra\n"
        "try: figures.new_figure('', '')\n"
        "except MissingExtra as error: print(error)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "pip install 'grasp_tune[report]'" in out.stdout


def run_of(arm: int, begin: int, end: int, *, first_loss: float) -> Run:
    curve = ((begin + 1, first_loss, 1.0), (end, 0.5, 1.0))
    return Run(arm, "growing", 1.0, 0.0, end - begin, True, ((begin, end),), curve, (0.5,))


def result_of(*runs: Run, chosen: int) -> Result:
    row = Candidate("a", chosen, "growing", 1.0, 90, False, 0.5, 3, 0.3)
    trained = sum(run.calls for run in runs)
    calls = {"probe": 5, "train": trained, "ensemble": 5, "repeated": 0}
    choice = Choice("a", "value", "race", (row,))
    spec = {"budget": trained + 10}
    return Result(
        spec=spec, choice=choice, plan=None, certificate=None, calls=calls, runs=runs, tensors={}
    )


def test_the_calls_of_a_run_whose_step_changed_are_all_its_own() -> None:
    # Run 1 begins at x0 and lasts 40 calls; after 30 of them its state goes on as run 3, up to 100.
    runs = (
        run_of(1, 0, 40, first_loss=2.0),
        run_of(2, 0, 20, first_loss=2.0),
        replace(run_of(3, 30, 100, first_loss=0.6), parent=1),
    )
    parts = {words: calls for _, words, calls, _ in call_parts(result_of(*runs, chosen=3))}
    assert parts["training the run that won"] == 100
    assert parts["training the runs that lost"] == 20 + 10  # run 2, and what was undone of run 1
    assert sum(parts.values()) == 140


def test_a_part_that_was_undone_is_no_part_of_the_chosen_run() -> None:
    # Run 2 went on from run 1 at call 50 and failed; run 3 went on from the same state at call 90,
    # and run 4 from its state at call 120, for the next 30 calls of run 3 had failed.
    first = run_of(1, 0, 50, first_loss=2.0)
    failed = replace(run_of(2, 50, 90, first_loss=1.0), calls=7, finite=False, losses=(math.nan,))
    third = run_of(3, 90, 150, first_loss=0.9)
    third = replace(third, parent=1, stretches=((90, 120), (120, 150)), losses=(0.7, math.nan))
    third = replace(third, calls=32, curve=((91, 0.9, 1.0), (120, 0.7, 1.0), (121, 99.0, 1.0)))
    last = replace(run_of(4, 150, 200, first_loss=0.6), parent=3)
    result = result_of(first, failed, third, last, chosen=4)
    parts = {words: calls for _, words, calls, _ in call_parts(result)}
    assert parts["training the run that won"] == 50 + 30 + 50
    assert parts["training the runs that lost"] == 7 + 2
    assert sum(parts.values()) == result.spec["budget"]
    # Nothing is drawn where the run was not.
    calls = [call for call, loss, _ in winning_curve(result) if math.isfinite(loss)]
    assert calls == [1, 50, 91, 120, 151, 200]
    gaps = [call for call, loss, _ in winning_curve(result) if math.isnan(loss)]
    assert gaps == [90, 150]


def test_the_start_point_is_within_the_axis() -> None:
    run = run_of(1, 0, 50, first_loss=2.0)
    start = Candidate("x0", 0, "", math.nan, 0, False, 3.0, 5, 9.5)
    row = Candidate("a", 1, "growing", 1.0, 50, False, 0.5, 3, 0.3)
    result = replace(result_of(run, chosen=1), choice=Choice("a", "value", "race", (start, row)))
    figure = score_figure(result)
    (line,) = [trace for trace in figure.data if trace.name == "start point"]
    low, high = figure.layout.yaxis.range
    assert list(line.y) == [3.0, 3.0] and low < 0.5 and high > 3.0
    assert line.x[0] < 1.0 < line.x[1]  # a line, also beside a single run


def test_the_axis_is_set_by_runs_that_begin_at_the_start_point() -> None:
    # Losses up to four times 2 are shown; 0.01, at which most runs begin in mid-way, sets nothing.
    late = [run_of(arm, 50, 90, first_loss=0.01) for arm in range(2, 9)]
    result = result_of(run_of(1, 0, 50, first_loss=2.0), *late, chosen=1)
    low, high = axis_ends([2.0, 7.9, 8.1, 1e9, math.inf, 0.01], result.runs)
    assert low <= 0.01 and 7.9 <= high < 100


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_an_axis_without_a_sound_first_loss_shows_what_is_known(loss: float) -> None:
    first = replace(run_of(1, 0, 50, first_loss=2.0), curve=((1, loss, loss),))
    low, high = axis_ends([1.0, 1e6, loss], [first])
    assert low <= 1.0 and high >= 1e6


def test_the_chosen_curve_goes_back_to_the_start_point() -> None:
    # Run 1 begins at x0; from its state after 30 calls run 3 goes on, and from 60 of that run 5.
    def part(arm: int, begin: int, end: int, parent: int) -> Run:
        curve = tuple((call, 100.0 / call, 1.0) for call in range(begin + 10, end + 1, 10))
        return Run(
            arm, "growing", 1.0, 0.0, end - begin, True, ((begin, end),), curve, (1.0,), parent
        )

    runs = (part(1, 0, 40, 0), part(2, 0, 20, 0), part(3, 30, 80, 1), part(5, 60, 100, 3))
    result = result_of(*runs, chosen=5)
    assert [call for call, _, _ in winning_curve(result)] == list(range(10, 101, 10))
    (chosen,) = [trace for trace in curve_figure(result).data if trace.line.color == CHOSEN]
    assert list(chosen.x) == list(range(10, 101, 10))
    assert len(curve_figure(result).data) == 4


def test_a_loss_of_zero_leaves_the_axis_logarithmic() -> None:
    run = replace(run_of(1, 0, 50, first_loss=2.0), curve=((1, 2.0, 1.0), (50, 0.0, 0.0)))
    result = result_of(run, chosen=1)
    assert curve_figure(result).layout.yaxis.type == "log"


def test_a_run_that_ends_at_zero_is_drawn_at_the_edge() -> None:
    # Losses 0.5 and 0: on a logarithmic axis the zero stands at a tenth of the other.
    runs = (
        run_of(1, 0, 50, first_loss=2.0),
        replace(run_of(2, 0, 50, first_loss=2.0), losses=(0.0,)),
    )
    figure = score_figure(replace(result_of(*runs, chosen=2), validation=9))
    (star,) = [trace for trace in figure.data if trace.name == "chosen"]
    assert list(star.y) == [pytest.approx(0.05)] and figure.layout.yaxis.type == "log"


def test_an_axis_of_close_values_has_marks() -> None:
    # From 2.30 to 2.33 there is no power of ten and no 1, 2 or 5.
    assert axis([2.30, math.nan, 2.33]) == {
        "range": [pytest.approx(2.2985), pytest.approx(2.3315)],
        "exponentformat": "power",
    }
    assert axis([0.0008])["range"] == [pytest.approx(0.0004), pytest.approx(0.0012)]
    assert axis([-1.0, 1e9]).keys() == {"range", "exponentformat"}
    wide = axis([1.0, 1e4])  # four powers of ten, and a fifth of one at either end
    assert wide["type"] == "log" and wide["range"] == [pytest.approx(-0.2), pytest.approx(4.2)]
    assert wide["dtick"] == 1 and axis([1.0, 20.0])["dtick"] == "D2"


def test_the_marks_of_an_axis_are_those_of_what_is_shown() -> None:
    # One explosion to 1e30: the axis goes from 0.5 to 2 with marks of its own.
    wild = replace(run_of(2, 0, 50, first_loss=2.0), curve=((1, 2.0, 1.0), (40, 1e30, 1.0)))
    axis = curve_figure(result_of(run_of(1, 0, 50, first_loss=2.0), wild, chosen=1)).layout.yaxis
    assert list(axis.range) == [pytest.approx(0.425), pytest.approx(2.075)] and axis.dtick is None


def test_a_run_whose_step_doubles_stands_at_no_step() -> None:
    ramp = replace(run_of(2, 0, 50, first_loss=2.0), value=1e-9, finite=False)
    result = replace(result_of(run_of(1, 0, 50, first_loss=2.0), ramp, chosen=1), ramps=(2,))
    assert [trace.name for trace in score_figure(result).data] == ["runs", "chosen"]  # no cross
    assert "its step doubled until it failed" in result.table()


def test_training_loss_validation_loss_and_metric_are_drawn_together() -> None:
    row = Candidate("a", 1, "adam", 0.1, 10, False, 1.0, 4, 1.16)
    curve = ((5, 1.5, 1.0), (20, 0.5, 1.0))
    runs = tuple(
        Run(arm, "adam", arm / 10, 0.0, 20, True, ((0, 20),), curve, (0.5,)) for arm in (1, 2)
    )
    spec: dict[str, Any] = {"budget": 99}
    choice = Choice("a", "value", "race", (row,))
    result = Result(
        spec=spec, choice=choice, plan=None, certificate=None, calls={}, runs=runs, tensors={}
    )
    names = ["run 2: adam 0.2", "run 1: adam 0.1 (chosen)"]
    assert [trace.name for trace in curve_figure(result).data] == names  # no validation data
    looks = (
        Look(1, 20, False, 4, 1.5, 0.0, 0.7),
        Look(0, 0, False, 9, 2.0, 0.25, 0.3),
        Look(1, 10, False, 4, 1.0, math.nan, 0.8),
        Look(2, 20, False, 4, 3.0, 0.0, 0.1),
        Look(1, 20, True, 4, 9.0, 0.0, 0.1),  # an average is no point of the curve
    )
    figure = curve_figure(replace(result, validation=50, looks=looks, measured="f1"))
    left, right = figure.layout.xaxis.range
    assert left < 0.0 < math.log10(20) < right  # from call 1 on, logarithmic
    low, high = figure.layout.yaxis.range
    assert low < math.log10(0.5) and math.log10(9.0) < high  # also what others lost
    # A chosen run that got far worse is shown whole; another candidate that exploded is left out.
    worse = (replace(looks[0], loss=500.0), looks[1], looks[2], replace(looks[3], loss=1e9))
    high = curve_figure(replace(result, validation=50, looks=worse)).layout.yaxis.range[1]
    assert math.log10(500.0) < high < 4.0
    *_, training, held_out, others, metric = figure.data
    assert others.name == "validation loss of other candidates" and list(others.y) == [3.0, 9.0]
    assert training.name == "training loss" and list(training.y) == [1.5, 0.5]
    assert list(held_out.marker.symbol) == ["circle", "star", "circle"]  # chosen after 10 calls
    # From the start point on, at call 1: a logarithmic axis has no zero.
    assert held_out.name == "validation loss" and list(held_out.x) == [1, 10, 20]
    assert list(held_out.y) == [2.0, 1.0, 1.5] and list(held_out.error_y.array) == [0.25, 0.0, 0.0]
    assert metric.name == "validation f1" and list(metric.y) == [0.3, 0.8, 0.7]
    assert metric.yaxis == "y2" and figure.layout.yaxis2.title.text == "f1"
    # An untrained model far below does not set the scale: 0.7 - 0.1 at the lower end.
    far = tuple(replace(look, metric=-9.0) if not look.call else look for look in looks)
    figure = curve_figure(replace(result, looks=far, measured="r2"))
    assert figure.layout.yaxis2.range[0] == pytest.approx(0.6)
    without = tuple(replace(look, metric=math.nan) for look in looks)
    names = [trace.name for trace in curve_figure(replace(result, looks=without)).data]
    assert "validation loss" in names and "validation f1" not in names


def test_a_run_that_went_on_from_the_choice_and_lost_is_drawn_on_validation_data() -> None:
    first = run_of(1, 0, 50, first_loss=2.0)
    second = replace(run_of(2, 50, 90, first_loss=1.0), parent=1)
    looks = tuple(Look(*at, False, 4, 1.0, 0.1, 0.5) for at in ((0, 0), (1, 50), (2, 70), (2, 90)))
    result = replace(result_of(first, second, chosen=1), looks=looks)
    assert [look.call for look in validation_looks(result)] == [0, 50, 70, 90]
    other = replace(second, parent=0)  # not from the choice
    result = replace(result, runs=(first, other))
    assert [look.call for look in validation_looks(result)] == [0, 50]


def test_runs_that_validation_data_scored_are_compared_by_training_loss() -> None:
    run = run_of(1, 0, 50, first_loss=2.0)  # its last loss is 0.5, its score is another's 0.75
    row = Candidate("a", 1, "growing", 1.0, 50, False, 0.75, 3, 0.6)
    result = replace(result_of(run, chosen=1), choice=Choice("a", "value", "race", (row,)))
    for validation, height, title in ((None, 0.75, "mean loss"), (9, 0.5, "mean training loss")):
        figure = score_figure(replace(result, validation=validation))
        (star,) = [trace for trace in figure.data if trace.name == "chosen"]
        assert list(star.y) == [height]
        assert figure.layout.yaxis.title.text == title
