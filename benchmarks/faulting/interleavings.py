"""The ask/tell core with late, repeated, wrong and unknown outcomes in any order."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

from benchmarks.faulting.row import Row, expect
from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Choice
from grasp_tune.core.errors import GraspError, InputError
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, NonConvex
from grasp_tune.core.search import ATTEMPTS, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, ScoreOutcome, Task, TrainOutcome
from tests.core.simulation import answer

SETTINGS = [
    SweepSpec(method, 4000, schedule=schedule, width=width, probe_parts=parts)
    for schedule in ("paper", "promote")
    for width, parts in ((0, 1), (16, 3))
    for method in (NonConvex(), Convex(), Convex(option="universal"), ConvexFree(), Deterministic())
]
_EXPECTED: dict[int, Choice] = {}


def fuzz(folder: Path, searches: int, seed: int = 0) -> Row:
    """Random interleavings: each search ends with the same choice as the undisturbed one."""
    actions = 0
    for number in range(searches):
        at = (number + seed) % len(SETTINGS)
        if at not in _EXPECTED:
            _EXPECTED[at] = _orderly(Search(SETTINGS[at]))
        fire = _Fire(SETTINGS[at], random.Random(1000 * seed + number))
        choice = fire.until_the_end()
        expect(choice == _EXPECTED[at], f"search {number}: another choice, {choice.key}")
        spent = sum(fire.search.calls.values()) - fire.search.calls["repeated"]
        expect(spent <= 4000, f"search {number}: {spent} calls count, more than 4000")
        actions += fire.actions
    return Row(
        f"results late, double, unknown, wrong, out of order ({actions} events)",
        "core",
        f"same choice in {searches} of {searches} searches",
        "within 4000 each time",
    )


def absurd_numbers(folder: Path, searches: int, seed: int = 0) -> Row:
    """Outcomes with extreme numbers give a choice or one clear error, never a crash."""
    ended = refused = 0
    for number in range(searches):
        chance = random.Random(seed + number)
        search = Search(SETTINGS[number % len(SETTINGS)])
        try:
            choice = _orderly(search, lambda task: _extreme(task, chance))  # noqa: B023
        except GraspError as error:
            expect("\n" not in str(error), f"more than one line: {error}")
            refused += 1
            continue
        ended += 1
        chosen = choice.chosen
        sound = math.isfinite(chosen.score) or chosen.key == START or choice.way == "window"
        expect(sound, f"search {number} chose {chosen}")
        expect(sum(search.calls.values()) <= 4000, f"search {number} spent {search.calls}")
    outcome = f"{ended} choices, all finite or x0; {refused} refused in one line"
    return Row("losses and norms of any size, NaN, infinite", "core", outcome)


class _Fire:
    """One search, and a driver that makes every possible mistake."""

    def __init__(self, spec: SweepSpec, chance: random.Random) -> None:
        self.search, self.chance, self.actions = Search(spec), chance, 0
        self._running: list[Task] = []
        self._ended: list[Task] = []
        self._failures: dict[str, int] = {}
        self._losses: dict[tuple[str, str], int] = {}

    def until_the_end(self) -> Choice:
        actions = [
            (10, self._ask),
            (10, self._tell),
            (2, self._tell_again),
            (1, self._tell_unknown),
            (2, self._tell_nonsense),
            (2, self._fail),
            (2, self._lose),
            (1, self._release),
            (1, self._restore),
        ]
        weights = [weight for weight, _ in actions]
        while self.search.choice is None:
            self.actions += 1
            expect(self.actions < 100_000, "the search does not end")
            self.chance.choices(actions, weights)[0][1]()
        choice = self.search.choice
        self._after_the_end(choice)
        return choice

    def _pick(self) -> Task | None:
        if not self._running:
            return None
        return self._running.pop(self.chance.randrange(len(self._running)))

    def _ask(self) -> None:
        step = self.search.ask()
        if not isinstance(step, Step):
            self._running.append(step)
        elif step is Step.WAIT:
            expect(self._running, "it waits although nothing runs")

    def _tell(self) -> None:
        if (task := self._pick()) is not None:
            self.search.tell(self.chance.choice((task, task.id)), answer(task))
            self._ended.append(task)

    def _tell_again(self) -> None:
        if self._ended:
            task = self.chance.choice(self._ended)
            before = len(self.search.outcomes)
            self.search.tell(task, answer(task))
            expect(len(self.search.outcomes) >= before, "an outcome is forgotten")

    def _tell_unknown(self) -> None:
        expect(not self.search.tell("no-such-task", None), "an unknown task is news")

    def _tell_nonsense(self) -> None:
        if not self._running:
            return
        task = self.chance.choice(self._running)
        known = task.id in self.search.outcomes
        try:
            news = self.search.tell(task, _nonsense(task, self.chance))
        except InputError as error:
            expect("\n" not in str(error), f"more than one line: {error}")
        else:
            expect(known and not news, f"nonsense was taken for the outcome of {task.id}")

    def _fail(self) -> None:
        if (task := self._pick()) is None:
            return
        count = self._failures[task.id] = self._failures.get(task.id, 0) + 1
        if count < ATTEMPTS:  # a lost task changes the answer
            self.search.tell(task, None, "killed")
        else:
            self.search.release(task)

    def _lose(self) -> None:
        if (task := self._pick()) is None:
            return
        keys = [key for key in task.reads if self._losses.get((task.id, key), 0) < ATTEMPTS]
        if not keys:
            self.search.release(task)
            return
        key = self.chance.choice(keys)
        self._losses[task.id, key] = self._losses.get((task.id, key), 0) + 1
        self.search.lost_checkpoint(task, key)

    def _release(self) -> None:
        if (task := self._pick()) is not None:
            self.search.release(task)

    def _restore(self) -> None:
        state = json.loads(json.dumps(self.search.state()))
        self.search = Search.from_state(state, self.search.spec)
        if self.chance.random() < 0.5:
            self._running = []  # their workers are gone; else their outcomes come late

    def _after_the_end(self, choice: Choice) -> None:
        """Check that late outcomes change nothing, and that the chosen point can be made again."""
        for task in self._ended:
            self.search.tell(task, answer(task))
        if choice.key != START:
            self.search.make_again(choice.key)
            expect(_orderly(self.search) == choice, "making a checkpoint again changed the choice")


def _orderly(search: Search, reply: object = answer) -> Choice:
    while not isinstance(step := search.ask(), Step):
        search.tell(step, reply(step))  # type: ignore[operator]
    expect(step is Step.DONE, "it waits although nothing runs")
    expect(search.choice is not None, "done without a choice")
    assert search.choice is not None
    return search.choice


def _nonsense(task: Task, chance: random.Random) -> Outcome:
    """Return an outcome that does not fit the task."""
    right = answer(task)
    wrong = chance.choice((-1, task.calls + 1, 10**30, math.nan, 2.5, True))
    if wrong is True:
        other = ProbeOutcome(0, right.origin, 0, 1.0, 1.0, 1, 0, 1.0, 1.0)
        return ScoreOutcome(0, right.origin, ()) if isinstance(right, ProbeOutcome) else other
    if isinstance(right, TrainOutcome) and chance.random() < 0.5:
        first = replace(right.segments[0], arm=right.segments[0].arm + 1)
        return replace(right, segments=(first, *right.segments[1:]))
    if isinstance(right, ScoreOutcome) and chance.random() < 0.5:
        return replace(right, samples=right.samples[:-1])
    return replace(right, calls=wrong)  # type: ignore[arg-type]


EXTREMES = (math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 1e200, 5e-324, 0.0, -0.0, 1e-200)


def _extreme(task: Task, chance: random.Random) -> Outcome:
    """Return an outcome with arbitrary numbers as losses."""

    def odd(value: float) -> float:
        return chance.choice(EXTREMES) if chance.random() < 0.3 else value

    right = answer(task)
    if isinstance(right, ProbeOutcome):
        norm, square = abs(odd(right.gradient_norm)), abs(odd(right.value_square))
        return replace(right, gradient_norm=norm, value=odd(right.value), value_square=square)
    if isinstance(right, TrainOutcome):
        segments = tuple(
            replace(item, loss=odd(item.loss), window_loss=odd(item.loss), window_norm=odd(1.0))
            for item in right.segments
        )
        return replace(right, segments=segments)
    samples = tuple(
        replace(item, mean=odd(item.mean), square=abs(odd(item.square))) for item in right.samples
    )
    return replace(right, samples=samples)
