"""Lanes of a step over several workers: the same bits for any number of them, and after a fault."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.tasks import Arm, Segment, TrainOutcome, TrainTask
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.runtime.lane_sharing import LaneSharing
from tests.executors.sweeps import fingerprint

# Lanes from the second part on, however the loss falls.
LANES = gt.Promote(most_lanes=8, short_budget=100, slow=1e-6, falling=0.0)


def sweep(
    workers: int,
    before: Callable[[], None] = lambda: None,
    out: Path | None = None,
    middle: Callable[[], nn.Module] = nn.Tanh,
) -> gt.Result:
    draw = torch.Generator().manual_seed(8)
    x = torch.randn(300, 6, generator=draw)
    y = (x[:, 0] * x[:, 1] > 0).long()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        before()
        return F.cross_entropy(model(batch[0]), batch[1])

    problem = gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(6, 8), middle(), nn.Dropout(0.1), nn.Linear(8, 2)),
        loss=loss,
        data=(x, y),
        batch_size=8,
    )
    return gt.minimize(problem, 400, schedule=LANES, workers=workers, out=out, progress=False)


@pytest.fixture(scope="module")
def alone() -> gt.Result:
    return sweep(1)


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_bits(workers: int, alone: gt.Result) -> None:
    shared = sweep(workers)
    assert fingerprint(shared) == fingerprint(alone)
    assert shared.calls["repeated"] == 0
    assert shared.depth == alone.depth < 200  # of 400 calls: lanes were really used


def test_a_model_with_batch_statistics_has_the_same_bits_too() -> None:
    shared = sweep(2, middle=lambda: nn.BatchNorm1d(8))
    assert fingerprint(shared) == fingerprint(sweep(1, middle=lambda: nn.BatchNorm1d(8)))
    assert shared.calls["repeated"] == 0


def test_a_worker_that_dies_in_the_middle_of_a_step(alone: gt.Result, tmp_path: Path) -> None:
    driver, calls, once = os.getpid(), [0], tmp_path / "once"

    def die() -> None:
        calls[0] += 1
        if os.getpid() != driver and calls[0] == 120 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = sweep(2, die, tmp_path / "out")
    assert once.exists()
    assert fingerprint(result) == fingerprint(alone)
    assert result.calls["repeated"] > 0
    assert not list((tmp_path / "out").glob("meeting-*"))


def test_an_error_in_the_loss_of_a_shared_step_arrives_as_itself(tmp_path: Path) -> None:
    driver, calls = os.getpid(), [0]

    def fail() -> None:
        calls[0] += 1
        if os.getpid() != driver and calls[0] > 150:
            raise ZeroDivisionError("by hand")

    with pytest.raises(ZeroDivisionError, match="by hand"):
        sweep(2, fail, tmp_path)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_lanes_are_added_as_one_tree(count: int) -> None:
    items = [torch.randn(5, generator=torch.Generator().manual_seed(at)) for at in range(count)]
    tree = LaneSum()
    for item in items:
        tree.add([item, None])
    total, missing = tree.total()
    by_hand = {
        1: lambda a: a[0],
        2: lambda a: a[0] + a[1],
        3: lambda a: (a[0] + a[1]) + a[2],
        4: lambda a: (a[0] + a[1]) + (a[2] + a[3]),
        8: lambda a: ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])),
    }[count](items)
    assert missing is None
    assert total is not None and torch.equal(total, by_hand)


def task(lanes: int) -> TrainTask:
    return TrainTask("train", (Segment(Arm.of(1, "sgd", 0.1), 0, 80, lanes=lanes),))


def test_a_number_of_workers_that_is_slower_than_one_is_given_up() -> None:
    rule = LaneSharing()
    assert rule.workers(task(8), 5) == 4  # a power of two, as many as there are
    assert rule.workers(task(1), 5) == 1
    assert rule.workers(task(2), 5) == 2
    assert rule.workers(task(8), 1) == 1
    done = TrainOutcome(80, "", ())
    rule.learn(task(1), 1, done, 8.0)  # 10 calls a second
    rule.learn(task(8), 4, done, 16.0)  # 5
    assert rule.workers(task(8), 5) == 2
    rule.learn(task(8), 2, done, 4.0)  # 20
    assert rule.workers(task(8), 5) == 2
