"""One segment of one run: an optimizer on its way, and what is kept of its losses and points.

Weighted averages of the iterates are candidates that cost no oracle call.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import average_key, iterate_key, state_key
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.tasks import Point, Segment, SegmentOutcome, TrainTask
from grasp_tune.engine import checkpoints
from grasp_tune.engine.checkpoints import Checkpoint, Tensors
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.oracle import gradient_norm
from grasp_tune.engine.sampling import Bench, read_coordinates
from grasp_tune.engine.step_rules import bare_step
from grasp_tune.engine.tensor_file import Meta
from grasp_tune.optimizers.registry import find_optimizer

WINDOW = 100  # minibatches, as in the paper's experiments
MARKS = 24  # points of the curve that one segment leaves for reports
LAG = 16  # losses that may be under way on a GPU: looking at each would make it wait


class Curve:
    """What a segment remembers of its losses: a few running means, never the whole list."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._late_from = segment.stop - max(1, segment.calls // 4)
        self._ceiling = math.inf if segment.ceiling is None else segment.ceiling
        self._every = -(-segment.calls // MARKS)
        self._window: list[tuple[float, float]] = []  # the last losses and norms
        self._late = (0.0, 0)  # sum of the late losses, how many
        self._since = (0.0, 0.0, 0)  # the mark before: sums of losses and of norms, how many
        self._points: list[tuple[int, float, float]] = []
        self.call, self.finite = segment.start, True

    def add(self, loss: float, norm: float = math.nan) -> None:
        self._window.append((loss, norm))
        del self._window[:-WINDOW]
        if self.call >= self._late_from:
            self._late = self._late[0] + loss, self._late[1] + 1
        self.call += 1
        self._since = self._since[0] + loss, self._since[1] + norm, self._since[2] + 1
        if self._since[2] == self._every or self.call == self._segment.stop:
            self._mark()
        self.finite = self.finite and math.isfinite(loss) and loss <= self._ceiling

    def _mark(self) -> None:
        loss, norm, count = self._since
        self._points.append((self.call, loss / count, norm / count))
        self._since = 0.0, 0.0, 0

    def state(self) -> dict[str, Any]:
        """Return all that `load` needs to go on, as numbers and lists."""
        return {name: copy(item) for name, item in vars(self).items() if name != "_segment"}

    def load(self, state: Mapping[str, Any]) -> None:
        vars(self).update({name: copy(item) for name, item in state.items()})

    def outcome(self) -> SegmentOutcome:
        if self._since[2]:
            self._mark()
        size = len(self._window) or math.nan
        loss, norm = (sum(item[at] for item in self._window) / size for at in (0, 1))
        late = self._late[0] / self._late[1] if self._late[1] else loss
        return SegmentOutcome(
            arm=self._segment.arm.index,
            calls=self.call - self._segment.start,
            finite=self.finite,
            loss=late if self.finite else math.nan,
            window_loss=loss,
            window_norm=norm,
            curve=tuple(Point(*point) for point in self._points),
        )


class Averages:
    r"""Running averages of a model's parameters and floating-point buffers.

    In the one with the exponent $\gamma$ the s-th of t iterates weighs about $(s/t)^\gamma$:
    $\bar x \leftarrow \bar x + \frac{1+\gamma}{t+\gamma}(x - \bar x)$. 0 is the plain mean, a
    larger one forgets the beginning sooner. They are kept in float32 or wider, since in half
    precision late iterates would be rounded away.
    """

    def __init__(self, model: nn.Module, gammas: Sequence[float]) -> None:
        if not all(0.0 <= gamma < math.inf for gamma in gammas):
            raise InputError(f"gammas are {gammas}, but must be finite numbers, at least 0")
        # Not detached: whoever moves a parameter to other memory moves it here too.
        everything: Tensors = {f"param.{name}": item for name, item in model.named_parameters()}
        everything |= {f"buffer.{name}": item for name, item in model.named_buffers()}
        # What never moves is not averaged, nor what is too narrow for sums (float8).
        frozen = {f"param.{name}" for name, x in model.named_parameters() if not x.requires_grad}
        self._live = {
            name: x
            for name, x in everything.items()
            if x.is_floating_point() and x.dtype.itemsize > 1 and name not in frozen
        }
        self._rest = {name: x for name, x in everything.items() if name not in self._live}
        self._means: dict[float, list[Tensor]] = {float(gamma): [] for gamma in gammas}
        self._steps = dict.fromkeys(self._means, 0)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it stands."""
        for gamma, means in self._means.items():
            self._steps[gamma] += 1
            live = self._live.values()
            now = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in live]
            if not means:
                means += [x.clone() for x in now]
            torch._foreach_lerp_(means, now, (1.0 + gamma) / (self._steps[gamma] + gamma))

    def candidate(self, gamma: float) -> Tensors:
        """Return the average as a model's tensors; whole numbers are those of the last iterate.

        So are numbers of buffers that have no average, such as the infinite ones of a mask.
        """
        means = self._means[gamma] or self._live.values()
        pairs = zip(self._live.items(), means, strict=True)
        found = {name: mean.detach().to(live.dtype) for (name, live), mean in pairs}
        for name, mean in found.items():
            if name.startswith("buffer.") and mean.isnan().any():
                found[name] = torch.where(mean.isnan(), self._live[name], mean)
        return found | {name: item.detach() for name, item in self._rest.items()}

    def save(self, tensors: Tensors, meta: Meta) -> None:
        """Add all that is needed to go on later."""
        for gamma, means in self._means.items():
            meta[f"average.{gamma:g}"] = self._steps[gamma]
            pairs = zip(self._live, means, strict=False)
            tensors |= {f"average.{gamma:g}.{name}": mean for name, mean in pairs}

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], key: str) -> None:
        """Go on from what `save` added; the tensors are then its own."""
        for gamma in self._means:
            if (name := f"average.{gamma:g}") not in meta:
                continue  # the run did not carry it so far: it begins here
            self._steps[gamma] = int(meta[name])
            live = self._live.items() if self._steps[gamma] else ()
            try:
                self._means[gamma] = [tensors[f"{name}.{n}"].to(x.device) for n, x in live]
            except KeyError:
                raise CheckpointError(f"checkpoint {key} lacks the average {gamma:g}") from None


class TrainingRun:
    """One run on its way through a segment: optimizer, averages and curve.

    model: whose parameters are moved; it stands where the run begins.
    params: those of the parameters that are trained.
    saved: the state that the run goes on from, None at x0; or a run that is in this very state.
    """

    def __init__(
        self,
        task: TrainTask,
        segment: Segment,
        bench: Bench,
        model: nn.Module,
        params: Sequence[Tensor],
        saved: "Checkpoint | TrainingRun | None",
    ) -> None:
        self.segment, self.model, self._task, self._bench = segment, model, task, bench
        self.write = bench.store.write  # of workers that share lanes, one alone writes
        self.base = find_optimizer(segment.arm.base, bench.bases)
        self.curve, self.call = Curve(segment), segment.start
        self.params = list(params)
        self._seen: list[tuple[Tensor | float, Tensor | float]] = []  # not yet in the curve
        self._lag = 1 if params[0].device.type == "cpu" else LAG
        self._waiting = sorted(set(segment.keep))
        self._sum, self.within = LaneSum(), 0  # of a step that is not complete: sum, calls
        self._entry = self.base.group_entry or ""
        self.optimizer: Optimizer
        self.averages: Averages
        self._full: list[float | None]  # each group's step before it is annealed
        if isinstance(saved, TrainingRun):
            self.optimizer, self.averages, self._full = saved.optimizer, saved.averages, saved._full
        else:
            coordinates = read_coordinates(bench.store, segment.arm.power, params)
            values = dict(segment.arm.values)
            self.optimizer = self.base.build(self.params, values, coordinates, bench.matrices)
            self._full = [group.get(self._entry) for group in self.optimizer.param_groups]
            self.averages = Averages(model, segment.averages)
            if saved is not None and "optimizer" in saved.meta:  # else a point: runs begin anew
                key, numbers = str(segment.state), str(saved.meta["optimizer"])
                checkpoints.load_optimizer(self.optimizer, saved.tensors, numbers, key)
                self.averages.load(saved.tensors, saved.meta, key)
        self._set_step(1.0)  # the saved one may have been annealed, or another run's
        bench.buffers.follow(segment.anneal[1] // segment.lanes if segment.anneal else None)

    @property
    def over(self) -> bool:
        """Whether the next step does not fit any more, or the run has diverged."""
        step = self.base.calls_per_step * self.segment.lanes
        return not self.curve.finite or self.call - self.within + step > self.segment.stop

    def goes_on_as(self, segment: Segment) -> bool:
        """Return whether a segment begins with the state in which this run has ended."""
        own = self.segment
        saved = state_key(own.arm.index, own.stop) if own.save else None
        return saved == segment.state and (own.arm, own.averages) == (segment.arm, segment.averages)

    def advance(self, gradients: Callable[[], list[Tensor]]) -> None:
        """Make all steps of the segment, for whoever can compute gradients when they are wanted.

        gradients: leaves the mean gradient of the step's lanes, from `call` on, in the parameters,
            and returns their losses.
        """

        def closure() -> Tensor:
            if self.call + self.segment.lanes > self.segment.stop:
                raise _OutOfCalls
            losses = gradients()
            norm = self._norm()
            for loss in losses:
                self._record(loss, norm)
            self._bench.rules.before(self.optimizer)
            return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

        step = bare_step(self.optimizer)
        while not self.over:
            self._keep_due()
            before = self.call
            if self.segment.shaped:
                self._set_step(self.segment.step_share(before))
            try:
                step(closure)
            except _OutOfCalls:
                break
            if self.call == before:
                kind = type(self.optimizer).__name__
                raise InputError(
                    f"base: {kind}.step never called the closure that it was given, so it cannot "
                    "be run; a step must call `closure()`, which computes the gradients"
                )
            self._bench.rules.after(self.optimizer)
            self.averages.update()

    def prepare(self) -> None:
        """Before a step: keep what is wanted here, and go to where its first gradient is wanted."""
        self._keep_due()
        if self.base.calls_per_step > 1:
            self.optimizer.begin()  # type: ignore[attr-defined]

    def feed(self, loss: Tensor | float) -> None:
        """Take the gradient that the parameters hold; make the step that it completes."""
        self._record(loss, self._norm())
        self.within += 1
        if (lanes := self.segment.lanes) > 1:
            self._sum.add([item.grad for item in self.params])
            if self.within % lanes:
                return
            for item, total in zip(self.params, self._sum.total(), strict=True):
                item.grad = None if total is None else total.div_(lanes)
            self._sum = LaneSum()
        if self.segment.shaped:
            self._set_step(self.segment.step_share(self.call - self.within))
        if self._bench.rules.step(self.optimizer, self.base, loss):
            self.within = 0
            self.averages.update()
            if not self.over:
                self.prepare()

    def _norm(self) -> Tensor | float:
        return gradient_norm(self.params) if self._task.norms else math.nan

    def _record(self, loss: Tensor | float, norm: Tensor | float) -> None:
        """Take in one oracle call; on a GPU, losses are looked at when some are there."""
        self.call += 1
        self._seen.append((loss, norm))
        if len(self._seen) >= self._lag:
            self.look()

    def look(self) -> None:
        for loss, norm in self._seen:
            self.curve.add(float(loss), float(norm))
        self._seen.clear()

    def finish(self) -> SegmentOutcome:
        """Write what the segment wants at its end; return how it went."""
        segment, index = self.segment, self.segment.arm.index
        self.look()
        self._keep_due(segment.stop)
        # The last step is never looked at by a loss, so its point is checked here.
        self.curve.finite = self.curve.finite and checkpoints.finite(self.model)
        for gamma in segment.averages if segment.keep_averages else ():
            key = str(average_key(index, segment.stop, gamma))
            self.write(key, self.averages.candidate(gamma), {})
        if segment.save:
            tensors, numbers = checkpoints.optimizer_tensors(self.optimizer)
            tensors.update(checkpoints.model_tensors(self.model))
            meta: Meta = {"optimizer": numbers}
            self.averages.save(tensors, meta)
            self.write(str(state_key(index, segment.stop)), tensors, meta)
        return self.curve.outcome()

    def _keep_due(self, call: int | None = None) -> None:
        while self._waiting and self._waiting[0] <= (self.call if call is None else call):
            key = iterate_key(self.segment.arm.index, self._waiting.pop(0))
            self.write(str(key), checkpoints.model_tensors(self.model), {})

    def _set_step(self, share: float) -> None:
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            if full is not None:
                group[self._entry] = full * share


class _OutOfCalls(Exception):
    """A closure asked for more oracle calls than the segment has."""
