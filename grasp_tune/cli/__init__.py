"""The command `grasp-tune`: one module a subcommand; `app` puts them together.

Results go to standard output, progress and errors to standard error. Heavy modules are imported
inside the commands, so that `--help` and a wrong config answer at once.
"""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from grasp_tune.cli.app import run_command

    return run_command(arguments)
