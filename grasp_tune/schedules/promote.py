"""The default schedule: runs that measure their own distance, the best of them to the end.

1. Probe: a small share of T at x0, for the range and for the size of each coordinate's gradients.
2. One run of each kind whose step is a distance that it measures itself; one of them goes on.
   A small budget goes to the first kind at once. Beside it, the paper's own sweep on its share of
   the budget (`guarantee`), which carries the theorem.
3. Final stretch (`stretch`): the winner gets the rest, its step falling to zero, faster or slower
   by what it shows (`pace`).
4. Race: a few candidates on paired fresh minibatches.

Where no such run gets below the start, and for every other base, a search stands in place of 2:
rungs (`rungs`) of runs over the self-bounded range, fewer and longer each time, and an outlook
(`trend`) on the step that a run as long as the final stretch will want.

Why these numbers: docs/results.md.
"""

import math
from collections.abc import Generator

from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, Schedule
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    START,
    Arm,
    ProbeOutcome,
    state_key,
)
from grasp_tune.optimizers.registry import GROWING, described
from grasp_tune.schedules.final_run import Launch, final_stretch
from grasp_tune.schedules.grid import first_grid, thinned
from grasp_tune.schedules.paper import start_candidate
from grasp_tune.schedules.paper_sweep import Floor, floor_choice, floor_plan
from grasp_tune.schedules.probe import probing
from grasp_tune.schedules.race import racing
from grasp_tune.schedules.rungs import (
    FINER,
    FIRST_CALLS,
    GRID,
    GROWTH,
    RUNGS,
    Ranked,
    Rung,
    Stand,
    climb,
    least_calls,
)
from grasp_tune.schedules.step_extrapolation import Outlook, outlook

PROBE = 1 / 64  # share of T at x0
FIRST_SHARE = 0.12  # of T, at most, for the grid
AHEAD = 0.5  # of the way to the step of a run as long as the final stretch, at its beginning
KINDS = (0.0, 0.5)  # powers of the coordinates' gradient sizes for runs that measure their distance
SHORT = 4_000  # below this budget the first kind gets everything
# Divided steps (the last kind) are slower at first, and were the better single kind in the end: to
# be chosen, another kind must have less than this share of their loss.
CLEARLY = 0.8
# The distance is taken whole when T is WHOLE_LENGTH, and a falling part of it when T is more.
WHOLE_LENGTH, WHOLE_POWER = 300, -1 / 3
RACE = 0.01  # share of T for the last choice


def promote(spec: SweepSpec) -> Schedule:
    """Yield the rounds of the default schedule; return its choice."""
    method, budget = spec.method, spec.budget
    start = yield from probing(
        0 if method.exact else probe_calls(spec),
        0,
        parts=spec.probe_parts,
        moments=True,
        exact=method.exact,
    )
    plan = _plan(spec, start)
    rows = [start_candidate(start, "value")]
    if plan.stationary:
        note = "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary"
        return Choice(START, "value", "stationary", tuple(rows), notes=(note,))
    race = 0 if method.exact or spec.ensemble == "window" else max(8, int(RACE * budget))
    stand = Stand(spec, start, plan, left=budget - start.calls - race)
    floor = floor_plan(spec, start, first_arm=stand.fresh)
    if floor is not None:
        stand.left -= floor.calls
        stand.fresh += len(floor.plan.cells)
    found, guaranteed = yield from (_measured if _measures(spec) else _searched)(stand, floor)
    rows += found
    if guaranteed is not None:
        rows.append(guaranteed)
    if race or method.exact:
        rows = yield from racing(
            rows, race, plan=plan, leader=stand.leader, first=stand.sampled, exact=method.exact
        )
    share = floor.share if floor is not None and guaranteed is not None else 0.0
    return _choose(stand, rows, guaranteed, share, "race" if race or method.exact else "window")


def probe_calls(spec: SweepSpec) -> int:
    """Return how many gradients the probe takes."""
    share = getattr(spec.method, "probe", None)
    return max(2, int(spec.budget * (PROBE if share is None else share)))


def _plan(spec: SweepSpec, start: ProbeOutcome) -> Plan:
    """Return the paper's plan for the whole budget; without re-sampling where that cannot pay."""
    norm, value = start.gradient_norm, start.value
    try:
        return spec.method.plan(spec.budget, grad_norm=norm, value=value)
    except BudgetTooSmall:
        if spec.method.exact:
            raise
        return spec.method.plan(spec.budget, grad_norm=norm, value=value, ensemble="window")


def _measures(spec: SweepSpec) -> bool:
    """Return whether runs measure their own distance, so that no range has to be searched."""
    if spec.challengers:
        return False  # what the user asked for always runs
    return spec.method.base in (None, GROWING)


Found = Generator[Round, Known, tuple[list[Candidate], Candidate | None]]


def _measured(stand: Stand, floor: Floor | None) -> Found:
    """Yield runs that measure their own distance; return their candidates and the paper's choice.

    One run of each kind, then the better one alone; where the budget is small, one run from the
    start. Where none gets below the start, the rest of the budget is searched after all.
    """
    budget = stand.spec.budget
    value = min(1.0, (budget / WHOLE_LENGTH) ** WHOLE_POWER)
    kinds = KINDS if budget >= SHORT else KINDS[:1]
    arms = [stand.new_arm(Arm.of(0, GROWING, value, power=power), value) for power in kinds]
    extra = floor.tasks if floor is not None else ()
    ends = Ranked(0, arms, {}, 0.0)
    known: Known = {}
    if len(arms) > 1:
        ends, known = yield from climb(stand, GROWTH, 1, ends, extra)
    elif extra:
        known = yield Round(extra, plan=stand.plan, leader=stand.leader)
    guaranteed: Candidate | None = None
    if floor is not None:
        guaranteed = yield from _of_floor(stand, floor, known)
    rows: list[Candidate] = []
    if not ends.age:
        rows = yield from final_stretch(stand, Launch(arms[0], arms[0], paced=True), demanding=True)
    elif ends.arms and ends.losses[ends.arms[0]] < stand.start.value:
        best_one = _preferred(ends, stand.start.value)
        good = stand.leader = state_key(best_one.index, ends.age)
        stand.discard = _unneeded(stand, ends, good)
        rows = yield from final_stretch(
            stand, Launch(best_one, best_one, ends.age, good, paced=True)
        )
    if rows or stand.spec.method.base is not None:
        return rows, guaranteed
    rows, _ = yield from _searched(stand, None)
    return rows, guaranteed


def _preferred(ends: Ranked, start: float) -> Arm:
    """Return the run that goes on: the one of divided steps, unless another is clearly better."""
    best_one, last = ends.arms[0], max(ends.arms, key=lambda arm: arm.power)
    loss, bound = ends.losses[best_one], ends.losses[last]
    if bound <= 0.0:  # there is no zero to be a share of: shares of what was gained, then
        loss, bound = start - bound, start - loss
    return best_one if loss < CLEARLY * bound or ends.losses[last] >= start else last


def _of_floor(
    stand: Stand, floor: Floor, known: Known
) -> Generator[Round, Known, Candidate | None]:
    """Yield the floor's own ensemble; return its choice.

    What comes later samples behind both the floor and whatever has been looked at before it.
    """
    found = yield from floor_choice(stand.spec, floor, known, stand.plan, stand.leader)
    stand.sampled = max(stand.sampled, floor.samples)
    return found


def _searched(stand: Stand, floor: Floor | None) -> Found:
    """Yield the rungs and the winner's final stretch; return its candidates and the paper's."""
    most = int(FIRST_SHARE * stand.spec.budget / FIRST_CALLS)
    grid = first_grid(stand.spec, stand.start, most, stand.fresh)
    stand.fresh += len(grid.arms)
    rungs = (GRID, *((FINER,) if grid.spacing > 16.0 else ()), *RUNGS)
    heights, guaranteed = yield from _search(stand, grid.arms, rungs, floor)
    rows: list[Candidate] = []
    if heights:
        rows = yield from final_stretch(stand, _launch(stand, heights))
    return rows, guaranteed


def _search(
    stand: Stand, arms: list[Arm], rungs: tuple[Rung, ...], floor: Floor | None
) -> Generator[Round, Known, tuple[list[Ranked], Candidate | None]]:
    """Yield the rungs, lowest first; return the ends of each, and the paper's own choice."""
    spec = stand.spec
    guaranteed: Candidate | None = None
    arms = thinned(arms, stand.left // 2 // FIRST_CALLS)
    if not arms:
        stand.notes.append("there is no run that the budget can pay for")
        return [], None
    below = Ranked(0, arms, {}, 0.0)
    heights: list[Ranked] = []
    for number, rung in enumerate(rungs):
        width = len(arms) if not rung.kinds else len(rung.factors) * rung.kinds
        most = max(least_calls(number), int(rung.share * spec.budget / width)) * width
        if most > stand.left // 2:
            break  # too small a budget for another rung: the best so far goes on
        extra = floor.tasks if floor is not None and number == 0 else ()
        below, known = yield from climb(stand, rung, number, below, extra)
        if extra and floor is not None:
            guaranteed = yield from _of_floor(stand, floor, known)
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


def _launch(stand: Stand, heights: list[Ranked]) -> Launch:
    """Return how the winner of the last rung goes on."""
    winner, ahead = _outlook(stand, heights)
    age, end = heights[-1].age, heights[-1].age + stand.left
    good = state_key(winner.index, age)
    stand.discard = _unneeded(stand, heights[-1], good)
    if not described(winner.base).changes_step:
        return Launch(winner, winner, age, good)
    arm = stand.new_arm(winner, ahead.at((end / age) ** AHEAD))
    return Launch(arm, winner, age, good, shrink=-(1.0 - AHEAD) * ahead.slope)


def _unneeded(stand: Stand, ends: Ranked, good: str) -> tuple[str, ...]:
    """Return the states that nobody needs once the winner's, `good`, is known."""
    states = {state_key(arm.index, ends.age) for arm in ends.losses} | set(stand.begun)
    return tuple(sorted(states - {good}))


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
    spec = stand.spec
    chosen = _of_window(rows, guaranteed) if way == "window" else _of_race(rows)
    if chosen.key == START:
        stand.notes.append("no run beat the start point, so x0 is returned")
    return Choice(
        chosen.key,
        "value",
        "exact" if spec.method.exact else way,
        tuple(rows),
        share=share,
        covered=guaranteed is not None,
        notes=tuple(stand.notes),
    )
