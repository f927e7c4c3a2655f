"""Hindsight: the best of the rates, by the mean over the seeds."""

import pytest

from benchmarks.hindsight import LEAST, RATES, SWEEP, hindsight
from tests.benchmarks.test_standings import record


def test_the_best_rate_is_that_of_the_smallest_mean_loss() -> None:
    names = list(SWEEP)
    # The third rate is best in seed 10 alone, the fourth on the mean: 0.3 against 0.5.
    losses = dict.fromkeys(names, (1.0, 1.0)) | {names[2]: (0.1, 0.9), names[3]: (0.2, 0.4)}
    records = [
        record("iris", name, seed, loss)
        for name, pair in losses.items()
        for seed, loss in zip((10, 11), pair, strict=True)
    ]
    ((loss, method),) = hindsight(records, ["iris"]).values()
    assert loss == pytest.approx(0.3)
    assert method == "adamw-cosine" == names[RATES.index(1e-3)]


def test_a_workload_with_too_few_rates_has_none() -> None:
    records = [record("iris", name, 10, 0.5) for name in list(SWEEP)[: LEAST - 1]]
    assert hindsight(records, ["iris"]) == {}
