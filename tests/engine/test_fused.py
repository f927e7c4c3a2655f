"""Runs of a small model as one task: the same bits as one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.spec import WIDTH, SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, Segment
from grasp_tune.engine.fused import pays, task_threads
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.store import TemporaryStore
from tests.engine import workbench
from tests.engine.workbench import Bench, arms, same_bits


@pytest.mark.parametrize("base", ["sgd", "unixgrad", "adagrad", "adam"])
def test_runs_of_one_task_equal_single_runs(base: str) -> None:
    segments = [
        Segment(arm, 0, stop, keep=(0, 5, stop), averages=(0.0, 8.0), keep_averages=True, save=True)
        for arm, stop in zip(arms(base, (0.001, 0.03, 1e38)), (14, 20, 9), strict=True)
    ]
    together, alone = (Bench(workbench.problem(workbench.dropout), seed=5) for _ in range(2))
    # As text: a diverged run has NaNs.
    assert repr(together.train(*segments, norms=True)) == repr(
        alone.one_by_one(*segments, norms=True)
    )
    assert together.calls == alone.calls
    assert together.store.keys() == alone.store.keys()
    for key in map(str, [*segments[0].candidates, *segments[1].candidates]):
        assert same_bits(together.point(key), alone.point(key)), key


def test_auto_joins_runs_of_small_models_of_dense_layers_only() -> None:
    assert pays(workbench.linear())
    assert pays(workbench.dropout())
    assert not pays(workbench.batch_norm())
    assert not pays(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    assert not pays(nn.Linear(3000, 1000))


def test_the_width_follows_the_choice_and_the_model() -> None:
    def width(model: Callable[[], nn.Module], method: NonConvex, fused: Any) -> int:
        worker = Worker(workbench.problem(model), 0, TemporaryStore())
        start = worker.run(ProbeTask("probe", (0, 1)))
        assert isinstance(start, ProbeOutcome)
        return SweepSpec.assemble(method, 100, fused=fused)[0].task_width(start)

    def large() -> nn.Module:
        return nn.Sequential(
            nn.Linear(workbench.FEATURES, 9000), nn.Linear(9000, workbench.CLASSES)
        )

    small, method = workbench.linear, NonConvex()
    assert width(small, method, "auto") == WIDTH
    assert width(large, method, "auto") == 0
    assert width(large, method, True) == WIDTH
    assert width(small, method, False) == 0
    own = NonConvex(base=lambda params, value: torch.optim.SGD(params, lr=value))
    assert width(small, own, "auto") == 0
    with pytest.raises(InputError, match="fused: got 'yes', expected True, False or 'auto'"):
        width(small, method, "yes")


@pytest.mark.parametrize(
    ("model", "threads"),
    [
        (nn.Linear(512, 10), 1),
        (workbench.batch_norm(), 1),
        (nn.Linear(1000, 1000), 3),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), 3),
        (nn.LSTM(4, 4), 3),
    ],
)
def test_small_models_of_dense_layers_need_one_thread(model: nn.Module, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with task_threads(model):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyError), task_threads(model):
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
