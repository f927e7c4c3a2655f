"""Each ingredient's effect: the default schedule with one ingredient changed or taken away.

A variant is a set of names of the schedule's modules and the values put in their places for the
length of one run. The default itself is the contest's `grasp-promote`.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

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


_ARMS, _FLOOR = "grasp_tune.method.schedules.arms", "grasp_tune.method.schedules.guarantee"
_ANNEALED = ("grasp_tune.training.fused:annealed", "grasp_tune.training.stretch:annealed")
_ALL: tuple[Variant, ...] = (
    Variant("one-power", "all coordinates alike (power 0)", {f"{_ARMS}:POWERS": (0.0,)}),
    Variant("full-power", "only power 1", {f"{_ARMS}:POWERS": (1.0,)}),
    Variant("fine-grid", "distances a factor of 2 apart", {f"{_ARMS}:SPACING": 2.0}),
    Variant("no-floor", "without the paper's sweep (no theorem)", {f"{_FLOOR}:SHARE": 0.0}),
    Variant("large-probe", "probe T/4", {"PROBE": 1 / 4}),
    Variant("small-probe", "probe T/256", {"PROBE": 1 / 256}),
    Variant("one-rung", "one rung, then the winner", {"KEEP": (1,)}),
    Variant("thin-rungs", "half as much for each rung", {"RUNG": 0.03}),
    Variant("thick-rungs", "twice as much for each rung", {"RUNG": 0.12}),
    Variant("constant-step", "no annealing", dict.fromkeys(_ANNEALED, _constant_step)),
    Variant("no-undo", "a jump of the loss is not undone", {"JUMP": float("inf")}),
    Variant("adagrad", "base: diagonal AdaGrad", base="adagrad"),
    Variant("momentum", "base: SGD with momentum", base="momentum"),
    Variant("unixgrad", "base: UniXGrad", base="unixgrad"),
)
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
