"""Each ingredient's effect: the default schedule with one option changed or taken away.

The default itself is the contest's `grasp-promote`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from grasp_tune.schedules.promote import Promote

_DEFAULT = Promote()


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of the default schedule."""

    name: str  # of its results: `ablation-<name>`
    title: str
    schedule: Promote = _DEFAULT
    base: str | None = None  # another base optimizer


DEFAULT = Variant("none", "the default")
_RUNG = _DEFAULT.comparison
_NO_SEEK = (("doublings", 0.0), ("more", 0.0))
_ALL: tuple[Variant, ...] = (
    Variant("power-0", "one kind: all coordinates alike", Promote(powers=(0.0,))),
    Variant("power-half", "one kind: power 1/2", Promote(powers=(0.5,))),
    Variant("no-handicap", "the kind of the lower loss goes on", Promote(clear_lead=1.0)),
    Variant("three-kinds", "powers 0, 1/2 and 1", Promote(powers=(0.0, 0.5, 1.0))),
    Variant("no-floor", "without the paper's sweep (no theorem)", Promote(paper_shares=())),
    Variant("large-probe", "probe T/4", Promote(probe_share=1 / 4)),
    Variant("small-probe", "probe T/256", Promote(probe_share=1 / 256)),
    Variant(
        "no-looks",
        "kinds ranked without fresh samples",
        Promote(comparison=replace(_RUNG, samples=0.0)),
    ),
    Variant(
        "thin-rung",
        "the kinds' rung with T/20",
        Promote(comparison=replace(_RUNG, share=0.05)),
    ),
    Variant("whole", "the whole measured distance as the step", Promote(whole_power=0.0)),
    Variant("half", "half of the usual part of it", Promote(whole_length=37.5)),
    Variant("constant-step", "no annealing", Promote(anneal=False)),
    Variant("no-undo", "a jump of the loss is not undone", Promote(jump=math.inf)),
    Variant("no-calm", "the step is never halved for noise", Promote(noisy=math.inf)),
    Variant("no-bold", "the step never grows", Promote(solved=0.0)),
    Variant("no-seek", "a tiny first distance", Promote(measuring_values=_NO_SEEK)),
    Variant(
        "seek-less",
        "a first distance after ten steps at most",
        Promote(measuring_values=(("more", 0.0),)),
    ),
    Variant("search", "base: Adam on the self-bounded grid, with rungs", base="adam"),
    Variant("adagrad", "base: diagonal AdaGrad", base="adagrad"),
    Variant("momentum", "base: SGD with momentum", base="momentum"),
    Variant("unixgrad", "base: UniXGrad", base="unixgrad"),
)
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
