"""`grasp-tune report` and `grasp-tune watch`: the page of a run, written again or followed."""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer

from grasp_tune.cli.options import Folder, say
from grasp_tune.config.loader import CONFIG
from grasp_tune.report.formatting import number


def report(
    folder: Folder,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write DIR/report.html again, and print where it is.

    Works for a run that is still under way or was stopped, too: the report then shows the best so
    far. The page of a run under way is written anew as it goes on, and loads itself again.

    Example: grasp-tune report runs/quickstart --open
    """
    from grasp_tune.report.page import write_folder_report

    path = write_folder_report(folder.absolute())
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
    from grasp_tune.report.page import write_folder_report
    from grasp_tune.runtime.sweep_folder import load_search

    before, ended = "", False
    while not ended:
        ended = (folder / "result.json").exists()  # looked at first: the report is then the last
        if ended or (folder / "state.json").exists() or not (folder / CONFIG).exists():
            path = write_folder_report(folder.absolute())
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
