"""Configs laid over one another: files, environment variables, `--set`; the later wins.

Mappings are merged key by key, everything else is replaced. A section whose `name` (or `kind`)
changes is replaced as a whole, for the options of one data set mean nothing to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.schema import KINDS, SECTIONS
from grasp_tune.config.yaml_text import MAX_DEPTH, parse_scalar, parse_yaml, shown_key

ENVIRONMENT_PREFIX = "GRASP_TUNE__"
Path = tuple[str, ...]


class Layers:
    """The merged mapping, and for each key the file, variable or option that set it."""

    def __init__(self, top: str) -> None:
        self._top = top
        self._merged: dict[str, Any] = {}
        self._sources: dict[Path, str] = {}

    def add(self, layer: Mapping[str, Any], source: str) -> None:
        """Lay a mapping over what is there."""
        self._merge(self._merged, layer, source, ())

    def value(self) -> dict[str, Any]:
        """The merged mapping."""
        return self._merged

    def source_of(self, path: Path) -> str:
        """What set the key, or the nearest section around it."""
        for end in range(len(path), -1, -1):
            if (source := self._sources.get(path[:end])) is not None:
                return source
        return self._top

    def _merge(
        self, below: dict[str, Any], above: Mapping[str, Any], source: str, at: Path
    ) -> None:
        for key, value in above.items():
            path = (*at, key)
            if isinstance(value, Mapping):
                old = _opened(below.get(key), path)
                if not _same_kind(old, value, path):
                    old = {}
                    self._forget_below(path)
                below[key] = old
                self._sources.setdefault(path, source)
                self._merge(below[key], value, source, path)
            else:
                below[key] = value
                self._forget_below(path)
                self._sources[path] = source

    def _forget_below(self, path: Path) -> None:
        for stale in [known for known in self._sources if known[: len(path)] == path]:
            del self._sources[stale]


def environment_layer(environment: Mapping[str, str]) -> list[tuple[dict[str, Any], str]]:
    """One layer per variable `GRASP_TUNE__A__B=value`, in the order of their names.

    Letters of either case name a key, for variables are written in capitals.
    """
    known = {key.lower(): key for key in _all_keys()}
    layers = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        words = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        path = tuple(known.get(word, word) for word in words)
        layers.append((_nested(path, environment[name], name), name))
    return layers


def assignment_layer(assignments: Iterable[str]) -> list[tuple[dict[str, Any], str]]:
    """One layer per `a.b=value` of `--set`; those that choose a kind come first.

    So `backend.workers=4 backend.kind=ray` means the same in either order.
    """
    layers = []
    for text in assignments:
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise ConfigError("--set", "", shown(text), "key=value, such as problem.batch_size=32")
        chooses = path[-1] in ("name", "kind") or path in KINDS
        layers.append((not chooses, _nested(path, value.strip(), "--set"), "--set"))
    return [(layer, source) for _, layer, source in sorted(layers, key=lambda item: item[0])]


def _nested(path: Path, text: str, source: str) -> dict[str, Any]:
    """`{a: {b: value}}`; the value is a scalar, or a list or mapping when it looks like one."""
    key = ".".join(path)
    if not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(source, shown_key(key), "an empty or endless key", "words between dots")
    value: Any
    if text[:1] in ("[", "{", '"', "'"):
        value = parse_yaml(text, f"{source}: {shown_key(key)}")
    else:
        value = parse_scalar(text, source, key)
    for part in reversed(path):
        value = {part: value}
    layer: dict[str, Any] = value
    return layer


def _opened(value: object, path: Path) -> dict[str, Any]:
    """The mapping at a key; a bare word is the name of a section written short."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, str) and path in KINDS:
        return {_chooser(path): value}
    return {}


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> bool:
    if path not in KINDS or _chooser(path) not in new:
        return True
    return old.get(_chooser(path)) == new[_chooser(path)]


def _chooser(path: Path) -> str:
    return "kind" if path == ("backend",) else "name"


def _all_keys() -> set[str]:
    sections = [*SECTIONS.values(), *(kind for kinds in KINDS.values() for kind in kinds.values())]
    return {key for section in sections for key in section.model_fields}
