"""Samples at fixed points, call by call: the probe at x0, and the scores of candidates.

Losses and gradients come from a worker's oracle, or from a training loop of the user's own. A run
`wants` one oracle call after the other; `feed` takes it and leaves the model where the next one is
wanted, `outcome` says how it went, and `state` can be saved in the middle and gone on from.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.checkpoint_keys import MOMENTS, START, part_key
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, SampleOutcome, ScoreOutcome, ScoreTask
from grasp_tune.engine.checkpoints import Buffers, Checkpoint, Named, Store, Tensors
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.optimizers.coordinatewise import Coordinates, embeddings, typical_peak
from grasp_tune.optimizers.muon import hidden_matrices
from grasp_tune.optimizers.registry import Factory
from grasp_tune.optimizers.unixgrad import joint_norm

State = tuple[Tensors, dict[str, Any]]  # tensors, and numbers that JSON can hold
Call = tuple[str, int, bool]  # purpose, number, and whether the gradient is wanted beside the loss


class Bench:
    """A model that is put at one point after the other, and where checkpoints are."""

    origin: str  # names x0
    named: Named  # the model, as checkpoints see it
    rules: StepRules
    held_out = False  # whether candidates are scored on validation data
    light = False  # whether the model is so small that short runs should share a task
    bases: Mapping[str, Factory] = {}  # optimizers of the user's own

    def __init__(self, model: nn.Module | None, trained: Iterable[Tensor], store: Store) -> None:
        self.trained, self.store = list(trained), store
        # Positions among the trainable parameters: of hidden matrices, and of embeddings.
        self.matrices = hidden_matrices(model, self.trained)
        self.tables = embeddings(model, self.trained)
        self.buffers = Buffers(model)

    def place(self, key: str) -> Checkpoint | None:
        """Put the model at x0 or at a checkpoint; returns the latter."""
        raise NotImplementedError


class Samples:
    """Running sums at one point: of losses, and of the gradients of `parameters`, if any.

    moments: also keep the largest gradient of each coordinate, a second vector.
    """

    def __init__(self, parameters: Sequence[Tensor] = (), *, moments: bool = False) -> None:
        self._parameters = parameters
        kinds = [torch.promote_types(item.dtype, torch.float32) for item in parameters]
        pairs = zip(parameters, kinds, strict=True)
        self.sums = [torch.zeros_like(item, dtype=kind) for item, kind in pairs]
        self.peaks = [torch.zeros_like(item) for item in self.sums] if moments else []
        self._numbers = [0.0] * 5  # how many; sums of loss, loss^2, |g|^2; |sum of g| once closed

    @property
    def count(self) -> int:
        return int(self._numbers[0])

    @property
    def losses(self) -> tuple[float, float]:
        """Mean of the losses, and of their squares."""
        count, loss, square, *_ = self._numbers
        return loss / (count or math.nan), square / (count or math.nan)

    @property
    def gradients(self) -> tuple[float, float]:
        """Norm of the mean gradient, and the mean of |g|^2."""
        count, _, _, square, norm = self._numbers
        norm = joint_norm(self.sums) if self.sums else norm
        return norm / (count or math.nan), square / (count or math.nan)

    @torch.no_grad()
    def add(self, loss: float) -> None:
        """Take in a loss, and the gradient in the parameters; a missing one counts as zero."""
        found = [(at, x.grad) for at, x in enumerate(self._parameters) if x.grad is not None]
        for at, gradient in found:
            wide = gradient.to(self.sums[at].dtype)
            self.sums[at].add_(wide)
            if self.peaks:
                torch.maximum(self.peaks[at], wide.abs(), out=self.peaks[at])
        norm = joint_norm([gradient for _, gradient in found])
        # Products: a power would raise where they give infinity.
        seen = (1.0, loss, loss * loss, norm * norm, 0.0)
        self._numbers = [a + b for a, b in zip(self._numbers, seen, strict=True)]

    def close(self) -> None:
        """Forget the vectors: what is left are the means."""
        self._numbers[4], self.sums = joint_norm(self.sums), []

    def tensors(self) -> Tensors:
        found = {f"sum.{at}": item for at, item in enumerate(self.sums)}
        found |= {f"peak.{at}": item for at, item in enumerate(self.peaks)}
        return found | {"numbers": torch.tensor(self._numbers, dtype=torch.float64)}

    def merge(self, tensors: Mapping[str, Tensor]) -> None:
        seen = tensors["numbers"].tolist()
        self._numbers = [a + b for a, b in zip(self._numbers, seen, strict=True)]
        self.sums = self.sums if "sum.0" in tensors else []
        for at, total in enumerate(self.sums):
            total.add_(tensors[f"sum.{at}"].to(total.device))
        for at, peak in enumerate(self.peaks):
            torch.maximum(peak, tensors[f"peak.{at}"].to(peak.device), out=peak)


class SamplingRun:
    """The samples of a task, point by point: the probe's at x0, or a score's at its candidates."""

    def __init__(
        self,
        bench: Bench,
        task: ProbeTask | ScoreTask,
        measured: Callable[[], tuple[float, float]] = lambda: (math.nan, math.nan),
    ) -> None:
        """measured: gives loss and metric of the validation data seen since the last `place`."""
        self._task, self._bench, self._measure = task, bench, measured
        self._measured: dict[str, tuple[float, float]] = {}  # by candidate
        # Key, purpose, first call, the one behind the last, and whether gradients are wanted.
        self._stages: list[tuple[str, str, int, int, bool]] = []
        self._seen: list[Samples] = []  # of the stages so far
        if isinstance(task, ScoreTask):
            gradient = task.by == "gradient"
            for item in task.samples:
                span = ("exact", 0, 1) if task.exact else ("ensemble", item.start, item.stop)
                self._stages.append((item.key, *span, gradient))
        else:
            span = ("exact", 0, 1) if task.exact else ("probe", *task.gradients)
            values = (0, 0) if task.exact else task.values
            self._stages += [(START, *span, True), (START, "value", *values, False)]
        self._go_on()
        for part in range(getattr(task, "merge", 0)):
            self.load(bench.store.read(part_key(part)).tensors, {})

    def _go_on(self) -> None:
        """Go to the next point where samples are wanted."""
        moments = isinstance(self._task, ProbeTask) and self._task.moments
        while self.wants is None and len(self._seen) < len(self._stages):
            key, *_, gradient = self._stages[len(self._seen)]
            params = self._bench.trained if gradient else ()
            self._seen.append(Samples(params, moments=moments and gradient))
            self._bench.place(key)
            self._bench.buffers.keep()

    @property
    def wants(self) -> Call | None:
        if not self._seen:
            return None
        _, purpose, start, stop, gradient = self._stages[len(self._seen) - 1]
        call = start + self._seen[-1].count
        return (purpose, call, gradient) if call < stop else None

    def feed(self, loss: Tensor | float) -> bool:
        """Take a loss, and the gradient in the parameters; return whether another is wanted."""
        self._seen[-1].add(float(loss))
        self._bench.buffers.restore()
        if self.wants is None:
            if isinstance(self._task, ScoreTask):
                self._seen[-1].close()
                self._measured[self._stages[len(self._seen) - 1][0]] = self._measure()
            self._go_on()
        return self.wants is not None

    def state(self) -> State:
        seen = enumerate(self._seen)
        return {f"{at}.{n}": x for at, item in seen for n, x in item.tensors().items()}, {}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Add saved sums to those that there are, and go on from there."""
        for at in range(len(self._stages)):
            own = f"{at}."
            if f"{own}numbers" in tensors:
                named = {n.removeprefix(own): x for n, x in tensors.items() if n.startswith(own)}
                self._seen[at].merge(named)
                self._go_on()

    def outcome(self) -> ProbeOutcome | ScoreOutcome:
        """What was seen; a probe leaves sums or the sizes of gradients where asked for."""
        task, origin, store = self._task, self._bench.origin, self._bench.store
        if isinstance(task, ScoreTask):
            found = []
            for sample, seen in zip(task.samples, self._seen, strict=True):
                means = seen.gradients if task.by == "gradient" else seen.losses
                known = self._measured.get(sample.key, ())  # of the middle of a task nothing is
                found.append(SampleOutcome(sample.key, seen.count, *means, *known))
            return ScoreOutcome(task.calls, origin, tuple(found))
        first, second = self._seen
        if task.part is not None:
            store.write(part_key(task.part), self.state()[0], {})
        elif task.moments:
            tables = self._bench.tables
            peaks = {f"peak.{at}": x for at, x in enumerate(first.peaks) if at not in tables}
            store.write(MOMENTS, peaks, {"typical": typical_peak(list(peaks.values()))})
        # Where no values were asked for, those that came with the gradients cost nothing.
        valued = second if second.count else first
        gradients, values = (first.count, *first.gradients), (valued.count, *valued.losses)
        parameters = sum(x.numel() for x in first.sums)
        model = len(self._bench.matrices), self._bench.held_out, self._bench.light
        return ProbeOutcome(task.calls, origin, *gradients, parameters, *values, *model)


def read_coordinates(store: Store, power: float, count: int) -> Coordinates | None:
    """Return what the probe saw of so many parameters, None where it does not matter."""
    if not power:
        return None
    saved = store.read(MOMENTS)
    peaks = [saved.tensors.get(f"peak.{at}") for at in range(count)]
    return Coordinates(power, peaks, float(saved.meta["typical"]))
