"""What a search ends with: the chosen candidate, and what the choice is worth."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from grasp_tune.core.checkpoint_keys import Key, place_of
from grasp_tune.core.ensemble import Tally
from grasp_tune.core.errors import InputError, whole
from grasp_tune.core.records import Json, encode, record
from grasp_tune.core.tasks import Arm, Outcome, ProbeOutcome, Score, TrainOutcome

Kind = Literal["gradient", "value", "exact", "none"]
UNSAMPLED = ("window", "partial", "stationary")  # ways to choose without fresh samples


@record
class Candidate:
    """A point that might have been returned, and what is known of it."""

    key: str  # its checkpoint, or "x0"
    arm: int  # the run it comes from; 0 for x0
    base: str
    value: float  # step size, radius or distance of that run; NaN for x0
    call: int  # after how many oracle calls of the run
    average: bool  # a running average instead of an iterate
    score: float  # mean loss or norm of the mean gradient; NaN where it was not scored
    samples: int = 0
    square: float = math.nan  # mean of the squared samples
    note: str = ""  # "diverged", "lost", "dropped after round 2"

    @classmethod
    def of(cls, key: Key, arm: Arm, score: float, note: str = "") -> "Candidate":
        """Return a point of a run that no fresh sample has scored."""
        _, call, what = place_of(key)
        end = (call, what == "average", score)
        return cls(key, arm.index, arm.base, arm.value, *end, note=note)


@record
class Choice:
    """The outcome of a whole search."""

    key: str  # the chosen candidate's checkpoint, or "x0"
    by: Score
    way: str  # "resample", "race", "window", "exact", "stationary"
    candidates: tuple[Candidate, ...]  # x0 first, then by run and call
    share: float = 1.0  # the theorem holds with this share of the budget
    covered: bool = True  # the base optimizer is the one that the theorem is about
    partial: bool = False  # stopped before the end
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if all(item.key != self.key for item in self.candidates):
            raise InputError(f"the choice {self.key[:80]!r} is not among its candidates")

    @property
    def chosen(self) -> Candidate:
        """The candidate behind `key`."""
        return next(item for item in self.candidates if item.key == self.key)


def stationary_start(start: Candidate, by: Score) -> Choice:
    """Return the choice of x0 where its mean gradient is zero."""
    note = "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary"
    return Choice(start.key, by, "stationary", (start,), notes=(note,))


def start_won(rows: Sequence[Candidate]) -> str:
    """Return the note on a choice that is x0, the first of the candidates."""
    scored = [row.score for row in rows[1:] if not row.note]
    if scored and not any(map(math.isfinite, scored)):
        return "no candidate has a finite score, so x0 is returned: check loss and validation data"
    return "no run beat the start point, so x0 is returned"


def best_seen(outcomes: Iterable[Outcome]) -> float:
    """Return the smallest finite mean loss of the outcomes but scores; NaN without one."""
    seen: list[float] = []
    for outcome in outcomes:
        if isinstance(outcome, TrainOutcome):
            seen.extend(item.loss for item in outcome.segments if item.finite)
        elif isinstance(outcome, ProbeOutcome):
            seen.append(outcome.value)
    return min(filter(math.isfinite, seen), default=math.nan)


@dataclass(frozen=True, slots=True)
class Bound:
    """`factor` times the best candidate's quality, plus `additive`."""

    factor: float
    additive: float = 0.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the theory says about a choice, with measured numbers in place of unknown ones."""

    kind: Kind  # "exact": by exact values; "none": without fresh samples
    candidates: int  # n, x0 among them
    samples: int  # M, fresh oracle calls per candidate, the fewest that the choice rests on
    delta: float  # probability that the bound fails
    # What was seen in place of the constant that nobody knows, None where nothing was: the mean
    # squared distance of a gradient from its mean for Delta^2, the variance of a value for sigma^2.
    noise: float | None = None
    share: float = 1.0  # of T: the search theorem holds with T times this
    covered: bool = True  # whether the base optimizer is the one that the theorem is about

    def __post_init__(self) -> None:
        whole("candidates", self.candidates)
        whole("samples", self.samples, 0)
        if not 0.0 < self.delta < 1.0 or not 0.0 <= self.share <= 1.0:
            raise InputError(f"need 0 < delta < 1 and 0 <= share <= 1, got {self}")

    @property
    def bound(self) -> Bound | None:
        r"""The bound with the measured numbers; None where one is missing or nothing was sampled.

        Lemmas 2 and 9 of Attia and Koren, as the paper restates them: with probability $1-\delta$,
        (1) $\|\nabla\ell(\bar x)\|^2 \le 4 \min_i \|\nabla\ell(x_i)\|^2
        + 24(1 + 3\log(n/\delta))\Delta^2/M$ for the choice by the norm of the mean gradient, and
        (2) $\ell(\bar x) \le \min_i \ell(x_i) + \sqrt{8\sigma^2\log(2n/\delta)/M}$ for the one by
        the mean value. In the paper $\sigma$ bounds every deviation, not only the usual one.
        """
        if self.kind == "exact":
            return Bound(1.0)
        noise, chance = self.noise, self.candidates / self.delta
        if self.kind == "none" or self.samples < 1 or noise is None or not math.isfinite(noise):
            return None
        if self.kind == "gradient":
            return Bound(4.0, 24.0 * (1.0 + 3.0 * math.log(chance)) * noise / self.samples)  # (1)
        return Bound(1.0, math.sqrt(8.0 * noise * math.log(2.0 * chance) / self.samples))  # (2)

    @property
    def text(self) -> str:
        """The certificate in plain words."""
        bound = self.bound
        if self.kind == "exact":
            choice = f"The best of {self.candidates} candidates was chosen by exact values."
        elif self.kind == "none" or self.samples < 1:
            choice = "The choice rests on no fresh samples, so the theory says nothing about it."
        elif bound is None:
            choice = "The noise was not measured, so no bound for the choice can be estimated."
        else:
            what = "squared gradient norm" if self.kind == "gradient" else "loss"
            times = "" if bound.factor == 1.0 else f"{bound.factor:g} times "
            choice = (
                f"Estimate: with probability {1.0 - self.delta:.4g}, the {what} of the returned "
                f"point is at most {times}that of the best of {self.candidates} candidates plus "
                f"{bound.additive:.4g}. The last number takes measured noise for its unknown bound."
            )
        scope = "The paper's theorem covers the search with the whole budget."
        if not self.covered:
            words = "The base optimizer or the choice is not the paper's"
            scope = f"{words}: its theorem does not apply."
        elif not self.share:
            scope = "No part of the budget follows the paper's plan, so its theorem does not apply."
        elif self.share < 1.0:
            own = f"its own sweep, run with {self.share:.4g} of the budget; that point took part in"
            scope = f"The paper's theorem covers the choice of {own} the choice."
        return f"{choice} {scope}"

    def to_dict(self) -> dict[str, Json]:
        """Return the certificate as JSON values, with its bound and its words for readers."""
        return {**encode(self), "bound": encode(self.bound), "text": self.text}


def certify(choice: Choice, delta: float) -> Certificate:
    """Return the certificate of a choice; `delta` is the probability that its bound fails.

    The largest noise among the candidates stands for its bound over all points.
    """
    scored = [row for row in choice.candidates if row.samples and math.isfinite(row.score)]
    ways: dict[str, Kind] = {"exact": "exact", **dict.fromkeys(UNSAMPLED, "none")}
    finalists = [row for row in scored if not row.note and row.arm] or scored
    samples = min((row.samples for row in finalists), default=0)
    spreads = [Tally(row.samples, row.score, row.square).variance for row in scored]
    noise, n = max(filter(math.isfinite, spreads), default=None), max(1, len(scored))
    kind = ways.get(choice.way, choice.by)
    return Certificate(kind, n, samples, delta, noise, choice.share, choice.covered)
