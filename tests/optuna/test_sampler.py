"""The sampler in one process: every cell once, the end, failures, presets, other parameters."""

import math
import pickle
import time
import warnings
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

import grasp_tune as gt
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import SweepSpec
from grasp_tune.executors import study as log_module
from grasp_tune.executors.study import CALLS, TASK
from grasp_tune.optuna import GraspSampler, grasp_budget
from grasp_tune.schedules.cells import Cells
from tests.optuna.conftest import Place


def new_study(plan: Plan, **options: object) -> tuple[optuna.Study, GraspSampler]:
    sampler = GraspSampler(plan, "lr", seed=3, **options)  # type: ignore[arg-type]
    return optuna.create_study(sampler=sampler), sampler


def suggested(trial: optuna.Trial) -> float:
    return trial.suggest_float("lr", 1e-9, 1e9, log=True)


def cells_run(study: optuna.Study) -> list[int]:
    done = study.get_trials(states=(TrialState.COMPLETE,))
    return [trial.user_attrs[TASK]["index"] for trial in done if TASK in trial.user_attrs]


def test_every_cell_runs_once_at_its_value_and_the_study_ends(plan: Plan) -> None:
    study, sampler = new_study(plan)
    study.optimize(lambda trial: suggested(trial))
    assert [trial.params["lr"] for trial in study.trials] == [cell.value for cell in plan.cells]
    assert all(type(trial.params["lr"]) is float for trial in study.trials)
    assert cells_run(study) == [cell.index for cell in plan.cells]
    assert sampler.is_exhausted(study)


def test_a_budget_ends_normally_and_counts_what_it_gave(plan: Plan) -> None:
    study, _ = new_study(plan)

    def objective(trial: optuna.Trial) -> float:
        suggested(trial)
        return float(sum(1 for _ in grasp_budget(trial)))

    study.optimize(objective)
    assert [trial.value for trial in study.trials] == [cell.budget for cell in plan.cells]
    assert all(trial.user_attrs[CALLS] == trial.value for trial in study.trials)
    assert sum(trial.user_attrs[CALLS] for trial in study.trials) == plan.training_calls


def test_a_resumed_study_runs_to_the_plan_and_not_beyond(plan: Plan) -> None:
    study, sampler = new_study(plan)
    study.optimize(suggested, n_trials=7)
    assert not sampler.is_exhausted(study)
    again = optuna.create_study(storage=study._storage, sampler=GraspSampler(plan, "lr", seed=3))
    assert again.study_name != study.study_name  # a study of its own starts from the first cell
    resumed = optuna.load_study(
        study_name=study.study_name, storage=study._storage, sampler=GraspSampler.from_study(study)
    )
    resumed.optimize(suggested, n_trials=1000)
    assert sorted(cells_run(resumed)) == [cell.index for cell in plan.cells]
    resumed.optimize(suggested)  # nothing is left: one trial, which ends before it begins
    assert [trial.state for trial in resumed.trials[len(plan.cells) :]] == [TrialState.PRUNED]
    assert not resumed.trials[-1].params


def test_failed_trials_are_issued_again_a_bounded_number_of_times(plan: Plan) -> None:
    study, sampler = new_study(plan)

    def objective(trial: optuna.Trial) -> float:
        value = suggested(trial)
        index, attempt = trial.user_attrs[TASK]["index"], trial.user_attrs[TASK]["attempt"]
        if index == 4 or (index == 9 and attempt == 1):
            raise OSError("the disk of this cell is broken")
        return value

    study.optimize(objective, catch=(OSError,))
    failed = study.get_trials(states=(TrialState.FAIL,))
    # Cell 4 fails three times and is given up; cell 9 fails once.
    assert sorted(trial.user_attrs[TASK]["index"] for trial in failed) == [4, 4, 4, 9]
    assert len(study.trials) == len(plan.cells) + 3
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells if cell.index != 4]
    assert [cell.index for cell in sampler.lost_cells(study)] == [4]
    assert sampler.is_exhausted(study)


def test_an_error_that_ends_the_loop_leaves_its_cell_for_the_next(plan: Plan) -> None:
    study, _ = new_study(plan)

    def objective(trial: optuna.Trial) -> float:
        value = suggested(trial)
        if trial.number == 5:
            raise ZeroDivisionError("once")
        return value

    with pytest.raises(ZeroDivisionError, match="once"):
        study.optimize(objective)
    study.optimize(objective)
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]


def test_ask_and_tell_ends_without_a_crash(plan: Plan) -> None:
    study, sampler = new_study(plan)
    while not sampler.is_exhausted(study):
        trial = study.ask({"lr": sampler.distribution})
        study.tell(trial, trial.params["lr"])
    assert cells_run(study) == [cell.index for cell in plan.cells]


def test_several_asked_at_once_have_several_cells(plan: Plan) -> None:
    study, sampler = new_study(plan)
    asked = [study.ask() for _ in plan.cells]
    assert sampler.is_exhausted(study)  # all given, none told
    assert [sampler.suggest(trial) for trial in asked] == [cell.value for cell in plan.cells]
    with pytest.raises(optuna.TrialPruned, match="every cell"):
        sampler.suggest(study.ask())
    study.tell(asked[3], state=TrialState.FAIL)
    assert not sampler.is_exhausted(study)
    assert sampler.suggest(study.ask()) == plan.cells[3].value


def test_threads_share_the_cells_and_keep_the_seed(plan: Plan) -> None:
    def objective(trial: optuna.Trial) -> float:
        return suggested(trial) * trial.suggest_float("momentum", 0.0, 1.0)

    values = []
    for jobs in (1, 3):
        study, _ = new_study(plan)
        study.optimize(objective, n_jobs=jobs)
        done = study.get_trials(states=(TrialState.COMPLETE,))
        assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]
        values.append({trial.params["lr"]: trial.params["momentum"] for trial in done})
    assert values[0] == values[1]
    assert len(set(values[0].values())) == len(plan.cells)


def test_enqueued_and_added_trials_take_no_cell(plan: Plan) -> None:
    study, sampler = new_study(plan)
    study.enqueue_trial({"lr": 0.25})
    study.add_trial(
        optuna.create_trial(
            params={"lr": 0.5}, distributions={"lr": FloatDistribution(1e-9, 1e9)}, value=1.0
        )
    )
    study.enqueue_trial({"momentum": 0.125})  # says nothing of lr: it takes a cell

    def objective(trial: optuna.Trial) -> float:
        return suggested(trial) + trial.suggest_float("momentum", 0.0, 1.0)

    study.optimize(objective)
    assert len(study.trials) == len(plan.cells) + 2
    own = [trial for trial in study.trials if TASK not in trial.user_attrs]
    assert sorted(trial.params["lr"] for trial in own) == [0.25, 0.5]
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]
    assert study.trials[2].params["momentum"] == 0.125
    assert sampler.is_exhausted(study)


def test_trials_of_another_sampler_take_no_cell(plan: Plan) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(suggested, n_trials=3)
    study.sampler = GraspSampler(plan, "lr")
    study.optimize(suggested)
    assert len(study.trials) == 3 + len(plan.cells)
    assert [trial.params["lr"] for trial in study.trials[3:]] == [c.value for c in plan.cells]


def test_a_user_s_sampler_gets_the_other_parameters(plan: Plan) -> None:
    study, _ = new_study(plan, independent_sampler=optuna.samplers.GridSampler({"depth": [2, 5]}))
    study.optimize(lambda trial: suggested(trial) * trial.suggest_int("depth", 1, 9), n_trials=4)
    assert sorted(trial.params["depth"] for trial in study.trials[:2]) == [2, 5]
    assert [trial.params["lr"] for trial in study.trials] == [
        cell.value for cell in plan.cells[: len(study.trials)]
    ]


def test_the_plan_s_own_range_means_all_of_its_cells(plan: Plan) -> None:
    assert plan.cells[-1].value > plan.range[1]  # the last point stands above the upper end
    study, _ = new_study(plan)
    study.optimize(lambda trial: trial.suggest_float("lr", *plan.range, log=True))
    values = [cell.value for cell in plan.cells[:-1]]
    assert [trial.params["lr"] for trial in study.trials] == [*values, plan.range[1]]
    for trial in study.trials:  # none is stored outside its distribution
        assert trial.distributions["lr"]._contains(trial.params["lr"])
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]


def test_a_range_without_the_value_is_told_and_drawn_from(plan: Plan) -> None:
    study, _ = new_study(plan)
    trial = study.ask()  # cell 1, of about 1e-7
    with pytest.warns(UserWarning, match=r"does not hold .* cell 1, .*suggest_float\('lr'"):
        value = trial.suggest_float("lr", 0.5, 0.75)
    assert 0.5 <= value <= 0.75


@pytest.mark.parametrize("name", ["lr", "rate"])
def test_a_cell_that_was_not_run_is_not_counted_as_done(plan: Plan, name: str) -> None:
    """The range is too narrow, or the parameter is called something else."""
    study, sampler = new_study(plan)
    with pytest.warns(UserWarning, match="does not hold|without asking for 'lr'"):
        study.optimize(lambda trial: trial.suggest_float(name, 0.9, 1.0))
    assert sampler.lost_cells(study) == plan.cells
    assert len(study.trials) == 3 * len(plan.cells)


def test_waiting_for_others_ends_with_the_timeout(plan: Plan, folder: Path) -> None:
    study = optuna.create_study(storage=beating(folder), sampler=GraspSampler(plan, "lr"))
    with pytest.warns(UserWarning, match="supposed to be used with Study.optimize"):
        study.ask()  # somebody else's, and busy
    study.optimize(suggested, n_trials=len(plan.cells) - 1)
    begun = time.monotonic()
    study.optimize(suggested, timeout=1.0)
    assert time.monotonic() - begun < 15.0  # on a busy machine; it used to wait for the other
    assert len(study.get_trials(states=(TrialState.RUNNING,))) == 1


def test_ctrl_c_leaves_no_cell_behind(plan: Plan) -> None:
    study, _ = new_study(plan)

    def interrupted(trial: optuna.Trial) -> float:
        value = suggested(trial)
        if trial.number == 3:
            raise KeyboardInterrupt
        return value

    with pytest.raises(KeyboardInterrupt):
        study.optimize(interrupted)  # Optuna leaves trial 3 running
    study.optimize(suggested)
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]
    assert study.trials[3].state == TrialState.FAIL


def test_ctrl_c_while_waiting_leaves_no_trial_running(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(storage=beating(folder), sampler=GraspSampler(plan, "lr"))
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(log_module, "in_optimize", lambda study: True)
        busy = study.ask()  # as another worker would, under `optimize`
    study.optimize(suggested, n_trials=len(plan.cells) - 1)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(suggested)
    (running,) = study.get_trials(states=(TrialState.RUNNING,))
    assert running.number == busy.number


def beating(folder: Path) -> optuna.storages.RDBStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.storages.RDBStorage(f"sqlite:///{folder}/s.db", heartbeat_interval=60)


def test_trials_that_nobody_tells_are_named_and_can_be_given_back(
    plan: Plan, journal: Place, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = GraspSampler(plan, "lr")
    study = optuna.create_study(storage=journal.open(), sampler=sampler)
    held = [study.ask() for _ in range(2)]  # their workers are on another machine
    with caplog.at_level("WARNING", "grasp_tune"):
        study.optimize(suggested)
    assert "trials [0, 1], asked for outside of study.optimize, have not been told" in caplog.text
    assert sampler.is_exhausted(study)
    for trial in held:
        study.tell(trial.number, state=TrialState.FAIL)
    assert not sampler.is_exhausted(study)
    study.optimize(suggested)
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]


def test_a_sampler_that_groups_its_search_space_serves_the_other_parameters(plan: Plan) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        tpe = optuna.samplers.TPESampler(seed=1, multivariate=True, group=True, n_startup_trials=2)
    study, _ = new_study(plan, independent_sampler=tpe)
    study.optimize(lambda trial: suggested(trial) + trial.suggest_float("momentum", 0.0, 1.0))
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]


# -- the search without a plan -------------------------------------------------------------------


def quadratic(trial: optuna.Trial) -> float:
    """Gradient descent on 50 (x - 1)^2 from x = 3: best at a step of 0.01."""
    step, x = trial.suggest_float("lr", 1e-16, 1e12, log=True), 3.0
    for _ in grasp_budget(trial):
        x -= step * 100.0 * (x - 1.0)
        if abs(x) > 1e100:
            return math.inf
    return 50.0 * (x - 1.0) ** 2


def test_a_budget_alone_finds_the_step_and_ends() -> None:
    sampler = GraspSampler(budget=2000)
    study = optuna.create_study(sampler=sampler)
    study.optimize(quadratic)
    assert sampler.is_exhausted(study)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert sum(trial.user_attrs[CALLS] for trial in study.trials) <= 2000
    assert study.trials[-1].user_attrs[CALLS] >= 1000
    assert 0.002 < study.best_params["lr"] < 0.02
    with pytest.raises(gt.InputError, match="searches without one"):
        _ = sampler.plan


def test_with_checkpoints_trials_go_on_from_earlier_ones() -> None:
    sampler = GraspSampler(budget=2000, resume=True)
    study = optuna.create_study(sampler=sampler)
    points: dict[int, tuple[float, int]] = {}  # by trial: where it ended, and after how many calls

    def objective(trial: optuna.Trial) -> float:
        step, budget = sampler.suggest(trial), grasp_budget(trial)
        x, calls = (3.0, 0) if budget.parent is None else points[budget.parent]
        assert calls == budget.start
        for call in budget:
            assert call == calls
            x, calls = max(min(x - step * 100.0 * (x - 1.0), 1e100), -1e100), calls + 1
        points[trial.number] = x, calls
        return 50.0 * (x - 1.0) ** 2

    study.optimize(objective)
    assert sum(trial.user_attrs[CALLS] for trial in study.trials) == 2000
    last = study.trials[-1]
    assert last.user_attrs[TASK]["start"] > 0
    parent = study.trials[last.user_attrs[TASK]["parent"]]
    assert last.params["lr"] == pytest.approx(parent.params["lr"] * 10**-0.25)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_search_is_the_same_in_threads_and_in_either_direction(direction: str) -> None:
    sign = 1.0 if direction == "minimize" else -1.0
    cells = []
    for jobs in (1, 3):
        sampler = GraspSampler(budget=1000)
        study = optuna.create_study(direction=direction, sampler=sampler)  # type: ignore[arg-type]
        study.optimize(lambda trial: sign * min(quadratic(trial), 1e300), n_jobs=jobs)
        done = study.get_trials(states=(TrialState.COMPLETE,))
        cells.append(sorted((t.user_attrs[TASK]["index"], t.params["lr"]) for t in done))
    assert cells[0] == cells[1]
    assert 0.002 < cells[0][-1][1] < 0.02


def test_the_search_goes_on_in_another_process_and_past_failures() -> None:
    study = optuna.create_study(sampler=GraspSampler(budget=1000))

    def fails_at(trial: optuna.Trial) -> float:
        value = quadratic(trial)
        if trial.user_attrs[TASK]["attempt"] == 1 and trial.user_attrs[TASK]["index"] in (4, 12):
            raise OSError("once")
        return value

    study.optimize(fails_at, n_trials=7, catch=(OSError,))
    study.sampler = GraspSampler.from_study(study)
    study.optimize(fails_at, catch=(OSError,))
    alone = optuna.create_study(sampler=GraspSampler(budget=1000))
    alone.optimize(quadratic)
    assert sorted(cells_run(study)) == cells_run(alone)
    assert study.best_value == alone.best_value


def test_hyperband_s_filtered_study_does_not_hide_cells(plan: Plan) -> None:
    sampler = GraspSampler(plan, "lr")
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.HyperbandPruner())

    def objective(trial: optuna.Trial) -> float:
        value = suggested(trial)
        trial.report(value, 1)
        return value

    study.optimize(objective)
    assert sorted(cells_run(study)) == [cell.index for cell in plan.cells]


def test_a_study_keeps_its_plan(plan: Plan) -> None:
    study, _ = new_study(plan)
    study.optimize(suggested, n_trials=2)
    study.sampler = GraspSampler(gt.NonConvex().plan(budget=7000, grad_norm=1.3), "lr", seed=3)
    with pytest.raises(gt.InputError, match="budget 6000 became 7000"):
        study.optimize(suggested, n_trials=1)
    assert all(trial.state.is_finished() for trial in study.trials)  # nothing is left running
    study.sampler = GraspSampler(plan, "radius", seed=3)
    with pytest.raises(gt.InputError, match=r"parameter 'lr' became 'radius'.*from_study"):
        study.optimize(suggested, n_trials=1)


def test_a_pickled_sampler_goes_on(plan: Plan) -> None:
    study, sampler = new_study(plan)
    study.optimize(suggested, n_trials=5)
    study.sampler = pickle.loads(pickle.dumps(sampler))
    study.optimize(suggested)
    assert cells_run(study) == [cell.index for cell in plan.cells]


def test_multi_objective_studies_are_refused(plan: Plan) -> None:
    study = optuna.create_study(directions=["minimize"] * 2, sampler=GraspSampler(plan, "lr"))
    with pytest.raises(ValueError, match="multi-objective"):
        study.ask()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"plan": [1.0, 2.0]}, "plan: got list"),
        ({"parameter": ""}, "parameter: got ''"),
        ({"budget": 500}, "either a plan or a budget"),
        ({"plan": None, "budget": 3}, "budget: got 3, expected a whole number >= 20"),
    ],
)
def test_wrong_inputs_are_named(plan: Plan, arguments: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"plan": plan, "parameter": "lr", **arguments}
    with pytest.raises(gt.InputError, match=words):
        GraspSampler(**given)  # type: ignore[arg-type]


def test_a_plan_without_cells_is_refused() -> None:
    stationary = gt.NonConvex().plan(budget=6000, grad_norm=0.0)
    with pytest.raises(gt.InputError, match="x0 is the answer"):
        GraspSampler(stationary, "lr")


def test_for_problem_probes_once_and_others_join(problem: gt.TorchProblem, tmp_path: Path) -> None:
    calls = 0

    def counted(model: object, batch: object) -> object:
        nonlocal calls
        calls += 1
        return problem.loss(model, batch)  # type: ignore[arg-type]

    watched = gt.TorchProblem(model=problem.model, loss=counted, data=problem.data, batch_size=4)  # type: ignore[arg-type]
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", study_name="sweep")
    first = GraspSampler.for_problem(watched, 1200, gt.NonConvex(), seed=2, study=study)
    assert calls == 300 == first.plan.probe_calls  # floor(T/4)
    joined = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db")
    second = GraspSampler.for_problem(watched, 1200, gt.NonConvex(), seed=2, study=joined)
    assert calls == 300
    assert second.plan == first.plan
    assert first.parameter == "lr"
    assert math.isclose(first.distribution.low, first.plan.range[0] * 2)
    local = gt.minimize(problem, 1200, gt.NonConvex(), "paper", seed=2, progress=False)
    assert local.plan == first.plan
    with pytest.raises(gt.InputError, match="problem: got str"):
        GraspSampler.for_problem("mnist", 2000)  # type: ignore[arg-type]
    with pytest.raises(gt.InputError, match="no plan"):
        GraspSampler.from_study(optuna.create_study())


def test_the_first_plan_on_a_study_stays(plan: Plan) -> None:
    study = optuna.create_study()
    assert log_module.spec_on(study) is None
    first, second = (Cells(plan, parameter=name).spec(1) for name in ("lr", "radius"))
    assert log_module.spec_on(study, first) == first
    assert log_module.spec_on(study, second) == first
    assert second.difference(first.to_dict()) == "parameter 'lr' became 'radius'"
    other = optuna.create_study()
    log_module.spec_on(other, SweepSpec(gt.NonConvex(), 300))
    with pytest.raises(gt.InputError, match="no plan of a GraspSampler"):
        GraspSampler.from_study(other)


def test_a_plan_that_an_earlier_version_wrote_is_refused_with_a_sentence(plan: Plan) -> None:
    study = optuna.create_study(sampler=GraspSampler(plan, "lr"))
    study.set_user_attr(log_module.SETTING, {"plan": plan.to_dict(), "parameter": "lr"})
    with pytest.raises(gt.InputError, match="another version of grasp_tune has written"):
        study.optimize(suggested)


def test_a_value_depends_on_seed_trial_and_name_alone() -> None:
    study = optuna.create_study()
    trials = [study.ask() for _ in range(2)]
    frozen = [study._storage.get_trial(trial._trial_id) for trial in trials]
    wide = FloatDistribution(0.0, 1.0)

    def draw(seed: int, trial: int, name: str) -> float:
        sampler = GraspSampler(budget=100, seed=seed)
        return float(sampler.sample_independent(study, frozen[trial], name, wide))

    assert draw(4, 0, "m") == draw(4, 0, "m")
    assert len({draw(4, 0, "m"), draw(5, 0, "m"), draw(4, 1, "m"), draw(4, 0, "n")}) == 4
