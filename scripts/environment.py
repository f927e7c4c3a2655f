"""Makes a virtual environment that holds this checkout and some of its extras.

    python scripts/environment.py FOLDER EXTRAS      e.g. .venv all,dev

Standard library only, because it runs before anything is installed. What is installed is written
to a stamp inside the environment, last of all and in one step. The stamp is removed before pip
starts, so whatever was interrupted, however rudely, leaves no stamp, and an environment without
one is made anew. A second call with nothing changed reads the stamp and is done.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "constraints.txt")
OWNER = "made-by-grasp-tune-scripts"  # without this file the folder is someone else's
STAMP = "grasp-tune-stamp.json"


@dataclass(frozen=True)
class Stamp:
    """What an environment was made from."""

    inputs: str  # hash of the files that decide what is installed
    python: str  # the interpreter's version
    root: str  # the checkout it is an editable installation of
    extras: frozenset[str]

    def serves(self, wanted: "Stamp") -> bool:
        """Whether an environment with this stamp already holds all that is wanted."""
        return self.inputs == wanted.inputs and self.fits(wanted) and self.extras >= wanted.extras

    def fits(self, wanted: "Stamp") -> bool:
        """Whether such an environment can be brought up to date instead of being made anew."""
        return self.python == wanted.python and self.root == wanted.root

    def write(self, path: Path) -> None:
        """Puts the stamp in place as a whole or not at all."""
        text = json.dumps({**vars(self), "extras": sorted(self.extras)}, indent=1)
        partial = path.with_suffix(".partial")
        partial.write_text(text + "\n")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Stamp | None":
        """The stamp at `path`, or None if there is none that can be understood."""
        try:
            fields = json.loads(path.read_text())
            return cls(**{**fields, "extras": frozenset(fields["extras"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None


def wanted_stamp(root: Path, extras: str) -> Stamp:
    """The stamp that an environment with these comma-separated extras will bear."""
    digest = hashlib.sha256()
    for name in INPUTS:
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return Stamp(
        inputs=digest.hexdigest(),
        python=sys.version,
        root=str(root),
        extras=frozenset(filter(None, extras.split(","))),
    )


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds a lock that the system takes back if this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this environment", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_empty(folder: Path) -> None:
    """Makes a fresh environment, in place of an earlier one that these scripts made."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / OWNER).exists():
            raise SystemExit(
                f"{folder} exists and was not made by these scripts; move it away, or choose"
                " another place: GRASP_TUNE_VENV=/some/folder"
            )
        doomed = [path for path in folder.iterdir() if path.name != OWNER]
        for path in doomed:  # the mark goes last: a removal cut short is still recognised
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER).touch()
    venv.create(folder, with_pip=True, symlinks=True)


def install(folder: Path, extras: frozenset[str]) -> None:
    """Installs the checkout, editable, with the versions of the constraints file."""
    target = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
    command = [
        *(str(folder / "bin" / "python"), "-m", "pip", "install"),
        *("--quiet", "--disable-pip-version-check", "--no-input"),
        *("--constraint", str(ROOT / "constraints.txt"), "--editable", target),
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise SystemExit(f"pip could not install {target}; its words are above")


def works(folder: Path) -> bool:
    """Whether the environment's interpreter still starts (the one it links to may be gone)."""
    with contextlib.suppress(OSError):
        command = [str(folder / "bin" / "python"), "-c", ""]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def prepare(folder: Path, extras: str) -> None:
    """Brings the environment in `folder` to hold at least these extras."""
    wanted = wanted_stamp(ROOT, extras)
    stamp = folder / STAMP
    with exclusive(folder.with_name(folder.name + ".lock")):
        found = Stamp.read(stamp)
        usable = found is not None and found.fits(wanted) and works(folder)
        if found is not None and usable and found.serves(wanted):
            return
        stamp.unlink(missing_ok=True)
        if found is None or not usable:
            print(f"making {folder} (minutes the first time, then seconds)", file=sys.stderr)
            make_empty(folder)
        else:
            print(f"bringing {folder} up to date", file=sys.stderr)
            wanted = Stamp(wanted.inputs, wanted.python, wanted.root, wanted.extras | found.extras)
        install(folder, wanted.extras)
        wanted.write(stamp)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: environment.py FOLDER EXTRAS")
    prepare(Path(sys.argv[1]).absolute(), sys.argv[2])
