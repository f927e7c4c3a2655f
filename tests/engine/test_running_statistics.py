"""BatchNorm's running statistics follow the weights, also in a run of a few dozen steps."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

import grasp_tune as gt
from grasp_tune.engine.checkpoints import Buffers


def digits() -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    rows = torch.tensor(bunch.data / 16.0, dtype=torch.float32)
    return rows[:1152], torch.tensor(bunch.target)[:1152]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def losses(model: nn.Module, rows: Tensor, targets: Tensor) -> tuple[float, float]:
    """The loss in evaluation mode: with the model's own statistics, and with those of all rows."""
    found = []
    for _ in range(2):
        with torch.no_grad():
            found.append(float(F.cross_entropy(model.eval()(rows), targets)))
        update_bn([(part,) for part in rows.split(64)], model)
    return found[0], found[1]


def test_a_model_of_sixty_calls_is_as_good_in_evaluation_mode() -> None:
    rows, targets = digits()
    pairs = []
    for seed in range(8):  # with torch's momentum: twice the loss on the mean
        problem = gt.TorchProblem(model=network, loss=nn.CrossEntropyLoss(), data=(rows, targets))
        pairs.append(losses(gt.minimize(problem, 60, seed=seed, progress=False).model, *digits()))
    own, fresh = (sum(item) for item in zip(*pairs, strict=True))
    assert own < 1.25 * fresh


def test_a_loop_leaves_the_users_momentum_in_the_model() -> None:
    rows, targets = digits()
    torch.manual_seed(3)
    model = network()
    opt = gt.Grasp(model, budget=60)
    seen = set()
    while not opt.done:
        at = torch.randint(len(rows), (64,))
        opt.zero_grad()
        loss = F.cross_entropy(model(rows[at]), targets[at])
        loss.backward()
        opt.step(loss)
        seen.add(model[1].momentum)  # type: ignore[index]
    opt.finish()
    assert 0.1 in seen and max(seen) == 0.5  # short runs, the final one among them
    assert model[1].momentum == model[4].momentum == 0.1  # type: ignore[index]


def test_another_optimizer_in_the_middle_of_a_run_knows_the_users_momentum() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=0.3))
    Buffers(model).follow(12)
    twin = copy.deepcopy(model)
    for each in (model, twin):
        Buffers(each).follow(None)
        assert [part.momentum for part in each] == [0.1, 0.3]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_model_keeps_its_momentum() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    Buffers(model).follow(12)
    assert getattr(model, "1").momentum == 0.1


def test_the_best_point_of_a_short_run_is_as_good_in_evaluation_mode() -> None:
    rows, targets = digits()
    pairs = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = network()
        opt = gt.Grasp(model, 300, seed=seed)
        for _ in range(90):  # the first rounds have ended: a run of 20 calls leads
            at = torch.randint(len(rows), (64,))
            opt.zero_grad()
            loss = F.cross_entropy(model(rows[at]), targets[at])
            loss.backward()
            opt.step(loss)
        with opt.best():
            pairs.append(losses(model, rows, targets))
    own, fresh = (sum(item) for item in zip(*pairs, strict=True))
    assert own < 1.5 * fresh  # with torch's momentum: nearly four times as much


def test_long_runs_and_own_choices_are_left_alone() -> None:
    parts = nn.Sequential(
        nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=0.3), nn.BatchNorm1d(3, momentum=None)
    )
    buffers = Buffers(parts)

    def momenta(steps: int | None) -> list[float | None]:
        buffers.follow(steps)
        return [part.momentum for part in parts]  # type: ignore[misc]

    assert momenta(100) == momenta(4_000) == momenta(None) == [0.1, 0.3, None]
    assert momenta(40) == [0.25, 0.3, None]  # a tenth of 40 steps is 4: 1 / 4
    assert momenta(12) == [0.5, 0.5, None]
