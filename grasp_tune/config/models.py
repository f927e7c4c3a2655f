"""Models and losses by name.

A loss is a function of (model, batch) that gives the mean loss of a minibatch `(x, y)`. Those of
classification take scores, one per class, or a single one for two classes.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from textwrap import shorten

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune.config import options as kinds
from grasp_tune.config.entry_point import call_entry_point, load_entry_point
from grasp_tune.config.errors import EntryPointError, require
from grasp_tune.core.errors import ProblemError
from grasp_tune.data.backbone_features import starting_weights
from grasp_tune.data.data import DataSpec, PixelScale
from grasp_tune.data.images import torchvision
from grasp_tune.engine.losses import target_loss
from grasp_tune.engine.metrics import METRICS
from grasp_tune.engine.streams import untouched_randomness

_MAX_PARAMETERS = 2**31
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}
Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class ModelFactory:
    """Builds the model that a `problem.model` section describes; small, so it can be sent about.

    Random weights come from torch's generator: whoever calls sets the seed.
    """

    options: kinds.Model
    spec: DataSpec
    outputs: int
    augment: tuple[str, ...] = ()

    def __call__(self) -> nn.Module:
        if not isinstance(self.options, kinds.OwnModel):
            with torch.device("meta"):  # takes no memory
                numbers = sum(item.numel() for item in self._network().parameters())
            got = f"{self.options.name} has {numbers} numbers for {self.spec.name}"
            fault = f"{got}; expected at most {_MAX_PARAMETERS}"
            require("problem.model", numbers <= _MAX_PARAMETERS, fault)
        network = self._network()
        if state := self._given():
            network.load_state_dict(self._fitting(network, state), strict=False)
        layers: dict[str, nn.Module] = {"augment": Augment(self.augment)} if self.augment else {}
        if self.spec.pixels is not None:
            layers["pixels"] = Pixels(self.spec.pixels)
        return nn.Sequential(OrderedDict(layers, network=network)) if layers else network

    def _given(self) -> dict[str, Tensor]:
        # Those of a backbone are not of the layer on top.
        trained = isinstance(self.options, kinds.TrainedModel)
        return starting_weights(self.options) if trained else {}

    def _fitting(self, network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that fit the network by name and shape; DataError if none does."""
        known = network.state_dict()
        fitting = {k: v for k, v in state.items() if k in known and known[k].shape == v.shape}
        fault = f"none of the {len(state)} tensors fits {self.options.name}; expected names "
        require("problem.model.weights", fitting, f"{fault}such as {next(iter(known), '')}")
        return fitting

    def notes(self) -> tuple[str, ...]:
        """How many of the model's tensors start from the weights that a config names."""
        if not (state := self._given()):
            return ()
        with untouched_randomness():
            network = self._network()
        names = [name for name, _ in network.named_parameters()]
        fitting = self._fitting(network, state)
        fresh = [name for name in names if name not in fitting]
        text = f"{len(names) - len(fresh)} of the {len(names)} tensors of {self.options.name} start"
        random = f"; at random start {shorten(', '.join(fresh), 80)}" if fresh else ""
        return (f"{text} from the given weights{random}.",)

    def _network(self) -> nn.Module:
        options, spec, outputs = self.options, self.spec, self.outputs
        if options.name in ("cnn", "resnet18") and len(spec.input_shape) != 3:
            raise ProblemError(
                f"problem.model: got {options.name} for {spec.name}, whose rows have shape "
                f"{spec.input_shape}; expected pictures (channels, height, width), or the model mlp"
            )
        match options:
            case kinds.LinearModel():
                layer = nn.Linear(spec.features, outputs, bias=options.bias)
                for parameter in layer.parameters() if options.start == "zeros" else ():
                    nn.init.zeros_(parameter)
                return nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=layer))
            case kinds.Mlp():
                layers: list[nn.Module] = [nn.Flatten()]
                for before, after in pairwise((spec.features, *options.hidden, outputs)):
                    layers += [nn.Linear(before, after), _ACTIVATIONS[options.activation]()]
                return nn.Sequential(*layers[:-1])
            case kinds.Cnn():
                channels, height, width = spec.input_shape
                layers = []
                for after in options.channels:
                    layers += [nn.Conv2d(channels, after, 3, padding=1), nn.ReLU()]
                    channels = after
                    if min(height, width) >= 2:  # else there is nothing left to pool
                        layers.append(nn.MaxPool2d(2))
                        height, width = height // 2, width // 2
                inner = nn.Linear(channels * height * width, options.hidden)
                last = nn.Linear(options.hidden, outputs)
                return nn.Sequential(*layers, nn.Flatten(), inner, nn.ReLU(), last)
            case kinds.ResNet18():
                channels = spec.input_shape[0]
                norm = partial(nn.GroupNorm, 32) if options.norm == "group" else None
                make = torchvision("the model resnet18").models.resnet18
                network: nn.Module = make(weights=None, num_classes=outputs, norm_layer=norm)
                if options.stem == "small":
                    network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
                    network.maxpool = nn.Identity()
                elif channels != 3:
                    network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
                return network
        assert isinstance(options, kinds.OwnModel)
        given = replace(spec, outputs=outputs)
        model = call_entry_point(options.name, "problem.model", options.options, given)
        if not isinstance(model, nn.Module):
            got = f"{options.name} returned {type(model).__name__}"
            raise EntryPointError(f"problem.model.name: {got}, expected a torch.nn.Module")
        return model


class Pixels(nn.Module):
    """Bytes to numbers, as `PixelScale` says; the first layer of every model on pictures."""

    factor: Tensor
    offset: Tensor

    def __init__(self, scale: PixelScale) -> None:
        super().__init__()
        mean, std = (torch.tensor(part).double().view(-1, 1, 1) for part in (scale.mean, scale.std))
        # Not part of the state: the options say it all.
        self.register_buffer("factor", (scale.scale / (255 * std)).float(), False)
        self.register_buffer("offset", (-scale.scale * mean / std).float(), False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) bytes to float32 numbers."""
        return x.to(self.factor.dtype) * self.factor + self.offset


class Augment(nn.Module):
    """Random changes of a minibatch's inputs while training; in evaluation nothing changes.

    torch's generator is addressed by the oracle call: one that is repeated sees the same changes.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names

    def forward(self, x: Tensor) -> Tensor:
        for name in self._names if self.training else ():
            if name in ("flip", "crop") and x.ndim != 4:
                got = f"got {name} for rows of shape {tuple(x.shape[1:])}"
                wanted = "expected pictures (channels, height, width)"
                raise ProblemError(f"problem.augment: {got}, {wanted}")
            if name == "flip":
                sides = torch.rand(len(x), device=x.device) < 0.5
                x = torch.where(sides.view(-1, 1, 1, 1), x.flip(-1), x)
            elif name == "crop":
                x = _moved(x, max(1, x.shape[-1] // 8))
            elif name == "noise":
                numbers = x.to(torch.get_default_dtype())
                x = numbers + 0.1 * numbers.std(dim=0) * torch.randn_like(numbers)
            else:
                rows, x = len(x), load_entry_point(name, "problem.augment")(x)
                got = f"{len(x)} rows" if isinstance(x, Tensor) else type(x).__name__
                if got != f"{rows} rows":
                    wanted = f"expected a tensor of the {rows} rows it was given"
                    raise EntryPointError(f"problem.augment: {name} returned {got}, {wanted}")
        return x


def _moved(x: Tensor, most: int) -> Tensor:
    """Every picture moved by up to `most` pixels, its edge in place of the gap."""
    rows, (height, width) = len(x), x.shape[-2:]
    down, right = torch.randint(-most, most + 1, (2, rows, 1), device=x.device)
    at_row = (torch.arange(height, device=x.device) + down).clamp(0, height - 1)
    at_column = (torch.arange(width, device=x.device) + right).clamp(0, width - 1)
    row = torch.arange(rows, device=x.device).view(-1, 1, 1)
    return x.permute(0, 2, 3, 1)[row, at_row[:, :, None], at_column[:, None, :]].permute(0, 3, 1, 2)


def default_model(convex: bool, spec: DataSpec) -> kinds.Model:
    """The model when a config names none: one linear layer if convex, else a small network."""
    linear = kinds.LinearModel(name="linear" if spec.classes is None else "softmax")
    return linear if convex else kinds.Mlp()


cross_entropy = partial(target_loss, F.cross_entropy)
mse = partial(target_loss, F.mse_loss)


def logistic(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of log(1 + exp(-s z)) with the score z and the sign s = 2y - 1 of two classes."""
    return F.softplus(-_signs(batch[1]) * model(batch[0]).squeeze(-1)).mean()


def hinge(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of max(0, 1 - margin); with many classes, the margin over the best wrong one."""
    scores, y = model(batch[0]), batch[1]
    if scores.shape[-1] == 1:
        return F.relu(1 - _signs(y) * scores.squeeze(-1)).mean()
    right = scores.gather(1, y.unsqueeze(1))
    # The right class itself gives 0, so that the maximum is never below it.
    return (1 + scores - right).scatter(1, y.unsqueeze(1), 0.0).amax(dim=1).mean()


def _signs(y: Tensor) -> Tensor:
    return y.to(torch.get_default_dtype()) * 2 - 1


_BY_NAME: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "logistic": logistic,
    "mse": mse,
    "hinge": hinge,
}


def settle_loss(
    name: str | None, model: str, spec: DataSpec, metric: str | None = None
) -> tuple[str, Loss, int]:
    """The name of a loss, the loss, and its number of outputs; ProblemError if one does not fit."""
    numbers, two, one_score = spec.classes is None, spec.classes == 2, model == "logistic"
    what = "whose labels are numbers to predict" if numbers else f"which has {spec.classes} classes"
    fitting = ("linear",) if numbers else ("softmax", "logistic") if two else ("softmax",)
    loss = name or ("logistic" if one_score else "mse" if numbers else "cross_entropy")
    fault, about, wanted = f"loss: got {loss}", f"for {spec.name}, {what}", ""
    if model in ("softmax", "logistic", "linear") and model not in fitting:
        fault, wanted = f"model: got {model}", " or ".join(fitting)
    elif loss in _BY_NAME and (loss == "mse") != numbers:
        wanted = "mse" if numbers else "cross_entropy, logistic or hinge"
    elif loss == "logistic" and not two:
        wanted = "cross_entropy"
    elif loss == "cross_entropy" and one_score:
        about = "with the model logistic, which has one score"
        wanted = "logistic or hinge, or the model softmax"
    elif metric in METRICS and loss in _BY_NAME and (metric == "r2") != numbers:
        fault, wanted = f"metric: got {metric}", "r2" if numbers else "accuracy, f1 or auc"
    if wanted:
        raise ProblemError(f"problem.{fault} {about}, expected {wanted}")
    outputs = 1 if one_score or loss == "logistic" else spec.outputs
    return loss, _BY_NAME.get(loss) or load_entry_point(loss, "problem.loss"), outputs
