"""One rung of `promote`: runs of equal length, of which the best go on.

Rung after rung the best run of each kind goes on beside runs with smaller and larger steps, fewer
kinds and fewer calls apart each time. The step falls to zero inside each rung, as it will in the
end, and fresh samples at the ends rank them: losses seen while training are of rows not yet seen,
which favours small steps.
"""

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from grasp_tune.core.checkpoint_keys import Key, state_key
from grasp_tune.core.ensemble import Tally, ranking, tallied
from grasp_tune.core.rounds import Known, Round, train_tasks
from grasp_tune.core.tasks import (
    Arm,
    SampleOutcome,
    Segment,
    SegmentOutcome,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_options import Rung
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.step_extrapolation import StepLosses


@dataclass(frozen=True, slots=True)
class RungResult:
    """The ends of one rung's runs."""

    age: int  # oracle calls that each run has had
    arms: list[Arm]  # best first; only those that are still finite
    losses: dict[Arm, float]  # all of them
    noise: float  # standard error of the difference between the two best

    def step_losses(self, arm: Arm) -> StepLosses:
        """Return what this rung says about the steps of runs of one kind."""
        own = {a.value: x for a, x in self.losses.items() if a.kind == arm.kind}
        return StepLosses(self.age, own, self.noise)


def calls_each(state: PromoteState, rung: Rung, number: int, runs: int) -> int:
    """Return how many calls each of the runs of a rung gets."""
    least = state.options.first_calls + (number > 0)
    return max(least, int(rung.share * state.spec.budget / runs))


def can_pay(state: PromoteState, rung: Rung, number: int, runs: int) -> bool:
    """Return whether a rung of so many runs leaves at least as much as it spends on training."""
    training = calls_each(state, rung, number, runs) * runs
    samples = int(rung.samples * state.spec.budget)
    return training <= state.left // 2 and training + samples <= state.left


def run_rung(
    state: PromoteState,
    rung: Rung,
    number: int,
    before: RungResult,
    extra: tuple[TrainTask, ...] = (),
) -> Generator[Round, Known, tuple[RungResult, Known]]:
    """Yield the rung after `before`; return its ends, and what became of the `extra` tasks."""
    spec = state.spec
    arms, origins = entrants(state, rung, before)
    age = before.age + calls_each(state, rung, number, len(arms))
    anneal = (before.age, age) if number > 0 and state.options.anneal else None
    ceiling = state.ceiling()
    segments = [
        Segment(
            arm,
            before.age,
            age,
            save=True,
            anneal=anneal,
            # A run that measures its distance begins by trying some that are too large.
            ceiling=None if described(arm.base).measures_distance else ceiling,
            origin=origins.get(arm.index),
        )
        for arm in arms
    ]
    tasks = train_tasks(f"rung{number}", segments, spec.width, exact=spec.method.exact)
    known = yield state.round((*tasks, *extra), state.discard)
    found = {item.arm: item for item in outcomes(tasks, known)}
    state.left -= sum(item.calls for item in found.values())
    losses = {arm: _loss(found.get(arm.index)) for arm in arms}
    noise = 0.0
    seen = yield from _fresh_losses(state, rung, number, losses, age)
    if seen is not None:
        losses, noise = seen
    order = ranking(list(losses.values()))
    alive = [arms[at] for at in order if math.isfinite(losses[arms[at]])]
    return RungResult(age, alive, losses, noise), known


def entrants(
    state: PromoteState, rung: Rung, before: RungResult
) -> tuple[list[Arm], dict[int, Key]]:
    """Return who runs in a rung, and the states from which the new ones among them begin.

    States that nobody needs any more are put down for discarding: the ends from which nobody goes
    on, and where the runs of the rung before began.
    """
    if not rung.kinds:
        return before.arms, {}
    chosen: list[Arm] = []
    origins: dict[int, Key] = {}
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
                chosen.append(state.new_arm(top, value))
                origins[chosen[-1].index] = state_key(top.index, before.age)
    ended = {state_key(arm.index, before.age) for arm in before.losses}
    kept = ended & {origins.get(arm.index, state_key(arm.index, before.age)) for arm in chosen}
    state.discard = tuple(sorted((ended | set(state.begun)) - kept))
    state.begun = tuple(sorted(kept))
    return chosen, origins


def outcomes(tasks: tuple[TrainTask, ...], known: Known) -> list[SegmentOutcome]:
    """Return how each run of the tasks went; those that were lost are left out."""
    told = [known[task.id] for task in tasks]
    return [item for out in told if isinstance(out, TrainOutcome) for item in out.segments]


def _loss(item: SegmentOutcome | None) -> float:
    return item.loss if item is not None and item.finite else math.nan


def _fresh_losses(
    state: PromoteState, rung: Rung, number: int, losses: dict[Arm, float], age: int
) -> Generator[Round, Known, tuple[dict[Arm, float], float] | None]:
    """Yield fresh samples at the ends of a rung; return the losses there, None without any."""
    ends = {arm: state_key(arm.index, age) for arm, loss in losses.items() if math.isfinite(loss)}
    count = int(rung.samples * state.spec.budget / max(1, len(ends)))
    blocks = state.options.blocks
    if count < blocks or not state.samples_freely:
        return None
    name = f"rung{number}-score"
    items = yield from state.fresh_losses(name, list(ends.values()), count, blocks)
    tallies = tallied(items)
    means = {str(key): tallies.get(str(key), Tally()).mean for key in ends.values()}
    fresh = {arm: means[str(ends[arm])] if arm in ends else math.nan for arm in losses}
    return fresh, _noise(items, means, blocks)


def _noise(items: Sequence[SampleOutcome], means: dict[str, float], blocks: int) -> float:
    """Return the standard error of the difference between the two best, from their blocks."""
    parts: dict[str, list[float]] = {}
    for item in items:
        parts.setdefault(item.key, []).append(item.mean)
    keys = list(means)
    best = [keys[at] for at in ranking(list(means.values()))]
    whole = [parts[key] for key in best if len(parts.get(key, ())) == blocks][:2]
    if len(whole) < 2:
        return 0.0
    gaps = [one - other for one, other in zip(*whole, strict=True)]
    if blocks < 2 or not all(map(math.isfinite, gaps)):
        return 0.0
    spread: float = statistics.stdev(gaps)  # the variance may be beyond all numbers
    return spread / math.sqrt(blocks)
