"""The depth of a sweep: steps that must follow each other."""

import pytest

from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, Method, NonConvex
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    Segment,
    SegmentOutcome,
    TrainOutcome,
    TrainTask,
    depth_of,
)
from tests.core.simulation import ORIGIN, run


def test_depths_by_hand() -> None:
    # 12 calls in lanes of 4 are 3 steps; 7 calls alone are 7; 10 calls in lanes of 4 are 3, the
    # last of them cut short.
    runs = ((12, 4, 12), (7, 1, 7), (12, 4, 10))
    arms = [Arm.of(at, "sgd", 0.1) for at in (1, 2, 3)]
    segments = [
        Segment(arm, 0, stop, lanes=n) for arm, (stop, n, _) in zip(arms, runs, strict=True)
    ]
    items = [
        SegmentOutcome(at, calls, True, 1.0, 1.0, 1.0) for at, (_, _, calls) in enumerate(runs, 1)
    ]
    for at, depth in enumerate((3, 7, 3)):
        task = TrainTask("t", (segments[at],))
        assert depth_of(task, TrainOutcome(runs[at][2], ORIGIN, (items[at],))) == depth
    both = TrainTask("t", tuple(segments))
    assert depth_of(both, TrainOutcome(29, ORIGIN, tuple(items))) == 7
    samples = tuple(SampleOutcome(key, 5, 1.0, 1.0) for key in ("a", "b"))
    assert depth_of(ScoreTask("s", "value", ()), ScoreOutcome(10, ORIGIN, samples)) == 10


@pytest.mark.parametrize("schedule", ["paper", "promote"])
@pytest.mark.parametrize("method", [NonConvex(), Convex(), ConvexFree(), Deterministic()])
def test_the_depth_is_between_the_longest_task_and_all_calls(method: Method, schedule: str) -> None:
    search, tasks = run(SweepSpec(method, 5000, schedule))
    longest = max(depth_of(task, search.outcomes[task.id]) for task in tasks)
    free = sum(1 for task in tasks if not search.outcomes[task.id].calls) * 8  # exact ones
    assert longest <= search.depth <= sum(search.calls.values()) + free


def test_the_depth_of_the_papers_sweep_by_its_plan() -> None:
    search, tasks = run(SweepSpec(Convex(), 4000, "paper"))
    assert search.plan is not None
    scores = [task.calls for task in tasks if isinstance(task, ScoreTask)]
    first = search.plan.cells[0].budget  # the others have less
    # Sixteen parts share 500 gradients and 500 values: the longest have 32 of each.
    assert search.depth == 32 + 32 + first + max(scores)


def test_the_depth_survives_saving() -> None:
    search, _ = run(SweepSpec(NonConvex(), 4000))
    assert Search.from_state(search.state()).depth == search.depth > 0
