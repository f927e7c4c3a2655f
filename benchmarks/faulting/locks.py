"""Two drivers for one folder."""

import json
import os
import socket
import time
from pathlib import Path

from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import Sweep, finish, row, same, start
from grasp_tune.runtime.lock import NAME as MARKER


def two_drivers(folder: Path, backend: str = "local") -> Row:
    """A second driver is refused; once the first is killed, the next one resumes at once."""
    sweep = Sweep(str(folder / "run"), budget=1500, fused=backend != "local", backend=backend)
    first = start(sweep)
    marker = folder / "run" / MARKER
    holder = {"pid": 0}
    for _ in range(600):
        if marker.exists() and (holder := json.loads(marker.read_text()))["pid"]:
            break
        time.sleep(0.1)
    expect(holder["pid"] == first.pid, f"the lock names {holder}, not process {first.pid}")
    code, found = finish(sweep)
    sentence = f"in use by process {first.pid} on {socket.gethostname()}"
    expect(code == 3 and sentence in found["error"], f"code {code}: {found}")
    expect(first.is_alive(), "the first driver had ended before the second came")
    first.kill()
    first.join()
    code, found = finish(sweep)
    expect(code == 0, f"the stale lock was not recognised: {found}")
    same(sweep, found)
    return row(
        "second driver on the folder; then the first is killed",
        sweep,
        found,
        "refused with process and host; stale lock recognised, same choice",
    )


def lock_text_of_a_stranger(folder: Path) -> Row:
    """A folder that nobody uses can be used, whatever its lock file contains."""
    stranger = b'{"pid": 1, "host": "elsewhere"}'
    for content in (b"", b"\xff\xfe", b"[]", b'{"pid": "x"}', stranger, bytes(256)):
        run = folder / f"run-{content.hex()[:20]}"
        run.mkdir(parents=True)
        (run / MARKER).write_bytes(content.ljust(256) if content else b"")
        code, found = finish(Sweep(str(run)))
        expect(code == 0, f"lock {content!r}: {found}")
    expect(os.path.exists(folder), "the folder is gone")
    return Row("marker with any text, held by nobody", "local", "used as if it were new")
