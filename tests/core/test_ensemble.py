"""The choice among candidates: hand-worked races, and how often the guarantees fail."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.choice import Certificate
from grasp_tune.core.ensemble import (
    HalvingRound,
    Tally,
    best,
    halving,
    paired_samples,
    ranking,
    survivors,
    tallied,
    uniform_samples,
)
from grasp_tune.core.tasks import Sample, SampleOutcome


def test_the_smallest_wins_ties_go_to_the_first_and_the_non_finite_lose() -> None:
    assert best([math.nan, 3.0, 2.0, 2.0, -math.inf, math.inf]) == 2
    assert ranking([math.nan, 3.0, 2.0, 2.0, -math.inf]) == [2, 3, 1, 0, 4]


def test_a_tally_by_hand() -> None:
    # Losses 1, 2, 6: mean 3, mean square 41/3, variance around the mean ((4 + 1 + 9) / 2) = 7.
    first, second = Tally(1, 1.0, 1.0), Tally(2, 4.0, 20.0)
    both = first.merged(second)
    assert both.count == 3
    assert both.mean == pytest.approx(3.0)
    assert both.variance == pytest.approx(7.0)
    assert math.isnan(first.variance)


def test_losses_add_up_over_rounds_and_gradient_norms_do_not() -> None:
    tallies: dict[str, Tally] = {}
    tallied([SampleOutcome("a", 2, 4.0, 20.0)], tallies, "value")
    tallied([SampleOutcome("a", 1, 1.0, 1.0)], tallies, "value")
    assert (tallies["a"].count, tallies["a"].mean) == (3, pytest.approx(3.0))
    tallied([SampleOutcome("a", 5, 0.7, 1.0)], tallies, "gradient")
    assert tallies["a"] == Tally(5, 0.7, 1.0)


def test_halving_by_hand() -> None:
    # 11 candidates: rounds of 11, 6, 3, 2; 240 calls are 60 a round: 60 // 11 = 5, 10, 20, 30.
    assert halving(11, 240) == (
        HalvingRound(11, 5),
        HalvingRound(6, 10),
        HalvingRound(3, 20),
        HalvingRound(2, 30),
    )
    assert halving(1, 7) == (HalvingRound(1, 7),)
    assert halving(5, 4) == ()  # not one sample each
    assert halving(5, 9) == (HalvingRound(5, 1),)  # 9 calls are 3 a round, too few for 5: one round


@given(st.integers(1, 300), st.integers(0, 10_000))
def test_a_race_never_costs_more_than_it_may(count: int, calls: int) -> None:
    rungs = halving(count, calls)
    assert sum(rung.survivors * rung.samples for rung in rungs) <= calls
    assert all(rung.samples >= 1 for rung in rungs) or not rungs or calls < count
    sizes = [rung.survivors for rung in rungs]
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[0] == count


def test_paired_candidates_share_their_samples_and_uniform_ones_share_none() -> None:
    assert paired_samples(["a", "b"], 3, 7) == (Sample("a", 3, 7), Sample("b", 3, 7))
    assert uniform_samples(["a", "b", "c"], 4, first=10) == (
        Sample("a", 10, 14),
        Sample("b", 14, 18),
        Sample("c", 18, 22),
    )


def test_survivors_keep_their_order_and_drop_the_non_finite_first() -> None:
    tallies = {"a": Tally(1, 3.0, 9.0), "b": Tally(1, math.nan, 1.0), "c": Tally(1, 1.0, 1.0)}
    assert survivors(["a", "b", "c", "d"], tallies, 2) == ["a", "c"]


# -- how often the guarantees fail ---------------------------------------------------------------

RUNS, DELTA = 400, 0.1
# A rate of delta gives RUNS * delta = 40 failures, standard deviation 6: 58 is three of them above.
ALLOWED = RUNS * DELTA + 3 * math.sqrt(RUNS * DELTA * (1 - DELTA))


def test_the_value_choice_fails_no_more_often_than_promised() -> None:
    certified = Certificate("value", 12, 50, DELTA, noise=1.0).bound
    assert certified is not None
    draws = np.random.default_rng(3)
    failures = 0
    for _ in range(RUNS):
        truth = draws.uniform(0.0, 0.3, size=12)
        noise = draws.uniform(-1.0, 1.0, size=(12, 50))  # bounded by sigma = 1
        chosen = best(list((truth[:, None] + noise).mean(axis=1)))
        bound = truth.min() + certified.additive
        failures += truth[chosen] > bound
    assert failures <= ALLOWED


def test_the_gradient_choice_fails_no_more_often_than_promised() -> None:
    certified = Certificate("gradient", 10, 20, DELTA, noise=1.0).bound
    assert certified is not None
    draws = np.random.default_rng(4)
    failures = 0
    for _ in range(RUNS):
        truth = draws.normal(size=(10, 5)) * draws.uniform(0.05, 1.0, size=(10, 1))
        noise = draws.normal(size=(10, 20, 5))
        noise /= np.linalg.norm(noise, axis=2, keepdims=True)  # |noise| = Delta = 1
        norms = np.linalg.norm((truth[:, None] + noise).mean(axis=1), axis=1)
        squares = (truth**2).sum(axis=1)
        bound = 4 * squares.min() + certified.additive
        failures += squares[best(list(norms))] > bound
    assert failures <= ALLOWED


def test_racing_on_paired_samples_needs_a_fifth_of_the_calls_for_the_same_choice() -> None:
    """Forty candidates whose noise is mostly shared, as it is with the same minibatches."""
    draws = np.random.default_rng(6)
    uniform_loss, race_loss = 0.0, 0.0
    samples, calls = 50, 40 * 50
    for _ in range(200):
        truth = 0.3 + 0.02 * np.arange(40) ** 1.5 / 10
        shared = draws.normal(size=400)
        own = draws.normal(size=(40, 400)) * 0.1

        def loss(at: int, start: int, stop: int) -> float:
            paired = shared[start:stop] + own[at, start:stop]  # noqa: B023
            return float(truth[at] + 0.5 * paired.mean())  # noqa: B023

        independent = truth + 0.5 * draws.normal(size=40) * math.sqrt(1.01 / samples)
        uniform_loss += truth[best(list(independent))]
        keys, used, spent = [str(at) for at in range(40)], 0, 0
        tallies: dict[str, Tally] = {}
        for rung in halving(40, calls // 5):
            keys = survivors(keys, tallies, rung.survivors) if tallies else keys
            for key in keys:
                mean = loss(int(key), used, used + rung.samples)
                tallied([SampleOutcome(key, rung.samples, mean, mean * mean)], tallies, "value")
            used += rung.samples
            spent += rung.samples * len(keys)
        assert spent <= calls // 5
        race_loss += truth[int(survivors(keys, tallies, 1)[0])]
    assert race_loss <= uniform_loss
