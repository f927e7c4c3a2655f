"""The ablation: the default schedule with one option changed or turned off at a time.

The default itself is `grasp-promote` in the contest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grasp_tune.schedules.promote import Promote

_DEFAULT = Promote()


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of the default schedule."""

    name: str  # its results are called `ablation-<name>`
    title: str  # in the table
    schedule: Promote = _DEFAULT
    base: str | None = None  # another base optimizer


DEFAULT = Variant("none", "the default")
_ALL: tuple[Variant, ...] = (
    Variant("coordinates", "no matrix-shaped steps", Promote(matrix_base="adam")),
    Variant("power-0", "all coordinates alike", Promote(power=0.0)),
    Variant("no-floor", "without the paper's sweep (no theorem)", Promote(paper_shares=())),
    Variant("large-probe", "probe T/4", Promote(probe_share=1 / 4)),
    Variant("small-probe", "probe T/256", Promote(probe_share=1 / 256)),
    Variant("one-rung", "the list judged once, by its first losses", Promote(second_length=1.0)),
    Variant("short-rungs", "rungs half as long", Promote(first_length=0.17)),
    Variant("long-rungs", "rungs twice as long", Promote(first_length=0.68)),
    Variant("no-parabola", "no step between two of the list", Promote(interpolate=False)),
    Variant("no-neighbour", "larger steps are not looked at again", Promote(near=math.inf)),
    Variant("constant-step", "no annealing", Promote(anneal=False)),
    Variant("one-lane", "one minibatch a step", Promote(most_lanes=1)),
    Variant("lanes-for-all", "lanes at every budget", Promote(lanes_budget=1, lane_calls=1)),
    Variant("no-undo", "a jump of the loss is not undone", Promote(jump=math.inf)),
    Variant("no-second", "no second chance for a run that stalls", Promote(stalled=math.inf)),
    Variant("no-plateau", "plateaus are not looked for", Promote(plateau=math.inf, wait=0.0)),
    Variant("dead-stays", "a part may silence a layer", Promote(dying=math.inf)),
    Variant("no-bold", "the step never grows", Promote(solved=0.0)),
    Variant("adagrad", "base: diagonal AdaGrad", base="adagrad"),
    Variant("momentum", "base: SGD with momentum", base="momentum"),
    Variant("unixgrad", "base: UniXGrad", base="unixgrad"),
)
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
