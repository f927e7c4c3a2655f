"""A config file to an Experiment: read, include, override, check; nothing is imported or run.

Order, the later wins: files named by `include`, the file itself, environment variables
`GRASP_TUNE__PROBLEM__BATCH_SIZE=32`, then `--set problem.batch_size=32`. A section whose `name` (or
`kind`) changes is replaced as a whole: the options of one data set mean nothing to another.
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.schema import KINDS, SECTIONS, Experiment
from grasp_tune.config.yaml_text import MAX_BYTES, MAX_DEPTH, parse_scalar, parse_yaml

CONFIG = "config.yaml"  # in the folder of a run
ENVIRONMENT_PREFIX = "GRASP_TUNE__"
_MAX_FILES = 32
_OURS = {  # pydantic's words, and ours
    r"(Input|\w+) should (be|have|match pattern) |, got a .*| after validation.*": "",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid tuple": "a list",
    "a valid dictionary.*": "a mapping",
    "a valid number": "a number",
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
}

Keys = tuple[str, ...]
Layer = tuple[Mapping[str, Any], str]  # values, and the file, variable or option that gives them


def starter(file: str = "experiment.yaml") -> str:
    """The text of a first config, ready to run; `file` is its name in the comments."""
    text = (files("grasp_tune.config") / "starter.yaml").read_text("utf-8").replace("{file}", file)
    there = find_spec("sklearn") is not None
    return text if there else text.replace("dataset: digits\n", "dataset: spirals\n")


def load_experiment(
    path: str | os.PathLike[str],
    *,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Experiment:
    """The checked experiment in a YAML file; ConfigError if it has a fault.

    `overrides` are texts `a.b=value`; `environment` is os.environ unless given.
    """
    given = _files(Path(path), Path(os.path.realpath(path)).parent, [])
    variables = os.environ if environment is None else environment
    return _checked([*given, *_environment(variables), *_assignments(overrides)], str(path))


def experiment_from(mapping: Mapping[str, Any], *, source: str = "config") -> Experiment:
    """The checked experiment in a mapping; no file and no environment is looked at."""
    return _checked([(mapping, source)], source)


def _checked(layers: Iterable[Layer], top: str) -> Experiment:
    sources: dict[Keys, str] = {}  # what set a key last

    def merged(below: Any, above: Mapping[str, Any], source: str, at: Keys) -> dict[str, Any]:
        found = dict(below)
        for key, value in above.items():
            sources[path := (*at, key)] = source
            if isinstance(value, Mapping):
                old: Any = found.get(key)
                if kinds := KINDS.get(path):
                    old = kinds.opened(old)
                same = isinstance(old, Mapping)
                if kinds and same:
                    same = value.get(kinds.key, old.get(kinds.key)) == old.get(kinds.key)
                value = merged(old if same else {}, value, source, path)
            found[key] = value
        return found

    values: dict[str, Any] = {}
    for layer, source in layers:
        values = merged(values, layer, source, ())
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        path, got, wanted = _explained(error)
        known = (path[:end] for end in range(len(path), 0, -1) if path[:end] in sources)
        source = sources.get(next(known, ()), top)
        raise ConfigError(source, ".".join(path), got, wanted) from None


def _explained(error: ValidationError) -> tuple[Keys, str, str]:
    """The first thing to mend: its key as it was written, what is there, what would be right."""
    # A misspelt key first: a value that is missing is often the same slip seen again.
    detail = max(error.errors(include_url=False), key=lambda x: x["type"] == "extra_forbidden")
    what, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    path: Keys = ()
    kind = ""  # pydantic puts it into the key: `problem.dataset.npz.path`
    for part in map(str, detail["loc"]):
        if path in KINDS and not kind:
            kind = part
        else:
            path = (*path, part)
    got, wanted, choices = shown(value), detail["msg"], context.get("choices", ())
    for theirs, ours in _OURS.items():
        wanted = re.sub(theirs, ours, wanted)
    if what == "expected":
        path = tuple(context["key"].split(".")) if "key" in context else path
        got = context.get("got", got)
    elif what == "extra_forbidden":
        got, wanted = "an unknown key", _right_key(path, kind)
    elif what == "missing":
        got, wanted = "nothing", f"a value, which {kind} needs" if kind else "a value"
    elif what.startswith("union_tag"):
        choices, value = KINDS[path].kinds, context.get("tag", value)
        wanted = f"one of {', '.join(choices)}"
        if isinstance(detail["input"], dict):
            value = detail["input"].get(KINDS[path].key)
            path = (*path, KINDS[path].key)
        got = "nothing" if value is None else shown(value)
        if (ending := str(value).rpartition(".")[2]) != value and ending in choices:
            wanted, choices = f"{{name: {ending}, path: {value}}}", ()
    elif what == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
    return path, got, wanted + hint(str(value), choices)


def hint(word: str, choices: Iterable[str], words: str = " (did you mean {}?)") -> str:
    """A question for the choice most like the word; empty where none is."""
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return words.format(by_lower[matches[0]]) if matches else ""


def _right_key(path: Keys, kind: str) -> str:
    """Words for the key that was probably meant: elsewhere, here, or all that are allowed."""
    *above, word = path
    places = {place: {"": section} for place, section in SECTIONS.items()}
    places |= {place: dict(one_of.kinds) for place, one_of in KINDS.items()}
    here = places.pop(tuple(above), {}).get(kind)
    for place, sections in places.items():
        if any(word in section.model_fields for section in sections.values()):
            return f"it as {'.'.join((*place, word))}"
    keys = sorted(here.model_fields) if here else []
    nearest = hint(word, keys, "{}, the nearest key")
    return nearest or (f"one of {', '.join(keys)}" if keys else "no such key")


def _environment(environment: Mapping[str, str]) -> Iterator[Layer]:
    """One layer per variable `GRASP_TUNE__A__B=value`; letters of either case name a key."""
    kinds = [kind for one_of in KINDS.values() for kind in one_of.kinds.values()]
    known = {key.lower(): key for x in (*SECTIONS.values(), *kinds) for key in x.model_fields}
    for name in sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX)):
        words = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        path = tuple(known.get(word, word) for word in words)
        yield _nested(path, environment[name], name), name


def _assignments(texts: Iterable[str]) -> list[Layer]:
    """One layer per `a.b=value` of `--set`; those that choose a kind come first, in any order."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise ConfigError("--set", "", shown(text), "key=value, such as problem.batch_size=32")
        found.append((path, _nested(path, value.strip(), "--set")))
    found.sort(key=lambda item: not (item[0][-1] in ("name", "kind") or item[0] in KINDS))
    return [(layer, "--set") for _, layer in found]


def _nested(path: Keys, text: str, source: str) -> dict[str, Any]:
    """`{a: {b: value}}`; the value is a scalar, or a list or mapping when it looks like one."""
    key = ".".join(path)
    if not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(source, key, "an empty or endless key", "words between dots")
    whole = text.startswith(("[", "{", '"', "'"))
    value: Any = parse_yaml(text, f"{source}: {key}") if whole else parse_scalar(text, source, key)
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _files(path: Path, root: Path, seen: list[Path]) -> Iterator[Layer]:
    """A file and what it includes, the included before the includer.

    root: the folder that no included file may leave, links followed: a config from a stranger
        cannot show what else is on the disk. seen: every file so far, to bound them.
    """
    source = str(path)
    seen.append(path)
    if len(seen) > _MAX_FILES:
        raise ConfigError(source, "include", "more files", f"at most {_MAX_FILES}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # one more than allowed is enough to know
    except FileNotFoundError:
        raise ConfigError(source, "", "no such file", "a YAML file") from None
    except OSError as error:
        raise ConfigError(source, "", error.strerror or "an error", "a readable file") from None
    mapping = parse_yaml(content, source) or {}
    if not isinstance(mapping, dict):
        raise ConfigError(source, "", shown(mapping), "keys and values, such as budget: 10000")
    names = mapping.pop("include", None) or []
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or not name or "\0" in name:
            raise ConfigError(source, "include", shown(name), "a file name, or a list of them")
        real = Path(os.path.realpath(path.parent / name))
        if os.path.isabs(name) or not real.is_relative_to(root):
            raise ConfigError(source, "include", shown(name), f"a file in {root} or below it")
        if real.suffix not in (".yaml", ".yml"):
            raise ConfigError(source, "include", shown(name), "a .yaml or .yml file")
        yield from _files(path.parent / name, root, seen)
    yield mapping, source
