"""The searcher's own contract, without a Tune run: order, loss, repetition, saving, refusals."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, tune
from ray.tune.logger.tensorboardx import TBXLoggerCallback
from ray.tune.search import ConcurrencyLimiter, Searcher
from torch import nn

import grasp_tune as gt
from grasp_tune.ray import GraspSearcher, grasp_trainable
from tests.ray.shop import Shop, linear_problem, same, spent

BUDGET = 240


@pytest.fixture(autouse=True)
def stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")


@pytest.fixture(scope="module")
def local() -> gt.Result:
    return gt.minimize(linear_problem()(), BUDGET, fused=False, progress=False)


def searcher() -> GraspSearcher:
    return GraspSearcher(gt.NonConvex(), budget=BUDGET, fused=False)


def test_one_trial_after_the_other_gives_the_local_result(tmp_path: Path, local: gt.Result) -> None:
    shop = Shop(searcher(), tmp_path)
    shop.finish()
    result = shop.searcher.result
    assert same(result, local)
    assert spent(result) <= BUDGET
    assert result.calls["repeated"] == 0
    assert shop.done[0] == "probe"
    assert shop.done[-1] == "select"
    assert isinstance(result.spec["width"], int)


def test_the_shape_of_the_model_decides_the_width_as_it_does_locally(tmp_path: Path) -> None:
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    how: Any = {"schedule": "paper", "ensemble": "window"}
    shop = Shop(GraspSearcher(method, 400, **how), tmp_path)
    shop.finish()
    assert "train-run001to008" in shop.done  # eight runs share a task
    local = gt.minimize(linear_problem()(), 400, method, progress=False, **how)  # fused="auto"
    assert same(shop.searcher.result, local)


def test_a_config_tells_a_person_what_the_trial_is(tmp_path: Path) -> None:
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    how: Any = {"schedule": "paper", "fused": False, "probe_parts": 1}
    shop = Shop(GraspSearcher(method, budget=3000, **how), tmp_path)
    trial_id, config = shop.ask()
    assert config["grasp"]["phase"] == "probe"
    assert config["grasp"]["budget"] == 750  # a quarter of the budget
    shop.searcher.on_trial_complete(trial_id, shop.work(config))
    words = shop.ask()[1]["grasp"]
    assert shop.searcher.plan is not None
    cell = shop.searcher.plan.cells[0]
    assert words["phase"] == "train"
    assert words["base"] == "sgd"
    assert words["cell"] == str(cell.index)
    assert words["value"] == f"{cell.value:.3g}"
    # Of values of other kinds this logger says, in every trial, that it leaves them out.
    assert all(isinstance(value, TBXLoggerCallback.VALID_HPARAMS) for value in words.values())
    assert words["budget"] == cell.budget


@pytest.mark.parametrize("seed", range(4))
def test_any_order_loss_repetition_and_restart_end_in_the_same_choice(
    tmp_path: Path, local: gt.Result, seed: int
) -> None:
    draw = random.Random(seed)
    shop = Shop(searcher(), tmp_path)
    running: dict[str, dict[str, Any]] = {}
    old: list[tuple[str, dict[str, Any]]] = []
    errors: dict[str, int] = {}
    actions = ["ask", "ask", "end", "end", "error", "repeat", "unknown", "pickle", "save", "beat"]
    while True:
        action = draw.choice(actions)
        if action in ("pickle", "save"):
            shop.swap(action, tmp_path / "state.json")
        elif action == "unknown":
            shop.searcher.on_trial_result("nobody", {"score": 1.0, "task": "probe"})
            shop.searcher.on_trial_complete("nobody", error=True)
            shop.searcher.on_trial_complete("nobody")
        elif action == "repeat" and old:
            shop.searcher.on_trial_complete(*draw.choice(old))
        elif action == "beat" and running:
            trial_id = draw.choice(sorted(running))
            row = {**running[trial_id]["grasp"], "status": "running", "oracle_calls": 1}
            shop.searcher.on_trial_result(trial_id, row)
        elif action in ("end", "error") and running:
            trial_id = draw.choice(sorted(running))
            config = running.pop(trial_id)
            key = config["grasp"]["task"]
            if action == "error" and errors.get(key, 0) < 2:
                errors[key] = errors.get(key, 0) + 1
                shop.searcher.on_trial_complete(trial_id, error=True)
                continue
            row = shop.work(config)
            shop.searcher.on_trial_result(trial_id, row)
            shop.searcher.on_trial_complete(trial_id, row)
            old.append((trial_id, row))
        elif len(running) < 4:
            trial_id, config = shop.ask()
            if config == Searcher.FINISHED:
                break
            assert config is not None or running
            if config is not None:
                running[trial_id] = config
    assert len(errors) > 1  # it was disturbed
    assert same(shop.searcher.result, local)


def test_an_outcome_in_the_storage_is_not_asked_for_again(tmp_path: Path, local: gt.Result) -> None:
    shop = Shop(searcher(), tmp_path)
    state = tmp_path / "state.json"
    shop.searcher.save(str(state))  # before anything ran, as a snapshot that came too early
    for _ in range(8):
        trial_id, config = shop.ask()
        row = shop.work(config)
        shop.searcher.on_trial_complete(trial_id, row)
    before = list(shop.done)
    again = searcher()
    again.restore(str(state))
    shop.searcher = again
    shop.finish()
    assert same(again.result, local)
    # The first report says where the storage is. Its worker found that the probe had been done,
    # so that not one oracle call is repeated.
    assert set(shop.done[len(before) :]) & set(before) == {"probe"}
    assert again.result.calls["repeated"] == 0


def test_a_lost_checkpoint_is_made_again(tmp_path: Path, local: gt.Result) -> None:
    shop = Shop(searcher(), tmp_path)
    lost, told = 0, dict[str, tuple[str, dict[str, Any]]]()
    while True:
        trial_id, config = shop.ask()
        if config == Searcher.FINISHED:
            break
        assert isinstance(config, dict)
        task = config["grasp"]["task"]
        if task.startswith(("score", "select")) and lost < 2:
            lost += 1
            for path in tmp_path.glob("**/checkpoints/run*.safetensors"):
                path.unlink()
        if task in told:  # what was reported before comes once more, late
            shop.searcher.on_trial_complete(*told[task])
        told[task] = trial_id, shop.work(config)
        shop.searcher.on_trial_complete(*told[task])
    result = shop.searcher.result
    assert same(result, local)
    assert result.calls["repeated"] > 0
    assert spent(result) <= BUDGET


def test_the_chosen_checkpoint_is_made_again_when_the_search_is_already_done(
    tmp_path: Path, local: gt.Result
) -> None:
    shop, lost = Shop(searcher(), tmp_path), False
    while True:
        trial_id, config = shop.ask()
        if config == Searcher.FINISHED:
            break
        assert isinstance(config, dict)
        if config["grasp"]["task"] == "select" and not lost:
            lost = True
            for path in tmp_path.glob("**/checkpoints/*.safetensors"):
                path.unlink()
        shop.searcher.on_trial_complete(trial_id, shop.work(config))
    assert shop.done.count("select") >= 2
    assert same(shop.searcher.result, local)


def test_a_sweep_stopped_early_gives_the_best_so_far(tmp_path: Path) -> None:
    shop = Shop(searcher(), tmp_path)
    with pytest.raises(gt.SearchError, match="no result yet"):
        shop.searcher.result  # noqa: B018
    trial_id, config = shop.ask()
    shop.searcher.on_trial_complete(trial_id, shop.work(config))
    result = shop.searcher.result
    assert result.partial
    assert result.cell is None  # nothing but x0 is known
    assert math.isfinite(result.score)
    assert isinstance(result.restore(nn.Linear(6, 2)), nn.Linear)


def test_a_task_that_fails_too_often_is_lost_and_x0_remains(tmp_path: Path) -> None:
    shop = Shop(searcher(), tmp_path)
    while True:
        trial_id, config = shop.ask()
        if config == Searcher.FINISHED:
            break
        if config["grasp"]["phase"] == "train":
            shop.searcher.on_trial_complete(trial_id, error=True)
        else:
            shop.searcher.on_trial_complete(trial_id, shop.work(config))
    assert shop.searcher.result.cell is None


def test_a_probe_that_always_fails_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    shop = Shop(searcher(), tmp_path)
    for _ in range(3):
        trial_id, _ = shop.ask()
        shop.searcher.on_trial_complete(trial_id, error=True)
    with pytest.raises(gt.SearchError, match="probe failed 3 times"):
        shop.ask()


def test_losses_that_are_not_finite_never_win(tmp_path: Path) -> None:
    def broken() -> gt.TorchProblem:
        problem = linear_problem()()

        def loss(model: nn.Module, batch: Any) -> Any:
            value = problem.loss(model, batch)
            weight = next(model.parameters())
            return value * (math.nan if float(weight.detach().abs().max()) > 3.0 else 1.0)

        return gt.TorchProblem(
            model=problem.model, loss=loss, data=problem.data, batch_size=8, device="cpu"
        )

    shop = Shop(searcher(), tmp_path, broken)
    shop.finish()
    result = shop.searcher.result
    assert any(not run.finite for run in result.runs)
    assert math.isfinite(result.score)


def test_what_is_wrong_with_the_problem_is_said_by_the_driver(tmp_path: Path) -> None:
    def wrong() -> Any:
        return "no problem"

    shop = Shop(searcher(), tmp_path, wrong)
    trial_id, config = shop.ask()
    shop.searcher.on_trial_complete(trial_id, shop.work(config))
    with pytest.raises(gt.SearchError, match="returned str, expected a TorchProblem"):
        shop.ask()


def test_a_state_of_another_sweep_is_refused_by_name(tmp_path: Path) -> None:
    shop = Shop(searcher(), tmp_path)
    shop.searcher.save(str(tmp_path / "state.json"))
    other = GraspSearcher(gt.NonConvex(), budget=2 * BUDGET, fused=False)
    other.restore(str(tmp_path / "state.json"))  # Tune swallows what is raised here
    with pytest.raises(gt.InputError, match="budget 240 became 480"):
        other.suggest("trial")


def test_constants_of_the_config_reach_the_problem(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def make_problem(config: dict[str, Any]) -> gt.TorchProblem:
        seen.append(config)
        return linear_problem(rows=config["rows"])()

    shop = Shop(searcher(), tmp_path, make_problem)
    for _ in range(3):
        trial_id, config = shop.ask()
        shop.searcher.on_trial_complete(trial_id, shop.work({"rows": 40, **config}))
    assert seen == [{"rows": 40}]  # once in a process, not once a trial


def test_a_user_s_own_optimizer_travels_with_the_config(tmp_path: Path) -> None:
    def momentum(params: Any, value: float) -> Any:
        import torch

        return torch.optim.SGD(params, lr=value, momentum=0.5)

    method = gt.NonConvex(L_eps=2.0, F_eps=2.0, base=momentum)
    how: Any = {"schedule": "paper", "ensemble": "window"}
    local = gt.minimize(linear_problem()(), 400, method, progress=False, **how)
    shop = Shop(GraspSearcher(method, 400, **how), tmp_path)
    shop.searcher = cloudpickle.loads(cloudpickle.dumps(shop.searcher))
    shop.finish()
    assert same(shop.searcher.result, local)


def test_a_search_space_is_drawn_once_for_the_sweep() -> None:
    space = {"a": 1, "b": tune.choice([2, 3]), "c": [{"rate": 0.1}, {"rate": tune.uniform(0, 1)}]}
    suggested = []
    for _ in range(2):
        found = searcher()
        assert found.set_search_properties(None, None, space)
        suggested.append(found.suggest("trial"))
    one, other = suggested
    assert isinstance(one, dict) and isinstance(other, dict)
    assert set(one) == {"b", "c", "grasp"} and one["b"] in (2, 3)
    assert one["c"][0] == {"rate": 0.1} and 0 < one["c"][1]["rate"] < 1
    assert [one["b"], one["c"]] == [other["b"], other["c"]]  # by the sweep's seed


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"deep": {"rate": tune.grid_search([1, 2])}}, "deep/rate"),
        ({"a": 1, "b": tune.sample_from(lambda spec: 1)}, "b"),
    ],
)
def test_what_would_differ_from_trial_to_trial_is_refused_by_name(
    config: dict[str, Any], key: str
) -> None:
    with pytest.raises(gt.InputError, match=f"config\\['{key}'\\]: got .*fixed value"):
        searcher().set_search_properties(None, None, config)


def test_constants_and_known_metrics_are_taken() -> None:
    found = searcher()
    assert found.metric == "score"
    assert found.set_search_properties("loss", "min", {"rows": 3}, num_samples=1)
    assert found.metric == "loss"


@pytest.mark.parametrize("metric", ["loss", "score"])
def test_the_paper_s_sweep_compares_losses_where_the_loss_is_the_metric(metric: str) -> None:
    found = GraspSearcher(schedule="paper")
    told: dict[str, Any] = {"metric": metric, "mode": "min", "trainable": None, "spec": {}}
    found.meet(SimpleNamespace(set_up=lambda name: None, storage=None, **told))  # type: ignore[arg-type]
    assert found.spec.schedule == gt.Paper(by_loss=True if metric == "loss" else None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GraspSearcher(budget=0), "budget: got 0"),
        (lambda: GraspSearcher(fused="yes"), "fused: got 'yes'"),  # type: ignore[arg-type]
        (lambda: GraspSearcher(schedule="fast"), "schedule: got 'fast'"),
    ],
)
def test_bad_input_is_named(make: Callable[[], GraspSearcher], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        make()


@pytest.mark.parametrize("batch", [True, False])
def test_a_limiter_holds_back_what_is_beyond_its_limit(tmp_path: Path, batch: bool) -> None:
    shop = Shop(GraspSearcher(gt.NonConvex(), BUDGET, fused=False, probe_parts=3), tmp_path)
    limiter = ConcurrencyLimiter(shop.searcher, max_concurrent=2, batch=batch)
    first, second, third = (shop.ask(limiter) for _ in range(3))
    assert {first[1]["grasp"]["task"], second[1]["grasp"]["task"]} == {
        "probe-part000",
        "probe-part001",
    }
    assert third[1] is None
    limiter.on_trial_complete(first[0], shop.work(first[1]))
    assert (shop.ask(limiter)[1] is None) == batch


def test_a_trial_that_ends_before_a_restored_searcher_is_asked_is_known(tmp_path: Path) -> None:
    shop, found = Shop(searcher(), tmp_path), searcher()
    for number in range(3):
        trial_id, config = shop.ask()
        row = shop.work(config)
        if number < 2:
            shop.searcher.on_trial_complete(trial_id, row)
    shop.searcher.save(str(tmp_path / "state.json"))
    found.restore(str(tmp_path / "state.json"))
    found.ledger.running = {config["grasp"]["task"]: trial_id}  # as Tune says: it lives
    found.on_trial_complete(trial_id, row)
    assert found.ledger.running == {}
    _, after = shop.ask(found)
    assert isinstance(after, dict) and after["grasp"]["task"] not in shop.done


def test_a_trial_that_is_stopped_in_the_middle_says_what_to_leave_out(tmp_path: Path) -> None:
    shop = Shop(searcher(), tmp_path)
    trial_id, config = shop.ask()
    row = {**config["grasp"], "status": "running", "oracle_calls": 20}
    shop.searcher.on_trial_complete(trial_id, row)  # as stop={"oracle_calls": 20} has it
    with pytest.raises(gt.InputError, match=r"stop: it ended trial .*leave `stop` out"):
        shop.ask()


def test_parameters_of_tune_reach_the_problem() -> None:
    def make_problem(config: dict[str, Any], data: int) -> gt.TorchProblem:
        assert config == {"rows": 3}
        return linear_problem(rows=data)()

    for trainable, rows in (
        (grasp_trainable(make_problem), 40),
        (grasp_trainable(lambda data: linear_problem(rows=data)()), 24),
    ):
        data: Any = trainable.problem({"rows": 3}, {"data": rows}).data
        assert len(data[0]) == rows
