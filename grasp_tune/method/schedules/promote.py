"""The default schedule: a short search, then nearly everything on its winner.

1. Probe: a small share of T at x0, for the range and for the size of each coordinate's gradients.
2. Rungs (`rungs`): runs of a few kinds and many steps, fewer and longer each time. Beside the
   first one, the paper's own sweep on its share of the budget (`guarantee`), which carries the
   theorem.
3. Outlook (`trend`): from the best steps of the rungs, which step a run that long will want.
4. Final stretch: the winner gets the rest with that step, falling to zero. It is cut into parts;
   one that makes the loss jump is undone and repeated with a smaller step.
5. Race: a few candidates on paired fresh minibatches.

Why these numbers: docs/results.md.
"""

import math
from collections.abc import Generator

from grasp_tune.method.bases import changes_step
from grasp_tune.method.choice import Candidate, Choice
from grasp_tune.method.ensemble import best
from grasp_tune.method.errors import BudgetTooSmall
from grasp_tune.method.plan import Plan
from grasp_tune.method.rounds import Known, Round, Schedule, train_tasks
from grasp_tune.method.schedules.arms import first_grid, thinned
from grasp_tune.method.schedules.guarantee import Floor, floor_choice, floor_plan
from grasp_tune.method.schedules.paper import start_candidate
from grasp_tune.method.schedules.probing import probing
from grasp_tune.method.schedules.racing import racing
from grasp_tune.method.schedules.rungs import (
    FINER,
    FIRST_CALLS,
    GRID,
    RUNGS,
    Ranked,
    Rung,
    Stand,
    climb,
    least_calls,
    outcomes,
)
from grasp_tune.method.schedules.trend import Outlook, outlook
from grasp_tune.method.setting import Setting
from grasp_tune.method.tasks import (
    START,
    Arm,
    ProbeOutcome,
    Segment,
    average_key,
    iterate_key,
    state_key,
)

PROBE = 1 / 64  # share of T at x0
FIRST_SHARE = 0.12  # of T, at most, for the grid
AHEAD = 0.5  # of the way to the step of a run as long as the final stretch, at its beginning
PARTS = 8  # of the final stretch
JUMP = 2.0  # a part whose loss is so many times the part before's is undone
BACKOFF = 4.0  # and its step divided by this
GAMMA = 8.0  # exponent of the running average in the final stretch
RACE = 0.015  # share of T for the last choice


def jump_above(before: float, start: float) -> float:
    """Return the loss at which a part has made it jump, after a part that ended at `before`.

    A loss that may be negative has no zero to be a multiple of: it then jumps where it loses all
    that was gained since the start.
    """
    if before > 0.0:
        return JUMP * before
    return before + max(-before, start - before)


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
    stand = Stand(setting, start, plan, left=budget - start.calls - race)
    grid = first_grid(setting, start, most=int(FIRST_SHARE * budget / FIRST_CALLS))
    floor = floor_plan(setting, start, first_arm=len(grid.arms) + 1)
    stand.fresh = 1 + len(grid.arms) + (len(floor.plan.cells) if floor is not None else 0)
    rungs = (GRID, *((FINER,) if grid.spacing > 16.0 else ()), *RUNGS)
    heights, guaranteed = yield from _search(stand, grid.arms, rungs, floor)
    if heights:
        rows += yield from _final(stand, heights)
    if guaranteed is not None:
        rows.append(guaranteed)
    if race or method.exact:
        rows = yield from racing(
            rows, race, plan=plan, leader=stand.leader, first=stand.sampled, exact=method.exact
        )
    share = floor.share if floor is not None and guaranteed is not None else 0.0
    return _choose(stand, rows, guaranteed, share, "race" if race or method.exact else "window")


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


def _search(
    stand: Stand, arms: list[Arm], rungs: tuple[Rung, ...], floor: Floor | None
) -> Generator[Round, Known, tuple[list[Ranked], Candidate | None]]:
    """Yield the rungs, lowest first; return the ends of each, and the paper's own choice."""
    setting = stand.setting
    guaranteed: Candidate | None = None
    if floor is not None:
        stand.left -= floor.calls
    arms = thinned(arms, stand.left // 2 // FIRST_CALLS)
    if not arms:
        stand.notes.append("there is no run that the budget can pay for")
        return [], None
    below = Ranked(0, arms, {}, 0.0)
    heights: list[Ranked] = []
    for number, rung in enumerate(rungs):
        width = len(arms) if not rung.kinds else len(rung.factors) * rung.kinds
        most = max(least_calls(number), int(rung.share * setting.budget / width)) * width
        if most > stand.left // 2:
            break  # too small a budget for another rung: the best so far goes on
        extra = floor.tasks if floor is not None and number == 0 else ()
        below, known = yield from climb(stand, rung, number, below, extra)
        if extra and floor is not None:
            guaranteed = yield from floor_choice(setting, floor, known, stand.plan, stand.leader)
            stand.sampled = floor.samples
        if not below.arms:
            break  # all diverged: the best of the rung before goes on, if there is one
        heights.append(below)
        stand.leader = state_key(below.arms[0].index, below.age)
    if not heights:
        stand.notes.append("no run stayed finite")
    return heights, guaranteed


def _outlook(stand: Stand, heights: list[Ranked]) -> tuple[Arm, Outlook]:
    """Return the winner, and which step it wants for the rest of the budget."""
    winner = heights[-1].arms[0]
    sights = [height.sight(winner) for height in heights[1:]]  # the grid's runs were not annealed
    ahead = outlook([sight for sight in sights if sight.losses], stand.start.value)
    return winner, ahead if ahead is not None else Outlook(winner.value, 0.0)


def _final(stand: Stand, heights: list[Ranked]) -> Generator[Round, Known, list[Candidate]]:
    """Yield the winner's final stretch part by part; return its candidates.

    A part that is undone goes on as another run, from the last good state, on minibatches of its
    own.
    """
    setting, age = stand.setting, heights[-1].age
    begin, end = age, age + stand.left
    winner, ahead = _outlook(stand, heights)
    good = state_key(winner.index, age)
    rows = [_row(good, winner, age, average=False)]
    kept = winner  # the run that the last good state belongs to
    arm = winner
    if changes_step(winner.base):
        arm = stand.new_arm(winner, ahead.at((end / age) ** AHEAD))
    shrink = -(1.0 - AHEAD) * ahead.slope
    before, ends, discard = math.inf, None, _unneeded(stand, heights[-1], good)
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
            shrink=shrink,
            origin=good,
        )
        tasks = train_tasks(f"final{part}", [segment], 0, exact=setting.method.exact)
        known = yield Round(tasks, plan=stand.plan, leader=stand.leader, discard=discard)
        items = outcomes(tasks, known)
        loss = items[0].loss if items and items[0].finite else math.nan
        discard = ()
        if loss < jump_above(before, stand.start.value) or (part == 0 and math.isfinite(loss)):
            before = loss
            ends = (arm, stop) if last else None
            if not last:
                if good != rows[0].key:
                    discard = (good,)  # the start of the stretch stays, it is a candidate
                kept, good = arm, state_key(arm.index, stop)
                stand.leader = good
        else:
            if not last:
                discard = (state_key(arm.index, stop),)
            arm = stand.new_arm(arm, arm.value / BACKOFF)
    stand.discard = discard
    if ends is not None:
        winner, stop = ends
        rows.append(_row(iterate_key(winner.index, stop), winner, stop, average=False))
        rows.append(_row(average_key(winner.index, stop, GAMMA), winner, stop, average=True))
        stand.leader = rows[-2].key
    elif good != rows[0].key:
        rows.append(_row(good, kept, int(good.split("-")[1]), average=False))
    return rows


def _unneeded(stand: Stand, ends: Ranked, good: str) -> tuple[str, ...]:
    """Return the states that nobody needs once the winner's, `good`, is known."""
    states = {state_key(arm.index, ends.age) for arm in ends.losses} | set(stand.begun)
    return tuple(sorted(states - {good}))


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


def _choose(
    stand: Stand, rows: list[Candidate], guaranteed: Candidate | None, share: float, way: str
) -> Choice:
    setting = stand.setting
    chosen = _of_window(rows, guaranteed) if way == "window" else _of_race(rows)
    if chosen.key == START:
        stand.notes.append("no run beat the start point, so x0 is returned")
    return Choice(
        chosen.key,
        "value",
        "exact" if setting.method.exact else way,
        tuple(rows),
        share=share,
        covered=guaranteed is not None,
        notes=tuple(stand.notes),
    )
