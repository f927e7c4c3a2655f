"""Losses by name: functions of (model, batch) that give the mean loss of a minibatch.

A batch is `(x, y)`. Classification losses take scores, one per class, or a single one for two
classes; `settle_loss` decides how many outputs a model needs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.core.errors import ProblemError
from grasp_tune.data.data import DataSpec

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean negative log-likelihood of the right class, scores taken through softmax."""
    return F.cross_entropy(model(batch[0]), batch[1])


def logistic(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of log(1 + exp(-s z)) with the score z and the sign s = 2y - 1 of two classes."""
    return F.softplus(-_signs(batch[1]) * model(batch[0]).squeeze(-1)).mean()


def mse(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared difference between what is predicted and what is right."""
    return F.mse_loss(model(batch[0]).reshape(batch[1].shape), batch[1])


def hinge(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of max(0, 1 - margin); with many classes, the margin over the best wrong one."""
    scores, y = model(batch[0]), batch[1]
    if scores.shape[-1] == 1:
        return F.relu(1 - _signs(y) * scores.squeeze(-1)).mean()
    right = scores.gather(1, y.unsqueeze(1))
    # The right class itself gives 0, so that the maximum is never below it.
    return (1 + scores - right).scatter(1, y.unsqueeze(1), 0.0).amax(dim=1).mean()


def _signs(y: Tensor) -> Tensor:
    return y.to(torch.get_default_dtype()) * 2 - 1


_BY_NAME = {function.__name__: function for function in (cross_entropy, logistic, mse, hinge)}


def settle_loss(name: str | None, model: str, spec: DataSpec) -> tuple[str, Loss, int]:
    """The name of a loss, the loss, and the outputs that it needs; ProblemError if it does not fit.

    Without a name: `logistic` for the model of that name, `mse` where numbers are predicted, else
    `cross_entropy`.
    """
    numbers, two, one_score = spec.classes is None, spec.classes == 2, model == "logistic"
    what = "whose labels are numbers to predict" if numbers else f"which has {spec.classes} classes"
    fitting = ("linear",) if numbers else ("softmax", "logistic") if two else ("softmax",)
    loss = name or ("logistic" if one_score else "mse" if numbers else "cross_entropy")
    fault, about, wanted = f"loss: got {loss}", f"for {spec.name}, {what}", ""
    if model in ("softmax", "logistic", "linear") and model not in fitting:
        fault, wanted = f"model: got {model}", " or ".join(fitting)
    elif loss in _BY_NAME and (loss == "mse") != numbers:
        wanted = "mse" if numbers else "cross_entropy, logistic or hinge"
    elif loss == "logistic" and not two:
        wanted = "cross_entropy"
    elif loss == "cross_entropy" and one_score:
        about = "with the model logistic, which has one score"
        wanted = "logistic or hinge, or the model softmax"
    if wanted:
        raise ProblemError(f"problem.{fault} {about}, expected {wanted}")
    outputs = 1 if one_score or loss == "logistic" else spec.outputs
    return loss, _BY_NAME.get(loss) or load_entry_point(loss, "problem.loss"), outputs
