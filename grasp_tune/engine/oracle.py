"""The stochastic oracle: losses and gradients of minibatches at the model's point, counted.

Every call of the user's loss happens here, and is counted here. Random numbers inside the model
(dropout) are addressed like the minibatch: a call is a function of (point, seed, purpose, call).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grasp_tune.core.errors import ProblemError
from grasp_tune.core.random_streams import address
from grasp_tune.engine.losses import answer, first_line, pair_of
from grasp_tune.engine.metrics import Validated, compared, loss_and_outputs, measured
from grasp_tune.engine.problem import Batch, TorchProblem
from grasp_tune.engine.streams import PURPOSES, Stream, full_batches, seed_globally


class Oracle:
    """Gradients and values of one problem, at whatever point the model is."""

    def __init__(
        self, problem: TorchProblem, seed: int, count: Callable[[int], None] = lambda calls: None
    ) -> None:
        self.problem, self.seed, self.count = problem, seed, count
        self.device = problem.chosen_device
        self.model = problem.build(seed)
        self.parameters = [item for item in self.model.parameters() if item.requires_grad]
        self._streams: dict[str, Stream] = {}
        self.validated = Validated(problem.metric)  # at the point where the model is
        self._noise, self._by_loss = address(seed, "noise") % 2**62, problem.choose_by == "loss"

    def stream(self, purpose: str) -> Stream:
        """Return the minibatches of one purpose."""
        if purpose not in self._streams:
            data = self.problem.validation if purpose == "validation" else self.problem.data
            size, seed = self.problem.batch_size, self.seed
            self._streams[purpose] = Stream(data, size, seed, purpose, self.device)
        return self._streams[purpose]

    def gradient(self, purpose: str, call: int) -> Tensor:
        """Return the loss of one minibatch, its gradient left in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        return self._loss(self._batch(purpose, call), 1.0)

    def value(self, purpose: str, call: int) -> float:
        """Return the loss of one minibatch; of validation data, what the choice goes by."""
        # Gradients are on: a loss may take derivatives itself.
        batch, metric = self._batch(purpose, call), self.problem.metric
        if metric is None or purpose != "validation":
            return float(self._loss(batch))
        targets = compared(metric, batch)
        found, outputs = loss_and_outputs(self.model, lambda _, given: self._loss(given), batch)
        self.validated.add(loss := float(found), outputs, targets)
        return loss if self._by_loss else 1.0 - measured(metric, outputs, targets)

    def check_validation(self) -> None:
        """Try the model and the metric on validation rows, for faults to be told now, not later."""
        if not self.problem.validation_rows:
            return
        batch, metric = self.stream("validation").batch(0), self.problem.metric
        targets = None if metric is None else compared(metric, batch)
        if (pair := pair_of(batch)) is not None and isinstance(pair[0], Tensor):
            with torch.no_grad():
                outputs = answer(self.model.eval(), pair[0])
                if metric is not None:
                    measured(metric, outputs, targets)
            self.model.train()

    def measured(self) -> tuple[float, float]:
        """Return loss (NaN where that is the score) and metric of the validation rows seen here."""
        return math.nan if self._by_loss else self.validated.loss, self.validated.metric

    def exact(self, *, gradient: bool, counted: bool = False) -> float:
        """Return the loss over all data, and leave its gradient where asked.

        counted: one oracle call; the deterministic algorithm counts training gradients only.
        """
        self._count("exact", 0, int(counted))
        total, rows = 0.0, self.problem.rows or 0
        for parameter in self.parameters:
            parameter.grad = None
        for batch, count in full_batches(self.problem.data, self.device):
            total += float(self._loss(batch, count / rows if gradient else None)) * count
        return total / rows

    def _batch(self, purpose: str, call: int) -> Batch:
        batch = self.stream(purpose).batch(call)
        self._count(purpose, call, 1)
        return batch

    def _count(self, purpose: str, call: int, calls: int) -> None:
        """Count, and fix the random numbers that the model or the loss may draw in this call."""
        self.count(calls)
        number = self._noise + (call << 3) + PURPOSES.index(purpose)
        seed_globally(number, cpu_only=self.device.type == "cpu")

    def _loss(self, batch: Batch, share: float | None = None) -> Tensor:
        """Return the loss of a batch; with a share, that of its gradient goes to the parameters."""
        try:
            loss: object = self.problem.loss(self.model, batch)
        except (TypeError, AttributeError) as error:
            taken = isinstance(error, TypeError) or hasattr(Tensor, error.name or "")
            if not taken or type(self.model).__name__ not in str(error):
                raise
            text = "it is called with (model, batch), not with outputs and targets"
            raise ProblemError(f"loss: {first_line(error)}; {text}") from error
        if not isinstance(loss, Tensor):
            raise ProblemError(f"loss: it returned {type(loss).__name__}, expected a scalar tensor")
        if loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}, expected a scalar"
            raise ProblemError(f"loss: it returned {got}; reduce it with .mean()")
        if loss.is_complex() or loss.is_meta:
            kind = "complex" if loss.is_complex() else "meta"
            raise ProblemError(f"loss: it returned a {kind} tensor, expected a real number")
        if share is not None:
            if not loss.requires_grad:
                text = "its value does not depend on the model's parameters, so it has no gradient"
                raise ProblemError(f"loss: {text}")
            (loss if share == 1.0 else loss * share).backward()
        return loss.detach().reshape(())


def gradient_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the norm of the gradients that the parameters hold."""
    found = [item.grad for item in parameters if item.grad is not None]
    norms = [item.to(found[0].device) for item in torch._foreach_norm(found)] if found else []
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
