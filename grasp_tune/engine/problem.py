"""What the user gives: a model, a loss, data. Nothing else has to be known.

Checks what can be checked without an oracle call; a sample of the loss is never drawn here, since
every one of them counts against the budget.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.metrics import Metric, find_metric

Batch = Any  # whatever the data gives: a tuple of tensors as a rule
Data = tuple[Tensor, ...] | torch.utils.data.Dataset[Any] | Callable[[], Iterable[Batch]]


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchProblem:
    """A training problem: minimise the expected `loss(model, batch)` over the model's parameters.

    model: builds the model; called once in every process, with the random seeds fixed, so that
        all of them start from the same point.
    loss: a scalar tensor for one batch, to be averaged over batches.
    data: a tuple of tensors with equal first sizes (a batch is the tuple of the sampled rows), a
        `Dataset`, or a function that gives an endless iterable of batches.
    validation: like `data`; where given, the ensemble compares losses there, in evaluation mode.
    device: `None` picks CUDA, then MPS, then the CPU.
    metric: what people judge the model by, larger is better: `accuracy`, `f1`, `auc`, `r2`, or a
        function of (outputs, targets), where a batch is (inputs, targets).
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    data: Data
    batch_size: int = 64
    validation: Data | None = None
    device: str | torch.device | None = None
    metric: str | Metric | None = None
    rows: int | None = field(init=False, default=None)  # of `data`; None for an iterable

    def __post_init__(self) -> None:
        size = self.batch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ProblemError(f"batch_size: got {size!r}, expected a whole number >= 1")
        if isinstance(self.model, nn.Module) or not callable(self.model):
            raise ProblemError(
                f"model: got {type(self.model).__name__}, expected a function without arguments "
                "that builds the model, such as `lambda: nn.Linear(64, 10)`"
            )
        if not callable(self.loss):
            kind = type(self.loss).__name__
            raise ProblemError(f"loss: got {kind}, expected a function of (model, batch)")
        _ = self.chosen_device
        if self.metric is not None:
            find_metric(self.metric)
        object.__setattr__(self, "data", _as_data(self.data))
        object.__setattr__(self, "rows", count_rows(self.data, "data", size))
        if self.validation is not None:
            object.__setattr__(self, "validation", _as_data(self.validation))
            count_rows(self.validation, "validation", 1)

    def build(self, seed: int) -> nn.Module:
        """Return a fresh model at the start point, on the problem's device.

        Raises `ProblemError` where `model` gives no module, or one without trainable parameters.
        """
        from grasp_tune.engine.streams import fixed_randomness

        with fixed_randomness(seed, "init"):
            model = self.model()
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise ProblemError(f"model: it returned {kind}, expected a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ProblemError("model: it has no trainable parameter, so there is nothing to train")
        lazy = [name for name, p in model.named_parameters() if nn.parameter.is_lazy(p)]
        if lazy:
            raise ProblemError(
                f"model: parameter {lazy[0]} is not initialised yet (a lazy module); run the model "
                "once on an example inside `model` before returning it"
            )
        return model.to(self.chosen_device).train()

    @property
    def chosen_device(self) -> torch.device:
        """The device to train on."""
        if self.device is not None:
            return _present(self.device)
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _present(given: str | torch.device) -> torch.device:
    """Return the device, if this machine has it."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ProblemError(f"device: got {given!r}, expected a device of torch: {reason}") from None
    there = True
    # Nothing is put there to find out: that would start CUDA, and worker processes could not.
    if device.type == "cuda":
        there = (device.index or 0) < torch.cuda.device_count()
    elif device.type == "mps":
        there = torch.backends.mps.is_available()
    if not there:
        raise ProblemError(f"device: got {str(given)!r}, which is not there")
    return device


def _as_data(data: Data) -> Data:
    if isinstance(data, Tensor):
        return (data,)
    if isinstance(data, list) and data and all(isinstance(item, Tensor) for item in data):
        return tuple(data)
    return data


def count_rows(data: Data, name: str, least: int) -> int | None:
    """Return how many rows there are, None for an iterable; fewer than `least` is an error."""
    if isinstance(data, tuple):
        if not data or not all(isinstance(item, Tensor) and item.ndim >= 1 for item in data):
            raise ProblemError(f"{name}: a tuple must hold tensors with at least one dimension")
        sizes = [len(item) for item in data]
        if len(set(sizes)) != 1:
            raise ProblemError(f"{name}: the tensors have different numbers of rows: {sizes}")
        rows = sizes[0]
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        rows = len(data)
    elif callable(data):
        return None
    else:
        raise ProblemError(
            f"{name}: got {type(data).__name__}, expected a tuple of tensors, a Dataset with a "
            "length, or a function that gives an endless iterable of batches"
        )
    if rows < least:
        raise ProblemError(
            f"{name}: {rows} rows are fewer than one batch of {least}; "
            f"use batch_size <= {rows} or more data"
            if rows
            else f"{name}: there are no rows"
        )
    return rows
