"""The whole method on a study: the local result, bit for bit, however many processes and faults."""

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
from optuna.artifacts import FileSystemArtifactStore
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import grasp_tune as gt
from grasp_tune.executors.study import Timing
from grasp_tune.optuna import OptunaBackend, run

pytestmark = pytest.mark.xdist_group("optuna-run")

BUDGET = 500
METHOD = gt.Convex(L_eps=1.0, d_eps=0.1)
SEARCH = replace(METHOD, base="adam")  # with no base, so small a budget would go to one run
USED: dict[str, gt.Convex] = {"promote": SEARCH, "paper": METHOD}
SCHEDULES: tuple[str, ...] = ("paper", "promote")
QUICK = Timing(every=0.2, grace=3.0)
NAME = "sweep"

_local: dict[str, gt.Result] = {}


def local(problem: gt.TorchProblem, schedule: str) -> gt.Result:
    """The undisturbed result, worked out once; not fused, so that there are many tasks."""
    if schedule not in _local:
        _local[schedule] = gt.minimize(
            problem, BUDGET, USED[schedule], schedule, seed=4, fused=False, progress=False
        )
    return _local[schedule]


def assert_same(found: gt.Result, expected: gt.Result, *, repeated: bool = False) -> None:
    """The same to the last bit; work that was done twice may be reported beside it."""
    one, two = found.to_dict(), expected.to_dict()
    one.pop("usage")  # of the clock
    two.pop("usage")
    if repeated:
        one["calls"].pop("repeated")
        two["calls"].pop("repeated")
    assert json.dumps(one) == json.dumps(two)
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor, expected.tensors[name])


def sweep(
    study: optuna.Study,
    problem: gt.TorchProblem,
    schedule: str,
    folder: Path,
    timing: Timing = QUICK,
) -> gt.Result:
    store = FileSystemArtifactStore(folder)
    return run(
        study,
        problem,
        BUDGET,
        USED[schedule],
        schedule,
        seed=4,
        fused=False,
        artifact_store=store,
        timing=timing,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_process_gives_the_local_result(problem: gt.TorchProblem, schedule: str) -> None:
    found = gt.minimize(
        problem,
        BUDGET,
        USED[schedule],
        schedule,
        seed=4,
        fused=False,
        backend="optuna",
        progress=False,
    )
    assert_same(found, local(problem, schedule))
    assert torch.equal(found.model.weight, local(problem, schedule).model.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_four_processes_give_the_local_result(
    problem: gt.TorchProblem, schedule: str, folder: Path
) -> None:
    pids = folder / "pids"
    pids.mkdir()

    def signed(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (pids / str(os.getpid())).touch()
        time.sleep(0.001)  # long enough for the others to get a task
        return problem.loss(model, batch)

    found = gt.minimize(
        with_loss(problem, signed), BUDGET, USED[schedule], schedule, seed=4, fused=False,
        backend="optuna", workers=4, out=folder, progress=False,
    )  # fmt: skip
    assert_same(found, local(problem, schedule))
    study = OptunaBackend().open(folder)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    tasks = [trial.user_attrs["task"] for trial in done]
    assert len(tasks) == len(set(tasks))  # no task was run twice
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(list(pids.iterdir())) > 1  # several processes took part
    # The folder again: nothing is left to run, the result is read from the study.
    again = gt.minimize(
        problem, BUDGET, USED[schedule], schedule, seed=4, fused=False, backend="optuna",
        out=folder, progress=False,
    )  # fmt: skip
    assert_same(again, local(problem, schedule))
    assert len(OptunaBackend().open(folder).trials) == len(study.trials)
    assert_same(gt.Result.load(folder, problem.model), local(problem, schedule))


def test_fused_runs_give_the_local_result(problem: gt.TorchProblem) -> None:
    results = [
        gt.minimize(problem, BUDGET, SEARCH, "promote", fused=True, backend=name, progress=False)
        for name in ("local", "optuna")
    ]
    assert_same(results[1], results[0])


class Hanging:
    """A loss that stops for ever at its n-th call in this process, and says so."""

    def __init__(self, loss: Callable[..., torch.Tensor], call: int, sign: Path) -> None:
        self._loss, self._left, self._sign = loss, call, sign

    def __call__(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self._left -= 1
        if self._left == 0:
            self._sign.touch()
            time.sleep(600)
        return self._loss(model, batch)


def with_loss(problem: gt.TorchProblem, loss: Callable[..., torch.Tensor]) -> gt.TorchProblem:
    return gt.TorchProblem(model=problem.model, loss=loss, data=problem.data, batch_size=4)


def heartbeat_storage(folder: Path) -> RDBStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return RDBStorage(f"sqlite:///{folder}/s.db", heartbeat_interval=1, grace_period=3)


def journal_storage(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(f"{folder}/s.journal"))


@pytest.mark.parametrize(
    ("make_storage", "schedule", "timing"),
    [
        (heartbeat_storage, "paper", None),  # the storage's own heartbeat settings
        (journal_storage, "promote", QUICK),  # a storage that has no heartbeat
    ],
)
def test_a_killed_worker_changes_nothing(
    make_storage: Callable[[Path], optuna.storages.BaseStorage],
    schedule: str,
    timing: Timing | None,
    problem: gt.TorchProblem,
    folder: Path,
) -> None:
    expected = local(problem, schedule)
    study = optuna.create_study(study_name=NAME, storage=make_storage(folder))
    hanging = with_loss(problem, Hanging(problem.loss, 250, folder / "sign"))
    store = folder / "artifacts"
    store.mkdir()

    def doomed() -> None:
        own = optuna.load_study(study_name=NAME, storage=make_storage(folder))
        sweep(own, hanging, schedule, store, timing)  # type: ignore[arg-type]

    process = multiprocessing.get_context("fork").Process(target=doomed)
    process.start()
    while not (folder / "sign").exists():
        assert process.is_alive()
        time.sleep(0.02)
    time.sleep(1.5 if timing is None else 0.5)  # a sign of life or two, with its count of calls
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (held,) = study.get_trials(states=(TrialState.RUNNING,))
    found = sweep(study, problem, schedule, store, timing)  # type: ignore[arg-type]
    assert_same(found, expected, repeated=True)
    assert 0 < found.calls["repeated"] <= held.user_attrs["budget"]
    spent = sum(found.calls.values()) - found.calls["repeated"]
    assert spent <= BUDGET
    (dead,) = study.get_trials(states=(TrialState.FAIL,))
    assert dead.number == held.number


class Dying:
    """A loss that kills its process at its n-th call, once for all processes."""

    def __init__(self, loss: Callable[..., torch.Tensor], call: int, sign: Path) -> None:
        self._loss, self._left, self._sign = loss, call, sign

    def __call__(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self._left -= 1
        if self._left == 0 and not self._sign.exists():
            self._sign.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._loss(model, batch)


@pytest.mark.parametrize("dies_at", [None, 60, 300])
def test_a_hard_cap_holds_for_what_a_death_undid(
    problem: gt.TorchProblem, folder: Path, dies_at: int | None
) -> None:
    counted = folder / "counted"
    counted.touch()

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        with counted.open("ab") as file:
            file.write(b"x")
        if counted.stat().st_size == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return problem.loss(model, batch)

    def sweep() -> gt.Result:
        return gt.minimize(
            with_loss(problem, loss), BUDGET, SEARCH, "promote", seed=4, fused=False,
            backend="optuna", hard_cap=True, out=folder / "out", progress=False,
        )  # fmt: skip

    if dies_at is not None:
        doomed = multiprocessing.get_context("fork").Process(target=sweep)
        doomed.start()
        doomed.join(120)
        assert doomed.exitcode == -signal.SIGKILL
    found = sweep()
    assert counted.stat().st_size == sum(found.calls.values()) <= BUDGET
    assert found.partial == (dies_at is not None)  # the budget does not reach for the rest
    if dies_at is None:
        assert_same(found, local(problem, "promote"))


def test_a_worker_of_ours_that_dies_is_replaced_at_once(
    problem: gt.TorchProblem, folder: Path
) -> None:
    dying = with_loss(problem, Dying(problem.loss, 60, folder / "sign"))
    found = gt.minimize(
        dying, BUDGET, SEARCH, "promote", seed=4, fused=False, backend="optuna", workers=2,
        out=folder / "out", progress=False,
    )  # fmt: skip
    assert (folder / "sign").exists()
    assert_same(found, local(problem, "promote"), repeated=True)
    failed = OptunaBackend().open(folder / "out").get_trials(states=(TrialState.FAIL,))
    assert len(failed) == 1


def test_a_task_that_kills_every_worker_is_given_up(problem: gt.TorchProblem, folder: Path) -> None:
    def deadly(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if float(model.weight.detach().abs().max()) > 3.0:  # type: ignore[operator]
            os.kill(os.getpid(), signal.SIGKILL)
        return problem.loss(model, batch)

    found = gt.minimize(
        with_loss(problem, deadly), 300, gt.Convex(L_eps=10.0, d_eps=3.0), "paper",
        fused=False, backend="optuna", workers=2, out=folder, progress=False,
    )  # fmt: skip
    assert any("lost" in note for note in found.notes)
    assert any(row.note == "lost" for row in found.candidates)
    assert any(not row.note for row in found.candidates)


def test_what_the_loss_raises_comes_out_and_the_study_can_go_on(
    problem: gt.TorchProblem, folder: Path
) -> None:
    calls = 0

    def broken(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 250:
            raise ZeroDivisionError("in the user's loss")
        return problem.loss(model, batch)

    study = optuna.create_study(study_name=NAME, storage=journal_storage(folder))
    with pytest.raises(ZeroDivisionError, match="in the user's loss"):
        sweep(study, with_loss(problem, broken), "promote", folder)
    (failed,) = study.get_trials(states=(TrialState.FAIL,))
    assert "in the user's loss" in failed.system_attrs["grasp:fault"][1]
    found = sweep(study, problem, "promote", folder)
    assert_same(found, local(problem, "promote"), repeated=True)
    assert found.calls["repeated"] == failed.system_attrs["grasp:calls"]


def test_an_error_in_one_of_several_workers_ends_the_others(
    problem: gt.TorchProblem, folder: Path
) -> None:
    def broken(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        raise gt.ProblemError("never works")

    with pytest.raises(gt.ProblemError, match="never works"):
        gt.minimize(
            with_loss(problem, broken), BUDGET, METHOD, backend="optuna", workers=2, fused=False,
            out=folder, progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lost_checkpoints_are_made_again(
    problem: gt.TorchProblem, schedule: str, folder: Path
) -> None:
    """Every checkpoint is thrown away whenever scoring or a new rung begins, once each."""
    artifacts, study = folder / "artifacts", optuna.create_study()
    artifacts.mkdir()
    spared: set[str] = set()

    class Forgetful(FileSystemArtifactStore):
        def open_reader(self, artifact_id: str):  # type: ignore[no-untyped-def]
            if artifact_id not in spared:
                spared.add(artifact_id)
                (artifacts / artifact_id).write_bytes(b"cut short")
            return super().open_reader(artifact_id)

    found = run(
        study, problem, BUDGET, USED[schedule], schedule, seed=4, fused=False,
        artifact_store=Forgetful(artifacts),
    )  # fmt: skip
    assert_same(found, local(problem, schedule), repeated=True)
    assert found.calls["repeated"] > 0
    lost = [t for t in study.trials if "grasp:fault" in t.system_attrs]
    assert lost and all(trial.state == TrialState.FAIL for trial in lost)


def test_a_checkpoint_that_never_can_be_read_costs_its_candidates(
    problem: gt.TorchProblem, folder: Path
) -> None:
    expected = local(problem, "paper")
    doomed = expected.choice.key

    class Broken(FileSystemArtifactStore):
        def open_reader(self, artifact_id: str):  # type: ignore[no-untyped-def]
            if doomed in artifact_id:
                (folder / artifact_id).write_bytes(b"cut short")
            return super().open_reader(artifact_id)

    study = optuna.create_study()
    found = run(
        study, problem, BUDGET, METHOD, "paper", seed=4, fused=False,
        artifact_store=Broken(folder),
    )  # fmt: skip
    assert found.choice.key != doomed
    assert len(study.trials) < 100  # and it ends


def test_a_worker_thought_dead_does_no_harm(problem: gt.TorchProblem, folder: Path) -> None:
    """It goes on after its trial was given away: what it then writes is refused and dropped."""
    study = optuna.create_study(study_name=NAME, storage=journal_storage(folder))
    context = multiprocessing.get_context("fork")
    stalled, awake = context.Event(), context.Event()
    calls = 0

    def sleepy(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 250:
            stalled.set()
            assert awake.wait(60)
        return problem.loss(model, batch)

    def take_part() -> None:
        other = optuna.load_study(study_name=NAME, storage=journal_storage(folder))
        mute = Timing(every=600.0, grace=600.0)  # it gives no signs of life
        sweep(other, with_loss(problem, sleepy), "paper", folder, mute).save(folder / "found")

    process = context.Process(target=take_part)
    process.start()
    assert stalled.wait(60)
    impatient = Timing(every=0.2, grace=0.5)
    found = sweep(study, problem, "paper", folder, impatient)
    awake.set()
    process.join(60)
    for result in (found, gt.Result.load(folder / "found")):
        assert_same(result, local(problem, "paper"), repeated=True)


def test_the_best_trial_is_the_chosen_run(problem: gt.TorchProblem) -> None:
    study = optuna.create_study()
    found = run(study, problem, BUDGET, SEARCH, seed=4, fused=False)
    chosen = found.choice.chosen
    assert study.best_params == {"base": chosen.base, "value": chosen.value}
    assert study.best_value == found.score
    finite = [trial for trial in study.trials if trial.value is not None and trial.value < 1e300]
    assert [trial.number for trial in finite] == [study.best_trial.number]
    run(study, problem, BUDGET, SEARCH, seed=4, fused=False)  # says it once
    assert [t.user_attrs["task"] for t in study.trials].count("select") == 1


def test_a_study_keeps_its_setting(problem: gt.TorchProblem) -> None:
    study = optuna.create_study(study_name=NAME)
    run(study, problem, 300, gt.Convex(L_eps=10.0), "paper")
    with pytest.raises(gt.InputError, match="budget 300 became 400"):
        run(study, problem, 400, gt.Convex(L_eps=10.0), "paper")


def test_processes_that_start_elsewhere_are_refused(problem: gt.TorchProblem, folder: Path) -> None:
    study = optuna.create_study(study_name=NAME, storage=journal_storage(folder))
    sweep(study, problem, "paper", folder)

    def elsewhere() -> torch.nn.Module:
        model = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(model.weight, 0.25)
        return model

    other = gt.TorchProblem(model=elsewhere, loss=problem.loss, data=problem.data, batch_size=4)
    with pytest.raises(gt.SearchError, match="starts from another point"):
        sweep(study, other, "paper", folder)


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_only_studies_that_minimise_one_number_serve(
    problem: gt.TorchProblem, directions: list[str]
) -> None:
    with pytest.raises(gt.InputError, match="one objective, to be minimised"):
        run(optuna.create_study(directions=directions), problem, BUDGET)  # type: ignore[arg-type]


def test_a_lasting_study_needs_an_artifact_store(problem: gt.TorchProblem, folder: Path) -> None:
    study = optuna.create_study(storage=journal_storage(folder))
    with pytest.raises(gt.InputError, match="artifact_store: got None"):
        run(study, problem, BUDGET)


def test_the_calls_of_an_instrumented_loss_are_those_of_the_result(
    problem: gt.TorchProblem,
) -> None:
    calls = 0

    def counted(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return problem.loss(model, batch)

    found = run(
        optuna.create_study(), with_loss(problem, counted), BUDGET, METHOD, seed=4, fused=False
    )
    assert calls == sum(found.calls.values()) <= BUDGET


def test_a_backend_object_keeps_the_sweep_where_it_is_told(
    problem: gt.TorchProblem, folder: Path
) -> None:
    url = f"sqlite:///{folder}/sweeps.db"
    backend = OptunaBackend(storage=url, study="mine")
    found = gt.minimize(
        problem, BUDGET, METHOD, "paper", seed=4, fused=False, backend=backend, out=folder,
        progress=False,
    )  # fmt: skip
    assert_same(found, local(problem, "paper"))
    assert len(optuna.load_study(study_name="mine", storage=url).trials) > 2
    with pytest.raises(gt.InputError, match="out: got None"):
        gt.minimize(problem, BUDGET, METHOD, backend=backend, progress=False)
    with pytest.raises(gt.SearchError, match="cannot be opened"):
        OptunaBackend(storage="nosuch://secret@host/db").open()
    with pytest.raises(gt.InputError, match="workers: got 0"):
        OptunaBackend(workers=0)


def test_processes_that_open_a_new_database_at_once_all_get_it(tmp_path: Path) -> None:
    # As threads here: each has its own connection, and all make the tables at the same moment.
    many = 8
    together = threading.Barrier(many, timeout=60)

    def open_study(number: int) -> int:
        backend = OptunaBackend(storage=f"sqlite:///{tmp_path}/{number // many}.db", study="one")
        together.wait()
        return backend.open()._study_id

    with ThreadPoolExecutor(many) as pool:
        found = list(pool.map(open_study, range(5 * many)))
    assert set(found) == {1}
