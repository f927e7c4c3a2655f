"""Losses of torch, which take outputs and targets, as losses of a model and a batch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError

TARGETS = ("labels", "label", "targets", "target", "y")  # where batches of all kinds have them
_OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"}
_OF_CLASSES |= {"cross_entropy", "nll_loss", "multi_margin_loss"}
_OF_NUMBERS = {"MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss"}
_OF_NUMBERS |= {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"}
_OF_NUMBERS |= {"binary_cross_entropy_with_logits"}
_BY_POSITION = nn.MultiLabelMarginLoss  # its targets name classes, as many as there are outputs


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def pair_of(batch: Any) -> Any:
    """Return inputs and targets of a batch that has no other parts, None of any other."""
    if isinstance(batch, tuple | list):
        return batch if len(batch) == 2 else None
    if not isinstance(batch, Mapping) or len(batch) != 2:
        return None
    inputs, targets = sorted(batch, key=TARGETS.__contains__)
    known = targets in TARGETS and inputs not in TARGETS
    return (batch[inputs], batch[targets]) if known else None


def target_loss(criterion: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    """Return a loss of (output, target), such as torch's, as one of (model, batch)."""
    if (pair := pair_of(batch)) is None:
        text = "a loss of torch needs batches of two parts, input and target"
        raise ProblemError(f"loss: {text}; give a function of (model, batch) instead")
    output, target = answer(model, pair[0]), pair[1]
    if isinstance(output, Tensor) and isinstance(target, Tensor):
        output, target = _matched(criterion, output, target)
    try:
        return criterion(output, target)
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        kind = type(criterion) if isinstance(criterion, nn.Module) else criterion
        if not getattr(kind, "__module__", "").startswith("torch.nn"):
            raise  # the user's own tells more by its traceback
        got = f"does not take outputs {_form(output)} with targets {_form(target)}"
        raise ProblemError(f"loss: {_name(criterion)} {got}: {first_line(error)}") from error


def answer(model: nn.Module, inputs: Any) -> Any:
    """Return what the model gives for inputs, which may be of another float type than its own."""
    plain = torch.get_default_dtype()
    floats = isinstance(inputs, Tensor) and inputs.is_floating_point()
    if floats and inputs.dtype != plain:
        own = (item.dtype for item in model.parameters() if item.is_floating_point())
        inputs = inputs.to(next(own, plain))
    try:
        return model(inputs)
    except (RuntimeError, TypeError) as error:
        if floats or not isinstance(inputs, Tensor | np.ndarray | list):
            raise
        text = f"the model does not take inputs {_form(inputs)}: {first_line(error)}"
        wanted = "give a tensor of floats"
        if isinstance(inputs, list):
            wanted += ', which .with_format("torch") makes of a Hugging Face data set'
        raise ProblemError(f"data: {text}; {wanted}") from error


def _matched(
    criterion: Callable[..., Tensor], output: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs and targets in the shapes and types that torch's losses take."""
    if (name := _name(criterion)) in _OF_CLASSES:
        if output.ndim > 1 and output.shape[1] == 1:
            text = f"{name} needs an output for each class, the model gives one"
            raise ProblemError(f"loss: {text}; use nn.BCEWithLogitsLoss() for two classes")
        if output.ndim == 2 and target.shape == (len(output), 1):
            target = target.squeeze(-1)
        if output.shape == target.shape:  # shares of classes
            wide = not target.is_floating_point() or target.dtype == torch.float64
            return output, target.to(output.dtype) if wide else target
        whole = not target.is_floating_point() or bool((target == target.round()).all())
        return output, target.to(torch.int64) if whole else target
    # (rows, 1) beside (rows,): torch would compare every output with every target.
    if output.shape == (*target.shape, 1):
        output = output.squeeze(-1)
    elif target.shape == (*output.shape, 1):
        target = target.squeeze(-1)
    if name in _OF_NUMBERS and output.shape != target.shape:
        got = f"got outputs {_form(output)} and targets {_form(target)}"
        raise ProblemError(f"loss: {name} needs as many outputs as targets, {got}")
    if not (target.is_floating_point() or target.is_complex()):
        # One number for each output, or classes, which torch takes as int64 only.
        alike = output.shape == target.shape and not isinstance(criterion, _BY_POSITION)
        target = target.to(output.dtype if alike else torch.int64)
    return output, target


def _name(criterion: Any) -> str:
    name = type(criterion).__name__  # asked in each step: a module would look long for another
    return str(criterion.__name__) if name in ("function", "builtin_function_or_method") else name


def _form(item: Any) -> str:
    """Words for the shape and the type of what a batch or a model gave."""
    if isinstance(item, Tensor | np.ndarray):
        return f"of shape {tuple(item.shape)}, {str(item.dtype).removeprefix('torch.')}"
    return f"in a {type(item).__name__}"
