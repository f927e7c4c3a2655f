"""Per-coordinate step sizes from the probe: what badly scaled features need.

Multiply a feature by c and its best weight shrinks by c while its gradient grows by c, so a step
that suits all coordinates must shrink with the size of their gradients. How much (the power 0, 1/2
or 1) is for the race to find out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-30  # a coordinate that was silent so far: it does not move anyway


@dataclass(frozen=True, slots=True)
class Coordinates:
    """How large each coordinate's gradient is, and how much that matters."""

    power: float
    peaks: list[Tensor]  # the largest gradient of each coordinate in the probe
    typical: float  # the median of those that are not zero

    def multipliers(self) -> list[Tensor]:
        """Return each coordinate's multiplier: (its peak / the typical one) ** -power."""
        return [multiplier(peak, self.typical, self.power) for peak in self.peaks]


def multiplier(peak: Tensor, typical: float, power: float) -> Tensor:
    """Return the multipliers of one tensor's coordinates; 1 for those that were silent."""
    share = torch.where(peak > 0, peak.clamp_min(SMALLEST) / typical, 1.0)
    return share.pow(-power)


def typical_peak(peaks: list[Tensor]) -> float:
    """Return the median of the peaks that are not zero, 1 where all are."""
    found = torch.cat([item.flatten() for item in peaks])
    loud = found[found > 0]
    return float(loud.median()) if loud.numel() else 1.0
