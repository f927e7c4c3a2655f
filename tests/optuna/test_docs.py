"""The examples in docs/optuna.md run, one after the other, as a reader would run them."""

import re
from pathlib import Path

import optuna
import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "optuna.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 6
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "True" in printed  # as many trials as cells
    assert "<Result:" in printed
    assert isinstance(names["study"], optuna.Study)
    for image in re.findall(r"\]\((images/[^)]+)\)", text):
        assert (PAGE.parent / image).stat().st_size > 5000
