"""A run as tensors and plain numbers: what goes into a checkpoint, and back.

`param.*` and `buffer.*` are the model, `opt.I.*` the optimizer's state of the I-th parameter,
`average.G.*` the running average with exponent G.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.errors import CheckpointError, ProblemError
from grasp_tune.engine.tensor_file import NAMES, Meta
from grasp_tune.optimizers.coordinatewise import OwnState

Tensors = dict[str, Tensor]
GIVEN = "momentum_given"  # what a BatchNorm's attribute of this name holds while another one is set


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was written under a key; the tensors are the reader's own, in main memory, by name."""

    tensors: Tensors
    meta: Meta


class Store(Protocol):
    """Checkpoints by key, which is 1 to 120 of a-z, 0-9, dot, dash, underscore; no dot first.

    `read` gives what was written, bit for bit, or raises `CheckpointError` where it is missing or
    damaged; `exists` does not look whether it is whole; to delete an unknown key is no fault.
    """

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None: ...
    def read(self, key: str) -> Checkpoint: ...
    def exists(self, key: str) -> bool: ...
    def delete(self, key: str) -> None: ...
    def keys(self) -> tuple[str, ...]: ...  # sorted


class Named(Protocol):
    """What checkpoints need of an `nn.Module`."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


def live_tensors(model: Named) -> Tensors:
    """Return the model's parameters and buffers by name, themselves."""
    found = {f"param.{name}": item for name, item in model.named_parameters()}
    return found | {f"buffer.{name}": item for name, item in model.named_buffers()}


def model_tensors(model: Named) -> Tensors:
    """Return the model's parameters and buffers by name, detached; not copies."""
    return {name: item.detach() for name, item in live_tensors(model).items()}


def check_tensors(model: Named) -> None:
    """Raise `ProblemError` where a parameter or buffer cannot be trained, copied or saved."""
    for place, item in live_tensors(model).items():
        if wrong := next(_faults(item), None):
            kind, _, name = place.partition(".")
            kind = "parameter" if kind == "param" else kind
            raise ProblemError(f"model: {kind} {name} is {wrong}")


def _faults(item: Tensor) -> Iterator[str]:
    if nn.parameter.is_lazy(item):
        yield "not initialised yet (a lazy module); run the model once on an example first"
    if hasattr(item, "full_tensor") or hasattr(item, "_is_flat_param"):
        yield "sharded (FSDP): each rank would measure its own part; use DistributedDataParallel"
    if item.is_meta:
        yield "on the meta device, without numbers; build the model on a real one"
    if item.is_nested or item.layout is not torch.strided:
        yield "sparse or nested; make it dense"
    if any(size > 1 and not step for size, step in zip(item.shape, item.stride(), strict=True)):
        yield "expanded: several of its numbers are one in memory; clone() it"
    if item.requires_grad and item.is_complex():
        yield "complex; keep its real and imaginary parts and join them with torch.view_as_complex"
    if item.requires_grad and item.dtype == torch.float16:
        yield "float16, too narrow for unknown steps; take float32 or bfloat16; use torch.autocast"
    if item.dtype not in NAMES or (item.requires_grad and item.dtype.itemsize < 2):
        yield f"{str(item.dtype).removeprefix('torch.')}, which cannot be saved or trained here"


def load_model(model: Named, tensors: Mapping[str, Tensor], key: str) -> None:
    """Copy a checkpoint's parameters and buffers into the model."""
    for name, own in model_tensors(model).items():
        given = tensors.get(name)
        if given is None or given.shape != own.shape or given.dtype != own.dtype:
            there = "missing" if given is None else f"{given.dtype} of shape {tuple(given.shape)}"
            words = f"it is {there} there and {own.dtype} of shape {tuple(own.shape)} in the model"
            raise CheckpointError(
                f"checkpoint {key} does not fit the model at {name}: {words.replace('torch.', '')}."
                " Names and shapes must stay the same, in every model that is built and while it "
                "runs; or the checkpoint is another model's, or damaged"
            )
        own.copy_(given)


def finite(model: Named) -> bool:
    """Return whether every trainable parameter is finite."""
    # Its ends tell, NaN among them; `isfinite` of all of it takes twice its memory.
    trained = (x.detach() for _, x in model.named_parameters() if x.requires_grad and x.numel())
    return all(math.isfinite(end) for x in trained for end in torch.aminmax(x))


def digest(tensors: Tensors) -> str:
    """Return a short fingerprint of a model's parameters and buffers."""
    found = hashlib.blake2b(digest_size=8)
    for name, item in sorted(tensors.items()):
        found.update(f"{name}:{item.dtype}:{tuple(item.shape)};".encode())
        found.update(item.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


class Buffers:
    """The buffers of a model: kept, put back, and changed by what several calls did to them."""

    def __init__(self, model: nn.Module | None) -> None:
        self._modules = [] if model is None else list(model.modules())
        frozen = torch.jit.ScriptModule  # a momentum cannot be set in it
        self._tracking: list[Any] = [
            item
            for item in self._modules
            if getattr(item, "track_running_stats", False) and not isinstance(item, frozen)
        ]
        self._places: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        self.items: list[Tensor] = []  # where the model has not put others in their places
        self.kept: list[Tensor] = []  # as `keep` found them

    def follow(self, steps: int | None) -> None:
        """Let running statistics (BatchNorm) look back over at most a tenth of a run's steps.

        With torch's own momentum of 0.1 they would lag behind the weights of a short run. None:
        back to the user's momentum, which the module keeps, also in a copy of it.
        """
        for part in self._tracking:
            given = part.momentum = vars(part).pop(GIVEN, part.momentum)
            if steps and isinstance(given, float):
                vars(part)[GIVEN] = given
                part.momentum = max(given, min(0.5, 10.0 / steps))

    def keep(self) -> None:
        """Remember the buffers as they are now."""
        if not self._places:  # found when first needed: until then the model may move elsewhere
            self._places = [
                (module._buffers, name, item)
                for module in self._modules
                for name, item in module._buffers.items()
                if item is not None
            ]
            self.items, self._modules = [item for _, _, item in self._places], []
        now = ((owner[name], item) for owner, name, item in self._places)
        self.kept = [(item if own is None else own).clone() for own, item in now]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the buffers back, so that looking at a point does not change it."""
        for (owner, name, item), kept in zip(self._places, self.kept, strict=True):
            owner[name] = item.copy_(kept)  # a model may also put another tensor in its place

    def changes(self, *, counters: bool) -> list[Tensor | None]:
        """Return how buffers differ from those kept, None for those that do not.

        Fractions by their difference, which can be averaged; `counters`, if wanted, by their value.
        """
        found: list[Tensor | None] = []
        for (owner, name, _), kept in zip(self._places, self.kept, strict=True):
            now, fraction = owner[name], kept.is_floating_point()
            if now is None or torch.equal(now, kept) or not (fraction or counters):
                found.append(None)
            else:
                found.append(now - kept if fraction else now.clone())
        return found

    def change(self, changes: Sequence[Tensor | None]) -> None:
        """Put the buffers where they were kept, and then make these changes."""
        self.restore()
        for item, change in zip(self.items, changes, strict=True):
            if change is not None:
                item.copy_(item + change if item.is_floating_point() else change)


def optimizer_tensors(optimizer: Optimizer) -> tuple[Tensors, str]:
    """Return the optimizer's tensors, and its numbers as JSON."""
    tensors, numbers, packed = Tensors(), dict[int, Any](), optimizer.state_dict()
    for at, entries in packed["state"].items():
        found = {name: x.detach() for name, x in entries.items() if isinstance(x, Tensor)}
        tensors |= {f"opt.{at}.{name}": x for name, x in found.items()}
        numbers[at] = {name: _plain(name, x) for name, x in entries.items() if name not in found}
    groups = [
        {n: _plain(n, x) for n, x in g.items() if n != "params"} for g in packed["param_groups"]
    ]
    return tensors, json.dumps({"state": numbers, "groups": groups})


def load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], numbers: str) -> None:
    """Put a fresh optimizer where another one of its kind was; the tensors are then its own."""
    read, groups = json.loads(numbers), optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, read["groups"], strict=True):
        group |= {name: tuple(x) if isinstance(x, list) else x for name, x in saved.items()}
    state: dict[int, dict[str, Any]] = {int(at): entries for at, entries in read["state"].items()}
    for name, tensor in tensors.items():
        if name.startswith("opt."):
            _, index, entry = name.split(".", 2)
            state.setdefault(int(index), {})[entry] = tensor
    # Ours would copy what it is given; here nobody else has it.
    kind = Optimizer if isinstance(optimizer, OwnState) else type(optimizer)
    kind.load_state_dict(optimizer, {"state": state, "param_groups": groups})


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    listed = value if isinstance(value, tuple | list) else [value]
    if all(item is None or isinstance(item, bool | int | float | str) for item in listed):
        return value  # JSON of Python's kind has words for infinity and NaN
    kind = type(value).__name__
    text = f"the optimizer keeps {name} as a {kind}, which a checkpoint of tensors and numbers"
    raise CheckpointError(f"{text} cannot hold")
