"""Kinds of numbers: every base trains on each of them, or says in one line that it cannot."""

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
