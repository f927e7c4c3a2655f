"""The stochastic oracle: losses and gradients of minibatches at the model's point, counted.

Every call of the user's loss happens here, and is counted here. Random numbers inside the model
(dropout) are addressed like the minibatch, and buffers can be kept as they were, so that a call is
a function of (point, seed, purpose, call).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.core.random_streams import address
from grasp_tune.engine.metrics import find_metric
from grasp_tune.engine.problem import Batch, TorchProblem
from grasp_tune.engine.streams import PURPOSES, Stream, full_batches, seed_globally
from grasp_tune.optimizers.unixgrad import joint_norm


class Oracle:
    """Gradients and values of one problem, at whatever point the model is."""

    def __init__(
        self, problem: TorchProblem, seed: int, count: Callable[[int], None] = lambda calls: None
    ) -> None:
        self.problem, self.seed = problem, seed
        self.device = problem.chosen_device
        self.model = problem.build(seed)
        self.parameters = [item for item in self.model.parameters() if item.requires_grad]
        self._buffers = _buffers_of(self.model)
        self.count = count
        self._streams: dict[str, Stream] = {}
        self._noise = address(seed, "noise") % 2**62

    def stream(self, purpose: str) -> Stream:
        """Return the minibatches of one purpose."""
        if purpose not in self._streams:
            problem = self.problem
            data = problem.validation if purpose == "validation" else problem.data
            assert data is not None
            size = problem.batch_size
            self._streams[purpose] = Stream(data, size, self.seed, purpose, self.device)
        return self._streams[purpose]

    def gradient(self, purpose: str, call: int) -> Tensor:
        """Return the loss of one minibatch, its gradient left in the parameters."""
        loss = self.loss(self.stream(purpose).batch(call), purpose, call)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        return loss.detach()

    def loss(self, batch: Batch, purpose: str, call: int) -> Tensor:
        """Return the loss of a batch as a scalar tensor, and count the call."""
        self.seed_noise(purpose, call)
        self.count(1)
        return self.checked(self.problem.loss(self.model, batch))

    def seed_noise(self, purpose: str, call: int) -> None:
        """Fix the random numbers that the model or the loss may draw in this call."""
        number = self._noise + (call << 3) + PURPOSES.index(purpose)
        seed_globally(number, cpu_only=self.device.type == "cpu")

    @torch.no_grad()
    def value(self, purpose: str, call: int) -> float:
        """Return the loss of one minibatch; of validation data, what the choice goes by."""
        if purpose == "validation" and self.problem.choose_by == "metric":
            assert self.problem.metric is not None
            self.seed_noise(purpose, call)
            self.count(1)
            inputs, targets = self.stream(purpose).batch(call)
            with torch.no_grad():
                return 1.0 - float(find_metric(self.problem.metric)[1](self.model(inputs), targets))
        return float(self.loss(self.stream(purpose).batch(call), purpose, call))

    def exact(self, *, gradient: bool, counted: bool = False) -> float:
        """Return the loss over all data, and leave its gradient where asked; one oracle call.

        The deterministic algorithm counts training gradients only, hence `counted`.
        """
        if counted:
            self.count(1)
        self.seed_noise("exact", 0)
        total, rows = 0.0, 0
        whole = self.problem.rows or 0
        for parameter in self.parameters:
            parameter.grad = None
        for batch, count in full_batches(self.problem.data, self.device):
            with torch.set_grad_enabled(gradient):
                loss = self.checked(self.problem.loss(self.model, batch))
                if gradient:
                    (loss * (count / whole)).backward()
            total += float(loss.detach()) * count
            rows += count
        return total / rows

    def checked(self, loss: object) -> Tensor:
        """Return the loss, or say what is wrong with it."""
        if not isinstance(loss, Tensor):
            raise ProblemError(f"loss: it returned {type(loss).__name__}, expected a scalar tensor")
        if loss.numel() != 1:
            raise ProblemError(
                f"loss: it returned a tensor of shape {tuple(loss.shape)}, expected a scalar; "
                "reduce it with .mean()"
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ProblemError(
                "loss: its value does not depend on the model's parameters, so it has no gradient"
            )
        return loss.reshape(())

    def gradient_norm(self) -> Tensor:
        """Return the norm of the gradient that the last call left."""
        found = [item.grad for item in self.parameters if item.grad is not None]
        if not found:
            return torch.zeros(())
        norms = [item.to(found[0].device) for item in torch._foreach_norm(found)]
        return torch.linalg.vector_norm(torch.stack(norms))

    def keep_buffers(self) -> None:
        """Remember the buffers as they are now."""
        for owner, name, _, kept in self._buffers:
            if (now := owner[name]) is not None:
                kept.copy_(now)

    def restore_buffers(self) -> None:
        """Put the buffers back, so that looking at a point does not change it."""
        for owner, name, item, kept in self._buffers:
            owner[name] = item.copy_(kept)  # a model may also put another tensor in its place

    def changed_buffers(self) -> list[Tensor | None]:
        """Return how buffers differ from those kept, None for those that do not.

        Numbers with a fraction by their difference, so that those of several calls can be averaged;
        counters by their value.
        """
        found: list[Tensor | None] = []
        for owner, name, _, kept in self._buffers:
            now = owner[name]
            if now is None or torch.equal(now, kept):
                found.append(None)
            else:
                found.append(now - kept if now.is_floating_point() else now.clone())
        return found

    def change_buffers(self, changes: Sequence[Tensor | None]) -> None:
        """Put the buffers where they were kept, and then make these changes."""
        self.restore_buffers()
        for (_, _, item, _), change in zip(self._buffers, changes, strict=True):
            if change is not None:
                item.copy_(item + change if item.is_floating_point() else change)

    @property
    def buffers(self) -> list[Tensor]:
        """The model's buffers, where the model has not put others in their places."""
        return [item for _, _, item, _ in self._buffers]


def _buffers_of(model: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]]:
    """Return where each buffer lives, its name there, the tensor, and room for a copy."""
    return [
        (module._buffers, name, item, item.clone())
        for module in model.modules()
        for name, item in module._buffers.items()
        if item is not None
    ]


class MeanGradient:
    """The running mean of gradients at one point: one vector, whatever the number of samples."""

    def __init__(self, parameters: Sequence[Tensor], *, moments: bool = False) -> None:
        self._parameters = parameters
        wide = (torch.promote_types(item.dtype, torch.float32) for item in parameters)
        pairs = zip(parameters, wide, strict=True)
        self.sums = [torch.zeros_like(item.detach(), dtype=kind) for item, kind in pairs]
        self.peaks = [torch.zeros_like(item) for item in self.sums] if moments else None
        self.count = 0
        self.square = 0.0  # sum of |g|^2

    def add(self) -> None:
        """Take in the gradient that the parameters hold; a missing one counts as zero."""
        self.count += 1
        for at, item in enumerate(self._parameters):
            if item.grad is None:
                continue
            gradient = item.grad.to(self.sums[at].dtype)
            self.sums[at].add_(gradient)
            if self.peaks is not None:
                torch.maximum(self.peaks[at], gradient.abs(), out=self.peaks[at])
        norm = joint_norm([p.grad for p in self._parameters if p.grad is not None])
        self.square += norm * norm  # a power would raise where this gives infinity

    @property
    def norm(self) -> float:
        """Norm of the mean."""
        return joint_norm(self.sums) / self.count if self.count else math.nan

    @property
    def mean_square(self) -> float:
        """Mean of |g|^2."""
        return self.square / self.count if self.count else math.nan

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums and peaks by name; with `count` and `square`, all that `merge` needs."""
        found = {f"sum.{at}": item for at, item in enumerate(self.sums)}
        return found | {f"peak.{at}": item for at, item in enumerate(self.peaks or [])}

    def merge(self, tensors: Mapping[str, Tensor], count: float, square: float) -> None:
        """Add what another one saw."""
        self.count += int(count)
        self.square += square
        for at, total in enumerate(self.sums):
            total.add_(tensors[f"sum.{at}"].to(total.device))
        for at, peak in enumerate(self.peaks or []):
            torch.maximum(peak, tensors[f"peak.{at}"].to(peak.device), out=peak)


class LossSums:
    """Running sums of losses."""

    def __init__(self) -> None:
        self.count, self._sum, self._square = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.merge((1, value, value * value))

    def merge(self, numbers: Sequence[float]) -> None:
        count, total, square = numbers
        self.count += int(count)
        self._sum += total
        self._square += square

    @property
    def numbers(self) -> list[float]:
        return [float(self.count), self._sum, self._square]

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else math.nan

    @property
    def mean_square(self) -> float:
        return self._square / self.count if self.count else math.nan
