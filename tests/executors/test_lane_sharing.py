"""Lanes of a step over several workers: the same bits for any number of them, and after a fault."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from grasp_tune.core.spec import Round, Rounds, SweepSpec, train_tasks
from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.engine.lane_group import LaneGroup, LaneSum, Seat, Shares
from grasp_tune.executors.ray import RayBackend, RayExecutor
from grasp_tune.runtime.driver import run_sweep
from grasp_tune.runtime.lane_sharing import LaneSharing
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
        for begin, stop, lanes in ((0, 40, 1), (40, 200, 8), (200, 320, 6), (320, 360, 2)):
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


@pytest.mark.parametrize(("workers", "used"), [(2, 2), (3, 3), (4, 3)])
def test_any_number_of_workers_gives_the_same_bits(
    workers: int, used: int, alone: gt.Result
) -> None:
    shared = sweep(workers)
    assert fingerprint(shared) == fingerprint(alone)
    assert shared.calls["repeated"] == 0
    assert shared.depth == alone.depth == 2 + 40 + 20 + 20 + 20  # the probe, and steps of each part
    assert shared.usage is not None and max(dict(shared.usage.speeds)) == used


def test_a_model_with_batch_statistics_has_the_same_bits_too() -> None:
    shared = sweep(2, middle=lambda: nn.BatchNorm1d(8))
    assert fingerprint(shared) == fingerprint(sweep(1, middle=lambda: nn.BatchNorm1d(8)))
    assert shared.usage is not None and 2 in dict(shared.usage.speeds)
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
        while not self.members or not all(member.address for member in self.members):
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
    result = run_sweep(problem(before), spec, executor, out=tmp_path / "out")
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


def test_a_number_of_workers_that_is_slower_than_fewer_is_given_up() -> None:
    rule = LaneSharing()
    assert rule.workers(task(8), 7) == 4  # with five to seven some would still have two lanes
    assert rule.workers(task(8), 3) == 3
    assert rule.workers(task(1), 5) == 1
    assert rule.workers(task(2), 5) == 2
    assert rule.workers(task(8), 1) == 1
    rule.learn(1, 80, 8.0)  # calls, seconds
    rule.learn(4, 80, 16.0)
    assert rule.workers(task(8), 5) == 4  # once does not count: modules may have been loaded
    rule.learn(4, 80, 16.0)
    assert rule.workers(task(8), 5) == 3
    rule.learn(2, 80, 2.0)
    rule.learn(3, 80, 4.0)
    rule.learn(3, 80, 4.0)
    assert rule.workers(task(8), 5) == 2
    assert rule.reading() is None and rule.speeds == {1: 10.0, 2: 40.0, 3: 20.0, 4: 5.0}


def test_workers_are_given_to_the_task_that_would_end_last() -> None:
    rule = LaneSharing()
    assert rule.shares([task(8), task(1)], 3) == [2, 1]
    assert rule.shares([task(8), task(8)], 8) == [4, 4]
    assert rule.shares([task(8), task(8), task(8)], 8) == [3, 3, 2]
    assert rule.shares([task(8), task(2)], 8) == [4, 2]  # 8 do not fit beside another one
    assert rule.shares([], 3) == []


def test_the_share_of_a_slow_worker_shrinks() -> None:
    shares = Shares(3)
    assert [len(part) for part in shares.of(8)] == [3, 3, 2]
    shares.learn([3.0, 3.0, 2.2])  # nearly alike: nothing is changed
    assert shares.counts == [3, 3, 2]
    for _ in range(20):
        seconds = [count * each for count, each in zip(shares.counts, (1.0, 5.0, 1.0), strict=True)]
        shares.learn(seconds)
    assert shares.counts == [4, 1, 3]
    assert shares.of(8) == [range(4), range(4, 5), range(5, 8)]


def _rank(seat: Seat, shares: list[list[int]], steps: list[Any]) -> list[Any]:
    """What one worker of a group makes of a few steps whose shares are prescribed."""
    found = []
    with LaneGroup(seat) as group:
        for counts, lanes in zip(shares, steps, strict=True):
            group._shares.counts = list(counts)
            own = group.own(len(lanes))
            tree = LaneSum(own.start)
            for lane in own:
                tree.add(lanes[lane])
            losses = [torch.tensor(0.1 * lane) for lane in own]
            found.append(group.exchange(tree, losses, like()))
    return found


def like() -> list[Tensor]:
    kinds = torch.float32, torch.float64, torch.bfloat16, torch.int64
    return [torch.zeros(3, 5, dtype=kind) for kind in kinds]


def test_any_shares_of_any_kind_of_numbers_are_added_as_one_tree(tmp_path: Path) -> None:
    draw, steps = torch.Generator().manual_seed(3), list[Any]()
    shares = [[3, 1, 4], [1, 5, 1], [2, 2, 1], [1, 1, 1]]
    for counts in shares:
        rows: list[Any] = [
            [torch.randn(3, 5, generator=draw).mul(99).to(item.dtype) for item in like()]
            for _ in range(sum(counts))
        ]
        rows[1][1] = None  # a parameter that one minibatch does not use
        steps.append(rows)
    address = (tmp_path / "meeting").resolve().as_uri()
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(_rank, Seat(rank, 3, address), shares, steps) for rank in range(3)]
        answers = [job.result(timeout=60) for job in jobs]
    for at, lanes in enumerate(steps):
        alone = LaneSum()
        for lane in lanes:
            alone.add(lane)
        for answer in answers:
            total, losses = answer[at]
            for one, other in zip(total, alone.total(), strict=True):
                assert one is not None and other is not None
                assert one.dtype == other.dtype and torch.equal(one, other)
            assert [float(loss) for loss in losses] == pytest.approx(
                [0.1 * lane for lane in range(len(lanes))]
            )
