"""A run's folder: which config it belongs to, what is in it, and starting over.

config.yaml        the resolved config, paths absolute, passwords masked
state.json, checkpoints/, calls, ray/    what a run needs to go on after a fault
result.json, model.safetensors           the result
run.json, report.html                    what people read
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.loader import CONFIG, load_experiment
from grasp_tune.config.paths import check_no_mask, masked_config
from grasp_tune.config.schema import Experiment
from grasp_tune.runtime.files import replace_atomically
from grasp_tune.runtime.lock import folder_lock

REPORT = "report.html"
_OURS = [
    "config.yaml",
    "state.json",
    "state.previous.json",
    "state.damaged.json",
    "calls",
    "clock.json",
    "result.json",
    "model.safetensors",
    "run.json",
    "report.html",
    "comparison.json",
    "comparison.html",
    "checkpoints",
    "records",
    "ray",
    "artifacts",
    "study.journal",
]
# Keys that may change between a run and its continuation: the result does not depend on them.
_FREE = {"title", "out", "backend.workers", "backend.threads", "backend.address"}
_FREE |= {"backend.cpus_per_task", "backend.gpus_per_task", "backend.storage"}
_FREE |= {"backend.study", "backend.max_failures"}
_HEAD = """\
# The config of this run, every key filled in. To go on after a fault, from anywhere:
#   grasp-tune resume {folder}
"""


def claim(folder: Path, experiment: Experiment, *, fresh: bool = False) -> None:
    """Make the folder this experiment's, with its config; ConfigError where it is another's.

    fresh: remove an earlier run first, whichever it was; files of other names stay.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError("--out", "", f"{folder}, which is a file", "a folder, new or of this run")
    if (folder / CONFIG).exists():
        if fresh:
            with folder_lock(folder):  # a run under way keeps what it stands on
                for path in map(folder.joinpath, _OURS):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)
        elif difference := _difference(saved_config(folder), masked_config(experiment)):
            raise ConfigError(
                "--out",
                "",
                f"{folder}, the folder of another run ({difference})",
                "another folder, or --fresh to start over in this one",
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            "--out",
            "",
            f"{folder}, which holds other files and no {CONFIG}",
            "an empty or new folder, or one of an earlier run",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = _HEAD.format(folder=folder.absolute()) + yaml_text(masked_config(experiment))
        replace_atomically(folder / CONFIG, lambda file: file.write(text.encode()))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("--out", "", f"{folder}: {reason}", "a writable folder") from None


def saved_experiment(folder: Path, overrides: tuple[str, ...] = ()) -> Experiment:
    """The experiment of a run's folder, ready to go on; ConfigError where there is none."""
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(
            str(folder),
            "",
            f"a folder without {CONFIG}" if folder.is_dir() else "no such folder",
            "the folder of a run, as given to --out",
        )
    experiment = load_experiment(path, overrides=overrides)
    check_no_mask(experiment, str(path))
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


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first keys in which two configs differ, in words; empty where a run may go on."""
    old, new = _flat(before), _flat(after)
    found = [
        f"{key} was {shown(old.get(key), 40)}, now {shown(new.get(key), 40)}"
        for key in sorted({*old, *new} - _FREE)
        if old.get(key) != new.get(key)
    ]
    return "; ".join(found[:3]) + ("; and more" if len(found) > 3 else "")


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def yaml_text(values: dict[str, Any]) -> str:
    """The mapping as YAML that the loader reads back to the same values."""
    dumped = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    return str(dumped)


class _Dumper(yaml.SafeDumper):
    """Plain YAML without anchors, which make a config hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Quoted unless plainly a word, since our reader's idea of numbers is YAML 1.2's.
    plain = value.replace("_", "").replace("-", "").isalpha() and value.lower() not in _RESERVED
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_Dumper.add_representer(str, _text)
