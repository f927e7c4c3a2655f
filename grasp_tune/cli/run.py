"""`grasp-tune run` and `grasp-tune resume`: from a config to a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from grasp_tune.cli.options import (
    AllowOutside,
    Config,
    Folder,
    Format,
    Quiet,
    Set,
    Shown,
    check_reach,
    lines,
    load_config,
    print_json,
    printer,
    say,
)
from grasp_tune.config import Experiment
from grasp_tune.config.loader import CONFIG
from grasp_tune.config.section import is_entry_point
from grasp_tune.report.formatting import duration, number, percent

if TYPE_CHECKING:
    from grasp_tune.config.run import Finished, Prepared

INTERRUPTED = 130
TERMINATED = 143


def run(
    config: Config,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for everything that the run writes; a folder of this same run is gone on "
            "with.",
        ),
    ] = None,
    changes: Set = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove an earlier run from DIR first and start over.")
    ] = False,
    quiet: Quiet = False,
    shown: Shown = Format.TABLE,
    allow_outside: AllowOutside = False,
) -> None:
    """Train, choose the best model, and write a report.

    DIR gets report.html (open it in a browser), result.json, model.safetensors, and config.yaml
    with every key filled in. Stopped by Ctrl-C or a crash? The same command, or `grasp-tune resume
    DIR`, goes on where it was.

    Example: grasp-tune run configs/quickstart.yaml --out runs/quickstart
    """
    experiment = load_config(config, changes, out, allow_outside=allow_outside)
    prepared = _prepared(experiment, out, fresh=fresh, quiet=quiet)
    with resumable(_again(prepared.folder, allow_outside)):
        finished = prepared.run(progress=not quiet)
    _print(finished, shown)


def resume(
    folder: Folder,
    changes: Set = None,
    quiet: Quiet = False,
    shown: Shown = Format.TABLE,
    allow_outside: AllowOutside = False,
) -> None:
    """Go on with a run that was stopped, from any working directory.

    Uses DIR/config.yaml. With --set, only keys may change that leave the result as it is, such as
    backend.workers. A finished run is not trained again; its report is written anew.

    Example: grasp-tune resume runs/quickstart
    """
    from grasp_tune.config.run_folder import saved_experiment

    experiment = saved_experiment(folder, tuple(changes or ()))
    check_reach(experiment, folder / CONFIG, changes, folder, allow_outside=allow_outside)
    prepared = _prepared(experiment, folder, fresh=False, quiet=quiet)
    with resumable(_again(folder, allow_outside)):
        finished = prepared.run(progress=not quiet)
    _print(finished, shown)


def _prepared(experiment: Experiment, out: Path | None, *, fresh: bool, quiet: bool) -> Prepared:
    from grasp_tune.config.run import prepare

    prepared = prepare(experiment, out, fresh=fresh)
    notes = () if quiet else (*prepared.built.data.notes, *_own_code(experiment))
    for note in (*experiment.notes(), *notes):
        say(f"note: {note}")
    return prepared


def _again(folder: Path, allow_outside: bool) -> str:
    """The command that goes on with a run."""
    place = shlex.quote(str(folder.absolute()))
    return f"grasp-tune resume {place}" + " --allow-outside" * allow_outside


def _own_code(experiment: Experiment) -> list[str]:
    """A line for the functions that a config names, and that were therefore imported."""
    problem = experiment.problem
    named = [problem.dataset.name, problem.model and problem.model.name, problem.loss]
    named += [problem.metric, *problem.augment]
    named += [experiment.method.base, *experiment.challengers]
    if own := sorted({name for name in named if name and is_entry_point(name)}):
        return [f"The config runs code of its own: {', '.join(own)}."]
    return []


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line that says how to go on, and an exit code."""
    try:
        yield
    except KeyboardInterrupt as error:
        stopped = type(error) is not KeyboardInterrupt  # our own: SIGTERM
        if sys.stderr.isatty():
            say("")
        say(f"stopped; nothing that was finished is lost. To go on: {command}")
        raise typer.Exit(TERMINATED if stopped else INTERRUPTED) from None


def _print(finished: Finished, shown: Format) -> None:
    if shown is Format.JSON:
        print_json(finished.to_dict())
        return
    from grasp_tune.report.advice import effort, headline, next_steps, score_label, score_words

    result, metadata = finished.result, finished.metadata
    table = lines((score_label(result), score_words(result.choice.chosen)))
    if (quality := metadata.quality) is not None:
        table.add_row("training rows", f"loss {number(quality.train_loss)}")
        if quality.test_loss is not None:
            right = "" if quality.test_accuracy is None else f", {percent(quality.test_accuracy)}"
            table.add_row("test rows", f"loss {number(quality.test_loss)}{right}")
    table.add_row("time", duration(metadata.seconds))
    for note in result.notes:
        table.add_row("note", note)
    for step in next_steps(result, metadata):
        table.add_row("next", step)
    table.add_row("report", str(finished.report))
    console = printer()
    console.print(Text(headline(result, metadata)))
    console.print(Text(effort(result, metadata)))
    console.print(table)
