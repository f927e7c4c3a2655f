"""The default schedule: runs that measure their own distance, the best of them to the end.

1. Probe: a small share of T at x0, for the range and for the size of each coordinate's gradients.
2. One run of each kind whose step is a distance that it measures itself; one of them goes on. Where
   the budget is small: a fan of runs of the first kind (`fan`), of which the best goes on. Beside
   it, the paper's own sweep on its share of the budget (`paper_sweep`), which carries the theorem.
3. Final run (`final_run`): the winner gets the rest, its step falling to zero, faster or slower
   by what it shows (`step_control`).
4. Race: a few candidates on paired fresh minibatches.

Where no such run gets below the start, and for every other base, a search stands in place of 2:
rungs (`rungs`) of runs over the self-bounded range, fewer and longer each time, and an estimate
(`step_extrapolation`) of the step that a run as long as the final one will want.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from grasp_tune.core.checkpoint_keys import START, Key, state_key
from grasp_tune.core.choice import Candidate, Choice, start_won, stationary_start
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, Rounds
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.fan import can_fan, run_fan
from grasp_tune.schedules.final_run import FinalStart, final_run
from grasp_tune.schedules.grid import first_grid, thinned
from grasp_tune.schedules.paper import start_candidate
from grasp_tune.schedules.paper_sweep import PaperSweep, paper_choice, plan_paper_sweep
from grasp_tune.schedules.probe import plan_after, probing
from grasp_tune.schedules.promote_options import PromoteOptions, Rung
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.race import race
from grasp_tune.schedules.rungs import RungResult, can_pay, run_rung
from grasp_tune.schedules.step_extrapolation import StepTrend, step_trend

Found = Generator[Round, Known, tuple[list[Candidate], Candidate | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(PromoteOptions):
    """The default schedule; its options are described in `PromoteOptions`."""

    name: ClassVar[str] = "promote"

    @property
    def default_base(self) -> str:
        """The optimizer of a search, where the method names none."""
        return self.searching

    def rounds(self, spec: SweepSpec) -> Rounds:
        """Yield the rounds of the default schedule; return its choice."""
        method, budget = spec.method, spec.budget
        start = yield from probing(
            0 if method.exact else self.probe_calls(spec),
            0,
            parts=spec.probe_parts or 1,
            moments=True,
            exact=method.exact,
        )
        plan = _plan(spec, start)
        rows = [start_candidate(start, "value")]
        if plan.stationary:
            return stationary_start(rows[0], "value")
        races = not method.exact and spec.ensemble != "window"
        # At least 8 calls; half of what is left where that is less, so that a tiny budget trains.
        wanted = max(8, int(self.race_share * budget))
        calls = min(wanted, (budget - start.calls) // 2) if races else 0
        state = PromoteState(self, spec, start, plan, left=budget - start.calls - calls)
        sweep = plan_paper_sweep(state)
        found, papers = yield from (_measured if self._measures(spec) else _searched)(state, sweep)
        rows += found
        if papers is not None:
            rows.append(papers)
        if races or method.exact:
            rows = yield from race(state, rows, calls)
        share = sweep.share if sweep is not None and papers is not None else 0.0
        return _choose(state, rows, papers, share, "race" if races or method.exact else "window")

    def probe_calls(self, spec: SweepSpec) -> int:
        """Return how many gradients the probe takes."""
        share = getattr(spec.method, "probe", None)
        wanted = int(spec.budget * (self.probe_share if share is None else share))
        return min(spec.budget, max(2, wanted))

    def _measures(self, spec: SweepSpec) -> bool:
        """Return whether runs measure their own distance, so that no range has to be searched."""
        if spec.challengers:
            return False  # what the user asked for always runs
        return spec.method.base in (None, self.measuring)


def _plan(spec: SweepSpec, start: ProbeOutcome) -> Plan:
    """Return the paper's plan for the whole budget; without re-sampling where that cannot pay."""
    norm, value = start.gradient_norm, start.value
    try:
        return plan_after(spec, norm, value)
    except BudgetTooSmall:
        if spec.method.exact:
            raise
        return plan_after(spec, norm, value, "window")


def _measured(state: PromoteState, sweep: PaperSweep | None) -> Found:
    """Yield runs that measure their own distance; return their candidates and the paper's choice.

    One run of each kind, then the better one alone; the best of a fan, where the budget is small;
    one run from the start, where it is tiny. Where none gets below the start, the rest of the
    budget is searched after all.
    """
    options, budget = state.options, state.spec.budget
    value = min(1.0, (budget / options.whole_length) ** options.whole_power)
    powers = options.powers if budget >= options.short_budget else options.powers[:1]
    others = dict(options.measuring_values)
    kinds = [Arm.of(0, options.measuring, value, power=power, **others) for power in powers]
    extra = sweep.tasks if sweep is not None else ()
    if len(kinds) > 1 and not can_pay(state, options.comparison, 1, len(kinds)):
        kinds = kinds[:1]
    alone: FinalStart | None = None
    ends = RungResult(0, [], {}, 0.0)
    known: Known = {}
    if can_fan(state):
        alone, known = yield from run_fan(state, kinds[0], extra)
    elif len(kinds) > 1:
        begun = RungResult(0, [state.new_arm(kind, value) for kind in kinds], {}, 0.0)
        ends, known = yield from run_rung(state, options.comparison, 1, begun, extra)
    else:
        if extra:
            known = yield state.round(extra)
        arm = state.new_arm(kinds[0], value)
        alone = FinalStart(arm, arm, adapts=True)
    papers: Candidate | None = None
    if sweep is not None:
        papers = yield from paper_choice(state, sweep, known)
    rows: list[Candidate] = []
    if alone is not None:
        rows = yield from final_run(state, alone, must_improve=True)
    elif ends.arms and ends.losses[ends.arms[0]] < state.start.value:
        arm = _preferred(ends, state.start.value, options.clear_lead)
        state.leader = state_key(arm.index, ends.age)
        state.discard = _unneeded(state, ends, state.leader)
        loss = ends.losses[arm]
        start = FinalStart(arm, arm, state.leader, adapts=True, loss=loss)
        rows = yield from final_run(state, start)
    if rows or state.spec.method.base is not None:
        return rows, papers
    rows, _ = yield from _searched(state, None)
    return rows, papers


def _preferred(ends: RungResult, start: float, clear_lead: float) -> Arm:
    """Return the run that goes on: the one of divided steps, unless another is clearly better."""
    leader, last = ends.arms[0], max(ends.arms, key=lambda arm: arm.power)
    loss, bound = ends.losses[leader], ends.losses[last]
    if bound <= 0.0:  # there is no zero to be a share of: shares of what was gained, then
        loss, bound = start - bound, start - loss
    return leader if loss < clear_lead * bound or ends.losses[last] >= start else last


def _searched(state: PromoteState, sweep: PaperSweep | None) -> Found:
    """Yield the rungs and the winner's final run; return its candidates and the paper's."""
    options = state.options
    most = int(options.first_share * state.spec.budget / options.first_calls)
    grid = first_grid(options, state.spec, state.start, most, state.next_run)
    state.next_run += len(grid.arms)
    finer = (options.finer,) if grid.spacing > 16.0 else ()
    rungs = (options.grid, *finer, *options.rungs)
    results, papers = yield from _search(state, grid.arms, rungs, sweep)
    rows: list[Candidate] = []
    if results:
        rows = yield from final_run(state, _final_start(state, results))
    return rows, papers


def _search(
    state: PromoteState, arms: list[Arm], rungs: tuple[Rung, ...], sweep: PaperSweep | None
) -> Generator[Round, Known, tuple[list[RungResult], Candidate | None]]:
    """Yield the rungs, lowest first; return the ends of each, and the paper's own choice."""
    papers: Candidate | None = None
    arms = thinned(arms, state.left // 2 // state.options.first_calls)
    if not arms:
        state.notes.append("there is no run that the budget can pay for")
        return [], None
    below = RungResult(0, arms, {}, 0.0)
    results: list[RungResult] = []
    for number, rung in enumerate(rungs):
        width = len(arms) if not rung.kinds else len(rung.factors) * rung.kinds
        if not can_pay(state, rung, number, width):
            break  # too small a budget for another rung: the best so far goes on
        extra = sweep.tasks if sweep is not None and number == 0 else ()
        below, known = yield from run_rung(state, rung, number, below, extra)
        if extra and sweep is not None:
            papers = yield from paper_choice(state, sweep, known)
        if not below.arms:
            break  # all diverged: the best of the rung before goes on, if there is one
        results.append(below)
        state.leader = state_key(below.arms[0].index, below.age)
    if not results:
        state.notes.append("no run stayed finite")
    return results, papers


def _final_start(state: PromoteState, results: list[RungResult]) -> FinalStart:
    """Return how the winner of the last rung goes on."""
    winner, age = results[-1].arms[0], results[-1].age
    good, ahead = state_key(winner.index, age), state.options.ahead
    loss = results[-1].losses[winner]
    state.discard = _unneeded(state, results[-1], good)
    if not described(winner.base).changes_step:
        return FinalStart(winner, winner, good, loss=loss)
    rungs = [result.step_losses(winner) for result in results[1:]]  # the grid's were not annealed
    seen = [rung for rung in rungs if rung.losses]
    trend = step_trend(seen, state.start.value, state.options) or StepTrend(winner.value, 0.0)
    arm = state.new_arm(winner, trend.at(((age + state.left) / age) ** ahead))
    return FinalStart(arm, winner, good, shrink=-(1.0 - ahead) * trend.slope, loss=loss)


def _unneeded(state: PromoteState, ends: RungResult, good: Key) -> tuple[Key, ...]:
    """Return the states that nobody needs once the winner's, `good`, is known."""
    states = {state_key(arm.index, ends.age) for arm in ends.losses} | set(state.begun)
    return tuple(sorted(states - {good}))


def _of_window(rows: list[Candidate], papers: Candidate | None) -> Candidate:
    """Return the end of the final run, for want of fresh samples; else the paper's choice."""
    own = [row for row in rows[1:] if row is not papers and not row.average]
    return own[-1] if own else papers or rows[0]


def _of_race(rows: list[Candidate]) -> Candidate:
    """Return the best of those still in the race; of all, where none of them stayed finite."""
    scores = [row.score if not row.note else math.nan for row in rows]
    if not any(map(math.isfinite, scores)):
        scores = [row.score for row in rows]
    return rows[best(scores)]


def _choose(
    state: PromoteState, rows: list[Candidate], papers: Candidate | None, share: float, way: str
) -> Choice:
    chosen = _of_window(rows, papers) if way == "window" else _of_race(rows)
    if chosen.key == START:
        state.notes.append(start_won(rows))
    return Choice(
        chosen.key,
        "value",
        "exact" if state.spec.method.exact else way,
        tuple(rows),
        share=share,
        covered=papers is not None,
        notes=tuple(state.notes),
    )
