"""The ask/tell core: any order, any interruption, the same choice; never more calls than T."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Choice
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, Method, NonConvex
from grasp_tune.core.records import decode, encode
from grasp_tune.core.search import ATTEMPTS, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    ProbeTask,
    ScoreTask,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.runtime.files import read_sealed, write_sealed
from grasp_tune.runtime.sweep_folder import load_search
from grasp_tune.schedules import find_schedule
from tests.core.simulation import answer, run

METHODS: tuple[Method, ...] = (
    NonConvex(),
    Convex(),
    Convex(option="universal"),
    ConvexFree(),
    Deterministic(),
)
SETTINGS = [
    SweepSpec(method, 4000, schedule=schedule, width=width)
    for schedule in ("paper", "promote")
    for width in (0, 16)
    for method in METHODS
]


def drive(search: Search, order: random.Random | None = None) -> Choice:
    """Run a search to its end, tasks ending in a random order if one is given."""
    running: list[Task] = []
    while True:
        step = search.ask()
        if step is Step.DONE:
            assert search.choice is not None
            return search.choice
        if isinstance(step, Step):
            assert running, "it waits although nothing runs"
            at = order.randrange(len(running)) if order else 0
            search.tell(task := running.pop(at), answer(task))
        else:
            running.append(step)


def name_of(spec: SweepSpec) -> str:
    option = getattr(spec.method, "option", "")
    return f"{spec.method.name}{option}-{find_schedule(spec.schedule).name}-{spec.width}"


@pytest.mark.parametrize("spec", SETTINGS, ids=name_of)
def test_a_sweep_ends_within_budget_whatever_order_tasks_end_in(spec: SweepSpec) -> None:
    search = Search(spec)
    choice = drive(search)
    assert sum(search.calls.values()) <= spec.budget
    assert search.calls["repeated"] == 0
    shuffled = Search(spec)
    assert drive(shuffled, random.Random(7)) == choice
    assert shuffled.calls == search.calls
    keys = [row.key for row in choice.candidates]
    assert keys[0] == START and choice.key in keys and len(set(keys)) == len(keys)


@pytest.mark.parametrize("spec", SETTINGS, ids=name_of)
def test_replaying_any_prefix_and_the_rest_equals_the_whole(spec: SweepSpec) -> None:
    whole = Search(spec)
    choice = drive(whole)
    outcomes = dict(whole.outcomes)
    for count in range(0, len(outcomes) + 1, max(1, len(outcomes) // 7)):
        prefix = dict(list(outcomes.items())[:count])
        again = Search(spec)
        again.replay(prefix)
        assert dict(again.outcomes) == prefix
        assert drive(again) == choice
        assert again.calls == whole.calls


@pytest.mark.parametrize("spec", SETTINGS[::3], ids=name_of)
def test_state_survives_json_and_a_file(spec: SweepSpec, tmp_path: Path) -> None:
    search = Search(spec)
    for _ in range(3):
        step = search.ask()
        if not isinstance(step, Step):
            search.tell(step, answer(step))
    write_sealed(tmp_path / "state.json", search.state())
    state = read_sealed(tmp_path / "state.json", 10**7)
    assert Search.from_state(state).state() == search.state()
    again = load_search(tmp_path / "state.json", spec)
    assert drive(again) == drive(search)


def test_a_state_of_another_sweep_is_refused_by_name() -> None:
    state = Search(SweepSpec(NonConvex(), 4000)).state()
    with pytest.raises(InputError, match="seed 0 became 1"):
        Search.from_state(state, SweepSpec(NonConvex(), 4000, seed=1))
    with pytest.raises(InputError, match="format 2"):
        Search.from_state({"format": 1})


def test_numbers_of_numpy_are_written_like_pythons() -> None:
    counts: list[Any] = [np.int64(count) for count in (4000, 3, 16, 2)]
    budget, seed, width, parts = counts
    spec = SweepSpec(NonConvex(), budget, "paper", seed, width=width, probe_parts=parts)
    again = json.loads(json.dumps(spec.to_dict()))
    assert [again[name] for name in ("budget", "seed", "width", "probe_parts")] == counts


class Interleavings(RuleBasedStateMachine):
    """Ask, tell, double tell, late tell, fail, release, save and restore, in any order."""

    @initialize(spec=st.sampled_from(SETTINGS))
    def begin(self, spec: SweepSpec) -> None:
        self.search = Search(spec)
        self.expected = drive(Search(spec))
        self.running: list[Task] = []
        self.ended: list[Task] = []
        self.failures: dict[str, int] = {}

    @rule()
    def ask(self) -> None:
        step = self.search.ask()
        if not isinstance(step, Step):
            self.running.append(step)
        elif step is Step.WAIT:
            assert self.running, "it waits although nothing runs"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.search.tell(task, answer(task))
        self.ended.append(task)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def tell_again(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.ended))
        assert not self.search.tell(task, answer(task))
        assert not self.search.tell(task, None)

    @rule()
    def tell_unknown(self) -> None:
        known = next(iter(self.search.tasks.values()))
        assert not self.search.tell("no-such-task", answer(known))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        count = self.failures.get(task.id, 0)
        if count + 1 < ATTEMPTS:  # lost tasks change the answer: a test of their own
            self.failures[task.id] = count + 1
            self.search.tell(task, None, "killed")
        else:
            self.search.release(task)

    @rule()
    def save_and_restore(self) -> None:
        state = json.loads(json.dumps(self.search.state()))
        self.search = Search.from_state(state, self.search.spec)
        self.running = []  # whoever ran them is gone

    def teardown(self) -> None:
        for task in getattr(self, "running", []):
            self.search.release(task)
        if not hasattr(self, "search"):
            return
        assert drive(self.search) == self.expected
        assert sum(self.search.calls.values()) <= self.search.spec.budget


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_interleavings = Interleavings.TestCase


def test_a_failed_task_comes_back_and_is_lost_after_three_failures() -> None:
    search = Search(SweepSpec(Convex(), 4000, schedule="paper", probe_parts=1))
    probe = search.ask()
    assert isinstance(probe, ProbeTask)
    search.tell(probe, answer(probe))
    victim = search.ask()
    assert isinstance(victim, TrainTask)
    for attempt in range(ATTEMPTS):
        assert search.tell(victim, None, f"fault {attempt}")
        if attempt + 1 < ATTEMPTS:
            assert search.ask() == victim
    assert search.lost == {victim.id: "fault 2"}
    choice = drive(search)
    row = next(row for row in choice.candidates if row.arm == victim.segments[0].arm.index)
    assert row.note == "lost" and choice.key != row.key
    assert any("lost" in note for note in choice.notes)


def test_a_probe_that_keeps_failing_ends_the_search_with_a_sentence() -> None:
    search = Search(SweepSpec(NonConvex(), 4000))
    probe = search.ask()
    assert isinstance(probe, ProbeTask)
    search.tell(probe, None)
    search.tell(probe, None)
    with pytest.raises(SearchError, match="probe failed 3 times"):
        search.tell(probe, None, "disk full")


def test_a_lost_checkpoint_is_made_again_and_counted_apart() -> None:
    search = Search(SweepSpec(Convex(), 4000, schedule="paper"))
    expected = drive(Search(SweepSpec(Convex(), 4000, schedule="paper")))
    scoring: ScoreTask | None = None
    while scoring is None:
        step = search.ask()
        assert not isinstance(step, Step)
        if isinstance(step, ScoreTask):
            scoring = step
        else:
            search.tell(step, answer(step))
    key = scoring.samples[0].key
    search.lost_checkpoint(scoring, key)
    again = search.ask()
    assert isinstance(again, TrainTask) and key in again.writes
    while (other := search.ask()) is not Step.WAIT:  # the scoring waits for it, the others do not
        assert isinstance(other, ScoreTask) and other != scoring
        search.tell(other, answer(other))
    search.tell(again, answer(again))
    assert search.ask() == scoring
    search.tell(scoring, answer(scoring))
    assert drive(search) == expected
    assert search.calls["repeated"] == again.calls


def test_a_checkpoint_that_stays_unreadable_loses_its_reader_in_the_end() -> None:
    search = Search(SweepSpec(Convex(), 4000, schedule="paper"))
    for _ in range(10_000):
        step = search.ask()
        if step is Step.DONE:
            break
        assert not isinstance(step, Step)
        if isinstance(step, ScoreTask) and search.tasks and step.id.endswith("part00"):
            search.lost_checkpoint(step, step.samples[0].key)
        else:
            search.tell(step, answer(step))
    assert search.choice is not None
    assert any("part00" in key for key in search.lost)


def test_a_worker_that_starts_elsewhere_is_refused() -> None:
    search = Search(SweepSpec(NonConvex(), 4000))
    probe = search.ask()
    assert isinstance(probe, ProbeTask)
    search.tell(probe, answer(probe))
    step = search.ask()
    assert isinstance(step, TrainTask)
    data = {**encode(answer(step)), "origin": "elsewhere"}
    with pytest.raises(SearchError, match="same model in every process"):
        search.tell(step, decode(Outcome, data))


@pytest.mark.parametrize("parts", [2, 5])
def test_a_split_probe_is_merged_before_anything_is_trained(parts: int) -> None:
    search = Search(SweepSpec(NonConvex(), 4000, schedule="paper", probe_parts=parts))
    pieces = [search.ask() for _ in range(parts)]
    assert search.ask() is Step.WAIT
    spans = []
    for piece in pieces:
        assert isinstance(piece, ProbeTask)
        spans.append(piece.gradients)
        search.tell(piece, answer(piece))
    assert spans[0][0] == 0 and spans[-1][1] == 1000  # T/4
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    merge = search.ask()
    assert isinstance(merge, ProbeTask) and merge.merge == parts and merge.calls == 0


@given(
    budget=st.integers(1, 200_000), at=st.integers(0, len(METHODS) - 1), width=st.integers(0, 99)
)
@settings(max_examples=150, deadline=None)
def test_no_budget_is_ever_exceeded(budget: int, at: int, width: int) -> None:
    for schedule in ("paper", "promote"):
        spec = SweepSpec(METHODS[at], budget, schedule=schedule, width=width)
        search = Search(spec)
        try:
            drive(search)
        except InputError:
            assert budget < 3000, "so large a budget must work"
            continue
        assert sum(search.calls.values()) <= budget


def shifted(task: Task, by: float) -> Outcome:
    """The simulated outcome of a loss that is lower by `by` everywhere."""
    outcome = answer(task)
    if isinstance(outcome, ProbeOutcome):
        value = outcome.value - by
        return replace(outcome, value=value, value_square=value * value + 0.1)
    if isinstance(outcome, TrainOutcome):
        segments = (
            replace(
                item,
                loss=item.loss - by,
                curve=tuple(replace(point, loss=point.loss - by) for point in item.curve),
            )
            for item in outcome.segments
        )
        return replace(outcome, segments=tuple(segments))
    samples = tuple(replace(item, mean=item.mean - by) for item in outcome.samples)
    return replace(outcome, samples=samples)


def test_a_negative_loss_is_trained_to_its_end_like_any_other() -> None:
    spec = SweepSpec(NonConvex(), 4000)
    plain, lower = drive(Search(spec)), Search(spec)
    while not isinstance(step := lower.ask(), Step):
        lower.tell(step, shifted(step, 7.0))
    assert lower.choice is not None
    ends = [[row.key[6:] for row in one.candidates] for one in (lower.choice, plain)]
    assert ends[0] == ends[1]  # whichever of the runs it was


@pytest.mark.parametrize("budget", [3000, 4000, 5000, 6000, 7000])
def test_exact_values_decide_the_deterministic_sweep(budget: int) -> None:
    choice = drive(Search(SweepSpec(Deterministic(), budget)))
    scores = [row.score for row in choice.candidates]
    assert len(scores) > 2 and choice.chosen.score == min(scores)


def test_without_fresh_samples_the_end_of_the_final_stretch_is_chosen() -> None:
    choice = drive(Search(SweepSpec(Convex(), 4000, ensemble="window")))
    last = max(choice.candidates, key=lambda row: (row.call, not row.average))
    assert choice.key == last.key and not last.average


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("schedule", ["paper", "promote"])
def test_a_split_probe_counts_against_the_budget(schedule: str, method: Method) -> None:
    whole = Search(SweepSpec(method, 4000, schedule=schedule))
    split = Search(SweepSpec(method, 4000, schedule=schedule, probe_parts=3))
    drive(whole)
    drive(split)
    assert split.calls == whole.calls
    assert sum(split.calls.values()) <= 4000


@pytest.mark.parametrize("spec", SETTINGS[::4], ids=name_of)
def test_tasks_and_outcomes_survive_json(spec: SweepSpec) -> None:
    search = Search(spec)
    drive(search)
    for key, task in search.tasks.items():
        assert decode(type(task), json.loads(json.dumps(encode(task)))) == task
        outcome = search.outcomes[key]
        again = decode(Outcome, json.loads(json.dumps(encode(outcome))))
        assert repr(again) == repr(outcome)  # repr: NaN equals nothing


@pytest.mark.parametrize("spec", SETTINGS, ids=name_of)
def test_every_checkpoint_that_is_read_was_written_and_not_yet_discarded(spec: SweepSpec) -> None:
    search = Search(spec)
    there: set[str] = set()
    while not isinstance(step := search.ask(), Step):
        missing = [key for key in step.reads if key not in there]
        assert not missing, f"{step.id} reads {missing}"
        there.update(step.writes)
        search.tell(step, answer(step))
        there.difference_update(search.discardable())
    choice = search.choice
    assert choice is not None and (choice.key == START or choice.key in there)


def test_stopping_early_gives_the_leader_marked_partial() -> None:
    search = Search(SweepSpec(NonConvex(), 4000))
    assert search.partial().key == START and search.partial().partial
    for _ in range(40):
        step = search.ask()
        if isinstance(step, Step):
            break
        search.tell(step, answer(step))
        partial = search.partial()
        assert partial.key in {row.key for row in partial.candidates}


def test_restoring_looks_at_each_task_a_few_times_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, tasks = run(SweepSpec(NonConvex(L_eps=1e-90), 20_000, "paper"))
    assert len(tasks) > 300
    looks, settled = 0, Search.settled

    def counted(self: Search, key: str) -> bool:
        nonlocal looks
        looks += 1
        return settled(self, key)

    monkeypatch.setattr(Search, "settled", counted)
    assert Search.from_state(search.state()).state() == search.state()
    assert looks < 10 * len(tasks)
