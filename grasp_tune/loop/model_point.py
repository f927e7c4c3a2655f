"""The current point of the user's model: reads and sets its trainable parameters and buffers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine import checkpoints
from grasp_tune.engine.checkpoints import Checkpoint, Store, Tensors
from grasp_tune.engine.sampling import Bench
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.engine.tensor_file import Meta

Groups = (
    nn.Module | Iterable[Tensor] | Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]]
)
LOOK = 64  # steps between two comparisons of the parameters' norms


def clones(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: item.detach().clone() for name, item in tensors.items()}


class ParkedStore:
    """A checkpoint store in memory: on the device of each tensor, or all on `device`."""

    def __init__(self, device: str | None = None) -> None:
        self._device = device
        self._kept: dict[str, Checkpoint] = {}

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        copies = {n: x.detach().to(self._device or x.device, copy=True) for n, x in tensors.items()}
        self._kept[key] = Checkpoint(copies, dict(meta))

    def read(self, key: str) -> Checkpoint:
        """Return a checkpoint; the model's own tensors, which nothing changes, are not copied."""
        if (kept := self._kept.get(key)) is None:
            raise CheckpointError(f"checkpoint {key} is missing: nothing was written", key)
        own = ("param.", "buffer.")
        found = {n: x if n.startswith(own) else x.clone() for n, x in kept.tensors.items()}
        return Checkpoint(found, dict(kept.meta))

    def exists(self, key: str) -> bool:
        return key in self._kept

    def delete(self, key: str) -> None:
        self._kept.pop(key, None)

    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(self._kept))


class ModelPoint(Bench):
    """The current point of a model: its trainable parameters and its buffers.

    given: the model, its parameters, or parameter groups.
    store: where checkpoints are kept.
    weight_decay: for the weights of groups without their own value.
    clip: the largest norm of a step's gradient over all parameters.
    """

    origin = "loop"  # instead of a digest: a loop starts from the model as it is

    def __init__(
        self, given: Groups, store: Store, weight_decay: float = 0.0, clip: float | None = None
    ) -> None:
        self.model = given if isinstance(given, nn.Module) else None
        self.bare = None if self.model is None else _bare(self.model)
        self.groups = _groups(given, weight_decay)
        trained = [param for group in self.groups for param in group["params"]]
        super().__init__(self.model, trained, store)
        if not self.trained:
            raise InputError("there is no trainable parameter, so there is nothing to train")
        if len({id(item) for item in self.trained}) < len(self.trained):
            raise InputError("a parameter is in two groups; give each once")
        named = () if self.bare is None else self.bare.named_parameters()
        names = {id(item): name for name, item in named}
        self._names = [names.get(id(item), str(at)) for at, item in enumerate(self.trained)]
        self.named = self
        checkpoints.check_tensors(self if self.model is None else self.model)
        self.rules = StepRules(self.groups, clip)
        self._seen: list[Any] | None = None  # versions and addresses at the last `mark`
        self._marks, self._norms = 0, list[Tensor]()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return zip(self._names, self.trained, strict=True)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self.bare is None else self.bare.named_buffers()

    def tensors(self) -> Tensors:
        return checkpoints.model_tensors(self)

    @torch.no_grad()
    def put(self, tensors: Mapping[str, Tensor], key: str = "the saved loop") -> None:
        """Move the model to a point that `tensors()` returned earlier."""
        checkpoints.load_model(self, tensors, key)
        self.mark()

    def place(self, key: str) -> Checkpoint:
        """Return a checkpoint, after moving the model to it."""
        saved = self.store.read(key)
        self.put(saved.tensors, key)
        return saved

    def mark(self, look: bool = False) -> None:
        """Remember the parameters as they are now; with `look`, always their norms, too."""
        self._seen, self._norms = self._looks, []
        self._marks += 1
        # Only norms show changes of `item.data`. Rarely, because they read all the memory.
        if look or self._marks % LOOK == 0 or self._marks & (self._marks - 1) == 0:
            with torch.no_grad():
                self._norms = list(torch._foreach_norm(self.trained))

    @property
    def _looks(self) -> list[Any]:
        """Properties that change with the parameters and cost nothing to read."""
        return [(item._version, item.data_ptr()) for item in self.trained]

    @property
    def moved(self) -> bool:
        """Whether other code has changed the parameters since `mark`."""
        if self._seen is None:
            return False
        if self._seen != self._looks:
            return True
        now = torch._foreach_norm(self.trained) if self._norms else []
        pairs = zip(now, self._norms, strict=True)
        return not all(torch.equal(a, b) or bool(a.isnan() & b.isnan()) for a, b in pairs)

    def stands_at(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the parameters equal those that `tensors()` returned earlier."""
        found = ((item, tensors[f"param.{name}"]) for name, item in self.named_parameters())
        return all(torch.equal(item, given.to(item.device)) for item, given in found)

    @property
    def joined(self) -> bool:
        """Whether the model has trainable parameters that are new or were unfrozen later."""
        known = {id(item) for item in self.trained}
        own = () if self.model is None else self.model.parameters()
        return any(item.requires_grad and id(item) not in known for item in own)

    def check_gradients(self) -> None:
        """Make sparse gradients dense for our optimizers; raise an error without gradients."""
        if all(item.grad is None for item in self.trained):
            raise InputError("no parameter has a gradient: call loss.backward() before opt.step")
        for item in self.trained:
            if item.grad is not None and item.grad.layout is not torch.strided:
                item.grad = item.grad.to_dense()


def _bare(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel and torch.compile, which has plain names."""
    while True:
        inner = getattr(model, "_orig_mod", None)  # torch.compile's
        if isinstance(model, DataParallel | DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _groups(given: Groups, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups with only their trainable parameters."""
    if isinstance(given, nn.Module):
        given = given.parameters()
    elif isinstance(given, Tensor):
        raise InputError("got a tensor, expected a model, its parameters, or parameter groups")
    items: list[Any] = list(given)
    if not all(isinstance(item, dict) for item in items):
        items = [{"params": items}]
    groups = []
    for item in items:
        params = item.get("params", [])
        params = [params] if isinstance(params, Tensor) else list(params)
        params = [param[1] if isinstance(param, tuple) else param for param in params]  # named
        for kind in [type(param).__name__ for param in params if not isinstance(param, Tensor)]:
            raise InputError(f"got a {kind} among the parameters, expected tensors")
        if "lr" in item:
            raise InputError(
                f"a parameter group has lr={item['lr']!r}, but there is no learning rate; for "
                "steps of this group that are a tenth as large as the others' give multiplier=0.1"
            )
        decay = {"weight_decay": weight_decay, "weights_only": "weight_decay" not in item}
        groups.append({**decay, **item, "params": [p for p in params if p.requires_grad]})
    return [group for group in groups if group["params"]]
