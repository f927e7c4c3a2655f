"""Optimizers as their authors publish them, at their defaults; imported when they are used."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from grasp_tune.core.errors import MissingExtra

# Import name and the name to install it by, where they differ.
DISTRIBUTIONS = {
    "dog": "dog-optimizer",
    "mechanic_pytorch": "mechanic-pytorch",
    "momo": "momo-opt",
    "prodigyplus": "prodigy-plus-schedule-free",
    "pytorch_optimizer": "pytorch-optimizer",
}


def load_package(module: str, extra: str = "bench") -> Any:
    """Return a package of the extra; `MissingExtra` says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = DISTRIBUTIONS.get(module, module)
        raise MissingExtra(
            f"this peer needs the package {package}: pip install 'grasp_tune[{extra}]'"
        ) from error


@dataclass(frozen=True, slots=True)
class Published:
    """A class of a package that makes the optimizer.

    package: the module that holds it.
    name: the class.
    options: what is set beside the parameters; none for the authors' defaults.
    """

    package: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, params: list[nn.Parameter]) -> Optimizer:
        """Return the optimizer of these parameters."""
        made: Optimizer = getattr(load_package(self.package), self.name)(params, **self.options)
        return made


def mechanic(params: list[nn.Parameter]) -> Optimizer:
    """Mechanic around AdamW (Cutkosky, Defazio, Mehta 2023), whose own rate is then 1."""
    kind = load_package("mechanic_pytorch").mechanize(torch.optim.AdamW)
    made: Optimizer = kind(params, lr=1.0, weight_decay=0.0)
    return made


def momentum(params: list[nn.Parameter], rate: float = 0.1) -> Optimizer:
    """SGD with momentum 0.9, at the step 0.1 of many published recipes or at another."""
    return torch.optim.SGD(params, lr=rate, momentum=0.9)
