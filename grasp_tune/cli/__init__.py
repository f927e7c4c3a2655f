"""The command `grasp-tune`: its subcommands, a module each, and what becomes of their errors.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done, 1 the run
failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM. Bad input is one line, without a traceback. Heavy
modules are imported inside the commands, so that `--help` and a wrong config answer at once.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import grasp_tune
from grasp_tune.cli.commands import compare, init, plan, report, resume, run, say, watch
from grasp_tune.config.errors import ConfigError, DataError, EntryPointError, MissingDataError
from grasp_tune.core.errors import GraspError, InputError, MissingExtra

_BAD_INPUT = (ConfigError, DataError, EntryPointError, MissingDataError, InputError, MissingExtra)

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


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    """Train a PyTorch model without choosing a learning rate.

    A first run, from nothing to a report:

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
        say(" ".join(str(error).split()) or type(error).__name__)
        return 2 if isinstance(error, _BAD_INPUT) else 1
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does: not our fault, nothing to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
