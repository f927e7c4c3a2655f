"""An experiment from config to report, on each backend, and back from its folder."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import grasp_tune as gt
from grasp_tune.config import ConfigError, experiment_from, load_run, run_experiment
from grasp_tune.config.build import build_parts
from grasp_tune.config.models import ModelFactory
from grasp_tune.config.run_folder import saved_experiment
from grasp_tune.config.schema import UNLIMITED, Experiment
from grasp_tune.engine.metrics import classes_of
from grasp_tune.report.evaluation import evaluate, read_metadata
from grasp_tune.report.formatting import duration, number, percent, plural, size


def digits(**keys: Any) -> Experiment:
    problem = {"dataset": "digits", "model": "softmax", "batch_size": 16}
    return experiment_from({"problem": problem, "budget": 500, "seed": 4, **keys})


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "o"
    run_experiment(digits(), folder, progress=False)
    return folder


def test_the_folder_alone_gives_the_model_back(local: Path) -> None:
    result, metadata = load_run(local), read_metadata(local)
    assert metadata is not None and metadata.quality is not None
    assert evaluate(result.model, build_parts(digits())) == metadata.quality
    assert (metadata.rows, metadata.test_rows, metadata.parameters) == (1438, 359, 650)
    assert (metadata.model, metadata.loss, metadata.batch) == ("softmax", "cross_entropy", 16)
    assert torch.__version__.startswith(dict(metadata.versions)["torch"])


def test_judging_by_hand() -> None:
    built = build_parts(digits())
    # Zero weights: every class is as likely, so the loss is ln 10, and class 0 is always named.
    quality = evaluate(built.problem.build(0), built)
    assert quality.train.loss == pytest.approx(2.302585, abs=1e-5)
    assert quality.test is not None and quality.test.loss == pytest.approx(2.302585, abs=1e-5)
    zeros = int((built.data.y == 0).sum())
    assert quality.train.accuracy == zeros / 1438
    assert classes_of(torch.tensor([[-1.0], [2.0]])).tolist() == [0, 1]  # type: ignore[union-attr]
    assert classes_of(torch.zeros(2, 3, 4)) is None


@pytest.mark.parametrize(
    "backend",
    [
        {"kind": "local", "workers": 2},
        {"kind": "optuna"},
        {"kind": "optuna", "storage": "journal.log", "study": "mine", "workers": 2},
        {"kind": "optuna", "storage": "sqlite:///study.db"},
    ],
    ids=["two workers", "optuna", "journal, two workers", "sqlite"],
)
def test_backends_agree(
    local: Path, backend: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = run_experiment(digits(backend=backend), "o", progress=False)
    assert finished.result.choice == load_run(local).choice
    assert finished.report.exists()
    for name, tensor in load_run("o").tensors.items():
        assert torch.equal(tensor, load_run(local).tensors[name])


def test_ray_agrees(local: Path, tmp_path: Path, ray_session: None) -> None:
    backend = {"kind": "ray", "workers": 2, "cpus_per_task": 1}
    finished = run_experiment(digits(backend=backend), tmp_path / "o", progress=False)
    assert finished.result.choice == load_run(local).choice
    assert finished.report.exists()


def test_challengers_of_either_kind_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_base.py").write_text(
        "import torch\n\n"
        "def make(params, value):\n    return torch.optim.RMSprop(params, lr=value)\n"
    )
    finished = run_experiment(
        digits(challengers=["momentum", "own_base:make"], budget=1500), "o", progress=False
    )
    assert finished.result.spec["challengers"] == ["momentum", "own_base:make"]


def test_minutes_hold_for_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def minimize(*args: Any, minutes: float, **keys: Any) -> gt.Result:
        given.append(minutes)
        return gt.minimize(*args, minutes=minutes, **keys)

    monkeypatch.setattr("grasp_tune.config.run.minimize", minimize)
    # Judging the model at the end takes 12 s, and 30 s have passed since the command was typed.
    monkeypatch.setattr("grasp_tune.report.evaluation.evaluation_seconds", lambda *_: 12.0)
    experiment, typed = digits(minutes=1.0, budget=200), time.monotonic() - 30.0
    run_experiment(experiment, tmp_path / "o", progress=False, began=typed)
    assert 0.01 <= given[0] < (60 - 30 - 12) / 60
    run_experiment(experiment, tmp_path / "late", progress=False, began=typed - 60.0)
    assert given[1] == 0.01  # it has something to show, at least the start point


def test_calls_that_were_added_in_the_minutes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grasp_tune.limits.Limits.calls_by_time", lambda *_: 60)
    given = digits(minutes=0.05, budget=UNLIMITED)
    first = run_experiment(given, tmp_path / "o", progress=False).result
    assert first.spec["extends"][0] == 60 < first.spec["budget"]
    for experiment in (given, saved_experiment(tmp_path / "o")):
        again = run_experiment(experiment, tmp_path / "o", progress=False).result
        assert (again.spec, again.choice.key) == (first.spec, first.choice.key)


def test_a_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match="--out: got nothing, expected a folder for the results"):
        run_experiment(digits())


def test_the_configs_own_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finished = run_experiment(digits(out="here", budget=200), progress=False)
    assert finished.folder == tmp_path / "here"


def test_regression_has_no_share_of_right_answers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{k},{2.5 * k + 0.25}\n" for k in range(20)))
    dataset = {"name": "csv", "path": str(tmp_path / "t.csv"), "task": "regression"}
    experiment = experiment_from(
        {"problem": {"dataset": dataset, "batch_size": 4}, "method": "convex", "budget": 300}
    )
    finished = run_experiment(experiment, tmp_path / "o", progress=False)
    quality = finished.metadata.quality
    assert quality is not None and quality.train.accuracy is None and quality.test is None
    assert "on all training rows (root mean square)" in finished.report.read_text("utf-8")


def test_numbers_in_words() -> None:
    assert [duration(s) for s in (0.4, 7.6, 91, 3 * 3600, 50 * 3600)] == [
        "< 1 s",
        "8 s",
        "2 min",
        "3.0 h",
        "2.1 days",
    ]
    assert [size(n) for n in (500, 2048, 3 * 2**20, 5 * 2**30, 2**41)] == [
        "500 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
        "2.0 TiB",
    ]
    assert (number(None), number(float("inf")), number(0.123456)) == ("–", "–", "0.1235")
    assert (percent(0.9876), percent(None)) == ("98.8 %", "–")
    assert (plural(1, "run"), plural(1234, "run")) == ("1 run", "1,234 runs")


def test_the_model_is_built_twice_and_the_config_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[None] = []
    make = ModelFactory.__call__
    monkeypatch.setattr(ModelFactory, "__call__", lambda self: built.append(None) or make(self))  # type: ignore[func-returns-value]
    model = {"name": "mlp", "hidden": [8]}
    problem = {"dataset": "digits", "model": model, "batch_size": 16}
    experiment = experiment_from({"problem": problem, "budget": 120})
    checked: list[None] = []
    monkeypatch.setattr(Experiment, "_conflicts", lambda self: checked.append(None) or iter(()))  # type: ignore[func-returns-value]
    run_experiment(experiment, tmp_path / "o", progress=False)
    # One to check it before anything is written, which holds the result at the end; one to train.
    assert len(built) <= 2
    assert len(checked) <= 1  # the saved one, when the report is written from the folder
