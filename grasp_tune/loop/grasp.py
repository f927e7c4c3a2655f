"""`Grasp`: the whole method in the user's own training loop, as an optimizer without lr.

Each `step` uses the loss and the gradient at the model's current point. It then moves the model to
the point where the search needs the next gradient: x0, a point of a run, or a candidate.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import mean
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import InputError, SearchError, expect, whole
from grasp_tune.core.methods import Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import Task
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.engine.step_rules import DEFAULTS
from grasp_tune.limits import Calls, calls_within, usual_optimizer
from grasp_tune.loop.loop_optimizer import LoopOptimizer, check_spec
from grasp_tune.loop.model_point import Groups, ModelPoint, ParkedStore, clones
from grasp_tune.runtime.driver import PROLONGED, SPARE
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import TemporaryStore

logger = logging.getLogger(__name__)

FORMAT = 5
PHASES = ("timing", "probe", "train", "score", "done")
# The least number of timed steps if the budget is in minutes; the first `WARM` ones warm up.
TIMED, WARM = 12, 4
TIMING = 0.02, 2.0  # share of the time limit used for timing, and its maximum in seconds
PARKED = 2**20  # most trained parameters of a model whose states are kept in memory
MARGIN = 0.97  # share of the time that is planned; the rest is for slower steps
UNTRAINED = (
    "no run of the search got further than the start point (losses that are NaN or infinite?): the "
    "model holds the weights that it had at the first step; the result's notes say more"
)
FINISHED = (
    "this state was saved after opt.finish() had ended its loop early, so there is nothing to "
    "go on with: load one that was saved before"
)


class Grasp(LoopOptimizer):
    """An optimizer without a learning rate: it finds the step size within a budget of steps.

        opt = gt.Grasp(model, budget=10_000)
        while not opt.done:
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step(loss)
                if opt.done:
                    break
        result = opt.finish()  # the model holds the chosen weights

    model: the model, its parameters, or parameter groups. A group may have a `multiplier` for its
        step size and its own `weight_decay`. Buffers (BatchNorm) are saved and restored only if
        the model itself is given.
    budget: T, the total number of steps of the loop; one step is one oracle call.
    method: `NonConvex()` by default; or `Convex`, `ConvexFree`.
    schedule: `promote` by default; `paper` is the paper's algorithm to the letter.
    seed: fixes the method's random choices; the loop decides the order of the data.
    epochs, loader: instead of `budget`, a number of passes over a loader that has a length.
    minutes: instead of `budget`, a time limit: the first steps are timed to find the budget.
    weight_decay: decoupled as in AdamW, for parameters with two or more dimensions: each step
        multiplies them by 1 - step size * weight_decay. A group's own value takes precedence.
    clip: the largest norm of a training step's gradient; larger gradients are scaled down.
    park: where candidates and waiting runs are kept, about eight copies of the parameters: on the
        model's `device`, on the `cpu`, or in temporary `files`. The default is the device up to a
        million parameters, and files above.
    """

    def __init__(
        self,
        model: Groups,
        budget: int | None = None,
        method: Method | None = None,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        *,
        epochs: int | None = None,
        loader: Any = None,
        minutes: float | None = None,
        weight_decay: float = 0.0,
        clip: float | None = None,
        park: Literal["auto", "device", "cpu", "files"] = "auto",
    ) -> None:
        kinds = ("auto", "device", "cpu", "files")
        expect(park in kinds, "park", repr(park), f"one of {', '.join(kinds)}")
        given = {"budget": budget, "epochs": epochs, "minutes": minutes}
        if len(named := [name for name, value in given.items() if value is not None]) != 1:
            got = " and ".join(named) or "none of them"
            raise InputError(f"give one of budget, epochs (with loader) or minutes; got {got}")
        if epochs is not None:
            try:
                budget = whole("epochs", epochs) * len(loader)
            except TypeError:  # a loader of an iterable data set has no length
                text = "epochs: give the loader too, one that has a length; or give budget="
                raise InputError(text) from None
        self._clock = None if minutes is None else _Clock(minutes)
        method = NonConvex() if method is None else method
        self._spec = partial(SweepSpec, method, schedule=schedule, seed=seed, probe_parts=1)
        self._allowed = Calls(budget or 1, named[0], epochs or 1)
        self._timing = budget is None  # until the first steps have been timed
        self._search = Search(self._spec(budget=1 if budget is None else budget))
        check_spec(self._search.spec)
        memory = ParkedStore("cpu" if park == "cpu" else None)
        point = ModelPoint(model, memory, weight_decay, clip)
        large = sum(item.numel() for item in point.trained) > PARKED
        if park == "files" or (park == "auto" and large):
            point.store = TemporaryStore()
        super().__init__(point)
        self._task: Task | None = None
        self._aside: Tensors | None = None  # the run's point while `best` shows another one
        self._loaded: Tensors | None = None  # the point at which a saved state put the model
        self._whole_epochs = epochs is not None

    def _take(self, loss: Tensor) -> None:
        if self._aside is not None:
            raise SearchError("a step inside `with opt.best()` is not at the run's point: leave it")
        over = self._clock is not None and self._agreed(torch.tensor(float(self._clock.over))) > 0
        if self._timing:  # none of these steps moves the model
            assert self._clock is not None
            timed = self._clock.tick(self._point) or over
            if self._agreed(torch.tensor(float(timed))) > 0:  # ranks agree although clocks differ
                fit = int(self._agreed(torch.tensor(self._clock.fit(), dtype=torch.float64)))
                self._allowed = Calls(fit, "minutes", self._clock.minutes)
                self._search, self._timing = Search(self._spec(budget=fit)), False
            return
        if self._run is None:  # the model is at x0
            self._point.store.write(START, self._point.tensors(), {})
            self._next_task()
        if self._loaded is not None and self._point.stands_at(self._loaded):
            self._point.mark()  # also if the model was loaded after its optimizer
        self._loaded = None
        if not self._feed(loss):
            self._next_task()
        if over and not self.done:
            self._place_choice()
        self._show_step()

    def _next_task(self) -> None:
        if self._run is not None and self._task is not None:
            with self._allowed.told():
                self._search.tell(self._task, self._run.outcome())
        for key in self._search.discardable():
            self._point.store.delete(key)
        if isinstance(task := self._search.ask(), Step) and self._prolong():
            task = self._search.ask()
        if isinstance(task, Step):
            self._place_choice()
            if self._search.leader == START:
                self._warn(UNTRAINED)
        else:
            self._task = task
            self._begin(task)

    def _prolong(self) -> bool:
        """Give a search that has spent its budget the calls that fit into the time left, if any."""
        if self._clock is None:
            return False
        more = self._agreed(torch.tensor(self._clock.more(self.calls), dtype=torch.float64))
        longer = self._search.prolonged(int(more))
        self._search = longer or self._search
        return longer is not None

    def _place_choice(self) -> None:
        """Load the chosen weights into the model and end the search."""
        self._point.place(self._search.leader)
        self._point.buffers.follow(None)
        self.done = True
        if self._whole_epochs:  # a search may end a few steps early
            self._spare = self._search.spec.budget - self.calls

    def finish(self) -> Result:
        """Return the result; the model then holds the chosen weights.

        Before the budget is spent these are the best so far, and the result is marked as partial.
        """
        if self._timing:
            raise SearchError("nothing has been run yet: the first steps only measure the time")
        if not self._point.store.exists(START):
            self._point.store.write(START, self._point.tensors(), {})
        if not self.done:
            text = "the loop ended after %d of %d steps: the model holds the best point so far"
            logger.warning(text, self.calls, self._search.spec.budget)
        self._place_choice()
        self._aside = None
        model = self._point.model
        return Result.of(self._search, self._tensors(), None if model is None else lambda: model)

    @contextlib.contextmanager
    def best(self) -> Iterator[None]:
        """Hold the best point so far in the model inside a `with` block, then restore the model."""
        if self._aside is not None:  # a block within a block
            yield
            return
        now = self._aside = clones(self._point.tensors())
        if self._point.store.exists(self._search.leader):
            self._point.place(self._search.leader)
        try:
            yield
        finally:
            if self._aside is not None:
                self._aside = None
                self._point.put(now)

    @property
    def budget(self) -> int | None:
        """T, in steps; None while the first steps of a budget in minutes are timed."""
        return None if self._timing else self._search.spec.budget

    @property
    def phase(self) -> str:
        """The phase: `probe`, `train`, `score` or `done`; `timing` while steps are timed."""
        if self.done or self._timing:
            return "done" if self.done else "timing"
        return "probe" if self._task is None else self._task.phase

    @property
    def best_loss(self) -> float:
        """The lowest mean loss of a finished part so far, NaN at first."""
        return self._search.progress.best

    def figures(self) -> dict[str, float]:
        """Return numbers for loggers: the phase (its index in `PHASES`), calls and best loss."""
        known = (PHASES.index(self.phase), self.calls, self.best_loss)
        names = ("grasp/phase", "grasp/calls", "grasp/best_loss")
        return dict(zip(names, map(float, known), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which training continues bit for bit."""
        packed = super().state_dict()
        for group, shown in zip(packed["param_groups"], self._shown, strict=True):
            group.update(shown)  # edits are ignored
        grasp: dict[str, Any] = {
            "format": FORMAT,
            "calls": self.calls,
            "done": self.done,
            "search": None if self._timing else self._search.state(),
            "task": "" if self._task is None else self._task.id,
            "clock": 0.0 if self._clock is None else self._clock.elapsed,
        }
        store = self._point.store
        if kept := {key: store.read(key) for key in store.keys()}:  # noqa: SIM118
            grasp["store"] = {key: [clones(x.tensors), x.meta] for key, x in kept.items()}
            grasp["point"] = clones(self._aside or self._point.tensors())
            grasp["buffers"] = [item.clone() for item in self._point.buffers.kept]
            if self._run is not None and not self.done:
                tensors, numbers = self._run.state()
                grasp["run"] = [clones(tensors), numbers]
        return {"state": {}, "param_groups": packed["param_groups"], "grasp": grasp}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`; the model is moved to its saved point."""
        grasp = state_dict.get("grasp")
        if not isinstance(grasp, Mapping) or grasp.get("format") != FORMAT:
            raise InputError("this is no state of a Grasp optimizer of this version")
        given = (state_dict["param_groups"], self._shown)
        saved, own = ([[group[name] for name in DEFAULTS] for group in groups] for groups in given)
        if saved != own:
            names = " and ".join(DEFAULTS)
            raise InputError(f"the saved groups have {names} of {saved}, and these of {own}")
        if grasp["search"] is None:
            return
        budget = int(grasp["search"]["spec"]["budget"])
        if self._clock is None and budget != (wanted := self._search.spec.budget):
            text = f"the saved loop has a budget of {budget} steps, and this one of {wanted}"
            raise InputError(text)
        spec = self._spec(budget=budget, extends=tuple(grasp["search"]["spec"]["extends"]))
        self._search, self._timing = Search.from_state(dict(grasp["search"]), spec), False
        self.calls, self.done = int(grasp["calls"]), bool(grasp["done"])
        self._run = self._task = self._aside = None
        if self._clock is not None:
            self._clock.go_on(grasp["clock"])
        self._point.buffers.follow(None)
        store = self._point.store
        for key in store.keys():  # noqa: SIM118
            store.delete(key)
        if self.done and self._search.choice is None:
            self._warn(FINISHED)
        if "store" not in grasp:
            return
        for key, (tensors, meta) in grasp["store"].items():
            store.write(key, tensors, meta)
        if not self.done:  # tasks are sequential, so the next one is the saved one
            if isinstance(task := self._search.ask(), Step) or task.id != grasp["task"]:
                raise InputError(f"the saved task {grasp['task']} does not fit the saved search")
            self._task = task
            self._begin(task)
            assert self._run is not None
            tensors, numbers = grasp["run"]
            self._run.load(clones(tensors), numbers)
            self._point.buffers.kept = [item.clone() for item in grasp["buffers"]]
        self._point.put(grasp["point"])
        self._loaded = grasp["point"]


class _Clock:
    """A time limit: how many steps fit into it, and whether the time is over."""

    def __init__(self, minutes: float) -> None:
        expect(0.0 < minutes < math.inf, "minutes", repr(minutes), "a number above 0")
        self.minutes, self._limit = minutes, 60.0 * minutes
        self._begun = time.monotonic()
        self._spent = 0.0  # seconds spent before this process
        self._ticks: list[float] = []
        self._steps: list[float] = []  # seconds of the optimizer's steps
        self._copies: list[Tensor] = []
        self._optimizer: Optimizer | None = None

    @property
    def elapsed(self) -> float:
        return self._spent + time.monotonic() - self._begun

    @property
    def over(self) -> bool:
        return self.elapsed >= self._limit

    def tick(self, point: ModelPoint) -> bool:
        """Record the time of a step; return whether enough steps have been timed."""
        if self._optimizer is None:  # an optimizer step on copies, because its time counts, too
            self._copies = [nn.Parameter(item.detach().clone()) for item in point.trained]
            self._optimizer = usual_optimizer(self._copies, point.matrices)
        point.check_gradients()
        for copy, item in zip(self._copies, point.trained, strict=True):
            copy.grad = item.grad
        before = time.monotonic()
        self._optimizer.step()
        now = time.monotonic()
        self._steps.append(now - before)
        self._ticks.append(now)
        enough = min(TIMING[0] * self._limit, TIMING[1])
        return len(self._ticks) >= TIMED and now - self._ticks[WARM - 1] >= enough

    def fit(self) -> int:
        """Return how many more steps fit, and end the timing."""
        self._copies, self._optimizer = [], None
        if (timed := len(self._ticks) - WARM) <= 0:
            return 1
        each, step = (self._ticks[-1] - self._ticks[WARM - 1]) / timed, mean(self._steps[WARM:])
        return calls_within(MARGIN * (self._limit - self.elapsed), each - step, step)

    def more(self, calls: int) -> int:
        """Return how many steps fit into the time left after so many; 0 if it is nearly over."""
        left = self._limit - self.elapsed
        return 0 if left <= SPARE * self._limit else int(PROLONGED * left * calls / self.elapsed)

    def go_on(self, spent: float) -> None:
        self._spent, self._begun = float(spent), time.monotonic()
