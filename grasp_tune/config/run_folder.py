"""A run's folder: which config it belongs to, what is in it, and what lies outside of it.

config.yaml        the resolved config, paths absolute, passwords masked
state.json, checkpoints/, calls, ray/    what a run needs to go on after a fault
result.json, model.safetensors           the result
run.json, report.html                    what people read
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.loader import CONFIG, ENVIRONMENT_PREFIX, load_experiment
from grasp_tune.config.schema import UNLIMITED, Experiment
from grasp_tune.config.section import MASK, REACHES, Section, masked
from grasp_tune.config.yaml_text import yaml_text
from grasp_tune.runtime.files import STATE_LIMIT, read_json, replace_atomically
from grasp_tune.runtime.lock import OURS, folder_lock

REPORT = "report.html"
_PAGES = (REPORT, "run.json", "comparison.json", "comparison.html")
_OURS = (*OURS, *_PAGES, CONFIG, "records", "ray", "artifacts", "study.journal")
# Where a run may go on though the config differs: the result does not depend on it.
_FREE = re.compile(r"title|out|minutes|backend\.(?!kind|fused).*")
_HEAD = """\
# The config of this run, every key filled in. To go on after a fault, from anywhere:
#   grasp-tune resume {folder}
"""


def claim(folder: Path, experiment: Experiment, *, fresh: bool = False) -> Callable[[], None]:
    """Make the folder this experiment's, with its config; return what gives it back.

    fresh: remove an earlier run first, whichever it was; files of other names stay.
    """
    values, fault = experiment.to_dict(), ""
    wanted = "an empty or new folder, or one of an earlier run"
    try:
        new, ours = not folder.exists(), (folder / CONFIG).is_file()
        before = (folder / CONFIG).read_bytes() if ours else b""
        if not new and not folder.is_dir():
            fault = "which is a file"
        elif not new and not ours and any(folder.iterdir()):
            fault = f"which holds other files and no {CONFIG}"
        elif ours and not before.startswith(_HEAD[:40].encode()):
            fault = f"whose {CONFIG} was not written by a run"
        elif ours and not fresh and (difference := _difference(folder, values)):
            fault = f"the folder of another run ({difference})"
            wanted = "another folder, or --fresh to start over in this one"
        if fault:
            raise ConfigError("--out", "", f"{folder}, {fault}", wanted)
        folder.mkdir(parents=True, exist_ok=True)
        if ours and fresh:
            with folder_lock(folder):  # a run under way keeps what it stands on
                for path in map(folder.joinpath, _OURS):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)
        text = _HEAD.format(folder=folder.absolute()) + yaml_text(values)
        replace_atomically(folder / CONFIG, lambda file: file.write(text.encode()))
    except OSError as error:
        got = f"{folder}: {error.strerror or error}"
        raise ConfigError("--out", "", got, "a writable folder") from None

    def release() -> None:
        """Give the folder of a failed run back: as it was, or with what there is to go on."""
        if ours and not fresh:
            replace_atomically(folder / CONFIG, lambda file: file.write(before))
        names = {CONFIG, REPORT, "clock.json"}
        if {path.name for path in folder.iterdir()} <= names:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            if new:
                folder.rmdir()

    return release


def config_of(folder: Path) -> Path:
    """The config's file in a run's folder; ConfigError where there is none."""
    if not (path := folder / CONFIG).is_file():
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        raise ConfigError(str(folder), "", got, "the folder of a run, as given to --out")
    return path


def saved_experiment(folder: Path, *, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a run's folder, ready to go on; ConfigError where there is none."""
    path = config_of(folder)
    experiment = load_experiment(path, overrides=overrides)
    if f":{MASK}@" in str(getattr(experiment.backend, "storage", "")):
        got = "a URL whose password was not saved"
        wanted = "the whole URL in the environment variable GRASP_TUNE__BACKEND__STORAGE"
        raise ConfigError(str(path), "backend.storage", got, wanted)
    if difference := _difference(folder, experiment.to_dict()):
        wanted = "only keys that leave the result as it is, such as backend.workers, and of a "
        wanted += "finished run a larger budget; to change others, use run with another --out"
        raise ConfigError(str(path), "", f"a change ({difference})", wanted)
    return experiment


def saved_config(folder: Path) -> dict[str, Any]:
    """The config as stored, for showing it: a masked password stays masked."""
    # The environment is this process's, not the run's: it must not colour what was saved.
    return load_experiment(config_of(folder), environment={}).to_dict()


def check_reach(
    experiment: Experiment, config: Path, typed: Iterable[str], folder: Path | None
) -> None:
    """Refuse a config that writes outside of the run's folder, or connects: ConfigError.

    typed: given with --set: the user's own, as is what the environment says.
    folder: where the run writes; None: `out`, which must then lie below the working directory.
    """
    names = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]
    own = {name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".") for name in names}
    own |= {change.partition("=")[0].strip() for change in typed}
    for key, value in _reaching(experiment):
        mine = any(key == name or key.startswith(f"{name}.") for name in own)
        inside = folder is not None or Path(value).resolve().is_relative_to(Path.cwd().resolve())
        if not mine and not (key == "out" and inside):
            got = f"{masked(value)}, by which a run writes or connects elsewhere"
            raise ConfigError(str(config), key, got, "no such key, or --allow-outside")


def _reaching(section: Section, above: str = "") -> Iterator[tuple[str, str]]:
    """The keys that were given and by which a run writes or connects, and their values."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _reaching(value, f"{above}{name}.")
        elif value and REACHES in field.metadata:
            yield f"{above}{name}", "true" if value is True else str(value)


def _difference(folder: Path, after: dict[str, Any]) -> str:
    """The first keys in which a run's config and another differ; empty where it may go on."""
    old, new = _flat(saved_config(folder)), _flat(after)
    # A finished run may have more budget: it is extended.
    path, more = folder / "result.json", new["budget"] > old["budget"]
    if more and path.is_file() and not read_json(path, STATE_LIMIT, seal=True).get("partial"):
        new |= {key: old[key] for key in ("budget", "steps", "epochs")}
    elif new["budget"] == UNLIMITED:  # of other limits it is known what they were, not in calls
        new["budget"] = old["budget"]

    found = []
    for key in sorted(key for key in {*old, *new} if not _FREE.fullmatch(key)):
        if (was := old.get(key)) != (now := new.get(key)):
            words = ("empty" if value is None else shown(value, 40) for value in (was, now))
            found.append("{} was {}, now {}".format(key, *words))
    return "; ".join([*found[:3], "and more"][: len(found)])


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        deeper = isinstance(value, dict) and value
        found |= _flat(value, f"{prefix}{key}.") if deeper else {f"{prefix}{key}": value}
    return found
