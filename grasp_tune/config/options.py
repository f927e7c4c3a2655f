"""What may be said about the model, the method and the backend: one section for each kind."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from grasp_tune.config import section as s
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, NonConvex
from grasp_tune.optimizers.registry import optimizer_names

Width = Annotated[s.Count, Field(le=65_536)]
Workers = Annotated[s.Count, Field(le=10_000)]
Download = Annotated[s.Flag, s.REACHES]
Optimizer = Annotated[s.Text, s.known_or_own(optimizer_names)]
OPTIMIZERS = f"{', '.join(optimizer_names())}, or `module:function` of (parameters, value)"


class TrainedModel(s.NamedSection):
    """A network of which every weight is trained."""

    weights: s.PathText | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, as far as it fits."""


class LinearModel(s.NamedSection):
    """One linear layer: softmax has an output per class, logistic one; linear predicts numbers."""

    name: Annotated[Literal["softmax", "logistic", "linear"], s.KIND]
    bias: s.Flag = True
    """Whether there is a constant term."""
    start: Literal["zeros", "random"] = "zeros"
    """Where training starts: all zeros (usual for convex problems) or random weights."""


class Mlp(TrainedModel):
    """Fully connected layers with a non-linearity between them."""

    name: Annotated[Literal["mlp"], s.KIND] = "mlp"
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=32)] = (64,)
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu", "silu"] = "relu"
    """The non-linearity."""


class Cnn(TrainedModel):
    """A small convolutional network: per entry of `channels`, a 3 x 3 convolution and pooling."""

    name: Annotated[Literal["cnn"], s.KIND] = "cnn"
    channels: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = (16, 32)
    """Channels of each convolution."""
    hidden: Width = 64
    """Width of the layer before the last."""


class ResNet18(TrainedModel):
    """torchvision's ResNet-18, its last layer made for the data set; every weight is trained."""

    name: Annotated[Literal["resnet18"], s.KIND] = "resnet18"
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers: a 7 x 7 convolution and pooling, or for small pictures one of 3 x 3."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization over the minibatch, or over groups of channels: samples stay independent."""
    pretrained: s.Flag = False
    """Start from its ImageNet weights, but for the last layer (`stem: imagenet`, `norm: batch`)."""
    download: Download = False
    """Allow torchvision's weights to be fetched from the internet."""


class Backbone(LinearModel):
    """A linear layer on the features of a frozen, pre-trained network, computed once and kept."""

    name: Annotated[Literal["backbone"], s.KIND] = "backbone"  # type: ignore[assignment]
    architecture: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    """The frozen network."""
    weights: s.PathText | None = None
    """File with its state_dict (.pt, .pth, .safetensors); empty: torchvision's ImageNet weights."""
    download: Download = False
    """Allow torchvision's weights to be fetched from the internet."""
    size: Annotated[s.Whole, Field(ge=32, le=512)] = 224
    """Side in pixels at which the network sees a picture."""
    cache: s.Place = None
    """Folder for the computed features; empty: ~/.cache/grasp_tune/features."""
    chunk: s.Count = 64
    """Pictures that pass the network at once."""


class OwnModel(TrainedModel):
    """A model from your own function, imported when the problem is built."""

    name: s.EntryPoint
    """`module:function` of the data (`input_shape`, `classes`, `outputs`); returns an nn.Module."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keywords for the function."""


CONVEX_MODELS = ("softmax", "logistic", "linear", "backbone")
Model = TrainedModel | LinearModel
MODELS: dict[str, type[Model]] = s.by_name(LinearModel, Mlp, Cnn, ResNet18, Backbone, OwnModel)


class MethodSection(s.NamedSection):
    """A variant of the method."""

    # Its subclasses are made below and have no source text in which to look for docstrings.
    model_config = ConfigDict(use_attribute_docstrings=False)

    base: Optimizer | None = Field(
        None,
        description=f"Optimizer that the search runs: {OPTIMIZERS}; empty: the schedule's own.",
    )


_OPTION = Literal["smooth", "universal"]
_PROBE = Annotated[s.Real, Field(gt=0, lt=1)] | None
_ANY = "any positive number is right, a smaller one costs a logarithm."
_INPUTS: dict[str, tuple[Any, str]] = {
    "d_eps": (s.Positive, f"Where the searched distances begin; {_ANY}"),
    "L_eps": (s.Positive, f"Floor for the unknown smoothness; {_ANY}"),
    "F_eps": (s.Positive, "Floor for the unknown gain in loss; any positive number is right."),
    "delta": (s.Real, "Probability with which the guarantee may fail."),
    "option": (_OPTION, "The paper's Option I (smooth) or II (smooth or not)."),
    "value_floor": (s.Real, "For `universal`: what the loss never goes below; 0 for usual losses."),
    "probe": (_PROBE, "Share of the budget for the probe; empty: the schedule's (`paper`: 1/4)."),
}
_VARIANTS: dict[Any, str] = {
    NonConvex: "GRASP-NC: for neural networks and every smooth loss; chooses by the gradient norm.",
    Convex: "GRASP-C: for convex losses, such as softmax regression; chooses by the loss.",
    ConvexFree: "GRASP-C for convex losses without any known lower bound.",
    Deterministic: "For smooth convex losses with exact gradients: a batch is the whole data set.",
}


def _section(method: Any, doc: str) -> type[MethodSection]:
    """The section of a variant: a key for every input of its class, with the class's default."""
    name = Field(method.name, description="This method.")
    keys: dict[str, Any] = {"name": (Literal[method.name], name)}
    for item in (item for item in fields(method) if item.name in _INPUTS):
        kind, meaning = _INPUTS[item.name]
        if item.name == "delta":
            kind = Annotated[s.Real, Field(gt=0, lt=float(method.delta_below))]
        keys[item.name] = (kind, Field(item.default, description=meaning))
    return create_model(method.__name__, __base__=MethodSection, __doc__=doc, **keys)


METHODS = {method.name: _section(method, doc) for method, doc in _VARIANTS.items()}


class BackendSection(s.Section):
    """Where the work runs."""

    kind: str
    """Which backend this is."""
    workers: Workers | None = None
    """Tasks at the same time; empty: as many as the cluster holds."""


class Local(BackendSection):
    """On this machine, without any server."""

    kind: Annotated[Literal["local"], s.KIND] = "local"
    workers: Workers = 1
    """Processes that train at the same time; 1: this process."""
    threads: Annotated[s.Count, Field(le=1024)] | None = None
    """Threads that torch uses in each; empty: torch's own choice."""
    fused: s.FlagOrAuto = "auto"
    """Let the cells of a small model share tasks, with the same result; `auto`: by the model."""


class Ray(BackendSection):
    """On a Ray cluster, or on a Ray started here."""

    kind: Annotated[Literal["ray"], s.KIND] = "ray"
    address: Annotated[s.Text | None, s.REACHES] = None
    """Cluster: `auto`, host:port or ray://host:port; empty: start it here."""
    cpus_per_task: Annotated[s.Real, Field(ge=0, le=1024)] = 1.0
    """Processor cores that one task reserves; fractions let several tasks share a core."""
    gpus_per_task: Annotated[s.Real, Field(ge=0, le=64)] = 0.0
    """GPUs that one task reserves; 0.25 lets four tasks share one."""
    storage: s.Place = None
    """Folder or URI for checkpoints that every machine can reach; empty: the output folder."""
    max_failures: Annotated[s.Whole, Field(ge=0, le=1000)] = 2
    """How often a task is tried again after a fault."""


class Optuna(BackendSection):
    """As an Optuna study, which other processes and machines may join."""

    kind: Annotated[Literal["optuna"], s.KIND] = "optuna"
    storage: s.Place = None
    """Database URL (sqlite:///study.db, postgresql://...) or journal file; empty: in memory."""
    study: Annotated[s.Text, Field(max_length=512)] = "grasp_tune"
    """Name of the study in the storage."""
    workers: Workers = 1
    """Processes on this machine; more than one needs `storage`."""


BACKENDS: dict[str, type[BackendSection]] = s.by_name(Local, Ray, Optuna)
