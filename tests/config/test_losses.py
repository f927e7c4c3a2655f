"""Losses by hand, and which loss fits which model and data."""

import math

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.config.models import cross_entropy, hinge, logistic, mse, settle_loss
from grasp_tune.core.errors import ProblemError
from grasp_tune.data import DataSpec

TWO = DataSpec("two", (3,), 2, 2)
TEN = DataSpec("ten", (3,), 10, 10)
NUMBERS = DataSpec("numbers", (3,), None, 1)
PAIRS = DataSpec("pairs", (3,), None, 2)


class Scores(nn.Module):
    """A model that gives its input back."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_logistic_by_hand() -> None:
    # Class 1 with score 2: log(1 + e^-2); class 0 with score 3: log(1 + e^3).
    value = logistic(Scores(), (torch.tensor([[2.0], [3.0]]), torch.tensor([1, 0])))
    right = (math.log1p(math.exp(-2)) + math.log1p(math.exp(3))) / 2
    assert float(value) == pytest.approx(right)


def test_logistic_stays_finite_for_large_scores() -> None:
    value = logistic(Scores(), (torch.tensor([[-1e30], [1e4]]), torch.tensor([1, 0])))
    assert math.isfinite(float(value))


def test_cross_entropy_by_hand() -> None:
    # Scores log 1, log 2, log 5: the right class, the third, has probability 5/8.
    scores = torch.tensor([[1.0, 2.0, 5.0]]).log()
    value = cross_entropy(Scores(), (scores, torch.tensor([2])))
    assert float(value) == pytest.approx(math.log(8 / 5))


def test_hinge_by_hand() -> None:
    # One score: max(0, 1 - 0.25) = 0.75 and max(0, 1 + 2) = 3.
    one = hinge(Scores(), (torch.tensor([[0.25], [2.0]]), torch.tensor([1, 0])))
    assert float(one) == pytest.approx(1.875)
    # Three: 1 + 0.5 - 0.7 = 0.8; the second row has a margin of 4 and loses nothing.
    scores = torch.tensor([[0.7, 0.5, -1.0], [0.0, 5.0, 1.0]])
    many = hinge(Scores(), (scores, torch.tensor([0, 1])))
    assert float(many) == pytest.approx(0.4)


def test_mse_by_hand() -> None:
    value = mse(Scores(), (torch.tensor([[1.0], [4.0]]), torch.tensor([3.0, 5.0])))
    assert float(value) == pytest.approx((4 + 1) / 2)
    pair = mse(Scores(), (torch.tensor([[1.0, 4.0]]), torch.tensor([[3.0, 5.0]])))
    assert float(pair) == pytest.approx((4 + 1) / 2)


@pytest.mark.parametrize(
    ("given", "model", "spec", "name", "outputs"),
    [
        (None, "mlp", TEN, "cross_entropy", 10),
        (None, "softmax", TWO, "cross_entropy", 2),
        (None, "logistic", TWO, "logistic", 1),
        (None, "mlp", NUMBERS, "mse", 1),
        (None, "linear", PAIRS, "mse", 2),
        ("logistic", "mlp", TWO, "logistic", 1),
        ("hinge", "logistic", TWO, "hinge", 1),
        ("hinge", "softmax", TEN, "hinge", 10),
    ],
)
def test_loss_and_outputs_follow_from_model_and_data(
    given: str | None, model: str, spec: DataSpec, name: str, outputs: int
) -> None:
    assert settle_loss(given, model, spec)[::2] == (name, outputs)


@pytest.mark.parametrize(
    ("given", "model", "spec", "message"),
    [
        (None, "logistic", TEN, "problem.model: got logistic for ten, .*10 classes, expected soft"),
        (None, "logistic", NUMBERS, "problem.model: got logistic for numbers, .*expected linear"),
        (None, "softmax", NUMBERS, "problem.model: got softmax for numbers, .*expected linear"),
        (None, "linear", TEN, "problem.model: got linear for ten, .*expected softmax"),
        ("mse", "mlp", TEN, "problem.loss: got mse for ten, .*expected cross_entropy, logistic or"),
        ("hinge", "mlp", NUMBERS, "problem.loss: got hinge for numbers, .*expected mse"),
        ("logistic", "mlp", TEN, "problem.loss: got logistic for ten, .*expected cross_entropy"),
        ("cross_entropy", "logistic", TWO, "problem.loss: got cross_entropy with the model logis"),
    ],
)
def test_what_does_not_fit_is_told(
    given: str | None, model: str, spec: DataSpec, message: str
) -> None:
    with pytest.raises(ProblemError, match=message):
        settle_loss(given, model, spec)


def test_a_loss_of_ones_own() -> None:
    assert settle_loss("math:hypot", "logistic", TWO) == ("math:hypot", math.hypot, 1)


def test_metrics_fit_the_labels() -> None:
    with pytest.raises(ProblemError, match=r"metric: got r2 for ten, .*expected accuracy, f1 or"):
        settle_loss(None, "mlp", TEN, "r2")
    with pytest.raises(ProblemError, match=r"metric: got f1 for numbers, .*expected r2"):
        settle_loss(None, "mlp", NUMBERS, "f1")
    assert settle_loss(None, "mlp", NUMBERS, "r2")[0] == "mse"
