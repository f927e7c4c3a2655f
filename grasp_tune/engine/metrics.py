"""Metrics of predictions, larger is better: what people judge a model by beside its loss."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grasp_tune.core.errors import ProblemError, expect

Metric = Callable[[Tensor, Tensor], float]
_HELD = 2**24  # numbers of outputs that are held for a metric: 64 MiB


def classes_of(outputs: object) -> Tensor | None:
    """The class that each row of scores names, None where they have another shape."""
    if not isinstance(outputs, Tensor) or outputs.ndim > 2:
        return None
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return (outputs.reshape(-1) > 0).long()
    return outputs.argmax(dim=-1)


def _named(outputs: Tensor) -> Tensor:
    if (found := classes_of(outputs)) is None:
        shape = tuple(getattr(outputs, "shape", ()))
        raise ProblemError(f"metric: outputs of shape {shape} name no class for each row")
    return found


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The class of each row; a column of them would be compared with every row."""
    if targets.numel() != len(outputs):
        shape = tuple(targets.shape)
        raise ProblemError(f"metric: targets of shape {shape} are not one class for each row")
    return targets.reshape(-1)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest score names the right class."""
    return float((_named(outputs) == _right(outputs, targets)).double().mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of the harmonic mean of precision and recall; of class 1 for two."""
    named, targets, found = _named(outputs), _right(outputs, targets), []
    two = outputs.ndim == 1 or outputs.shape[-1] <= 2  # not by the classes that occur in these rows
    kinds = [1] if two else torch.unique(torch.cat([targets, named])).tolist()
    for kind in kinds:
        ours, right = named == kind, targets == kind
        total = int(ours.sum()) + int(right.sum())
        found.append(2.0 * int((ours & right).sum()) / total if total else 0.0)
    return sum(found) / len(found)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The chance that a row of a class scores above a row of another; ties count half.

    For more than two classes, the mean over the classes that occur, each against all others.
    """
    targets = _right(outputs, targets)
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return _area(outputs.reshape(-1), targets == 1)
    if outputs.shape[-1] == 2:
        return _area(outputs[:, 1] - outputs[:, 0], targets == 1)
    shares = torch.softmax(outputs.double(), dim=-1)
    areas = [_area(shares[:, kind], targets == kind) for kind in torch.unique(targets).tolist()]
    return sum(areas) / len(areas)


def _area(scores: Tensor, positive: Tensor) -> float:
    """The area under the ROC curve by mean ranks; 0.5 where one of the two kinds is missing."""
    _, place, counts = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1.0) / 2.0)[place]
    ours = int(positive.sum())
    pairs = ours * (len(positive) - ours)
    return float((ranks[positive].sum() - ours * (ours + 1) / 2.0) / pairs) if pairs else 0.5


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that is explained: 1 - residual / total."""
    if outputs.numel() != targets.numel():
        shapes = f"outputs of shape {tuple(outputs.shape)} for targets {tuple(targets.shape)}"
        raise ProblemError(f"metric: {shapes}, expected a number for each of them")
    right = targets.double()
    residual = (outputs.double().reshape(right.shape) - right).square().sum()
    total = (right - right.mean(dim=0)).square().sum()
    return float(1.0 - residual / total) if total > 0 else float("nan")


METRICS: dict[str, Metric] = {"accuracy": accuracy, "f1": f1, "auc": auc, "r2": r2}


def find_metric(metric: str | Metric) -> tuple[str, Metric]:
    """Return the name and the function of a metric that is given by either."""
    if callable(metric):
        return getattr(metric, "__name__", type(metric).__name__), metric
    wanted = f"{', '.join(METRICS)}, or a function of (outputs, targets)"
    expect(metric in METRICS, "metric", repr(metric), wanted, ProblemError)
    return metric, METRICS[metric]


def measured(metric: str | Metric, outputs: Tensor, targets: Tensor) -> float:
    """Return the metric of these outputs; `ProblemError` where it gives no number.

    NaN where an output is, which names no class.
    """
    name, function = find_metric(metric)
    if outputs.isnan().any():
        return math.nan
    found = function(outputs, targets)
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = type(found).__name__
        raise ProblemError(f"metric: {name} returned {kind}, expected a number") from None


class Validated:
    """What a model gave for validation rows at one point, minibatch by minibatch."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._size = 0  # numbers that are held

    def add(self, loss: float, outputs: object, targets: object) -> None:
        """Take in a minibatch; of outputs only so many that they fit into memory."""
        self._losses.append(loss)
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor) and self._size < _HELD:
            self._size += outputs.numel()
            self._pairs.append((outputs.cpu(), targets.cpu()))

    @property
    def loss(self) -> float:
        """The mean loss; infinite where it is not finite, NaN without any."""
        mean = sum(self._losses) / len(self._losses) if self._losses else math.nan
        return mean if math.isfinite(mean) or not self._losses else math.inf

    def metric(self, metric: str | Metric | None) -> float:
        """The metric over all rows at once, which is not the mean over minibatches; else NaN."""
        if metric is None or len({(x.shape[1:], y.shape[1:]) for x, y in self._pairs}) != 1:
            return math.nan
        outputs, targets = zip(*self._pairs, strict=True)
        return measured(metric, torch.cat(outputs), torch.cat(targets))
