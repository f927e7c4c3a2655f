"""The search of a step size by trials of growing length."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.errors import InputError
from grasp_tune.schedules.step_search import StepSearch

Loss = Callable[[float, int], float]


@dataclass(frozen=True)
class Trial:
    index: int
    value: float
    budget: int
    start: int  # calls of the trial that it goes on from
    parent: int  # its index; 0: it begins at x0


def trials(search: StepSearch, losses: Mapping[int, float | None]) -> tuple[list[Trial], bool]:
    """All trials known so far, and whether no round follows."""
    rounds, found = search.rounds(), list[Trial]()
    runs, last = next(rounds)
    while True:
        for run in runs:
            parent = 0 if run.origin is None else place_of(run.origin)[0]
            found.append(Trial(run.arm.index, run.arm.value, run.calls, run.start, parent))
        if last or any(run.arm.index not in losses for run in runs):
            return found, last
        runs, last = rounds.send(losses)


def run(search: StepSearch, loss: Loss) -> list[tuple[Trial, float]]:
    """All trials in order, with what they came to."""
    losses: dict[int, float | None] = {}
    ended: list[tuple[Trial, float]] = []
    while waiting := [cell for cell in trials(search, losses)[0] if cell.index not in losses]:
        cell = waiting[0]
        losses[cell.index] = loss(cell.value, cell.budget)
        ended.append((cell, loss(cell.value, cell.budget)))
    assert [cell for cell, _ in ended] == trials(search, losses)[0]
    return ended


def quadratic(curvature: float) -> Loss:
    def loss(step: float, calls: int) -> float:
        rate = abs(1.0 - step * curvature)
        return math.inf if rate > 1.0 else rate ** min(calls, 1000)

    return loss


def test_models_that_are_dead_win_nothing_whatever_their_accuracy() -> None:
    def loss(step: float, calls: int) -> float:  # minus the accuracy; the dead see one class only
        return -0.24 if step > 0.5 else -0.2 - min(step, 0.1) * min(calls, 1000) ** 0.5

    ended = run(StepSearch(800), loss)
    assert 0.01 < ended[-1][0].value < 0.5 and max(cell.value for cell, _ in ended) < 1e3
    # Where nothing differs at all, nothing has failed: the last step is not the smallest one.
    equal = [cell.value for cell, _ in run(StepSearch(800), lambda step, calls: 1.0)]
    assert equal[-1] > 1.0 > min(equal)


def test_the_rounds_by_hand() -> None:
    search = StepSearch(4000)
    first, last = trials(search, {})
    assert not last
    # T/400 = 10 calls each, every decade from 1e-6 to 1e2.
    assert [(cell.index, cell.budget) for cell in first] == [(at, 10) for at in range(1, 10)]
    assert [cell.value for cell in first] == pytest.approx([10.0**at for at in range(-6, 3)])
    assert trials(search, {1: 0.5}) == (first, False)  # the round has not ended
    # 1e-2 is best, then 1e-1: half a decade around the best, and the second, with 40 calls.
    losses: dict[int, float | None] = {**dict.fromkeys(range(1, 10), 1.0), 5: 0.2, 6: 0.5}
    second = trials(search, losses)[0][9:]
    assert [cell.value for cell in second] == pytest.approx([10**-2.5, 1e-2, 10**-1.5, 1e-1])
    assert {cell.budget for cell in second} == {40}
    # 10^-1.5 is best: from half a decade below it to a quarter above it, with 160 calls.
    losses |= {10: 0.3, 11: 0.1, 12: 0.05, 13: 0.4}
    third = trials(search, losses)[0][13:]
    assert [cell.value for cell in third] == pytest.approx(
        [10**p for p in (-2, -1.75, -1.5, -1.25)]
    )
    assert {cell.budget for cell in third} == {160}
    # All the rest for a quarter of a decade below the best: 4000 - 9 * 10 - 4 * 40 - 4 * 160.
    losses |= {14: 0.03, 15: 0.02, 16: 0.01, 17: 0.04}
    (final,), last = trials(search, losses)[0][17:], trials(search, losses)[1]
    assert last and final.value == pytest.approx(10**-1.75)
    assert (final.budget, final.start, final.parent) == (3110, 0, 0)


def test_with_checkpoints_trials_go_on_from_earlier_ones() -> None:
    search = StepSearch(4000, resume=True)
    losses: dict[int, float | None] = {**dict.fromkeys(range(1, 10), 1.0), 5: 0.2, 6: 0.5}
    second = trials(search, losses)[0][9:]
    # 1e-2 and 1e-1 have made 10 of the 40 calls in trials 5 and 6.
    assert [(c.budget, c.start, c.parent) for c in second] == [
        (40, 0, 0), (30, 10, 5), (40, 0, 0), (30, 10, 6),
    ]  # fmt: skip
    losses |= {10: 0.3, 11: 0.1, 12: 0.05, 13: 0.4} | {14: 0.03, 15: 0.02, 16: 0.01, 17: 0.04}
    cells, last = trials(search, losses)
    assert [(c.budget, c.start, c.parent) for c in cells[13:17]] == [
        (120, 40, 11), (160, 0, 0), (120, 40, 12), (160, 0, 0),
    ]  # fmt: skip
    # The last goes on from the best, with a smaller step.
    assert (cells[17].start, cells[17].parent) == (160, 16) and last
    assert sum(cell.budget for cell in cells) == 4000


@pytest.mark.parametrize("curvature", [1e-9, 1e-3, 0.3, 40.0, 1e5, 1e9])
def test_any_scale_is_found_and_most_calls_go_to_the_winner(curvature: float) -> None:
    ended = run(StepSearch(4000), quadratic(curvature))
    last, loss = ended[-1]
    assert loss == min(loss for _, loss in ended)
    assert 0.15 < last.value * curvature < 2.0
    assert last.budget >= 0.5 * 4000


def test_where_everything_diverges_it_ends() -> None:
    ended = run(StepSearch(1000), lambda step, calls: math.nan)
    assert sum(cell.budget for cell, _ in ended) <= 1000


@given(st.integers(20, 5000), st.randoms(use_true_random=False))
def test_whatever_comes_out_the_budget_holds_and_steps_stay_in_range(
    budget: int, draw: object
) -> None:
    search = StepSearch(budget, draw.random() < 0.5)  # type: ignore[attr-defined]

    def noise(step: float, calls: int) -> float:
        return draw.choice([math.inf, math.nan, draw.random()])  # type: ignore[attr-defined]

    losses: dict[int, float | None] = {}
    last = False
    while not last:
        cells, last = trials(search, losses)
        for cell in cells:
            losses.setdefault(cell.index, noise(cell.value, cell.budget))
    low, high = search.range
    assert sum(cell.budget for cell in cells) <= budget
    assert all(low <= cell.value <= high for cell in cells)
    assert [cell.index for cell in cells] == list(range(1, len(cells) + 1))


def test_inputs_are_checked() -> None:
    with pytest.raises(InputError, match="budget: got 19"):
        StepSearch(19)
    with pytest.raises(InputError, match="need 0 < low < high"):
        StepSearch(20, low=2.0, high=1.0)
