"""The base optimizers by name: how each is made from its one number.

A base is anything that takes parameters and one positive number. Those of the paper carry its
theorem; the others do not, and results say so. A user's own joins as a function
`(params, value) -> Optimizer`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.adagrad import DiagonalAdaGrad
from grasp_tune.optimizers.adam import CoordinateAdam
from grasp_tune.optimizers.distance_adam import GrowingAdam
from grasp_tune.optimizers.preconditioner import Coordinates
from grasp_tune.optimizers.unixgrad import UniXGrad

Factory = Callable[[list[Tensor], float], Optimizer]


@dataclass(frozen=True, slots=True)
class Base:
    """One base optimizer."""

    name: str
    make: Callable[[list[Tensor], float, Coordinates | None], Optimizer]
    knob: str | None  # the entry of a parameter group that scales the step; None: not annealed
    calls_per_step: int = 1  # oracle calls of one step; closures of the user's own may use more


def _sgd(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return torch.optim.SGD(params, lr=value)


def _momentum(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return torch.optim.SGD(params, lr=value, momentum=0.9, nesterov=True)


def _adam(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return CoordinateAdam(params, lr=value, coordinates=coordinates)


def _growing(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return GrowingAdam(params, lr=value, coordinates=coordinates)


def _adamw(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return torch.optim.AdamW(params, lr=value)


def _adagrad(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    scale = None if coordinates is None else coordinates.multipliers()
    return DiagonalAdaGrad(params, distance=value, scale=scale)


def _unixgrad(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
    return UniXGrad(params, radius=value)


BASES: Mapping[str, Base] = {
    "sgd": Base("sgd", _sgd, "lr"),
    "momentum": Base("momentum", _momentum, "lr"),
    "adam": Base("adam", _adam, "lr"),
    "growing": Base("growing", _growing, "lr"),
    "adamw": Base("adamw", _adamw, "lr"),
    "adagrad": Base("adagrad", _adagrad, "distance"),
    "unixgrad": Base("unixgrad", _unixgrad, None, calls_per_step=2),
}


def find_base(name: str, custom: Mapping[str, Factory]) -> Base:
    """Return the base called `name`: the user's own first, then ours."""
    if name in custom:
        factory = custom[name]

        def make(params: list[Tensor], value: float, coordinates: Coordinates | None) -> Optimizer:
            optimizer = factory(params, value)
            if not isinstance(optimizer, Optimizer):
                kind = type(optimizer).__name__
                raise InputError(f"base: {name} returned {kind}, expected a torch Optimizer")
            return optimizer

        return Base(name, make, "lr")
    if name not in BASES:
        raise InputError(f"base: got {name!r}, expected one of {', '.join(sorted(BASES))}")
    return BASES[name]
