"""Optimizers as their authors publish them, at their defaults; imported when they are used."""

from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from grasp_tune.core.errors import MissingExtra

# Import name and the name to install it by, where they differ.
DISTRIBUTIONS = {"dog": "dog-optimizer", "mechanic_pytorch": "mechanic-pytorch"}


def load_package(module: str, extra: str = "bench") -> Any:
    """Return a package of the extra; `MissingExtra` says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = DISTRIBUTIONS.get(module, module)
        raise MissingExtra(
            f"this peer needs the package {package}: pip install 'grasp_tune[{extra}]'"
        ) from error


def dog(params: list[nn.Parameter]) -> Optimizer:
    """Distance over gradients (Ivgi, Hinder, Carmon 2023)."""
    made: Optimizer = load_package("dog").DoG(params)
    return made


def ldog(params: list[nn.Parameter]) -> Optimizer:
    """DoG with a step size of its own for every tensor."""
    made: Optimizer = load_package("dog").LDoG(params)
    return made


def prodigy(params: list[nn.Parameter]) -> Optimizer:
    """Prodigy (Mishchenko, Defazio 2023)."""
    made: Optimizer = load_package("prodigyopt").Prodigy(params)
    return made


def prodigy_advised(params: list[nn.Parameter]) -> Optimizer:
    """Prodigy with the options that its authors advise where the rate is annealed."""
    package = load_package("prodigyopt")
    made: Optimizer = package.Prodigy(params, safeguard_warmup=True, use_bias_correction=True)
    return made


def dadapt_sgd(params: list[nn.Parameter]) -> Optimizer:
    """D-Adaptation of SGD (Defazio, Mishchenko 2023)."""
    made: Optimizer = load_package("dadaptation").DAdaptSGD(params)
    return made


def dadapt_adam(params: list[nn.Parameter]) -> Optimizer:
    """D-Adaptation of Adam."""
    made: Optimizer = load_package("dadaptation").DAdaptAdam(params)
    return made


def cocob(params: list[nn.Parameter]) -> Optimizer:
    """Coin betting per coordinate (Orabona, Tommasi 2017)."""
    made: Optimizer = load_package("parameterfree").COCOB(params)
    return made


def kt(params: list[nn.Parameter]) -> Optimizer:
    """The Krichevsky-Trofimov bettor (Orabona, Pal 2016); assumes gradients of norm at most 1."""
    made: Optimizer = load_package("parameterfree").KT(params)
    return made


def mechanic(params: list[nn.Parameter]) -> Optimizer:
    """Mechanic around AdamW (Cutkosky, Defazio, Mehta 2023), whose own rate is then 1."""
    kind = load_package("mechanic_pytorch").mechanize(torch.optim.AdamW)
    made: Optimizer = kind(params, lr=1.0, weight_decay=0.0)
    return made


def schedule_free_adamw(params: list[nn.Parameter]) -> Optimizer:
    """Schedule-free AdamW (Defazio et al. 2024)."""
    made: Optimizer = load_package("schedulefree").AdamWScheduleFree(params)
    return made


def schedule_free_sgd(params: list[nn.Parameter]) -> Optimizer:
    """Schedule-free SGD."""
    made: Optimizer = load_package("schedulefree").SGDScheduleFree(params)
    return made


def adamw(params: list[nn.Parameter]) -> Optimizer:
    """AdamW with torch's defaults."""
    return torch.optim.AdamW(params)


def sgd(params: list[nn.Parameter]) -> Optimizer:
    """SGD with torch's defaults: step 0.001, no momentum."""
    return torch.optim.SGD(params)


def momentum(params: list[nn.Parameter], rate: float = 0.1) -> Optimizer:
    """SGD with momentum 0.9, at the step 0.1 of many published recipes or at another."""
    return torch.optim.SGD(params, lr=rate, momentum=0.9)
