"""A run's folder: which config it belongs to, what is in it, and what lies outside of it.

config.yaml        the resolved config, paths absolute, passwords masked
state.json, checkpoints/, calls, ray/    what a run needs to go on after a fault
result.json, model.safetensors           the result
run.json, report.html                    what people read
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.loader import CONFIG, load_experiment
from grasp_tune.config.schema import Experiment
from grasp_tune.config.section import CONNECTS, WRITES, Section, absolute
from grasp_tune.runtime.files import replace_atomically
from grasp_tune.runtime.lock import OURS, folder_lock

REPORT = "report.html"
_OURS = (
    *(
        *OURS,
        CONFIG,
        REPORT,
        "clock.json",
        "run.json",
        "comparison.json",
        "comparison.html",
    ),
    *("records", "ray", "artifacts", "study.journal"),
)
# Where a run may go on though the config differs: the result does not depend on it.
_FREE = re.compile(r"title|out|backend\.(?!kind|fused).*")
_HEAD = """\
# The config of this run, every key filled in. To go on after a fault, from anywhere:
#   grasp-tune resume {folder}
"""
_MASK = "***"
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/\s]*)@")


def claim(folder: Path, experiment: Experiment, *, fresh: bool = False) -> None:
    """Make the folder this experiment's, with its config; ConfigError where it is another's.

    fresh: remove an earlier run first, whichever it was; files of other names stay.
    """

    def refused(got: str, wanted: str) -> ConfigError:
        return ConfigError("--out", "", f"{folder}{got}", wanted)

    values = masked_config(experiment)
    if folder.exists() and not folder.is_dir():
        raise refused(", which is a file", "a folder, new or of this run")
    if (folder / CONFIG).is_file():
        with (folder / CONFIG).open("rb") as file:
            if file.readline().strip() != _HEAD.splitlines()[0].encode():
                got = f", whose {CONFIG} was not written by a run"
                raise refused(got, "an empty or new folder, or one of an earlier run")
        if fresh:
            with folder_lock(folder):  # a run under way keeps what it stands on
                for path in map(folder.joinpath, _OURS):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)
        elif difference := _difference(saved_config(folder), values):
            got = f", the folder of another run ({difference})"
            raise refused(got, "another folder, or --fresh to start over in this one")
    elif folder.is_dir() and any(folder.iterdir()):
        got = f", which holds other files and no {CONFIG}"
        raise refused(got, "an empty or new folder, or one of an earlier run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = _HEAD.format(folder=folder.absolute()) + yaml_text(values)
        replace_atomically(folder / CONFIG, lambda file: file.write(text.encode()))
    except OSError as error:
        raise refused(f": {error.strerror or error}", "a writable folder") from None


def release(folder: Path) -> None:
    """Give the folder back where a run has failed before there was anything to go on with."""
    if {path.name for path in folder.iterdir()} <= {CONFIG, REPORT, "clock.json"}:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def saved_experiment(folder: Path, overrides: tuple[str, ...] = ()) -> Experiment:
    """The experiment of a run's folder, ready to go on; ConfigError where there is none."""
    path = folder / CONFIG
    if not path.is_file():
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        raise ConfigError(str(folder), "", got, "the folder of a run, as given to --out")
    experiment = load_experiment(path, overrides=overrides)
    if f":{_MASK}@" in (getattr(experiment.backend, "storage", None) or ""):
        raise ConfigError(
            str(path),
            "backend.storage",
            "a URL whose password was not saved",
            "the whole URL in the environment variable GRASP_TUNE__BACKEND__STORAGE",
        )
    if difference := _difference(saved_config(folder), masked_config(experiment)):
        raise ConfigError(
            str(path),
            "",
            f"a change ({difference})",
            "only keys that leave the result as it is, such as backend.workers; to change others, "
            "use run with another --out",
        )
    return experiment


def saved_config(folder: Path) -> dict[str, Any]:
    """The config as stored, for showing it: a masked password stays masked."""
    # The environment is this process's, not the run's: it must not colour what was saved.
    return load_experiment(folder / CONFIG, environment={}).to_dict()


def masked_config(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a mapping that may be shown and stored: no password in it."""
    values = experiment.to_dict()
    if storage := values["backend"].get("storage"):
        values["backend"]["storage"] = masked(storage)
    return values


def masked(url: str) -> str:
    """The URL with three stars for its password, if it has one."""
    return _PASSWORD.sub(rf"\1:{_MASK}@", url)


def outside(experiment: Experiment, folder: Path | None) -> Iterator[tuple[str, str]]:
    """Every key by which a run would write outside of its folder or open a connection, and what.

    folder: where the run writes; None: `out`, which must then lie below the working directory.
    """
    out = None if experiment.out is None else Path(absolute(experiment.out))
    here = Path.cwd() if folder is None else folder.expanduser().absolute()
    home = here if folder is not None or out is None else out
    for key, mark, given in _marked(experiment):
        place = re.sub(r"\Asqlite(\+\w+)?:///", "", str(given))
        # SQLAlchemy reads %2e as a dot and takes options behind a ?: no plain path of a file.
        coded = place != given and ("%" in place or "?" in place)
        if key == "out":
            if folder is None and not home.resolve().is_relative_to(here.resolve()):
                yield key, f"{home}, outside of the working directory"
        elif mark == CONNECTS or coded or "://" in place or place.startswith("sqlite"):
            yield key, f"{str(given).lower() if given is True else masked(place)}, a connection"
        elif not Path(place).resolve().is_relative_to(home.resolve()):
            yield key, f"{place}, a file outside of {home}"


def _marked(section: Section, above: str = "") -> Iterator[tuple[str, str, object]]:
    """The keys that were given and by which a run writes or connects: name, mark, value."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _marked(value, f"{above}{name}.")
        elif value:
            marks = [item for item in field.metadata if item in (WRITES, CONNECTS)]
            yield from ((f"{above}{name}", mark, value) for mark in marks)


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first keys in which two configs differ, in words; empty where a run may go on."""
    old, new = _flat(before), _flat(after)
    found = [
        f"{key} was {shown(old.get(key), 40)}, now {shown(new.get(key), 40)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not _FREE.fullmatch(key)
    ]
    return "; ".join(found[:3]) + ("; and more" if len(found) > 3 else "")


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        deeper = isinstance(value, dict) and value
        found |= _flat(value, f"{prefix}{key}.") if deeper else {f"{prefix}{key}": value}
    return found


def yaml_text(values: dict[str, Any]) -> str:
    """The mapping as YAML that the loader reads back to the same values."""
    return yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
    )


class _Dumper(yaml.SafeDumper):
    """Plain YAML without anchors, which make a config hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Quoted unless plainly a word, since our reader's idea of numbers is YAML 1.2's.
    reserved = value.lower() in ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    plain = value.replace("_", "").replace("-", "").isalpha() and not reserved
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)
