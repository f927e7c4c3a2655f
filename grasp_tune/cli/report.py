"""`grasp-tune report`: the page of a run, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_tune.cli.options import Folder, say
from grasp_tune.config.errors import ConfigError


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


def _write(folder: Path) -> Path:
    from grasp_tune.config.run_folder import CONFIG, saved_config
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
