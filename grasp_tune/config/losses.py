"""Losses by name: functions of (model, batch) that give the mean loss of a minibatch.

A batch is `(x, y)`. Classification losses take scores, one per class, or a single one for two
classes; `settle_loss` decides how many outputs a model needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.core.errors import ProblemError
from grasp_tune.data.data import DataSpec

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class SettledLoss:
    """A loss, its name, and the number of outputs that it needs of the model."""

    name: str
    function: Loss
    outputs: int


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean negative log-likelihood of the right class, scores taken through softmax."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def logistic(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of log(1 + exp(-s z)) with the score z and the sign s = 2y - 1 of two classes."""
    x, y = batch
    return F.softplus(-_signs(y) * model(x).squeeze(-1)).mean()


def mse(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared difference between what is predicted and what is right."""
    x, y = batch
    predicted = model(x)
    return F.mse_loss(predicted.reshape(y.shape), y)


def hinge(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of max(0, 1 - margin); with many classes, the margin over the best wrong one."""
    x, y = batch
    scores = model(x)
    if scores.shape[-1] == 1:
        return F.relu(1 - _signs(y) * scores.squeeze(-1)).mean()
    right = scores.gather(1, y.unsqueeze(1))
    # The right class itself gives 0, so that the maximum is never below it.
    margins = (1 + scores - right).scatter(1, y.unsqueeze(1), 0.0)
    return margins.amax(dim=1).mean()


_BY_NAME: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "logistic": logistic,
    "mse": mse,
    "hinge": hinge,
}


def settle_loss(name: str | None, model: str, spec: DataSpec) -> SettledLoss:
    """The loss that a config means, for a kind of model and data.

    Without a name: `logistic` for the model of that name, `mse` where numbers are predicted, else
    `cross_entropy`. Raises ProblemError where loss, model and data do not fit.
    """
    _check_model(model, spec)
    one_score = model == "logistic"
    if name is None:
        name = "logistic" if one_score else "mse" if spec.classes is None else "cross_entropy"
    if name not in _BY_NAME:
        outputs = 1 if one_score else spec.outputs
        return SettledLoss(name, load_entry_point(name, "problem.loss"), outputs)
    if (name == "mse") != (spec.classes is None):
        right = "mse" if spec.classes is None else "cross_entropy, logistic or hinge"
        raise ProblemError(f"problem.loss: got {name} for {_what(spec)}, expected {right}")
    if name == "logistic" and spec.classes != 2:
        raise ProblemError(f"problem.loss: got logistic for {_what(spec)}, expected cross_entropy")
    if name == "cross_entropy" and one_score:
        raise ProblemError(
            "problem.loss: got cross_entropy with the model logistic, which has one score; "
            "expected logistic or hinge, or the model softmax"
        )
    single = name == "logistic" or one_score
    return SettledLoss(name, _BY_NAME[name], 1 if single else spec.outputs)


def _check_model(model: str, spec: DataSpec) -> None:
    if model == "logistic" and spec.classes != 2:
        right = "linear" if spec.classes is None else "softmax"
        raise ProblemError(f"problem.model: got logistic for {_what(spec)}, expected {right}")
    if model == "softmax" and spec.classes is None:
        raise ProblemError(f"problem.model: got softmax for {_what(spec)}, expected linear")
    if model == "linear" and spec.classes is not None:
        right = "softmax or logistic" if spec.classes == 2 else "softmax"
        raise ProblemError(f"problem.model: got linear for {_what(spec)}, expected {right}")


def _what(spec: DataSpec) -> str:
    if spec.classes is None:
        return f"{spec.name}, whose labels are numbers to predict"
    return f"{spec.name}, which has {spec.classes} classes"


def _signs(y: Tensor) -> Tensor:
    return y.to(torch.get_default_dtype()) * 2 - 1
