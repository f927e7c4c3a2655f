"""Experiments to problems and methods."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import grasp_tune as gt
from grasp_tune.config import experiment_from
from grasp_tune.config.build import build_parts, chosen_device
from grasp_tune.config.schema import Experiment
from grasp_tune.core.errors import ProblemError
from grasp_tune.schedules import find_schedule
from grasp_tune.schedules.promote import Promote


def experiment(dataset: Any = "digits", **keys: Any) -> Any:
    problem = {"dataset": dataset, **keys.pop("problem", {})}
    return experiment_from({"problem": problem, **keys})


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Any]:
    """Ten rows whose one feature is the row's number, and numbers to predict."""
    x = np.arange(10.0)[:, None]
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=x[:, 0] + 0.5, x_test=x, y_test=x[:, 0])
    return {"name": "npz", "path": str(tmp_path / "rows.npz")}


def build_problem(experiment: Experiment) -> gt.TorchProblem:
    return build_parts(experiment).problem


def tensors(data: Any) -> tuple[Tensor, Tensor]:
    assert isinstance(data, tuple)
    return data


def test_a_dataset_alone_gives_a_network_that_learns() -> None:
    problem = build_problem(experiment())
    model = problem.build(seed=3)
    batch = tuple(part[:64] for part in tensors(problem.data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = float(problem.loss(model, batch).detach())
    for _ in range(30):
        optimizer.zero_grad()
        problem.loss(model, batch).backward()
        optimizer.step()
    assert float(problem.loss(model, batch).detach()) < before / 2
    assert problem.batch_size == 64
    assert problem.validation is None


def test_test_rows_take_no_part_in_training() -> None:
    parts = build_parts(experiment())
    x, _ = tensors(parts.problem.data)
    assert len(x) == len(parts.data.x) == 1438
    assert parts.data.x_test is not None
    assert parts.loss == "cross_entropy"
    assert parts.model.name == "mlp"


def test_validation_parts_the_training_rows(rows: dict[str, Any]) -> None:
    problem = build_problem(experiment(rows, problem={"validation": 0.3, "batch_size": 2}))
    kept, aside = tensors(problem.data), tensors(problem.validation)
    assert (len(kept[0]), len(aside[0])) == (7, 3)
    both = torch.cat([kept[0], aside[0]]).flatten()
    assert sorted(both.tolist()) == list(range(10))
    assert torch.equal(kept[0][:, 0] + 0.5, kept[1])
    again = build_problem(experiment(rows, seed=9, problem={"validation": 0.3, "batch_size": 2}))
    assert torch.equal(tensors(again.validation)[0], aside[0])


def test_convex_methods_get_a_linear_model(rows: dict[str, Any]) -> None:
    parts = build_parts(experiment(rows, method="deterministic"))
    assert parts.model.name == "linear"
    assert parts.loss == "mse"
    assert parts.problem.batch_size == 10
    # Zero weights: the loss is the mean of (k + 0.5)^2 for k = 0..9, (285 + 45 + 2.5) / 10.
    value = parts.problem.loss(parts.problem.build(0), tensors(parts.problem.data))
    assert float(value.detach()) == pytest.approx(33.25)


def test_what_the_data_cannot_give_is_told(rows: dict[str, Any]) -> None:
    with pytest.raises(
        ProblemError, match=r"data: 10 rows are fewer than one batch of 64; use batch_size <= 10"
    ):
        build_problem(experiment(rows))
    with pytest.raises(ProblemError, match=r"validation: got 0.99, expected a share"):
        build_problem(experiment(rows, problem={"validation": 0.99}))
    with pytest.raises(ProblemError, match=r"problem.model: got logistic for digits"):
        build_problem(experiment(problem={"model": "logistic"}))


def test_methods_get_their_inputs() -> None:
    assert experiment().build_method() == gt.NonConvex()
    given = {"name": "convex", "d_eps": 0.5, "option": "universal", "value_floor": -1, "probe": 0.1}
    assert experiment(method=given).build_method() == gt.Convex(
        d_eps=0.5, option="universal", value_floor=-1.0, probe=0.1
    )
    assert experiment(method="convex-free").build_method() == gt.ConvexFree()
    assert experiment(method={"name": "deterministic", "base": "adagrad"}).build_method() == (
        gt.Deterministic(base="adagrad")
    )


def test_schedules_get_their_options() -> None:
    given = experiment(schedule_options={"probe_share": 0.25})
    assert find_schedule(given.sweep_arguments()["schedule"]) == Promote(probe_share=0.25)
    assert experiment().sweep_arguments()["schedule"] == "promote"


def test_a_base_of_ones_own_is_imported() -> None:
    method = experiment(method={"base": "torch.optim:SGD"}).build_method()
    assert method.base is torch.optim.SGD


def test_devices() -> None:
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(
            ProblemError, match=r"problem.device: got cuda:1, which this machine does"
        ):
            chosen_device("cuda:1")


def test_what_a_step_does_and_the_choice_goes_by_reach_the_problem() -> None:
    keys = {"weight_decay": 0.1, "clip": 2, "validation": 0.2, "metric": "f1"}
    problem = build_problem(
        experiment(problem={**keys, "choose_by": "metric", "augment": ["noise"]})
    )
    assert (problem.weight_decay, problem.clip, problem.choice_metric) == (0.1, 2.0, "f1")
    assert "augment" in dict(problem.build(0).named_children())
    own = build_problem(experiment(problem={"metric": "math:dist"}))
    assert own.metric is math.dist


def test_validation_rows_may_be_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,y\n1,1000,no\n3,3000,yes\n")
    (tmp_path / "v.csv").write_text("a,b,y\n2,5000,yes\n")
    paths = {"path": str(tmp_path / "a.csv"), "validation_path": str(tmp_path / "v.csv")}
    built = build_parts(experiment({"name": "csv", **paths}, problem={"batch_size": 2}))
    x, y = tensors(built.problem.validation)
    # Standardized by the training rows: means 2 and 2000, deviations 1 and 1000.
    assert (x.tolist(), y.tolist()) == ([[0.0, 3.0]], [1])
    assert built.data.x_test is None
