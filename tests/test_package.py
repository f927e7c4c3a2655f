"""What would be published: a source archive with the docs, and a README whose links work."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


def test_the_source_archive_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        member = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        head, _, readme = member.read().decode().partition("\n\n")
    kept = ["README.md", "LICENSE", "constraints.txt", "docs/index.md", "configs/quickstart.yaml"]
    kept += ["grasp_tune/py.typed", "grasp_tune/report/templates/report.html", "scripts/test"]
    kept += ["hub/example.py", "results/digests.json", "tests/conftest.py"]
    assert names.issuperset(kept)
    assert "License-Expression: MIT" in head and "Project-URL: Source, https://" in head
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
