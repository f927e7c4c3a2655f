"""A config file to an Experiment: read, include, override, check; nothing is imported or run.

Order, the later wins: files named by `include`, the file itself, environment variables
`GRASP_TUNE__PROBLEM__BATCH_SIZE=32`, then `--set problem.batch_size=32`. Mappings are merged key by
key, everything else is replaced. A section whose `name` (or `kind`) changes is replaced as a whole,
for the options of one data set mean nothing to another.

An included file is named relative to the file that includes it and must lie in the folder of the
first file or below, links followed: a config from a stranger cannot show what else is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.explain import explained
from grasp_tune.config.schema import KINDS, SECTIONS, Experiment
from grasp_tune.config.yaml_text import (
    MAX_BYTES,
    MAX_DEPTH,
    parse_scalar,
    parse_yaml,
    shown_key,
)

CONFIG = "config.yaml"  # in the folder of a run
ENVIRONMENT_PREFIX = "GRASP_TUNE__"
_MAX_FILES = 32

Keys = tuple[str, ...]
Layer = tuple[Mapping[str, Any], str]  # values, and the file, variable or option that gives them


def starter(file: str = "experiment.yaml") -> str:
    """The text of a first config, ready to run; `file` is its name in the comments."""
    text = (files("grasp_tune.config") / "starter.yaml").read_text("utf-8")
    return text.replace("{file}", file)


def load_experiment(
    path: str | os.PathLike[str],
    *,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Experiment:
    """The checked experiment in a YAML file.

    `overrides` are texts `a.b=value`; `environment` is os.environ unless given. Raises ConfigError
    whose `line` is the whole message.
    """
    root = Path(os.path.realpath(path)).parent
    variables = os.environ if environment is None else environment
    return _checked(_files(Path(path), root, (), []), overrides, variables, str(path))


def experiment_from(
    mapping: Mapping[str, Any],
    *,
    source: str = "config",
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Experiment:
    """The checked experiment in a mapping, for use from Python; includes are not followed.

    The environment is only looked at when it is given.
    """
    return _checked([(mapping, source)], overrides, environment or {}, source)


def _checked(
    given: Iterable[Layer], overrides: Iterable[str], environment: Mapping[str, str], top: str
) -> Experiment:
    values: dict[str, Any] = {}
    sources: dict[Keys, str] = {(): top}  # what set each key
    for layer, source in (*given, *_environment(environment), *_assignments(overrides)):
        _merge(values, layer, source, (), sources)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise explained(
            error,
            lambda path: next(
                sources[path[:end]] for end in range(len(path), -1, -1) if path[:end] in sources
            ),
        ) from None


def _merge(
    below: dict[str, Any], above: Mapping[str, Any], source: str, at: Keys, sources: dict[Keys, str]
) -> None:
    for key, value in above.items():
        path = (*at, key)
        kinds = KINDS.get(path)
        old: Any = below.get(key)
        if kinds is not None:
            old = kinds.opened(old)
        same = isinstance(value, Mapping) and isinstance(old, Mapping)
        if same and kinds is not None:
            same = value.get(kinds.key, old.get(kinds.key)) == old.get(kinds.key)
        if not same:
            for stale in [known for known in sources if known[: len(path)] == path]:
                del sources[stale]
        sources.setdefault(path, source)
        below[key] = value
        if isinstance(value, Mapping):
            below[key] = dict(old) if same else {}
            _merge(below[key], value, source, path, sources)
        else:
            sources[path] = source


def _environment(environment: Mapping[str, str]) -> Iterator[Layer]:
    """One layer per variable `GRASP_TUNE__A__B=value`, in the order of their names.

    Letters of either case name a key, for variables are written in capitals.
    """
    kinds = [kind for one_of in KINDS.values() for kind in one_of.kinds.values()]
    keys = [key for section in (*SECTIONS.values(), *kinds) for key in section.model_fields]
    known = {key.lower(): key for key in keys}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            words = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            path = tuple(known.get(word, word) for word in words)
            yield _nested(path, environment[name], name), name


def _assignments(texts: Iterable[str]) -> Iterator[Layer]:
    """One layer per `a.b=value` of `--set`; those that choose a kind come first.

    So `backend.workers=4 backend.kind=ray` means the same in either order.
    """
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise ConfigError("--set", "", shown(text), "key=value, such as problem.batch_size=32")
        chooses = path[-1] in ("name", "kind") or path in KINDS
        found.append((not chooses, _nested(path, value.strip(), "--set")))
    return ((layer, "--set") for _, layer in sorted(found, key=lambda item: item[0]))


def _nested(path: Keys, text: str, source: str) -> dict[str, Any]:
    """`{a: {b: value}}`; the value is a scalar, or a list or mapping when it looks like one."""
    key = ".".join(path)
    if not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(source, shown_key(key), "an empty or endless key", "words between dots")
    value: Any
    if text[:1] in ("[", "{", '"', "'"):
        value = parse_yaml(text, f"{source}: {shown_key(key)}")
    else:
        value = parse_scalar(text, source, key)
    layer: dict[str, Any] = {path[-1]: value}
    for part in reversed(path[:-1]):
        layer = {part: layer}
    return layer


def _files(path: Path, root: Path, parents: tuple[Path, ...], seen: list[Path]) -> Iterator[Layer]:
    """A file and what it includes, with their names, the included before the includer.

    root: the folder that no included file may leave. seen: every file so far, to bound them.
    """
    real, source = Path(os.path.realpath(path)), str(path)
    if real in parents:
        chain = " -> ".join(parent.name for parent in (*parents, real))
        raise ConfigError(source, "include", f"a circle, {chain}", "files that end somewhere")
    seen.append(path)
    if len(seen) > _MAX_FILES:
        raise ConfigError(source, "include", "more files", f"at most {_MAX_FILES}")
    mapping = parse_yaml(_content(path), source) or {}
    if not isinstance(mapping, dict):
        raise ConfigError(source, "", shown(mapping), "keys and values, such as budget: 10000")
    names = mapping.pop("include", None) or []
    for name in names if isinstance(names, list) else [names]:
        if wanted := _wrong_include(path, root, name):
            raise ConfigError(source, "include", shown(name), wanted)
        yield from _files(path.parent / name, root, (*parents, real), seen)
    yield mapping, source


def _wrong_include(includer: Path, root: Path, name: object) -> str:
    """What an included file should be instead; empty where it is right."""
    if not isinstance(name, str) or not name or "\0" in name:
        return "a file name, or a list of them"
    real = Path(os.path.realpath(includer.parent / name))
    if os.path.isabs(name) or not real.is_relative_to(root):
        return f"a file in {root} or below it"
    return "" if real.suffix in (".yaml", ".yml") else "a .yaml or .yml file"


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than allowed is enough to know; the rest is never read.
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), "", "no such file", "a YAML file") from None
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or "an error", "a readable file") from None
