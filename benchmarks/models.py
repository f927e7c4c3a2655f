"""The benchmark's models and losses."""

from collections.abc import Callable
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune.data.images import torchvision

Batch = tuple[Tensor, Tensor]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean negative log-likelihood of the classes."""
    return F.cross_entropy(model(batch[0]), batch[1])


def logistic(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean of log(1 + exp(-s z)), where s is the sign of the class."""
    signs = 2.0 * batch[1] - 1.0
    return F.softplus(-signs * model(batch[0]).squeeze(-1)).mean()


def squared(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return F.mse_loss(model(batch[0]).squeeze(-1), batch[1])


def linear(inputs: int, outputs: int) -> Callable[[], nn.Module]:
    """Return a maker of linear models with torch's initial weights."""
    return lambda: nn.Linear(inputs, outputs)


def mlp(sizes: tuple[int, ...], activation: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    """Return a maker of networks with dense layers."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def small_cnn(side: int, channels: tuple[int, int] = (8, 16)) -> Callable[[], nn.Module]:
    """Return a maker of networks: two 3 x 3 convolutions with pooling, and a linear layer."""

    def build() -> nn.Module:
        first, second = channels
        left = side // 4
        return nn.Sequential(
            nn.Conv2d(1, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * left * left, 10),
        )

    return build


def resnet18() -> nn.Module:
    """Return torchvision's ResNet-18 without pre-trained weights, for ten classes."""
    made: nn.Module = torchvision("ResNet-18").models.resnet18(weights=None, num_classes=10)
    return made
