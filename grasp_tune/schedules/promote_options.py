"""Every number that steers the default schedule, with its reason; docs/limits.md has figures.

Shares are of the budget T; places count factors of `spacing` below the edge of what is stable.
"""

import math
from dataclasses import dataclass, fields

from grasp_tune.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteOptions:
    """The options of `Promote`; defaults were chosen on seeds 0 and 1 of a dozen workloads."""

    # The probe, and the paper's own sweep, which carries the theorem.
    probe_share: float = 1 / 64  # larger probes cost more than they tell
    paper_shares: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16)  # the first that pays for a sample

    # Which kind of runs there is, where the method names no optimizer. A second kind costs calls,
    # and may win by luck: without it the loss was 2 % lower on the mean of 27 workloads.
    matrix_base: str = "muon"  # where the model has hidden matrices
    base: str = "adam"  # where it has none
    power: float = 0.5  # of the coordinates' gradient sizes, where the base divides by them

    # The ramp: steps that double until the loss has risen twice in a row.
    first_gain: float = 1e-2  # share of the loss that the first step could gain, to first order
    doublings: int = 24  # at most; the search takes 10 to 16
    risen: float = 1.5  # a loss above the start's and so many times the lowest has risen
    diverged: float = 4.0  # times the start's loss: the ramp ends at once

    # The list: runs of equal length whose steps are `spacing` apart.
    spacing: float = 4.0
    # Best steps lay 4 ** -1 to 4 ** -5 below the edge on the workloads tried, mostly 4 ** -3.
    places: tuple[int, ...] = (2, 3, 4)
    most_places: int = 7  # with those beyond an end that is the best so far
    first_length: float = 0.34  # times T ** length_power: 24 calls at T = 1,200, 85 at 10,000
    length_power: float = 0.6  # so that the list's share of T falls as T grows
    least_length: int = 8  # calls
    second_length: float = 3.0  # times the first: shorter ones are fooled by plateaus
    # Below this budget the list has its first two places only, and the second rung is at most twice
    # the first: 6 to 7 % lower on three of four short runs (T = 300 and 400), the same on one.
    small_budget: int = 500
    # Likewise: ten steps would outlast a first run of eight, whose losses then are of half the step
    # that the final run takes. 16 % lower on the mean of 17 short runs, 1 % on the median.
    small_warmup: int = 3
    wait: float = 1 / 4  # of what is left, for twice as long runs while none has learned anything
    near: float = 0.8  # of the best run's gain: a larger step that gained so much goes on, too
    interpolate: bool = True  # whether the final step may lie between two of the list
    warmup: int = 10  # steps, of every run

    # The final run.
    parts: int = 8  # those of a tiny budget that would be empty are left out
    anneal: bool = True  # whether steps fall to zero
    # Minibatches averaged in a step. At T = 10,000 eight were as good as four or better on seven of
    # nine workloads (docs/limits.md), with a fraction of the depth.
    most_lanes: int = 8
    lanes_budget: int = 4_000  # below it steps are too few to do with fewer
    lane_calls: int = 1_000  # of T, for each lane; lanes are a power of two
    average_power: float = 8.0  # exponent of the running average
    jump: float = 2.0  # a part whose loss is so many times the part before's is undone
    # So is a part after which gradients do not reach this share of a layer's units any more.
    dying: float = 0.5
    # Unless its loss is below this share of the one that the final run began with: the units then
    # have nothing left to learn. Not of the start's loss, which may be of another size altogether.
    fitted: float = 0.1
    backoff: float = 4.0  # and the step divided by this
    # A run whose second part ends above so much of the first's loss, and above so much of the
    # start's, learns nothing. The next smaller step of the list then gets a part, too, and goes on
    # where its loss is about as low as that of the first part.
    stalled: float = 0.95
    learned: float = 0.5  # share of the start's loss; below it a run has learned something
    alike: float = 1.02  # times the first part's loss is about as low
    # A run above so much of the start's loss has learned next to nothing: it may be on a plateau,
    # which losses tell nothing about. The usual step is taken there, larger ones are tried, and
    # units may be silent.
    plateau: float = 0.85
    curve_points: int = 5  # of a part's curve, at least, for a median
    # Where nearly all of the loss is gone and it still falls, larger steps are tried: data that
    # the model can fit without error wants them.
    solved: float = 1e-3  # share of the start's loss
    falling: float = 0.8  # a loss that still falls is at most this share of the part before's
    growth: float = 4.0  # of the step; its root where that fails, ...
    least_growth: float = 1.3  # until that is less than this
    # Early stopping: the end of every part is looked at, and the final run ends after so many parts
    # in a row that do not get below the best look; 0: never. None: 3 with validation data, else
    # never (docs/validation.md has figures).
    patience: int | None = None
    least_look: int = 8  # minibatches; where a look has fewer, validation data alone ends nothing
    look_share: float = 0.004  # for each look

    race_share: float = 0.01  # for the last choice; where that is little, at least so many calls,
    race_calls: int = 24  # eight samples for each of three points, but at most a twentieth of T

    def race_budget(self, budget: int, left: int) -> int:
        """Return the calls of the last choice: 8 at least, or half of what is left of a tiny T."""
        least = max(8, min(self.race_calls, budget // 20))
        return min(max(least, int(self.race_share * budget)), left // 2)

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value, usual = item.name, getattr(self, item.name), item.default
            if usual is None:
                if value is None:
                    continue
                usual = 0
            if isinstance(usual, bool | str):
                fits, wanted = type(value) is type(usual), f"a {type(usual).__name__}"
            elif isinstance(usual, tuple):
                fits = isinstance(value, tuple) and all(_within(-100, x, 100) for x in value)
                fits = fits and (name != "places" or all(type(x) is int for x in value))
                wanted = f"a tuple of numbers, such as {usual}"
            elif isinstance(usual, int):
                low = 0 if name in ("patience", "warmup", "small_warmup", "lanes_budget") else 1
                fits = type(value) is int and value >= low
                wanted = f"a whole number >= {low}"
            elif name.endswith("_share"):
                fits, wanted = _within(0, value, 1) and value < 1, "a share of T in [0, 1)"
            else:
                high = 1 if name == "length_power" else math.inf if name in _LIMITS else 1000
                fits, wanted = _within(0, value, high), f"a number from 0 to {high}"
            if not fits:
                raise InputError(f"{name}: got {value!r}, expected {wanted}")
        if not (self.places and self.spacing > 1 and self.backoff > 0):
            raise InputError("need places, a spacing above 1 and a backoff above 0")
        for name, low, high in (("doublings", 2, 24), ("parts", 1, 1000)):  # a curve has 24 points
            if not low <= (value := getattr(self, name)) <= high:
                raise InputError(f"{name}: got {value!r}, expected {low} to {high}")


_LIMITS = ("risen", "diverged", "near", "jump", "dying", "stalled", "plateau")  # inf: never


def _within(low: float, value: object, high: float) -> bool:
    exact = type(value) is int and abs(value) < 2**53
    return (exact or isinstance(value, float)) and low <= value <= high  # type: ignore[operator]
