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
    """The merged mapping, and for each key the file, variable or option that set it.

    top: what to name where nothing set a key.
    """

    def __init__(self, top: str) -> None:
        self._top = top
        self.value: dict[str, Any] = {}
        self._sources: dict[Path, str] = {}

    def add(self, layer: Mapping[str, Any], source: str) -> None:
        """Lay a mapping over what is there."""
        self._merge(self.value, layer, source, ())

    def source_of(self, path: Path) -> str:
        """What set the key, or the nearest section around it."""
        around = (path[:end] for end in range(len(path), -1, -1))
        return next((self._sources[at] for at in around if at in self._sources), self._top)

    def _merge(
        self, below: dict[str, Any], above: Mapping[str, Any], source: str, at: Path
    ) -> None:
        for key, value in above.items():
            path = (*at, key)
            if not isinstance(value, Mapping):
                below[key] = value
                self._forget_below(path)
                self._sources[path] = source
                continue
            old, kinds = below.get(key), KINDS.get(path)
            if kinds is not None:
                old = kinds.opened(old)
            old = dict(old) if isinstance(old, Mapping) else {}
            if kinds is not None and value.get(kinds.key, old.get(kinds.key)) != old.get(kinds.key):
                old = {}
                self._forget_below(path)
            below[key] = old
            self._sources.setdefault(path, source)
            self._merge(old, value, source, path)

    def _forget_below(self, path: Path) -> None:
        for stale in [known for known in self._sources if known[: len(path)] == path]:
            del self._sources[stale]


def environment_layer(environment: Mapping[str, str]) -> list[tuple[dict[str, Any], str]]:
    """One layer per variable `GRASP_TUNE__A__B=value`, in the order of their names.

    Letters of either case name a key, for variables are written in capitals.
    """
    kinds = [kind for one_of in KINDS.values() for kind in one_of.kinds.values()]
    keys = [key for section in (*SECTIONS.values(), *kinds) for key in section.model_fields]
    known = {key.lower(): key for key in keys}
    layers = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
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
