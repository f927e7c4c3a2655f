"""Every config that ships is valid, commented and honest; the starter too."""

import re
import sys
from pathlib import Path

import pytest

from grasp_tune.config.build import build_parts
from grasp_tune.config.loader import load_experiment, starter
from grasp_tune.config.run import run_experiment

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.yaml"))
EMBEDDED = {"digits", "breast_cancer", "spirals"}


def test_the_promised_configs_are_there() -> None:
    assert {path.name for path in CONFIGS} >= {
        "quickstart.yaml",
        "convex-digits.yaml",
        "nonconvex-digits.yaml",
        "ray.yaml",
        "optuna.yaml",
        "cluster.yaml",
        "cifar10-probe.yaml",
        "paper-nonconvex-resnet18.yaml",
        "paper-convex-option1.yaml",
        "paper-convex-option2.yaml",
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_is_valid_and_explains_itself(path: Path) -> None:
    experiment = load_experiment(path, environment={})
    assert experiment.title
    assert list(experiment.notes()) == []
    assert experiment.build_method().name == experiment.method.name
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert any(f"grasp-tune run configs/{path.name}" in line for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_without_download_gives_a_problem(path: Path) -> None:
    experiment = load_experiment(path, environment={})
    assert not getattr(experiment.problem.dataset, "download", False)
    if experiment.problem.dataset.name in EMBEDDED:
        problem = build_parts(experiment).problem
        assert problem.build(0) is not None
        assert problem.batch_size == experiment.batch_size


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.name.startswith("paper-")])
def test_the_papers_configs_have_the_papers_setting(path: Path) -> None:
    experiment = load_experiment(path, environment={})
    assert (experiment.budget, experiment.batch_size) == (10_000, 64)
    assert (experiment.schedule, experiment.ensemble) == ("paper", "window")
    assert experiment.problem.loss == "cross_entropy"
    assert experiment.build_method().probe == 0.25  # type: ignore[union-attr]


def test_the_starter_runs_and_every_alternative_in_it_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")  # without it, it begins with other data: see below
    text = starter("mine.yaml")
    assert "grasp-tune run mine.yaml" in text
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    plain = load_experiment(file, environment={})
    assert plain.problem.dataset.name == "digits"
    # What a comment says is the default is the default.
    defaults = re.sub(
        r"(?m)^(\s*)# (?=(loss|batch_size|validation|device|schedule|seed):)", r"\1", text
    )
    file.write_text(defaults, encoding="utf-8")
    opened = load_experiment(file, environment={})
    assert opened.batch_size == plain.batch_size
    assert opened.model_copy(update={"problem": plain.problem}) == plain
    for line in re.findall(r"(?m)^  # (dataset: .*)$", text):
        file.write_text(text.replace("  dataset: digits", f"  {line}"), encoding="utf-8")
        assert load_experiment(file, environment={}).problem.dataset.name != "digits"


def test_the_starter_runs_where_scikit_learn_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("grasp_tune.config.loader.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    (tmp_path / "mine.yaml").write_text(starter(), encoding="utf-8")
    experiment = load_experiment(tmp_path / "mine.yaml", overrides=["budget=300"], environment={})
    assert experiment.problem.dataset.name == "spirals"
    quality = run_experiment(experiment, tmp_path / "o", progress=False).metadata.quality
    assert quality is not None and quality.test is not None
    assert quality.test.rows == 600 and quality.test.loss < 1.0  # ln 3 at the start
