"""Metrics, by hand and against scikit-learn."""

import math

import pytest
import torch
from torch import nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.metrics import accuracy, auc, f1, find_metric, measured, r2
from grasp_tune.engine.problem import TorchProblem


def test_metrics_by_hand() -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 4.0], [5.0, 0.0]])
    right = torch.tensor([0, 1, 0, 1])  # named are 0, 1, 1, 0
    assert accuracy(scores, right) == 0.5
    assert f1(scores, right) == 0.5  # precision and recall of class 1 are both 1/2
    # Scores of class 1 over class 0: -1, 3, 3, -5. Pairs (1 against 0): 3 over -1, a tie, two lost.
    assert auc(scores, right) == (1 + 0.5) / 4
    # Around the mean 2 the targets have 1 + 0 + 1, the residuals 0.25 + 0 + 0.25.
    assert r2(torch.tensor([[1.5], [2.0], [2.5]]), torch.tensor([1.0, 2.0, 3.0])) == 0.75
    assert math.isnan(r2(torch.ones(2), torch.ones(2)))
    with pytest.raises(ProblemError, match=r"outputs of shape \(4, 2\) for targets \(4,\), expect"):
        r2(scores, right)


def test_a_column_of_targets_is_a_class_for_each_row() -> None:
    scores, right = torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1.0, 1.0, 0.0])
    for metric in (accuracy, f1, auc):
        assert metric(scores, right.unsqueeze(1)) == metric(scores, right)
        with pytest.raises(ProblemError, match=r"targets of shape \(3, 2\) are not one class"):
            metric(scores, torch.zeros(3, 2))


@pytest.mark.parametrize("found", [None, "much", torch.ones(2), 1j, 10**400])
def test_a_metric_that_is_no_number_is_one_line(found: object) -> None:
    with pytest.raises(ProblemError, match=r"metric: <lambda> returned .*, expected a number"):
        measured(lambda outputs, targets: found, torch.ones(2), torch.ones(2))  # type: ignore[arg-type, return-value]


def test_metrics_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(60, 4, generator=generator).round(decimals=1)
    right = torch.randint(0, 4, (60,), generator=generator)
    shares = torch.softmax(scores.double(), dim=-1)
    named = scores.argmax(dim=-1)
    assert f1(scores, right) == pytest.approx(metrics.f1_score(right, named, average="macro"))
    expected = metrics.roc_auc_score(right, shares, multi_class="ovr")
    assert auc(scores, right) == pytest.approx(expected)
    one, two = scores[:, 0], (right > 1).long()
    assert auc(one, two) == pytest.approx(metrics.roc_auc_score(two, one))


def test_classes_that_do_not_occur_change_no_definition() -> None:
    scores, right = torch.eye(3)[[0, 0, 1]], torch.zeros(3, dtype=torch.long)
    # Class 0: precision 1, recall 2/3, so 0.8; class 1: nothing right; class 2 occurs nowhere.
    assert f1(scores, right) == pytest.approx(0.4)
    assert f1(torch.eye(3)[[0, 0]], torch.zeros(2)) == 1.0
    assert f1(torch.eye(2)[[0, 0]], torch.zeros(2)) == 0.0  # of two classes the second one counts
    assert auc(scores, right) == 0.5


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "r2"])
def test_outputs_that_are_no_numbers_name_no_class(name: str) -> None:
    outputs = torch.tensor([[1.0, 0.0], [math.nan, 0.0]])
    assert math.isnan(measured(name, outputs, torch.tensor([0, 0])))


def test_a_metric_is_a_name_or_a_function() -> None:
    def within(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).abs().max() < 1)

    assert find_metric(within) == ("within", within)
    with pytest.raises(ProblemError, match=r"metric: got 'acc', expected accuracy, f1, auc, r2"):
        TorchProblem(
            model=lambda: nn.Linear(1, 1),
            loss=lambda model, batch: model(batch[0]).mean(),
            data=(torch.zeros(4, 1),),
            batch_size=2,
            metric="acc",
        )
    with pytest.raises(ProblemError, match=r"outputs of shape \(2, 3, 4\) name no class"):
        accuracy(torch.zeros(2, 3, 4), torch.zeros(2))
