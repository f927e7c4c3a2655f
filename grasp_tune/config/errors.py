"""Errors of the experiment layer: a config that is wrong, data or weights that cannot be had."""

from __future__ import annotations

from grasp_tune.core.errors import GraspError


class ConfigError(GraspError, ValueError):
    """A config that cannot be run; `line` is the whole story, `file: key: got X, expected Y`."""

    def __init__(self, source: str, key: str, got: str, expected: str) -> None:
        self.source = source
        self.key = key
        self.got = got
        self.expected = expected
        where = f"{source}: {key}" if key else source
        self.line = _one_line(f"{where}: got {got}, expected {expected}")
        super().__init__(self.line)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str, str, str]]:
        # The default would rebuild the error from its message alone, and fail between processes.
        return type(self), (self.source, self.key, self.got, self.expected)


class DataError(GraspError, ValueError):
    """Data that was found but cannot be used: the message says where and what would be right."""


class MissingDataError(GraspError, FileNotFoundError):
    """Data or weights that are not there; the message says how to get them."""

    def __str__(self) -> str:
        # OSError would show a tuple when it has two arguments; ours always has one sentence.
        return str(self.args[0])


class EntryPointError(GraspError, ImportError):
    """A `module:function` that cannot be imported or does not give what was asked of it."""


def shown(value: object, limit: int = 60) -> str:
    """Text of a value for an error line: quoted if text, cut when long, never a line break."""
    text = _one_line(repr(value))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _one_line(text: str) -> str:
    """The text with line breaks and control characters turned into spaces or escapes."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "?"
        for character in text
    )
