"""YAML text to plain values, for files that strangers may have written.

Reads the subset that configs need: mappings with word keys, lists, and scalars. Tags are refused,
so nothing but plain values can be built; size, depth and the growth through aliases are bounded,
so a small file cannot fill the memory; a key given twice is an error, not a silent choice.
Scalars follow YAML 1.2: `1e-3` is a number, `no` and `2024-01-01` are text, `010` is ten.
"""

from __future__ import annotations

import re
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
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# What PyYAML's words mean to a person: a part of them -> got, and what valid YAML is then.
_HINTS = {
    "'\\t'": ("a tab", ", which takes spaces only"),
    "another document": ("a second document", " with one document in a file"),
    "block end": (None, ", where the keys of one mapping begin in the same column"),
}
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
    except RecursionError:
        raise ConfigError(source, "", "deeper nesting", f"at most {MAX_DEPTH} levels") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        got = str(getattr(error, "problem", None) or getattr(error, "reason", "broken text"))
        line, wanted = -1 if mark is None else mark.line, ""
        if ";" in "".join(text.splitlines()[line : line + 1]):
            got, wanted = "a semicolon", ", which takes a comma or a new line there"
        for part, (what, right) in _HINTS.items():
            got, wanted = (what or got, right) if part in got else (got, wanted)
        at = f"line {line + 1}" if line >= 0 else ""
        raise ConfigError(source, at, got, f"valid YAML{wanted}") from None


def parse_scalar(text: str, source: str, key: str = "") -> Value:
    """The value of an unquoted scalar, typed as YAML 1.2 does: null, bool, int, float or text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        if len(text.lstrip("+-0")) > _MAX_DIGITS:
            raise ConfigError(source, key, shown(text, 30), f"at most {_MAX_DIGITS} digits")
        return int(text)
    return float(text) if _FLOAT.match(text) else text


class _Reader(yaml.SafeLoader):
    """PyYAML up to its nodes; its own constructors are never called."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source, self._nodes, self._values = source, 0, 0

    def document(self) -> Value:
        node = self.get_single_node()
        return None if node is None else self._value(node, ())

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        return ""  # so that a tag is one that the text holds

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:  # at once: composing a whole file of them takes seconds
            raise ConfigError(self._source, "", "more values", f"at most {MAX_NODES}")
        return super().compose_node(parent, index)

    def _value(self, node: Any, path: tuple[str, ...], depth: int = 0) -> Value:
        def check(right: bool, got: str, wanted: str, at: tuple[str, ...] = path) -> None:
            if not right:
                key = ".".join(at) or f"line {node.start_mark.line + 1}"
                raise ConfigError(self._source, key, got, wanted)

        self._values += 1
        few = self._values <= MAX_NODES
        check(few, "more values", f"at most {MAX_NODES}, aliases expanded")
        check(not node.tag, f"the tag {shown(node.tag)}", "plain YAML without tags")
        # An alias inside its own anchor ends here, too.
        check(depth < MAX_DEPTH, "deeper nesting", f"at most {MAX_DEPTH} levels")
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self._value(item, (*path, str(at)), depth + 1) for at, item in items]
        if isinstance(node, yaml.MappingNode):
            mapping: dict[str, Any] = {}
            for name, item in node.value:
                key = self._value(name, path, depth + 1)
                check(isinstance(key, str), f"the key {shown(key)}", "a word as a key")
                inner = (*path, str(key))
                check(key not in mapping, "the key twice", "every key once", inner)
                mapping[str(key)] = self._value(item, inner, depth + 1)
            return mapping
        length = len(node.value)
        check(length <= MAX_SCALAR, f"{length} characters", f"at most {MAX_SCALAR} in one value")
        # Quoted or a block: text, whatever it looks like.
        plain = node.style is None
        return parse_scalar(node.value, self._source, ".".join(path)) if plain else str(node.value)
