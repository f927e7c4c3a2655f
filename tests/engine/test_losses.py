"""Losses of torch on outputs and targets that people give them, right and wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import grasp_tune as gt
from grasp_tune.core.errors import ProblemError
from tests.engine import workbench

X, Y = workbench.rows()
MODEL, ONE = workbench.linear(), nn.Linear(X.shape[1], 1)


def loss_of(loss: Any, x: Any, y: Any, model: nn.Module | None = None) -> Tensor:
    given = workbench.problem(loss=loss, data=(X, Y))
    return given.loss(model or MODEL, (x, y))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_classes_may_be_whole_numbers_of_any_type_and_a_column(loss: Any) -> None:
    expected = functional.cross_entropy(MODEL(X), Y)
    for targets in (Y.float(), Y.double(), Y[:, None], Y[:, None].float(), Y.to(torch.int16)):
        assert torch.equal(loss_of(loss, X, targets), expected)
    shares = functional.one_hot(Y, workbench.CLASSES)
    for kind in (torch.int64, torch.float32, torch.float64):
        assert loss_of(loss, X, shares.to(kind)).item() == pytest.approx(expected.item())


def test_inputs_of_another_float_type_become_the_models() -> None:
    expected = loss_of(nn.CrossEntropyLoss(), X, Y)
    assert loss_of(nn.CrossEntropyLoss(), X.double(), Y) == expected
    assert loss_of(nn.CrossEntropyLoss(), X.half(), Y).item() == pytest.approx(
        expected.item(), rel=1e-2
    )
    double = loss_of(nn.CrossEntropyLoss(), X.double(), Y, workbench.linear().double())
    assert double.dtype == torch.float64

    class Doubles(torch.utils.data.Dataset[Any]):  # as rows of NumPy are
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, row: int) -> Any:
            return X[row].double().numpy(), int(Y[row])

    given = workbench.problem(
        loss=nn.CrossEntropyLoss(), data=Doubles(), validation=0.2, metric="accuracy"
    )
    result = gt.minimize(given, 60, progress=False)
    assert result.score < result.candidates[0].score


@pytest.mark.parametrize(
    ("loss", "x", "y", "words"),
    [
        (nn.MSELoss(), X, X[:, :2], r"MSELoss needs as many outputs as targets, got outputs of"),
        (nn.BCEWithLogitsLoss(), X, Y.float(), "BCEWithLogitsLoss needs as many outputs as targ"),
        (functional.l1_loss, X, X[:, :2], "l1_loss needs as many outputs as targets"),
        (nn.CrossEntropyLoss(), X, Y + 9, "targets of shape .*, int64: Target .* out of bounds"),
        (nn.CrossEntropyLoss(), X, Y + 0.5, "CrossEntropyLoss does not take outputs of shape"),
        (nn.CrossEntropyLoss(), X, ("a",) * len(X), "with targets in a tuple: cross_entropy"),
        (nn.CrossEntropyLoss(weight=torch.ones(2)), X, Y, "weight tensor should be defined"),
        (nn.BCELoss(), 100 * X, functional.one_hot(Y, workbench.CLASSES), "between 0 and 1"),
        (nn.CrossEntropyLoss(), X.long(), Y, "data: the model does not take inputs of shape .*int"),
        (nn.CrossEntropyLoss(), X > 0, Y, "inputs of shape .*, bool: .*; give a tensor of floats"),
        (nn.CrossEntropyLoss(), X.numpy(), Y, "does not take inputs of shape .*, float32: "),
        (nn.CrossEntropyLoss(), list(X.T), Y, r'inputs in a list: .* .with_format\("torch"\)'),
    ],
)  # fmt: skip
def test_what_torch_cannot_compare_is_one_sentence(loss: Any, x: Any, y: Any, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as caught:
        loss_of(loss, x, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("targets", [Y > 1, (Y > 1)[:, None], (Y > 1).float()])
def test_one_output_is_no_score_of_classes(targets: Tensor) -> None:
    # torch would take the batch for one row of many classes, or give a loss of 0.
    with pytest.raises(ProblemError, match=r"needs an output for each class, the model gives one"):
        loss_of(nn.CrossEntropyLoss(), X, targets, ONE)


def test_errors_of_a_criterion_of_ones_own_stay_as_they_are() -> None:
    class Own(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        loss_of(Own(), X, Y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # so do a model's
        loss_of(nn.MSELoss(), X, Y, nn.Linear(1, 1))


def test_rows_that_do_not_make_a_batch_are_told_what_to_give() -> None:
    rows = [(torch.zeros(1 + row % 3), row % 2) for row in range(20)]
    given = workbench.problem(loss=nn.CrossEntropyLoss(), data=rows, batch_size=8)
    words = "data: rows do not make a batch: stack expects .*; give a DataLoader whose collate_fn"
    with pytest.raises(ProblemError, match=words):
        gt.minimize(given, 60, progress=False)


def test_unsigned_targets_of_numpy_are_picked_by_row() -> None:
    for kind in (np.uint8, np.uint16, np.uint32):
        given = workbench.problem(loss=nn.CrossEntropyLoss(), data=(X, Y.numpy().astype(kind)))
        assert gt.minimize(given, 60, progress=False).score < 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": nn.Linear},
            "model: got one that does not fit .*, expected a function without arguments",
        ),
        (
            {"loss": lambda model, x, y: 0},
            r"loss: got one that does not fit .* a function of \(model, batch",
        ),
    ],
)
def test_functions_of_other_arguments_are_refused_at_once(changes: Any, words: str) -> None:
    with pytest.raises(ProblemError, match=words):
        workbench.problem(**changes)


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: functional.cross_entropy(outputs, targets),
        lambda outputs, targets: (outputs - targets).square().mean(),
        lambda outputs, targets: outputs.log_softmax(1).mean(),
    ],
)
def test_a_loss_of_outputs_and_targets_is_told_what_it_is_called_with(loss: Any) -> None:
    words = r"loss: .*; it is called with \(model, batch\), not with outputs and targets"
    with pytest.raises(ProblemError, match=words):
        gt.minimize(workbench.problem(loss=loss), 60, progress=False)


def test_a_function_that_gives_no_batches_is_told() -> None:
    given = workbench.problem(data=lambda: None)
    with pytest.raises(ProblemError, match="data: the function gave a NoneType, expected an itera"):
        gt.minimize(given, 60, progress=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validation": (X[:, :2], Y)}, "shapes cannot be multiplied"),
        ({"validation": 0.2, "metric": "r2"}, "metric: outputs of shape"),
        ({"validation": (X, Y + 0.5), "metric": "accuracy"}, "targets are no classes but numbers"),
    ],
)
def test_validation_is_tried_before_the_training(changes: Any, words: str) -> None:
    losses = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        losses.append(batch)
        return functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(RuntimeError if "shapes" in words else ProblemError, match=words):
        gt.minimize(workbench.problem(loss=loss, **changes), 60, progress=False)
    assert not losses
