"""The registry of base optimizers: what each entry says, and what is known of the others."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import METHODS
from grasp_tune.optimizers.registry import (
    BaseOptimizer,
    described,
    find_optimizer,
    gradient_step,
    normalised_step,
    optimizer_names,
    own_functions,
    register,
    theorem_optimizer,
)


def test_values_by_hand() -> None:
    # |g0| = 2, 400 parameters, T = 2500, D = 10.
    def value(name: str) -> float:
        return described(name).from_distance(10.0, 2.0, 400, 2500)

    assert value("adam") == pytest.approx(10 / (20 * 50))
    assert value("adagrad") == pytest.approx(10 / 20)
    assert value("sgd") == value("momentum") == pytest.approx(10 / (2 * 50))
    assert value("unixgrad") == 10.0


@pytest.mark.parametrize("name", optimizer_names())
def test_every_entry_makes_an_optimizer_that_steps(name: str) -> None:
    entry = described(name)
    point = nn.Parameter(torch.ones(3))
    optimizer = entry.build([point], {entry.value: 0.25})
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (point**2).sum()
        loss.backward()
        return loss.detach()

    optimizer.step(closure)
    assert calls == entry.calls_per_step
    assert math.isfinite(float(point.detach().sum()))
    if entry.group_entry is not None:
        assert optimizer.param_groups[0][entry.group_entry] == 0.25


@pytest.mark.parametrize("method", METHODS)
def test_every_theorem_is_about_a_registered_optimizer(method: str) -> None:
    name = theorem_optimizer(method)
    assert METHODS[method]().base_name("paper") == name and METHODS[method]().covered("paper")


def test_a_function_of_ones_own_has_the_documented_scale() -> None:
    assert described("mine:make").from_distance is normalised_step
    assert described("mine:make").calls_per_step == 1


def test_an_unknown_name_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="got 'sgdd', expected one of adagrad, adam, adamw"):
        find_optimizer("sgdd", {})
    with pytest.raises(InputError, match="got 'sgdd'"):
        own_functions(None, ("sgd", "sgdd"))


def test_a_name_is_registered_once() -> None:
    for name in ("sgd", "a:b", ""):
        with pytest.raises(InputError, match="is taken, or no name"):
            register(BaseOptimizer(name=name, make="x:y", from_distance=gradient_step))


def test_the_registry_loads_no_torch() -> None:
    code = "import sys, grasp_tune.optimizers.registry; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
