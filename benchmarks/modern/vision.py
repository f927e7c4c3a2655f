"""Networks on images: a vision transformer, a ConvNeXt, an autoencoder, a diffusion U-Net."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import datasets as data
from benchmarks import models
from benchmarks.datasets import Arrays
from benchmarks.models import Batch
from benchmarks.modern.layers import Block
from benchmarks.workload import Workload

_MNIST, _CIFAR = ("MNIST/raw/train-images-idx3-ubyte",), (data.CIFAR_ARCHIVE,)


class VisionTransformer(nn.Module):
    """A vision transformer: patches as tokens, two blocks, the mean token to the classes."""

    def __init__(self, width: int = 32, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn((32 // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, causal=False) for _ in range(2)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        scores: Tensor = self.out(self.norm(self.blocks(tokens)).mean(1))
        return scores


class ConvBlock(nn.Module):
    """A depthwise convolution, a norm over channels, and a feed-forward net per pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down, self.scale = nn.Linear(4 * width, width), nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the block's output."""
        inner = self.norm(self.mix(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(F.gelu(self.up(inner)))
        return x + inner.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Return a ConvNeXt with two stages of two blocks, on 8 x 8 and 4 x 4 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        ConvBlock(16),
        ConvBlock(16),
        nn.Conv2d(16, 32, 2, 2),
        ConvBlock(32),
        ConvBlock(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 10),
    )


def reconstruction(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error over all pixels."""
    return F.mse_loss(model(batch[0]), batch[1])


def _itself(folder: Path) -> Arrays:
    arrays = data.mnist(folder).changed(lambda x: x.flatten(1))
    return Arrays(arrays.x, arrays.x, arrays.x_test, arrays.x_test)


class UNet(nn.Module):
    """A U-Net, down to half the size and up again; the noise level is an extra channel."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, n * width) for n in (1, 2, 2, 1)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the estimated noise in the image."""
        first, second, third, fourth = self.norms
        wide = F.silu(first(self.first(x)))
        deep = F.silu(second(self.down(wide)))
        deep = deep + F.silu(third(self.middle(deep)))
        joined = torch.cat([wide, self.up(deep)], 1)
        noise: Tensor = self.out(F.silu(fourth(self.last(joined))))
        return noise


def _noisy(folder: Path) -> Arrays:
    """Return digits of 14 x 14 pixels with noise of a random level, and the noise itself."""
    made = []
    arrays = data.mnist(folder)
    assert arrays.x_test is not None
    for pictures, seed in ((arrays.x[:20_000], 11), (arrays.x_test[:2_000], 12)):
        draw = torch.Generator().manual_seed(seed)
        small = F.avg_pool2d(pictures, 2) * 2.0 - 1.0
        level = torch.rand(len(small), 1, 1, 1, generator=draw)
        noise = torch.randn(small.shape, generator=draw)
        angle = level * math.pi / 2  # cosine noise schedule
        mixed = small * torch.cos(angle) + noise * torch.sin(angle)
        made += [torch.cat([mixed, level.expand_as(mixed)], 1), noise]
    return Arrays(*made)


VISION = (
    Workload(
        "vit",
        "vision transformer on CIFAR-10",
        False,
        data.cifar_images,
        VisionTransformer,
        models.cross_entropy,
        _CIFAR,
        budget=1_200,
        batch_size=16,
        sample=2_000,
    ),
    Workload(
        "convnext",
        "ConvNeXt-like net on CIFAR-10",
        False,
        data.cifar_images,
        convnext,
        models.cross_entropy,
        _CIFAR,
        budget=1_000,
        batch_size=16,
        sample=2_000,
    ),
    Workload(
        "autoencoder",
        "deep narrow autoencoder on MNIST, squared loss",
        False,
        _itself,
        models.mlp((784, 128, 64, 32, 16, 8, 16, 32, 64, 128, 784)),
        reconstruction,
        _MNIST,
        budget=1_500,
        batch_size=32,
        sample=5_000,
        classes=False,
    ),
    Workload(
        "deep-relu",
        "fourteen narrow ReLU layers without norms on MNIST",
        False,
        lambda folder: data.mnist(folder).changed(lambda x: x.flatten(1)),
        models.mlp((784, *[48] * 13, 10)),
        models.cross_entropy,
        _MNIST,
        budget=1_500,
        batch_size=32,
        sample=5_000,
    ),
    Workload(
        "diffusion",
        "small U-Net that predicts noise, MNIST 14 x 14",
        False,
        _noisy,
        UNet,
        reconstruction,
        _MNIST,
        budget=1_000,
        batch_size=16,
        sample=2_000,
        classes=False,
    ),
)
