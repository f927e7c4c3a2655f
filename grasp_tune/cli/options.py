"""Arguments that several commands share, and where their output goes."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from grasp_tune.config import ConfigError, Experiment, load_experiment
from grasp_tune.config.loader import ENVIRONMENT_PREFIX
from grasp_tune.config.run_folder import outside


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
AllowOutside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Let the config write files outside of the run's folder and open connections.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def load_config(
    config: Path, changes: list[str] | None, out: Path | None, *, allow_outside: bool
) -> Experiment:
    """The experiment in a config; ConfigError where it reaches further than it may."""
    experiment = load_experiment(config, overrides=changes or ())
    check_reach(experiment, config, changes, out, allow_outside=allow_outside)
    return experiment


def check_reach(
    experiment: Experiment,
    config: Path,
    changes: list[str] | None,
    out: Path | None,
    *,
    allow_outside: bool,
) -> None:
    """Refuse a config that writes outside of `out` or connects, unless that is allowed.

    What was typed with --set, or is in the environment, is the user's own.
    """
    typed = {change.partition("=")[0].strip() for change in changes or ()}
    typed |= {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        for name in os.environ
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    for key, what in outside(experiment, out):
        if not allow_outside and key not in typed:
            wanted = "what stays below --out, or --allow-outside"
            raise ConfigError(str(config), key, what, wanted)


def printer() -> Console:
    """Standard output; never cuts a line of a log, never colours a file."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def lines(*rows: tuple[str, str]) -> Table:
    """Lines of a word and what belongs to it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def columns(*names: str) -> Table:
    """A table with these columns; those whose name ends in a space hold words, the rest numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        side: Any = "left" if name.endswith(" ") else "right"
        table.add_column(name.strip(), justify=side, no_wrap=True)
    return table


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
