"""What the user gives: a model, a loss, data; checked as far as that takes no oracle call."""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as td

from grasp_tune.core.errors import ProblemError, expect, misfit
from grasp_tune.engine.checkpoints import check_tensors
from grasp_tune.engine.losses import first_line, target_loss
from grasp_tune.engine.metrics import Metric, find_metric, wants_batch

logger = logging.getLogger(__name__)

Batch = Any  # whatever the data gives: a tuple of tensors as a rule
Data = (
    tuple[Tensor, ...]
    | td.Dataset[Any]
    | td.DataLoader[Any]
    | Iterable[Batch]
    | Callable[[], Iterable[Batch]]
)

_RAW, _SEEN = 1000.0, 1000  # inputs that reach so far are told; rows that are looked at
_ASIDE = 7003  # the seed of the validation rows: the same ones whatever a sweep's seed
_KINDS = (
    "a tuple of tensors or arrays, a Dataset with a length, a DataLoader, or a function that gives "
    "an iterable of batches"
)
_BUILDER = "a function without arguments that builds the model, such as `lambda: nn.Linear(64, 10)`"
_BY_NUMBER = td.SequentialSampler | td.RandomSampler | td.DistributedSampler  # rows equally often
_need = partial(expect, kind=ProblemError)


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchProblem:
    """A training problem: minimise the expected `loss(model, batch)` over the model's parameters.

    model: builds the model; called once in every process, with the random seeds fixed, so that
        all of them start from the same point.
    loss: a function of (model, batch) that gives a scalar tensor, to be averaged over batches. A
        loss of torch, that is any `nn.Module` or a function of `torch.nn.functional`, is applied
        as `loss(model(batch[0]), batch[1])`; so it is to mappings of two, such as `image`, `label`.
        Float inputs get the model's type, and targets the type and the shape that it needs.
    data: the training data, as one of
        - a tensor, an array or a table (NumPy, pandas), or a tuple of them with equal first sizes;
          a batch is the tuple of the sampled rows, and float64 becomes torch's default type;
        - a `Dataset` or another sequence of rows, which are collated as a `DataLoader` does;
        - a `DataLoader`: its data set, its batch size and its `collate_fn`. The rows of a batch are
          drawn by number, so that its order and its worker processes are not used;
        - an iterable of batches, or a function that gives one. It is read from the beginning for
          each purpose, and again when it ends. So is a loader of an `IterableDataset`, and one
          whose sampler weights its rows or makes batches in a way of its own.
    batch_size: rows of a batch, for data that come in rows; a `DataLoader` brings its own.
    validation: like `data`, or the share of its rows to keep aside, such as 0.1 (which copies
        arrays to memory); where given, the ensemble compares losses there, in evaluation mode.
    device: `None` picks CUDA, then MPS, then the CPU.
    metric: what people judge the model by, larger is better: `accuracy`, `f1`, `auc`, `r2`, or a
        function of (outputs, targets) or (outputs, batch). Targets are the last part of a tuple, or
        what a mapping or an object calls `labels`, `label`, `targets`, `target` or `y`. A
        second parameter named `batch` is given all of the batch, whatever it is.
    choose_by: `loss`, or `metric`: the ensemble compares 1 - metric of validation minibatches.
    weight_decay: decoupled, as in AdamW: every step multiplies the weights (parameters of two or
        more dimensions) by 1 - step size * weight_decay. Optimizers without a step size, such as
        `unixgrad`, get it as a term of the gradient.
    clip: the largest norm of a step's gradient over all parameters; a larger one is scaled down.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    data: Data
    batch_size: int = 64
    validation: Data | float | None = None
    device: str | torch.device | None = None
    metric: str | Metric | None = None
    choose_by: Literal["loss", "metric"] = "loss"
    weight_decay: float = 0.0
    clip: float | None = None
    rows: int | None = field(init=False, default=None)  # of `data`; None for an iterable
    validation_rows: int | None = field(init=False, default=None)  # 0 for an iterable

    def __post_init__(self) -> None:
        size, decay, clip, by = self.batch_size, self.weight_decay, self.clip, self.choose_by
        model, loss, own = self.model, self.loss, vars(self)  # frozen: set here alone
        counts = isinstance(size, Integral) and not isinstance(size, bool)
        _need(counts and size >= 1, "batch_size", repr(size), "a whole number >= 1")
        builds = callable(model) and not isinstance(model, nn.Module)
        _need(builds, "model", type(model).__name__, _BUILDER)
        _need(not (why := misfit(model)), "model", f"one that does not fit ({why})", _BUILDER)
        kind = repr(loss) if isinstance(loss, type) else type(loss).__name__
        wanted = "a function of (model, batch), or one of torch's, such as nn.CrossEntropyLoss()"
        _need(callable(loss) and not isinstance(loss, type), "loss", kind, wanted)
        why = misfit(loss, model, None)
        _need(not why, "loss", f"one that does not fit ({why})", "a function of (model, batch)")
        fits = isinstance(decay, Real) and 0.0 <= decay < math.inf
        _need(fits, "weight_decay", repr(decay), "a number >= 0")
        fits = clip is None or (isinstance(clip, Real) and clip > 0.0)
        _need(fits, "clip", repr(clip), "a number > 0")
        _need(by in ("loss", "metric"), "choose_by", repr(by), "'loss' or 'metric'")
        if by == "metric" and (self.metric is None or self.validation is None):
            raise ProblemError("choose_by: got 'metric', which needs a metric and validation data")
        if self.metric is not None:
            wants_batch(self.metric)
        device = self.chosen_device
        if isinstance(loss, nn.Module):  # it may have tensors, such as weights of classes
            own["loss"] = partial(target_loss, loss.to(device))
        elif getattr(loss, "__module__", "") == "torch.nn.functional":
            own["loss"] = partial(target_loss, loss)
        own["batch_size"], own["data"] = int(size), as_data(self.data, int(size))
        data: Any = self.data
        if isinstance(data, Columns) and (largest := _reach(data[0])) > _RAW:
            advice = "shift and divide columns to mean 0, variance 1"
            text = "data: inputs reach %.3g, and networks learn badly from raw scales; %s"
            logger.warning(text, largest, advice)
        if isinstance(data, Rows) and data.batch_size:
            own["batch_size"] = data.batch_size
        if isinstance(self.validation, Real):
            own["data"], own["validation"] = _parted(data, float(self.validation))
        own["rows"] = _checked_rows(self.data, "data", self.batch_size)
        if self.validation is not None:
            own["validation"] = as_data(self.validation, self.batch_size, "validation")
            own["validation_rows"] = _checked_rows(self.validation, "validation", 1) or 0

    def build(self, seed: int) -> nn.Module:
        """Return a fresh model at the start point, on the problem's device."""
        from grasp_tune.engine.streams import fixed_randomness

        with fixed_randomness(seed, "init"):
            model = self.model()
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise ProblemError(f"model: it returned {kind}, expected a torch.nn.Module")
        check_tensors(model)
        if not any(item.requires_grad and item.numel() for item in model.parameters()):
            raise ProblemError("model: it has no trainable parameter, so there is nothing to train")
        for name, part in model.named_modules():
            trained = any(item.requires_grad for item in part.parameters(recurse=False))
            if trained and getattr(part, "sparse", False) is True:
                wrong = "has sparse gradients, which no step rule here takes; leave sparse=True out"
                raise ProblemError(f"model: {name or type(part).__name__} {wrong}")
        return model.to(self.chosen_device).train()

    @property
    def metric_name(self) -> str | None:
        return None if self.metric is None else find_metric(self.metric)[0]

    @property
    def choice_metric(self) -> str | None:
        """The name of the metric by which the ensemble chooses, None where losses decide."""
        return None if self.choose_by == "loss" else self.metric_name

    @property
    def chosen_device(self) -> torch.device:
        """The device to train on, which this machine must have."""
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        if self.device is None:
            return torch.device("cuda" if cuda else "mps" if mps else "cpu")
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            wanted = f"a device of torch: {str(error).splitlines()[0]}"
            raise ProblemError(f"device: got {self.device!r}, expected {wanted}") from None
        # Nothing is put there to find out: that would start CUDA, and worker processes could not.
        lacking = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
        if lacking or (device.type == "mps" and not mps):
            raise ProblemError(f"device: got {str(self.device)!r}, which is not there")
        return device


def checked_problem(given: object) -> TorchProblem:
    kind = type(given).__name__
    expect(isinstance(given, TorchProblem), "problem", kind, "a grasp_tune.TorchProblem")
    return cast(TorchProblem, given)


class Columns(tuple[Tensor, ...]):
    """Rows in tensors of equal first sizes."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        return len(self[0])

    def take(self, rows: Tensor) -> Batch:
        return tuple(item.index_select(0, rows.to(item.device)) for item in self)

    def part(self, rows: Tensor) -> "Columns":
        return Columns(item[rows] for item in self)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows by number, and how a list of them becomes a batch."""

    items: Any  # has a length, and gives rows by number
    collate: Callable[[list[Any]], Batch] = td.default_collate
    batch_size: int | None = None  # None: the problem's

    @property
    def rows(self) -> int:
        return len(self.items)

    def take(self, rows: Tensor) -> Batch:
        found = [self.items[row] for row in rows.tolist()]
        try:
            return self.collate(found)
        except (RuntimeError, TypeError) as error:
            if self.collate is not td.default_collate:
                raise
            text = f"rows do not make a batch: {first_line(error)}"
            wanted = "give a DataLoader whose collate_fn makes one, say by padding"
            raise ProblemError(f"data: {text}; {wanted}") from error

    def part(self, rows: Tensor) -> "Rows":
        return replace(self, items=td.Subset(self.items, rows.tolist()))


def as_data(data: Any, batch_size: int, name: str = "data") -> Any:
    """Return the data as `Columns` or `Rows`, or as batches to be read in order."""
    columns = Tensor | np.ndarray
    data = tuple(map(_array, data)) if isinstance(data, tuple) else _array(data)
    if isinstance(data, columns):
        data = (data,)
    fits = isinstance(data, tuple | list) and all(isinstance(x, columns) for x in data)
    if isinstance(data, tuple) or (fits and data):
        if not (fits and data and all(item.ndim for item in data)):
            kinds = ", ".join(type(item).__name__ for item in data)
            wanted = "a tuple must hold tensors with at least one dimension, or arrays"
            raise ProblemError(f"{name}: {wanted}; got ({kinds})")
        if len(set(sizes := [len(item) for item in data])) > 1:
            raise ProblemError(f"{name}: the tensors have different numbers of rows: {sizes}")
        return Columns(map(_column, data))
    if isinstance(data, Mapping | str | bytes):
        kind = type(data).__name__
        raise ProblemError(f"{name}: got a {kind}, expected {_KINDS}; rows may be mappings")
    if isinstance(data, Rows):
        return data
    if isinstance(data, td.DataLoader):
        rows: Any = data.dataset
        sampler = getattr(data.batch_sampler, "sampler", None)  # None: its items are batches
        if isinstance(sampler, td.SubsetRandomSampler):
            rows = td.Subset(rows, list(sampler.indices))
        elif not isinstance(sampler, _BY_NUMBER) or not _has_rows(rows):
            return data
        size = data.batch_size or getattr(data.batch_sampler, "batch_size", None)
        return Rows(rows, data.collate_fn, size)
    if isinstance(data, td.IterableDataset):
        return td.DataLoader(data, batch_size=batch_size)
    if _has_rows(data):
        size = _batch_like(data)
        text = f"a list of {len(data)} items, each with {size} rows"
        wanted = "a function that returns batches, such as `lambda: batches`, or a Dataset of rows"
        _need(not size, name, text, wanted)
        return Rows(data)
    if isinstance(data, Iterator):
        once = f"a {type(data).__name__} can be read only once; give a function that makes one"
        raise ProblemError(f"{name}: {once}, such as `lambda: itertools.cycle(batches)`")
    return data


def _array(item: Any) -> Any:
    """Return columns of pandas and its like as arrays, everything else as it is."""
    if not hasattr(item, "to_numpy"):
        return item
    found = item.to_numpy()
    if found.dtype == object:  # columns of several kinds, such as float and bool
        found = np.array(found.tolist())
    return found.astype(float) if found.dtype == bool and found.ndim == 2 else found


def _has_rows(data: object) -> bool:
    found = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return found and not isinstance(data, td.IterableDataset | type)


def _batch_like(data: Any) -> int:
    """Return the rows of a list's first item where that looks like a batch, else 0."""
    first = data[0] if isinstance(data, list) and data else ()
    parts = first.values() if isinstance(first, dict) else first
    parts = parts if isinstance(first, dict | tuple | list) else ()
    shapes = [tuple(getattr(part, "shape", ())) for part in parts]
    sizes = {shape[:1] for shape in shapes}
    wide = len(sizes) == 1 and max(map(len, shapes)) > 1  # a row's parts are rarely so
    return int(shapes[0][0]) if wide else 0


def _column(item: Tensor | np.ndarray[Any, Any]) -> Tensor:
    try:
        with warnings.catch_warnings():  # that it may not be written to, which nobody here does
            warnings.filterwarnings("ignore", message=".*not writable")
            found = torch.as_tensor(item)
    except TypeError:
        wanted = "numbers, so turn words, dates and blanks into numbers first"
        raise ProblemError(f"data: got an array of {item.dtype}, expected {wanted}") from None
    if not isinstance(item, np.ndarray):
        return found
    if item.dtype.kind == "u" and item.dtype != np.uint8:  # of which torch cannot pick rows
        return found.to(torch.int64)
    return found.to(torch.get_default_dtype()) if found.dtype == torch.float64 else found


def _reach(inputs: Tensor) -> float:
    """The largest number in the first rows of a table; 0 for inputs of other kinds."""
    table = inputs.ndim == 2 and inputs.is_floating_point() and inputs.numel()
    return float(inputs[:_SEEN].abs().max()) if table else 0.0


def row_count(data: Any) -> int | None:
    """Return how many rows a problem's data have, None where they are batches in order."""
    return data.rows if isinstance(data, Columns | Rows) else None


def _parted(data: Any, share: float) -> tuple[Any, Any]:
    """Return the data without a share of its rows, and these; the same ones every time."""
    rows = _checked_rows(data, "data", 1) or 0  # an iterable has none
    count = round(share * rows) if math.isfinite(share) else 0
    wanted = "a share of data that come in rows, some of them on either side, or data"
    _need(0 < count < rows, "validation", repr(share), wanted)
    order = torch.from_numpy(np.random.default_rng(_ASIDE).permutation(rows))
    return data.part(order[count:].sort().values), data.part(order[:count].sort().values)


def _checked_rows(data: Any, name: str, least: int) -> int | None:
    """Return how many rows there are, None for an iterable; fewer than `least` is an error."""
    if (rows := row_count(data)) is None:
        _need(callable(data) or hasattr(data, "__iter__"), name, type(data).__name__, _KINDS)
        return None
    if not rows:
        raise ProblemError(f"{name}: there are no rows")
    if rows < least:
        fewer = f"{rows} rows are fewer than one batch of {least}"
        raise ProblemError(f"{name}: {fewer}; use batch_size <= {rows} or more data")
    return rows
