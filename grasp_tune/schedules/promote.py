"""The default schedule: short runs with a list of step sizes, and one long run with the best.

1. Probe: a small share of T at x0 measures the loss and the size of the gradients, in total and per
   coordinate.
2. Step size (`rungs`): a ramp, a first rung of short runs over a geometric list, a second rung of
   the best. The paper's own sweep runs beside them on its share of T (`paper_sweep`); the theorem
   holds for it. Runs make matrix-shaped steps if the model has hidden matrices, else
   coordinate-wise ones; the user may add challengers.
3. Final run (`final_run`): the winner gets the rest of T; its step size decays to zero.
4. Race: a few candidates, compared on the same fresh minibatches.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Candidate, Choice, start_won, stationary_start
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import Known, Round, Rounds, SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.extension import Earlier
from grasp_tune.schedules.final_run import final_run
from grasp_tune.schedules.paper import start_candidate
from grasp_tune.schedules.paper_sweep import paper_choice, plan_paper_sweep
from grasp_tune.schedules.probe import parts_of, plan_after, probing
from grasp_tune.schedules.promote_options import PromoteOptions
from grasp_tune.schedules.promote_state import PromoteState, finite_loss
from grasp_tune.schedules.race import race
from grasp_tune.schedules.rungs import find_step
from grasp_tune.schedules.step_list import FinalStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(PromoteOptions):
    """The default schedule: short runs find the step size, then one long run uses it."""

    name: ClassVar[str] = "promote"

    @property
    def default_base(self) -> str:
        """The optimizer of the runs if the method names none and the model is unknown."""
        return self.base

    def rounds(self, spec: SweepSpec) -> Rounds:
        """Yield the rounds of the default schedule; return its choice."""
        method, budget = spec.method, spec.budget
        if budget < self.small_budget:
            length = min(2.0, self.second_length)
            fewer = replace(self, small_budget=1, places=self.places[:2], second_length=length)
            # Parts of a few calls are too short to tell whether a run stalls or dies.
            warmup = min(self.warmup, self.small_warmup)
            fewer = replace(fewer, stalled=math.inf, dying=math.inf, warmup=warmup)
            return (yield from fewer.rounds(spec))
        start = yield from probing(
            0 if method.exact else self.probe_calls(spec),
            0,
            parts=spec.probe_parts or parts_of(self.probe_calls(spec)),
            moments=True,
            exact=method.exact,
        )
        plan = _plan(spec, start)
        rows = [start_candidate(start, "value")]
        if plan.stationary:
            return stationary_start(rows[0], "value")
        races = not method.exact and spec.ensemble != "window"
        calls = self.race_budget(budget, budget - start.calls) if races else 0
        state = PromoteState(self, spec, start, plan, left=budget - start.calls - calls)
        sweep = plan_paper_sweep(state)
        extra = sweep.tasks if sweep is not None else ()
        begin, known = yield from find_step(state, self._kinds(spec, start), extra)
        papers: Candidate | None = None
        if sweep is not None:
            papers = yield from paper_choice(state, sweep, known)
        if begin is not None:
            rows += yield from final_run(state, begin)
        if papers is not None:
            rows.append(papers)
        if races or method.exact:
            rows = yield from race(state, rows, calls)
        share = sweep.share if sweep is not None and papers is not None else 0.0
        return _choose(state, rows, papers, share, "race" if races or method.exact else "window")

    def further_run(
        self, spec: SweepSpec, earlier: Earlier, chosen: Candidate
    ) -> Generator[Round, Known, tuple[list[Candidate], tuple[str, ...]]]:
        """Yield a run from the chosen point with its step size, and a race between the two.

        Returns the candidates, the earlier choice first, and the notes.
        """
        assert earlier.start is not None and earlier.plan is not None
        left, races = spec.budget - earlier.spent, spec.ensemble != "window"
        sampled = races and not spec.method.exact
        calls = self.race_budget(spec.budget, left) if sampled else 0
        state = PromoteState(self, spec, earlier.start, earlier.plan, left - calls)
        state.next_run, state.sampled = max(earlier.arms) + 1, earlier.sampled
        state.leader, owner = chosen.key, earlier.arms[chosen.arm]
        loss = finite_loss(earlier.runs.get(chosen.arm))
        start = FinalStart(state.new_arm(owner, owner.value), owner, state.leader, loss)
        rows = yield from final_run(state, start)
        rows[0] = chosen
        if races or spec.method.exact:
            rows = yield from race(state, [replace(chosen, note=""), *rows[1:]], calls)
        return rows, tuple(state.notes)

    def probe_calls(self, spec: SweepSpec) -> int:
        """Return how many gradients the probe takes."""
        share = getattr(spec.method, "probe", None)
        wanted = int(spec.budget * (self.probe_share if share is None else share))
        return min(spec.budget, max(2, wanted))

    def _kinds(self, spec: SweepSpec, start: ProbeOutcome) -> list[Arm]:
        """Return an arm for each kind of run: the method's own, then the challengers."""
        matrices = spec.method.base is None and start.matrices
        base = self.matrix_base if matrices else spec.method.base_name(self)
        power = self.power if described(base).uses_power else 0.0
        challengers = [Arm.of(0, name, 1.0) for name in spec.challengers]
        return [Arm.of(0, base, 1.0, power=power), *challengers]


def _plan(spec: SweepSpec, start: ProbeOutcome) -> Plan:
    """Return the paper's plan for all of T, without resampling if T is too small for that."""
    norm, value = start.gradient_norm, start.value
    try:
        return plan_after(spec, norm, value)
    except BudgetTooSmall:
        if spec.method.exact:
            raise
        return plan_after(spec, norm, value, "window")


def _of_window(rows: list[Candidate], papers: Candidate | None) -> Candidate:
    """Return the choice without a race: the end of the final run, else the paper's choice."""
    own = [row for row in rows[1:] if row is not papers and not row.average]
    return own[-1] if own else papers or rows[0]


def _of_race(rows: list[Candidate]) -> Candidate:
    """Return the best candidate still in the race, or of all if none of those is finite."""
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
