"""UniXGrad against the paper's own words, and in the corners of float32."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grasp_tune.core.errors import GraspError, InputError
from grasp_tune.optimizers.unixgrad import UniXGrad, joint_norm

Gradient = Callable[[Tensor, int], Tensor]  # (point, number of the oracle call) -> gradient


def paper_unixgrad(
    gradient: Gradient, start: Tensor, radius: float, iterations: int
) -> list[Tensor]:
    """All averages of UniXGrad in float64, line by line as the paper's Algorithm 5 prints it."""

    def project(point: Tensor) -> Tensor:
        away = point - start
        return start + away * min(1.0, radius / max(away.norm().item(), 1e-300))

    lead, total, weights, squares, averages = start, torch.zeros_like(start), 0, 0.0, []
    for t in range(1, iterations + 1):
        weights += t
        eta = 2 * radius / math.sqrt(1 + squares)
        ahead = (t * lead + total) / weights
        g_ahead = gradient(ahead, 2 * t - 2)
        x = project(lead - eta * t * g_ahead)
        average = (t * x + total) / weights
        g_average = gradient(average, 2 * t - 1)
        lead = project(lead - eta * t * g_average)
        total = total + t * x
        squares += t**2 * (g_average - g_ahead).square().sum().item()
        averages.append(average)
    return averages


def noisy_quadratic(size: int, seed: int, dtype: torch.dtype) -> tuple[Gradient, Tensor]:
    """A gradient with curvatures 0.1 .. 3 and addressed noise, and a start away from 0."""
    draw = torch.Generator().manual_seed(seed)
    optimum = torch.randn(size, generator=draw, dtype=torch.float64)
    start = torch.randn(size, generator=draw, dtype=torch.float64)
    curvature = torch.linspace(0.1, 3.0, size, dtype=torch.float64)
    noise = 0.3 * torch.randn(1000, size, generator=draw, dtype=torch.float64)

    def gradient(point: Tensor, call: int) -> Tensor:
        return (curvature * (point.double() - optimum) + noise[call % 1000]).to(dtype)

    return gradient, start.to(dtype)


class Run:
    """An optimizer over a vector cut into pieces, fed with given gradients."""

    def __init__(
        self, gradient: Gradient, start: Tensor, radius: float, cuts: tuple[int, ...] = (3, 2)
    ) -> None:
        pieces = start.split([*cuts, start.numel() - sum(cuts)])
        self.parameters = [nn.Parameter(piece.clone()) for piece in pieces]
        groups = [{"params": self.parameters[:1]}, {"params": self.parameters[1:]}]
        self.optimizer = UniXGrad(groups, radius=radius)
        self.gradient, self.calls, self.seen = gradient, 0, list[Tensor]()

    @property
    def point(self) -> Tensor:
        return torch.cat([parameter.detach() for parameter in self.parameters])

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        point = self.point
        self.seen.append(point)
        whole = self.gradient(point, self.calls)
        self.calls += 1
        for parameter, piece in zip(
            self.parameters, whole.split([p.numel() for p in self.parameters]), strict=True
        ):
            parameter.grad = piece.clone()
        return point.sum()

    def step(self) -> Tensor:
        self.optimizer.step(self.closure)
        return self.point


def test_first_two_iterations_by_hand() -> None:
    # One coordinate, start 5, radius 3, gradients fixed to 0.25, -0.5, 0.125, 0.5 in turn.
    # t=1: eta = 6; ahead = 5; x = 5 - 6/4 = 3.5; average = 3.5; lead = Proj(5 + 3) = 8 (on the rim)
    #      squares = (-0.5 - 0.25)^2 = 0.5625, root = 1.25
    # t=2: eta = 6/1.25 = 4.8; ahead = (2*8 + 3.5)/3 = 6.5; x = 8 - 4.8*2/8 = 6.8
    #      average = (2*6.8 + 3.5)/3 = 5.7; lead = 8 - 4.8*2/2 = 3.2
    given_out = [0.25, -0.5, 0.125, 0.5]
    start = torch.tensor([5.0], dtype=torch.float64)
    run = Run(partial(filled, given_out), start, 3.0, cuts=(1,))
    assert run.step().item() == pytest.approx(3.5)
    assert run.step().item() == pytest.approx(5.7)
    assert [point.item() for point in run.seen] == pytest.approx([5.0, 3.5, 6.5, 5.7])
    lead = run.optimizer.state[run.parameters[0]]["lead"].item()
    assert 5.0 + 3.0 * lead == pytest.approx(3.2)
    # 1 + 0.75^2 + 2^2 (0.5 - 0.125)^2 = 2.125
    assert run.optimizer.param_groups[0]["root"] == pytest.approx(math.sqrt(2.125))


@pytest.mark.parametrize("radius", [1e-3, 0.02, 0.7, 30.0, 1e3])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_step_is_the_papers(radius: float, seed: int) -> None:
    gradient, start = noisy_quadratic(11, seed, torch.float64)
    run = Run(gradient, start, radius)
    for average in paper_unixgrad(gradient, start, radius, 200):
        torch.testing.assert_close(run.step(), average, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("radius", [1e-3, 0.7, 30.0, 1e3])
def test_float32_follows_the_paper(radius: float) -> None:
    gradient, start = noisy_quadratic(11, 2, torch.float32)
    exact, start64 = noisy_quadratic(11, 2, torch.float64)
    run = Run(gradient, start, radius)
    for average in paper_unixgrad(exact, start64, radius, 500):
        away = (run.step().double() - average).norm().item()
    assert away < 1e-4 * average.norm().item()


@pytest.mark.parametrize(
    ("radius", "iterations"), [(1e-30, 300), (1e-12, 300), (1e6, 300), (1e12, 4000), (1e30, 300)]
)
def test_float32_stays_finite_and_in_the_ball_at_any_radius(radius: float, iterations: int) -> None:
    gradient, start = noisy_quadratic(11, 3, torch.float32)
    run = Run(gradient, start, radius)
    for _ in range(iterations):
        run.step()
    for parameter in run.parameters:
        for stored in run.optimizer.state[parameter].values():
            assert stored.isfinite().all()
    away = (run.point.double() - start.double()).norm().item()
    assert away <= radius * (1 + 1e-5) + 1e-6 * start.norm().item()


def test_a_huge_radius_still_reaches_the_optimum_in_float32() -> None:
    # The first step ends 1e12 away; float32 has 7 digits, so any sum of points that kept that
    # excursion would end 1e5 off. Curvature is strong and noise absent: the way back is short.
    curvature = torch.linspace(0.5, 2.0, 8)
    run = Run(lambda point, call: curvature * (point - 1.0), torch.full((8,), 3.0), 1e12)
    assert run.step().norm().item() > 0.9e12
    for _ in range(1000):
        run.step()
    torch.testing.assert_close(run.point, torch.ones(8))


@given(
    scale=st.sampled_from([1e-38, 1e-25, 1e-10, 1e10, 1e25, 2e38]),
    radius=st.sampled_from([1e-30, 1.0, 1e12]),
    signs=st.lists(st.sampled_from([-1.0, -0.5, 0.25, 1.0]), min_size=12, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_any_finite_gradient_keeps_float32_finite(
    scale: float, radius: float, signs: list[float]
) -> None:
    rows = torch.tensor(signs).view(2, 6) * scale
    run = Run(lambda point, call: rows[call % 2], torch.linspace(-1, 1, 6), radius)
    twin = paper_unixgrad(
        lambda point, call: rows[call % 2].double(),
        torch.linspace(-1, 1, 6, dtype=torch.float64),
        radius,
        6,
    )
    for average in twin:
        point = run.step().double()
        assert point.isfinite().all()
        assert (point - average).norm().item() <= 1e-4 * (radius + average.norm().item())


def filled(values: list[float], point: Tensor, call: int) -> Tensor:
    return torch.full_like(point, values[call])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden(bad: float) -> None:
    # Zero gradients before and after: only call number `when` is bad, at either of the two points.
    for when in range(4):
        values = [bad if call == when else 0.0 for call in range(10)]
        run = Run(partial(filled, values), torch.zeros(6), 1.0)
        finite = [bool(run.step().isfinite().any()) for _ in range(5)]
        assert finite == [step < (when + 1) // 2 for step in range(5)]


@pytest.mark.parametrize("radius", [1e39, 1e300])
def test_a_radius_beyond_float32_shows_as_points_that_are_not_finite(radius: float) -> None:
    run = Run(lambda point, call: torch.tensor([0.0, 2.0, 0, 0, 0, 0]), torch.ones(6), radius)
    assert not run.step().isfinite().any()


def test_projection_is_joint_over_groups() -> None:
    # A gradient of 8s in (3, 4) coordinates with radius 2: the first move, 2 * 2 * 8 each way, ends
    # on the rim; jointly each of the 7 coordinates moves 2/sqrt(7), apart it would be 2/sqrt(3).
    run = Run(lambda point, call: torch.full_like(point, 8.0), torch.zeros(7), 2.0, cuts=(3,))
    torch.testing.assert_close(run.step(), torch.full((7,), -2.0 / math.sqrt(7)))


def test_cutting_the_vector_differently_changes_nothing() -> None:
    gradient, start = noisy_quadratic(11, 4, torch.float64)
    one, other = Run(gradient, start, 2.0, cuts=(1,)), Run(gradient, start, 2.0, cuts=(4, 5))
    for _ in range(50):
        torch.testing.assert_close(one.step(), other.step(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [0, 1, 17])
def test_state_dict_continues_bit_for_bit(dtype: torch.dtype, stop: int) -> None:
    gradient, start = noisy_quadratic(11, 5, dtype)
    run = Run(gradient, start, 1.7)
    for _ in range(stop):
        run.step()
    saved, point = copy.deepcopy(run.optimizer.state_dict()), run.point.clone()
    later = [run.step() for _ in range(20)]

    other = Run(gradient, point, 0.001)  # the radius comes with the state
    other.optimizer.load_state_dict(saved)
    other.calls = 2 * stop
    assert other.optimizer.param_groups[1]["radius"] == 1.7
    assert all(torch.equal(other.step(), point) for point in later)
    # Loading copied the tensors: a third run can start from the same state.
    third = Run(gradient, point, 0.001)
    third.optimizer.load_state_dict(saved)
    third.calls = 2 * stop
    assert torch.equal(third.step(), later[0])


def test_state_dict_holds_tensors_and_plain_numbers_only() -> None:
    gradient, start = noisy_quadratic(11, 6, torch.float32)
    run = Run(gradient, start, 1.0)
    run.step()
    leaves = tree_leaves(run.optimizer.state_dict())
    assert {type(leaf) for leaf in leaves} <= {Tensor, int, float}
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    assert sum(tensor.numel() for tensor in tensors) == 3 * 11


class LiveBytes(TorchDispatchMode):
    """The bytes of all tensors that operations made and that are still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, None] = {}

    def _drop(self, address: int, size: int) -> None:
        if address in self._seen:
            del self._seen[address]
            self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                address, size = storage.data_ptr(), storage.nbytes()
                if size and address not in inputs and address not in self._seen:
                    self._seen[address] = None
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(leaf, self._drop, address, size)
        return out


def test_a_step_takes_at_most_four_vectors_beside_parameters_and_gradients() -> None:
    sizes = [(300, 200), (200,), (200, 300)]
    parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
    model = sum(4 * parameter.numel() for parameter in parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = UniXGrad(parameters, radius=1.0)

    def closure() -> float:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.fill_(3.0)
        return 0.0

    with LiveBytes() as live:
        for _ in range(3):
            optimizer.step(closure)
        kept = live.now
    assert model <= kept  # the meter works: the state is seen
    assert kept <= 3.02 * model
    assert live.peak <= 4.02 * model


def test_a_missing_gradient_counts_as_zero() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((3,), 7.0))
    sometimes = nn.Parameter(torch.ones(2))
    optimizer = UniXGrad([used, unused, sometimes], radius=1.0)
    turn = iter([True, False, False, True])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = used.square().sum() + (sometimes.square().sum() if next(turn) else 0.0)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first.item() == pytest.approx(4.0)  # at the start: 1 + 1 + 1 + 1
    optimizer.step(closure)
    assert torch.equal(unused.detach(), torch.full((3,), 7.0))
    assert (used != 1.0).all()
    assert (sometimes != 1.0).all()


def test_a_model_with_buffers_and_layers_is_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    inputs = torch.randn(64, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    optimizer = UniXGrad(model.parameters(), radius=4.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(200)]
    assert losses[-1] < 0.1 * losses[0]


def test_channels_last_and_empty_parameters_work() -> None:
    image = nn.Parameter(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))
    empty = nn.Parameter(torch.ones(0, 3))
    optimizer = UniXGrad([image, empty], radius=10.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = image.square().sum() + empty.sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_radius_that_is_no_radius_is_refused(radius: float) -> None:
    with pytest.raises(InputError, match="must be a positive finite number"):
        UniXGrad([nn.Parameter(torch.ones(2))], radius=radius)


@pytest.mark.parametrize("name", ["radius", "lr"])
def test_a_group_with_its_own_radius_or_rate_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"sets {name}=0.5, but UniXGrad has one radius"):
        UniXGrad([{"params": [nn.Parameter(torch.ones(2))], name: 0.5}], radius=1.0)


def test_half_precision_a_late_group_and_no_closure_are_refused() -> None:
    with pytest.raises(GraspError, match="bfloat16, but the averages need float32 or float64"):
        UniXGrad([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], radius=1.0)
    run = Run(lambda point, call: point, torch.ones(6), 1.0)
    with pytest.raises(InputError, match="needs a closure"):
        run.optimizer.step()
    run.step()
    with pytest.raises(InputError, match="added after 1 iterations"):
        run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = UniXGrad(table.parameters(), radius=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = table(torch.tensor([1, 3])).sum()
        loss.backward()
        return loss

    with pytest.raises(InputError, match="needs dense gradients"):
        optimizer.step(closure)


def test_joint_norm_by_hand() -> None:
    # 3 in one tensor; 4 spread over 16 * 10^4 entries of 0.01: hypot(3, 0.01 * 400) = 5
    assert joint_norm([torch.tensor(3.0), torch.full((400, 400), 0.01)]) == pytest.approx(5.0)
    assert joint_norm([]) == 0.0
    assert joint_norm([torch.tensor([3e38, 3e38])]) == pytest.approx(math.sqrt(2) * 3e38)
    assert joint_norm([torch.full((9000,), 1e300, dtype=torch.float64)]) == pytest.approx(
        math.sqrt(9000) * 1e300
    )
    assert math.isnan(joint_norm([torch.tensor([1.0, math.nan])]))
    assert joint_norm([torch.tensor([1.0, -math.inf])]) == math.inf
