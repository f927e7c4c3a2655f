"""The list of steps: the best place, the next one, the vertex."""

import math
from dataclasses import replace

import pytest

from grasp_tune.core.tasks import (
    Arm,
)
from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.step_list import StepList, is_lower


def of(losses: dict[int, float]) -> StepList:
    return StepList(Arm.of(0, "adam", 1.0), 1.0, 4.0, (2, 3, 4), losses=losses)


def test_a_list_grows_beyond_the_end_where_its_best_run_is() -> None:
    assert of({2: 1.0, 3: 0.7, 4: 0.9}).beyond(7) is None
    assert of({2: 1.0, 3: 0.9, 4: 0.7}).beyond(7) == 5
    assert of({2: 0.5, 3: 0.9, 4: 1.2}).beyond(7) == 1
    assert of({2: math.inf, 3: math.inf, 4: math.inf}).beyond(7) == 5
    assert of({2: 0.5, 3: 0.9, 4: 1.2}).beyond(3) is None


def test_where_nothing_was_learned_the_usual_place_stands_for_those_alike() -> None:
    losses = {2: 2.52, 3: 2.312, 4: 2.309, 5: 2.31}
    kind = Arm.of(0, "adam", 1.0)
    tried = StepList(kind, 1.0, 4.0, (2, 3, 4), losses=losses, gain=0.01, start=2.311)
    # 3, 4 and 5 are within 0.01 of the lowest, which is not 0.01 below the start.
    assert tried.best == 3 and tried.beyond(7) is None
    assert replace(tried, gain=0.002).best == 4  # then 3 is worse
    assert replace(tried, start=2.4).best == 4  # then something was learned
    # Where the largest step is alike, all may be too small, and larger ones are tried.
    small = replace(tried, losses={2: 2.309, 3: 2.312, 4: 2.31})
    assert small.best == 2 and small.beyond(7) == 1
    # A larger step whose losses are lower on the same minibatches has learned something: 0.1, 0.2,
    # 0.3 and 0.2 less, 0.2 on the mean, with a standard error of 0.08 / 2.
    late: dict[int, tuple[float, ...]] = {
        2: (2.3,) * 4,
        3: (2.5, 2.4, 2.3, 2.4),
        4: (2.6, 2.6, 2.6, 2.6),
    }
    assert replace(tried, curves=late).best == 4 and is_lower(late[3], late[4])
    assert not is_lower(late[4], late[3]) and not is_lower((2.0, 2.0), (1.0, 9.0))
    assert not is_lower((), ()) and not is_lower((1.0,), (2.0,))
    # A run that has overshot says that its step is too large: 4 is the next most usual place.
    assert replace(tried, overshot={3}).best == 4
    # A single run that did not blow up says that smaller steps are wanted.
    alone = replace(tried, losses={2: math.inf, 3: math.inf, 4: 2.4})
    assert alone.best == 4 and alone.beyond(7) == 5


def test_a_smaller_step_is_always_looked_at_again_a_larger_one_where_it_gained_as_much() -> None:
    # From 2.0 the best gained 1.3; 0.7 * 1.3 = 0.91 is what a larger step must have gained.
    item = of({2: 1.05, 3: 0.7, 4: 1.9})
    assert item.comes_near(4, 2.0, 0.7) and item.comes_near(2, 2.0, 0.7)
    assert not of({2: 1.12, 3: 0.7, 4: 1.9}).comes_near(2, 2.0, 0.7)
    assert not of({2: 0.9, 3: 0.7, 4: math.inf}).comes_near(4, 2.0, 0.7)


def test_the_list_grows_beyond_a_winner_at_either_end() -> None:
    item = of({2: 2.0, 3: 1.0, 4: 4.0})
    arms = {place: Arm.of(place, "adam", 4.0**-place) for place in (2, 3, 4)}
    item.arms.update(arms)
    assert [item.at_end(arms[place], 7) for place in (2, 3, 4)] == [1, None, 5]
    assert item.at_end(arms[2], 3) is None  # no place is left


def test_the_vertex_by_hand() -> None:
    item = of({2: 2.0, 3: 1.0, 4: 4.0, 5: 9.0})
    # Neighbours e times and e^3 times as high: (1 - 3) / (2 * (1 + 3)) = -1/4, to the larger step.
    assert item.vertex({2: math.e, 3: 1.0, 4: math.e**3}) == pytest.approx(-0.25)
    # Those without a second look keep their ratio: log 2 and log 4, so -1/6.
    assert item.vertex({3: 0.5, 2: None}) == pytest.approx(-1 / 6)
    # Half a place between equals; a best one at the end of the list stays where it is.
    assert item.vertex({3: 1.0, 4: 1.0}) == pytest.approx(0.5)
    assert item.vertex({4: 3.0, 5: 2.0}) == 0.0
    # Losses that may be negative are taken as they are: rises of 1 and 3.
    assert of({2: 0.0, 3: -1.0, 4: 2.0}).vertex({3: -2.0}) == pytest.approx(-0.25)


@pytest.mark.parametrize("loss", [2.2, 1.5])
def test_a_small_step_that_has_learned_little_gives_way_to_the_usual_one(loss: float) -> None:
    item = of({2: 2.5, 3: 2.25, 4: 2.2})
    item.arms.update({place: Arm.of(place, "adam", 4.0**-place) for place in (2, 3, 4)})
    item.start, usual, small = 2.3, item.arms[3], item.arms[4]
    # 2.2 is above 0.95 times the loss of the first rung, and above 0.85 times the start's, 1.96.
    assert item.is_stuck(small, loss, usual, Promote()) == (loss == 2.2)
    assert not item.is_stuck(item.arms[2], loss, usual, Promote())  # a larger one
    assert not item.is_stuck(small, loss, usual, Promote(plateau=math.inf))
