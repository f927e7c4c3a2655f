"""Each ingredient's effect: the default schedule with one ingredient changed or taken away.

A variant is a set of names of the schedule's modules and the values put in their places for the
length of one run. The default itself is the contest's `grasp-promote`.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from grasp_tune.schedules.rungs import GROWTH

_HOME = "grasp_tune.schedules.promote"


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
        # All modules first: one that is imported while another is changed would keep the change.
        keys = [key.rpartition(":") for key in self.values]
        homes = [importlib.import_module(module or _HOME) for module, _, _ in keys]
        with ExitStack() as stack:
            for home, (_, _, name), value in zip(homes, keys, self.values.values(), strict=True):
                if not hasattr(home, name):
                    raise ValueError(f"variant {self.name}: {home.__name__} has no {name}")
                stack.enter_context(patch.object(home, name, value))
            yield


DEFAULT = Variant("none", "the default")


def _constant_step(segment: object, call: int) -> float:
    return 1.0


_FLOOR = "grasp_tune.schedules.paper_sweep"
_PACE, _GROWING = "grasp_tune.schedules.step_control", "grasp_tune.optimizers.distance_adam"
_ANNEALED = ("grasp_tune.engine.fused:annealed", "grasp_tune.engine.segment:annealed")
_ALL: tuple[Variant, ...] = (
    Variant("power-0", "one kind: all coordinates alike", {"KINDS": (0.0,), "SHORT": 1e9}),
    Variant("power-half", "one kind: power 1/2", {"KINDS": (0.5,), "SHORT": 1e9}),
    Variant("no-handicap", "the kind of the lower loss goes on", {"CLEARLY": 1.0}),
    Variant("three-kinds", "powers 0, 1/2 and 1", {"KINDS": (0.0, 0.5, 1.0)}),
    Variant("no-floor", "without the paper's sweep (no theorem)", {f"{_FLOOR}:SHARES": ()}),
    Variant("large-probe", "probe T/4", {"PROBE": 1 / 4}),
    Variant("small-probe", "probe T/256", {"PROBE": 1 / 256}),
    Variant("no-looks", "kinds ranked without fresh samples", {"GROWTH": replace(GROWTH, looks=0)}),
    Variant("thin-rung", "the kinds' rung with T/20", {"GROWTH": replace(GROWTH, share=0.05)}),
    Variant("whole", "the whole measured distance as the step", {"WHOLE_POWER": 0.0}),
    Variant("half", "half of the usual part of it", {"WHOLE_LENGTH": 37.5}),
    Variant("constant-step", "no annealing", dict.fromkeys(_ANNEALED, _constant_step)),
    Variant("no-undo", "a jump of the loss is not undone", {f"{_PACE}:JUMP": float("inf")}),
    Variant("no-calm", "the step is never halved for noise", {f"{_PACE}:NOISY": float("inf")}),
    Variant("no-bold", "the step never grows", {f"{_PACE}:SOLVED": 0.0}),
    Variant(
        "no-seek",
        "a tiny first distance",
        {f"{_GROWING}:DOUBLINGS": 0, f"{_GROWING}:MORE": 0},
    ),
    Variant("seek-less", "a first distance after ten steps at most", {f"{_GROWING}:MORE": 0}),
    Variant("search", "base: Adam on the self-bounded grid, with rungs", base="adam"),
    Variant("adagrad", "base: diagonal AdaGrad", base="adagrad"),
    Variant("momentum", "base: SGD with momentum", base="momentum"),
    Variant("unixgrad", "base: UniXGrad", base="unixgrad"),
)
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
