"""Metrics of predictions, larger is better: what people judge a model by beside its loss."""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError, expect
from grasp_tune.engine.losses import TARGETS, answer

Metric = Callable[[Any, Any], float | Tensor]  # of outputs and targets, or outputs and batch
_OWN = "give a function of (outputs, targets)"
_KINDS = "a function of (outputs, targets) or (outputs, batch)"
IGNORED = -100  # the class of tokens that count for no loss in torch
_HELD = 2**24  # numbers of outputs that are held for a metric: 64 MiB


def classes_of(outputs: object) -> Tensor | None:
    """The class that each row of scores names, None where they have another shape."""
    if not isinstance(outputs, Tensor) or outputs.ndim > 2:
        return None
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return (outputs.reshape(-1) > 0).long()
    return outputs.argmax(dim=-1)


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The class that each row of scores names, and the right one, as rows of numbers."""
    if (named := classes_of(outputs)) is None:
        shape = tuple(getattr(outputs, "shape", ()))
        raise ProblemError(f"metric: outputs of shape {shape} name no class for each row; {_OWN}")
    if targets.numel() != len(outputs):  # a column would be compared with every row
        text = f"targets of shape {tuple(targets.shape)} are not one class for each row"
        raise ProblemError(f"metric: {text}; {_OWN}")
    if targets.is_floating_point() and not torch.equal(targets, targets.round()):
        raise ProblemError("metric: targets are no classes but numbers, which go with r2")
    return named, targets.reshape(-1)


def tokens(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a row for each token: of scores (B, S, C) or (B, C, S), and classes (B, S).

    Ignored tokens are left out. What has other shapes is returned as it is.
    """
    last = outputs.shape[:-1] == targets.shape
    second = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    if targets.is_floating_point() or not (last or second):
        return outputs, targets
    if outputs.ndim > 2:
        if last and second:
            shapes = f"outputs of shape {tuple(outputs.shape)} for targets {tuple(targets.shape)}"
            raise ProblemError(f"metric: {shapes} do not show where the classes are; {_OWN}")
        outputs = outputs.movedim(1, -1) if second else outputs
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return outputs[targets != IGNORED], targets[targets != IGNORED]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest score names the right class."""
    named, right = _classes(outputs, targets)
    return float((named == right).double().mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of the harmonic mean of precision and recall; of class 1 for two."""
    named, right = _classes(outputs, targets)
    two = outputs.ndim == 1 or outputs.shape[-1] <= 2  # not by the classes that occur in these rows
    kinds = [1] if two else torch.unique(torch.cat([right, named])).tolist()
    found = 0.0
    for ours, theirs in ((named == kind, right == kind) for kind in kinds):
        found += 2.0 * int((ours & theirs).sum()) / (int(ours.sum()) + int(theirs.sum()) or 1)
    return found / len(kinds)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The chance that a row of a class scores above a row of another; ties count half.

    For more than two classes, the mean over the classes that occur, each against all others.
    """
    _, right = _classes(outputs, targets)
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return _area(outputs.reshape(-1), right == 1)
    if outputs.shape[-1] == 2:
        return _area(outputs[:, 1] - outputs[:, 0], right == 1)
    shares = torch.softmax(outputs.double(), dim=-1)
    areas = [_area(shares[:, kind], right == kind) for kind in torch.unique(right).tolist()]
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
    wanted = f"{', '.join(METRICS)}, or {_KINDS}"
    expect(metric in METRICS, "metric", repr(metric), wanted, ProblemError)
    return metric, METRICS[metric]


def wants_batch(metric: str | Metric) -> bool:
    """Return whether a metric is a function whose second parameter is called `batch`.

    Raises `ProblemError` for what is no metric, or takes other arguments than two.
    """
    name, function = find_metric(metric)
    try:
        names = list(inspect.signature(function).bind(0, 0).arguments)
    except ValueError:  # a function that is not written in Python
        return False
    except TypeError as error:
        raise ProblemError(f"metric: {name} does not fit ({error}), expected {_KINDS}") from None
    if names[0] == "y_true":  # as scikit-learn's are
        wanted = f"lambda outputs, targets: {name}(targets, ...)"
        raise ProblemError(f"metric: {name} takes the targets first; give `{wanted}`")
    return names[1:] == ["batch"]


def compared(metric: str | Metric, batch: Any) -> Any:
    """Return what a metric compares outputs with: the targets of a batch, or all of it."""
    if wants_batch(metric):
        return batch
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[-1]
    look = batch.get if isinstance(batch, Mapping) else lambda name: getattr(batch, name, None)
    for name in TARGETS:
        if (found := look(name)) is not None:
            return found
    keys = f" of {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
    places = f"the last part of a tuple, or one of {', '.join(TARGETS)}"
    raise ProblemError(
        f"metric: a batch, a {type(batch).__name__}{keys}, has no targets where they are looked "
        f"for ({places}); give a function of (outputs, batch)"
    )


def loss_and_outputs(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any
) -> tuple[Any, Any]:
    """Return a batch's loss, and what the model gave as it was computed: one pass for both.

    Of a tensor and its targets only what the tensor alone gave counts, of others the first answer.
    """
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Tensor)
    heard = list[Any]()

    def hear(model: nn.Module, given: tuple[Any, ...], named: Any, output: Any) -> None:
        if not heard and (not pair or (len(given) == 1 and given[0] is batch[0] and not named)):
            heard.append(_own(output))  # the loss may change it

    hears = not isinstance(model, torch.jit.ScriptModule)
    with model.register_forward_hook(hear, with_kwargs=True) if hears else nullcontext():
        found = loss(model, batch)
    if not heard:
        if not pair:
            text = "the loss asks the model in a way of its own, so what it gives is not known"
            raise ProblemError(f"metric: {text}; call model(...) in the loss")
        with torch.no_grad():
            heard.append(answer(model, batch[0]))
    return found, heard[0]


def _own(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach().clone()
    if not isinstance(output, dict):
        return output
    made = copy(output)  # of its class, whose items may be attributes too
    for name, item in output.items():
        made[name] = _own(item)
    return made


def scores_of(outputs: Any) -> Any:
    """Return what a model calls `logits`, or all that it gave."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def measured(metric: str | Metric, outputs: Any, targets: Any) -> float:
    """Return the metric of these outputs; `ProblemError` where it gives no number.

    Named metrics take tensors, of outputs also those called `logits`. NaN where an output is, which
    names no class.
    """
    name, function = find_metric(metric)
    if isinstance(metric, str):
        outputs = scores_of(outputs)
        for what, item in (("outputs", outputs), ("targets", targets)):
            if not isinstance(item, Tensor):
                text = f"metric: {name} takes a tensor of {what}, got {type(item).__name__}"
                raise ProblemError(f"{text}; give a function of (outputs, batch)")
        outputs, targets = tokens(outputs, targets)
    if isinstance(outputs, Tensor) and outputs.isnan().any():
        return math.nan
    with torch.no_grad():
        found = function(outputs, targets)
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        text = f"metric: {name} returned {type(found).__name__}, expected a number"
        raise ProblemError(text) from None


class Validated:
    """What a model gave for validation rows at one point, minibatch by minibatch."""

    def __init__(self, metric: str | Metric | None) -> None:
        self._given, self._losses = metric, list[float]()
        self._pairs, self._size = list[tuple[Tensor, Tensor]](), 0  # and how many numbers they hold
        self._apart = list[float]()  # metrics of minibatches that cannot be held

    def add(self, loss: float, outputs: Any, targets: Any) -> None:
        """Take in a minibatch; of outputs only so many that they fit into memory."""
        self._losses.append(loss)
        if self._given is None or self._size >= _HELD:
            return
        outputs = scores_of(outputs) if isinstance(self._given, str) else outputs
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
            if isinstance(self._given, str):
                outputs, targets = tokens(outputs, targets)
            self._size += outputs.numel()
            self._pairs.append((outputs.cpu(), targets.cpu()))
        else:
            self._apart.append(measured(self._given, outputs, targets))

    @property
    def loss(self) -> float:
        """The mean loss; infinite where it is not finite, NaN without any."""
        if not self._losses:
            return math.nan
        mean = sum(self._losses) / len(self._losses)
        return mean if math.isfinite(mean) else math.inf

    @property
    def metric(self) -> float:
        """The metric over all rows at once, where they can be joined; else minibatches' mean."""
        if self._given is None or not (self._pairs or self._apart):
            return math.nan
        if not self._apart and len({(x.shape[1:], y.shape[1:]) for x, y in self._pairs}) == 1:
            outputs, targets = zip(*self._pairs, strict=True)
            return measured(self._given, torch.cat(outputs), torch.cat(targets))
        found = [*self._apart, *(measured(self._given, *pair) for pair in self._pairs)]
        return sum(found) / len(found)
