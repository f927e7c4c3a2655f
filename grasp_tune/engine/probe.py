"""What the probe keeps of the start point: running sums, and the gradient sizes of coordinates."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grasp_tune.core.checkpoint_keys import MOMENTS
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.engine.checkpoints import Store, Tensors
from grasp_tune.engine.oracle import LossSums, MeanGradient
from grasp_tune.optimizers.preconditioner import Coordinates, typical_peak


class ProbeSums:
    """Running sums of the losses and gradients at x0; those of parts can be merged."""

    def __init__(self, parameters: Sequence[Tensor], *, moments: bool) -> None:
        self._size = sum(item.numel() for item in parameters)
        self._mean = MeanGradient(parameters, moments=moments)
        self._values, self._losses = LossSums(), LossSums()

    def add_gradient(self, loss: float) -> None:
        """Take in a loss, and the gradient that the parameters hold."""
        self._losses.add(loss)
        self._mean.add()

    def add_value(self, loss: float) -> None:
        """Take in a loss alone."""
        self._values.add(loss)

    def tensors(self) -> Tensors:
        """Return all that `merge` needs."""
        numbers = [self._mean.count, self._mean.square]
        numbers += [*self._values.numbers, *self._losses.numbers]
        return self._mean.tensors() | {"numbers": torch.tensor(numbers, dtype=torch.float64)}

    def merge(self, tensors: Mapping[str, Tensor]) -> None:
        """Add what another one saw."""
        numbers = tensors["numbers"].tolist()
        self._mean.merge(tensors, *numbers[:2])
        self._values.merge(numbers[2:5])
        self._losses.merge(numbers[5:8])

    def write_moments(self, store: Store) -> None:
        """Leave the largest gradient of each coordinate for `read_coordinates`."""
        assert self._mean.peaks is not None
        peaks = {f"peak.{at}": item for at, item in enumerate(self._mean.peaks)}
        store.write(str(MOMENTS), peaks, {"typical": typical_peak(self._mean.peaks)})

    def outcome(self, calls: int, origin: str) -> ProbeOutcome:
        """Return what was seen at x0."""
        # Where no values were asked for, those that came with the gradients cost nothing.
        seen = self._values if self._values.count else self._losses
        return ProbeOutcome(
            calls=calls,
            origin=origin,
            gradients=self._mean.count,
            gradient_norm=self._mean.norm,
            gradient_square=self._mean.mean_square,
            parameters=self._size,
            values=seen.count,
            value=seen.mean,
            value_square=seen.mean_square,
        )


def read_coordinates(store: Store, power: float, like: Sequence[Tensor]) -> Coordinates | None:
    """Return what the probe saw of each coordinate of a run, None where it does not matter."""
    if not power:
        return None
    saved = store.read(str(MOMENTS))
    peaks = [saved.tensors[f"peak.{at}"].to(item.device) for at, item in enumerate(like)]
    return Coordinates(power, peaks, float(saved.meta["typical"]))
