"""Arguments that several commands share, and where their output goes."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="The experiment, a YAML file; `grasp-tune init` writes a first one."
    ),
]
Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a run, as it was given to --out.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the config, such as budget=2000 or problem.batch_size=32. "
        "May be repeated.",
    ),
]
Shown = Annotated[
    Format, typer.Option("--format", help="A table for people, or JSON for programs.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def printer() -> Console:
    """Standard output; never cuts a line of a log, never colours a file."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
