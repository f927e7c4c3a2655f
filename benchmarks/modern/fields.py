"""Networks from coordinates to the colours of an image: sine activations, Fourier features."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import models
from benchmarks.datasets import Arrays
from benchmarks.modern.vision import reconstruction
from benchmarks.workload import Workload


def _picture(name: str) -> Callable[[Path], Arrays]:
    """Return a loader of a photograph from scikit-learn: coordinates and colours in [-1, 1].

    A tenth of the pixels, always the same, is kept for testing.
    """

    def load(folder: Path) -> Arrays:
        from sklearn.datasets import load_sample_image

        pixels = torch.tensor(load_sample_image(f"{name}.jpg")).permute(2, 0, 1).float()
        small = F.interpolate(pixels[None], size=(96, 144), mode="area")[0] / 127.5 - 1.0
        rows, columns = torch.linspace(-1, 1, 96), torch.linspace(-1, 1, 144)
        x = torch.cartesian_prod(rows, columns)
        y = small.permute(1, 2, 0).reshape(-1, 3)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(21))
        cut = len(x) // 10
        test, train = order[:cut], order[cut:]
        return Arrays(x[train], y[train], x[test], y[test])

    return load


class Sine(nn.Module):
    """A dense layer with a sine, initialized as Sitzmann et al. (2020) advise."""

    def __init__(self, inputs: int, outputs: int, *, first: bool = False) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        reach = 1.0 / inputs if first else math.sqrt(6.0 / inputs) / 30.0
        nn.init.uniform_(self.dense.weight, -reach, reach)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sine of thirty times the dense layer."""
        return torch.sin(30.0 * self.dense(x))


def _sine() -> nn.Module:
    return nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 3))


class Fourier(nn.Module):
    """Fixed random frequencies, followed by an ordinary network."""

    def __init__(self, frequencies: int = 64, spread: float = 6.0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(22)
        self.frequencies = torch.randn(2, frequencies, generator=draw) * spread
        self.net = models.mlp((2 * frequencies, 64, 64, 3))()

    def forward(self, x: Tensor) -> Tensor:
        """Return the colours."""
        angles = math.pi * x @ self.frequencies
        colours: Tensor = self.net(torch.cat([angles.sin(), angles.cos()], -1))
        return colours


FIELDS = (
    Workload(
        "sine",
        "sine network that fits a photograph",
        False,
        _picture("china"),
        _sine,
        reconstruction,
        budget=1_500,
        batch_size=128,
        classes=False,
    ),
    Workload(
        "fourier",
        "Fourier features and a ReLU network that fit a photograph",
        False,
        _picture("flower"),
        Fourier,
        reconstruction,
        budget=1_500,
        batch_size=128,
        classes=False,
    ),
)
