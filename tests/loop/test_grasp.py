"""`gt.Grasp`: the whole method inside a loop of the user's own."""

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.optimizers.registry import find_optimizer

BUDGET = 300


def rows() -> tuple[Tensor, Tensor]:
    """400 rows of two classes that a small network can tell apart, with some noise."""
    draw = torch.Generator().manual_seed(11)
    x = torch.randn(400, 6, generator=draw)
    noise = 0.3 * torch.randn(400, generator=draw)
    return x, ((x[:, 0] * x[:, 1] + x[:, 2] + noise) > 0).long()


X, Y = rows()


def batches(seed: int = 5, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        at = torch.randint(0, len(X), (size,), generator=draw)
        yield X[at], Y[at]


def network(seed: int = 2) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 2))


def one_step(model: nn.Module, opt: gt.Grasp, batch: tuple[Tensor, Tensor]) -> Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    opt.step(loss)
    return loss


def train(model: nn.Module, opt: gt.Grasp, source: Iterator[Any], most: int = 10**6) -> int:
    steps = 0
    while not opt.done and steps < most:
        one_step(model, opt, next(source))
        steps += 1
    return steps


def whole_loss(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(X), Y))


def bits(model: nn.Module) -> list[Tensor]:
    return [item.clone() for item in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_loop_spends_at_most_its_budget_and_ends_with_the_chosen_weights() -> None:
    model = network()
    before = whole_loss(model)
    model.train()
    opt = gt.Grasp(model, BUDGET)
    steps = train(model, opt, batches())
    chosen = bits(model)
    result = opt.finish()
    assert steps <= BUDGET
    assert sum(result.calls.values()) == steps == opt.calls
    assert same(bits(model), chosen)  # finish() changes nothing once the budget is spent
    assert result.model is model
    assert whole_loss(model) < 0.65 * before
    assert not result.partial
    assert result.certificate is not None


def test_a_closure_gives_the_same_bits_as_a_loss() -> None:
    one, other = network(), network()
    train(one, gt.Grasp(one, BUDGET), batches())
    opt, source = gt.Grasp(other, BUDGET), batches()
    while not opt.done:
        x, y = next(source)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(other(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    assert same(bits(one), bits(other))


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        (None, "promote"),
        (gt.Convex(), "promote"),
        (gt.NonConvex(L_eps=9.0, F_eps=9.0, delta=0.3), "paper"),
        (gt.Convex(d_eps=0.1, L_eps=10.0), "paper"),  # UniXGrad: two calls a step
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.41, 0.985])
def test_a_saved_loop_goes_on_bit_for_bit(method: Any, schedule: Any, share: float) -> None:
    budget = 240
    straight = network()
    train(straight, gt.Grasp(straight, budget, method, schedule), batches())

    model, source = network(), batches()
    opt = gt.Grasp(model, budget, method, schedule)
    train(model, opt, source, most=int(share * budget))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)  # tensors and plain values only
    later = network(seed=77)  # another point: the state puts the model where it was
    if share == 0.0:
        later.load_state_dict(model.state_dict())
    resumed = gt.Grasp(later, budget, method, schedule)
    resumed.load_state_dict(state)
    train(later, resumed, source)
    assert same(bits(later), bits(straight))
    assert resumed.finish().calls == resumed.finish().calls


def test_a_state_of_something_else_is_refused() -> None:
    model = network()
    with pytest.raises(gt.InputError, match="no state of a Grasp"):
        gt.Grasp(model, 50).load_state_dict(torch.optim.SGD(model.parameters(), 0.1).state_dict())
    state = gt.Grasp(model, 50, weight_decay=0.1).state_dict()
    with pytest.raises(gt.InputError, match=r"weight_decay of \[\[1.0, 0.1\]\], and these of"):
        gt.Grasp(model, 50).load_state_dict(state)


def test_a_state_of_a_loop_that_was_finished_early_is_told() -> None:
    model = network()
    opt = gt.Grasp(model, BUDGET)
    train(model, opt, batches(), most=60)
    opt.finish()
    with pytest.warns(UserWarning, match="ended its loop early"):
        gt.Grasp(model, BUDGET).load_state_dict(opt.state_dict())


def test_the_best_point_can_be_looked_at_in_the_middle() -> None:
    model = network()
    opt, source = gt.Grasp(model, BUDGET), batches()
    train(model, opt, source, most=200)
    now = bits(model)
    with opt.best():
        inside = whole_loss(model)
        model.train()
    assert inside < 0.69
    assert same(bits(model), now)
    straight = network()
    train(straight, gt.Grasp(straight, BUDGET), batches())
    train(model, opt, source)
    assert same(bits(model), bits(straight))  # the look left no trace


def test_finishing_early_gives_the_best_so_far() -> None:
    model = network()
    opt = gt.Grasp(model, BUDGET)
    train(model, opt, batches(), most=150)
    result = opt.finish()
    assert result.partial
    assert opt.done
    assert whole_loss(model) < 0.69


def test_a_step_too_many_changes_nothing_and_says_so() -> None:
    model = network()
    opt, source = gt.Grasp(model, 60), batches()
    train(model, opt, source)
    before = [item.clone() for item in model.parameters()]
    with pytest.warns(UserWarning, match="budget is spent"):
        one_step(model, opt, next(source))
    assert same(before, list(model.parameters()))


def test_a_step_without_a_loss_says_what_to_do() -> None:
    model = network()
    opt = gt.Grasp(model, 60)
    with pytest.raises(gt.InputError, match=r"opt\.step\(loss\)"):
        opt.step()


def test_the_loss_of_a_models_output_needs_not_be_handed_over() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.net(x), y)}

    one, other = WithLoss(), network()
    opt, source = gt.Grasp(one, BUDGET), batches()
    while not opt.done:
        x, y = next(source)
        opt.zero_grad()
        one(x, y)["loss"].backward()
        opt.step()
    train(other, gt.Grasp(other, BUDGET), batches())
    assert same(bits(one.net), bits(other))


def test_a_scheduler_on_top_gets_a_warning() -> None:
    model = network()
    opt, source = gt.Grasp(model, 60), batches()
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    one_step(model, opt, next(source))
    schedule.step()
    opt.param_groups[0]["lr"] = 0.1
    with pytest.warns(UserWarning, match="learning-rate scheduler"):
        one_step(model, opt, next(source))


def test_parameters_changed_from_outside_are_noticed() -> None:
    model = network()
    opt, source = gt.Grasp(model, 60), batches()
    one_step(model, opt, next(source))
    model.load_state_dict(network(seed=9).state_dict())
    with pytest.raises(gt.SearchError, match="changed since the last step"):
        one_step(model, opt, next(source))


def test_the_start_point_is_where_the_model_is_at_the_first_step() -> None:
    model = network()
    opt = gt.Grasp(model, BUDGET)
    model.load_state_dict(network(seed=9).state_dict())  # as after moving to a device, or DDP
    other = network(seed=9)
    train(model, opt, batches())
    train(other, gt.Grasp(other, BUDGET), batches())
    assert same(bits(model), bits(other))


@pytest.mark.parametrize("kind", ["complex", "meta"])
def test_a_loss_that_is_no_real_number_is_told(kind: str) -> None:
    model = network()
    opt = gt.Grasp(model, BUDGET)
    F.cross_entropy(model(X[:8]), Y[:8]).backward()
    loss = torch.tensor(0.5 + 1j) if kind == "complex" else torch.ones((), device="meta")
    with pytest.raises(gt.InputError, match=f"loss: got a {kind} tensor"):
        opt.step(loss)


@pytest.mark.parametrize("loss", ["0.5", {"loss": torch.ones(())}, [0.5]])
def test_what_is_no_loss_is_told(loss: Any) -> None:
    model = network()
    opt = gt.Grasp(model, BUDGET)
    F.cross_entropy(model(X[:8]), Y[:8]).backward()
    with pytest.raises(gt.InputError, match=f"loss: got a {type(loss).__name__}, expected"):
        opt.step(loss)


def test_a_loss_that_is_nan_at_the_start_is_named() -> None:
    model = network()
    opt = gt.Grasp(model, 60)

    def steps() -> None:
        while not opt.done:
            opt.zero_grad()
            loss = model(X[:8]).sum() * math.nan
            loss.backward()
            opt.step(loss)

    with pytest.raises(gt.ProblemError, match=r"start point.*finite weights"):
        steps()


def test_a_loss_that_turns_nan_ends_a_part_and_not_the_loop() -> None:
    model = network()
    opt, source, steps = gt.Grasp(model, BUDGET), batches(), 0
    while not opt.done:
        steps += 1
        x, y = next(source)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if steps == 200:
            loss = loss * math.nan
        loss.backward()
        opt.step(loss)
    assert steps <= BUDGET
    assert math.isfinite(whole_loss(model))


def test_frozen_parameters_and_sparse_gradients() -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)
    head.bias.requires_grad_(False)
    model = nn.Sequential(table, head)
    frozen = head.bias.clone()
    ids = torch.randint(0, 20, (200,), generator=torch.Generator().manual_seed(1))
    wanted = (ids % 2).long()
    opt = gt.Grasp(model, 200)
    at = 0
    while not opt.done:
        part = slice(at % 192, at % 192 + 8)
        opt.zero_grad()
        loss = F.cross_entropy(model(ids[part]), wanted[part])
        loss.backward()
        opt.step(loss)
        at += 8
    opt.finish()
    assert torch.equal(head.bias, frozen)
    with torch.no_grad():
        assert float(F.cross_entropy(model(ids), wanted)) < 0.35


def test_hooks_and_a_profiler_see_the_steps() -> None:
    opt, seen = gt.Grasp(model := network(), budget=40), list[str]()
    one_step(model, opt, batch := next(batches()))
    opt.register_step_pre_hook(lambda *given: seen.append("before"))
    opt.register_step_post_hook(lambda *given: seen.append("after"))
    one_step(model, opt, batch)
    assert seen == ["before", "after"] and opt.calls == 2
    with torch.autograd.profiler.profile() as found:
        one_step(model, opt, batch)
    assert "Optimizer.step#Grasp.step" in {item.name for item in found.function_events}
    model.zero_grad()
    opt.zero_grad(set_to_none=False)
    assert all(item.grad is None for item in model.parameters())
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    opt.zero_grad(set_to_none=False)
    assert all(item.grad is not None and not item.grad.any() for item in model.parameters())
    opt.zero_grad()
    assert all(item.grad is None for item in model.parameters())


def test_bare_parameters_will_do() -> None:
    weight = torch.zeros(3, requires_grad=True)
    target = torch.tensor([1.0, -2.0, 0.5])
    opt = gt.Grasp([weight], 200)
    while not opt.done:
        opt.zero_grad()
        loss = ((weight - target) ** 2).sum()
        loss.backward()
        opt.step(loss)
    result = opt.finish()
    assert torch.allclose(weight.detach(), target, atol=0.05)
    assert result.score < 0.01


def test_clipping_accumulation_and_autocast() -> None:
    model = network()
    opt, source = gt.Grasp(model, BUDGET), batches(size=8)
    while not opt.done:
        opt.zero_grad()
        total = 0.0
        for _ in range(2):
            x, y = next(source)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step(total)
    assert whole_loss(model) < 0.6


def scaler_for_cpus(**how: Any) -> Any:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has no GradScaler for CPUs; 2.3 has the first")
    return torch.amp.GradScaler("cpu", **how)


def test_a_grad_scaler_hands_the_loss_on() -> None:
    scaler, model = scaler_for_cpus(init_scale=1024.0), network()
    opt, source = gt.Grasp(model, BUDGET), batches()
    while not opt.done:
        x, y = next(source)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt, loss)
        scaler.update()
    assert whole_loss(model) < 0.6


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_changes_no_bit(unscale: bool) -> None:
    straight, model = network(), network()
    train(straight, gt.Grasp(straight, BUDGET), batches())
    opt, source, scaler = gt.Grasp(model, BUDGET), batches(), scaler_for_cpus()
    while not opt.done:
        x, y = next(source)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt, loss)
        scaler.update()
    assert same(bits(model), bits(straight))


class Cliff(torch.autograd.Function):
    """A loss that is NaN where it is large, and whose gradient overflows where it is scaled."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, most: float) -> Tensor:
        ctx.most, ctx.nan = most, bool(loss > 0.9)
        return loss * math.nan if ctx.nan else loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * (math.nan if ctx.nan or grads[0] > ctx.most else 1.0), None


def scaled_steps(model: nn.Module, opt: gt.Grasp, most: float) -> int:
    source, steps, scaler = batches(), 0, scaler_for_cpus()
    while not opt.done:
        x, y = next(source)
        opt.zero_grad()
        loss = Cliff.apply(F.cross_entropy(model(x), y), most)
        scaler.scale(loss).backward()
        scaler.step(opt, loss)
        scaler.update()
        steps += 1
        assert steps < 400
    return steps


@pytest.mark.parametrize(("most", "left_out"), [(1e9, 0), (2.0**12, 4)])
def test_runs_that_diverge_under_a_grad_scaler_end(most: float, left_out: int) -> None:
    model = network()
    opt = gt.Grasp(model, 200)
    # What is not finite at a large scale is tried again at a smaller one, and is no call.
    assert scaled_steps(model, opt, most) == opt.calls + left_out
    assert whole_loss(model) < 0.69


def test_gradients_that_overflow_at_any_scale_are_named() -> None:
    model = network()
    with pytest.raises(gt.InputError, match="gradient at the start point has norm nan"):
        scaled_steps(model, gt.Grasp(model, 200), 0.0)


class Rows(torch.utils.data.IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from X


def test_epochs_and_a_loader_make_a_budget() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=40)
    opt = gt.Grasp(network(), epochs=7, loader=loader)
    assert opt.budget == 70
    model = network()
    opt = gt.Grasp(model, epochs=7, loader=loader)
    for _ in range(7):
        for batch in loader:
            one_step(model, opt, batch)  # some to spare at the end are no mistake
    assert opt.done and not opt.finish().partial
    with pytest.raises(gt.InputError, match="one of budget, epochs"):
        gt.Grasp(network())
    with pytest.raises(gt.InputError, match="one of budget, epochs"):
        gt.Grasp(network(), 10, minutes=1)
    for endless in (None, torch.utils.data.DataLoader(Rows())):
        with pytest.raises(gt.InputError, match="give the loader too, one that has a length"):
            gt.Grasp(network(), epochs=3, loader=endless)


def test_minutes_make_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("grasp_tune.loop.grasp.time.monotonic", lambda: now[0])
    model = network()
    opt, source, steps = gt.Grasp(model, minutes=1.0), batches(), 0
    assert opt.phase == "timing"
    while not opt.done:
        one_step(model, opt, next(source))
        steps += 1
        now[0] += 0.2  # so that 300 steps fit, of which 12 are timed
    assert opt.budget == pytest.approx(0.97 * 288, abs=3)
    assert 57.0 <= now[0] - 100.0 <= 60.5
    assert not opt.finish().partial


def test_a_loop_whose_steps_become_faster_gets_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.5]
    monkeypatch.setattr("grasp_tune.loop.grasp.time.monotonic", lambda: now[0])
    model = network()
    opt, source, steps = gt.Grasp(model, minutes=1.0), batches(), 0
    while not opt.done:
        one_step(model, opt, next(source))
        steps += 1
        now[0] += 0.2 if steps < 100 else 0.1
        if steps == 330:  # in the steps that were added
            saved = opt.state_dict()
            opt = gt.Grasp(model, minutes=1.0)
            opt.load_state_dict(saved)
    result = opt.finish()
    assert 55.0 <= now[0] - 0.5 <= 60.0
    assert result.spec["extends"][0] == pytest.approx(0.97 * 288, abs=3) and steps > 400
    assert not result.partial


def test_the_clock_ends_a_loop_whose_steps_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.5]
    monkeypatch.setattr("grasp_tune.loop.grasp.time.monotonic", lambda: now[0])
    model = network()
    opt, source, steps = gt.Grasp(model, minutes=1.0), batches(), 0
    while not opt.done:
        one_step(model, opt, next(source))
        steps += 1
        now[0] += 0.2 if steps < 100 else 0.6
    assert now[0] - 0.5 <= 60.0 + 1.3
    assert opt.finish().partial
    assert whole_loss(model) < 0.69


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gt.Grasp(nn.ReLU(), 50), "nothing to train"),
        (lambda: gt.Grasp(network(), 50, gt.Deterministic()), "exact gradients"),
        (lambda: gt.Grasp(network(), 50, "nonconvex"), "expected NonConvex"),  # type: ignore[arg-type]
        (lambda: gt.Grasp(network(), 0), "budget"),
        (lambda: gt.Grasp(network(), minutes=-1.0), "minutes"),
        (lambda: gt.Grasp(torch.ones(3), 50), "got a tensor"),
        (lambda: gt.Grasp(nn.LazyLinear(3), 50), "weight is not initialised yet"),
        (lambda: gt.Grasp(nn.Linear(3, 3, dtype=torch.complex64), 50), "weight is complex"),
        (lambda: gt.Grasp(nn.Linear(3, 3, device="meta"), 50), "weight is on the meta device"),
    ],
)
def test_what_cannot_be_right_is_said_at_once(make: Callable[[], object], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        make()


def test_what_a_logger_wants_to_know() -> None:
    model = network()
    opt, source = gt.Grasp(model, BUDGET), batches()
    phases = [opt.phase]
    while not opt.done:
        one_step(model, opt, next(source))
        if opt.phase != phases[-1]:
            phases.append(opt.phase)
    assert phases[0] == "probe" and phases[-1] == "done" and "train" in phases
    assert opt.best_loss < 0.69
    assert opt.calls <= BUDGET


def groups_of(model: nn.Sequential, **last: float) -> list[dict[str, Any]]:
    return [{"params": model[:-1].parameters()}, {"params": model[-1].parameters(), **last}]


@pytest.mark.parametrize(
    ("base", "kind", "ours", "theirs", "close"),
    [
        ("sgd", torch.optim.SGD, {"multiplier": 4.0}, {"lr": 0.04}, 1e-6),
        # It has a decay of 0.01 of its own, to which the step's size alone matters.
        ("adamw", torch.optim.AdamW, {"multiplier": 4.0}, {"lr": 0.04}, 2e-3),
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.49}, {"weight_decay": 0.5}, 1e-3),
    ],
)
def test_multiplier_and_weight_decay_are_those_of_torch_s_groups(
    base: str, kind: Any, ours: dict[str, float], theirs: dict[str, float], close: float
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    twin = copy.deepcopy(model)
    entry, rules = find_optimizer(base, {}), StepRules(groups_of(model, **ours))
    opt = entry.build(list(model.parameters()), {"lr": 0.01})
    other = kind(groups_of(twin, **theirs), lr=0.01)
    source = batches()
    for _ in range(8):
        x, y = next(source)
        for item in (model, twin):
            item.zero_grad()
            F.cross_entropy(item(x), y).backward()
        with torch.no_grad():
            rules.step(opt, entry, lambda: 0.0)
        other.step()
    for mine, wanted in zip(bits(model), bits(twin), strict=True):
        assert torch.allclose(mine, wanted, atol=close)


def test_groups_are_trained_within_the_method() -> None:
    model = network()
    opt = gt.Grasp(groups_of(model, multiplier=0.25, weight_decay=1e-3), BUDGET)
    train(model, opt, batches())
    assert whole_loss(model) < 0.35
    assert opt.param_groups[1]["lr"] == 0.25 * opt.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"lr": 0.1}, "no learning rate.*give multiplier=0.1"),
        ({"multiplier": 0.0}, "multiplier: got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay: got -1.0"),
    ],
)
def test_what_a_group_cannot_have_is_said_at_once(second: dict[str, float], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        gt.Grasp(groups_of(network(), **second), BUDGET)


def test_an_optimizer_without_a_step_size_has_no_multipliers() -> None:
    model = network()
    opt = gt.Grasp(
        groups_of(model, multiplier=2.0), BUDGET, gt.Convex(d_eps=0.1, L_eps=10.0), "paper"
    )
    with pytest.raises(gt.InputError, match="unixgrad has no step size"):
        train(model, opt, batches())


def test_parked_states_change_no_bit() -> None:
    one, other = network(), network()
    train(one, gt.Grasp(one, 200), batches())
    train(other, gt.Grasp(other, 200, park="cpu"), batches())
    assert same(bits(one), bits(other))
    with pytest.raises(gt.InputError, match="park: got 'disk'"):
        gt.Grasp(network(), 200, park="disk")  # type: ignore[arg-type]
