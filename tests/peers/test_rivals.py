"""Rivals written from their papers against the equations, and Muon's choice of matrices."""

import math

import pytest
import torch
from torch import nn

from grasp_tune.engine.problem import TorchProblem
from grasp_tune.peers.registry import find_peer, warm_cosine
from grasp_tune.peers.rivals import GreedyAdamW, NAdamW, ScheduleFreePlus, muon_groups


def test_warm_up_is_linear_and_then_a_cosine() -> None:
    assert [warm_cosine(share) for share in (0.0, 0.025, 0.05)] == [0.0, 0.5, 1.0]
    assert warm_cosine(0.525) == pytest.approx(0.5)  # half way from 0.05 to 1
    assert warm_cosine(1.0) == pytest.approx(0.0)


def test_nadamw_by_hand() -> None:
    # One step from 2 with gradient 3: m = 0.3, ahead = 0.9 * 0.3 + 0.1 * 3 = 0.57, over 1 - 0.9;
    # v = 0.09 over 1 - 0.99 has the root 3. So 2 (1 - 0.1 * 0.5) - 0.1 * 5.7 / 3.
    x = nn.Parameter(torch.tensor([2.0]))
    optimizer = NAdamW([x], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5, eps=0.0)
    x.grad = torch.tensor([3.0])
    optimizer.step()
    assert float(x.detach()) == pytest.approx(1.9 - 0.19)


def test_schedule_free_plus_by_hand() -> None:
    # Step 1 from 2 with gradient 4 and loss 8: z = x, so alpha = 8 / (4 sqrt(pi / 2)); Adam's step
    # without memory has size 1, and c = 1: x = z = 2 - alpha.
    root = math.sqrt(math.pi / 2)
    x = nn.Parameter(torch.tensor([2.0]))
    optimizer = ScheduleFreePlus([x], betas=(0.0, 0.0), eps=0.0)
    x.grad = torch.tensor([4.0])
    optimizer.step(8.0)
    z = 2.0 - 2.0 / root
    assert float(x.detach()) == pytest.approx(z)
    # Step 2 with gradient 1 and loss 1/2: alpha is smaller, so both weights are equal and c = 1/2.
    x.grad = torch.tensor([1.0])
    optimizer.step(0.5)
    average, z = z - 0.5 / root / 2, z - 0.5 / root
    assert float(x.detach()) == pytest.approx(0.9 * average + 0.1 * z)
    # Step 3: z is below x now, and the inner product shortens the step.
    optimizer.step(0.5)
    z -= max(0.0, 0.5 + 0.9 * (z - average)) / root
    average += (z - average) / 3
    optimizer.eval()
    assert float(x.detach()) == pytest.approx(average, rel=1e-5)


def test_greedy_rate_grows_with_a_falling_loss_and_shrinks_with_a_rising_one() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer = GreedyAdamW([x], lr=0.1)
    for step in range(12):  # the eleventh better one in a row is the first beyond the patience
        optimizer.step(10.0 - step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 0.95**2)
    for _ in range(11):
        optimizer.step(100.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 0.95)


def test_muon_takes_what_lies_between_the_first_and_the_last_matrix() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.zeros(3, 4))  # not hidden: held beside the layers
            self.embed = nn.Embedding(5, 4)
            self.layers = nn.Sequential(
                nn.Linear(4, 6), nn.Conv1d(6, 7, 3), nn.LayerNorm(7), nn.GRU(7, 8), nn.Linear(8, 2)
            )

    net = Net()
    shapes = [tuple(item.shape) for item in muon_groups(net, list(net.parameters()))[0]["params"]]
    assert shapes == [(7, 6, 3), (24, 7), (24, 8)]


def test_muon_turns_hidden_matrices_and_leaves_the_rest_to_adamw() -> None:
    problem = TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8)),
        loss=lambda model, batch: (model(batch[0]) - batch[1]).pow(2).mean(),
        data=tuple(torch.randn(64, size, generator=torch.Generator()) for size in (6, 8)),
        batch_size=64,
        device="cpu",
    )
    result = find_peer("muon").run(problem, 1, seed=0)
    model = problem.build(0)
    steps = {}
    for name, item in model.named_parameters():
        steps[name] = result.tensors[f"param.{name}"] - item.detach()
    signs = steps["0.weight"].abs()  # a first step of AdamW has one size everywhere
    assert signs.max() < 1.5 * signs.min()
    problem.loss(model, problem.data).backward()
    gradient = model.get_parameter("2.weight").grad
    assert gradient is not None
    # Seven of the eight directions of the gradient, some of them faint, are taken alike.
    before, after = (torch.linalg.svdvals(item) for item in (gradient, steps["2.weight"]))
    assert before[0] > 5 * before[6] and after[0] < 3 * after[6]
