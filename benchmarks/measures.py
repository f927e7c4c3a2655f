"""The quality of a point: loss and gradient on training rows, loss and accuracy on test rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.workload import Bundle
from grasp_tune.engine.checkpoints import load_model

CHUNK = 2_000


@dataclass(frozen=True, slots=True)
class Quality:
    """How good one point is."""

    loss: float  # training loss on the fixed sample; infinite instead of NaN
    gradient: float  # norm of the gradient there
    accuracy: float  # share of correct test predictions; NaN for regression
    test_loss: float  # on test rows, in evaluation mode; NaN if there are none


def judge(bundle: Bundle, tensors: Mapping[str, Tensor] | None, seed: int) -> Quality:
    """Return the quality of a point; None means the start point of the seed.

    A model with batch statistics is evaluated in training mode on batches of the training size,
    because the oracle samples this objective; its buffers are restored. Any other model is
    evaluated in evaluation mode, without the noise of dropout.
    """
    model = bundle.problem.build(seed)
    if tensors is not None:
        load_model(model, tensors, "the point to judge")
    buffers = [(item, item.clone()) for item in model.buffers()]
    chunk = bundle.problem.batch_size if buffers else CHUNK
    if not buffers:
        model.eval()
    x, y = bundle.sample
    rows = len(x) // chunk * chunk if buffers else len(x)
    total = 0.0
    for at in range(0, rows, chunk):
        part = (x[at : at + chunk], y[at : at + chunk])
        loss = bundle.problem.loss(model, part)
        share = len(part[0]) / rows
        (loss * share).backward()
        total += float(loss.detach()) * share
    squares = [
        float(p.grad.double().pow(2).sum()) for p in model.parameters() if p.grad is not None
    ]
    with torch.no_grad():
        for item, kept in buffers:
            item.copy_(kept)
    gradient = math.sqrt(sum(squares))
    if not math.isfinite(total):
        total = gradient = math.inf
    return Quality(total, gradient, *_on_test_rows(model.eval(), bundle))


@torch.no_grad()
def _on_test_rows(model: nn.Module, bundle: Bundle) -> tuple[float, float]:
    """Return accuracy and loss on the test rows."""
    if bundle.test is None:
        return math.nan, math.nan
    x, y = bundle.test
    right, total = 0, 0.0
    for at in range(0, len(x), CHUNK):
        part = (x[at : at + CHUNK], y[at : at + CHUNK])
        total += float(bundle.problem.loss(model, part)) * len(part[0])
        if bundle.classes:
            scores = model(part[0])
            binary = scores.shape[-1] == 1
            chosen = (scores.squeeze(-1) > 0).long() if binary else scores.argmax(-1)
            right += int((chosen == part[1]).sum())
    return right / y.numel() if bundle.classes else math.nan, total / len(x)
