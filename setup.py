"""The README for a package index: its relative links become addresses in the repository."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
# Not tomllib, which Python 3.10 lacks.
(SOURCE,) = re.findall(r'^Source = "(.+)"$', (HERE / "pyproject.toml").read_text("utf-8"), re.M)

setup(
    long_description=re.sub(
        r"\]\((?![a-z]+:|#)([^)]+)\)",
        rf"]({SOURCE}/blob/main/\1)",
        (HERE / "README.md").read_text("utf-8"),
    ),
    long_description_content_type="text/markdown",
)
