"""Kinds of numbers: every base trains on each of them, or says in one line that it cannot."""

import math

import pytest
import torch
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.methods import Convex
from grasp_tune.optimizers.registry import optimizer_names
from tests.engine import workbench


class Powers(nn.Module):
    """A linear layer in one kind of numbers, with a 0-dimensional parameter."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(workbench.FEATURES, workbench.CLASSES, dtype=dtype)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.to(self.scale.dtype)) * self.scale
        return (out.abs() if out.is_complex() else out).float()


WIDE = {"adagrad", "unixgrad"}  # they keep sums that half precision would round away


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("base", optimizer_names())
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_every_base_trains_on_every_kind_of_floats_or_says_that_it_cannot(
    dtype: torch.dtype, base: str, fused: bool
) -> None:
    given = workbench.problem(lambda: Powers(dtype))
    method = Convex(d_eps=0.1, L_eps=0.1, base=base)
    if dtype == torch.bfloat16 and base in WIDE:
        with pytest.raises(gt.GraspError, match=r"need float32 or float64; keep the parameters"):
            gt.minimize(given, 300, method, fused=fused, progress=False)
        return
    result = gt.minimize(given, 300, method, fused=fused, progress=False)
    assert result.score < result.candidates[0].score
    assert {item.dtype for item in result.tensors.values()} == {dtype}


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (torch.complex64, r"scale is complex; keep its real and imaginary parts"),
        (torch.float16, r"scale is float16, .* use torch\.autocast"),
    ],
)
def test_other_kinds_are_refused_in_one_line(dtype: torch.dtype, words: str) -> None:
    with pytest.raises(gt.GraspError, match=words) as caught:
        gt.minimize(workbench.problem(lambda: Powers(dtype)), 300, progress=False)
    assert "\n" not in str(caught.value)


UNFIT = {
    "lazy": (lambda: nn.LazyLinear(2).weight, "not initialised yet"),
    "meta": (lambda: torch.zeros(3, device="meta"), "on the meta device"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse or nested"),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), "sparse or nested"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "or nested"),
    "expanded": (lambda: torch.zeros(1).expand(5), r"expanded: .* clone\(\) it"),
    "complex128": (lambda: torch.zeros(3, dtype=torch.complex128), "complex128, which cannot be"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 1, 0, torch.qint8), "qint8"),
}


def with_buffer(item: Tensor) -> nn.Module:
    model = workbench.mlp()
    model.register_buffer("own", item)
    return model


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of tensors in beta or deprecated
@pytest.mark.parametrize("kind", UNFIT)
def test_tensors_that_cannot_be_copied_or_saved_are_refused_in_one_line(kind: str) -> None:
    make, words = UNFIT[kind]
    with pytest.raises(gt.ProblemError, match=f"buffer own is .*{words}"):
        gt.minimize(workbench.problem(lambda: with_buffer(make())), 300, progress=False)
    with pytest.raises(gt.ProblemError, match=f"buffer own is .*{words}"):
        gt.Grasp(with_buffer(make()), budget=300)


def test_a_trainable_float8_is_refused_and_a_frozen_one_stays() -> None:
    narrow = torch.ones(3).to(torch.float8_e4m3fn)
    model = workbench.mlp()
    model.own = nn.Parameter(narrow)
    with pytest.raises(gt.ProblemError, match="own is float8_e4m3fn, which cannot be"):
        gt.Grasp(model, budget=300)

    def frozen() -> nn.Module:
        found = with_buffer(narrow)
        found.other = nn.Parameter(narrow, requires_grad=False)
        return found

    for schedule in ("promote", "paper"):
        method = gt.NonConvex(L_eps=1.0, F_eps=1.0)
        result = gt.minimize(workbench.problem(frozen), 300, method, schedule, progress=False)
        assert not any(row.note == "diverged" for row in result.candidates)
        assert result.tensors["param.other"].dtype == torch.float8_e4m3fn


class Masked(nn.Module):
    """A network with a mask that is infinite, as attention has one: a buffer, or frozen."""

    def __init__(self, frozen: bool, low: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(workbench.FEATURES, 8), nn.Linear(8, workbench.CLASSES)
        mask = torch.tensor([0.0] * 6 + [low] * 2)
        if frozen:
            self.mask = nn.Parameter(mask, requires_grad=False)
        else:
            self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.softmax(self.first(x) + self.mask, dim=1))
        return found


@pytest.mark.parametrize("frozen", [True, False])
def test_infinite_numbers_that_are_not_trained_change_nothing(frozen: bool) -> None:
    def scores(low: float) -> list[float]:
        given = workbench.problem(lambda: Masked(frozen, low))
        result = gt.minimize(given, 400, gt.NonConvex(), progress=False)
        assert any(row.average for row in result.candidates)
        return [row.score for row in result.candidates]

    assert scores(-math.inf) == scores(-1e9)
