"""More budget for a sweep that has ended: its rounds again, then a further run, then a race.

The rounds of the earlier budget are repeated exactly, so all known outcomes are used. The rest of
the budget goes to a run from the chosen point; its candidates race against that point.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from grasp_tune.core.checkpoint_keys import Key
from grasp_tune.core.choice import Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import Rounds, SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome, ScoreTask, SegmentOutcome, ended_runs
from grasp_tune.schedules import find_schedule


@dataclass
class Earlier:
    """What the rounds so far used and found."""

    start: ProbeOutcome | None = None  # the merged one if the probe had parts
    plan: Plan | None = None
    arms: dict[int, Arm] = field(default_factory=dict)
    runs: dict[int, SegmentOutcome] = field(default_factory=dict)  # last outcome of each arm
    spent: int = 0  # oracle calls
    sampled: int = 0  # samples of the ensemble's stream used

    def watch(self, rounds: Rounds, name: str = "", leader: Key = "") -> Rounds:
        """Yield rounds with `name` before their task ids, and record them; return their result.

        leader: the point to return if the rounds do not come to their end.
        """
        known: Any = None
        while True:
            try:
                step = rounds.send(known)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.plan = step.plan or self.plan
            tasks = tuple(replace(task, id=f"{name}{task.id}") for task in step.tasks)
            told = yield replace(step, tasks=tasks, leader=leader or step.leader)
            known = {task.id: told[f"{name}{task.id}"] for task in step.tasks}
            for task in step.tasks:
                if isinstance(task, ScoreTask):
                    self.sampled = max(self.sampled, *(item.stop for item in task.samples))
                if (outcome := known[task.id]) is not None:
                    self.spent += outcome.calls
                if isinstance(outcome, ProbeOutcome):
                    self.start = outcome
            for segment, item in ended_runs(step.tasks, known):
                self.arms[segment.arm.index] = segment.arm
                if item is not None:
                    self.runs[segment.arm.index] = item


def all_rounds(spec: SweepSpec) -> Rounds:
    """Yield the rounds of a sweep, earlier budgets first; return its choice."""
    schedule = find_schedule(spec.schedule)
    if not spec.extends:
        return (yield from schedule.rounds(spec))
    if not hasattr(schedule, "further_run"):
        raise InputError(
            f"schedule: {schedule.name!r} makes its plan for one budget, so a sweep of "
            f"{spec.extends[-1]} calls cannot be extended to {spec.budget}; use another folder"
        )
    earlier = Earlier()
    before = replace(spec, budget=spec.extends[-1], extends=spec.extends[:-1])
    choice = yield from earlier.watch(all_rounds(before))
    rest = _extension(spec, choice, earlier)
    return (yield from earlier.watch(rest, prefix(spec), choice.key))


def prefix(spec: SweepSpec) -> str:
    """Return the prefix of the ids of the tasks that the last extension added."""
    return f"extended{len(spec.extends)}-" if spec.extends else ""


def _extension(spec: SweepSpec, choice: Choice, earlier: Earlier) -> Rounds:
    """Yield the further run and the race; return the choice."""
    schedule: Any = find_schedule(spec.schedule)
    chosen, notes = choice.chosen, choice.notes
    if not chosen.arm:
        note = "x0 was chosen before, so there is no run to extend: the further calls are not made"
        return replace(choice, notes=(*notes, note))
    rows, more = yield from schedule.further_run(spec, earlier, chosen)
    at = best([row.score if not row.note else math.nan for row in rows])
    if rows[at].note or not math.isfinite(rows[at].score):  # too few calls for a race
        at, rows = 0, [chosen, *rows[1:]]
    if not at:
        more = (*more, f"no point of the further run beat that of {spec.extends[-1]} calls")
    others = [
        replace(row, note=row.note or f"not chosen at {spec.extends[-1]} calls")
        for row in choice.candidates[1:]
        if row.key != chosen.key
    ]
    return replace(
        choice,
        key=rows[at].key,
        candidates=(choice.candidates[0], *others, *rows),
        share=choice.share * spec.extends[-1] / spec.budget,
        notes=tuple(dict.fromkeys((*notes, *more))),
    )
