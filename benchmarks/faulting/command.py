"""Runs the cases one after the other and writes the page."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.faulting.cases import Case, every_case
from benchmarks.faulting.disk import NoMount
from benchmarks.faulting.page import page_text
from benchmarks.faulting.row import Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested cases; return 0 if every case ended as it must."""
    parser = argparse.ArgumentParser(prog="benchmarks/faults", description=__doc__)
    groups = sorted({case.group for case in every_case()})
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of: {', '.join(groups)}")
    parser.add_argument("--log", type=Path, help="where the noise of dying processes goes")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(groups):
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    cases = [case for case in every_case() if not options.groups or case.group in options.groups]
    found, broken, begin = list[tuple[str, Row]](), 0, time.monotonic()
    with _noise_in(options.log) as out:
        for number, case in enumerate(cases, start=1):
            row, seconds, sound = _run(case)
            broken += not sound
            found.append((case.group, row))
            word = "" if sound else "BROKEN: "
            line = f"[{number}/{len(cases)}] {seconds:5.1f} s  {case.name}: {word}{row.outcome}"
            print(line, file=out, flush=True)
    text = page_text(found, (time.monotonic() - begin) / 60, len(cases) - broken)
    if options.groups:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"wrote {PAGE.relative_to(ROOT)}")
    print(f"{len(cases) - broken} of {len(cases)} cases ended as they must")
    return 1 if broken else 0


def _run(case: Case) -> tuple[Row, float, bool]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grasp-faults-", ignore_cleanup_errors=True) as folder:
        try:
            row, sound = case.run(Path(folder)), True
        except NoMount as reason:
            row, sound = Row(case.name, "local", f"not run: {reason}"), True
        except Exception as error:
            row, sound = Row(case.name, case.group, f"BROKEN: {error}"), False
    return row, time.monotonic() - begin, sound


@contextmanager
def _noise_in(log: Path | None) -> Iterator[TextIO]:
    """Redirect all output of this process and its children to a file; yield the real output."""
    target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    streams = sys.stdout, sys.stderr
    real = [os.dup(stream.fileno()) for stream in streams]
    for stream in streams:
        stream.flush()
        os.dup2(target, stream.fileno())
    os.close(target)
    try:
        with os.fdopen(os.dup(real[0]), "w") as out:
            yield out
    finally:
        for stream, kept in zip(streams, real, strict=True):
            stream.flush()
            os.dup2(kept, stream.fileno())
            os.close(kept)
