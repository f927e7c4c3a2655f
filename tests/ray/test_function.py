"""Training functions of the user's own, each trial one task of the search."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pyarrow import fs as arrow
from ray import tune
from ray.tune.search import Searcher
from ray.tune.trainable import wrap_function
from ray.tune.utils import flatten_dict
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt
import grasp_tune.ray
from grasp_tune.ray import GraspSearcher, load_result, optimizer
from grasp_tune.runtime.shared_sweep import SharedStorage
from tests.ray.shop import ShopStorage, linear_problem

BUDGET = 150


def rows() -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(96, 6, generator=draw)
    return TensorDataset(x, (x[:, 0] + 0.3 * torch.randn(96, generator=draw) > 0.1).long())


def whole_loss(model: torch.nn.Module) -> float:
    x, y = rows().tensors
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


def train(config: dict[str, Any]) -> None:
    """What a user has: nothing is seeded, so that every trial builds another model."""
    fault = config.get("fault")
    model = torch.nn.Linear(6, 2)
    opt = optimizer(model)
    while not opt.done:
        for x, y in DataLoader(rows(), batch_size=8, shuffle=True):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if fault == "error" and opt.calls == 1:
                raise RuntimeError("the network is down")
            if fault == "early" and opt.calls == 2:
                opt.finish()
            if fault == "silent" and opt.calls == 2:
                return
            opt.step({"nan": loss * math.nan, "forgotten": None}.get(fault or "", loss))
    if fault == "late":
        opt.step(0.0)
    result = opt.finish()
    tune.report({"budget": result.spec["budget"], "whole": whole_loss(model)})


def shop(
    folder: Path, function: Callable[[dict[str, Any]], None] = train, **config: Any
) -> tuple[GraspSearcher, list[dict[str, Any]]]:
    """The real searcher and the real function, one trial after the other, in this process."""
    searcher, last = GraspSearcher(budget=BUDGET, probe_parts=1), list[dict[str, Any]]()
    searcher._function = True  # as a run of Tune says
    while (asked := searcher.suggest(f"trial{len(last)}")) != Searcher.FINISHED:
        assert isinstance(asked, dict)
        storage = ShopStorage(str(folder), "experiment", trial_dir_name=f"trial{len(last)}")
        trainable = wrap_function(function)({**config, **asked}, storage=storage)
        row: dict[str, Any] = {}
        try:
            while not row.get("done"):
                found = trainable.train()
                row = {**row, "done": True} if "__duplicate__" in found else flatten_dict(found)
                searcher.on_trial_result(f"trial{len(last)}", row)
            searcher.on_trial_complete(f"trial{len(last)}", row)
        except Exception:
            searcher.on_trial_complete(f"trial{len(last)}", error=True)
        finally:
            trainable.stop()
        last.append(row)
    return searcher, last


@pytest.fixture(autouse=True)
def stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")


def test_a_trial_is_a_task_and_x0_is_the_first_trial_s(tmp_path: Path) -> None:
    torch.manual_seed(1)  # not in the function, whose trials all build another model
    searcher, last = shop(tmp_path)
    result = searcher.result
    assert not result.partial
    assert sum(result.calls.values()) <= BUDGET
    *parts, chosen = last
    assert parts[0]["phase"] == "probe"
    assert {row["phase"] for row in parts} == {"probe", "train", "score"}
    # Code behind the loop runs in the last trial only, with the chosen weights.
    assert all("whole" not in row for row in parts)
    model = result.restore(torch.nn.Linear(6, 2))
    assert chosen["whole"] == pytest.approx(whole_loss(model)) and chosen["whole"] < 0.45
    # Runs of a rung are compared on the same minibatches, and fresh samples are other ones.
    again, _ = shop(tmp_path / "again")
    assert again.result.score != result.score  # another x0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "the probe failed 3 times"),
        ("nan", "the loss at the start point is nan"),
        ("forgotten", r"probe cannot be done: .*call opt.step\(loss\)"),
        ("early", r"the loop ended after 2 of the \d+ oracle calls of .*until opt.done"),
        ("silent", "the function ended in the middle of .*loop until opt.done"),
    ],
)
def test_a_fault_of_the_loop_is_one_sentence(tmp_path: Path, fault: str, words: str) -> None:
    with pytest.raises(gt.GraspError, match=words):
        shop(tmp_path, fault=fault)


def test_a_step_too_many_changes_nothing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the budget is spent"):
        searcher, last = shop(tmp_path, fault="late")
    assert last[-1]["whole"] == pytest.approx(
        whole_loss(searcher.result.restore(torch.nn.Linear(6, 2)))
    )


def test_a_sweep_stopped_before_the_probe_has_ended_has_no_result(tmp_path: Path) -> None:
    searcher = GraspSearcher(budget=BUDGET)
    searcher.suggest("trial")  # then time_budget_s is over
    searcher.ledger.storage = SharedStorage(arrow.LocalFileSystem(), str(tmp_path / "sweep"))
    with pytest.raises(gt.SearchError, match="no result yet: nothing has been run to its end"):
        searcher.result  # noqa: B018


def test_a_checkpoint_of_the_function_does_not_hide_the_result(tmp_path: Path) -> None:
    searcher, _ = shop(tmp_path)
    (tmp_path / "own").mkdir()
    kept = tune.Checkpoint.from_directory(str(tmp_path / "own"))  # reported in the last trial
    last = SimpleNamespace(checkpoint=kept, config={"grasp": {"task": "select"}})
    path = str(tmp_path / "experiment")
    found = load_result(SimpleNamespace(trials=[last], experiment_path=path))
    assert found.to_dict() == searcher.result.to_dict()


def test_outside_of_tune_it_says_where_it_belongs() -> None:
    with pytest.raises(gt.InputError, match=r"inside train\(config\)"):
        optimizer(torch.nn.Linear(6, 2))


def test_a_problem_is_trained_in_one_line_and_reported(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        grasp_tune.ray.train(linear_problem(rows=config["rows"])(), 120)

    storage = ShopStorage(str(tmp_path), "experiment", trial_dir_name="trial")
    trainable = wrap_function(trial)({"rows": 64}, storage=storage)
    found = [trainable.train()]
    while "__duplicate__" not in found[-1]:
        found.append(trainable.train())
    trainable.stop()
    *parts, last = found[:-1]
    losses = [row["loss"] for row in parts]
    assert len(parts) > 2 and losses == sorted(losses, reverse=True)
    assert 0 < parts[0]["oracle_calls"] < parts[1]["oracle_calls"] < 120
    assert last["loss"] < 0.5 and last["oracle_calls"] <= 120 and last["step"] > 0
    kept = gt.Result.load(next(tmp_path.glob("**/result.json")).parent)
    assert kept.choice.chosen.value == last["step"]  # the loss is that of all rows


@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_function_runs_the_whole_method_in_tune(tmp_path: Path) -> None:
    searcher = GraspSearcher(budget=BUDGET)
    analysis = tune.run(
        train,
        search_alg=searcher,
        metric="whole",
        mode="min",
        storage_path=str(tmp_path),
        verbose=0,
    )
    result, best = searcher.result, analysis.best_trial
    assert not result.partial
    assert best.config["grasp"]["task"] == "select"  # by what the function itself reports
    assert best.last_result["whole"] == pytest.approx(
        whole_loss(result.restore(torch.nn.Linear(6, 2)))
    )
    kept = load_result(analysis)
    assert kept.to_dict() == result.to_dict()
    assert all(torch.equal(kept.tensors[name], item) for name, item in result.tensors.items())
    names = [trial.config["grasp"]["task"] for trial in analysis.trials]
    assert len(names) == len(set(names))
