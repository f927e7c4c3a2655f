"""The figures: what they show, and that the dashboard gets them."""

import math

import optuna
import pytest

import grasp_tune as gt
from grasp_tune.core.plan import Plan
from grasp_tune.optuna import GraspSampler, loss_figure, run, rung_figure, save_figures


@pytest.fixture(scope="module")
def sweep(problem: gt.TorchProblem) -> tuple[optuna.Study, gt.Result]:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    study = optuna.create_study(study_name="figures")
    return study, run(study, problem, 500, gt.Convex(L_eps=1.0, base="adam"), "promote", seed=1)


def test_every_run_is_a_point_at_its_step_size(sweep: tuple[optuna.Study, gt.Result]) -> None:
    study, result = sweep
    figure = loss_figure(study)
    assert figure.layout.xaxis.type == "log"
    traces = {trace.name: trace for trace in figure.data}
    points = traces["runs"]
    good = [run for run in result.runs if run.finite]  # by number, as in the figure
    assert list(zip(points.x, points.y, strict=True)) == [
        (run.value, run.losses[-1]) for run in good
    ]
    # The markers grow with the calls of the runs.
    spent = [run.calls for run in good]
    assert [size == max(points.marker.size) for size in points.marker.size] == [
        calls == max(spent) for calls in spent
    ]
    assert len(set(points.marker.size)) == len(set(spent)) > 1
    assert result.cell is not None
    (winner,) = [run for run in good if run.arm == result.cell.index]
    assert list(traces["chosen"].x) == [winner.value]


def test_a_sweep_whose_optimizers_nobody_named_is_drawn_whole(problem: gt.TorchProblem) -> None:
    study = optuna.create_study()
    result = run(study, problem, 600, gt.NonConvex(), "promote", seed=1)
    ends = {(item.value, item.losses[-1]) for item in result.runs if item.finite}
    figure = loss_figure(study)
    seen = {pair for t in figure.data if t.name == "runs" for pair in zip(t.x, t.y, strict=True)}
    assert len(ends) > 3 and len(seen) >= len(ends) - 2  # some are off the scale
    assert seen <= ends


def test_rungs_show_each_stretch_and_the_winner_on_top(
    sweep: tuple[optuna.Study, gt.Result],
) -> None:
    study, result = sweep
    figure = rung_figure(study)
    assert result.cell is not None
    last = figure.data[-1]
    assert last.name.startswith(f"run {result.cell.index}: ") and last.name.endswith("(chosen)")
    (winner,) = [item for item in result.runs if item.arm == result.cell.index]
    assert list(last.x) == [stop for _, stop in winner.stretches]
    assert list(last.y) == list(winner.losses)


def test_a_sampler_s_study_has_the_same_figures(plan: Plan) -> None:
    sampler = GraspSampler(plan, "lr")
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        value = sampler.suggest(trial)
        return 1.0 + value if value < 1.0 else math.inf

    study.optimize(objective)
    traces = {trace.name: trace for trace in loss_figure(study).data}
    good = [cell.value for cell in plan.cells if cell.value < 1.0]
    assert list(traces["runs"].x) == good
    assert list(traces["runs"].y) == [1.0 + value for value in good]
    assert len(traces["diverged"].x) == len(plan.cells) - len(good)
    assert "chosen" not in traces
    first = rung_figure(study).data[0]
    assert list(first.x) == [plan.cells[0].budget]


def test_the_dashboard_finds_both_under_fixed_names(
    sweep: tuple[optuna.Study, gt.Result],
) -> None:
    study, _ = sweep
    for _ in range(2):  # the second replaces the first
        assert save_figures(study) == ("grasp-loss", "grasp-rungs")
    stored = study._storage.get_study_system_attrs(study._study_id)
    names = {key.split(":")[2] for key in stored if "plot_data" in key}
    assert names == {"grasp-loss", "grasp-rungs"}


def test_an_empty_study_has_no_figures() -> None:
    with pytest.raises(gt.InputError, match="no run of grasp_tune"):
        loss_figure(optuna.create_study(study_name="empty"))
