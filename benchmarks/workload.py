"""A workload: a problem, its budget, and the rows that its result is evaluated on."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import grasp_tune as gt
from benchmarks import models
from benchmarks.datasets import Arrays

SAMPLE = 20_000  # rows of the fixed sample for evaluation


@dataclass(frozen=True, slots=True)
class Bundle:
    """A problem, and the rows that its result is evaluated on."""

    problem: gt.TorchProblem
    sample: tuple[Tensor, Tensor]  # of training rows
    test: tuple[Tensor, Tensor] | None
    classes: bool = True  # labels are classes, so that test rows have an accuracy


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the benchmark."""

    name: str
    title: str
    convex: bool
    load: Callable[[Path], Arrays]
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, models.Batch], Tensor]
    needs: tuple[str, ...] = ()  # needed files in the data folder; without them it is skipped
    budget: int = 10_000  # T
    batch_size: int = 64
    sample: int = SAMPLE
    held_out: bool = False
    group: str = "classical"  # or "modern"
    classes: bool = True  # labels are classes; False for regression
    packages: tuple[str, ...] = ()  # needed packages; without them it is skipped

    def missing(self, folder: Path | None) -> str | None:
        """Return a missing package or file, None if the workload can run."""
        for name in self.packages:
            if find_spec(name) is None:
                return f"the package {name}"
        for name in self.needs:
            if folder is None or not (folder / name).exists():
                return name
        return None

    def bundle(self, folder: Path | None) -> Bundle:
        """Return the problem with its data."""
        arrays = self.load(folder or Path())
        problem = gt.TorchProblem(
            model=self.model,
            loss=self.loss,
            data=(arrays.x, arrays.y),
            batch_size=self.batch_size,
            device="cpu",
        )
        rows = torch.randperm(len(arrays.x), generator=torch.Generator().manual_seed(123))
        rows = rows[: self.sample]
        test = None
        if arrays.x_test is not None and arrays.y_test is not None:
            test = (arrays.x_test, arrays.y_test)
        sample = (arrays.x[rows], arrays.y[rows])
        return Bundle(problem, sample, test, self.classes and self.loss is not models.squared)

    @property
    def method(self) -> gt.Convex | gt.NonConvex:
        """The variant of the method for this kind of problem, with its default inputs."""
        return gt.Convex() if self.convex else gt.NonConvex()
