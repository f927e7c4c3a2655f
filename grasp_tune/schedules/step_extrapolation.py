r"""Which step a longer run would want, from the best step of each rung.

Short runs and long runs do not want the same step. Where noise rules, the best step falls with
about the root of the length; where the loss can fall for ever, it rises. The rungs show both, each
annealed to zero, so that each tells the best step for its own length. The model: in a rung of
length $h$ the log of the loss is a parabola in the log of the step, whose lowest point lies at
$\alpha + \beta \log(h / h_{last})$. What is returned is the mean of $\alpha$ and $\beta$ over all
that the losses leave possible, so that flat or noisy rungs leave $\beta$ where it was expected.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grasp_tune.schedules.promote_options import PromoteOptions

_HIGHEST = 1e300  # a height that is still a number
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepLosses:
    """One rung: the losses that runs of one length reached with some steps."""

    length: int  # oracle calls
    losses: Mapping[float, float]  # by step; NaN where a run diverged
    noise: float  # standard error of a difference between two of them


@dataclass(frozen=True, slots=True)
class StepTrend:
    """How the best step changes with the length of a run."""

    step: float  # the best one for runs as long as the last rung's
    slope: float  # the power of the length with which it changes

    def at(self, ratio: float) -> float:
        """Return the best step for runs `ratio` times as long as the last rung's."""
        return self.step * math.pow(ratio, self.slope)


def step_trend(
    rungs: Sequence[StepLosses], start: float, options: PromoteOptions
) -> StepTrend | None:
    """Return how the best step changes; None where no run stayed finite.

    `start` is the loss at x0: it gives a scale to losses that may be negative.
    """
    usable = [rung for rung in rungs if any(map(math.isfinite, rung.losses.values()))]
    if not usable:
        return None
    usable = usable[-options.rungs_used :]
    last, slope, spread = usable[-1], options.slope, options.slope_spread
    steps, _, _ = _heights(last, start, options)
    alphas = np.linspace(steps.min() - options.margin, steps.max() + options.margin, 121)[:, None]
    betas = np.linspace(slope - 4 * spread, slope + 4 * spread, 61)[None, :]
    total = -0.5 * ((betas - slope) / spread) ** 2 + np.zeros_like(alphas)
    for rung in usable:
        lowest = alphas + betas * math.log(rung.length / last.length)
        total = total + _plausible(rung, lowest, start, options)
    chance = np.exp(total - total.max())
    chance /= chance.sum()
    return StepTrend(math.exp(float((chance * alphas).sum())), float((chance * betas).sum()))


def _heights(
    rung: StepLosses, start: float, options: PromoteOptions
) -> tuple[_Array, _Array, float]:
    """Return the logs of the steps, the heights of their losses above the best, and the noise.

    Heights are $\\log(1 + (loss - best)/scale)$, which is the log of the quotient for losses that
    are positive and below the start.
    """
    pairs = [(step, loss) for step, loss in rung.losses.items() if math.isfinite(loss)]
    losses = [loss for _, loss in pairs]
    best = min(losses)
    gain = start - best
    if not 0.0 < gain < math.inf:
        gain = abs(best) or max(losses) - best
    scale = max(min(abs(best), gain), options.deepest * gain, sys.float_info.min)
    steps = np.array([math.log(step) for step, _ in pairs])
    heights = np.array([math.log1p(min((loss - best) / scale, _HIGHEST)) for loss in losses])
    return steps, heights, min(rung.noise / scale, 1.0 / options.deepest)


def _plausible(rung: StepLosses, lowest: _Array, start: float, options: PromoteOptions) -> _Array:
    """Return the log likelihood of a rung's losses for each place of the lowest point.

    How bent the parabola is, nobody knows: every bend is as likely as any other, in logs. Its
    height is the one that fits best.
    """
    steps, heights, noise = _heights(rung, start, options)
    weights = 1.0 / (noise**2 + options.least_error**2 + (options.shape_error * heights) ** 2)
    bends = np.geomspace(0.003, 3.0, 25)[:, None]
    gaps = heights - bends * (steps - lowest[..., None, None]) ** 2
    gaps = gaps - (weights * gaps).sum(-1, keepdims=True) / weights.sum()
    fits = -0.5 * (weights * gaps**2).sum(-1)
    top = fits.max(-1)
    found: _Array = top + np.log(np.exp(fits - top[..., None]).mean(-1))
    return found
