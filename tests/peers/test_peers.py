"""Every peer: within its budget, the same twice, better than where it started."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune import extras
from grasp_tune.core.errors import InputError, MissingExtra, SearchError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.peers import PEERS, PeerResult, find_peer, installed_peers
from grasp_tune.peers.registry import cosine
from grasp_tune.peers.session import Session

BUDGET = 400
SEEN: list[int] = []


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    SEEN.append(1)
    return F.cross_entropy(model(batch[0]), batch[1])


def made(batch_size: int = 16) -> TorchProblem:
    """Three classes in a plane, far enough apart for a linear model."""
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(300) % 3
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    x = centres[y] + 0.7 * torch.randn(300, 2, generator=generator)
    return TorchProblem(
        model=lambda: nn.Linear(2, 3), loss=loss, data=(x, y), batch_size=batch_size, device="cpu"
    )


def full_loss(problem: TorchProblem, result: PeerResult | None, seed: int) -> float:
    model = problem.build(seed)
    if result is not None:
        model.load_state_dict(
            {name.removeprefix("param."): item for name, item in result.tensors.items()}
        )
    assert isinstance(problem.data, tuple)
    with torch.no_grad():
        return float(F.cross_entropy(model(problem.data[0]), problem.data[1]))


@pytest.fixture(autouse=True)
def count() -> None:
    SEEN.clear()


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_keeps_its_budget_and_lowers_the_loss(name: str) -> None:
    problem = made()
    result = find_peer(name).run(problem, BUDGET, seed=3)
    assert len(SEEN) == result.calls <= BUDGET
    assert result.calls >= 0.9 * BUDGET  # and uses it
    assert not result.diverged
    assert full_loss(problem, result, 3) < full_loss(problem, None, 3)
    assert result.seconds >= 0.0


@pytest.mark.parametrize("name", list(PEERS))
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    first, second = (find_peer(name).run(made(), 60, seed=5) for _ in range(2))
    other = find_peer(name).run(made(), 60, seed=6)
    same = all(torch.equal(item, second.tensors[key]) for key, item in first.tensors.items())
    assert same
    assert any(not torch.equal(item, other.tensors[key]) for key, item in first.tensors.items())


@pytest.mark.parametrize("name", list(PEERS))
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_tiny_budget_is_kept_too(name: str, budget: int) -> None:
    result = find_peer(name).run(made(), budget, seed=0)
    assert len(SEEN) == result.calls <= budget


def test_all_peers_see_the_same_minibatches() -> None:
    # The first minibatch loss is that of x0 on training minibatch 0, whoever asks.
    runs = [Session(made(), 1, 4).run() for _ in range(2)]
    for run, kind in zip(runs, (torch.optim.SGD, torch.optim.AdamW), strict=True):
        optimizer = kind(run.oracle.parameters, lr=0.1)
        for _ in run.steps(1):
            optimizer.step()
    assert runs[0].losses == runs[1].losses


def test_a_run_that_is_not_finite_is_stopped_and_said_so() -> None:
    def explode(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        SEEN.append(1)
        return model(batch[0]).pow(4).mean()

    x = torch.full((8, 1), 30.0)
    problem = TorchProblem(
        model=lambda: nn.Linear(1, 1), loss=explode, data=(x,), batch_size=4, device="cpu"
    )
    result = find_peer("momentum").run(problem, 200, seed=0)
    assert result.diverged
    assert result.calls < 200
    # The same problem is no trouble for one that looks for its learning rate.
    assert not find_peer("tpe").run(problem, 200, seed=0).diverged


def test_a_session_refuses_calls_beyond_the_budget() -> None:
    session = Session(made(), 3, 0)
    run = session.run()
    with pytest.raises(SearchError, match="used 4 oracle calls, allowed are 3"):
        list(run.steps(4))


@pytest.mark.parametrize("budget", [0, -1, 2.5, True])
def test_a_budget_that_is_no_count_is_refused(budget: int) -> None:
    with pytest.raises(InputError, match=r"budget: got .*, expected a whole number >= 1"):
        find_peer("sgd").run(made(), budget, seed=0)


def test_an_unknown_peer_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"got 'dgo', expected one of dog, ldog"):
        find_peer("dgo")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(extras, "import_module", fail)
    with pytest.raises(MissingExtra, match=r"needs dog, .*pip install 'grasp_tune\[bench\]'"):
        find_peer("dog").run(made(), 10, seed=0)
    for name, extra in (("tpe", "optuna"), ("asha", "ray")):  # `bench` brings neither
        with pytest.raises(MissingExtra, match=rf"needs {extra}, .*grasp_tune\[{extra}\]'"):
            find_peer(name).run(made(), 10, seed=0)


def test_peers_that_need_nothing_are_always_installed() -> None:
    assert {"adamw", "sgd", "momentum", "range-test"} <= {peer.name for peer in installed_peers()}


def test_cosine_by_hand() -> None:
    # (1 + cos(pi/3)) / 2 = (1 + 1/2) / 2
    assert math.isclose(cosine(1 / 3), 0.75)
    assert cosine(0.0) == 1.0


def test_dog_is_the_published_rule_with_the_average_of_its_authors() -> None:
    # Two steps by hand from the same minibatches: eta = r / sqrt(G), r = 1e-6 (1 + |x0|) at first,
    # then the distance moved; the average after two steps weighs the second 9/10.
    problem, seed = made(), 2
    run = Session(problem, 2, seed).run()
    x0 = [item.detach().clone() for item in run.oracle.parameters]
    points, total, reach = [], 1e-8, 1e-6 * (1 + math.hypot(*(float(x.norm()) for x in x0)))
    for call in range(2):
        run.oracle.gradient("train", call)
        grads = [item.grad.clone() for item in run.oracle.parameters if item.grad is not None]
        moved = [
            float((p.detach() - x).norm()) for p, x in zip(run.oracle.parameters, x0, strict=True)
        ]
        reach = max(reach, math.hypot(*moved))
        total += sum(float(g.pow(2).sum()) for g in grads)
        with torch.no_grad():
            for item, grad in zip(run.oracle.parameters, grads, strict=True):
                item.sub_(grad, alpha=reach / math.sqrt(total))
        points.append([item.detach().clone() for item in run.oracle.parameters])
    mean = [0.1 * a + 0.9 * b for a, b in zip(*points, strict=True)]
    result = find_peer("dog").run(problem, 2, seed)
    for found, expected in zip(result.tensors.values(), mean, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
