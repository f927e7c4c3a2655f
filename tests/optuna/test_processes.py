"""Four processes, four kinds of storage: no cell twice, none lost, whoever fails or dies."""

import collections
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from grasp_tune.core.plan import Plan
from grasp_tune.executors import study as log_module
from grasp_tune.executors.study import TASK, Timing
from grasp_tune.optuna import GraspSampler
from grasp_tune.runtime import files
from tests.optuna.conftest import Place

pytestmark = pytest.mark.xdist_group("postgres")

NAME = "shared"
BROKEN = (5, 23)  # cells whose first trial fails


def objective(trial: optuna.Trial) -> float:
    value = trial.suggest_float("lr", 1e-9, 1e9, log=True)
    claim = trial.user_attrs[TASK]
    if claim["index"] in BROKEN and claim["attempt"] == 1:
        raise OSError("fails once")
    time.sleep(0.01)
    return value


def take_part(place: object, plan: Plan) -> None:
    study = optuna.load_study(
        study_name=NAME,
        storage=place.open(),  # type: ignore[attr-defined]
        sampler=GraspSampler(plan, "lr", seed=1),
    )
    study.optimize(objective, catch=(OSError,))


def test_four_processes_take_every_cell_once(
    place: object, plan: Plan, in_processes: object
) -> None:
    study = optuna.create_study(study_name=NAME, storage=place.look())  # type: ignore[attr-defined]
    try:
        in_processes(4, take_part, place, plan)  # type: ignore[operator]
        trials = optuna.load_study(study_name=NAME, storage=place.look()).trials  # type: ignore[attr-defined]
    finally:
        optuna.delete_study(study_name=NAME, storage=study._storage)
    by_state = collections.defaultdict(list)
    for trial in trials:
        by_state[trial.state].append(trial.user_attrs[TASK]["index"])
    assert sorted(by_state[TrialState.COMPLETE]) == [cell.index for cell in plan.cells]
    assert sorted(by_state[TrialState.FAIL]) == list(BROKEN)
    assert set(by_state[TrialState.PRUNED]) <= {0}  # came after the last cell
    assert len(by_state[TrialState.PRUNED]) <= 4 * 2
    assert not by_state[TrialState.RUNNING]
    values = {cell.index: cell.value for cell in plan.cells}
    for trial in trials:
        if trial.state != TrialState.PRUNED:
            assert trial.params["lr"] == values[trial.user_attrs[TASK]["index"]]


def beating(folder: Path) -> RDBStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return RDBStorage(f"sqlite:///{folder}/beats.db", heartbeat_interval=1, grace_period=2)


def hanging(folder: Path) -> Callable[[optuna.Trial], float]:
    def objective(trial: optuna.Trial) -> float:
        value = trial.suggest_float("lr", 1e-9, 1e9, log=True)
        if trial.user_attrs[TASK]["index"] == 3:
            (folder / "hanging").touch()
            time.sleep(600)
        return value

    return objective


def hang_at_cell_three(folder: Path, plan: Plan) -> None:
    sampler = GraspSampler(plan, "lr")
    study = optuna.load_study(study_name=NAME, storage=beating(folder), sampler=sampler)
    study.optimize(hanging(folder))


def kill_when_hanging(folder: Path, work: Callable[[Path, Plan], None], plan: Plan) -> None:
    doomed = multiprocessing.get_context("fork").Process(target=work, args=(folder, plan))
    doomed.start()
    while not (folder / "hanging").exists():
        assert doomed.is_alive()
        time.sleep(0.02)
    assert doomed.pid is not None
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join()


def test_the_cell_of_a_killed_worker_is_taken_over(plan: Plan, folder: Path) -> None:
    study = optuna.create_study(study_name=NAME, storage=beating(folder))
    kill_when_hanging(folder, hang_at_cell_three, plan)
    study.sampler = GraspSampler(plan, "lr")
    # The other cells are done long before the heartbeat is missed: the loop waits for that.
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert sorted(t.user_attrs[TASK]["index"] for t in done) == [c.index for c in plan.cells]
    (dead,) = study.get_trials(states=(TrialState.FAIL,))
    (again,) = [trial for trial in done if trial.user_attrs[TASK]["index"] == 3]
    assert (dead.number, dead.user_attrs[TASK]["index"]) == (2, 3)
    assert (again.params, again.user_attrs[TASK]["attempt"]) == (dead.params, 2)


def hang_on_a_journal(folder: Path, plan: Plan) -> None:
    storage = JournalStorage(JournalFileBackend(f"{folder}/s.journal"))
    study = optuna.load_study(study_name=NAME, storage=storage, sampler=GraspSampler(plan, "lr"))
    study.optimize(hanging(folder))


def test_without_a_heartbeat_a_worker_killed_on_this_machine_is_noticed(
    plan: Plan, folder: Path
) -> None:
    storage = JournalStorage(JournalFileBackend(f"{folder}/s.journal"))
    sampler = GraspSampler(plan, "lr")
    study = optuna.create_study(study_name=NAME, storage=storage, sampler=sampler)
    kill_when_hanging(folder, hang_on_a_journal, plan)
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert sorted(t.user_attrs[TASK]["index"] for t in done) == [c.index for c in plan.cells]
    (dead,) = study.get_trials(states=(TrialState.FAIL,))
    assert dead.user_attrs[TASK]["index"] == 3


def test_optuna_s_own_retry_keeps_the_cell(plan: Plan, folder: Path) -> None:
    known = vars(optuna.storages)  # the second is its older name
    name = {"RetryHeartbeatStaleTrialCallback", "RetryFailedTrialCallback"} & known.keys()
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        retry = known[max(name)](max_retry=2)
    study = optuna.create_study(sampler=GraspSampler(plan, "lr"))
    asked = [study.ask() for _ in range(3)]
    for trial in asked[:2]:
        trial.suggest_float("lr", 1e-9, 1e9, log=True)
    for trial in asked[1:]:  # the second had its value, the third had not got that far
        study.tell(trial, state=TrialState.FAIL)
        retry(study, study.trials[trial.number])
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    study.tell(asked[0], 1.0)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert sorted(t.user_attrs[TASK]["index"] for t in done) == [c.index for c in plan.cells]
    assert done[1].user_attrs[TASK]["index"] == 2  # the value that it had
    assert len(study.trials) == len(plan.cells) + 2


def test_a_worker_that_dies_before_it_wrote_anything_costs_no_cell(plan: Plan) -> None:
    study = optuna.create_study(sampler=GraspSampler(plan, "lr"))
    study.ask()
    study._storage.create_new_trial(study._study_id)  # no attribute of ours
    assert study.ask().user_attrs[TASK]["index"] == 2  # at once
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    taken = [t.user_attrs[TASK]["index"] for t in study.trials if TASK in t.user_attrs]
    assert taken == [cell.index for cell in plan.cells]


def test_a_running_trial_of_another_sampler_is_left_alone(plan: Plan) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    other = study.ask()
    other.suggest_float("lr", 0.1, 1.0)
    study.sampler = GraspSampler(plan, "lr")
    assert study.ask().user_attrs[TASK]["index"] == 1
    assert study.trials[other.number].state == TrialState.RUNNING


@pytest.mark.parametrize("first", [True, False])
def test_of_two_that_want_one_cell_the_later_takes_another(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    study = optuna.create_study(sampler=GraspSampler(plan, "lr"))
    samplers = [GraspSampler(plan, "lr") for _ in range(2)]  # of two processes
    write, other = log_module.show_trial, list[Any]()

    def meanwhile(study: optuna.Study, trial: optuna.trial.FrozenTrial, shown: Any) -> None:
        if not first:
            write(study, trial, shown)
        if not other:
            study.sampler = samplers[1]
            other.append(trial)
            other[0] = study.ask()  # before or after the first has written what it takes
        if first:
            write(study, trial, shown)

    study.sampler = samplers[0]
    monkeypatch.setattr(log_module, "show_trial", meanwhile)
    mine = study.ask()
    taken = [trial.user_attrs[TASK]["index"] for trial in (mine, other[0])]
    assert 1 in taken and taken[0] != taken[1]
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    done = [trial.user_attrs[TASK]["index"] for trial in study.trials]
    assert sorted(done) == [cell.index for cell in plan.cells]


def test_a_worker_that_is_silent_elsewhere_loses_its_cell(
    plan: Plan, journal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal has no heartbeat of Optuna's; 38 of 40 cells used to be lost without a word."""
    quick = classmethod(lambda kind, study: Timing(0.1, 0.6))
    monkeypatch.setattr(Timing, "of", quick)
    study = optuna.create_study(storage=journal.open(), sampler=GraspSampler(plan, "lr"))
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "in_optimize", lambda study: True)
        patch.setattr(files, "process_name", lambda: "another-machine.1")
        study.sampler = GraspSampler(plan, "lr")
        gone = [study.ask().number for _ in range(2)]
    study.sampler = GraspSampler(plan, "lr")
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-9, 1e9, log=True))
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert sorted(t.user_attrs[TASK]["index"] for t in done) == [c.index for c in plan.cells]
    assert [study.trials[number].state for number in gone] == [TrialState.FAIL] * 2
