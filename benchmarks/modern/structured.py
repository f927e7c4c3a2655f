"""Networks on graphs and tables: graph convolutions, a residual net, a wide and deep one."""

import math
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import datasets, models
from benchmarks.datasets import Arrays
from benchmarks.workload import Workload

NODES, COMMUNITIES, TRAITS = 400, 6, 24


@cache
def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Return a graph's normalised adjacency, and the nodes' features and communities.

    There are six communities, eight edges per node on average (two thirds within a community), and
    features that say little about the community.
    """
    draw = torch.Generator().manual_seed(31)
    label = torch.randint(0, COMMUNITIES, (NODES,), generator=draw)
    same = label[:, None] == label[None, :]
    inside = 16 / 3 / (NODES / COMMUNITIES)
    outside = 8 / 3 / (NODES * (1 - 1 / COMMUNITIES))
    edges = torch.rand(NODES, NODES, generator=draw) < torch.where(same, inside, outside)
    edges = edges.triu(1)
    joined = (edges | edges.T).float() + torch.eye(NODES)
    degree = joined.sum(1).rsqrt()
    centres = torch.randn(COMMUNITIES, TRAITS, generator=draw) * 0.4
    traits = centres[label] + torch.randn(NODES, TRAITS, generator=draw)
    return degree[:, None] * joined * degree[None, :], traits, label


class GraphNet(nn.Module):
    """Three graph convolutions (Kipf, Welling 2017); the input selects the output nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.links, self.traits, _ = graph()
        sizes = ((TRAITS, width), (width, width), (width, COMMUNITIES))
        self.layers = nn.ModuleList([nn.Linear(*size) for size in sizes])

    def forward(self, nodes: Tensor) -> Tensor:
        """Return scores of the communities."""
        hidden = self.traits
        for at, layer in enumerate(self.layers):
            hidden = self.links @ layer(hidden if at == 0 else hidden.relu())
        return hidden[nodes]


def _nodes(folder: Path) -> Arrays:
    label = graph()[2]
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(32))
    test, train = order[:100], order[100:]
    return Arrays(train, label[train], test, label[test])


class Residual(nn.Module):
    """Norm, dense, ReLU, dense, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the block's output."""
        out: Tensor = x + self.inner(x)
        return out


def _table_net() -> nn.Module:
    blocks = [Residual(64) for _ in range(4)]
    return nn.Sequential(
        nn.BatchNorm1d(54), nn.Linear(54, 64), *blocks, nn.BatchNorm1d(64), nn.Linear(64, 7)
    )


CATEGORIES = (500, 200, 50, 20)


@cache
def _clicks(folder: Path) -> Arrays:
    """Return 25,000 generated click labels with four categories, whose pairs matter."""
    draw = torch.Generator().manual_seed(33)
    picks = torch.stack([torch.randint(0, n, (25_000,), generator=draw) for n in CATEGORIES], 1)
    tables = [torch.randn(count, 4, generator=draw) for count in CATEGORIES]
    one, two, three, four = (table[picks[:, at]] for at, table in enumerate(tables))
    score = (one * two).sum(1) + (three * four).sum(1) + one[:, 0]
    label = (torch.rand(len(picks), generator=draw) < torch.sigmoid(score)).long()
    return Arrays(picks[5_000:], label[5_000:], picks[:5_000], label[:5_000])


class WideAndDeep(nn.Module):
    """A weight for each category, and a network over their vectors (Cheng et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.wide = nn.ModuleList([nn.Embedding(count, 1) for count in CATEGORIES])
        self.vectors = nn.ModuleList([nn.Embedding(count, width) for count in CATEGORIES])
        self.deep = models.mlp((len(CATEGORIES) * width, 64, 32, 1))()

    def forward(self, picks: Tensor) -> Tensor:
        """Return one score per row."""
        columns = picks.unbind(1)
        vectors = [table(at) for table, at in zip(self.vectors, columns, strict=True)]
        weights = [table(at) for table, at in zip(self.wide, columns, strict=True)]
        out: Tensor = self.deep(torch.cat(vectors, 1)) + sum(weights)
        return out


@cache
def _spirals(folder: Path) -> Arrays:
    """Return 5,000 generated points on two spirals, one spiral per class."""
    draw = torch.Generator().manual_seed(34)
    radius, label = 2.0 * torch.rand(5_000, generator=draw), torch.arange(5_000) % 2
    angle = 6.0 * radius + math.pi * label
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return Arrays(x[1_000:], label[1_000:], x[:1_000], label[:1_000])


STRUCTURED = (
    Workload(
        "spirals",
        "tanh network on two spirals, a plateau at first",
        False,
        _spirals,
        models.mlp((2, 32, 32, 2), nn.Tanh),
        models.cross_entropy,
        budget=2_000,
        batch_size=32,
    ),
    Workload(
        "wide-and-deep",
        "wide and deep network on made-up clicks",
        False,
        _clicks,
        WideAndDeep,
        models.logistic,
        budget=2_000,
        batch_size=64,
        sample=5_000,
    ),
    Workload(
        "graph",
        "graph convolution on a made-up graph",
        False,
        _nodes,
        GraphNet,
        models.cross_entropy,
        budget=1_000,
        batch_size=32,
    ),
    Workload(
        "table-resnet",
        "deep residual net with BatchNorm on made-up land cover",
        False,
        lambda folder: datasets.cover(),
        _table_net,
        models.cross_entropy,
        budget=1_500,
        batch_size=64,
        sample=5_000,
    ),
)
