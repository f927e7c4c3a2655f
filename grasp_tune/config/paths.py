"""Where an experiment's files are, whatever the working directory; and no password on the disk.

A run folder holds its config, and may be resumed from elsewhere: paths are made absolute before it
is written. The password in a database URL is masked there, and asked for again when it is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.schema import Experiment
from grasp_tune.config.section import Section

MASK = "***"

# Keys whose value is a path on this machine, unless it is a URL.
_PATHS = ("path", "test_path", "validation_path", "weights", "cache", "storage", "out")
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/\s]*)@")
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/)(?!:memory:)(.+)\Z", re.DOTALL)
_SQLITE_FILE = re.compile(r"\Asqlite(\+\w+)?:///")
_AnySection = TypeVar("_AnySection", bound=Section)


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The same experiment, relative paths taken from the working directory and `~` from home."""
    problem = experiment.problem
    problem = problem.model_copy(
        update={
            "dataset": _placed(problem.dataset),
            "model": problem.model and _placed(problem.model),
        }
    )
    backend = _placed(experiment.backend)
    return _placed(experiment.model_copy(update={"problem": problem, "backend": backend}))


def _placed(section: _AnySection) -> _AnySection:
    given = {key: getattr(section, key, None) for key in _PATHS}
    paths = {key: absolute(text) for key, text in given.items() if isinstance(text, str)}
    return section.model_copy(update=paths)


def absolute(text: str) -> str:
    """The absolute path; a URL stays as it is, but for the file of an SQLite one."""
    if match := _SQLITE.match(text):
        return f"{match[1]}{absolute(match[2])}"
    if "://" in text:
        return text
    return str(Path(text).expanduser().absolute())


def outside(experiment: Experiment, folder: Path | None) -> dict[str, str]:
    """Every key by which a run would write outside of its folder or open a connection, and what.

    folder: where the run writes; None: `out`, which must then lie below the working directory.
    """
    found: dict[str, str] = {}
    home = Path.cwd() if folder is None else folder.expanduser().absolute()
    if folder is None and experiment.out is not None:
        home = Path(absolute(experiment.out))
        if not home.resolve().is_relative_to(Path.cwd().resolve()):
            found["out"] = f"{home}, outside of the working directory"
    backend, problem = experiment.backend, experiment.problem
    written = {
        "backend.storage": getattr(backend, "storage", None),
        "problem.model.cache": getattr(problem.model, "cache", None),
    }
    for key, text in written.items():
        place = absolute(_SQLITE_FILE.sub("", text)) if text else str(home)
        if "://" in place or place.startswith("sqlite"):
            found[key] = f"{masked(place)}, a connection"
        elif not Path(place).resolve().is_relative_to(home.resolve()):
            found[key] = f"{place}, a file outside of {home}"
    if getattr(backend, "address", None):
        found["backend.address"] = f"{getattr(backend, 'address', '')}, a connection"
    for key, section in (("dataset", problem.dataset), ("model", problem.model)):
        if getattr(section, "download", False):
            found[f"problem.{key}.download"] = "true, a connection"
    return found


def masked(url: str) -> str:
    """The URL with three stars for its password, if it has one."""
    return _PASSWORD.sub(rf"\1:{MASK}@", url)


def masked_config(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a mapping that may be shown and stored: no password in it."""
    values = experiment.to_dict()
    if storage := values["backend"].get("storage"):
        values["backend"]["storage"] = masked(storage)
    return values


def check_no_mask(experiment: Experiment, source: str) -> None:
    """Raise ConfigError where a password is still masked."""
    if f":{MASK}@" in (getattr(experiment.backend, "storage", None) or ""):
        raise ConfigError(
            source,
            "backend.storage",
            "a URL whose password was not saved",
            "the whole URL in the environment variable GRASP_TUNE__BACKEND__STORAGE",
        )
