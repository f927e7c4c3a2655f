"""Every number of the default schedule, with its reason; docs/limits.md has measurements.

Place k of a list is the step size at the edge of stability, divided by `spacing` ** k.
"""

import math
from dataclasses import dataclass, fields

from grasp_tune.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteOptions:
    """The options of `Promote`; defaults were chosen on seeds 0 and 1 of a dozen workloads."""

    # The probe, and the paper's own sweep, for which the theorem holds.
    probe_share: float = 1 / 64  # of T; larger probes cost more than they gain
    # Shares of T to try for the paper's sweep; the first that pays for a sample is used.
    paper_shares: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16)

    # The optimizer, if the method names none. A second one costs calls and may win by luck: without
    # it the loss was 2 % lower on the mean of 27 workloads.
    matrix_base: str = "muon"  # if the model has hidden matrices
    base: str = "adam"  # if it has none
    power: float = 0.5  # Adam and AdaGrad divide steps by each gradient size to this power

    # The ramp: the step size doubles until the loss has risen twice in a row.
    first_gain: float = 1e-2  # share of the loss that the first step removes, to first order
    doublings: int = 24  # at most; usually 10 to 16
    risen: float = 1.5  # the loss has risen if above the start's and this times the lowest
    diverged: float = 4.0  # the ramp ends at once above this times the start's loss

    # Factor between neighbouring step sizes of the list.
    spacing: float = 4.0
    # Places of the first runs. The best place was 1 to 5 on the workloads tried, mostly 3.
    places: tuple[int, ...] = (2, 3, 4)
    most_places: int = 7  # including those added beyond an end that is the best so far
    first_length: float = 0.34  # times T ** length_power: 24 calls at T = 1,200, 85 at 10,000
    length_power: float = 0.6  # below 1, so that the list's share of T falls as T grows
    least_length: int = 8  # calls of a first run
    second_length: float = 3.0  # times the first length; shorter runs are misled by plateaus
    # Below this budget the list has only its first two places, and the second rung is at most twice
    # as long as the first: 6 to 7 % lower on three of four short runs (T = 300, 400), equal on one.
    small_budget: int = 500
    # Warm-up steps below that budget. Ten would outlast a first run of eight, so its loss would be
    # that of half the step size. 16 % lower on the mean of 17 short runs, 1 % on the median.
    small_warmup: int = 3
    wait: float = 1 / 4  # share of the calls left to double runs while none has learned anything
    near: float = 0.8  # a larger step size with this share of the best run's gain goes on, too
    interpolate: bool = True  # whether the final step size may lie between two of the list
    warmup: int = 10  # steps, of every run

    # The final run.
    parts: int = 8  # parts that would be empty (tiny budgets) are left out
    anneal: bool = True  # whether the step size decays to zero
    # Most minibatches averaged in a step. At T = 10,000 eight were as good as four or better on
    # seven of nine workloads (docs/limits.md), with a fraction of the depth.
    most_lanes: int = 8
    lanes_budget: int = 4_000  # below this budget there are too few steps for lanes
    lane_calls: int = 1_000  # of T, for each lane; the number of lanes is a power of two
    average_power: float = 8.0  # exponent of the running average
    jump: float = 2.0  # a part is undone if its loss is at least this times the part before's
    # A part is also undone if it leaves this share of a layer's units without gradients.
    dying: float = 0.5
    # `dying` is off below this share of the loss at which the final run began: its units have
    # nothing left to learn. (The loss at x0 may be of another size altogether.)
    fitted: float = 0.1
    backoff: float = 4.0  # after a part that was undone, the step size is divided by this
    # A run stalls if its second part ends above this share of the first's loss and above `learned`.
    # The next smaller step size of the list then gets a part, too, and takes over if its loss is
    # about as low as that of the first part.
    stalled: float = 0.95
    learned: float = 0.5  # share of the start's loss; below it a run has learned something
    alike: float = 1.02  # up to this times the first part's loss is about as low
    # Above this share of the start's loss a run may be on a plateau, where losses say nothing about
    # the step size: it takes the usual one, larger ones are tried, and units may be silent.
    plateau: float = 0.85
    curve_points: int = 5  # least points of a part's curve for a median
    # Below this share of the start's loss, larger step sizes are tried while the loss still falls:
    # they suit data that the model can fit without error.
    solved: float = 1e-3
    falling: float = 0.8  # a loss still falls if it is at most this share of the part before's
    growth: float = 4.0  # factor of a larger step size; its root is tried next if that fails
    least_growth: float = 1.3  # no larger step sizes are tried once the factor is below this
    # Early stopping: every part ends with a look at the model, and the final run ends after this
    # many parts in a row without a new best; 0: never. None: 3 with validation data, else never
    # (docs/validation.md has figures).
    patience: int | None = None
    least_look: int = 8  # minibatches; if a look has fewer, patience=None is 0
    look_share: float = 0.004  # of T, for each look

    race_share: float = 0.01  # of T, for the final race, but at least `race_calls`
    race_calls: int = 24  # eight samples of each of three points; at most a twentieth of T

    def lanes(self, budget: int) -> int:
        """Return how many minibatches a step of the final run averages."""
        most = min(self.most_lanes, max(1, budget // self.lane_calls))
        return 1 if budget < self.lanes_budget else 1 << most.bit_length() - 1

    def race_budget(self, budget: int, left: int) -> int:
        """Return the calls of the final race: at least 8, or half of what is left of a tiny T."""
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


_LIMITS = ("risen", "diverged", "near", "jump", "dying", "stalled", "plateau")  # inf: off


def _within(low: float, value: object, high: float) -> bool:
    exact = type(value) is int and abs(value) < 2**53
    return (exact or isinstance(value, float)) and low <= value <= high  # type: ignore[operator]
