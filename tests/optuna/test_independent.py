"""Values of other parameters: inside their ranges, spread, and addressed."""

import optuna
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from grasp_tune.optuna.independent import AddressedSampler, value_at

shares = st.floats(0.0, 1.0, exclude_max=True)


@given(shares, st.floats(-1e6, 1e6), st.floats(0.0, 1e6))
def test_floats_stay_in_their_range(share: float, low: float, width: float) -> None:
    value = value_at(FloatDistribution(low, low + width), share)
    assert low <= value <= low + width
    assert type(value) is float


@given(shares, st.integers(-50, 50), st.integers(0, 9), st.integers(1, 7))
def test_integers_stay_on_their_steps(share: float, low: int, steps: int, step: int) -> None:
    distribution = IntDistribution(low, low + steps * step, step=step)
    value = value_at(distribution, share)
    assert low <= value <= distribution.high
    assert (value - low) % step == 0
    assert type(value) is int


@given(shares, st.integers(1, 50), st.integers(0, 5000))
def test_logarithmic_integers_stay_in_their_range(share: float, low: int, width: int) -> None:
    assert low <= value_at(IntDistribution(low, low + width, log=True), share) <= low + width


def test_values_by_hand() -> None:
    assert value_at(FloatDistribution(3.0, 7.0), 0.25) == 4.0
    assert abs(value_at(FloatDistribution(1e-3, 1e3, log=True), 0.5) - 1.0) < 1e-12
    assert value_at(FloatDistribution(-1.0, 1.0, step=0.5), 0.79) == 0.5  # the fourth of five
    assert value_at(IntDistribution(10, 20, step=5), 0.99) == 20
    assert value_at(CategoricalDistribution(["a", "b", "c"]), 0.34) == "b"


def test_a_value_depends_on_seed_trial_and_name_alone() -> None:
    study = optuna.create_study()
    trials = [study.ask() for _ in range(2)]
    frozen = [study._storage.get_trial(trial._trial_id) for trial in trials]
    wide = FloatDistribution(0.0, 1.0)

    def draw(seed: int, trial: int, name: str) -> float:
        return float(AddressedSampler(seed).sample_independent(study, frozen[trial], name, wide))

    assert draw(4, 0, "m") == draw(4, 0, "m")
    assert len({draw(4, 0, "m"), draw(5, 0, "m"), draw(4, 1, "m"), draw(4, 0, "n")}) == 4
