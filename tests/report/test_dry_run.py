"""The time of a sweep on many workers, worked out by hand."""

import pytest

from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.report.cost_estimate import timed_exchange
from grasp_tune.report.dry_run import Costs, DryRun, Round, simulate

CALL = 0.1  # seconds


def one(index: int, calls: int, lanes: int = 1) -> TrainTask:
    return TrainTask(f"t{index}", (Segment(Arm.of(index, "sgd", 0.1), 0, calls, lanes=lanes),))


def rounds(*tasks: tuple[TrainTask, ...]) -> DryRun:
    return DryRun(None, tuple(Round(t) for t in tasks))


@pytest.mark.parametrize(("workers", "seconds"), [(1, 3.0), (2, 2.0), (3, 1.0), (8, 1.0)])
def test_runs_side_by_side(workers: int, seconds: float) -> None:
    # Three runs of 10 calls, a tenth of a second each.
    found = simulate(rounds((one(1, 10), one(2, 10), one(3, 10))), Costs(CALL), workers)
    assert found.seconds == pytest.approx(seconds)
    assert found.share == pytest.approx(3.0 / (workers * seconds))


@pytest.mark.parametrize(("workers", "seconds"), [(1, 4.0), (2, 2.2), (4, 1.6), (8, 1.6)])
def test_lanes_over_workers(workers: int, seconds: float) -> None:
    # 40 calls in 10 steps of 4 lanes; a step's gradients pass from each worker to the next one.
    found = simulate(rounds((one(1, 40, 4),)), Costs(CALL, exchange=0.02), workers)
    assert found.seconds == pytest.approx(seconds)


def test_lanes_stay_with_one_worker_where_sharing_was_slower() -> None:
    # A second alone; then two seconds of calls and 10 exchanges of a second, twice: never again.
    run = rounds((one(1, 10),), *((one(at, 40, 4),) for at in (2, 3, 4)))
    found = simulate(run, Costs(CALL, exchange=1.0, start=5.0), 2)
    assert found.rounds == pytest.approx((1.0, 12.0, 12.0, 4.0))
    assert found.seconds == pytest.approx(34.0)


def test_lanes_that_workers_do_not_divide() -> None:
    # 60 calls in 10 steps of 6 lanes: four workers have two each at most, as have three.
    seconds = {k: simulate(rounds((one(1, 60, 6),)), Costs(CALL), k).seconds for k in (3, 4, 6)}
    assert seconds == pytest.approx({3: 2.0, 4: 2.0, 6: 1.0})
    # 80 and 40 calls of 8 lanes on eight workers: four each would leave 20 steps of the larger one.
    both = simulate(rounds((one(1, 80, 8), one(2, 40, 8))), Costs(CALL), 8)
    assert both.seconds == pytest.approx(2.0)


def test_an_exchange_takes_time() -> None:
    assert timed_exchange(100) > 0.0
