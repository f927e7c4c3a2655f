"""`grasp-tune report` and `grasp-tune watch`: the page of a run, written again or followed."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from grasp_tune.cli.options import Folder, say
from grasp_tune.config.errors import ConfigError
from grasp_tune.config.loader import CONFIG
from grasp_tune.report.formatting import number


def report(
    folder: Folder,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write DIR/report.html again, and print where it is.

    Works for a run that is still under way or was stopped, too: the report then shows the best so
    far.

    Example: grasp-tune report runs/quickstart --open
    """
    path = _write(folder)
    typer.echo(str(path))
    if show and typer.launch(path.as_uri()) != 0:
        say(f"no browser was found; open {path} yourself")


def watch(
    folder: Folder,
    every: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks at the run.")
    ] = 2.0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Follow a run that another process is working on, until it ends.

    Prints a line whenever the run has got further, and keeps DIR/report.html up to date. It only
    reads what the run has saved, from this machine or over a shared disk. Ctrl-C ends it, not the
    run.

    Example: grasp-tune watch runs/quickstart
    """
    from grasp_tune.runtime.state_file import load_search

    before, ended = "", False
    while not ended:
        ended = (folder / "result.json").exists()  # looked at first: the report is then the last
        if ended or (folder / "state.json").exists() or not (folder / CONFIG).exists():
            path = _write(folder)
            at = load_search(folder / "state.json").progress
            best = f", best loss {number(at.best)}" if math.isfinite(at.best) else ""
            line = f"{at.phase}: {at.calls:,} of {at.budget:,} calls{best}"
            if line != before:
                typer.echo(line)
            if not before and show:
                typer.launch(path.as_uri())
            before = line
        if not ended:
            time.sleep(every)
    typer.echo(f"report: {path}")


def _write(folder: Path) -> Path:
    from grasp_tune.config.run_folder import saved_config
    from grasp_tune.report.page import write_report
    from grasp_tune.report.run_metadata import read_metadata
    from grasp_tune.runtime.result import Result
    from grasp_tune.runtime.state_file import load_search

    folder = folder.absolute()
    if not (folder / CONFIG).exists():
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        raise ConfigError(str(folder), "", got, "the folder of a run, as given to --out")
    config = saved_config(folder)
    if (folder / "result.json").exists():
        return write_report(folder, Result.load(folder), read_metadata(folder), config)
    if not (folder / "state.json").exists():
        raise ConfigError(
            str(folder), "", "a run without any outcome yet", "one that has done its first task"
        )
    unfinished = Result.of(load_search(folder / "state.json"), {})
    return write_report(folder, unfinished, None, config)
