"""Budgets in the units that people think in."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import grasp_tune as gt
from grasp_tune.limits import Limits, calls_within

ROWS = 50


def problem(pause: float = 0.0) -> gt.TorchProblem:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 4, generator=generator)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        time.sleep(pause)
        return F.cross_entropy(model(batch[0]), batch[1])

    return gt.TorchProblem(
        model=lambda: nn.Linear(4, 2), loss=loss, data=(x, (x[:, 0] > 0).long()), batch_size=8
    )


def budget_of(result: gt.Result) -> Any:
    return result.spec["budget"]


def test_epochs_and_steps_become_calls() -> None:
    # 50 rows in minibatches of 8 are 7 calls; 12 epochs are 84. The smallest of all counts.
    assert Limits(epochs=12).calls(problem(), 0) == 84
    assert Limits(epochs=12).calls(problem(), 0, exact=True) == 12
    assert Limits(epochs=0.5).calls(problem(), 0) == 4
    assert Limits(steps=300, epochs=12, budget=90).calls(problem(), 0) == 84
    result = gt.minimize(problem(), epochs=12, progress=False)
    assert budget_of(result) == 84
    assert sum(result.calls.values()) <= 84
    assert budget_of(gt.minimize(problem(), steps=90, progress=False)) == 90


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "budget: got nothing, expected budget, steps, epochs or minutes"),
        ({"epochs": 0}, "epochs: got 0, expected a number > 0"),
        ({"minutes": True}, "minutes: got True, expected a number > 0"),
        ({"steps": 1.5}, "steps: got 1.5, expected a whole number >= 1"),
        ({"budget": 1.5}, "budget: got 1.5, expected a whole number >= 1"),
        ({"budget": math.inf}, "budget: got inf, expected a whole number >= 1"),
    ],
)
def test_limits_that_make_no_sense_are_told(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(gt.InputError, match=message):
        gt.minimize(problem(), progress=False, **limits)


def test_a_loader_with_a_sampler_of_its_own_counts_its_batches() -> None:
    given = problem()
    rows = TensorDataset(*cast(tuple[Tensor, ...], given.data))
    loader = DataLoader(rows, 6, sampler=WeightedRandomSampler([1.0] * ROWS, 40))
    assert (
        Limits(epochs=3).calls(replace(given, data=loader), 0) == 21
    )  # 40 rows drawn, 7 batches of 6


def test_epochs_need_rows() -> None:
    endless = gt.TorchProblem(
        model=lambda: nn.Linear(4, 2), loss=lambda m, b: m(b[0]).sum(), data=lambda: iter(())
    )
    with pytest.raises(gt.InputError, match="epochs: got 3 for data without a length"):
        Limits(epochs=3).calls(endless, 0)


def test_minutes_are_kept_and_used() -> None:
    spent = math.inf
    for _ in range(3):  # a busy machine may have kept this process waiting
        begun = time.monotonic()
        result = gt.minimize(problem(pause=0.01), minutes=3 / 60, progress=False)
        spent = min(spent, time.monotonic() - begun)
        if spent < 3 * 1.05 + 0.5:  # and half a second for the timing and the result
            break
    assert spent < 3 * 1.05 + 0.5
    assert sum(result.calls.values()) > 30  # of at most 300
    assert torch.isfinite(torch.tensor(result.score))


def test_a_deadline_returns_the_best_so_far_and_resuming_decides_the_same(tmp_path: Path) -> None:
    begun = time.monotonic()
    given: dict[str, Any] = {"budget": 100_000, "minutes": 2 / 60, "out": tmp_path / "o"}
    first = gt.minimize(problem(pause=0.005), progress=False, **given)
    assert time.monotonic() - begun < 30  # 100,000 calls take minutes
    assert first.partial
    assert 0 < sum(first.calls.values()) < 500
    again = gt.minimize(problem(), progress=False, **given)
    assert again.choice == first.choice
    for name, tensor in first.tensors.items():
        assert torch.equal(again.tensors[name], tensor)


def test_a_sweep_whose_calls_end_early_gets_more_and_resuming_decides_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "calls_by_time", lambda *_: 100)
    given: dict[str, Any] = {"minutes": 4 / 60, "progress": False, "out": tmp_path / "o"}
    first = gt.minimize(problem(pause=0.01), **given)  # 100 calls take one of four seconds
    assert first.spec["extends"][0] == 100 < sum(first.calls.values()) <= first.spec["budget"]
    again = gt.minimize(problem(), **given)
    assert again.spec == first.spec and again.choice == first.choice
    fixed = gt.minimize(problem(), **given, budget=first.spec["extends"][0])
    assert fixed.choice == first.choice  # what was added is taken
    whole = gt.minimize(problem(pause=0.001), 100, minutes=1, progress=False)
    assert not whole.spec["extends"]  # a budget that was given is kept


@pytest.mark.parametrize("schedule", ["promote", "paper"])
def test_a_limit_too_small_names_one_that_works_in_its_unit(schedule: Any) -> None:
    given: dict[str, Any] = {"schedule": schedule, "progress": False}
    with pytest.raises(gt.BudgetTooSmall, match=r" is (\d+) calls: epochs [\d.]+$") as caught:
        gt.minimize(problem(), epochs=1, **given)
    epochs = float(str(caught.value).rpartition(" ")[2])
    assert Limits(epochs=epochs).calls(problem(), 0) >= caught.value.smallest
    assert Limits(epochs=epochs - 1).calls(problem(), 0) < caught.value.smallest
    gt.minimize(problem(), epochs=epochs, **given)
    with pytest.raises(gt.BudgetTooSmall, match=r" is (\d+) calls: steps (\d+)$"):
        gt.minimize(problem(), steps=4, **given)
    with pytest.raises(gt.BudgetTooSmall, match=r" is (\d+)$"):
        gt.minimize(problem(), 4, **given)


def test_lanes_count_where_minutes_are_turned_into_calls() -> None:
    assert calls_within(3.0, 0.001, 0.001) == 1_500  # too few for lanes
    # 5,000 with one lane, so four of them: 10 s / 1.25 ms = 8,000, so eight: 10 s / 1.125 ms.
    assert calls_within(10.0, 0.001, 0.001) == 8_888


def test_minutes_are_turned_into_calls_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {"minutes": 1 / 60, "out": tmp_path / "o", "progress": False}
    first = gt.minimize(problem(pause=0.01), **given)
    # The second machine is ten times as fast; the decision is the first one's.
    assert budget_of(gt.minimize(problem(pause=0.001), **given)) == budget_of(first)
