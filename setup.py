"""The README for a package index: its relative links become addresses in the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SOURCE = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]

setup(
    long_description=re.sub(
        r"\]\((?![a-z]+:|#)([^)]+)\)",
        rf"]({SOURCE}/blob/main/\1)",
        (HERE / "README.md").read_text("utf-8"),
    ),
    long_description_content_type="text/markdown",
)
