r"""Which step a longer run would want: where the best step of each rung is heading.

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

SLOPE = -0.15  # what is expected of beta before anything is seen
SPREAD = 0.2  # and its standard deviation
SIGHTS = 3  # rungs that are looked at, the last ones
SHAPE = 0.15  # a parabola may be wrong by this share of a loss's height above the best
LEAST = 0.03  # and by this much, in logs: two runs with the same step do not end alike either
DEEPEST = 1e-12  # of what was gained: a loss of 0 would be infinitely better than any other
MARGIN = 0.7  # the lowest point may lie so far outside of the steps that were tried, in logs

_HIGHEST = 1e300  # a height that is still a number
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sight:
    """One rung's view: the losses that runs of one length reached with some steps."""

    length: int  # oracle calls
    losses: Mapping[float, float]  # by step; NaN where a run diverged
    noise: float  # standard error of a difference between two of them


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where the best step is heading."""

    step: float  # the best one for runs as long as the last rung's
    slope: float  # the power of the length with which it moves

    def at(self, stretch: float) -> float:
        """Return the best step for runs `stretch` times as long as the last rung's."""
        return self.step * math.pow(stretch, self.slope)


def outlook(sights: Sequence[Sight], start: float) -> Outlook | None:
    """Return where the best step is heading; None where no run stayed finite.

    `start` is the loss at x0: it gives a scale to losses that may be negative.
    """
    usable = [sight for sight in sights if any(map(math.isfinite, sight.losses.values()))]
    if not usable:
        return None
    usable = usable[-SIGHTS:]
    last = usable[-1]
    steps, _, _ = _heights(last, start)
    alphas = np.linspace(steps.min() - MARGIN, steps.max() + MARGIN, 121)[:, None]
    betas = np.linspace(SLOPE - 4 * SPREAD, SLOPE + 4 * SPREAD, 61)[None, :]
    total = -0.5 * ((betas - SLOPE) / SPREAD) ** 2 + np.zeros_like(alphas)
    for sight in usable:
        lowest = alphas + betas * math.log(sight.length / last.length)
        total = total + _plausible(sight, lowest, start)
    chance = np.exp(total - total.max())
    chance /= chance.sum()
    return Outlook(math.exp(float((chance * alphas).sum())), float((chance * betas).sum()))


def _heights(sight: Sight, start: float) -> tuple[_Array, _Array, float]:
    """Return the logs of the steps, the heights of their losses above the best, and the noise.

    Heights are $\\log(1 + (loss - best)/scale)$, which is the log of the quotient for losses that
    are positive and below the start.
    """
    pairs = [(step, loss) for step, loss in sight.losses.items() if math.isfinite(loss)]
    losses = [loss for _, loss in pairs]
    best = min(losses)
    gain = start - best
    if not 0.0 < gain < math.inf:
        gain = abs(best) or max(losses) - best
    scale = max(min(abs(best), gain), DEEPEST * gain, sys.float_info.min)
    steps = np.array([math.log(step) for step, _ in pairs])
    heights = np.array([math.log1p(min((loss - best) / scale, _HIGHEST)) for loss in losses])
    return steps, heights, min(sight.noise / scale, 1.0 / DEEPEST)


def _plausible(sight: Sight, lowest: _Array, start: float) -> _Array:
    """Return the log likelihood of a rung's losses for each place of the lowest point.

    How bent the parabola is, nobody knows: every bend is as likely as any other, in logs. Its
    height is the one that fits best.
    """
    steps, heights, noise = _heights(sight, start)
    weights = 1.0 / (noise**2 + LEAST**2 + (SHAPE * heights) ** 2)
    bends = np.geomspace(0.003, 3.0, 25)[:, None]
    gaps = heights - bends * (steps - lowest[..., None, None]) ** 2
    gaps = gaps - (weights * gaps).sum(-1, keepdims=True) / weights.sum()
    fits = -0.5 * (weights * gaps**2).sum(-1)
    top = fits.max(-1)
    found: _Array = top + np.log(np.exp(fits - top[..., None]).mean(-1))
    return found
