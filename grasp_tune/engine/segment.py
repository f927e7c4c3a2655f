"""One segment of one run: an optimizer on its way, and what is kept of its losses and points."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import START, average_key, iterate_key, state_key
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.tasks import Point, Segment, SegmentOutcome, TrainOutcome, TrainTask
from grasp_tune.engine import checkpoints
from grasp_tune.engine.checkpoints import Named, Tensors
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.oracle import gradient_norm
from grasp_tune.engine.sampling import Bench, State, read_coordinates
from grasp_tune.engine.tensor_file import Meta
from grasp_tune.optimizers.registry import find_optimizer

WINDOW = 100  # minibatches, as in the paper's experiments
MARKS = 24  # points of the curve that one segment leaves for reports
# A unit is silent where its mean gradient is below this share of its layer's: for 66 steps or more.
SILENT = 1e-3
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
        vars(self).update(deepcopy(dict(state)))

    def outcome(self) -> SegmentOutcome:
        if self._since[2]:
            self._mark()
        size = len(self._window) or math.nan
        loss, norm = (sum(item[at] for item in self._window) / size for at in (0, 1))
        late = self._late[0] / self._late[1] if self._late[1] else loss
        late, calls = late if self.finite else math.nan, self.call - self._segment.start
        points, arm = tuple(Point(*point) for point in self._points), self._segment.arm.index
        return SegmentOutcome(arm, calls, self.finite, late, loss, norm, points)


class Averages:
    r"""Running averages of a model's parameters and floating-point buffers.

    In the one with the exponent $\gamma$ the s-th of t iterates weighs about $(s/t)^\gamma$:
    $\bar x \leftarrow \bar x + \frac{1+\gamma}{t+\gamma}(x - \bar x)$. 0 is the plain mean, a
    larger one forgets the beginning sooner. They are kept in float32 or wider, since in half
    precision late iterates would be rounded away.
    """

    def __init__(self, model: Named, gammas: Sequence[float]) -> None:
        if not all(0.0 <= gamma < math.inf for gamma in gammas):
            raise InputError(f"gammas are {gammas}, but must be finite numbers, at least 0")
        # Not detached: whoever moves a parameter to other memory moves it here too.
        self._live, self._rest = Tensors(), Tensors()
        for name, item in checkpoints.live_tensors(model).items():
            # What never moves is not averaged, nor what is too narrow for sums (float8).
            moves = item.requires_grad or name.startswith("buffer.")
            summed = moves and item.is_floating_point() and item.dtype.itemsize > 1
            (self._live if summed else self._rest)[name] = item
        self._wide = [(x, torch.promote_types(x.dtype, torch.float32)) for x in self._live.values()]
        self._means: dict[float, list[Tensor]] = {float(gamma): [] for gamma in gammas}
        self._steps = dict.fromkeys(self._means, 0)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it stands."""
        for gamma, means in self._means.items():
            self._steps[gamma] += 1
            now = [x if x.dtype is kind else x.to(kind) for x, kind in self._wide]
            if not means:
                means += [x.clone() for x in now]
            torch._foreach_lerp_(means, now, (1.0 + gamma) / (self._steps[gamma] + gamma))

    def candidate(self, gamma: float) -> Tensors:
        """Return the average as a model's tensors.

        What has none is the last iterate's: whole numbers, and the infinities of a mask.
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
    """One run on its way through a segment of a task: optimizer, averages and curve."""

    def __init__(self, bench: Bench, task: TrainTask, segment: Segment) -> None:
        self.segment, self._task, self._bench, self._params = segment, task, bench, bench.trained
        self.write = bench.store.write  # of workers that share lanes, one alone writes
        self.base = find_optimizer(segment.arm.base, bench.bases)
        bench.rules.check(self.base)
        self.curve = Curve(segment)
        self._seen: list[tuple[Tensor | float, Tensor | float]] = []  # not yet in the curve
        self._lag = 1 if self._params[0].device.type == "cpu" else LAG
        self._waiting = sorted(set(segment.keep))
        self._sum, self._within = LaneSum(), 0  # of a step that is not complete: sum, calls
        saved = bench.place(key := segment.state or START)
        coordinates = read_coordinates(bench.store, segment.arm.power, len(self._params))
        values = dict(segment.arm.values)
        self.optimizer: Optimizer = self.base.build(
            self._params, values, coordinates, bench.matrices
        )
        self._entry = self.base.group_entry or ""
        groups = self.optimizer.param_groups
        self._full: list[float | None] = [
            group.get(self._entry) for group in groups
        ]  # not annealed
        self._averages = Averages(bench.named, segment.averages)
        if saved is not None and "optimizer" in saved.meta:  # else a point: runs begin anew
            self._go_on(saved.tensors, saved.meta, key)
        self._loudest = [item.max() for item in self._unit_sizes()]
        self._set_step(1.0)  # the saved one may have been annealed, or another run's
        end = segment.anneal[1] if segment.anneal else segment.stop
        bench.buffers.follow(end // segment.lanes)

    def _kept(self) -> tuple[Tensors, Meta]:
        """Return the optimizer and the averages, as `_go_on` takes them."""
        tensors, numbers = checkpoints.optimizer_tensors(self.optimizer)
        meta: Meta = {"optimizer": numbers}
        self._averages.save(tensors, meta)
        return tensors, meta

    def _go_on(self, tensors: Tensors, meta: Meta, key: str) -> None:
        checkpoints.load_optimizer(self.optimizer, tensors, str(meta["optimizer"]))
        self._averages.load(tensors, meta, key)

    @property
    def call(self) -> int:
        """The oracle call that comes next."""
        return self.curve.call + len(self._seen)

    @property
    def over(self) -> bool:
        """Whether the next step does not fit any more, or the run has diverged."""
        step = self.base.calls_per_step * self.segment.lanes
        return not self.curve.finite or self.call - self._within + step > self.segment.stop

    def advance(self, gradients: Callable[[], list[Tensor]]) -> None:
        """Make all steps of the segment, for whoever can compute gradients when they are wanted.

        gradients: leaves the mean gradient of the step's lanes, from `call` on, in the parameters,
            and returns their losses.
        """

        def evaluate() -> Iterator[Tensor]:
            while self.call + self.segment.lanes <= self.segment.stop:
                losses = gradients()
                norm = self._norm()
                for loss in losses:
                    self._record(loss, norm)
                self._bench.rules.before(self.optimizer)
                yield losses[0] if len(losses) == 1 else torch.stack(losses).mean()

        evaluations = evaluate()
        self.prepare()
        while self._within or not self.over:
            seen = chain([next(evaluations)], evaluations)
            self._within += self.segment.lanes
            try:
                self._step(seen.__next__)
            except StopIteration:  # an optimizer asked for more gradients than there are
                break

    def prepare(self) -> None:
        """Before a step: keep what is wanted here, and go to where its first gradient is wanted."""
        if not self.over:
            self._keep_due()
            if self.base.calls_per_step > 1:
                self.optimizer.begin()  # type: ignore[attr-defined]

    def feed(self, loss: Tensor | float) -> bool:
        """Take the gradient in the parameters; make the step that it completes. True: go on."""
        self._record(loss, self._norm())
        self._within += 1
        if (lanes := self.segment.lanes) > 1:
            self._sum.add([item.grad for item in self._params])
            if self._within % lanes:
                return not self.over
            for item, total in zip(self._params, self._sum.total(), strict=True):
                item.grad = None if total is None else total.div_(lanes)
            self._sum = LaneSum()
        self._bench.rules.before(self.optimizer)
        self._step(lambda: loss)
        return not self.over

    def _step(self, closure: Callable[[], Tensor | float]) -> None:
        """Use the gradients in the parameters, whose loss is the first that `closure` gives."""
        if self.segment.shaped:
            self._set_step(self.segment.step_share(self.call - self._within))
        if self._bench.rules.step(self.optimizer, self.base, closure):
            self._within = 0
            self._averages.update()
            self.prepare()

    def _norm(self) -> Tensor | float:
        return gradient_norm(self._params) if self._task.norms else math.nan

    def _record(self, loss: Tensor | float, norm: Tensor | float) -> None:
        """Take in one oracle call; on a GPU, losses are looked at when some are there."""
        self._seen.append((loss, norm))
        if len(self._seen) >= self._lag:
            self._look()

    def _look(self) -> None:
        for loss, norm in self._seen:
            self.curve.add(float(loss), float(norm))
        self._seen.clear()

    def finish(self) -> SegmentOutcome:
        """Write what the segment wants at its end; return how it went."""
        segment, index = self.segment, self.segment.arm.index
        self._look()
        self._keep_due(segment.stop)
        # The last step is never looked at by a loss, so its point is checked here.
        self.curve.finite = self.curve.finite and checkpoints.finite(self._bench.named)
        for gamma in segment.averages if segment.keep_averages else ():
            key = average_key(index, segment.stop, gamma)
            self.write(key, self._averages.candidate(gamma), {})
        if segment.save:
            tensors, meta = self._kept()
            tensors |= checkpoints.model_tensors(self._bench.named)
            self.write(state_key(index, segment.stop), tensors, meta)
        return replace(self.curve.outcome(), silent=self._silent())

    def _unit_sizes(self) -> list[Tensor]:
        sizes = getattr(self.optimizer, "unit_sizes", None)
        return [] if sizes is None else sizes()

    def _silent(self) -> float:
        """Return the largest share of a layer's units that were loud in it and are silent now."""
        sizes = zip(self._unit_sizes(), self._loudest, strict=True)
        quiet = [item <= SILENT * torch.maximum(item.max(), loudest) for item, loudest in sizes]
        return max((float(item.float().mean()) for item in quiet), default=0.0)

    def outcome(self) -> TrainOutcome:
        """Return how the run went, of a task that has no other."""
        found = self.finish()
        return TrainOutcome(found.calls, self._bench.origin, (found,))

    def state(self) -> State:
        """The optimizer, the averages, the curve, and the lanes of a step that is half made."""
        self._look()
        tensors, kept = self._kept()
        for at, (_, _, grads) in enumerate(self._sum.parts):
            pairs = enumerate(grads)
            tensors |= {f"sum.{at}.{i}": item for i, item in pairs if item is not None}
        return tensors, {
            "kept": kept,
            "curve": self.curve.state(),
            "waiting": list(self._waiting),
            "within": self._within,
            "lanes": [lanes for _, lanes, _ in self._sum.parts],
        }

    def load(self, tensors: Tensors, numbers: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; the tensors are then its own."""
        self._go_on(tensors, numbers["kept"], "the saved loop")
        self.curve.load(numbers["curve"])
        self._waiting, self._within = list(numbers["waiting"]), int(numbers["within"])
        for at, lanes in enumerate(numbers["lanes"]):
            total = [tensors.get(f"sum.{at}.{i}") for i in range(len(self._params))]
            self._sum.add_subtree(lanes, total)

    def _keep_due(self, call: int | None = None) -> None:
        while self._waiting and self._waiting[0] <= (self.call if call is None else call):
            key = iterate_key(self.segment.arm.index, self._waiting.pop(0))
            self.write(key, checkpoints.model_tensors(self._bench.named), {})

    def _set_step(self, share: float) -> None:
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            if full is not None:
                group[self._entry] = full * share
