"""Optional packages: imported when they are used, and named with the extra that installs them."""

from importlib import import_module
from types import ModuleType

from grasp_tune.core.errors import MissingExtra


def need(module: str, extra: str, purpose: str, package: str = "") -> ModuleType:
    """Return an optional module; raise MissingExtra, with the command to run, where it is missing.

    module: what is imported. extra: the extra of this package that installs it.
    purpose: what needs it, for the message. package: its name for people, if not the module's.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(package or module.partition(".")[0], extra, purpose) from error


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    """The error of an optional package that is not installed, with the command that installs it."""
    return MissingExtra(
        f"{purpose} needs {package}, which is not installed; run: pip install 'grasp_tune[{extra}]'"
    )
