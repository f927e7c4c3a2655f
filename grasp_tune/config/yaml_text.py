"""YAML text to plain values and back, for files that strangers may have written.

Tags, anchors and aliases are refused, so nothing but plain values can be built and a small file
cannot fill the memory; size and depth are bounded; a key given twice is an error.
Scalars follow YAML 1.2: `1e-3` is a number, `no` and `2024-01-01` are text, `010` is ten.
"""

import re
from typing import Any, ClassVar

import yaml

from grasp_tune.config.errors import ConfigError, shown

MAX_BYTES = 1 << 20  # 1 MiB
MAX_DEPTH = 32
MAX_NODES = 10_000
_MAX_DIGITS = 18  # every such integer fits 64 bits
_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
}
# What PyYAML's words mean to a person: a part of them -> got, and what valid YAML is then.
_HINTS = {
    "'\\t'": ("a tab", ", which takes spaces only"),
    "another document": ("a second document", " with one document in a file"),
    "block end": (None, ", where the keys of one mapping begin in the same column"),
    "mapping values": ("a colon too many", ", with quotes around text that has one"),
    "cannot start": (None, ", with quotes around text that begins with it"),
}


class _Types:
    """What an unquoted word means, the same for reading and for writing."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        None: [(_TAG + name, re.compile(rf"({pattern})\Z")) for name, pattern in _SCALARS.items()]
    }


class _Reader(_Types, yaml.SafeLoader):
    """PyYAML's safe loader, bounded, for plain values alone."""

    nodes = depth = 0

    def whole(self, node: Any) -> int:
        few = len(node.value.lstrip("+-0")) <= _MAX_DIGITS
        self.check(few, node, shown(node.value, 30), f"at most {_MAX_DIGITS} digits")
        return int(node.value)

    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(_TAG + name for name in ("null", "bool", "float", "str", "seq", "map")))
    } | {_TAG + "int": whole}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        tag = getattr(event, "tag", None)
        self.check(self.nodes <= MAX_NODES, event, "more values", f"at most {MAX_NODES}")
        self.check(self.depth <= MAX_DEPTH, event, "deeper nesting", f"at most {MAX_DEPTH} levels")
        self.check(event.anchor is None, event, "an anchor or alias", "YAML without them")
        self.check(tag is None, event, f"the tag {shown(tag)}", "plain YAML without tags")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for name, item in node.value:
            key = self.construct_object(name, deep=True)
            self.check(isinstance(key, str), name, f"the key {shown(key)}", "a word as a key")
            self.check(key not in mapping, name, f"the key {key} twice", "every key once")
            mapping[key] = self.construct_object(item, deep)
        return mapping

    def check(self, right: bool, at: Any, got: str, wanted: str) -> None:
        if not right:
            raise yaml.MarkedYAMLError(problem=got, problem_mark=at.start_mark, note=wanted)


def parse_yaml(content: bytes | str, source: str) -> Any:
    """The value in plain, bounded, well-formed YAML; else ConfigError, which names `source`."""
    if len(content) > MAX_BYTES:
        raise ConfigError(source, "", f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES}")
    try:
        # The signature that some editors write first is not part of the text.
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        return _Reader(text).get_single_data()
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ConfigError(source, "", got, "UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        got = str(getattr(error, "problem", None) or getattr(error, "reason", "broken text"))
        got = got.removeprefix("found ")
        line, wanted = -1 if mark is None else mark.line, ""
        if ";" in "".join(text.splitlines()[line : line + 1]):
            got, wanted = "a semicolon", ", which takes a comma or a new line there"
        for part, (what, right) in _HINTS.items():
            got, wanted = (what or got, right) if part in got else (got, wanted)
        wanted = getattr(error, "note", None) or f"valid YAML{wanted}"
        raise ConfigError(source, f"line {line + 1}" * (line >= 0), got, wanted) from None


def parse_scalar(text: str, source: str, key: str) -> Any:
    """The value of an unquoted scalar: null, bool, int, float or text."""
    reader = _Reader("")
    node = yaml.ScalarNode(reader.resolve(yaml.ScalarNode, text, (True, False)), text)
    try:
        return reader.construct_object(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(source, key, str(error.problem), str(error.note)) from None


class _Writer(_Types, yaml.SafeDumper):
    """Quotes what the reader would take for something else than text; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(values: dict[str, Any]) -> str:
    """The mapping as YAML that the reader turns into the same values."""
    return yaml.dump(
        values, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=None
    )
