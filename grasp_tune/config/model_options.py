"""What may be said about the model: one section for each kind, told apart by `name`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from grasp_tune.config.section import KIND, Count, EntryPoint, Flag, NamedSection, Text, Whole

Width = Annotated[Count, Field(le=65_536)]


class Model(NamedSection):
    """The keys of one kind of model."""


class TrainedModel(Model):
    """A network of which every weight is trained."""

    weights: Text | None = None
    """File with a state_dict to start from (.pt, .pth or .safetensors), such as one of an earlier
    training; tensors of other names or shapes, such as the last layer's, start as they would
    without it; empty: random weights."""


class LinearModel(Model):
    """One linear layer."""

    bias: Flag = True
    """Whether there is a constant term."""
    start: Literal["zeros", "random"] = "zeros"
    """Where training starts: all zeros (usual for convex problems) or random weights."""


class Softmax(LinearModel):
    """One linear layer with an output per class (multinomial logistic regression)."""

    name: Annotated[Literal["softmax"], KIND] = "softmax"


class Logistic(LinearModel):
    """One linear layer with one output, for two classes."""

    name: Annotated[Literal["logistic"], KIND] = "logistic"


class Linear(LinearModel):
    """One linear layer that predicts numbers (linear regression)."""

    name: Annotated[Literal["linear"], KIND] = "linear"


class Mlp(TrainedModel):
    """Fully connected layers with a non-linearity between them."""

    name: Annotated[Literal["mlp"], KIND] = "mlp"
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=32)] = (64,)
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu", "silu"] = "relu"
    """The non-linearity."""


class Cnn(TrainedModel):
    """A small convolutional network: per entry of `channels`, a 3 x 3 convolution and pooling."""

    name: Annotated[Literal["cnn"], KIND] = "cnn"
    channels: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = (16, 32)
    """Channels of each convolution."""
    hidden: Width = 64
    """Width of the layer before the last."""


class ResNet18(TrainedModel):
    """torchvision's ResNet-18, its last layer made for the data set; every weight is trained."""

    name: Annotated[Literal["resnet18"], KIND] = "resnet18"
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers: torchvision's own (a 7 x 7 convolution and pooling), or one 3 x 3 convolution,
    which keeps more of small pictures."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization: torchvision's own over the minibatch, or over groups of channels, which makes
    every sample's loss independent of the others."""
    pretrained: Flag = False
    """Start from torchvision's ImageNet weights, all but the last layer; use with `stem: imagenet`
    and `norm: batch`."""
    download: Flag = False
    """Allow torchvision's weights to be fetched from the internet."""


class Backbone(LinearModel):
    """A linear layer on the features of a frozen, pre-trained network (the paper's convex setting).

    The features of every picture are computed once and kept in a file.
    """

    name: Annotated[Literal["backbone"], KIND] = "backbone"
    architecture: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    """The frozen network."""
    weights: Text | None = None
    """File with the network's state_dict (.pt, .pth or .safetensors); empty: torchvision's ImageNet
    weights, if they were downloaded before or may be now."""
    download: Flag = False
    """Allow torchvision's weights to be fetched from the internet."""
    size: Annotated[Whole, Field(ge=32, le=512)] = 224
    """Side in pixels at which the network sees a picture."""
    cache: Text | None = None
    """Folder for the computed features; empty: ~/.cache/grasp_tune/features."""
    chunk: Count = 64
    """Pictures that pass the network at once."""


class OwnModel(TrainedModel):
    """A model from your own function, imported when the problem is built."""

    name: EntryPoint
    """`module:function`; the function takes the data (with `input_shape`, `classes` and `outputs`)
    and `options` as keywords, and returns an nn.Module."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keywords for the function."""


MODELS: dict[str, type[Model]] = {
    kind.model_fields["name"].default: kind
    for kind in (Softmax, Logistic, Linear, Mlp, Cnn, ResNet18, Backbone)
}
MODELS["module:function"] = OwnModel
CONVEX_MODELS = frozenset({"softmax", "logistic", "linear", "backbone"})
