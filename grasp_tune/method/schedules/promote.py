"""The default schedule: many short runs, then nearly everything on the best of them.

1. Probe: a small share of T at x0, for the range and for the size of each coordinate's gradients.
2. First rung: every run of the grid gets a few calls, and so does the paper's own sweep on its
   share of the budget (`guarantee`), which carries the theorem.
3. Rungs: the better ones go on from where they are, ranked by their mean loss on common
   minibatches; the step falls to zero inside each rung, as it will in the end.
4. Final stretch: the winner gets the rest, its step falling to zero. It is cut into parts; one that
   makes the loss jump is undone and repeated with a smaller step.
5. Race: a few candidates on paired fresh minibatches.

Why these numbers: docs/results.md.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field

from grasp_tune.method.choice import Candidate, Choice
from grasp_tune.method.ensemble import best, ranking
from grasp_tune.method.errors import BudgetTooSmall
from grasp_tune.method.plan import Plan
from grasp_tune.method.rounds import Known, Round, Schedule, train_tasks
from grasp_tune.method.schedules.arms import first_arms
from grasp_tune.method.schedules.guarantee import SHARE, Floor, floor_choice, floor_plan
from grasp_tune.method.schedules.paper import start_candidate
from grasp_tune.method.schedules.probing import probing
from grasp_tune.method.schedules.racing import racing
from grasp_tune.method.setting import Setting
from grasp_tune.method.tasks import (
    START,
    Arm,
    ProbeOutcome,
    Segment,
    SegmentOutcome,
    TrainOutcome,
    TrainTask,
    average_key,
    iterate_key,
    state_key,
)

PROBE = 1 / 64  # share of T at x0
RUNG = 0.06  # share of T for each rung
KEEP = (24, 12, 6, 3, 1)  # runs that survive each rung
FIRST_CALLS = 3  # of each run in the first rung, at least
FIRST_SHARE = 0.12  # of T, at most, for those
ANNEAL_FROM = 1  # the first rung in which the step falls to 0, to be up again in the next
PARTS = 8  # of the final stretch
SHRINK = 0.25  # power of its age with which the winner's step shrinks besides
JUMP = 2.0  # a part whose loss is so many times the part before's is undone
BACKOFF = 4.0  # and its step divided by this
GAMMA = 8.0  # exponent of the running average in the final stretch
RACE = 0.02  # share of T for the last choice
DIVERGED = 10.0  # a run whose loss exceeds so many times the start's has diverged


@dataclass
class _Stand:
    """Where the schedule stands: rebuilt by replay, never saved."""

    setting: Setting
    start: ProbeOutcome
    plan: Plan
    left: int  # oracle calls not yet spent or promised
    leader: str = START
    discard: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def jump_above(self, before: float) -> float:
        """Return the loss at which a part has made it jump, after a part that ended at `before`.

        A loss that may be negative has no zero to be a multiple of: it then jumps where it loses
        all that was gained since the start.
        """
        if before > 0.0:
            return JUMP * before
        return before + max(-before, self.start.value - before)

    def ceiling(self) -> float | None:
        """Return the loss above which a run has diverged, None where the start gives no scale."""
        value = self.start.value
        spread = self.start.value_square - value * value
        height = (DIVERGED - 1.0) * abs(value) + DIVERGED * math.sqrt(max(0.0, spread))
        return value + height if height > 0.0 and math.isfinite(height) else None


def promote(setting: Setting) -> Schedule:
    """Yield the rounds of the default schedule; return its choice."""
    method, budget = setting.method, setting.budget
    start = yield from probing(
        0 if method.exact else probe_calls(setting),
        0,
        parts=setting.probe_parts,
        moments=True,
        exact=method.exact,
    )
    plan = _plan(setting, start)
    rows = [start_candidate(start, "value")]
    if plan.stationary:
        note = "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary"
        return Choice(START, "value", "stationary", tuple(rows), notes=(note,))
    race = 0 if method.exact or setting.ensemble == "window" else max(8, int(RACE * budget))
    stand = _Stand(setting, start, plan, left=budget - start.calls - race)
    arms = first_arms(setting, start, most=int(FIRST_SHARE * budget / FIRST_CALLS))
    floor = floor_plan(setting, start, first_arm=len(arms) + 1)
    winner, age, guaranteed = yield from _rungs(stand, arms, floor)
    if winner is not None:
        fresh = 1 + len(arms) + (len(floor.plan.cells) if floor is not None else 0)
        rows += yield from _final(stand, winner, age, fresh)
    if guaranteed is not None:
        rows.append(guaranteed)
    if race or method.exact:
        rows = yield from racing(rows, race, plan=plan, leader=stand.leader, exact=method.exact)
    return _choose(stand, rows, guaranteed, "race" if race or method.exact else "window")


def probe_calls(setting: Setting) -> int:
    """Return how many gradients the probe takes."""
    share = getattr(setting.method, "probe", None)
    return max(2, int(setting.budget * (PROBE if share is None else share)))


def _plan(setting: Setting, start: ProbeOutcome) -> Plan:
    """Return the paper's plan for the whole budget; without re-sampling where that cannot pay."""
    norm, value = start.gradient_norm, start.value
    try:
        return setting.method.plan(setting.budget, grad_norm=norm, value=value)
    except BudgetTooSmall:
        if setting.method.exact:
            raise
        return setting.method.plan(setting.budget, grad_norm=norm, value=value, ensemble="window")


def _rungs(
    stand: _Stand, arms: list[Arm], floor: Floor | None
) -> Generator[Round, Known, tuple[Arm | None, int, Candidate | None]]:
    """Yield the rungs; return the winner, its age in calls, and the paper's own choice."""
    setting, budget = stand.setting, stand.setting.budget
    guaranteed: Candidate | None = None
    age = 0
    if floor is not None:
        stand.left -= floor.calls
    for number, keep in enumerate(KEEP):
        least = FIRST_CALLS if number == 0 else FIRST_CALLS + 1
        calls = max(least, int(RUNG * budget / len(arms)))
        if calls * len(arms) > stand.left // 2:
            break  # too small a budget for another rung: the best so far goes on
        fall = (age, age + calls) if number >= ANNEAL_FROM else None
        segments = [
            Segment(arm, age, age + calls, save=True, anneal=fall, ceiling=stand.ceiling())
            for arm in arms
        ]
        tasks = train_tasks(f"rung{number}", segments, setting.width, exact=setting.method.exact)
        extra = floor.tasks if floor is not None and number == 0 else ()
        known = yield Round(
            (*tasks, *extra), plan=stand.plan, leader=stand.leader, discard=stand.discard
        )
        if extra and floor is not None:
            guaranteed = yield from floor_choice(setting, floor, known, stand.plan, stand.leader)
        losses = _losses(stand, tasks, known)
        age += calls
        scores = [losses.get(arm.index, math.nan) for arm in arms]
        order = [at for at in ranking(scores) if math.isfinite(scores[at])][:keep]
        kept = [arms[at] for at in order]
        gone = {arm.index for arm in arms} - {arm.index for arm in kept}
        stand.discard = tuple(state_key(index, age) for index in sorted(gone))
        arms = kept
        if not arms:
            stand.notes.append("no run stayed finite")
            return None, age, guaranteed
        stand.leader = state_key(arms[0].index, age)
        if len(arms) == 1:
            break
    return arms[0], age, guaranteed


def _losses(stand: _Stand, tasks: tuple[TrainTask, ...], known: Known) -> dict[int, float]:
    """Return each run's loss, NaN for one that diverged; what was spent is taken off."""
    found: dict[int, float] = {}
    for item in _outcomes(tasks, known):
        found[item.arm] = item.loss if item.finite else math.nan
        stand.left -= item.calls
    return found


def _outcomes(tasks: tuple[TrainTask, ...], known: Known) -> list[SegmentOutcome]:
    outcomes = [known[task.id] for task in tasks]
    return [item for out in outcomes if isinstance(out, TrainOutcome) for item in out.segments]


def _final(
    stand: _Stand, arm: Arm, age: int, fresh: int
) -> Generator[Round, Known, list[Candidate]]:
    """Yield the winner's final stretch part by part; return its candidates.

    `fresh` is the first run number that nobody has used: a part that is undone goes on as another
    run, from the last good state, on minibatches of its own.
    """
    setting = stand.setting
    begin, end = age, age + stand.left
    good: str | None = state_key(arm.index, age) if age else None
    rows = [_row(good, arm, age, average=False)] if good is not None else []
    kept = arm  # the run that the last good state belongs to
    before, ends, discard = math.inf, None, stand.discard
    for part in range(PARTS):
        first = begin + stand.left * part // PARTS
        stop = begin + stand.left * (part + 1) // PARTS
        if stop <= first:
            continue
        last = part == PARTS - 1
        segment = Segment(
            arm,
            first,
            stop,
            keep=(stop,) if last else (),
            averages=(GAMMA,),
            keep_averages=last,
            save=not last,
            anneal=(begin, end),
            shrink=SHRINK,
            origin=good,
        )
        tasks = train_tasks(f"final{part}", [segment], 0, exact=setting.method.exact)
        known = yield Round(tasks, plan=stand.plan, leader=stand.leader, discard=discard)
        items = _outcomes(tasks, known)
        loss = items[0].loss if items and items[0].finite else math.nan
        discard = ()
        if loss < stand.jump_above(before) or (part == 0 and math.isfinite(loss)):
            before = loss
            ends = (arm, stop) if last else None
            if not last:
                if good is not None and good not in [row.key for row in rows]:
                    discard = (good,)  # the start of the stretch stays, it is a candidate
                kept, good = arm, state_key(arm.index, stop)
                stand.leader = good
        else:
            if not last:
                discard = (state_key(arm.index, stop),)
            arm = Arm(fresh, arm.base, arm.value / BACKOFF, arm.power)
            fresh += 1
    stand.discard = discard
    if ends is not None:
        winner, stop = ends
        rows.append(_row(iterate_key(winner.index, stop), winner, stop, average=False))
        rows.append(_row(average_key(winner.index, stop, GAMMA), winner, stop, average=True))
        stand.leader = rows[-2].key
    elif good is not None and good not in [row.key for row in rows]:
        rows.append(_row(good, kept, int(good.split("-")[1]), average=False))
    return rows


def _row(key: str, arm: Arm, call: int, *, average: bool) -> Candidate:
    return Candidate(key, arm.index, arm.base, arm.value, call, average, math.nan, 0, math.nan)


def _of_window(rows: list[Candidate], guaranteed: Candidate | None) -> Candidate:
    """Return the end of the final stretch, for want of fresh samples; else the paper's choice."""
    own = [row for row in rows[1:] if row is not guaranteed and not row.average]
    return own[-1] if own else guaranteed or rows[0]


def _of_race(rows: list[Candidate]) -> Candidate:
    """Return the best of those still in the race; of all, where none of them stayed finite."""
    scores = [row.score if not row.note else math.nan for row in rows]
    if not any(map(math.isfinite, scores)):
        scores = [row.score for row in rows]
    return rows[best(scores)]


def _choose(stand: _Stand, rows: list[Candidate], guaranteed: Candidate | None, way: str) -> Choice:
    setting = stand.setting
    chosen = _of_window(rows, guaranteed) if way == "window" else _of_race(rows)
    if chosen.key == START:
        stand.notes.append("no run beat the start point, so x0 is returned")
    return Choice(
        chosen.key,
        "value",
        "exact" if setting.method.exact else way,
        tuple(rows),
        share=SHARE if guaranteed is not None else 0.0,
        covered=guaranteed is not None,
        notes=tuple(stand.notes),
    )
