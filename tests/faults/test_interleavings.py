"""The ask/tell core under fire."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faulting import interleavings
from grasp_tune.core.checkpoint_keys import MOMENTS
from grasp_tune.core.errors import CheckpointError, InputError, ProblemError, SearchError
from grasp_tune.core.methods import Convex, NonConvex
from grasp_tune.core.search import ATTEMPTS, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, Task, TrainOutcome, TrainTask
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import answer


def started() -> tuple[Search, list[Task]]:
    """A search whose first rung, a long list, is under way."""
    schedule = Promote(places=tuple(range(1, 9)))
    search = Search(SweepSpec(NonConvex(base="adam"), 4000, schedule, probe_parts=1))
    for _ in range(2):  # the probe and the ramp
        first = search.ask()
        assert isinstance(first, ProbeTask | TrainTask)
        search.tell(first, answer(first))
    running = []
    while not isinstance(step := search.ask(), Step):
        running.append(step)
    return search, running


def finished() -> Search:
    search = Search(SweepSpec(Convex(), 4000))
    while not isinstance(step := search.ask(), Step):
        search.tell(step, answer(step))
    return search


def test_late_double_unknown_and_wrong_results_change_nothing(tmp_path: Path) -> None:
    interleavings.fuzz(tmp_path, searches=12)


def test_numbers_of_any_size_end_in_a_choice_or_in_one_line(tmp_path: Path) -> None:
    interleavings.absurd_numbers(tmp_path, searches=120)


def test_a_checkpoint_that_many_miss_at_once_is_one_loss() -> None:
    search, running = started()
    readers = [task for task in running if str(MOMENTS) in task.reads]
    assert len(readers) > 2 * ATTEMPTS
    for task in readers:
        search.lost_checkpoint(task, str(MOMENTS))
    probe = search.ask()
    assert isinstance(probe, ProbeTask)
    assert search.ask() is Step.WAIT  # all readers wait for it; none is run in vain, none fails
    search.tell(probe, answer(probe))
    again = {search.ask() for _ in readers}
    assert again == set(readers)
    assert search.state()["failures"] == {} and search.repeated == probe.calls


def test_a_task_that_cannot_write_has_failed_and_waits_for_nobody() -> None:
    search, running = started()
    task = running[0]
    search.lost_checkpoint(task, task.writes[0])
    assert search.ask() == task
    assert search.state()["failures"] == {task.id: [f"it cannot write checkpoint {task.writes[0]}"]}


def test_the_chosen_checkpoint_can_be_made_again_so_often_and_no_more() -> None:
    search = finished()
    assert search.choice is not None
    key, before = search.choice.key, search.calls
    for attempt in range(ATTEMPTS):
        search.make_again(key)
        task = search.ask()
        assert isinstance(task, TrainTask) and key in task.writes
        assert search.tell(task, answer(task)) and search.ask() is Step.DONE
        assert search.calls == {**before, "repeated": (attempt + 1) * task.calls}
    with pytest.raises(CheckpointError, match="although it was made again"):
        search.make_again(key)
    with pytest.raises(SearchError, match="no task makes it"):
        search.make_again("unknown")


def test_a_repetition_that_differs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    search = finished()
    assert search.choice is not None
    search.make_again(search.choice.key)
    task = search.ask()
    assert isinstance(task, TrainTask)
    outcome = answer(task)
    assert isinstance(outcome, TrainOutcome)
    changed = replace(outcome.segments[0], loss=outcome.segments[0].loss + 1e-9)
    with caplog.at_level(logging.WARNING):
        search.tell(task, replace(outcome, segments=(changed, *outcome.segments[1:])))
    assert "came out differently" in caplog.text
    (note,) = Search.from_state(search.state()).notes
    assert note.startswith(f"repeated: {task.id} came out differently")


def test_what_cannot_go_on_says_so_at_every_question() -> None:
    search = Search(SweepSpec(NonConvex(), 4000))
    probe = search.ask()
    assert isinstance(probe, ProbeTask)
    outcome = answer(probe)
    assert isinstance(outcome, ProbeOutcome)
    with pytest.raises(ProblemError, match="at the start point is nan"):
        search.tell(probe, replace(outcome, value=float("nan")))
    for _ in range(2):
        with pytest.raises(ProblemError, match="at the start point is nan"):
            search.ask()


@pytest.mark.parametrize("calls", [-1, 10**9, float("nan"), 1.0, True])
def test_calls_that_a_task_cannot_have_made_are_refused(calls: object) -> None:
    search, running = started()
    outcome = answer(running[0])
    with pytest.raises(InputError, match=r"\bcalls\b"):
        search.tell(running[0], replace(outcome, calls=calls))  # type: ignore[arg-type]
    assert search.tell(running[0], outcome)
