"""Every executor: the same bits as in this process, whatever dies, is lost or comes late."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import grasp_tune as gt
from grasp_tune.core.search import Progress
from grasp_tune.core.spec import AnySchedule
from grasp_tune.executors import local
from grasp_tune.runtime.callbacks import Reporter
from grasp_tune.runtime.lock import folder_lock
from tests.executors.contract import (
    BUDGET,
    CASES,
    LOCAL,
    SWEEPS,
    Case,
    CountedCalls,
    Forgetful,
    problem,
    spec,
)
from tests.executors.sweeps import fingerprint


def over(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Run a test over these; what needs Ray shares one process of the suite."""
    ray = pytest.mark.xdist_group("ray")
    marked = [pytest.param(c, id=c.name, marks=[ray] if c.name == "ray" else []) for c in cases]
    return pytest.mark.parametrize("case", marked)


every = over(CASES)
mortal = over(case for case in CASES if case.processes)


@pytest.fixture(autouse=True)
def session(case: Case, request: pytest.FixtureRequest) -> None:
    if case.name == "ray":
        request.getfixturevalue("ray_session")


@cache
def expected(name: str = "nonconvex", schedule: AnySchedule = "promote") -> str:
    return fingerprint(LOCAL.run(problem(name), spec(name, schedule)))


@every
@pytest.mark.parametrize("schedule", ["promote", "paper"])
@pytest.mark.parametrize("name", SWEEPS)
def test_the_same_bits_as_in_this_process_and_never_more_calls_than_allowed(
    case: Case, name: str, schedule: AnySchedule, tmp_path: Path
) -> None:
    calls = CountedCalls(tmp_path / "calls seen")
    result = case.run(problem(name, calls), spec(name, schedule), tmp_path / "out")
    assert fingerprint(result) == expected(name, schedule)
    assert result.calls["repeated"] == 0
    assert calls.total == sum(result.calls.values()) <= BUDGET


@every
def test_the_order_in_which_tasks_end_changes_nothing(case: Case) -> None:
    assert fingerprint(case.out_of_order(1).run(problem(), spec())) == expected()


@mortal
def test_a_worker_that_dies_is_replaced(case: Case, tmp_path: Path) -> None:
    once = tmp_path / "once"

    def before() -> None:
        if (tmp_path / "out/checkpoints").exists() and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = case.run(problem(before=before), spec(), tmp_path / "out")
    assert once.exists()
    assert fingerprint(result) == expected()


@over(case for case in CASES if case.name == "process pool")
def test_a_worker_that_never_begins_is_replaced(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve = local._serve

    def stuck(*work: Any) -> None:
        if len(list(tmp_path.glob("stuck-*"))) < 2:  # both of them
            (tmp_path / f"stuck-{os.getpid()}").touch()
            time.sleep(600.0)  # as in a deadlock right after the fork
        serve(*work)

    monkeypatch.setattr(local, "_serve", stuck)
    monkeypatch.setattr(local, "BEGIN", 3.0)
    result = case.run(problem(), spec(), tmp_path / "out")
    assert "a worker process did not begin in 3 s: it is replaced" in caplog.text
    assert fingerprint(result) == expected()


@over(case for case in CASES if case.name == "process pool")
def test_workers_that_all_die_before_they_begin_end_the_run(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_serve", lambda *work: os._exit(3))
    with pytest.raises(gt.SearchError, match=r"no worker process could be started.*exit code 3"):
        case.run(problem(), spec())


@mortal
def test_a_worker_that_always_dies_ends_the_run_with_a_reason(case: Case, tmp_path: Path) -> None:
    with pytest.raises(gt.SearchError, match=r"probe failed 3 times, so nothing can be trained: "):
        case.run(problem(before=lambda: os._exit(7)), spec(), tmp_path / "out")


@every
def test_a_lost_checkpoint_is_made_again(case: Case, tmp_path: Path) -> None:
    store = Forgetful(tmp_path)
    result = case.run(problem(), spec(), tmp_path / "out", store=store)
    assert fingerprint(result) == expected()
    assert list(store.marks.iterdir())
    assert result.calls["repeated"] > 0


class UsersFault(Exception):
    """An error of a kind that the package has never heard of."""


@every
@pytest.mark.parametrize("at", [1, 200])
def test_an_exception_in_the_loss_ends_the_run_as_itself(
    case: Case, at: int, tmp_path: Path
) -> None:
    calls = CountedCalls(tmp_path / "calls seen")

    def before() -> None:
        calls()
        if calls.total >= at:
            raise UsersFault("the user's own fault")

    with pytest.raises(UsersFault, match="the user's own fault"):
        case.run(problem(before=before), spec(), tmp_path / "out")
    assert calls.total < at + 4  # no retry


class Interrupting(Reporter):
    """A reporter in whose middle somebody presses Ctrl-C."""

    def update(self, progress: Progress, calls: int) -> None:
        if progress.phase == "train":
            raise KeyboardInterrupt


@every
def test_an_interrupted_run_lets_go_of_everything_and_goes_on(case: Case, tmp_path: Path) -> None:
    def left() -> int:
        return len(multiprocessing.active_children()) + threading.active_count()

    before = left()
    with pytest.raises(KeyboardInterrupt):
        case.run(problem(), spec(), tmp_path, progress=Interrupting())
    assert left() == before
    with folder_lock(tmp_path):
        pass  # nobody holds it any more
    assert fingerprint(case.run(problem(), spec(), tmp_path)) == expected()
