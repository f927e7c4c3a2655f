"""The command `grasp-tune`: one module a subcommand; `app` puts them together.

Results go to standard output, progress and errors to standard error. Heavy modules are imported
inside the commands, so that `--help` and a wrong config answer at once.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.cli.app import main

__all__ = ["main"]

__getattr__, __dir__ = lazy_names(__name__, {"main": "grasp_tune.cli.app"})
