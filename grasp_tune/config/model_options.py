"""What may be said about the model: one section per kind, told apart by `name`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from grasp_tune.config.section import (
    Count,
    EntryPoint,
    Flag,
    Section,
    Text,
    Whole,
    name_tag,
    named,
)

Width = Annotated[Whole, Field(ge=1, le=65_536)]
Start = Literal["zeros", "random"]
Architecture = Literal["resnet18", "resnet34", "resnet50"]

_START = "Where training starts: all zeros (usual for convex problems) or random weights."


class Softmax(Section):
    """One linear layer with an output per class (multinomial logistic regression)."""

    name: Annotated[Literal["softmax"], Field(description="This kind of model.")] = "softmax"
    bias: Annotated[Flag, Field(description="Whether there is a constant term.")] = True
    start: Annotated[Start, Field(description=_START)] = "zeros"


class Logistic(Section):
    """One linear layer with one output, for two classes."""

    name: Annotated[Literal["logistic"], Field(description="This kind of model.")] = "logistic"
    bias: Annotated[Flag, Field(description="Whether there is a constant term.")] = True
    start: Annotated[Start, Field(description=_START)] = "zeros"


class Linear(Section):
    """One linear layer that predicts numbers (linear regression)."""

    name: Annotated[Literal["linear"], Field(description="This kind of model.")] = "linear"
    bias: Annotated[Flag, Field(description="Whether there is a constant term.")] = True
    start: Annotated[Start, Field(description=_START)] = "zeros"


class Mlp(Section):
    """Fully connected layers with a non-linearity between them."""

    name: Annotated[Literal["mlp"], Field(description="This kind of model.")] = "mlp"
    hidden: Annotated[
        tuple[Width, ...],
        Field(min_length=1, max_length=32, description="Width of each hidden layer."),
    ] = (64,)
    activation: Annotated[
        Literal["relu", "tanh", "gelu", "silu"], Field(description="The non-linearity.")
    ] = "relu"


class Cnn(Section):
    """A small convolutional network: per entry of `channels`, a 3 x 3 convolution and pooling."""

    name: Annotated[Literal["cnn"], Field(description="This kind of model.")] = "cnn"
    channels: Annotated[
        tuple[Width, ...],
        Field(min_length=1, max_length=8, description="Channels of each convolution."),
    ] = (16, 32)
    hidden: Annotated[Width, Field(description="Width of the layer before the last.")] = 64


class ResNet18(Section):
    """torchvision's ResNet-18, its last layer made for the data set; every weight is trained."""

    name: Annotated[Literal["resnet18"], Field(description="This kind of model.")] = "resnet18"
    stem: Annotated[
        Literal["imagenet", "small"],
        Field(
            description="First layers: torchvision's own (a 7 x 7 convolution and pooling), or one "
            "3 x 3 convolution, which keeps more of small pictures."
        ),
    ] = "imagenet"
    norm: Annotated[
        Literal["batch", "group"],
        Field(
            description="Normalization: torchvision's own over the minibatch, or over groups of "
            "channels, which makes every sample's loss independent of the others."
        ),
    ] = "batch"


class Backbone(Section):
    """A linear layer on the features of a frozen, pre-trained network (the paper's convex spec).

    The features of every picture are computed once and kept in a file.
    """

    name: Annotated[Literal["backbone"], Field(description="This kind of model.")] = "backbone"
    architecture: Annotated[Architecture, Field(description="The frozen network.")] = "resnet18"
    weights: Annotated[
        Text | None,
        Field(
            description="File with the network's state_dict (.pt, .pth or .safetensors); "
            "empty: torchvision's ImageNet weights, if they were downloaded before or may be now."
        ),
    ] = None
    download: Annotated[
        Flag, Field(description="Allow torchvision's weights to be fetched from the internet.")
    ] = False
    size: Annotated[
        Whole,
        Field(ge=32, le=512, description="Side in pixels at which the network sees a picture."),
    ] = 224
    cache: Annotated[
        Text | None,
        Field(description="Folder for the computed features; empty: ~/.cache/grasp_tune/features."),
    ] = None
    chunk: Annotated[Count, Field(description="Pictures that pass the network at once.")] = 64
    bias: Annotated[Flag, Field(description="Whether there is a constant term.")] = True
    start: Annotated[Start, Field(description=_START)] = "zeros"


class EntryPointModel(Section):
    """A model from your own function, imported when the problem is built."""

    name: Annotated[
        EntryPoint,
        Field(
            description="`module:function`; the function takes the data (with `input_shape`, "
            "`classes` and `outputs`) and `options` as keywords, and returns an nn.Module."
        ),
    ]
    options: Annotated[dict[str, Any], Field(description="Keywords for the function.")] = Field(
        default_factory=dict
    )


MODELS: dict[str, type[Section]] = {
    "softmax": Softmax,
    "logistic": Logistic,
    "linear": Linear,
    "mlp": Mlp,
    "cnn": Cnn,
    "resnet18": ResNet18,
    "backbone": Backbone,
    "module:function": EntryPointModel,
}

CONVEX_MODELS = frozenset({"softmax", "logistic", "linear", "backbone"})

_AnyModel = Annotated[
    Annotated[Softmax, Tag("softmax")]
    | Annotated[Logistic, Tag("logistic")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Mlp, Tag("mlp")]
    | Annotated[Cnn, Tag("cnn")]
    | Annotated[ResNet18, Tag("resnet18")]
    | Annotated[Backbone, Tag("backbone")]
    | Annotated[EntryPointModel, Tag("module:function")],
    Discriminator(name_tag),
]
ModelOptions = Annotated[_AnyModel, BeforeValidator(named, json_schema_input_type=str | _AnyModel)]
