"""A sweep inside a trial: what it returns tells trials apart, and costs no more than it may."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import grasp_tune as gt
from grasp_tune.executors.in_trial import train_in_trial

ROWS = torch.randn(120, 3, generator=torch.Generator().manual_seed(1))
LABELS = (ROWS[:, 0] > 0).long()


def problem(**more: object) -> tuple[gt.TorchProblem, list[int]]:
    """A classifier, and how many calls its loss has seen."""
    calls = [0]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        calls[0] += 1
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    made = gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        loss=loss,
        data=(ROWS[:80], LABELS[:80]),
        batch_size=8,
        **more,  # type: ignore[arg-type]
    )
    return made, calls


def loss_over(model: nn.Module, rows: slice) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.eval()(ROWS[rows]), LABELS[rows]))


@pytest.mark.parametrize("kind", ["tensors", "dataset", "training"])
def test_the_value_is_the_loss_over_all_rows_and_within_the_budget(kind: str) -> None:
    held_out = (ROWS[80:], LABELS[80:])
    given = {"tensors": held_out, "dataset": TensorDataset(*held_out), "training": None}
    made, calls = problem(validation=given[kind])
    result, found = train_in_trial(made, 200, lambda part, best, calls: None)
    expected = loss_over(result.model, slice(0, 80) if kind == "training" else slice(80, 120))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert calls[0] <= found["oracle_calls"] <= 200


def test_no_report_is_worse_than_the_start() -> None:
    made, told = problem()[0], list[float]()
    start = loss_over(made.build(0), slice(0, 80))
    train_in_trial(made, 200, lambda part, best, calls: told.append(best))
    assert told == sorted(told, reverse=True)
    assert told[0] < 1.2 * start  # and not the loss of a step that diverged


def test_of_many_rows_the_same_ones_are_drawn_in_every_trial() -> None:
    made, calls = problem(validation=(ROWS[80:], LABELS[80:]))
    values = [train_in_trial(made, 24, lambda part, best, calls: None)[1] for _ in range(2)]
    assert values[0] == values[1]
    assert calls[0] <= 2 * 24


def test_a_metric_that_chooses_is_the_value() -> None:
    made, _ = problem(validation=(ROWS[80:], LABELS[80:]), metric="accuracy", choose_by="metric")
    result, found = train_in_trial(made, 200, lambda part, best, calls: None)
    with torch.no_grad():
        right = float((result.model(ROWS[80:]).argmax(1) == LABELS[80:]).float().mean())
    assert found["loss"] == pytest.approx(1.0 - right)


def test_a_metric_finds_the_targets_of_rows_that_are_mappings() -> None:
    rows = [{"x": x, "label": y, "mask": x[0] > -1} for x, y in zip(ROWS, LABELS, strict=True)]

    def masked(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return (outputs.argmax(1) == batch["label"])[batch["mask"]].double().mean()

    for metric, kept in (("accuracy", ROWS[80:, 0] < math.inf), (masked, ROWS[80:, 0] > -1)):
        given = gt.TorchProblem(
            model=lambda: nn.Linear(3, 2),
            loss=lambda model, batch: nn.functional.cross_entropy(
                model(batch["x"]), batch["label"]
            ),
            data=rows[:80],
            validation=rows[80:],
            batch_size=8,
            metric=metric,
            choose_by="metric",
        )
        result, found = train_in_trial(given, 80, lambda part, best, calls: None)
        with torch.no_grad():
            right = (result.model(ROWS[80:]).argmax(1) == LABELS[80:])[kept].double().mean()
        assert found["loss"] == pytest.approx(1.0 - float(right))


def test_the_paper_s_sweep_compares_losses_as_the_trials_are() -> None:
    for schedule in ("paper", gt.Paper(by_loss=False)):
        method = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3)
        found, _ = train_in_trial(
            problem()[0], 200, lambda part, best, calls: None, method, schedule=schedule
        )
        assert found.choice.by == ("value" if schedule == "paper" else "gradient")


def test_a_loss_may_take_derivatives() -> None:
    def penalized(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return nn.functional.cross_entropy(outputs, batch[1]) + 0.01 * slope.square().mean()

    given = gt.TorchProblem(
        model=lambda: nn.Linear(3, 2), loss=penalized, data=(ROWS, LABELS), batch_size=8
    )
    _, found = train_in_trial(given, 80, lambda part, best, calls: None)
    assert math.isfinite(found["loss"]) and found["loss"] > 0.0
