"""How good a model is: its loss, accuracy and metric over all rows, beside a constant's.

For people and for comparisons only. Nothing here is seen by the search, and none of it counts as
oracle calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.config.build import Built
from grasp_tune.engine.metrics import accuracy, classes_of, find_metric

_CHUNK = 1024  # rows at a time
_NAMED = ("cross_entropy", "logistic", "mse")  # losses that a constant prediction makes sense for


@dataclass(frozen=True, slots=True)
class Scores:
    """A model over some rows; None where it has no classes, or no metric was asked for."""

    rows: int
    loss: float
    accuracy: float | None = None
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """A model over whole data sets; None where there are no such rows or no classes."""

    train_loss: float
    test_loss: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    metric: str | None = None  # the name of the metric that the user asked for
    train_metric: float | None = None
    test_metric: float | None = None
    validation: Scores | None = None
    baseline: Scores | None = None  # the best constant prediction, over the rows that count most


def evaluate(model: nn.Module, built: Built) -> Quality:
    """The quality of the model in evaluation mode, in which it is left."""
    data, problem = built.data, built.problem
    parts: dict[str, Any] = {"train": problem.data, "validation": problem.validation}
    parts["test"] = None if data.x_test is None else (data.x_test, data.y_test)
    parts = {name: rows for name, rows in parts.items() if isinstance(rows, tuple)}
    found = {name: _evaluate_rows(model, built, *rows) for name, rows in parts.items()}
    train, test = found["train"], found.get("test")
    last = list(parts.values())[-1]
    return Quality(
        train_loss=train.loss,
        test_loss=None if test is None else test.loss,
        train_accuracy=train.accuracy,
        test_accuracy=None if test is None else test.accuracy,
        metric=None if problem.metric is None else find_metric(problem.metric)[0],
        train_metric=train.metric,
        test_metric=None if test is None else test.metric,
        validation=found.get("validation"),
        baseline=_evaluate_rows(_Constant(built), built, *last) if built.loss in _NAMED else None,
    )


class _Constant(nn.Module):
    """The best prediction that looks at no input: class frequencies, or the mean."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        y = built.data.y
        if built.data.labels is None:
            value = y.mean(dim=0).reshape(-1)
        else:
            share = torch.bincount(y, minlength=len(built.data.labels)).double() / len(y)
            value = share.clamp_min(1e-12).log().float()
            value = value[1:] - value[:1] if built.outputs == 1 else value
        self.value = nn.Parameter(value.to(built.problem.chosen_device))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), -1)


@torch.no_grad()
def _evaluate_rows(model: nn.Module, built: Built, x: Tensor, y: Tensor) -> Scores:
    """Mean loss and metrics; accuracy is None where outputs do not name a class."""
    model.eval()
    device = next(model.parameters()).device
    loss, outputs = 0.0, []
    for start in range(0, len(x), _CHUNK):
        rows, labels = x[start : start + _CHUNK].to(device), y[start : start + _CHUNK].to(device)
        loss += float(built.problem.loss(model, (rows, labels))) * len(rows)
        outputs.append(model(rows))
    mean = loss / len(x) if math.isfinite(loss) else math.nan
    tensors = [item for item in outputs if isinstance(item, Tensor)]
    if len(tensors) < len(outputs):
        return Scores(len(x), mean)
    whole, right = torch.cat(tensors).cpu(), y.cpu()
    classes = built.data.labels is not None and classes_of(whole) is not None
    metric = built.problem.metric
    return Scores(
        len(x),
        mean,
        accuracy(whole, right) if classes else None,
        None if metric is None else float(find_metric(metric)[1](whole, right)),
    )
