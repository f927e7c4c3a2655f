"""How long a sweep may be, in the units that people think in: calls, steps, epochs, minutes.

It becomes a number of oracle calls, once; what the clock decided is kept in the sweep's folder.
"""

import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.errors import BudgetTooSmall, InputError, expect, whole
from grasp_tune.engine.fused import task_threads
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.streams import untouched_randomness
from grasp_tune.optimizers.muon import hidden_matrices
from grasp_tune.optimizers.registry import described
from grasp_tune.runtime.files import read_sealed
from grasp_tune.runtime.sweep_folder import STATE
from grasp_tune.schedules.promote import Promote

logger = logging.getLogger(__name__)

_SHARE = 0.75  # of the minutes that the planned calls take; what is left gets more calls
_WARM, _TIMED = 2, 3  # calls that set things up, and the fewest that are timed
_TIMING = 0.01, 2.0  # share of the minutes that timing takes, and its most in seconds


def usual_optimizer(params: Sequence[Tensor], matrices: Collection[int]) -> Optimizer:
    """Return the default's optimizer, to be timed: its step may take longer than a gradient."""
    base = described(Promote().matrix_base if matrices else Promote().default_base)
    return base.build(params, {base.value: 1.0}, None, matrices)


def calls_within(seconds: float, gradient: float, step: float) -> int:
    """Return how many oracle calls fit, with the lanes of the default at so many calls.

    gradient, step: seconds of a minibatch's gradient, and of an optimizer's step.
    """
    calls = lanes = 0
    while lanes != (wanted := Promote().lanes(calls)):
        lanes = wanted
        calls = max(1, int(seconds / max(1e-6, gradient + step / lanes)))
    return calls


def call_times(
    problem: TorchProblem, seed: int, enough: float = _TIMING[1], exact: bool = False
) -> tuple[float, float]:
    """Return the seconds of a minibatch's gradient and of an optimizer's step.

    enough: for how many seconds to time them.
    """
    oracle = Oracle(problem, seed)
    params = oracle.parameters
    optimizer = usual_optimizer(params, hidden_matrices(oracle.model, params))
    stepping, call = 0.0, 0
    with untouched_randomness(), task_threads(oracle.model):
        begun = time.perf_counter()
        while call < _WARM + _TIMED or time.perf_counter() - begun < enough:
            if call == _WARM:
                begun, stepping = time.perf_counter(), 0.0
            if exact:
                oracle.exact(gradient=True)
            else:
                oracle.gradient("probe", call)
                before = time.perf_counter()
                optimizer.step()
                stepping += time.perf_counter() - before
            call += 1
        step = stepping / (call - _WARM)
        return (time.perf_counter() - begun) / (call - _WARM) - step, step


class Calls(int):
    """Oracle calls, with the limit that they were made from."""

    unit: str  # budget, steps, epochs or minutes; a sweep gets more calls while it has minutes
    given: float

    def __new__(cls, calls: int, unit: str = "budget", given: float = 0.0) -> "Calls":
        made = super().__new__(cls, calls)
        made.unit, made.given = unit, given
        return made

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say of a budget that is too small which one works in the unit that was given, too."""
        try:
            yield
        except BudgetTooSmall as error:
            if self.unit == "budget":
                raise
            enough = error.smallest / self * self.given
            digit = 10.0 ** (math.floor(math.log10(enough)) - 1)
            words = f"{error} calls: {self.unit} {math.ceil(enough / digit) * digit:g}"
            raise BudgetTooSmall(words, error.smallest) from None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a person allows; the smallest of those given counts. None: not given."""

    budget: int | None = None  # oracle calls
    steps: int | None = None  # of one plain training, each of which is a call
    epochs: float | None = None  # passes over the training rows
    minutes: float | None = None  # of the clock, for training and choosing

    def __post_init__(self) -> None:
        given = {name: got for name in self.__slots__ if (got := getattr(self, name)) is not None}
        expect(bool(given), "budget", "nothing", "budget, steps, epochs or minutes")
        for name, got in given.items():
            if name in ("budget", "steps"):
                whole(name, got)
            else:
                good = isinstance(got, int | float) and not isinstance(got, bool)
                expect(good and 0 < got < math.inf, name, repr(got), "a number > 0")

    def calls(
        self, problem: TorchProblem, seed: int, folder: Path | None = None, *, exact: bool = False
    ) -> Calls:
        """Return the oracle calls that are allowed; minutes alone are those that timing finds.

        folder: of the sweep; a decision that it holds is taken. exact: one call sees all rows.
        """
        known: dict[str, Any] = {}
        if self.minutes is not None and folder is not None and (folder / STATE).is_file():
            known = read_sealed(folder / STATE)["spec"]
        given = {"budget": self.budget, "steps": self.steps}
        found = {name: calls for name, calls in given.items() if calls is not None}
        if self.epochs is not None:
            data: Any = problem.data
            try:  # a loader that is read as it is knows how many batches it gives
                batches = math.ceil((problem.rows or 0) / problem.batch_size) or len(data)
            except TypeError:
                got = f"{self.epochs:g} for data without a length"
                raise InputError(f"epochs: got {got}, expected budget or steps") from None
            batches = 1 if exact else batches
            found["epochs"] = max(1, round(self.epochs * batches))
        unit = min(found, key=lambda name: found[name], default="minutes")
        if unit == "minutes" or found[unit] in known.get("extends", ()):  # calls were added since
            calls = known.get("budget") or self.calls_by_time(problem, seed, exact)
            logger.info("%.3g minutes are %d oracle calls", self.minutes, calls)
            return Calls(calls, "minutes", self.minutes or 0.0)
        calls = found[unit]  # decided before, or NumPy's, which is no JSON
        return calls if isinstance(calls, Calls) else Calls(calls, unit, getattr(self, unit))

    def calls_by_time(self, problem: TorchProblem, seed: int, exact: bool = False) -> int:
        """Return the oracle calls that fit into the minutes, by timing a few that do not count."""
        allowed = 60 * (self.minutes or 0.0)
        enough = min(_TIMING[0] * allowed, _TIMING[1])
        return calls_within(_SHARE * allowed, *call_times(problem, seed, enough, exact))
