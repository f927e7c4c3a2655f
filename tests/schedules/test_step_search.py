"""The search of a step size by trials of growing length."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell
from grasp_tune.schedules.step_search import StepSearch, StepSearchOptions

Loss = Callable[[float, int], float]


def run(search: StepSearch, loss: Loss) -> list[tuple[Cell, float]]:
    """All trials in order, with what they came to."""
    losses: dict[int, float | None] = {}
    ended: list[tuple[Cell, float]] = []
    while waiting := [cell for cell in search.trials(losses)[0] if cell.index not in losses]:
        cell = waiting[0]
        losses[cell.index] = loss(cell.value, cell.budget)
        ended.append((cell, loss(cell.value, cell.budget)))
    assert [cell for cell, _ in ended] == list(search.trials(losses)[0])
    return ended


def quadratic(curvature: float) -> Loss:
    def loss(step: float, calls: int) -> float:
        rate = abs(1.0 - step * curvature)
        return math.inf if rate > 1.0 else rate ** min(calls, 1000)

    return loss


def test_the_first_rounds_by_hand() -> None:
    search = StepSearch(2000)
    first, last = search.trials({})
    assert not last
    # T/200 = 10 calls each, every decade from 1e-6 to 1e2.
    assert [(cell.index, cell.budget) for cell in first] == [(at, 10) for at in range(1, 10)]
    assert [cell.value for cell in first] == pytest.approx([10.0**at for at in range(-6, 3)])
    assert search.trials({1: 0.5}) == (first, False)  # the round has not ended
    # 1e-2 is best, then 1e-3 and 1e-1: a third of nine goes on, with half a decade between them.
    losses = dict.fromkeys(range(1, 10), 1.0) | {4: 0.6, 5: 0.2, 6: 0.5}
    second = search.trials(losses)[0][9:]
    assert [cell.value for cell in second] == pytest.approx(
        [10.0 ** (at / 2) for at in range(-7, 0)]
    )
    assert {cell.budget for cell in second} == {30}


@pytest.mark.parametrize("curvature", [1e-9, 1e-3, 0.3, 40.0, 1e5, 1e9])
def test_any_scale_is_found_and_most_calls_go_to_the_winner(curvature: float) -> None:
    ended = run(StepSearch(4000), quadratic(curvature))
    last, loss = ended[-1]
    assert loss == min(loss for _, loss in ended)
    assert 0.3 < last.value * curvature < 2.0
    assert last.budget >= 0.4 * 4000


def test_where_everything_diverges_it_ends() -> None:
    ended = run(StepSearch(1000), lambda step, calls: math.nan)
    assert sum(cell.budget for cell, _ in ended) <= 1000


@given(st.integers(20, 5000), st.randoms(use_true_random=False))
def test_whatever_comes_out_the_budget_holds_and_steps_stay_in_range(
    budget: int, draw: object
) -> None:
    search = StepSearch(budget)

    def noise(step: float, calls: int) -> float:
        return draw.choice([math.inf, math.nan, draw.random()])  # type: ignore[attr-defined]

    losses: dict[int, float | None] = {}
    last = False
    while not last:
        cells, last = search.trials(losses)
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
        StepSearchOptions(low=2.0, high=1.0)
