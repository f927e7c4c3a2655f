"""Each ingredient's effect: the default schedule with one ingredient changed or taken away.

A variant is a set of names of the schedule's modules and the values put in their places for the
length of one run. The default itself is the contest's `grasp-promote`.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from grasp_tune.method.schedules.rungs import FINER, GRID, RUNGS, Rung

_HOME = "grasp_tune.method.schedules.promote"


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of the default schedule."""

    name: str  # of its results: `ablation-<name>`
    title: str
    values: Mapping[str, object] = field(default_factory=dict)  # "module:NAME" or "NAME" -> value
    base: str | None = None  # another base optimizer

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the values in place, and back afterwards.

        Raises `ValueError` for a name that the module does not have: a variant that changes
        nothing would be reported as an ingredient that does not matter.
        """
        with ExitStack() as stack:
            for key, value in self.values.items():
                module, _, name = key.rpartition(":")
                home = importlib.import_module(module or _HOME)
                if not hasattr(home, name):
                    raise ValueError(f"variant {self.name}: {home.__name__} has no {name}")
                stack.enter_context(patch.object(home, name, value))
            yield


DEFAULT = Variant("none", "the default")


def _constant_step(segment: object, call: int) -> float:
    return 1.0


def _no_outlook(sights: object, start: float) -> None:
    """Nothing is foreseen, so the step of the last rung's best run is kept."""


def _no_looks(rung: Rung) -> Rung:
    return replace(rung, looks=0.0)


def _thinner(rung: Rung) -> Rung:
    return replace(rung, share=rung.share / 2)


def _thicker(rung: Rung) -> Rung:
    # Twice the last one as well would be half of what is left, and the schedule leaves it out.
    return replace(rung, share=rung.share * 2) if rung != RUNGS[-1] else rung


def _rungs(change: Callable[[Rung], Rung]) -> dict[str, object]:
    return {"GRID": change(GRID), "FINER": change(FINER), "RUNGS": tuple(map(change, RUNGS))}


_ARMS, _FLOOR = "grasp_tune.method.schedules.arms", "grasp_tune.method.schedules.guarantee"
_STRETCH = "grasp_tune.method.schedules.stretch"
_ANNEALED = ("grasp_tune.training.fused:annealed", "grasp_tune.training.stretch:annealed")
_SHORT = (*RUNGS[:-1], replace(RUNGS[-1], share=0.05))
_ALL: tuple[Variant, ...] = (
    Variant("one-power", "all coordinates alike (power 0)", {f"{_ARMS}:POWERS": (0.0,)}),
    Variant("full-power", "only power 1", {f"{_ARMS}:POWERS": (1.0,)}),
    Variant("no-floor", "without the paper's sweep (no theorem)", {f"{_FLOOR}:SHARES": ()}),
    Variant("large-probe", "probe T/4", {"PROBE": 1 / 4}),
    Variant("small-probe", "probe T/256", {"PROBE": 1 / 256}),
    Variant("no-looks", "no fresh samples at the ends of rungs", _rungs(_no_looks)),
    Variant("thin-rungs", "half as much for each rung", _rungs(_thinner)),
    Variant("thick-rungs", "twice as much for each rung but the last", _rungs(_thicker)),
    Variant("short-last-rung", "the last rung with T/20", {"RUNGS": _SHORT}),
    Variant("no-outlook", "the step of the last rung's best is kept", {"outlook": _no_outlook}),
    Variant("constant-step", "no annealing", dict.fromkeys(_ANNEALED, _constant_step)),
    Variant("no-undo", "a jump of the loss is not undone", {f"{_STRETCH}:JUMP": float("inf")}),
    Variant("adagrad", "base: diagonal AdaGrad", base="adagrad"),
    Variant("momentum", "base: SGD with momentum", base="momentum"),
    Variant("unixgrad", "base: UniXGrad", base="unixgrad"),
)
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
