"""The final choice, simulated on made-up candidates."""

import numpy as np

from benchmarks.choosing import Pool, race_choice, simulate, uniform_choice


def pool(noise: float, shared: float) -> Pool:
    """Sixteen candidates whose losses are 1.00, 1.02, ... with own and with common noise."""
    rng = np.random.default_rng(8)
    truth = 1.0 + 0.02 * np.arange(16)
    samples = truth[:, None] + noise * rng.normal(size=(16, 4000))
    samples += shared * rng.normal(size=4000)
    return Pool("made", "value", truth, samples, uniform=60)


def test_without_noise_both_ways_choose_the_best() -> None:
    rng = np.random.default_rng(1)
    assert uniform_choice(pool(0.0, 0.0), 1, rng) == 0
    assert race_choice(pool(0.0, 0.0), 16 * 4, rng) == 0


def test_pairing_makes_shared_noise_harmless() -> None:
    costs = simulate(pool(noise=0.01, shared=0.5), trials=200)
    uniform = next(cost for cost in costs if cost.way == "uniform")
    race = next(cost for cost in costs if cost.way == "race" and cost.share == 0.2)
    # Independent samples: the noise of a mean is 0.5 / sqrt(60) = 0.065, three steps of the grid.
    assert uniform.failures > 30.0
    assert race.failures < 5.0
    assert race.calls == 16 * 60 // 5
