"""YAML text to plain values, for files that strangers may have written.

Reads the subset that configs need: mappings with word keys, lists, and scalars. Tags are refused,
so nothing but plain values can be built; size, depth and the growth through aliases are bounded,
so a small file cannot fill the memory; a key given twice is an error, not a silent choice.
Scalars follow YAML 1.2: `1e-3` is a number, `no` and `2024-01-01` are text, `010` is ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from grasp_tune.config.errors import ConfigError, shown

MAX_BYTES = 1 << 20  # 1 MiB
MAX_DEPTH = 32
MAX_NODES = 10_000  # after aliases are expanded
MAX_SCALAR = 10_000  # characters
_MAX_DIGITS = 18  # every such integer fits 64 bits

_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL_FLOATS = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

Path = tuple[str, ...]
Value = None | bool | int | float | str | list[Any] | dict[str, Any]


def parse_yaml(content: bytes | str, source: str) -> Value:
    """The one value in a YAML document; `source` is the name for error lines.

    Raises ConfigError for anything that is not plain, bounded, well-formed UTF-8 YAML.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(source, "", f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES}")
    try:
        # The signature that some editors write first is not part of the text.
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        return _Reader(text, source).document()
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ConfigError(source, "", got, "UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "broken text"
        at = -1 if mark is None else mark.line
        problem, wanted = str(problem), "valid YAML"
        if "'\\t'" in problem:
            problem, wanted = "a tab", "valid YAML, which takes spaces only"
        elif ";" in "".join(text.splitlines()[at : at + 1]):
            problem, wanted = "a semicolon", "valid YAML, which takes a comma or a new line there"
        elif "block end" in problem:
            wanted = "valid YAML, where the keys of one mapping begin in the same column"
        raise ConfigError(source, f"line {at + 1}" if at >= 0 else "", problem, wanted) from None


def parse_scalar(text: str, source: str, key: str = "") -> Value:
    """The value of an unquoted scalar, typed as YAML 1.2 does: null, bool, int, float or text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        if len(text.lstrip("+-0")) > _MAX_DIGITS:
            raise ConfigError(source, key, shown(text, 30), f"at most {_MAX_DIGITS} digits")
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return float(text.replace(".", "", 1)) if _SPECIAL_FLOATS.match(text) else text


class _Reader:
    """One pass over the parser's events; PyYAML's own constructors are never called."""

    def __init__(self, text: str, source: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._source = source
        self._anchors: dict[str, tuple[Value, int]] = {}  # values, what one alias to each adds
        self._nodes = 0

    def document(self) -> Value:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), ())
        next(self._events)  # document end
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            raise self._error(event, (), "a second document", "one document in a file")
        return value

    def _value(self, event: Any, path: Path, depth: int = 0) -> Value:
        before, alias = self._nodes, isinstance(event, yaml.AliasEvent)
        if alias and event.anchor not in self._anchors:
            raise self._error(event, path, f"*{event.anchor}", "an anchor that was closed before")
        value, added = self._anchors[event.anchor] if alias else (None, 0)
        self._nodes += added + 1
        if self._nodes > MAX_NODES:
            raise self._error(event, path, "more values", f"at most {MAX_NODES}, aliases expanded")
        if alias:
            return value
        if event.tag is not None:
            raise self._error(event, path, f"the tag {shown(event.tag)}", "plain YAML without tags")
        if depth >= MAX_DEPTH:
            raise self._error(event, path, "deeper nesting", f"at most {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            for item in self._until(yaml.SequenceEndEvent):
                value.append(self._value(item, (*path, str(len(value))), depth + 1))
        else:
            value = self._mapping(path, depth + 1)
        if event.anchor is not None:
            # Known only from here on, so that an alias inside its own anchor is an error.
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event

    def _scalar(self, event: Any, path: Path) -> Value:
        if len(event.value) > MAX_SCALAR:
            got = f"{len(event.value)} characters"
            raise self._error(event, path, got, f"at most {MAX_SCALAR} in one value")
        if not event.implicit[0]:  # quoted or a block: text, whatever it looks like
            return str(event.value)
        return parse_scalar(event.value, self._source, ".".join(path))

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            key = self._value(event, path, depth)
            if not isinstance(key, str):
                raise self._error(event, path, f"the key {shown(key)}", "a word as a key")
            if key == "<<":
                wanted = "the keys themselves, or include"
                raise self._error(event, path, "the merge key <<", wanted)
            if key in mapping:
                raise self._error(event, (*path, key), "the key twice", "every key once")
            mapping[key] = self._value(next(self._events), (*path, key), depth)
        return mapping

    def _error(self, event: Any, path: Path, got: str, expected: str) -> ConfigError:
        key = ".".join(path) or f"line {event.start_mark.line + 1}"
        return ConfigError(self._source, shown_key(key), got, expected)


def shown_key(key: str) -> str:
    """A dotted key for an error line, cut when long."""
    return key if len(key) <= 120 else f"{key[:117]}..."
