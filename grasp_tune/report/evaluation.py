"""How good a model is: losses over all training and test rows, and the share it gets right.

For people and for comparisons only. Nothing here is seen by the search, and none of it counts as
oracle calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_tune.config.build import Built

_CHUNK = 1024  # rows at a time


@dataclass(frozen=True, slots=True)
class Quality:
    """A model over whole data sets; None where there are no test rows or no classes."""

    train_loss: float
    test_loss: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None


def judge(model: nn.Module, built: Built) -> Quality:
    """The quality of the model in evaluation mode, in which it is left."""
    model.eval()
    data = built.data
    train_loss, train_accuracy = _judge_rows(model, built, data.x, data.y)
    if data.x_test is None or data.y_test is None:
        return Quality(train_loss, None, train_accuracy, None)
    test_loss, test_accuracy = _judge_rows(model, built, data.x_test, data.y_test)
    return Quality(train_loss, test_loss, train_accuracy, test_accuracy)


@torch.no_grad()
def _judge_rows(model: nn.Module, built: Built, x: Tensor, y: Tensor) -> tuple[float, float | None]:
    """Mean loss and share of right answers; the share is None where scores do not name a class."""
    device = next(model.parameters()).device
    loss, right, known = 0.0, 0, built.data.labels is not None
    for start in range(0, len(x), _CHUNK):
        rows = x[start : start + _CHUNK].to(device)
        labels = y[start : start + _CHUNK].to(device)
        loss += float(built.problem.loss(model, (rows, labels))) * len(rows)
        answers = classes_of(model(rows)) if known else None
        if answers is None:
            known = False
        else:
            right += int((answers == labels).sum())
    mean = loss / len(x)
    return (mean if math.isfinite(mean) else math.nan), right / len(x) if known else None


def classes_of(scores: object) -> Tensor | None:
    """The class that each row of scores names, None where they have another shape."""
    if not isinstance(scores, Tensor) or scores.ndim > 2:
        return None
    if scores.ndim == 1 or scores.shape[-1] == 1:
        return (scores.reshape(-1) > 0).long()
    return scores.argmax(dim=-1)
