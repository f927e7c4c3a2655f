"""The command `grasp-tune`: its subcommands, and what becomes of their errors.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done, 1 the run
failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM. Bad input is one line, without a traceback. Heavy
modules are imported inside the commands, so that `--help` and a wrong config answer at once.
"""

import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import grasp_tune
from grasp_tune.config.errors import ConfigError, one_line
from grasp_tune.core.errors import GraspError, InputError, MissingExtra

if TYPE_CHECKING:
    from grasp_tune.config.schema import Experiment

_BEGUN = time.monotonic()  # nothing heavy is loaded yet
Format = Literal["table", "json"]
_CONFIG = "The experiment, a YAML file; `grasp-tune init` writes a first one."
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help=_CONFIG)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, as given to --out.")]
_SET = "Override a key of the config, such as problem.batch_size=32. May be repeated."
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET)]
Shown = Annotated[Format, typer.Option("--format", help="Table for people, JSON for programs.")]
_OUTSIDE = "Let the config write files outside of the run's folder and open connections."
AllowOutside = Annotated[bool, typer.Option("--allow-outside", help=_OUTSIDE)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in the browser.")]
_FRESH = "Remove an earlier run from DIR first and start over."
Fresh = Annotated[bool, typer.Option("--fresh", help=_FRESH)]
_BUDGET = "Oracle calls. This and the next three replace those of the config; the smallest counts."
Budget = Annotated[int | None, typer.Option(help=_BUDGET)]
Steps = Annotated[int | None, typer.Option(help="As many calls as a training of so many steps.")]
Epochs = Annotated[float | None, typer.Option(help="As many calls as so many passes over rows.")]
Minutes = Annotated[float | None, typer.Option(help="Of the clock.")]
_MORE = "Of the clock, on top of those that the run has had."
_OUT = "Folder for the results; the same folder again goes on with it."
_SCHEMA = "Print the JSON schema of a config instead, for editors that complete and check YAML."
_NORM = "Norm of the gradient at the start point. When given, no data are read or steps timed."
_VALUE = "Loss at the start point, for use with --grad-norm."
_ADAMW = "First train AdamW at its defaults, to compare with."
_SORT = "What comes first: train_loss, test_loss, metric or seconds."
_METHODS = (
    "Which methods, such as grasp-promote,grasp-paper,adamw,dog; by default ours and every peer "
    "that is installed (pip install 'grasp_tune[bench]' brings most)."
)


def _experiment(
    config: Path, out: Path | None, allow_outside: bool, changes: Set = None, *limits: float | None
) -> "Experiment":
    """The experiment in a config, or in the run's folder `out` itself, if it may do what it wants.

    changes: of --set. limits: budget, steps, epochs, minutes; they replace those of the config.
    """
    from grasp_tune.config.loader import load_experiment
    from grasp_tune.config.run_folder import check_reach, saved_experiment
    from grasp_tune.config.schema import UNLIMITED

    typed = list(changes or ())
    if any(value is not None for value in limits):
        pairs = zip(("budget", "steps", "epochs", "minutes"), limits, strict=True)
        typed += [f"budget={UNLIMITED}", "steps=~", "epochs=~", "minutes=~"]
        typed += [f"{key}={value}" for key, value in pairs if value is not None]
    load = saved_experiment if config == out else load_experiment
    experiment = load(config, overrides=typed)
    if not allow_outside:
        check_reach(experiment, config, typed, out)
    return experiment


def _say(text: str) -> None:
    typer.echo(one_line(text), err=True)  # names of columns may hold what a terminal obeys


def _output(found: Any, shown: Format, template: str, **more: object) -> None:
    """Print what a command has found: as JSON, or as a page for people."""
    if shown == "json":
        typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        from grasp_tune.report.formatting import templates

        text = templates().get_template(template).render(found=found, **more)
        typer.echo(text.rstrip())


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE")] = Path("experiment.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help=_SCHEMA)] = False,
) -> None:
    """Write a commented config to FILE.

    It runs as it is. Every choice is explained beside it; the values in comments are the defaults.

    Example: grasp-tune init mine.yaml
    """
    from grasp_tune.config.loader import starter

    if schema:
        from grasp_tune.config.schema import Experiment

        values = Experiment.model_json_schema()
        values["properties"]["include"] = {"description": "Files that this one is laid over."}
        typer.echo(json.dumps(values, indent=2))
        return
    if file.exists() and not force:
        wanted = "a new name, or --force to replace it"
        raise ConfigError(str(file), "", "a file that exists", wanted)
    try:
        file.write_text(starter(str(file)), encoding="utf-8")
    except OSError as error:
        got = error.strerror or "an error"
        raise ConfigError(str(file), "", got, "a place that can be written") from None
    typer.echo(str(file))
    _say(f"next: grasp-tune plan {file}")


def plan(
    config: Config,
    changes: Set = None,
    budget: Budget = None,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    grad_norm: Annotated[float | None, typer.Option(min=0.0, help=_NORM)] = None,
    value: Annotated[float, typer.Option(help=_VALUE)] = 1.0,
    shown: Shown = "table",
    allow_outside: AllowOutside = False,
) -> None:
    """Show what a run would do and cost. Trains nothing.

    Prints the range that would be searched, the runs and their shares of the budget, the disk
    space, and how long it would take on this machine. For that, a few steps are really taken and
    thrown away; they do not count as oracle calls.

    Example: grasp-tune plan configs/quickstart.yaml
    """
    allowed = allow_outside or grad_norm is not None
    experiment = _experiment(config, None, allowed, changes, budget, steps, epochs, minutes)
    from grasp_tune.report.cost_estimate import estimate_cost

    _output(estimate_cost(experiment, grad_norm=grad_norm, value=value), shown, "plan.txt")


def run(
    config: Config,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=_OUT)] = None,
    changes: Set = None,
    budget: Budget = None,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    shown: Shown = "table",
    allow_outside: AllowOutside = False,
) -> None:
    """Train, choose the best model, and write a report.

    DIR gets report.html (open it in a browser), result.json, model.safetensors, and config.yaml
    with every key filled in. Stopped by Ctrl-C or a crash? The same command, or `grasp-tune resume
    DIR`, goes on where it was.

    Example: grasp-tune run configs/quickstart.yaml --out runs/quickstart --epochs 10
    """
    experiment = _experiment(config, out, allow_outside, changes, budget, steps, epochs, minutes)
    _run(experiment, out, allow_outside, quiet, shown, fresh=fresh)


def resume(
    folder: Folder,
    changes: Set = None,
    budget: Budget = None,
    steps: Steps = None,
    epochs: Epochs = None,
    more: Annotated[float | None, typer.Option("--minutes", help=_MORE)] = None,
    quiet: Quiet = False,
    shown: Shown = "table",
    allow_outside: AllowOutside = False,
) -> None:
    """Go on with a run that was stopped, or that has ended and gets more budget.

    Uses DIR/config.yaml, from any working directory. With --set, only keys may change that leave
    the result as it is, such as backend.workers. A finished run is trained further where --budget,
    --steps or --epochs give it more calls in all than it had, or --minutes more time; else only its
    report is written anew.

    Example: grasp-tune resume runs/quickstart --epochs 20
    """
    experiment = _experiment(folder, folder, allow_outside, changes, budget, steps, epochs, None)
    _run(experiment, folder, allow_outside, quiet, shown, more=more)


def _run(
    experiment: "Experiment",
    out: Path | None,
    outside: bool,
    quiet: bool,
    shown: Format,
    **how: Any,
) -> None:
    """Run an experiment and print what came out; `how`: further arguments of `run_experiment`."""
    from grasp_tune.config.run import run_experiment
    from grasp_tune.report import advice, summary

    folder = (out or Path(experiment.out or "")).expanduser().absolute()
    again = f"grasp-tune resume {shlex.quote(str(folder))}" + " --allow-outside" * outside
    tell = (lambda text: None) if quiet else (lambda text: _say(f"note: {text}"))
    with _resumable(again, folder):
        how |= {"progress": not quiet, "tell": tell, "began": _BEGUN}
        finished = run_experiment(experiment, out, **how)
    _output(finished, shown, "run.txt", advice=advice, summary=summary, folder=str(folder))


@contextmanager
def _resumable(command: str, folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line that says how to go on, and an exit code.

    folder: what `command` goes on with, once it is there.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        begun = folder is None or folder.exists()
        line = f"stopped; nothing that was finished is lost. To go on: {command}"
        typer.echo("\n" * sys.stderr.isatty(), err=True, nl=False)
        _say(line if begun else "stopped before anything was begun")
        # Our own kind of KeyboardInterrupt is SIGTERM.
        raise typer.Exit(130 if type(error) is KeyboardInterrupt else 143) from None


def report(
    folder: Folder,
    show: Open = False,
    adamw: Annotated[bool, typer.Option("--adamw", help=_ADAMW)] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Write DIR/report.html again, and print where it is.

    Works for a run that is still under way or was stopped, too: the report then shows the best so
    far. The page of a run under way is written anew as it goes on, and loads itself again.

    Example: grasp-tune report runs/quickstart --open
    """
    from grasp_tune.report.page import write_folder_report

    folder = folder.absolute()
    if adamw:
        from grasp_tune.report.compare import train_adamw

        train_adamw(folder, _experiment(folder, folder, allow_outside))
    path = write_folder_report(folder)
    typer.echo(str(path))
    if show and typer.launch(path.as_uri()) != 0:
        _say(f"no browser was found; open {path} yourself")


def watch(
    folder: Folder,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at it.")] = 2.0,
    show: Open = False,
) -> None:
    """Follow a run that another process is working on, until it ends.

    Prints a line whenever the run has got further, and keeps DIR/report.html up to date. It only
    reads what the run has saved, from this machine or over a shared disk. Ctrl-C ends it, not the
    run.

    Example: grasp-tune watch runs/quickstart
    """
    from grasp_tune.config.loader import CONFIG
    from grasp_tune.report.page import write_folder_report
    from grasp_tune.runtime.callbacks import progress_line
    from grasp_tune.runtime.sweep_folder import load_search

    before, ended = "", False
    while not ended:
        ended = (folder / "result.json").exists()  # looked at first: the report is then the last
        if ended or (folder / "state.json").exists() or not (folder / CONFIG).exists():
            path = write_folder_report(folder.absolute())
            at = load_search(folder / "state.json").progress
            if (line := progress_line(at, at.calls)) != before:
                typer.echo(line)
            if not before and show:
                typer.launch(path.as_uri())
            before = line
        time.sleep(0.0 if ended else every)
    typer.echo(f"report: {path}")


def compare(
    config: Config,
    out: Annotated[Path, typer.Option(metavar="DIR", help=_OUT)],
    changes: Set = None,
    budget: Budget = None,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    methods: Annotated[str, typer.Option(metavar="A,B,...", help=_METHODS)] = "",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each method.")] = 3,
    sort: Annotated[str, typer.Option(metavar="KEY", help=_SORT)] = "train_loss",
    fresh: Fresh = False,
    quiet: Quiet = False,
    shown: Shown = "table",
    allow_outside: AllowOutside = False,
) -> None:
    """Compare with other optimizers on the same problem and the same number of oracle calls.

    GRASP in both schedules, and peers such as DoG, Prodigy, D-Adaptation, COCOB, schedule-free,
    AdamW at its defaults, Optuna's TPE and Ray's ASHA. Searching counts: whoever tunes pays for it
    out of the same budget. Writes DIR/comparison.html. Runs in this process, whatever the config's
    backend.

    Example: grasp-tune compare configs/quickstart.yaml --out runs/compare --seeds 2
    """
    experiment = _experiment(config, out, allow_outside, changes, budget, steps, epochs, minutes)
    from grasp_tune.report import compare as contest

    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    # The command that goes on is the one that was typed, without --fresh.
    again = shlex.join(["grasp-tune", *(word for word in sys.argv[1:] if word != "--fresh")])
    with _resumable(again):
        tell = (lambda text: None) if quiet else _say
        comparison = contest.compare(
            experiment, out, methods=names, seeds=seeds, fresh=fresh, sort=sort, tell=tell
        )
    page, rows = contest.write_comparison(comparison), contest.table_rows(comparison)
    head = contest.headline(comparison)
    _output(comparison, shown, "comparison.txt", page=page, headline=head, rows=rows)


app = typer.Typer(
    name="grasp-tune",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grasp-tune {grasp_tune.__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")


@app.callback()
def _main(version: Annotated[bool, _VERSION] = False) -> None:
    """Train a PyTorch model without choosing a learning rate.

    A first run, from nothing to a report:

    \b
      grasp-tune init experiment.yaml
      grasp-tune plan experiment.yaml
      grasp-tune run experiment.yaml --out runs/first

    `grasp-tune COMMAND --help` explains each command.
    """


for command in (init, plan, run, resume, watch, report, compare):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    logger = logging.getLogger("grasp_tune")
    logger.handlers = [logging.StreamHandler(sys.stderr)]
    # All lines in a log, warnings only beside a progress bar.
    logger.setLevel(logging.WARNING if sys.stderr.isatty() else logging.INFO)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="grasp-tune")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except GraspError as error:
        _say(" ".join(str(error).split()) or type(error).__name__)
        return 2 if isinstance(error, InputError | MissingExtra) else 1
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does: not our fault, nothing to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
