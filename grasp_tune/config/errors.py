"""Errors of the experiment layer: a config that is wrong, data or weights that cannot be had."""

from grasp_tune.core.errors import InputError


class ConfigError(InputError):
    """A config that cannot be run, in one line: `file: key: got X, expected Y`."""

    def __init__(self, source: str, *what: str) -> None:
        if what:  # else a whole line, from another process
            key, got, expected = what
            where = f"{source}: {key[:117]}{'...' * (len(key) > 117)}" if key else source
            source = one_line(f"{where}: got {got}, expected {expected}")
        super().__init__(source)


class DataError(InputError):
    """Data that was found but cannot be used: the message says where and what would be right."""


def require(where: object, right: object, fault: str) -> None:
    """Raise DataError, which says where and what, unless all is right."""
    if not right:
        raise DataError(f"{where}: {fault}")


class MissingDataError(InputError, FileNotFoundError):
    """Data or weights that are not there; the message says how to get them."""


class EntryPointError(InputError, ImportError):
    """A `module:function` that cannot be imported or does not give what was asked of it."""


def shown(value: object, limit: int = 60) -> str:
    """Text of a value for an error line: quoted if text, cut when long, never a line break."""
    text = one_line(repr(value))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(text: str) -> str:
    """The text with line breaks and control characters turned into spaces or question marks."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
