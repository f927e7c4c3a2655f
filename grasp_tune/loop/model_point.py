"""Where the user's model is: its trainable parameters and its buffers, read and put elsewhere.

Frozen parameters never move, so they are left out: a checkpoint of a fine-tuned model holds what
is tuned and nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.loop.group_rules import GroupRules

Groups = nn.Module | Iterable[Tensor] | Iterable[dict[str, Any]]


class ModelPoint:
    """The point at which a model stands; speaks as much of `nn.Module` as checkpoints need."""

    def __init__(self, given: Groups) -> None:
        self.model = given if isinstance(given, nn.Module) else None
        self.groups = _groups(given)
        self.rules = GroupRules(self.groups)
        self.trained: list[Tensor] = [p for group in self.groups for p in group["params"]]
        if not self.trained:
            raise InputError("there is no trainable parameter, so there is nothing to train")
        if len({id(item) for item in self.trained}) < len(self.trained):
            raise InputError("a parameter is in two groups; give each once")
        names = {}
        if self.model is not None:
            names = {id(item): name for name, item in self.model.named_parameters()}
        self._names = [names.get(id(item), str(at)) for at, item in enumerate(self.trained)]
        self._seen: list[int] | None = None  # versions of the parameters when we last put them
        self.kept_buffers: list[Tensor] = []  # as `keep_buffers` found them

    # -- what checkpoints ask of a module --------------------------------------------------------

    def parameters(self) -> Iterator[Tensor]:
        """The parameters that are trained."""
        return iter(self.trained)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters that are trained, by name."""
        return zip(self._names, self.trained, strict=True)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The model's buffers; none where only parameters were given."""
        return iter(()) if self.model is None else self.model.named_buffers()

    # -- moving ----------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the point as named tensors, not copied."""
        found = {f"param.{name}": item.detach() for name, item in self.named_parameters()}
        found.update({f"buffer.{name}": item.detach() for name, item in self.named_buffers()})
        return found

    @torch.no_grad()
    def place(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the model at a point that `tensors` once gave."""
        for name, own in self.tensors().items():
            given = tensors.get(name)
            if given is None or given.shape != own.shape:
                raise CheckpointError(f"a saved point does not fit the model at {name}")
            own.copy_(given)
        self.mark()

    def keep_buffers(self) -> None:
        """Remember the buffers, so that looking at a point does not change it."""
        self.kept_buffers = [item.detach().clone() for _, item in self.named_buffers()]

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Put the buffers back as they were remembered."""
        for (_, own), kept in zip(self.named_buffers(), self.kept_buffers, strict=True):
            own.copy_(kept)

    # -- watching --------------------------------------------------------------------------------

    def mark(self) -> None:
        """Remember that the parameters are where we want them."""
        self._seen = [item._version for item in self.trained]

    @property
    def moved(self) -> bool:
        """Whether somebody else has changed the parameters in place since `mark`."""
        return self._seen is not None and self._seen != [item._version for item in self.trained]

    def dense_gradients(self) -> None:
        """Turn sparse gradients into dense ones: every optimizer here needs them so."""
        for item in self.trained:
            if item.grad is not None and item.grad.layout is not torch.strided:
                item.grad = item.grad.to_dense()


def _groups(given: Groups) -> list[dict[str, Any]]:
    """Return parameter groups with their trainable parameters only."""
    if isinstance(given, nn.Module):
        items: list[Any] = [{"params": list(given.parameters())}]
    elif isinstance(given, Tensor):
        raise InputError("got a tensor, expected a model, its parameters, or parameter groups")
    else:
        items = list(given)
        if not all(isinstance(item, dict) for item in items):
            items = [{"params": items}]
    groups = []
    for item in items:
        params = item.get("params", [])
        params = [params] if isinstance(params, Tensor) else list(params)
        for param in params:
            if not isinstance(param, Tensor):
                kind = type(param).__name__
                raise InputError(f"got a {kind} among the parameters, expected tensors")
        if "lr" in item:
            raise InputError(
                f"a parameter group has lr={item['lr']!r}, but there is no learning rate; for "
                "steps of this group that are a tenth as large as the others' give multiplier=0.1"
            )
        groups.append({**item, "params": [p for p in params if p.requires_grad]})
    return [group for group in groups if group["params"]]
