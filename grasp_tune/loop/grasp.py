"""`Grasp`: the whole method inside a training loop of the user's own, as an optimizer without lr.

The loop is the worker: every `step` hands over one loss and one gradient at the point where the
model stands. Between steps the optimizer puts the model wherever the search wants the next one:
at x0 for the probe, along a run, at a candidate for fresh samples.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.tensor_file import Meta
from grasp_tune.loop.loop_optimizer import LoopOptimizer, check_spec
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_runs import Bench, begin
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import MemoryStore

FORMAT = 1
TIMED = 12  # steps that are timed where the budget is given in minutes; the first ones warm up
WARM = 4
MARGIN = 0.97  # of the time that is planned for; the rest is for steps that take longer


class Grasp(LoopOptimizer):
    """An optimizer that chooses its own step sizes within a budget of steps.

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

    model: the model, its parameters, or parameter groups, which may have a `multiplier` (their
        steps are so many times as large as the others') and a decoupled `weight_decay`. Buffers
        (BatchNorm) follow the method only where the model itself is given.
    budget: T, how many steps the loop will make; one step is one oracle call.
    method: `NonConvex()` by default; `Convex` or `ConvexFree`.
    schedule: `promote` by default; `paper` is the paper's algorithm to the letter.
    seed: fixes the method's own random choices; the order of the data is the loop's.
    epochs, loader: in place of `budget`: passes over a loader that has a length.
    minutes: in place of `budget`: the first steps are timed, and the rest fills this time.
    park: where candidates and waiting runs are kept: `device`, with the model, or `cpu`.
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
        park: Literal["device", "cpu"] = "device",
    ) -> None:
        super().__init__(model)
        self._clock = _Clock(minutes) if minutes is not None else None
        budget = _budget(budget, epochs, loader, minutes)
        self._make_spec: Callable[[int], SweepSpec] = lambda calls: SweepSpec(
            NonConvex() if method is None else method, calls, schedule, seed, probe_parts=1
        )
        check_spec(self._make_spec(1 if budget is None else budget))
        if park not in ("device", "cpu"):
            raise InputError(f"park: got {park!r}, expected 'device' or 'cpu'")
        self._new_store = MemoryStore if park == "device" else CpuStore
        self._bench = Bench(self._point, self._new_store())
        self._ledger: Ledger | None = None
        self._task_id = ""
        self._choice_placed = False
        if budget is not None:
            self._start_search(budget)

    # -- the loop ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the budget is spent; the model then holds the chosen weights."""
        return self._choice_placed

    def _take(self, loss: Tensor) -> None:
        if self._clock is not None and self._ledger is None:
            self._time()
            return
        if self._run is None:
            self._begin()
        self._feed(loss)
        assert self._run is not None
        if self._run.done:
            self._next_task()
        if self._clock is not None and self._clock.over and not self.done:
            self._place_choice()
        self._show_step()

    def _begin(self) -> None:
        """At the first step: x0 is where the model is now."""
        self._bench.store.write(START, self._point.tensors(), {})
        kept = [None if p.grad is None else p.grad.clone() for p in self._point.trained]
        self._next_task()
        for parameter, gradient in zip(self._point.trained, kept, strict=True):
            parameter.grad = gradient

    def _next_task(self) -> None:
        ledger = self._open_ledger()
        if self._run is not None:
            ledger.ended(self._task_id, self._run.outcome())
        for key in ledger.search.discardable():
            self._bench.store.delete(key)
        step = ledger.next()
        if isinstance(step, Step):
            self._place_choice()
            return
        self._task_id, self._run = step.id, begin(step, self._bench)
        self._point.mark()

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise SearchError("nothing has been run yet: make at least one step")
        return self._ledger

    def _start_search(self, budget: int) -> None:
        self._ledger = Ledger(Search(self._make_spec(budget)))

    def _place_choice(self) -> None:
        """Leave the chosen weights in the model, for good."""
        self._bench.place(self._open_ledger().search.leader)
        self._choice_placed = True

    def finish(self) -> Result:
        """Put the chosen weights into the model and return the result.

        Before the budget is spent: the best so far, and a result that is marked partial.
        """
        search = self._open_ledger().search
        if self._run is None:
            self._bench.store.write(START, self._point.tensors(), {})
        self._place_choice()
        model = self._point.model
        tensors = self._point.tensors() if model is None else model_tensors(model)
        return Result.of(search, tensors, None if model is None else lambda: model)

    @contextlib.contextmanager
    def best(self) -> Iterator[None]:
        """Inside the block the model holds the best point so far; after it, what it held before."""
        search = self._open_ledger().search
        key = search.leader
        now = {name: item.clone() for name, item in self._point.tensors().items()}
        if self._bench.store.exists(key):
            self._bench.place(key)
        try:
            yield
        finally:
            self._point.place(now)

    # -- what a person or a logger wants to know ---------------------------------------------------

    @property
    def budget(self) -> int | None:
        """T; None while the first steps of a budget in minutes are timed."""
        return None if self._ledger is None else self._ledger.search.spec.budget

    @property
    def phase(self) -> str:
        """`probe`, `train`, `score` or `done`; `timing` before a budget in minutes is known."""
        if self.done:
            return "done"
        if self._ledger is None:
            return "timing"
        task = self._ledger.search.tasks.get(self._task_id)
        return "probe" if task is None else task.phase

    @property
    def best_loss(self) -> float:
        """The best mean loss of a finished part so far; NaN before any."""
        return math.nan if self._ledger is None else self._ledger.search.progress.best

    # -- saving and going on -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit: tensors and plain values."""
        packed = super().state_dict()
        grasp: dict[str, Any] = {
            "format": FORMAT,
            "calls": self._calls,
            "done": self.done,
            "search": None if self._ledger is None else self._ledger.search.state(),
            "task": self._task_id,
            "clock": None if self._clock is None else self._clock.state(),
        }
        if self._run is not None:
            store = self._bench.store
            kept = {key: store.read(key) for key in store.keys()}  # noqa: SIM118
            grasp["store"] = {
                key: {"tensors": item.tensors, "meta": item.meta} for key, item in kept.items()
            }
            grasp["point"] = {k: v.clone() for k, v in self._point.tensors().items()}
            grasp["buffers"] = [item.clone() for item in self._point.kept_buffers]
            if not self._run.done:
                tensors, numbers = self._run.state()
                copies = {name: item.detach().clone() for name, item in tensors.items()}
                grasp["run"] = {"tensors": copies, "numbers": numbers}
        return {"state": {}, "param_groups": packed["param_groups"], "grasp": grasp}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the model is put where it was."""
        grasp = state_dict.get("grasp")
        if not isinstance(grasp, Mapping) or grasp.get("format") != FORMAT:
            raise InputError("this is no state of a Grasp optimizer")
        if grasp["search"] is None:
            return
        budget = int(grasp["search"]["spec"]["budget"])
        search = Search.from_state(dict(grasp["search"]), self._make_spec(budget))
        self._ledger, self._calls = Ledger(search), int(grasp["calls"])
        if self._clock is not None and grasp["clock"] is not None:
            self._clock.load(grasp["clock"])
        self._choice_placed = bool(grasp["done"])
        if "store" not in grasp:
            return
        store = self._new_store()
        for key, kept in grasp["store"].items():
            store.write(key, kept["tensors"], kept["meta"])
        self._bench.store = store
        if self._choice_placed:
            self._point.place(grasp["point"])
            return
        # The search issues its tasks again; the one that was under way is gone on with.
        while True:
            task = self._ledger.next()
            if isinstance(task, Step):
                raise InputError(f"the saved task {grasp['task']} does not fit the saved search")
            if task.id == grasp["task"]:
                break
        self._task_id, self._run = task.id, begin(task, self._bench)
        for other in [key for key in self._ledger.running if key != task.id]:
            self._ledger.give_back(other)
        self._run.load(grasp["run"]["tensors"], grasp["run"]["numbers"])
        self._point.kept_buffers = [item.clone() for item in grasp["buffers"]]
        self._point.place(grasp["point"])

    # -- inside ------------------------------------------------------------------------------------

    def _time(self) -> None:
        """Time the first steps of a budget in minutes; none of them moves the model."""
        assert self._clock is not None
        calls = self._clock.tick()
        if calls is not None:
            self._start_search(calls)


class CpuStore(MemoryStore):
    """A store in the main memory, for a model that is elsewhere."""

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy on the CPU."""
        super().write(key, {name: item.cpu() for name, item in tensors.items()}, meta)


class _Clock:
    """A budget in minutes: how many steps fit, and whether the time is over."""

    def __init__(self, minutes: float) -> None:
        if not 0.0 < minutes < math.inf:
            raise InputError(f"minutes: got {minutes!r}, expected a number above 0")
        self._limit = 60.0 * minutes
        self._begun: float | None = None
        self._spent = 0.0  # before this process
        self._ticks: list[float] = []

    @property
    def _elapsed(self) -> float:
        return self._spent + (0.0 if self._begun is None else time.monotonic() - self._begun)

    @property
    def over(self) -> bool:
        """Whether the time is spent."""
        return self._elapsed >= self._limit

    def tick(self) -> int | None:
        """Note a step; return how many more fit once that is known."""
        now = time.monotonic()
        self._begun = self._begun or now
        self._ticks.append(now)
        if len(self._ticks) < TIMED and not self.over:
            return None
        gaps = [b - a for a, b in zip(self._ticks[WARM - 1 :], self._ticks[WARM:], strict=False)]
        each = max(median(gaps or [self._elapsed]), 1e-6)
        return max(1, int(MARGIN * (self._limit - self._elapsed) / each))

    def state(self) -> float:
        """Seconds spent."""
        return self._elapsed

    def load(self, spent: float) -> None:
        """Go on with so many seconds spent."""
        self._spent, self._begun = float(spent), time.monotonic()


def _budget(
    budget: int | None, epochs: int | None, loader: Any, minutes: float | None
) -> int | None:
    """Return T in steps; None where it follows from `minutes`."""
    given = [
        name
        for name, value in (("budget", budget), ("epochs", epochs), ("minutes", minutes))
        if value is not None
    ]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"give one of budget, epochs (with loader) or minutes; got {got}")
    if epochs is None:
        return budget
    if loader is None or not hasattr(loader, "__len__"):
        raise InputError("epochs: give the loader too, one that has a length; or give budget=")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise InputError(f"epochs: got {epochs!r}, expected a whole number >= 1")
    return epochs * len(loader)
