"""Lanes of a step over several workers: the same bits for any number of them, and after a fault."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune import schedules
from grasp_tune.core.choice import Choice
from grasp_tune.core.rounds import Round, Rounds, train_tasks
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.executors.ray import RayBackend, RayExecutor
from grasp_tune.runtime.driver import run_sweep
from grasp_tune.runtime.lane_sharing import LaneSharing
from grasp_tune.runtime.usage import UsageMeter
from grasp_tune.schedules.paper import start_candidate, train_candidates
from grasp_tune.schedules.probe import probing
from tests.executors.contract import CountedCalls
from tests.executors.sweeps import fingerprint


@dataclass(frozen=True, slots=True)
class Laned:
    """A schedule of one run in parts of many lanes, with another run beside one of them."""

    name: ClassVar[str] = "laned"
    default_base: ClassVar[str | None] = "adam"

    def rounds(self, spec: SweepSpec) -> Rounds:
        start = yield from probing(2, 0)
        arms = [Arm.of(at, spec.method.base_name(self), 0.02 * at) for at in (1, 2)]
        tasks: tuple[TrainTask, ...] = ()
        for begin, stop, lanes in ((0, 40, 1), (40, 200, 8), (200, 320, 4), (320, 360, 2)):
            keep = (stop,) if stop == 360 else ()
            parts = [Segment(arms[0], begin, stop, keep=keep, save=not keep, lanes=lanes)]
            if begin == 40:
                parts.append(Segment(arms[1], 0, 20))
            tasks = train_tasks(f"part{begin}", parts, 0)
            known = yield Round(tasks)
        rows = [start_candidate(start, "value"), *train_candidates(tasks, known, "value")]
        return Choice(rows[-1].key, "value", "window", tuple(rows), share=0.0, covered=False)


def sweep(
    workers: int,
    before: Callable[[], None] = lambda: None,
    out: Path | None = None,
    middle: Callable[[], nn.Module] = nn.Tanh,
) -> gt.Result:
    how: Any = {"schedule": Laned(), "workers": workers, "out": out, "fused": False}
    return gt.minimize(problem(before, middle), 400, **how, progress=False)


def problem(
    before: Callable[[], None] = lambda: None, middle: Callable[[], nn.Module] = nn.Tanh
) -> gt.TorchProblem:
    draw = torch.Generator().manual_seed(8)
    x = torch.randn(300, 6, generator=draw)
    y = (x[:, 0] * x[:, 1] > 0).long()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        before()
        return F.cross_entropy(model(batch[0]), batch[1])

    return gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(6, 8), middle(), nn.Dropout(0.1), nn.Linear(8, 2)),
        loss=loss,
        data=(x, y),
        batch_size=8,
    )


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    schedules.register(Laned)
    yield
    del schedules._KINDS["laned"]


@pytest.fixture(scope="module")
def alone(_registered: None) -> gt.Result:
    return sweep(1)


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_bits(workers: int, alone: gt.Result) -> None:
    shared = sweep(workers)
    assert fingerprint(shared) == fingerprint(alone)
    assert shared.calls["repeated"] == 0
    assert shared.depth == alone.depth == 2 + 40 + 20 + 30 + 20  # the probe, and steps of each part
    assert shared.usage is not None and dict(shared.usage.speeds)[workers] > 0.0


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


class AllReady(RayExecutor):
    """An executor that begins when all of its workers are there."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        while not self._members or not all(member.address for member in self._members):
            assert not list(self.poll(0.1))


@pytest.mark.usefixtures("ray_session")
def test_ray_actors_share_lanes_and_go_on_without_one_that_dies(
    alone: gt.Result, tmp_path: Path
) -> None:
    calls, once = CountedCalls(tmp_path / "calls seen"), tmp_path / "once"

    def before() -> None:
        calls()
        if calls.total > 2 + 40 + 180 + 120 and not once.exists():  # in the last part
            with suppress(FileExistsError):
                once.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    executor = partial(AllReady, RayBackend(workers=2, cpus_per_task=0.5))
    spec = SweepSpec.from_dict(alone.spec)
    result = run_sweep(problem(before), spec, executor, out=tmp_path / "out", shared=True)
    assert fingerprint(result) == fingerprint(alone)
    assert once.exists() and result.calls["repeated"] > 0
    usage = gt.Result.load(tmp_path / "out").usage
    assert usage is not None and usage == result.usage
    assert dict(usage.speeds)[2] > 0.0  # two actors made some steps together
    assert 0.0 < usage.busy <= usage.held and usage.workers == 2


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
    meter = UsageMeter()
    rule = LaneSharing(meter)
    assert rule.workers(task(8), 5) == 4  # a power of two, as many as there are
    assert rule.workers(task(1), 5) == 1
    assert rule.workers(task(2), 5) == 2
    assert rule.workers(task(8), 1) == 1
    meter.speeds.update({1: 10.0, 4: 5.0})  # calls a second
    assert rule.workers(task(8), 5) == 2
    meter.speeds[2] = 20.0
    assert rule.workers(task(8), 5) == 2
    assert list(rule.shares([task(8), task(1)], 3)) == [(task(1), 1), (task(8), 2)]
