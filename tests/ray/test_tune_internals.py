"""What is private of Tune: on the day it is gone, a warning names the public option."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs as arrow

from grasp_tune.ray import tune_internals
from grasp_tune.ray.tune_internals import TuneRun, storage_of, sweep_storage


def test_nobody_asks_outside_of_tune() -> None:
    assert TuneRun.asking() is None


def test_a_tune_that_is_built_otherwise_is_told_by_hand(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator: Any = SimpleNamespace(total_samples=1)
    run = TuneRun(generator, controller=SimpleNamespace())
    run.set_up(lambda trial: "name")
    told = [item.getMessage() for item in caplog.records]
    assert len(told) == 2
    assert "pass num_samples=-1" in told[0]
    assert "pass reuse_actors=True" in told[1]
    assert not hasattr(generator, "_total_samples")
    assert (run.trainable, run.spec) == (None, {})
    assert "ended with an error" in run.error_of("t0")
    assert TuneRun(generator, None).live() == {}
    caplog.clear()
    generator.total_samples = tune_internals.TRIALS  # passed by hand
    run.set_up(lambda trial: "name")
    assert "num_samples" not in caplog.text


def test_what_is_missing_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert storage_of(None) is None
    bare = SimpleNamespace(
        storage_filesystem=arrow.LocalFileSystem(), experiment_fs_path=str(tmp_path)
    )
    assert sweep_storage(bare, "run").path == f"{tmp_path}/grasp/run"  # nothing is validated
    monkeypatch.setitem(sys.modules, "ray.tune.registry", None)
    assert TuneRun(SimpleNamespace(total_samples=1), None).trainable is None  # type: ignore[arg-type]


def test_the_package_imports_nothing_private_of_ray() -> None:
    for path in sorted(Path(tune_internals.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            home = getattr(node, "module", None) or ""
            if isinstance(node, ast.Import | ast.ImportFrom) and "ray" in (home or names[0]):
                assert not any(part.startswith("_") for part in home.split(".")), path
                assert not any(name.startswith("_") for name in names if home != "grasp_tune"), path
