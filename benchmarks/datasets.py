"""The benchmark's data: files in a given folder, scikit-learn's data sets, and generated ones.

Every loader returns `Arrays` with raw float32 features. Nothing is standardised, because badly
scaled features are part of the benchmark.
"""

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grasp_tune.data.images import torchvision

CIFAR_ARCHIVE = "cifar10-jpeg.tar.gz"
CIFAR_EVERY = 5  # images: enough for the small budgets of large networks


@dataclass(frozen=True, slots=True)
class Arrays:
    """Training rows, and test rows if the source has some."""

    x: Tensor
    y: Tensor
    x_test: Tensor | None = None
    y_test: Tensor | None = None

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Arrays":
        """Return the same rows with their features changed."""
        test = None if self.x_test is None else change(self.x_test)
        return Arrays(change(self.x), self.y, test, self.y_test)


def with_test(x: np.ndarray, y: np.ndarray, share: float = 0.2) -> Arrays:
    """Return arrays with a share of the rows kept for testing, always the same ones."""
    order = np.random.default_rng(2024).permutation(len(x))
    cut = round(share * len(x))
    kind = np.float32 if y.dtype.kind == "f" else np.int64
    inputs, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(kind))
    train, test = torch.from_numpy(order[cut:]), torch.from_numpy(order[:cut])
    return Arrays(inputs[train], labels[train], inputs[test], labels[test])


# ---- files ---------------------------------------------------------------------------------------


@cache
def mnist(folder: Path) -> Arrays:
    """Return 60,000 handwritten digits, pixels from 0 to 1, as (rows, 1, 28, 28)."""
    reader = torchvision("MNIST").datasets.MNIST
    parts: list[Tensor] = []
    for train in (True, False):
        found = reader(str(folder), train=train)
        parts += [found.data.float().div_(255).unsqueeze(1), found.targets]
    return Arrays(*parts)


@cache
def cifar_features(folder: Path) -> Arrays:
    """Return CIFAR-10 as 512 features of a frozen network."""
    with np.load(folder / "cifar10-probe512.npz") as data:
        parts = [
            torch.from_numpy(data[name].astype(kind))
            for name, kind in (
                ("x_train", np.float32),
                ("y_train", np.int64),
                ("x_test", np.float32),
                ("y_test", np.int64),
            )
        ]
    return Arrays(*parts)


@cache
def cifar_images(folder: Path, every: int = CIFAR_EVERY) -> Arrays:
    """Return part of CIFAR-10 as images, each channel with mean 0 and variance 1."""
    from PIL import Image

    pictures: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    seen, classes = {"train": 0, "test": 0}, dict[str, int]()
    with tarfile.open(folder / CIFAR_ARCHIVE) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or len(parts) < 3 or parts[-3] not in pictures:
                continue
            part, kind = parts[-3], parts[-2]
            label = classes.setdefault(kind, len(classes))
            seen[part] += 1
            if seen[part] % every:
                continue  # the same share of all classes
            stream = archive.extractfile(member)
            assert stream is not None
            pictures[part].append(np.asarray(Image.open(stream).convert("RGB")))
            labels[part].append(label)
    made: list[Tensor] = []
    for part in ("train", "test"):
        pixels = torch.from_numpy(np.stack(pictures[part])).permute(0, 3, 1, 2).float() / 255
        made += [pixels.contiguous(), torch.tensor(labels[part])]
    mean, spread = made[0].mean((0, 2, 3), keepdim=True), made[0].std((0, 2, 3), keepdim=True)
    return Arrays(made[0], made[1], made[2], made[3]).changed(lambda x: (x - mean) / spread)


@cache
def libsvm(folder: Path, name: str, features: int) -> Arrays:
    """Return a file in LIBSVM's text format, labels 0 and 1; `<name>.t`, if any, has test rows."""
    x, y = _read_libsvm(folder / "libsvm" / name, features)
    test = folder / "libsvm" / f"{name}.t"
    return Arrays(x, y, *_read_libsvm(test, features)) if test.exists() else Arrays(x, y)


def _read_libsvm(path: Path, features: int) -> tuple[Tensor, Tensor]:
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    x = np.zeros((len(lines), features), np.float32)
    for row, (_, *entries) in enumerate(lines):
        for entry in entries:
            index, value = entry.split(":")
            x[row, int(index) - 1] = float(value)
    labels = np.array([float(line[0]) > 0 for line in lines], np.int64)
    return torch.from_numpy(x), torch.from_numpy(labels)


def random_columns(x: Tensor) -> Tensor:
    """Return the features, each column times a random power of ten in 10^-2..10^2."""
    powers = np.random.default_rng(99).uniform(-2.0, 2.0, x.shape[1])
    return x * torch.from_numpy(10.0**powers).float()


# ---- shipped with scikit-learn -------------------------------------------------------------------


def digits() -> Arrays:
    """Return 1,797 digits of 8 x 8 pixels from 0 to 1, as (rows, 1, 8, 8)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return with_test((data.images / 16.0)[:, None], data.target)


def sklearn_table(name: str) -> Arrays:
    """Return one of scikit-learn's small tables with its raw columns."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    return with_test(data.data, data.target)


# ---- generated -----------------------------------------------------------------------------------


def cover() -> Arrays:
    """Return generated land cover: columns in metres and degrees, yes/no columns, seven classes."""
    rng = np.random.default_rng(4101)
    rows = 20_000
    measures = np.column_stack(
        [
            rng.normal(2800.0, 280.0, rows),
            rng.uniform(0.0, 360.0, rows),
            rng.gamma(3.0, 5.0, rows),
            rng.exponential(270.0, rows),
            rng.normal(45.0, 58.0, rows),
            rng.exponential(2000.0, rows),
            np.clip(rng.normal(212.0, 27.0, (rows, 3)), 0.0, 254.0),
            rng.exponential(1900.0, rows),
        ]
    )
    area, soil = rng.integers(0, 4, rows), rng.zipf(1.5, rows) % 40
    flags = np.column_stack([np.eye(4)[area], np.eye(40)[soil]])
    plain = (measures - measures.mean(0)) / measures.std(0)
    weights = rng.normal(0.0, 1.0, (54, 7)) * np.where(np.arange(54) < 10, 1.0, 2.0)[:, None]
    scores = np.column_stack([plain, flags]) @ weights + rng.gumbel(0.0, 1.0, (rows, 7))
    return with_test(np.column_stack([measures, flags]), scores.argmax(1))


def housing() -> Arrays:
    """Return generated house prices: eight columns from 1 to 10^3, some far from 0, heavy tails."""
    rng = np.random.default_rng(4102)
    rows = 15_000
    income, age = rng.lognormal(1.2, 0.45, rows), rng.uniform(1.0, 52.0, rows)
    rooms, bedrooms = rng.lognormal(1.65, 0.3, rows), rng.lognormal(0.08, 0.15, rows)
    people, share = rng.lognormal(7.0, 0.7, rows), rng.lognormal(1.05, 0.3, rows)
    south, west = rng.normal(35.6, 2.1, rows), rng.normal(-119.6, 2.0, rows)
    price = 0.45 * income + 0.01 * age - 0.3 * np.log(share) + 0.2 * np.sin(south) - 0.1 * rooms
    price = price + 0.1 * bedrooms + rng.standard_t(4, rows) * 0.4
    columns = [income, age, rooms, bedrooms, people, share, south, west]
    return with_test(np.column_stack(columns), price.astype(np.float32))


def teacher() -> Arrays:
    """Return the outputs of a random network with one hidden tanh layer, with noise."""
    rng = np.random.default_rng(4103)
    x = rng.normal(0.0, 1.0, (12_000, 20))
    hidden = np.tanh(x @ rng.normal(0.0, 0.35, (20, 16)) + rng.normal(0.0, 0.5, 16))
    y = hidden @ rng.normal(0.0, 1.0, 16) + rng.normal(0.0, 0.1, len(x))
    return with_test(x, y.astype(np.float32))


def words() -> Arrays:
    """Return generated word counts: 1,000 columns, most of them nearly always 0, two classes."""
    rng = np.random.default_rng(4104)
    rows, vocabulary = 6_000, 1_000
    labels = rng.integers(0, 2, rows)
    common = 1.0 / np.arange(1, vocabulary + 1)
    tilt = rng.normal(0.0, 0.8, vocabulary)
    rates = np.stack([common * np.exp(tilt), common * np.exp(-tilt)])
    rates *= 40.0 / rates.sum(1, keepdims=True)
    flipped = np.where(rng.uniform(size=rows) < 0.05, 1 - labels, labels)
    return with_test(rng.poisson(rates[flipped]).astype(np.float32), labels)


def friedman() -> Arrays:
    """Return Friedman's first regression problem: ten inputs, of which five matter, and noise."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(8_000, 10, noise=1.0, random_state=4105)
    return with_test(x, y.astype(np.float32))
