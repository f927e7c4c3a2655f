"""The command line as a function: exit code, standard output, standard error."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grasp_tune.cli import main

SMALL = """\
title: A small one
problem:
  dataset: {name: npz, path: rows.npz}
  model: softmax
  batch_size: 4
method: convex
budget: 400
"""


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ended]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with forty rows of two classes and a config for them."""
    generator = np.random.default_rng(5)
    y = np.arange(40) % 2
    x = generator.normal(size=(40, 3)) + 2.0 * y[:, None]
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("GRASP_TUNE__BUDGET", "GRASP_TUNE__BACKEND__STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
