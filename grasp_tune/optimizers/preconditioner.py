"""Per-coordinate step sizes from the probe: what badly scaled features need.

Multiply a feature by c and its best weight shrinks by c while its gradient grows by c, so a step
that suits all coordinates must shrink with the size of their gradients. How much (the power 0, 1/2
or 1) is for the race to find out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 1e-2  # no coordinate counts as quieter than this share of a typical one


@dataclass(frozen=True, slots=True)
class Coordinates:
    """How large each coordinate's gradient is, and how much that matters."""

    power: float
    peaks: list[Tensor]  # the largest gradient of each coordinate in the probe
    typical: float  # the median of those that are not zero

    def multipliers(self) -> list[Tensor]:
        """Return each coordinate's multiplier: (its peak / the typical one) ** -power."""
        return [multiplier(peak, self.typical, self.power) for peak in self.peaks]


def multiplier(peak: Tensor, typical: Tensor | float, power: Tensor | float) -> Tensor:
    """Return the multipliers of coordinates with these peaks, at most `FLOOR` ** -power.

    Without the floor a feature that is nearly always dark gets a huge weight from the few
    minibatches that show a trace of it, and ruins the rows in which it is bright.
    """
    return (peak / typical).clamp_min(FLOOR).pow(-power)


def typical_peak(peaks: list[Tensor]) -> float:
    """Return the median of the peaks that are not zero, 1 where all are."""
    # One copy, ordered in place: torch's median takes several of the model's size.
    found = torch.cat([item.flatten() for item in peaks]).cpu().numpy()
    if not (loud := int((found > 0).sum())):
        return 1.0
    middle = int((found == 0).sum()) + (loud - 1) // 2  # NaNs are last
    found.partition(middle)
    return float(found[middle])
