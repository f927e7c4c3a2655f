"""A sweep as figures."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import grasp_tune as gt
from grasp_tune.report.figures import LARGE, TOP, call_figure, curve_figure, score_figure
from grasp_tune.runtime.result import Result
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
    runs = [trace for trace in figure.data if trace.name != "chosen"]
    values = {run.value for run in result.runs}
    assert all(set(trace.x) <= values for trace in runs)
    assert all(math.isfinite(height) for trace in figure.data for height in trace.y)
    assert max(size for trace in runs for size in trace.marker.size) <= LARGE
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
        assert list(trace.x) == [call for call, _, _ in run.curve]
        assert list(trace.y) == [loss for _, loss, _ in run.curve]
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
        "try: figures._plotly()\n"
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
