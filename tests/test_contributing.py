"""What CONTRIBUTING.md promises: an optimizer and a schedule from outside, each in one place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

import grasp_tune as gt
from grasp_tune import schedules
from grasp_tune.core.choice import Choice
from grasp_tune.core.spec import Round, Rounds, SweepSpec, train_tasks
from grasp_tune.core.tasks import Arm, Segment
from grasp_tune.optimizers import registry
from grasp_tune.optimizers.registry import BaseOptimizer, coordinate_distance
from grasp_tune.schedules.paper import start_candidate, train_candidates
from grasp_tune.schedules.probe import probing


class SignDescent(Optimizer):
    """The toy optimizer: every coordinate moves by the same length."""

    def __init__(self, params: list[Tensor], *, length: float) -> None:
        super().__init__(params, {"length": length})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is not None
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for point in group["params"]:
                if point.grad is not None:
                    point.sub_(point.grad.sign(), alpha=group["length"])
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """The toy schedule: one run with a given step, and its end."""

    step: float = 0.05  # of the only run

    name: ClassVar[str] = "one-run"
    default_base: ClassVar[str | None] = "sgd"

    def rounds(self, spec: SweepSpec) -> Rounds:
        start = yield from probing(1, 0)
        arm = Arm.of(1, spec.method.base_name(self), self.step)
        stop = spec.budget - start.calls
        tasks = train_tasks("only", [Segment(arm, 0, stop, keep=(stop,))], 0)
        known = yield Round(tasks)
        rows = [start_candidate(start, "value"), *train_candidates(tasks, known, "value")]
        return Choice(rows[-1].key, "value", "window", tuple(rows), share=0.0, covered=False)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.register(
        BaseOptimizer(
            name="sign",
            make=SignDescent,
            value="length",
            quantity="length",
            from_distance=coordinate_distance,
            group_entry="length",
        )
    )
    schedules.register(OneRun)
    yield
    del registry._ENTRIES["sign"], schedules._KINDS["one-run"]


def problem() -> gt.TorchProblem:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    return gt.TorchProblem(
        model=lambda: torch.nn.Linear(3, 1),
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        data=(x, x.sum(1, keepdim=True)),
        batch_size=8,
    )


@pytest.mark.parametrize("schedule", ["promote", "paper"])
def test_an_optimizer_from_outside_is_searched_like_any_other(schedule: str) -> None:
    method = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="sign")
    result = gt.minimize(problem(), 1500, method, schedule, progress=False)
    assert {run.base for run in result.runs if run.base != "sgd"} == {"sign"}
    assert sum(result.calls.values()) <= 1500
    assert schedule == "promote" or not result.choice.covered  # no theorem is about it


def test_an_optimizer_from_outside_joins_as_a_challenger() -> None:
    result = gt.minimize(problem(), 1500, challengers=("sign",), progress=False)
    assert "sign" in {run.base for run in result.runs}


def test_a_schedule_from_outside_runs_by_name_and_with_options() -> None:
    named = gt.minimize(problem(), 200, schedule="one-run", progress=False)
    given = gt.minimize(problem(), 200, schedule=OneRun(step=0.01), progress=False)
    assert [run.value for run in (*named.runs, *given.runs)] == [0.05, 0.01]
    assert named.calls["train"] == 199 and named.depth == 200
    assert given.spec["schedule"] == {"name": "one-run", "step": 0.01}
    assert named.score < 1.0
