"""A config file to an Experiment: read, include, override, check; nothing is imported or run.

Order, the later wins: files named by `include`, the file itself, environment variables
`GRASP_TUNE__PROBLEM__BATCH_SIZE=32`, then `--set problem.batch_size=32`.

An included file is named relative to the file that includes it and must lie in the folder of the
first file or below, links followed: a config from a stranger cannot show what else is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.explain import explained
from grasp_tune.config.merge import Layers, assignment_layer, environment_layer
from grasp_tune.config.schema import Experiment
from grasp_tune.config.yaml_text import MAX_BYTES, Value, parse_yaml

CONFIG = "config.yaml"  # in the folder of a run
_MAX_FILES = 32


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
    top = Path(path)
    layers = Layers(str(path))
    root = Path(os.path.realpath(top)).parent
    for mapping, source in _files(top, root, (), []):
        layers.add(mapping, source)
    return _checked(layers, overrides, environment)


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
    layers = Layers(source)
    layers.add(mapping, source)
    return _checked(layers, overrides, {} if environment is None else environment)


def _checked(
    layers: Layers, overrides: Iterable[str], environment: Mapping[str, str] | None
) -> Experiment:
    variables = os.environ if environment is None else environment
    for mapping, source in (*environment_layer(variables), *assignment_layer(overrides)):
        layers.add(mapping, source)
    try:
        return Experiment.model_validate(layers.value)
    except ValidationError as error:
        raise explained(error, layers.source_of) from None


def _files(
    path: Path, root: Path, parents: tuple[Path, ...], seen: list[Path]
) -> Iterator[tuple[dict[str, Any], str]]:
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
    mapping = _mapping(parse_yaml(_content(path), source), source)
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
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), "", "no such file", "a YAML file") from None
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or "an error", "a readable file") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(str(path), "", f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES}")
    return content


def _mapping(value: Value, source: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(source, "", shown(value), "keys and values, such as budget: 10000")
    return value
