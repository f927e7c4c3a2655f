"""What goes wrong in a loop, and what people put around it: one clear sentence each."""

import copy
import io
import itertools
import logging
import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

import grasp_tune as gt
from grasp_tune.runtime.store import TemporaryStore
from tests.loop.test_grasp import (
    BUDGET,
    X,
    Y,
    batches,
    bits,
    groups_of,
    network,
    one_step,
    same,
    train,
)


def test_an_exception_in_the_loop_costs_nothing() -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 120), batches())
    opt, source = gt.Grasp(model, 120), batches()

    def broken() -> Tensor:
        raise RuntimeError("the loader's disk is gone")

    while not opt.done:
        if opt.calls % 7 == 3:
            opt.zero_grad()
            with pytest.raises(RuntimeError, match="disk is gone"):
                opt.step(broken)
        one_step(model, opt, next(source))
    assert same(bits(model), bits(straight))


def test_a_loader_that_ends_early_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    opt = gt.Grasp(model, 90)
    train(model, opt, batches(), most=40)
    with caplog.at_level(logging.WARNING):
        result = opt.finish()
    assert "the loop ended after 40 of 90 steps: the model holds the best point so" in caplog.text
    assert result.partial
    assert "stopped early" in str(result)


def test_a_step_without_gradients_is_told() -> None:
    model = network()
    opt = gt.Grasp(model, 60)
    with pytest.raises(gt.InputError, match=r"no parameter has a gradient: call loss\.backward"):
        opt.step(F.cross_entropy(model(X[:8]), Y[:8]))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.load_state_dict(network(seed=9).state_dict()),
        lambda model: nn.init.zeros_(model[0].weight),
        lambda model: model[0].weight.data.clamp_(-0.01, 0.01),  # leaves no trace in its version
        lambda model: setattr(model[0].weight, "data", torch.zeros(12, 6)),
    ],
)
def test_parameters_changed_from_outside_are_noticed(change: Callable[[Any], object]) -> None:
    model = network()
    opt, source = gt.Grasp(model, 200), batches()

    def steps() -> None:
        while not opt.done:
            one_step(model, opt, next(source))
            change(model)

    with pytest.raises(gt.SearchError, match="changed since the last step"):
        steps()
    assert opt.calls < 4


def test_parameters_of_another_kind_are_noticed() -> None:
    model = network()
    opt, source = gt.Grasp(model, 200), batches()
    while opt.phase != "train":
        one_step(model, opt, next(source))
    one_step(model, opt, next(source))
    model.double()
    x, y = next(source)
    with pytest.raises(gt.SearchError, match="changed since the last step"):
        one_step(model, opt, (x.double(), y))


@pytest.mark.parametrize("phase", ["probe", "score"])
def test_one_change_of_data_while_samples_are_taken_is_noticed(phase: str) -> None:
    model = network()
    opt, source = gt.Grasp(model, 200), batches()
    while opt.phase != phase or opt.calls < 2:
        one_step(model, opt, next(source))
    one_step(model, opt, next(source))
    model[0].weight.data.mul_(1.01)  # type: ignore[operator]
    with pytest.raises(gt.SearchError, match="changed since the last step"):
        one_step(model, opt, next(source))


def test_one_replacement_of_data_along_a_run_is_noticed() -> None:
    model = network()
    opt, source = gt.Grasp(model, 200), batches()
    while opt.phase != "train":
        one_step(model, opt, next(source))
    for _ in range(5):  # a look at the numbers follows the fourth step, and the eighth
        one_step(model, opt, next(source))
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()) * 1.1, model.parameters()
    )
    with pytest.raises(gt.SearchError, match="changed since the last step"):
        one_step(model, opt, next(source))


def test_losses_that_stay_nan_leave_the_start_point_and_say_so() -> None:
    model = network()
    opt, source = gt.Grasp(model, 90), batches()
    start = [item.clone() for item in model.parameters()]

    def steps() -> None:
        while not opt.done:
            opt.zero_grad()
            x, y = next(source)
            loss = F.cross_entropy(model(x), y) * (1.0 if opt.calls < 30 else math.nan)
            loss.backward()
            opt.step(loss)

    with pytest.warns(UserWarning, match="no run .* start point .*NaN") as told:
        steps()
    assert {item.filename for item in told} == {__file__}  # the loop's own line
    assert same(start, list(model.parameters()))
    assert "check loss and validation data" in opt.finish().notes[0]


def test_a_model_may_be_loaded_after_its_optimizer() -> None:
    straight, model, other = network(), network(), network(seed=3)
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source, most=40)
    saved = copy.deepcopy((opt.state_dict(), model.state_dict()))
    again = gt.Grasp(other, 60)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(other, again, source)
    assert same(bits(other), bits(straight))
    again = gt.Grasp(other, 60)
    again.load_state_dict(saved[0])
    other.load_state_dict(network().state_dict())
    with pytest.raises(gt.SearchError, match="changed since the last step"):
        one_step(other, again, next(source))
    with pytest.raises(gt.InputError, match="has a budget of 60 steps, and this one of 90"):
        gt.Grasp(other, 90).load_state_dict(saved[0])


def test_parameters_cannot_join_later() -> None:
    model = network()
    opt = gt.Grasp(model[:-1], 60)
    with pytest.raises(gt.InputError, match="parameters cannot join later"):
        opt.add_param_group({"params": list(model[-1].parameters())})


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].requires_grad_(True),
        lambda model: setattr(model[-1], "weight", nn.Parameter(torch.zeros(2, 12))),
    ],
)
def test_parameters_unfrozen_or_replaced_are_told(change: Callable[[Any], object]) -> None:
    model = network()
    model[0].requires_grad_(False)
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source, most=20)
    change(model)
    with pytest.raises(gt.InputError, match="parameters cannot join later"):
        train(model, opt, source)


def test_a_loop_saved_while_the_best_point_is_looked_at_goes_on_from_its_own() -> None:
    straight, model, other = network(), network(), network(seed=3)
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source, most=40)
    with opt.best(), opt.best():
        saved = opt.state_dict()
        with pytest.raises(gt.SearchError, match="step inside"):
            one_step(model, opt, (X[:8], Y[:8]))
    again = gt.Grasp(other, 60)
    again.load_state_dict(saved)
    train(other, again, source)
    assert same(bits(other), bits(straight))


def test_a_loop_goes_back_to_a_state_of_its_own() -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    opt = gt.Grasp(model, 60)
    start = copy.deepcopy((opt.state_dict(), model.state_dict()))
    train(model, opt, batches(), most=50)  # in the final run, whose momentum is another one
    opt.load_state_dict(start[0])
    model.load_state_dict(start[1])
    source = batches()
    train(model, opt, source, most=40)
    saved = opt.state_dict()
    with opt.best():
        opt.load_state_dict(saved)  # the block's end puts nothing else there
    train(model, opt, source)
    assert same(bits(model), bits(straight))


def test_a_compiled_model_s_state_is_that_of_the_model_itself() -> None:
    straight, model, other = network(), network(), network(seed=3)
    train(straight, gt.Grasp(straight, 60), batches())
    compiled: Any = torch.compile(model, backend="eager")
    opt, source = gt.Grasp(compiled, 60), batches()
    train(compiled, opt, source, most=40)
    again = gt.Grasp(other, 60)
    again.load_state_dict(opt.state_dict())
    train(other, again, source)
    assert same(bits(other), bits(straight))
    assert set(opt.finish().tensors) == set(again.finish().tensors)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_an_optimizer_is_not_copied(copied: Callable[[Any], object]) -> None:
    with pytest.raises(gt.InputError, match=r"save opt\.state_dict"):
        copied(gt.Grasp(network(), 60))


def test_an_interrupt_within_a_step_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)  # as in a notebook
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source, came = gt.Grasp(model, 60), batches(), 0
    feed = opt._feed

    def interrupted(loss: Tensor) -> bool:
        if opt.calls % 7 == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return feed(loss)

    opt._feed = interrupted  # type: ignore[method-assign]
    while not opt.done:
        try:
            one_step(model, opt, next(source))
        except KeyboardInterrupt:
            came += 1
    assert came == 8  # before the steps 4, 11, ... 53 of 59
    assert same(bits(model), bits(straight))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["weight_decay", "multiplier"])
def test_a_group_that_is_edited_gets_a_warning_and_changes_nothing(name: str) -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source, most=20)
    opt.param_groups[0][name] = 0.5
    with pytest.warns(UserWarning, match="of a parameter group was changed, which is ignored"):
        train(model, opt, source)
    assert same(bits(model), bits(straight))


def test_finishing_while_the_best_point_is_looked_at_leaves_the_chosen_weights() -> None:
    model = network()
    opt = gt.Grasp(model, 60)
    train(model, opt, batches(), most=40)
    with opt.best():
        chosen = opt.finish().tensors
    assert all(torch.equal(item, chosen[f"param.{n}"]) for n, item in model.named_parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda opt: lr_scheduler.StepLR(opt, 1, gamma=0.5),
        lambda opt: lr_scheduler.CosineAnnealingLR(opt, 50),
        lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 0.95**step),
        lambda opt: lr_scheduler.CyclicLR(opt, 1e-4, 1e-1),
        lambda opt: lr_scheduler.OneCycleLR(opt, 1e-1, 60),
    ],
)
def test_a_scheduler_on_top_gets_a_warning_and_changes_nothing(make: Callable[..., Any]) -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source = gt.Grasp(model, 60), batches()
    schedule = make(opt)

    def steps() -> None:
        while not opt.done:
            one_step(model, opt, next(source))
            schedule.step()

    with pytest.warns(UserWarning, match="remove the scheduler") as told:
        steps()
    assert len(told) == 1
    assert same(bits(model), bits(straight))


def test_a_copy_of_the_model_is_the_model_alone() -> None:
    model = network()
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source, most=30)
    twin = copy.deepcopy(model)
    files = io.BytesIO(), io.BytesIO()
    torch.save(twin, files[0])
    torch.save(network(), files[1])
    assert files[0].tell() < files[1].tell() + 1000
    for x, y in (next(source) for _ in range(3)):
        F.cross_entropy(twin(x), y).backward()
    train(model, opt, source)
    assert opt.finish().score < 0.69


# -- what it works with --------------------------------------------------------------------------


def test_a_compiled_model_gives_the_same_bits() -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    if torch.__version__ < "2.3":
        pytest.skip("torch.compile of torch 2.2 does not see that BatchNorm's momentum changes")
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, gt.Grasp(compiled, 60), batches())  # type: ignore[arg-type]
    assert same(bits(model), bits(straight))


# Of torch's own compiler, which looks at the loss.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.skipif(torch.__version__ < "2.3", reason="it does not see BatchNorm's momentum change")
def test_a_whole_training_step_may_be_compiled() -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, 60), batches())
    opt, source = gt.Grasp(model, 60), batches()

    @torch.compile(backend="eager")
    def one(x: torch.Tensor, y: torch.Tensor) -> None:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(loss)

    while not opt.done:
        one(*next(source))
    assert same(bits(model), bits(straight))


def test_named_parameters_will_do() -> None:
    one, other = network(), network()
    train(one, gt.Grasp(one.named_parameters(), 60), batches())
    train(other, gt.Grasp(other.parameters(), 60), batches())
    assert same(bits(one), bits(other))


def regularised(**options: Any) -> nn.Sequential:
    model = network()
    train(model, gt.Grasp(model, BUDGET, **options), batches())
    return model


def size(model: nn.Module) -> float:
    return float(sum(item.detach().square().sum() for item in model.parameters() if item.ndim > 1))


def test_weight_decay_and_clipping_are_arguments() -> None:
    plain = regularised()
    assert size(regularised(weight_decay=3.0)) < 0.7 * size(plain)
    assert same(bits(regularised(clip=1e9)), bits(plain))
    assert not same(bits(regularised(clip=0.01)), bits(plain))
    for wrong in ({"weight_decay": -1.0}, {"clip": 0.0}):
        with pytest.raises(gt.InputError, match=f"{next(iter(wrong))}: got"):
            gt.Grasp(network(), BUDGET, **wrong)  # type: ignore[arg-type]


def test_a_group_s_own_decay_comes_first() -> None:
    model = network()
    opt = gt.Grasp(groups_of(model, weight_decay=5.0), BUDGET, weight_decay=0.5)
    assert [group["weight_decay"] for group in opt.param_groups] == [0.5, 5.0]
    last = list(model[-1].parameters())
    before = float(last[0].detach().norm())
    train(model, opt, batches())
    assert float(last[0].detach().norm()) < before


@pytest.mark.parametrize("method", [gt.NonConvex(base="sgd"), gt.NonConvex(base="adamw")])
def test_clipping_by_hand_is_the_same_as_the_argument(method: gt.NonConvex) -> None:
    one, other = network(), network()
    train(one, gt.Grasp(one, 100, method, clip=0.5), batches())
    opt, source = gt.Grasp(other, 100, method), batches()
    while not opt.done:
        x, y = next(source)
        opt.zero_grad()
        loss = F.cross_entropy(other(x), y)
        loss.backward()
        if opt.phase == "train":
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        opt.step(loss)
    assert same(bits(one), bits(other))


class Watched(nn.Module):
    """Notes how many minibatches its statistics have seen, forward by forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = network(), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(int(self.net[1].num_batches_tracked))  # type: ignore[arg-type]
        out: Tensor = self.net(x)
        return out


def test_batch_statistics_belong_to_their_point_in_every_phase() -> None:
    model = Watched()
    opt, source, phases = gt.Grasp(model, BUDGET), batches(), list[str]()
    while not opt.done:
        phases.append(opt.phase)
        one_step(model, opt, next(source))
    seen = {
        kind: [n for n, p in zip(model.seen, phases, strict=True) if p == kind]
        for kind in set(phases)
    }
    assert set(seen["probe"][1:]) == {1}  # the loop's first forward is before the first step
    train_seen = seen["train"]
    assert train_seen[0] == 1 and max(train_seen) <= len(train_seen)
    assert all(b == a + 1 or b <= a for a, b in itertools.pairwise(train_seen))
    assert len(set(seen["score"])) < len(seen["score"])  # samples leave a candidate's as they are


@pytest.mark.parametrize(
    ("method", "schedule"),
    [(None, "promote"), (gt.Convex(d_eps=0.1, L_eps=10.0), "paper")],
)
def test_a_loop_saved_at_any_step_goes_on_bit_for_bit(method: Any, schedule: Any) -> None:
    budget = 100

    def dropout() -> nn.Sequential:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    def source() -> Iterator[tuple[Tensor, Tensor]]:
        for at, batch in enumerate(batches()):
            torch.manual_seed(at)  # of the noise in the model
            yield batch

    model, straight = dropout(), source()
    opt = gt.Grasp(model, budget, method, schedule)
    states, seen = [], set()
    while not opt.done:
        states.append(opt.state_dict())
        seen.add(opt.phase)
        one_step(model, opt, next(straight))
    assert seen == {"probe", "train", "score"}
    for step in range(1, len(states), 5 if schedule == "promote" else 9):
        later, data = dropout(), source()
        resumed = gt.Grasp(later, budget, method, schedule)
        resumed.load_state_dict(states[step])
        for _ in range(step):
            next(data)
        train(later, resumed, data)
        assert same(bits(later), bits(model)), step


def test_states_on_the_disk_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, large = network(), network(), network()
    train(one, gt.Grasp(one, 200), batches())
    train(other, gt.Grasp(other, 200, park="files"), batches())
    assert same(bits(one), bits(other))
    monkeypatch.setattr("grasp_tune.loop.grasp.PARKED", 10)
    opt = gt.Grasp(large, 200)
    assert isinstance(opt._point.store, TemporaryStore)
    train(large, opt, batches())
    assert same(bits(one), bits(large))
