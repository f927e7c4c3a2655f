"""The keys of checkpoints: which run, after how many calls, and what is kept there."""

import re

from grasp_tune.core.errors import InputError

Key = str  # one checkpoint, as the functions below call it
START: Key = "x0"  # the candidate that costs nothing
MOMENTS: Key = "probe-moments"  # the largest gradient of each coordinate in the probe
_KEY = re.compile(
    r"x0|probe-(?:moments|part\d+)|run(\d+)-(\d+)(?:-(state)|-(average)[-+.e\d]+)?", re.ASCII
)


def place_of(key: Key) -> tuple[int, int, str]:
    """Return the run of a checkpoint, its oracle calls there, and what it is.

    That is `state`, all that a run needs to go on, `iterate` or `average`. Of none: (0, 0, "").
    """
    if (found := _KEY.fullmatch(key)) is None:
        raise InputError(f"{key[:80]!r} is no key of a checkpoint")
    run, call, state, average = found.groups()
    return (int(run), int(call), state or average or "iterate") if run else (0, 0, "")


def iterate_key(run: int, call: int) -> Key:
    return f"run{run:03d}-{call:09d}"


def average_key(run: int, call: int, gamma: float) -> Key:
    return f"{iterate_key(run, call)}-average{gamma:g}"


def state_key(run: int, call: int) -> Key:
    return f"{iterate_key(run, call)}-state"


def part_key(part: int) -> Key:
    return f"probe-part{part:03d}"
