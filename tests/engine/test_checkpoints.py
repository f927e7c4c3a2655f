"""A run as tensors, and back."""

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import CheckpointError
from grasp_tune.engine.checkpoints import (
    digest,
    finite,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from tests.engine import workbench


def of(model: nn.Module) -> str:
    """The digest of a model as it stands."""
    return digest(model_tensors(model))


def test_a_model_goes_out_and_comes_back() -> None:
    torch.manual_seed(0)
    model, other = workbench.batch_norm(), workbench.batch_norm()
    saved = {name: item.clone() for name, item in model_tensors(model).items()}
    assert "param.0.weight" in saved
    assert "buffer.1.running_mean" in saved
    load_model(other, saved, "key")
    assert workbench.same_bits(model_tensors(other), saved)
    assert of(model) == of(other)


@pytest.mark.parametrize("change", ["missing", "shape", "dtype"])
def test_a_checkpoint_of_another_model_is_named(change: str) -> None:
    saved = dict(model_tensors(workbench.linear()))
    weight = saved.pop("param.weight")
    if change == "shape":
        saved["param.weight"] = weight[:2]
    elif change == "dtype":
        saved["param.weight"] = weight.double()
    there = {"missing": "missing", "shape": r"float32 of shape \(2,", "dtype": "float64 of shape"}
    words = (
        rf"run7 does not fit the model at param\.weight: it is {there[change]}.* float32 of shape"
    )
    with pytest.raises(CheckpointError, match=words):
        load_model(workbench.linear(), saved, "run7")


def test_the_digest_tells_points_shapes_and_names_apart() -> None:
    torch.manual_seed(0)
    model = workbench.linear()
    before = of(model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-6
    assert of(model) != before
    assert of(nn.Linear(2, 3, bias=False)) != of(nn.Linear(3, 2, bias=False))
    half = nn.Linear(2, 2).to(torch.bfloat16)
    assert of(half) == of(half)


class Odd(torch.optim.SGD):
    """Keeps numbers of all kinds, infinity among them, in its groups and its state."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, lr=lr)
        self.param_groups[0].update(growth=float("inf"), betas=(0.5, 0.25), word="x", none=None)
        for param in params:
            self.state[param] = {"count": 3, "flag": True, "sum": torch.ones_like(param)}


def test_an_optimizers_numbers_come_back_as_they_were() -> None:
    model = workbench.linear()
    optimizer = Odd(list(model.parameters()), 0.1)
    optimizer.param_groups[0]["word"] = "changed"
    tensors, numbers = optimizer_tensors(optimizer)
    fresh = Odd(list(workbench.linear().parameters()), 0.1)
    load_optimizer(fresh, tensors, numbers)
    old, new = optimizer.state_dict(), fresh.state_dict()
    assert old["param_groups"] == new["param_groups"]
    for index, entries in old["state"].items():
        for name, value in entries.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(new["state"][index][name]))


def test_what_tensors_and_numbers_cannot_hold_is_refused() -> None:
    optimizer = Odd(list(workbench.linear().parameters()), 0.1)
    optimizer.param_groups[0]["schedule"] = print
    with pytest.raises(CheckpointError, match="keeps schedule as a builtin_function"):
        optimizer_tensors(optimizer)


def test_a_point_with_one_infinite_number_is_not_finite() -> None:
    model = workbench.linear()
    assert finite(model)
    with torch.no_grad():
        next(model.parameters())[1, 1] = torch.inf
    assert not finite(model)
