"""Per-coordinate distances from the probe: what badly scaled features need."""

import torch
from torch import Tensor

FLOOR = 1e-2  # coordinates quieter than this share of the typical one count as typical x FLOOR


def coordinate_scale(roots: list[Tensor], power: float) -> list[Tensor]:
    """Return each coordinate's multiplier: (its probe gradient / the typical one) ** -power.

    Typical is the root mean square over all coordinates. A coordinate that was silent in the
    whole probe would get an unbounded distance, hence the floor.
    """
    total = sum(float(item.double().square().sum()) for item in roots)
    count = sum(item.numel() for item in roots)
    typical = (total / max(1, count)) ** 0.5
    if typical == 0.0:
        return [torch.ones_like(item) for item in roots]
    return [(item / typical).clamp_min(FLOOR).pow(-power) for item in roots]
