"""Every number that steers the default schedule, with its reason; docs/results.md has the proof.

Shares are of the budget T. A loss is compared with another one by its quotient, unless it may be
negative.
"""

import math
from dataclasses import dataclass, fields

from grasp_tune.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Rung:
    """How much a rung may spend, and who runs in it."""

    share: float  # of T
    kinds: int = 0  # how many of the best kinds of the rung before; 0: all runs of the grid
    factors: tuple[float, ...] = (1.0,)  # times the best step of each kind
    samples: float = 0.0  # share of T for fresh samples at the ends of its runs


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteOptions:
    """The options of `Promote`; each default is the best of those that were measured."""

    # The probe, and the paper's own sweep, which carries the theorem.
    probe_share: float = 1 / 64  # larger probes cost more than they tell
    paper_shares: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16)  # the first that pays for a sample

    # Runs that measure their own distance.
    measuring: str = "growing"  # the optimizer
    measuring_values: tuple[tuple[str, float], ...] = ()  # further values of these runs
    powers: tuple[float, ...] = (0.0, 0.5)  # one run each: powers of the coordinates' gradients
    short_budget: int = 4_000  # below it the first power gets everything: two runs are too short
    comparison: Rung = Rung(0.1, samples=0.006)  # the rung in which they are compared
    # Divided steps (the largest power) are slower at first and were the better single kind in the
    # end: to be chosen, another run must have less than this share of their loss.
    clear_lead: float = 0.8
    # The measured distance is taken whole when T is `whole_length`, and a falling part of it when T
    # is larger: longer runs want smaller steps.
    whole_length: float = 300.0
    whole_power: float = -1 / 3

    # The fan: the first distance, a part and a multiple of it, judged by their first losses.
    # From `short_budget` on there is none: MNIST softmax lost 2 to 6 % with one at T = 4,500.
    fan_budget: int = 400  # below it a fan costs more than a bad first distance
    fan_entry: int = 18  # calls for a first distance: the search for it takes 11 to 18
    # Calls of each run. On nine networks with two seeds each, the step of the lowest loss after 24
    # ended within 3 % of the best one; 16 are misled by plateaus, and 48 and more by noise.
    fan_calls: int = 24
    fan_value: float = 2 / 3  # of the distance, as in a final run of 1,000 calls
    fan_factor: float = 4.0  # between neighbours: a step that is twice too large costs little
    fan_more: int = 2  # runs beyond an edge that is clearly better, at most
    fan_lead: float = 0.95  # a loss below so much of another one is clearly better,
    fan_gain: float = 2.0  # and one that gained so many times as much since the start

    # The search over the self-bounded range, for optimizers that do not measure their distance.
    searching: str = "adam"  # the optimizer, where none was chosen
    search_powers: tuple[float, ...] = (0.0, 0.5, 1.0)
    spacings: tuple[float, ...] = (16.0, 256.0)  # of the grid: the finest that can be paid for
    # For optimizers whose value is fixed for a run: no new run can begin between two others.
    fixed_spacings: tuple[float, ...] = (4.0, 16.0, 64.0, 256.0)
    first_share: float = 0.12  # at most, for the grid
    first_calls: int = 3  # of each run of the grid, at least
    grid: Rung = Rung(0.03)
    finer: Rung = Rung(0.01, 3, (1 / 16, 1.0, 16.0))  # only after the coarsest grid
    rungs: tuple[Rung, ...] = (
        Rung(0.04, 3, (1 / 16, 1 / 4, 1.0, 4.0, 16.0)),
        Rung(0.05, 3, (1 / 4, 1.0, 4.0), samples=0.008),
        Rung(0.06, 2, (1 / 4, 1.0, 4.0), samples=0.008),
        Rung(0.15, 1, (1 / 4, 1.0, 4.0), samples=0.01),
    )
    blocks: int = 8  # of a rung's fresh samples: their spread tells the noise
    diverged: float = 10.0  # a run whose loss exceeds so many times the start's has diverged

    # Which step the final run wants, from the best step of each rung (`step_extrapolation`).
    slope: float = -0.15  # expected power of the length with which the best step changes
    slope_spread: float = 0.2  # its standard deviation before any rung is seen
    rungs_used: int = 3  # the last ones
    shape_error: float = 0.15  # a parabola may be wrong by this share of a height above the best
    least_error: float = 0.03  # and by this much, in logs: equal runs do not end alike either
    # Of what was gained, the smallest loss that is told from 0: a loss of 0 would be infinitely
    # better than any other.
    deepest: float = 1e-12
    margin: float = 0.7  # how far outside of the tried steps the best may lie, in logs
    ahead: float = 0.5  # of the way to the step of a run as long as the final one, at its beginning

    # The final run.
    # Where the loss of a part is above `slow` times that of the part before, noise is what is left,
    # and the next part averages twice as many minibatches a step; where it is below `falling`, half
    # as many. Steps grow with the root of the lanes, as their noise falls with it.
    most_lanes: int = 1  # 8 halves the depth; loss 1.4 % lower to 2.2 % higher on eight
    slow: float = 0.85
    parts: int = 8  # those of a tiny budget that would be empty are left out
    anneal: bool = True  # whether steps fall to zero, here and in the rungs
    telling_calls: int = 100  # of a part: its losses tell whether it got below the start
    average_share: float = 0.005  # for fresh samples at the average of the first part
    curve_points: int = 5  # of a part's curve, at least, for a median
    average_power: float = 8.0  # exponent of the running average
    # Early stopping, for use with validation data: the end of every part is looked at, and the
    # final run ends after so many looks in a row that do not get below the best; 0: never.
    patience: int = 0
    look_share: float = 0.004  # for each look

    # The step of the final run, part by part (`step_control`).
    jump: float = 2.0  # a part whose loss is so many times the part before's is undone
    backoff: float = 4.0  # and the step divided by this
    noisy: float = 1.05  # losses above so many times the average point's loss count as noise
    noisy_part: int = 2  # the part whose losses are compared with the average of part 0
    noise_divisor: float = 2.0  # the step is then divided by this, once
    solved: float = 1e-3  # share of the start's loss below which nearly all of it is gone
    falling: float = 0.8  # a loss that still falls is at most this share of the part before's
    growth: float = 4.0  # the step is then multiplied by this, by its root where that fails, ...
    least_growth: float = 1.3  # until that is less than this

    race_share: float = 0.01  # for the last choice

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and math.isnan(value):
                raise InputError(f"{item.name}: got nan, expected a number")
            if item.name.endswith("_share") and not 0.0 <= value < 1.0:
                raise InputError(f"{item.name}: got {value!r}, expected a share of T in [0, 1)")
            if item.name == "patience" and value < 0:
                raise InputError(f"patience: got {value!r}, expected a whole number >= 0")
            if (
                item.name in ("first_calls", "blocks", "rungs_used", "parts", "most_lanes")
                and value < 1
            ):
                raise InputError(f"{item.name}: got {value!r}, expected a whole number >= 1")
        if not self.powers or not self.spacings or not self.fixed_spacings:
            raise InputError("powers, spacings and fixed_spacings must not be empty")
