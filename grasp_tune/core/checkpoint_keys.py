"""The keys of checkpoints: which run, after how many calls, and what is kept there.

Tasks name every checkpoint that they read or write by such a key, so a repeated task writes the
same files again. Stores and JSON hold keys as text; `str` and `Key.parse` are the only way between
the two.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self

from grasp_tune.core.errors import InputError

_TEXT = re.compile(
    r"(?P<start>x0)|(?P<moments>probe-moments)|probe-part(?P<part>\d+)"
    r"|run(?P<run>\d+)-(?P<call>\d+)(?:-(?P<state>state)|-average(?P<average>[-+.e\d]+))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One checkpoint.

    what: `start` is x0, the candidate that costs nothing; `iterate` and `average` are candidates of
        a run; `state` is all that a run needs to go on; `part` is what one part of a split probe
        leaves; `moments` is the largest gradient of each coordinate in the probe.
    """

    what: Literal["start", "iterate", "average", "state", "part", "moments"]
    run: int = 0
    call: int = 0  # oracle calls of the run
    gamma: float = 0.0  # exponent of an average
    part: int = 0

    def __str__(self) -> str:
        run = f"run{self.run:03d}-{self.call:09d}"
        return {
            "start": "x0",
            "moments": "probe-moments",
            "part": f"probe-part{self.part:03d}",
            "iterate": run,
            "state": f"{run}-state",
            "average": f"{run}-average{self.gamma:g}",
        }[self.what]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key that `str` wrote; InputError where it is none."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InputError(f"{text[:80]!r} is no key of a checkpoint")
        given = {name: value for name, value in found.groupdict("").items() if value}
        what = next((w for w in ("start", "moments", "part", "average", "state") if w in given), "")
        numbers = {name: int(given[name]) for name in ("run", "call", "part") if name in given}
        return cls(what or "iterate", gamma=float(given.get("average", 0.0)), **numbers)  # type: ignore[arg-type]


X0 = Key("start")
START = str(X0)  # as candidates and stores know it
MOMENTS = Key("moments")


def iterate_key(run: int, call: int) -> Key:
    """Return the key of the iterate of a run after `call` oracle calls."""
    return Key("iterate", run, call)


def average_key(run: int, call: int, gamma: float) -> Key:
    """Return the key of the running average with exponent `gamma` after `call` calls."""
    return Key("average", run, call, gamma=gamma)


def state_key(run: int, call: int) -> Key:
    """Return the key of the state from which a run goes on after `call` calls."""
    return Key("state", run, call)


def part_key(part: int) -> Key:
    """Return the key of the sums that one part of a split probe leaves."""
    return Key("part", part=part)
