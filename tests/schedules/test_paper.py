"""The paper's algorithms, written a second time as the paper prints them, against the product."""

import math

import pytest
import torch
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.engine.streams import Stream
from tests.engine import workbench

CPU = torch.device("cpu")
BATCH = 8


def problem() -> gt.TorchProblem:
    """Logistic regression with noise, four features."""
    draws = torch.Generator().manual_seed(11)
    features = torch.randn(200, 4, generator=draws, dtype=torch.float64)
    labels = (features @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) > 0.3).double()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1])

    return gt.TorchProblem(
        model=lambda: nn.Linear(4, 1).double(), loss=loss, data=(features, labels), batch_size=BATCH
    )


class Twin:
    """The oracle of the twin: flat vectors in, the same addressed minibatches."""

    def __init__(self, seed: int) -> None:
        self.problem, self.seed = problem(), seed
        self.model = self.problem.build(seed)
        self.streams = {
            purpose: Stream(self.problem.data, BATCH, seed, purpose, CPU)
            for purpose in ("probe", "value", "train", "ensemble")
        }
        self.x0 = nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def ask(self, point: Tensor, purpose: str, call: int) -> tuple[float, Tensor]:
        nn.utils.vector_to_parameters(point, self.model.parameters())
        loss = self.problem.loss(self.model, self.streams[purpose].batch(call))
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return loss.item(), torch.cat([item.flatten() for item in gradients])


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_grasp_nc_to_the_letter(seed: int, fused: bool) -> None:
    budget, L_eps, F_eps, delta = 3000, 0.05, 0.02, 0.1
    twin = Twin(seed)
    samples = budget // 4
    mean = sum(twin.ask(twin.x0, "probe", t)[1] for t in range(samples)) / samples
    assert isinstance(mean, Tensor)
    square = float(mean.norm()) ** 2
    L_hat = max(L_eps, square * budget / F_eps)
    Delta = square * budget / math.log(1 / delta)
    eta_max = 1 / (2 * L_eps)
    eta_min = min(1 / (2 * L_hat), math.sqrt(2 * F_eps / (L_hat * Delta * budget)))
    N, K = math.ceil(math.log2(eta_max / eta_min)), math.ceil(math.log2(1 / delta))
    points: dict[tuple[int, int], Tensor] = {}
    for i in range(1, N + 1):
        steps = budget // (2 * N)
        wanted = set(trajectory_indices(seed, i, K, steps))
        x = twin.x0.clone()
        for t in range(steps):
            if t in wanted:
                points[i, t] = x.clone()
            x = x - eta_min * 2**i * twin.ask(x, "train", t)[1]
    each = budget // (4 * K * N)
    norms = {(0, 0): float(mean.norm())}
    for place, key in enumerate(sorted(points)):
        calls = range(place * each, (place + 1) * each)
        found = sum(twin.ask(points[key], "ensemble", t)[1] for t in calls) / each
        assert isinstance(found, Tensor)
        norms[key] = float(found.norm())
    out = min(norms, key=lambda key: (norms[key], key))

    method = gt.NonConvex(L_eps=L_eps, F_eps=F_eps, delta=delta)
    result = gt.minimize(
        problem(), budget, method, schedule="paper", seed=seed, fused=fused, progress=False
    )
    chosen = result.choice.chosen
    assert (chosen.arm, chosen.call) == out
    assert result.score == pytest.approx(norms[out], rel=1e-9)
    expected = points[out] if out != (0, 0) else twin.x0
    point = nn.utils.parameters_to_vector(result.model.parameters())
    assert torch.allclose(point, expected, rtol=1e-9, atol=1e-12)
    # T/4 + N T/(2N) + (distinct candidates) T/(4KN), each division rounded down.
    expected_calls = samples, N * (budget // (2 * N)), len(points) * each
    assert tuple(result.calls[k] for k in ("probe", "train", "ensemble")) == expected_calls


@pytest.mark.parametrize("option", ["smooth", "universal"])
def test_grasp_c_to_the_letter(option: str) -> None:
    budget, d_eps, L_eps, seed = 2000, 0.1, 0.5, 3
    twin = Twin(seed)
    eighth = budget // 8
    g0 = sum(twin.ask(twin.x0, "probe", t)[1] for t in range(eighth)) / eighth
    l0 = sum(twin.ask(twin.x0, "value", t)[0] for t in range(eighth)) / eighth
    assert isinstance(g0, Tensor)
    if option == "smooth":
        d_max = max(d_eps, float(g0.norm()) * budget**2 / L_eps)
    else:
        d_max = max(1.0, d_eps, l0 * budget**2 / L_eps)
    N = math.ceil(math.log2(d_max / d_eps))
    values = {0: l0}
    points = {0: twin.x0}
    place = 0
    for i in range(1, N + 1):
        calls = int(budget / (2 * i * (1 + math.log(N))))
        if calls < 2:
            continue
        points[i] = unixgrad(twin, d_eps * 2**i, calls)
        each = budget // (4 * N)
        fresh = range(place * each, (place + 1) * each)
        values[i] = sum(twin.ask(points[i], "ensemble", t)[0] for t in fresh) / each
        place += 1
    out = min(values, key=lambda key: (values[key], key))

    method = gt.Convex(d_eps=d_eps, L_eps=L_eps, option=option)
    result = gt.minimize(problem(), budget, method, schedule="paper", seed=seed, progress=False)
    assert result.choice.chosen.arm == out
    assert result.score == pytest.approx(values[out], rel=1e-6)
    point = nn.utils.parameters_to_vector(result.model.parameters())
    assert torch.allclose(point, points[out], rtol=1e-6, atol=1e-9)


def unixgrad(twin: Twin, radius: float, calls: int) -> Tensor:
    """Algorithm 5 as it is printed, with the sums that it keeps."""
    lead, total, weight = twin.x0.clone(), torch.zeros_like(twin.x0), 0.0
    root, average = 1.0, twin.x0.clone()

    def project(point: Tensor) -> Tensor:
        away = point - twin.x0
        return twin.x0 + away * min(1.0, radius / float(away.norm().clamp_min(1e-300)))

    for t in range(1, calls // 2 + 1):
        step = 2 * radius / math.sqrt(root)
        weight += t
        ahead = (t * lead + total) / weight
        first = twin.ask(ahead, "train", 2 * t - 2)[1]
        x = project(lead - step * t * first)
        total = total + t * x
        average = total / weight
        second = twin.ask(average, "train", 2 * t - 1)[1]
        lead = project(lead - step * t * second)
        root += t**2 * float((second - first).norm()) ** 2
    return average


@pytest.mark.parametrize("held_out", [False, True])
def test_a_dead_network_wins_by_gradient_with_a_note_and_loses_by_loss(held_out: bool) -> None:
    """relu(w x) against 3 x from w = 1: a large step makes w negative, and the gradient zero."""
    rows = torch.linspace(0.1, 1.0, 40).unsqueeze(1)
    data = (rows, 3.0 * rows.squeeze(1))

    def model() -> nn.Module:
        made = nn.Linear(1, 1, bias=False)
        nn.init.constant_(made.weight, 1.0)
        return made

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return ((torch.relu(model(batch[0])).squeeze(1) - batch[1]) ** 2).mean()

    held = data if held_out else None
    found = gt.TorchProblem(model=model, loss=loss, data=data, batch_size=8, validation=held)
    letter = gt.Paper(by_loss=False)
    by_norm = gt.minimize(found, 800, gt.NonConvex(), letter, progress=False)
    assert float(by_norm.tensors["param.weight"]) < 0.0
    assert any("above that of x0: a small gradient" in note for note in by_norm.notes)
    usual = gt.minimize(found, 800, gt.NonConvex(), "paper", progress=False)
    assert usual.choice.by == ("value" if held_out else "gradient")
    assert (float(usual.tensors["param.weight"]) < 0.0) != held_out
    by_loss = gt.minimize(found, 800, gt.NonConvex(), gt.Paper(by_loss=True), progress=False)
    assert abs(float(by_loss.tensors["param.weight"]) - 3.0) < 0.5
    assert by_loss.choice.by == "value" and sum(by_loss.calls.values()) <= 800
    assert by_loss.certificate is None or not by_loss.certificate.covered
    assert not any("dead network" in note for note in by_loss.notes)


def test_x0_is_scored_on_the_validation_rows_too() -> None:
    x, y = workbench.rows()
    held = (x[:40], y[torch.arange(39, -1, -1)])
    for method in (gt.Convex(d_eps=1.0, L_eps=1.0), gt.NonConvex(L_eps=1.0, F_eps=1.0)):
        given = workbench.problem(
            workbench.linear, data=(x, y), validation=held, choose_by="metric", metric="accuracy"
        )
        result = gt.minimize(given, 800, method, "paper", progress=False)
        assert 0.0 <= result.candidates[0].score <= 1.0  # 1 - accuracy, and no loss
        assert result.candidates[0].samples == result.candidates[1].samples
        assert sum(result.calls.values()) <= 800
