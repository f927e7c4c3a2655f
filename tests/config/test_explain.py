"""Every slip in a config is one line: file, key, what was got, what was expected."""

from typing import Any

import pytest

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.loader import experiment_from

DATASETS = (
    "digits, breast_cancer, spirals, mnist, cifar10, image_folder, npz, libsvm, csv, "
    "module:function"
)
MODELS = "softmax, logistic, linear, mlp, cnn, resnet18, backbone, module:function"


def line(mapping: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        experiment_from(mapping, source="plan.yaml")
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def top(**keys: Any) -> dict[str, Any]:
    return {"problem": {"dataset": "digits"}, **keys}


def problem(**keys: Any) -> dict[str, Any]:
    return {"problem": {"dataset": "digits", **keys}}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({}, "problem: got nothing, expected a value"),
        ({"problem": 3}, "problem: got 3, expected a mapping"),
        (top(budget=0), "budget: got 0, expected >= 1"),
        (top(budget=1.5), "budget: got 1.5, expected a whole number"),
        (top(budget=True), "budget: got True, expected a whole number"),
        (top(budget="10"), "budget: got '10', expected a whole number"),
        (top(seed=-1), "seed: got -1, expected >= 0"),
        (top(out=3), "out: got 3, expected text"),
        (top(title=2024), "title: got 2024, expected text, in quotes where it looks like a number"),
        (top(out="a\0b"), "out: got 'a\\x00b', expected text without control characters"),
        (
            top(title="a\33]0;b\7"),
            "title: got 'a\\x1b]0;b\\x07', expected text without control characters",
        ),
        (
            top(schedule="promot"),
            "schedule: got 'promot', expected 'promote' or 'paper' (did you m",
        ),
        (top(challengers="sgd"), "challengers: got 'sgd', expected a list"),
        (top(challengers=["sgdd"]), "challengers.0: got 'sgdd', expected one of sgd, unixgrad,"),
        (top(method={"L_eps": 0}), "method.L_eps: got 0, expected > 0"),
        (top(method={"L_eps": "1"}), "method.L_eps: got '1', expected a number"),
        (top(method={"L_eps": float("inf")}), "method.L_eps: got inf, expected a finite number"),
        (top(method={"delta": 0.4}), "method.delta: got 0.4, expected < 0.3333333333333333"),
        (top(method={"name": "convex", "delta": 0.5}), "method.delta: got 0.5, expected < 0.5"),
        (top(method={"probe": 1}), "method.probe: got 1, expected < 1"),
        (top(method={"base": "sdg"}), "method.base: got 'sdg', expected one of sgd, unixgrad, ad"),
        (
            top(method="convexx"),
            "method.name: got 'convexx', expected one of nonconvex, convex, convex-free, "
            "deterministic (did you mean convex?)",
        ),
        (top(method=[]), "method: got [], expected one of nonconvex, convex,"),
        (
            top(backend="rai"),
            "backend.kind: got 'rai', expected one of local, ray, optuna (did you mean ray?)",
        ),
        (
            top(backend={"kind": "ray", "fused": True}),
            "backend.fused: got an unknown key, expected",
        ),
        (top(backend={"fused": 1}), "backend.fused: got 1, expected true, false or auto"),
        (top(backend={"workers": 0}), "backend.workers: got 0, expected >= 1"),
        (
            problem(dataset="digitz"),
            f"problem.dataset.name: got 'digitz', expected one of {DATASETS} (did you mean digi",
        ),
        (
            problem(dataset="data/a.csv"),
            "problem.dataset.name: got 'data/a.csv', expected {name: csv, path: data/a.csv}",
        ),
        (problem(dataset={}), f"problem.dataset.name: got nothing, expected one of {DATASETS}"),
        (
            problem(dataset={"name": "digits", "scale": 0}),
            "problem.dataset.scale: got 0, expected ",
        ),
        (
            problem(dataset={"name": "digits", "standardize": 1}),
            "problem.dataset.standardize: got 1, expected true, false or auto",
        ),
        (
            problem(dataset={"name": "mnist", "download": 1}),
            "problem.dataset.download: got 1, expected true or false",
        ),
        (
            problem(dataset="npz"),
            "problem.dataset.path: got nothing, expected a value, which npz n",
        ),
        (
            problem(dataset={"name": "npz", "pth": "x"}),
            "problem.dataset.pth: got an unknown key, expected path, the nearest key",
        ),
        (problem(model=3), f"problem.model: got 3, expected one of {MODELS}"),
        (
            problem(model={"name": "mlp", "hidden": []}),
            "problem.model.hidden: got [], expected at least 1 item",
        ),
        (
            problem(model={"name": "mlp", "hidden": [0]}),
            "problem.model.hidden.0: got 0, expected >",
        ),
        (
            problem(model={"name": "mlp", "hidden": 5}),
            "problem.model.hidden: got 5, expected a lis",
        ),
        (
            problem(loss="msee"),
            "problem.loss: got 'msee', expected one of cross_entropy, logistic, ",
        ),
        (
            problem(device="gpu"),
            "problem.device: got 'gpu', expected auto, cpu, cuda, cuda:N or mps",
        ),
        (
            problem(batch_size=0),
            "problem.batch_size: got 0, expected a whole number from 1 to 10000",
        ),
        (problem(batch_size=True), "problem.batch_size: got True, expected a whole number from 1"),
        (problem(validation=1), "problem.validation: got 1, expected < 1"),
    ],
)
def test_line_names_file_key_value_and_what_is_right(
    mapping: dict[str, Any], expected: str
) -> None:
    assert line(mapping).startswith(f"plan.yaml: {expected}")


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (problem(batchsize=3), "problem.batchsize: got an unknown key, expected batch_size"),
        (top(budgets=3), "budgets: got an unknown key, expected budget, the nearest key"),
        (top(method={"l_eps": 3}), "method.l_eps: got an unknown key, expected L_eps, the nearest"),
        (top(batch_size=3), "batch_size: got an unknown key, expected it as problem.batch_size"),
        (top(L_eps=3), "L_eps: got an unknown key, expected it as method.L_eps"),
        (
            top(learning_rate=1),
            "learning_rate: got an unknown key, expected one of backend, budget",
        ),
    ],
)
def test_unknown_key_names_the_nearest_valid_one(mapping: dict[str, Any], expected: str) -> None:
    assert line(mapping).startswith(f"plan.yaml: {expected}")


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (
            top(method={"name": "convex", "value_floor": 2}),
            "method.value_floor: got 2 with option: smooth, expected no value_floor, or option: ",
        ),
        (
            {**problem(batch_size=4), "method": "deterministic"},
            "problem.batch_size: got 4 with method: deterministic, expected full",
        ),
        (
            problem(batch_size="full"),
            "problem.batch_size: got full with method: nonconvex, expected a whole number",
        ),
        (
            {**problem(validation=0.1), "ensemble": "window"},
            "problem.validation: got 0.1 with ensemble: window, expected 0",
        ),
        (
            problem(dataset={"name": "csv", "path": "a", "validation_path": "b"}, validation=0.1),
            "problem.validation: got 0.1 with problem.dataset.validation_path, expected 0, or no",
        ),
        (
            problem(
                dataset={"name": "csv", "path": "a", "validation_path": "b", "test_share": 0.1}
            ),
            "problem.dataset.test_share: got 0.1 with problem.dataset.validation_path, expected 0",
        ),
        (
            top(schedule="paper", challengers=["sgd"]),
            "challengers: got 1 with schedule: paper, expected none, or schedule: promote",
        ),
        (
            {**problem(dataset={"name": "csv", "path": "a", "validation_path": "/b"})}
            | {"ensemble": "window"},
            "problem.dataset.validation_path: got /b with ensemble: window, expected none, for",
        ),
        (
            problem(choose_by="metric", metric="f1"),
            "problem.choose_by: got metric without a metric or validation rows, expected loss, or",
        ),
        (
            top(schedule="paper", patience=3),
            "patience: got 3 with schedule: paper, which has no final run to end, expected empty",
        ),
        (
            top(schedule_options={"probe_shere": 0.1}),
            "schedule_options: got Promote: unknown keys ['probe_shere'], missing keys [], expec",
        ),
        (top(challengers=["sgd", "sgd"]), "challengers: got one of them twice, expected each at"),
        (
            top(backend={"kind": "ray", "gpus_per_task": 0.5}),
            "backend.gpus_per_task: got 0.5 with problem.device: cpu, expected 0, or problem",
        ),
        (
            top(backend={"kind": "optuna", "workers": 3}),
            "backend.workers: got 3 without backend.storage, expected 1, or a storage",
        ),
    ],
)
def test_values_that_exclude_each_other_are_told_at_a_key(
    mapping: dict[str, Any], expected: str
) -> None:
    assert line(mapping).startswith(f"plan.yaml: {expected}")


def test_hostile_values_stay_on_one_short_line() -> None:
    told = line(top(**{"a\nb\x1b[31m" + "x" * 5000: 1}))
    assert told.isprintable()
    assert len(told) < 500
    told = line(top(schedule="y\r\n" * 1000))
    assert told.isprintable()
    assert len(told) < 500
