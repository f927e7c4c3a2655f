"""Headless Chromium: a page's elements after its scripts ran, and what it said to the console."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=4000",
)


@dataclass(frozen=True)
class Seen:
    """A page as the browser has it."""

    elements: str
    console: tuple[str, ...]


def look(page: Path, *flags: str) -> Seen:
    """Open the page and wait until its scripts have run."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine; install the package chromium")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                program,
                *_FLAGS,
                *flags,
                f"--user-data-dir={profile}",
                "--dump-dom",
                page.absolute().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
    console = re.findall(r"^.*CONSOLE.*$", done.stderr, re.MULTILINE)
    return Seen(done.stdout, tuple(console))
