"""torchvision built for another torch still imports; without torchvision the extra is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_tune.core.errors import MissingExtra
from grasp_tune.data import images

ROOT = Path(__file__).parents[2]
CODE = """
from grasp_tune import extras
from grasp_tune.data import images
module = images.torchvision("the test")
print(module.__file__, module.marker, len(extras._declared))
print(images.torchvision("the test") is module)
"""


def imported(folder: Path, init: str) -> subprocess.CompletedProcess[str]:
    """What happens with a package `torchvision` of our own making."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(init + "\nmarker = 'done'\n")
    for name in ("datasets", "models"):
        (package / f"{name}.py").write_text("")
    return subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
    )


def test_operators_that_are_lost_are_declared(tmp_path: Path) -> None:
    # What torchvision does at its import, and what fails when its compiled part is not there.
    init = (
        "import torch\nfrom torchvision import datasets\n"
        "fake = getattr(torch.library, 'register_fake', None) or torch.library.impl_abstract\n"
        "for name in ('nms', 'qnms'):\n"
        "    fake(f'torchvision::{name}')(lambda a, b, c: a)\n"
    )
    done = imported(tmp_path, init)
    assert done.stderr == ""
    assert done.stdout.split() == [f"{tmp_path}/torchvision/__init__.py", "done", "1", "True"]


def test_nothing_is_declared_where_nothing_is_lost(tmp_path: Path) -> None:
    done = imported(tmp_path, "")
    assert done.stdout.split()[1:] == ["done", "0", "True"]


def test_other_errors_of_the_import_are_not_hidden(tmp_path: Path) -> None:
    done = imported(tmp_path, "raise RuntimeError('something else')")
    assert "RuntimeError: something else" in done.stderr
    assert done.stdout == ""


def test_without_torchvision_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtra, match=r"resnet18 needs torchvision.*grasp_tune\[vision\]"):
        images.torchvision("the model resnet18")
