"""The README's Python examples run as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("source", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_readme_example_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(README), "exec"), {"__name__": "__main__"})


def test_readme_has_examples() -> None:
    assert EXAMPLES  # an empty list would let the test above vanish
