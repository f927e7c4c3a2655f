"""The search of `promote`: which kind of run, with which step, is worth the rest of the budget.

Rung after rung the best run of each kind goes on beside runs with smaller and larger steps, fewer
kinds and fewer calls apart each time. The step falls to zero inside each rung, as it will in the
end, and fresh samples at the ends rank them: losses seen while training are of rows not yet seen,
which favours timid steps.
"""

import itertools
import math
import statistics
from collections.abc import Generator
from dataclasses import dataclass, field

from grasp_tune.core.ensemble import Tally, paired_samples, ranking
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, score_tasks, train_tasks
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    START,
    Arm,
    ProbeOutcome,
    ScoreOutcome,
    ScoreTask,
    Segment,
    SegmentOutcome,
    TrainOutcome,
    TrainTask,
    state_key,
)
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.race import collect
from grasp_tune.schedules.step_extrapolation import Sight

FIRST_CALLS = 3  # of each run of the grid, at least
BLOCKS = 8  # of the fresh samples of a rung: their spread tells the noise
DIVERGED = 10.0  # a run whose loss exceeds so many times the start's has diverged


@dataclass(frozen=True, slots=True)
class Rung:
    """How much a rung may spend, and who gets there."""

    share: float  # of T
    kinds: int = 0  # the best kinds of the rung before; 0: everything that the grid has
    factors: tuple[float, ...] = (1.0,)  # times the best step of each kind
    looks: float = 0.0  # share of T for fresh samples at its ends


GROWTH = Rung(0.1, looks=0.006)  # of runs that measure their distance: the only one they have
GRID = Rung(0.03)
FINER = Rung(0.01, 3, (1 / 16, 1.0, 16.0))  # only after the coarsest grid
RUNGS = (
    Rung(0.04, 3, (1 / 16, 1 / 4, 1.0, 4.0, 16.0)),
    Rung(0.05, 3, (1 / 4, 1.0, 4.0), looks=0.008),
    Rung(0.06, 2, (1 / 4, 1.0, 4.0), looks=0.008),
    Rung(0.15, 1, (1 / 4, 1.0, 4.0), looks=0.01),
)


@dataclass
class Stand:
    """Where the schedule stands: rebuilt by replay, never saved."""

    spec: SweepSpec
    start: ProbeOutcome
    plan: Plan
    left: int  # oracle calls not yet spent or promised
    fresh: int = 1  # the first run number that nobody has used
    sampled: int = 0  # samples of the ensemble's stream used so far
    leader: str = START
    begun: tuple[str, ...] = ()  # states from which the runs of this rung began
    discard: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def ceiling(self) -> float | None:
        """Return the loss above which a run has diverged, None where the start gives no scale."""
        value = self.start.value
        spread = self.start.value_square - value * value
        height = (DIVERGED - 1.0) * abs(value) + DIVERGED * math.sqrt(max(0.0, spread))
        return value + height if height > 0.0 and math.isfinite(height) else None

    def new_arm(self, like: Arm, value: float) -> Arm:
        """Return a run with a number of its own."""
        self.fresh += 1
        return like.with_value(self.fresh - 1, value)


@dataclass(frozen=True, slots=True)
class Ranked:
    """The ends of one rung."""

    age: int  # oracle calls that each run has had
    arms: list[Arm]  # best first; only those that are still finite
    losses: dict[Arm, float]  # all of them
    noise: float  # standard error of the difference between the two best

    def sight(self, arm: Arm) -> Sight:
        """Return what this rung says about the steps of runs of one kind."""
        own = {a.value: x for a, x in self.losses.items() if a.kind == arm.kind}
        return Sight(self.age, own, self.noise)


def least_calls(number: int) -> int:
    """Return how many calls a run of a rung has at least."""
    return FIRST_CALLS + (number > 0)


def climb(
    stand: Stand,
    rung: Rung,
    number: int,
    before: Ranked,
    extra: tuple[TrainTask, ...] = (),
) -> Generator[Round, Known, tuple[Ranked, Known]]:
    """Yield one rung above `before`; return its ends, and what became of the `extra` tasks."""
    spec = stand.spec
    arms, origins = entrants(stand, rung, before)
    calls = max(least_calls(number), int(rung.share * spec.budget / len(arms)))
    age = before.age + calls
    fall = (before.age, age) if number > 0 else None
    ceiling = stand.ceiling()
    segments = [
        Segment(
            arm,
            before.age,
            age,
            save=True,
            anneal=fall,
            # One that measures its distance begins by trying distances that are too large.
            ceiling=None if described(arm.base).measures_distance else ceiling,
            origin=origins.get(arm.index),
        )
        for arm in arms
    ]
    tasks = train_tasks(f"rung{number}", segments, spec.width, exact=spec.method.exact)
    known = yield Round(
        (*tasks, *extra), plan=stand.plan, leader=stand.leader, discard=stand.discard
    )
    found = {item.arm: item for item in outcomes(tasks, known)}
    stand.left -= sum(item.calls for item in found.values())
    losses = {arm: _loss(found.get(arm.index)) for arm in arms}
    noise = 0.0
    seen = yield from _looks(stand, rung, number, losses, age)
    if seen is not None:
        losses, noise = seen
    order = ranking(list(losses.values()))
    alive = [arms[at] for at in order if math.isfinite(losses[arms[at]])]
    return Ranked(age, alive, losses, noise), known


def entrants(stand: Stand, rung: Rung, before: Ranked) -> tuple[list[Arm], dict[int, str]]:
    """Return who runs in a rung, and the states from which the new ones among them begin.

    States that nobody needs any more are put down for discarding: the ends from which nobody goes
    on, and where the runs of the rung before began.
    """
    if not rung.kinds:
        return before.arms, {}
    chosen: list[Arm] = []
    origins: dict[int, str] = {}
    kinds = list(dict.fromkeys(arm.kind for arm in before.arms))
    for kind in kinds[: rung.kinds]:
        own = [arm for arm in before.arms if arm.kind == kind]
        top = own[0]
        for factor in rung.factors:
            value = top.value * factor
            near = [arm for arm in own if 0.5 * value < arm.value < 2.0 * value]
            if near:
                chosen.append(near[0])
            elif 0.0 < value < math.inf and described(top.base).changes_step:
                chosen.append(stand.new_arm(top, value))
                origins[chosen[-1].index] = state_key(top.index, before.age)
    ended = {state_key(arm.index, before.age) for arm in before.losses}
    kept = ended & {origins.get(arm.index, state_key(arm.index, before.age)) for arm in chosen}
    stand.discard = tuple(sorted((ended | set(stand.begun)) - kept))
    stand.begun = tuple(sorted(kept))
    return chosen, origins


def outcomes(tasks: tuple[TrainTask, ...], known: Known) -> list[SegmentOutcome]:
    """Return how each run of the tasks went; those that were lost are left out."""
    told = [known[task.id] for task in tasks]
    return [item for out in told if isinstance(out, TrainOutcome) for item in out.segments]


def _loss(item: SegmentOutcome | None) -> float:
    return item.loss if item is not None and item.finite else math.nan


def _looks(
    stand: Stand, rung: Rung, number: int, losses: dict[Arm, float], age: int
) -> Generator[Round, Known, tuple[dict[Arm, float], float] | None]:
    """Yield fresh samples at the ends of a rung; return the losses there, None without any."""
    alive = {arm: state_key(arm.index, age) for arm, loss in losses.items() if math.isfinite(loss)}
    count = int(rung.looks * stand.spec.budget / max(1, len(alive)))
    if count < BLOCKS or stand.spec.method.exact or stand.spec.ensemble == "window":
        return None
    ends = [stand.sampled + count * at // BLOCKS for at in range(BLOCKS + 1)]
    stand.sampled += count
    samples = [
        sample
        for key in alive.values()
        for first, stop in itertools.pairwise(ends)
        for sample in paired_samples([key], first, stop)
    ]
    tasks = score_tasks(f"look{number}", samples, "value")
    known = yield Round(tasks, plan=stand.plan, leader=stand.leader)
    stand.left -= sum(out.calls for out in known.values() if out is not None)
    tallies: dict[str, Tally] = {}
    collect(tasks, known, tallies)
    means = {key: tallies[key].mean if key in tallies else math.nan for key in alive.values()}
    fresh = {arm: means[alive[arm]] if arm in alive else math.nan for arm in losses}
    return fresh, _noise(tasks, known, means)


def _noise(tasks: tuple[ScoreTask, ...], known: Known, means: dict[str, float]) -> float:
    """Return the standard error of the difference between the two best, from their blocks."""
    parts: dict[str, list[float]] = {}
    for task in tasks:
        told = known[task.id]
        for item in told.samples if isinstance(told, ScoreOutcome) else ():
            parts.setdefault(item.key, []).append(item.mean)
    keys = list(means)
    best = [keys[at] for at in ranking(list(means.values()))]
    whole = [parts[key] for key in best if len(parts.get(key, ())) == BLOCKS][:2]
    if len(whole) < 2:
        return 0.0
    gaps = [one - other for one, other in zip(*whole, strict=True)]
    if not all(map(math.isfinite, gaps)):
        return 0.0
    spread: float = statistics.stdev(gaps)  # the variance may be beyond all numbers
    return spread / math.sqrt(BLOCKS)
