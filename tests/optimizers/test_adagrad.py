"""DiagonalAdaGrad: the formula by hand, the range of float32, and going on from a state."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.adagrad import DiagonalAdaGrad
from grasp_tune.optimizers.coordinatewise import Coordinates


def feed(optimizer: DiagonalAdaGrad, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    parameter.grad = gradient.clone()
    optimizer.step()
    return parameter.detach().clone()


def test_two_steps_by_hand() -> None:
    # Distance 2. Step 1, gradient (3, -0.5, 0): each moving coordinate goes 2 against its sign.
    # Step 2, gradient (4, 1.2, 0): roots hypot(3, 4) = 5 and hypot(0.5, 1.2) = 1.3, so the moves
    # are 2*4/5 = 1.6 and 2*1.2/1.3 = 1.846153...; the third has no gradient and stays.
    parameter = nn.Parameter(torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64))
    optimizer = DiagonalAdaGrad([parameter], distance=2.0)
    first = feed(optimizer, parameter, torch.tensor([3.0, -0.5, 0.0], dtype=torch.float64))
    assert first.tolist() == pytest.approx([8.0, 22.0, 30.0])
    second = feed(optimizer, parameter, torch.tensor([4.0, 1.2, 0.0], dtype=torch.float64))
    assert second.tolist() == pytest.approx([6.4, 22.0 - 2.4 / 1.3, 30.0])


def test_sizes_seen_in_the_probe_divide_each_step() -> None:
    # Peaks 4 and 1/4 of a typical 1, power 1/2: multipliers 1/2 and 2 of the distance 2.
    point = nn.Parameter(torch.zeros(2))
    sizes = Coordinates(0.5, [torch.tensor([4.0, 0.25])], 1.0)
    optimizer = DiagonalAdaGrad([point], distance=2.0, coordinates=sizes)
    assert feed(optimizer, point, torch.tensor([7.0, -7.0])).tolist() == pytest.approx([-1.0, 4.0])


@given(
    exponents=st.lists(st.integers(-30, 37), min_size=1, max_size=40),
    distance=st.sampled_from([1e-30, 0.3, 1e12]),
)
@settings(max_examples=60, deadline=None)
def test_the_size_of_gradients_does_not_matter_in_float32(
    exponents: list[int], distance: float
) -> None:
    # Three gradients g, 2g, -2g with roots g, sqrt(5) g, 3g: moves 1, 2/sqrt(5), -2/3 at any g.
    size = torch.tensor([10.0**exponent for exponent in exponents])
    parameter = nn.Parameter(torch.zeros(len(exponents)))
    optimizer = DiagonalAdaGrad([parameter], distance=distance)
    for factor in (1.0, 2.0, -2.0):
        point = feed(optimizer, parameter, factor * size)
    expected = -distance * (1 + 2 / math.sqrt(5) - 2 / 3)
    assert point.double().div(expected).tolist() == pytest.approx([1.0] * len(exponents), rel=1e-5)


@given(power=st.integers(-40, 40))
def test_units_of_the_loss_do_not_matter_exactly(power: int) -> None:
    draw = torch.Generator().manual_seed(1)
    gradients = torch.randn(5, 7, generator=draw)
    ends = []
    for unit in (1.0, 2.0**power):
        parameter = nn.Parameter(torch.zeros(7))
        optimizer = DiagonalAdaGrad([parameter], distance=0.7)
        for gradient in gradients:
            end = feed(optimizer, parameter, unit * gradient)
        ends.append(end)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden(bad: float) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = DiagonalAdaGrad([parameter], distance=1.0)
    point = feed(optimizer, parameter, torch.tensor([bad, 1.0]))
    assert point[0].isnan()
    assert point[1] == -1.0


@pytest.mark.parametrize("stop", [0, 1, 9])
@pytest.mark.parametrize("scaled", [False, True])
def test_state_dict_continues_bit_for_bit(stop: int, scaled: bool) -> None:
    draw = torch.Generator().manual_seed(2)
    gradients = torch.randn(20, 7, generator=draw)
    peaks = [torch.rand(7, generator=draw) + 0.1]
    sizes = Coordinates(0.5, peaks, 1.0) if scaled else None
    parameter = nn.Parameter(torch.ones(7))
    optimizer = DiagonalAdaGrad([parameter], distance=0.7, coordinates=sizes)
    for gradient in gradients[:stop]:
        feed(optimizer, parameter, gradient)
    saved, point = copy.deepcopy(optimizer.state_dict()), parameter.detach().clone()
    later = [feed(optimizer, parameter, gradient) for gradient in gradients[stop:]]
    for _ in range(2):  # twice: loading copies, so that the state can serve again
        other = nn.Parameter(point.clone())
        again = DiagonalAdaGrad([other], distance=55.0)
        again.load_state_dict(saved)
        ends = [feed(again, other, gradient) for gradient in gradients[stop:]]
        assert all(torch.equal(one, two) for one, two in zip(ends, later, strict=True))


def test_groups_have_their_own_distance_and_none_is_skipped() -> None:
    one, two, three = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [two, three], "distance": 0.25}]
    optimizer = DiagonalAdaGrad(groups, distance=3.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = one.sum() - two.sum() + 5.0
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert one.tolist() == [-3.0, -3.0]
    assert two.tolist() == [0.25, 0.25]
    assert three.tolist() == [0.0, 0.0]


def test_a_distance_beyond_float32_moves_to_its_end() -> None:
    parameter = nn.Parameter(torch.ones(2))
    point = feed(DiagonalAdaGrad([parameter], distance=1e95), parameter, torch.tensor([0.0, 2.0]))
    assert point.tolist() == [1.0, -torch.finfo(torch.float32).max]


@pytest.mark.parametrize("distance", [0.0, -2.0, math.nan, math.inf])
def test_a_distance_that_is_no_distance_is_refused(distance: float) -> None:
    with pytest.raises(InputError, match="must be a positive finite number"):
        DiagonalAdaGrad([nn.Parameter(torch.ones(2))], distance=distance)


def test_half_precision_and_sparse_gradients_are_refused() -> None:
    with pytest.raises(InputError, match="float16, but the sums of gradients need"):
        DiagonalAdaGrad([nn.Parameter(torch.ones(2, dtype=torch.float16))], distance=1.0)
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = DiagonalAdaGrad(table.parameters(), distance=1.0)
    table(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(InputError, match="needs dense gradients"):
        optimizer.step()
