"""First version; sharpened by measurement."""

import math

from grasp_tune.method.choice import Choice
from grasp_tune.method.ensemble import (
    Tally,
    absorb,
    best,
    halving,
    paired_samples,
    ranking,
    survivors,
)
from grasp_tune.method.errors import BudgetTooSmall
from grasp_tune.method.rounds import Round, Schedule, score_tasks, train_tasks
from grasp_tune.method.schedules.paper import scored, start_candidate, train_candidates
from grasp_tune.method.schedules.probing import probing
from grasp_tune.method.setting import Setting
from grasp_tune.method.tasks import START, Arm, ScoreOutcome, Segment, TrainOutcome, state_key

GAMMA = 8.0


def promote(setting: Setting) -> Schedule:
    method, budget = setting.method, setting.budget
    probe = max(2, budget // 64)
    start = yield from probing(probe, 0, parts=setting.probe_parts, moments=True)
    try:
        plan = method.plan(budget, grad_norm=start.gradient_norm, value=start.value)
    except BudgetTooSmall:
        plan = method.plan(
            budget, grad_norm=start.gradient_norm, value=start.value, ensemble="window"
        )
    rows = [start_candidate(start, "value")]
    if plan.stationary:
        note = "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary"
        return Choice(START, "value", "stationary", tuple(rows), notes=(note,))
    base = method.base_name("promote")
    left = budget - probe
    reserve = max(4, budget // 50)
    left -= reserve
    values = [2.0**k * 1e-4 for k in range(24)] if base != "sgd" else [c.value for c in plan.cells]
    arms = [Arm(i + 1, base, v) for i, v in enumerate(values)]
    done = 0
    step = 8
    leader = START
    alive = arms
    rung = 0
    discard: tuple[str, ...] = ()
    while True:
        final = len(alive) == 1
        if final:
            break
        cost = len(alive) * step
        if cost > left * 0.5:
            break
        segs = [Segment(a, done, done + step, averages=(GAMMA,), save=True) for a in alive]
        tasks = train_tasks(f"rung{rung:02d}", segs, setting.width)
        known = yield Round(tasks, plan=plan, leader=leader, discard=discard)
        losses: dict[int, float] = {}
        for task in tasks:
            out = known[task.id]
            if isinstance(out, TrainOutcome):
                for item in out.segments:
                    losses[item.arm] = item.loss if item.finite else math.nan
                    left -= item.calls
        scores = [losses.get(a.index, math.nan) for a in alive]
        order = [at for at in ranking(scores) if math.isfinite(scores[at])]
        done += step
        discard = tuple(state_key(a.index, done) for a in alive)
        keep = max(1, len(alive) // 3 if rung < 2 else len(alive) // 2)
        alive = [alive[at] for at in order[:keep]]
        if not alive:
            break
        discard = tuple(k for k in discard if k not in {state_key(a.index, done) for a in alive})
        leader = state_key(alive[0].index, done)
        step *= 3
        rung += 1
    if alive:
        stop = done + left // len(alive)
        segs = [
            Segment(
                a,
                done,
                stop,
                keep=(stop,),
                averages=(GAMMA,),
                keep_averages=True,
                anneal=(done + (stop - done) // 2, stop),
            )
            for a in alive
        ]
        tasks = train_tasks("final", segs, 0)
        known = yield Round(tasks, plan=plan, leader=leader)
        rows += train_candidates(tasks, known, "value")
    keys = [row.key for row in rows if not row.note]
    tallies: dict[str, Tally] = {}
    used = 0
    for at, rung_ in enumerate(halving(len(keys), reserve)):
        keys = survivors(keys, tallies, rung_.survivors) if tallies else keys
        scoring = score_tasks(
            f"score{at}", paired_samples(keys, used, used + rung_.samples), "value"
        )
        used += rung_.samples
        known = yield Round(scoring, plan=plan, leader=leader)
        for task in scoring:
            outcome = known[task.id]
            if isinstance(outcome, ScoreOutcome):
                for item in outcome.samples:
                    absorb(tallies, item, "value")
    rows = [scored(row, tallies) for row in rows]
    final_scores = [r.score if r.key in keys else math.nan for r in rows]
    chosen = rows[best(final_scores)]
    return Choice(chosen.key, "value", "race", tuple(rows), covered=False)
