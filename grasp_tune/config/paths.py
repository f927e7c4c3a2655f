"""Where an experiment's files are, whatever the working directory; and no password on the disk.

A run folder holds its config, and may be resumed from elsewhere: paths are made absolute before it
is written. The password in a database URL is masked there, and asked for again when it is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.schema import Experiment

MASK = "***"

# Keys whose value is a path on this machine, unless it is a URL.
_PATHS = (
    ("problem", "dataset", "path"),
    ("problem", "dataset", "test_path"),
    ("problem", "model", "weights"),
    ("problem", "model", "cache"),
    ("backend", "storage"),
    ("out",),
)
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/\s]*)@")
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/)(?!:memory:)(.+)\Z", re.DOTALL)


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The same experiment, relative paths taken from the working directory and `~` from home."""
    values = experiment.to_dict()
    for keys in _PATHS:
        section: Any = values
        for key in keys[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(text := section.get(keys[-1]), str):
            section[keys[-1]] = absolute(text)
    return Experiment.model_validate(values)


def absolute(text: str) -> str:
    """The absolute path; a URL stays as it is, but for the file of an SQLite one."""
    if match := _SQLITE.match(text):
        return f"{match[1]}{absolute(match[2])}"
    if "://" in text:
        return text
    return str(Path(text).expanduser().absolute())


def masked(url: str) -> str:
    """The URL with three stars for its password, if it has one."""
    return _PASSWORD.sub(rf"\1:{MASK}@", url)


def masked_config(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a mapping that may be shown and stored: no password in it."""
    values = experiment.to_dict()
    storage = values["backend"].get("storage")
    if isinstance(storage, str):
        values["backend"]["storage"] = masked(storage)
    return values


def check_no_mask(experiment: Experiment, source: str) -> None:
    """Raise ConfigError where a password is still masked."""
    storage = getattr(experiment.backend, "storage", None)
    if isinstance(storage, str) and f":{MASK}@" in storage:
        raise ConfigError(
            source,
            "backend.storage",
            "a URL whose password was not saved",
            "the whole URL in the environment variable GRASP_TUNE__BACKEND__STORAGE",
        )
