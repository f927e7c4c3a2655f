"""The local body: resumed after any end, the same with any number of workers, never over budget."""

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError, InputError, LockedError, ProblemError
from grasp_tune.core.methods import Method
from grasp_tune.core.spec import AnySchedule
from grasp_tune.runtime.lock import folder_lock
from grasp_tune.runtime.sweep_folder import load_search
from tests.engine import workbench
from tests.executors.sweeps import BUDGET, fingerprint, forked, killed_at, problem, sweep


@pytest.fixture(scope="module")
def expected() -> str:
    """The sweep without a folder, in one process, not interrupted."""
    return fingerprint(sweep(None))


def test_two_workers_give_the_same_bits(expected: str, tmp_path: Path) -> None:
    result = sweep(tmp_path / "two", workers=2)
    assert fingerprint(result) == expected
    assert result.calls["repeated"] == 0
    assert fingerprint(sweep(None, workers=2)) == expected


def test_threads_of_the_user_change_nothing_for_a_light_model(expected: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert fingerprint(sweep(None)) == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_sweeps_in_several_threads_take_turns_with_the_random_numbers(expected: str) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(fingerprint(sweep(None)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_data_whose_reader_starts_processes_go_to_several_workers() -> None:
    x, y = workbench.rows()
    rows = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True, num_workers=1)
    given = workbench.problem(data=lambda: iter(loader))
    one, two = (gt.minimize(given, 60, progress=False, workers=count) for count in (1, 2))
    assert fingerprint(one) == fingerprint(two)


def test_a_forked_worker_frees_nothing_that_was_garbage_of_the_driver(tmp_path: Path) -> None:
    class Handle:  # as Ray's handles of actors, which send a message when they are freed
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    collect = cache(gc.collect)  # once in each process

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        collect()
        return workbench.cross_entropy(model, batch)

    gc.disable()
    try:
        Handle()
        gt.minimize(workbench.problem(loss=loss), 60, progress=False, workers=2)
    finally:
        gc.enable()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_a_loss_with_a_state_of_its_own_is_noticed_where_a_run_goes_on(tmp_path: Path) -> None:
    def stateful(until: int = 10**9) -> gt.TorchProblem:
        calls, own = 0, random.Random(3)

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == until:
                raise KeyboardInterrupt
            return workbench.cross_entropy(model, batch) * own.uniform(0.9, 1.1)

        return workbench.problem(loss=loss)

    undisturbed = sweep(None, stateful())
    assert not undisturbed.notes
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, stateful(until=300))
    resumed = sweep(tmp_path, stateful())
    assert fingerprint(resumed) != fingerprint(undisturbed)
    (note,) = resumed.lost
    assert note.startswith("resumed: a loss came out differently") and note in resumed.notes
    assert sweep(tmp_path, stateful()).lost == (note,)  # still known when it is read again


@pytest.mark.parametrize("schedule", ["promote", "paper"])
def test_validation_that_is_not_finite_is_named(schedule: AnySchedule) -> None:
    x, y = workbench.rows()
    given = workbench.problem(validation=(torch.full_like(x, torch.nan), y))
    result = gt.minimize(given, 600, gt.Convex(), schedule, progress=False)
    assert result.choice.key == "x0"
    assert any("check loss and validation data" in note for note in result.notes)


# In the probe, in the first rung, in the final stretch, in the last race.
@pytest.mark.parametrize("call", [5, 60, 350, 494])
def test_a_killed_run_goes_on_to_the_same_result(call: int, expected: str, tmp_path: Path) -> None:
    assert killed_at(call, tmp_path) == -signal.SIGKILL
    resumed = sweep(tmp_path)
    assert fingerprint(resumed) == expected
    # What was lost is told apart: never more than was asked before the end.
    assert 0 < resumed.calls["repeated"] <= call


def test_the_papers_schedule_goes_on_too_however_often_it_is_killed(tmp_path: Path) -> None:
    for call in (200, 150):
        assert killed_at(call, tmp_path / "killed", "paper") == -signal.SIGKILL
    resumed = sweep(tmp_path / "killed", schedule="paper")
    assert fingerprint(resumed) == fingerprint(sweep(None, schedule="paper"))


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_stopped_run_leaves_a_folder_to_go_on_from(
    number: signal.Signals, workers: int, expected: str, tmp_path: Path
) -> None:
    slow = problem(lambda: time.sleep(0.01))
    process = forked(lambda: sweep(tmp_path, slow, workers=workers))
    state_file = tmp_path / "state.json"
    while not (state_file.exists() and load_search(state_file).outcomes):
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.kill(process, number)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2
    assert load_search(state_file).choice is None
    assert not (tmp_path / "result.json").exists()
    with folder_lock(tmp_path):
        pass  # nobody holds it any more
    assert fingerprint(sweep(tmp_path)) == expected


def test_a_finished_folder_gives_its_result_again(expected: str, tmp_path: Path) -> None:
    sweep(tmp_path)
    seen = 0

    def before() -> None:
        nonlocal seen
        seen += 1

    assert fingerprint(sweep(tmp_path, problem(before))) == expected
    assert seen == 0
    loaded = gt.Result.load(tmp_path, workbench.dropout)
    assert fingerprint(loaded) == expected


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, budget=600)
    with pytest.raises(InputError, match="budget 600 became 500"):
        sweep(tmp_path)
    assert (tmp_path / "result.json").exists()


def test_a_folder_in_use_names_who_uses_it(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(LockedError, match=rf"in use by process {os.getpid()} on "),
    ):
        sweep(tmp_path)


# -- never over budget --------------------------------------------------------------------------

METHODS: dict[str, Method] = {
    "nonconvex": gt.NonConvex(L_eps=0.1, F_eps=0.1),
    "smooth": gt.Convex(d_eps=0.1, L_eps=0.1),
    "universal": gt.Convex(d_eps=0.1, L_eps=0.1, option="universal"),
    "free": gt.ConvexFree(d_eps=0.1),
    "own probe": gt.NonConvex(L_eps=0.1, F_eps=0.1, probe=0.05),
}


def item_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = workbench.cross_entropy(model, batch)
    loss.item()  # cannot be batched
    return loss


@pytest.mark.parametrize("schedule", ["paper", "promote"])
@pytest.mark.parametrize(
    ("name", "batchable"), [*((name, True) for name in METHODS), ("smooth", False)]
)
def test_the_loss_is_never_called_more_often_than_allowed(
    name: str, schedule: AnySchedule, batchable: bool
) -> None:
    seen = 0

    def counted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal seen
        seen += 1
        return (workbench.cross_entropy if batchable else item_loss)(model, batch)

    given = workbench.problem(loss=counted)
    budget = 1500
    result = gt.minimize(given, budget, METHODS[name], schedule=schedule, progress=False)
    spent = {key: value for key, value in result.calls.items() if key != "repeated"}
    assert result.calls["repeated"] == 0
    assert seen <= sum(spent.values()) <= budget
    if not batchable:
        assert seen == sum(spent.values())
    assert sum(run.calls for run in result.runs) == spent["train"]


def test_the_deterministic_method_counts_training_only() -> None:
    for schedule in ("paper", "promote"):
        result = gt.minimize(
            workbench.problem(),
            60,
            gt.Deterministic(d_eps=0.5, L_eps=0.5),
            schedule=schedule,
            progress=False,
        )
        assert result.calls["train"] <= 60
        assert result.score < result.candidates[0].score


# -- bad input ----------------------------------------------------------------------------------


def not_scalar(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    out: Tensor = model(batch[0])
    return out.sum(1)


def nan_start() -> nn.Module:
    model = workbench.linear()
    next(model.parameters()).data.fill_(torch.nan)
    return model


def broken(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    raise RuntimeError("the user's own fault")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": not_scalar}, r"loss: it returned a tensor of shape \(8,\), expected a scalar"),
        ({"model": nn.ReLU}, "model: it has no trainable parameter"),
        ({"model": nan_start}, "at the start point (has norm|is) nan"),
        ({"loss": lambda model, batch: 1.0}, "loss: it returned float, expected a scalar tensor"),
        ({"model": lambda: 3}, "model: it returned int, expected a torch.nn.Module"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    given = workbench.problem(**changes)
    out = tmp_path / "deep/out"
    for workers in (1, 2):
        with pytest.raises(ProblemError, match=words) as caught:
            gt.minimize(given, 800, out=out, progress=False, workers=workers, fused=False)
        assert isinstance(caught.value, ValueError)
        assert "\n" not in str(caught.value)
        assert not out.exists()


def test_a_budget_too_small_names_one_that_works_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("not ours")
    with pytest.raises(gt.BudgetTooSmall, match="smallest budget that works") as caught:
        gt.minimize(workbench.problem(), 20, schedule="paper", out=out, progress=False)
    assert caught.value.smallest > 20
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_loss_that_raises_says_so_itself_and_leaves_nothing(tmp_path: Path) -> None:
    given = workbench.problem(loss=broken)
    for workers in (1, 2):
        with pytest.raises(RuntimeError, match="the user's own fault") as caught:
            gt.minimize(given, 800, out=tmp_path / "out", progress=False, workers=workers)
        assert type(caught.value) is RuntimeError
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "cloud"}, "backend: got 'cloud', expected 'local', 'ray', 'optuna' or an"),
        ({"backend": 3}, "backend: got 3, expected"),
        ({"out": ""}, "out: got '', expected the path of a folder"),
        ({"out": "a\0b"}, r"out: got 'a\\x00b', expected the path of a folder"),
        ({"out": 3}, "out: got 3, expected the path of a folder"),
        ({"schedule": "fast"}, "schedule: got 'fast', expected 'paper' or 'promote'"),
        ({"method": "convex"}, r"method: got 'convex', expected NonConvex\(\)"),
        ({"workers": 0}, "workers: got 0, expected a whole number >= 1"),
        ({"workers": True}, "workers: got True"),
        ({"budget": 0}, "budget: got 0, expected a whole number >= 1"),
        ({"seed": 1.5}, "seed: got 1.5, expected a whole number"),
        ({"fused": "yes"}, "fused: got 'yes', expected True, False or 'auto'"),
        ({"challengers": ("dog",)}, "base: got 'dog', expected one of"),
        ({"problem": "digits"}, "problem: got str, expected a grasp_tune.TorchProblem"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    given = {"problem": workbench.problem(loss=broken), "budget": 800, "out": tmp_path / "out"}
    with pytest.raises(InputError, match=words):
        gt.minimize(**{**given, **changes})
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/out cannot be written"):
        sweep(tmp_path / "file/out")


def test_another_body_can_be_given(tmp_path: Path) -> None:
    class Elsewhere:
        def run(self, problem: gt.TorchProblem, spec: object, **rest: object) -> object:
            return spec, rest["out"]

    body: Any = Elsewhere()
    found: Any = gt.minimize(problem(), BUDGET, backend=body, out=tmp_path / "x")
    assert (found[0].budget, found[1]) == (BUDGET, tmp_path / "x")


def test_workers_of_a_daemon_process_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(gt.SearchError, match="daemon process, which may start no workers"):
        sweep(None, workers=2)
