"""Saved configs: absolute paths, no password, and back to the same experiment."""

from pathlib import Path

import pytest

from grasp_tune.config import ConfigError, experiment_from, load_experiment
from grasp_tune.config.run_folder import (
    claim,
    saved_config,
    saved_experiment,
)
from grasp_tune.config.section import absolute, masked
from grasp_tune.config.yaml_text import yaml_text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://anna:s3cret@host/db", "postgresql://anna:***@host/db"),
        (
            "postgresql+psycopg://a:p:q@host:5432/db?x=1",
            "postgresql+psycopg://a:***@host:5432/db?x=1",
        ),
        ("mysql://a:p@ss@host/db", "mysql://a:***@host/db"),
        ("postgresql://anna@host/db", "postgresql://anna@host/db"),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("journal.log", "journal.log"),
    ],
)
def test_passwords_are_masked_and_nothing_else(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_paths_become_absolute_and_urls_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    assert absolute("a/b.npz") == f"{tmp_path}/a/b.npz"
    assert absolute("~/b.npz") == "/home/anna/b.npz"
    assert absolute("s3://bucket/key") == "s3://bucket/key"
    assert absolute("sqlite:///study.db") == f"sqlite:///{tmp_path}/study.db"
    assert absolute("sqlite:////data/study.db") == "sqlite:////data/study.db"
    assert absolute("sqlite:///:memory:") == "sqlite:///:memory:"
    before = experiment_from(
        {
            "problem": {
                "dataset": {"name": "libsvm", "path": "a9a", "test_path": "a9a.t"},
                "model": {"name": "backbone", "weights": "w.pth", "cache": "c"},
            },
            "backend": {"kind": "optuna", "storage": "journal.log"},
        }
    )
    after = before.to_dict()
    assert after["problem"]["dataset"]["path"] == f"{tmp_path}/a9a"
    assert after["problem"]["dataset"]["test_path"] == f"{tmp_path}/a9a.t"
    assert after["problem"]["model"]["weights"] == f"{tmp_path}/w.pth"
    assert after["problem"]["model"]["cache"] == f"{tmp_path}/c"
    assert after["backend"]["storage"] == f"{tmp_path}/journal.log"
    assert experiment_from(after) == before


HOSTILE = "</script><img src=x onerror=alert(1)> \"'{}: #\u2028é\\ 1e-3"


def test_saved_yaml_reads_back_to_the_same_experiment(tmp_path: Path) -> None:
    options = {
        "text": HOSTILE,
        "small": 1e-7,
        "words": ["no", "010", "1e3", "null", "~", "2024-01-01"],
    }
    experiment = experiment_from(
        {
            "title": HOSTILE.replace("\u2028", " "),
            "problem": {"dataset": {"name": "pkg:data", "options": options}},
            "method": {"L_eps": 1e-12, "base": "torch.optim:SGD"},
            "seed": 10**18 - 1,
        }
    )
    file = tmp_path / "config.yaml"
    file.write_text(yaml_text(experiment.to_dict()), encoding="utf-8")
    assert load_experiment(file, environment={}) == experiment


def test_a_password_never_reaches_the_disk_and_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://anna:s3cret@host/db"
    experiment = experiment_from(
        {"problem": {"dataset": "digits"}, "backend": {"kind": "optuna", "storage": url}}
    )
    claim(tmp_path / "o", experiment)
    assert "s3cret" not in (tmp_path / "o" / "config.yaml").read_text()
    assert "s3cret" not in str(experiment.to_dict())
    assert saved_config(tmp_path / "o")["backend"]["storage"] == "postgresql://anna:***@host/db"
    with pytest.raises(ConfigError, match=r"backend.storage: got a URL whose password was not"):
        saved_experiment(tmp_path / "o")
    monkeypatch.setenv("GRASP_TUNE__BACKEND__STORAGE", url)
    assert saved_experiment(tmp_path / "o") == experiment


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    experiment = experiment_from({"problem": {"dataset": "digits"}})
    with pytest.raises(ConfigError, match=r"--out: got .*file/o: Not a directory, expected a writ"):
        claim(tmp_path / "file" / "o", experiment)


def test_a_config_that_no_run_has_written_is_never_replaced(tmp_path: Path) -> None:
    experiment = experiment_from({"problem": {"dataset": "digits"}})
    (tmp_path / "config.yaml").write_text("# mine\nproblem: {dataset: digits}\n")
    (tmp_path / "artifacts").mkdir()
    before = sorted(tmp_path.iterdir())
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"whose config.yaml was not written by a run"):
            claim(tmp_path, experiment, fresh=fresh)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "config.yaml").read_text().startswith("# mine")
