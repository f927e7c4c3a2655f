"""Samples at fixed points, call by call: the probe at x0, and the scores of candidates.

Who computes losses and gradients is somebody else's business: a worker's oracle, or a training
loop of the user's own. Each task is an object with its whole state in the open: `feed` takes one
oracle call and leaves the model where the next one is wanted, `outcome` says how it went, and
`state` can be saved in the middle and gone on from.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from grasp_tune.core.checkpoint_keys import MOMENTS, START, part_key
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, SampleOutcome, ScoreOutcome, ScoreTask
from grasp_tune.engine.checkpoints import Buffers, Store, Tensors
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.optimizers.coordinatewise import Coordinates, typical_peak
from grasp_tune.optimizers.registry import Factory
from grasp_tune.optimizers.unixgrad import joint_norm

State = tuple[Tensors, dict[str, Any]]  # tensors, and numbers that JSON can hold
Call = tuple[str, int, bool]  # purpose, number, and whether the gradient is wanted beside the loss


class Bench(Protocol):
    """A model that is put at one point after the other, and where checkpoints are."""

    origin: str  # names x0
    trained: list[Tensor]  # its trainable parameters
    matrices: frozenset[int]  # the positions of the hidden matrices among them
    bases: Mapping[str, Factory]  # optimizers of the user's own
    rules: StepRules
    buffers: Buffers

    @property
    def store(self) -> Store:
        """Where checkpoints go."""

    def place(self, key: str) -> object:
        """Put the model at x0 or at a checkpoint."""


class LossSums:
    """Running sums of losses: how many, their sum, the sum of their squares."""

    def __init__(self) -> None:
        self.numbers = [0.0, 0.0, 0.0]

    def add(self, value: float) -> None:
        """Take in a loss."""
        self.merge((1.0, value, value * value))

    def merge(self, numbers: Iterable[float]) -> None:
        """Add the sums of others."""
        self.numbers = [a + b for a, b in zip(self.numbers, numbers, strict=True)]

    @property
    def means(self) -> tuple[float, float]:
        """Mean of the losses, and of their squares."""
        count, total, squares = self.numbers
        return total / (count or math.nan), squares / (count or math.nan)


class MeanGradient:
    """The running mean of gradients at one point: one vector, whatever the number of samples."""

    def __init__(self, parameters: Sequence[Tensor], *, moments: bool = False) -> None:
        self._parameters = parameters
        self.sums = [
            torch.zeros_like(item, dtype=torch.promote_types(item.dtype, torch.float32))
            for item in parameters
        ]
        self.peaks = [torch.zeros_like(item) for item in self.sums] if moments else []
        self.count, self.square = 0, 0.0  # square: sum of |g|^2

    @torch.no_grad()
    def add(self) -> None:
        """Take in the gradient that the parameters hold; a missing one counts as zero."""
        self.count += 1
        found = [(at, x.grad) for at, x in enumerate(self._parameters) if x.grad is not None]
        for at, gradient in found:
            wide = gradient.to(self.sums[at].dtype)
            self.sums[at].add_(wide)
            if self.peaks:
                torch.maximum(self.peaks[at], wide.abs(), out=self.peaks[at])
        norm = joint_norm([gradient for _, gradient in found])
        self.square += norm * norm  # a power would raise where this gives infinity

    @property
    def means(self) -> tuple[float, float]:
        """Norm of the mean, and the mean of |g|^2."""
        count = self.count or math.nan
        return joint_norm(self.sums) / count, self.square / count

    def tensors(self) -> Tensors:
        """Return all that `merge` needs."""
        found = {f"sum.{at}": item for at, item in enumerate(self.sums)}
        found |= {f"peak.{at}": item for at, item in enumerate(self.peaks)}
        return found | {"mean": torch.tensor([self.count, self.square], dtype=torch.float64)}

    def merge(self, tensors: Mapping[str, Tensor]) -> None:
        """Add what another one saw."""
        count, square = tensors["mean"].tolist()
        self.count, self.square = self.count + int(count), self.square + square
        for at, total in enumerate(self.sums):
            total.add_(tensors[f"sum.{at}"].to(total.device))
        for at, peak in enumerate(self.peaks):
            torch.maximum(peak, tensors[f"peak.{at}"].to(peak.device), out=peak)


class ProbeRun:
    """The samples at x0: gradients first, then losses alone; or what the parts of a probe left."""

    def __init__(self, task: ProbeTask, bench: Bench) -> None:
        self._task, self._bench, self._fed = task, bench, 0
        self._mean = MeanGradient(bench.trained, moments=task.moments)
        self._values, self._losses = LossSums(), LossSums()
        for part in range(task.merge):
            self.load(bench.store.read(str(part_key(part))).tensors, {"fed": 0})
        bench.place(START)
        bench.buffers.keep()

    @property
    def wants(self) -> Call | None:
        """The next call, None where all are there."""
        if self._task.exact:
            return None if self._fed else ("exact", 0, True)
        (first, end), (value, last) = self._task.gradients, self._task.values
        if first + self._fed < end:
            return "probe", first + self._fed, True
        value += self._fed - (end - first)
        return ("value", value, False) if value < last else None

    def feed(self, loss: Tensor | float) -> None:
        """Take one sample at x0."""
        assert self.wants is not None
        purpose, _, gradient = self.wants
        if gradient:
            self._losses.add(float(loss))
            self._mean.add()
        if not gradient or purpose == "exact":
            self._values.add(float(loss))
        self._fed += 1
        self._bench.buffers.restore()

    def outcome(self) -> ProbeOutcome:
        """What was seen at x0; leaves sums or the sizes of gradients where they were asked for."""
        task, mean, store = self._task, self._mean, self._bench.store
        if task.part is not None:
            store.write(str(part_key(task.part)), self.state()[0], {})
        elif task.moments:
            peaks = {f"peak.{at}": item for at, item in enumerate(mean.peaks)}
            store.write(str(MOMENTS), peaks, {"typical": typical_peak(mean.peaks)})
        # Where no values were asked for, those that came with the gradients cost nothing.
        seen = self._values if self._values.numbers[0] else self._losses
        (norm, square), (value, value_square) = mean.means, seen.means
        return ProbeOutcome(
            calls=task.calls,
            origin=self._bench.origin,
            gradients=mean.count,
            gradient_norm=norm,
            gradient_square=square,
            parameters=sum(item.numel() for item in mean.sums),
            values=int(seen.numbers[0]),
            value=value,
            value_square=value_square,
            matrices=len(self._bench.matrices),
        )

    def state(self) -> State:
        """The sums so far."""
        numbers = [*self._values.numbers, *self._losses.numbers]
        tensors = self._mean.tensors() | {"losses": torch.tensor(numbers, dtype=torch.float64)}
        return tensors, {"fed": self._fed}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from saved sums, added to what there is."""
        self._mean.merge(tensors)
        losses = tensors["losses"].tolist()
        self._values.merge(losses[:3])
        self._losses.merge(losses[3:])
        self._fed = int(numbers["fed"])


class ScoreRun:
    """Fresh samples at candidates, one candidate after the other."""

    def __init__(self, task: ScoreTask, bench: Bench) -> None:
        self._task, self._bench = task, bench
        self._found: list[SampleOutcome] = []
        self._begin()

    def _begin(self) -> None:
        """Go to the next candidate."""
        self._fed, self._sums, self._mean = 0, LossSums(), None
        if len(self._found) < len(self._task.samples):
            self._bench.place(self._task.samples[len(self._found)].key)
            self._bench.buffers.keep()
            if self._task.by == "gradient":
                self._mean = MeanGradient(self._bench.trained)

    @property
    def wants(self) -> Call | None:
        """The next call, None where every candidate has its samples."""
        if len(self._found) == len(self._task.samples):
            return None
        gradient = self._mean is not None
        if self._task.exact:
            return "exact", 0, gradient
        return "ensemble", self._task.samples[len(self._found)].start + self._fed, gradient

    def feed(self, loss: Tensor | float) -> None:
        """Take one sample at the present candidate."""
        self._sums.add(float(loss))
        if self._mean is not None:
            self._mean.add()
        self._fed += 1
        self._bench.buffers.restore()
        sample = self._task.samples[len(self._found)]
        if self._task.exact or self._fed == sample.stop - sample.start:
            means = self._sums.means if self._mean is None else self._mean.means
            self._found.append(SampleOutcome(sample.key, self._fed, *means))
            self._begin()

    def outcome(self) -> ScoreOutcome:
        """What the candidates scored."""
        return ScoreOutcome(self._task.calls, self._bench.origin, tuple(self._found))

    def state(self) -> State:
        """The scores so far, and the sums of the present candidate."""
        tensors = {} if self._mean is None else self._mean.tensors()
        found = [[item.count, item.mean, item.square] for item in self._found]
        return tensors, {"found": found, "fed": self._fed, "sums": self._sums.numbers}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from saved scores."""
        pairs = zip(self._task.samples, numbers["found"], strict=False)
        self._found = [SampleOutcome(sample.key, *found) for sample, found in pairs]
        self._begin()
        self._fed = int(numbers["fed"])
        self._sums.merge(numbers["sums"])
        if self._mean is not None:
            self._mean.merge(tensors)


def read_coordinates(store: Store, power: float, like: Sequence[Tensor]) -> Coordinates | None:
    """Return what the probe saw of each coordinate of a run, None where it does not matter."""
    if not power:
        return None
    saved = store.read(str(MOMENTS))
    peaks = [saved.tensors[f"peak.{at}"].to(item.device) for at, item in enumerate(like)]
    return Coordinates(power, peaks, float(saved.meta["typical"]))
