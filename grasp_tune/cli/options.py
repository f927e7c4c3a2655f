"""Arguments that several commands share, and what a config may do by them."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from grasp_tune.config import Experiment


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
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        help="Oracle calls in all. This and the next three replace what the config says of "
        "length; of several that are given, the smallest counts.",
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="As many calls as a training of so many steps.")
]
Epochs = Annotated[
    float | None, typer.Option("--epochs", help="As many calls as so many passes over the rows.")
]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Of the clock.")]


def with_limits(changes: list[str] | None, **limits: float | None) -> list[str]:
    """What was typed with --set, and the limits that replace those of the config."""
    found = list(changes or ())
    if any(value is not None for value in limits.values()):
        from grasp_tune.config.schema import UNLIMITED

        limits["budget"] = UNLIMITED if limits["budget"] is None else limits["budget"]
        found += [f"{key}={'~' if value is None else value}" for key, value in limits.items()]
    return found


def load_config(
    config: Path, changes: list[str], out: Path | None, *, allow_outside: bool
) -> Experiment:
    """The experiment in a config; ConfigError where it reaches further than it may."""
    from grasp_tune.config import load_experiment

    experiment = load_experiment(config, overrides=changes)
    check_reach(experiment, config, changes, out, allow_outside=allow_outside)
    return experiment


def check_reach(
    experiment: Experiment,
    config: Path,
    changes: list[str],
    out: Path | None,
    *,
    allow_outside: bool,
) -> None:
    """Refuse a config that writes outside of `out` or connects, unless that is allowed.

    What was typed with --set, or is in the environment, is the user's own.
    """
    from grasp_tune.config.errors import ConfigError
    from grasp_tune.config.loader import ENVIRONMENT_PREFIX
    from grasp_tune.config.run_folder import outside

    typed = {change.partition("=")[0].strip() for change in changes}
    typed |= {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        for name in os.environ
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    for key, what in outside(experiment, out):
        if not allow_outside and key not in typed:
            wanted = "what stays below --out, or --allow-outside"
            raise ConfigError(str(config), key, what, wanted)


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
