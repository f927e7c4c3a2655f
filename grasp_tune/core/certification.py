"""From a choice to its certificate: measured numbers in the place of the unknown ones."""

import math

from grasp_tune.core.certificate import Certificate, Kind, Measured
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import Tally
from grasp_tune.core.spec import SweepSpec

_DELTA = 0.05  # for the methods without an input of that name


def certify(spec: SweepSpec, choice: Choice) -> Certificate:
    """Return the certificate of a choice.

    The largest noise among the candidates stands for its bound over all points; the candidates
    that a race dropped early are counted with the fewest samples that the choice rests on.
    """
    scored = [row for row in choice.candidates if row.samples and math.isfinite(row.score)]
    delta = getattr(spec.method, "delta", _DELTA)
    kind: Kind = choice.by
    if choice.way == "exact":
        kind = "exact"
    elif choice.way in ("window", "partial", "stationary"):
        kind = "none"
    finalists = [row for row in scored if not row.note and row.arm] or scored
    samples = min((row.samples for row in finalists), default=0)
    return Certificate(
        kind=kind,
        candidates=max(1, len(scored)),
        samples=samples,
        delta=delta,
        measured=_measured(scored, choice.by),
        share=choice.share,
        covered=choice.covered,
    )


def _measured(rows: list[Candidate], by: str) -> Measured:
    spreads = {row.key: Tally(row.samples, row.score, row.square).variance for row in rows}
    known = [row for row in rows if math.isfinite(spreads[row.key])]
    if not known:
        return Measured()
    largest = max(spreads[row.key] for row in known)
    if by == "gradient":
        return Measured(noise=largest)
    best = min(known, key=lambda row: row.score)
    floor = spreads[best.key]
    slopes = [
        (spreads[row.key] - floor) / (row.score - best.score)
        for row in known
        if row.score > best.score
    ]
    return Measured(variance=largest, V0=floor, V1=max([0.0, *slopes]))
