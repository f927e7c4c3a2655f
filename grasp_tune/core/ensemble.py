"""The choice among candidates: how many fresh samples each of them gets, and which one wins."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grasp_tune.core.tasks import Sample, SampleOutcome, Score


@dataclass(frozen=True, slots=True)
class Tally:
    """Running sums of one candidate's samples: never the samples themselves."""

    count: int = 0
    mean: float = math.nan  # mean loss, or norm of the mean gradient
    square: float = math.nan  # mean of the squared losses, or mean of |g|^2

    @property
    def variance(self) -> float:
        """Variance of one sample around the mean, at least 0; NaN below two samples."""
        if self.count < 2:
            return math.nan
        return max(0.0, self.square - self.mean * self.mean) * self.count / (self.count - 1)

    def merged(self, other: "Tally") -> "Tally":
        """Return the sums over both sets of losses (gradient norms do not add up)."""
        total = self.count + other.count
        old, new = self.count / total, other.count / total
        mean, square = old * self.mean + new * other.mean, old * self.square + new * other.square
        return Tally(total, mean, square)


def ranking(scores: Sequence[float]) -> list[int]:
    """Return all positions, best first; ties keep their order, non-finite ones come last."""
    order = range(len(scores))
    return sorted(order, key=lambda at: scores[at] if math.isfinite(scores[at]) else math.inf)


def best(scores: Sequence[float]) -> int:
    """Return the position of the smallest score; ties go to the first, non-finite ones lose."""
    return ranking(scores)[0]


def uniform_samples(keys: Sequence[str], samples: int, first: int = 0) -> tuple[Sample, ...]:
    """Return `samples` independent samples for each candidate: disjoint ranges of the stream.

    Algorithm 2, line 10, and Algorithm 3, line 6: every candidate is sampled independently.
    """
    starts = (first + samples * at for at in range(len(keys)))
    return tuple(Sample(key, at, at + samples) for key, at in zip(keys, starts, strict=True))


def paired_samples(keys: Iterable[str], start: int, stop: int) -> tuple[Sample, ...]:
    """Return the same range of the stream for every candidate, so that shared noise cancels."""
    return tuple(Sample(key, start, stop) for key in keys)


class HalvingRound(NamedTuple):
    """One round of a race: how many are still in it, and how many samples each gets."""

    survivors: int
    samples: int


def halving(candidates: int, calls: int) -> tuple[HalvingRound, ...]:
    r"""Return the rounds of sequential halving for a total of at most `calls` samples.

    (1) $R = \lceil \log_2 n \rceil$ rounds, at least one, each with the same share of the calls;
    (2) of the $n_r$ candidates of a round the better half, rounded up, goes on. Needs neither a
    variance nor a range of the losses. Where the calls do not reach for a sample of each candidate
    in every round, there is one uniform round; where they do not reach for that, none.
    """
    sizes = [candidates]
    while sizes[-1] > 2:  # two candidates need one round, not a round of one
        sizes.append((sizes[-1] + 1) // 2)  # (2)
    share = calls // len(sizes)  # (1)
    rounds = [HalvingRound(size, share // size) for size in sizes]
    if rounds[0].samples >= 1:
        return tuple(rounds)
    return (HalvingRound(candidates, calls // candidates),) if calls >= candidates else ()


def survivors(keys: Sequence[str], tallies: Mapping[str, Tally], count: int) -> list[str]:
    """Return the `count` best keys in their old order; the non-finite go first."""
    scores = [tallies[key].mean if key in tallies else math.nan for key in keys]
    chosen = set(ranking(scores)[:count])
    return [key for at, key in enumerate(keys) if at in chosen]


def tallied(
    items: Iterable[SampleOutcome], tallies: dict[str, Tally] | None = None, by: Score = "value"
) -> dict[str, Tally]:
    """Return the tallies with these new samples added, by candidate; given ones are changed.

    Losses are averaged over all rounds; the norm of a mean gradient is that of the last round.
    """
    tallies = {} if tallies is None else tallies
    for item in items:
        new, old = Tally(item.count, item.mean, item.square), tallies.get(item.key)
        tallies[item.key] = old.merged(new) if by == "value" and old is not None else new
    return tallies
