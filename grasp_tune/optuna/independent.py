"""Values for the other parameters of an objective: a function of seed, trial and name.

With Optuna's own random sampler the values depend on which thread or process came first, and its
seed is given up when there are several. Here nothing is consumed, so nothing can get out of step.
"""

from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from grasp_tune.core.random_streams import words


class AddressedSampler(BaseSampler):
    """Uniform values (log-uniform where a range is logarithmic), the same wherever a trial runs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return nothing: every parameter is drawn by itself."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing, as above."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value inside the distribution."""
        (word,) = words(self.seed, "independent", trial.number, param_name, count=1).tolist()
        return value_at(param_distribution, (word >> 11) / 2**53)


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the value that lies `share` (0 to 1, 1 excluded) of the way through."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(share * len(distribution.choices))]
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise ValueError(f"unknown distribution {distribution!r}")
    low, high = distribution.low, distribution.high
    if isinstance(distribution, IntDistribution):
        if not distribution.log:
            count = (high - low) // distribution.step + 1
            return int(low + distribution.step * int(share * count))
        # Half a step beyond both ends, so that the ends are not half as likely as the others.
        drawn = _between(low - 0.5, high + 0.5, share)
        return int(min(high, max(low, round(drawn))))
    if distribution.step is not None:
        count = round((high - low) / distribution.step) + 1
        return float(min(high, low + distribution.step * int(share * count)))
    drawn = _between(low, high, share) if distribution.log else low + share * (high - low)
    return float(min(high, max(low, drawn)))


def _between(low: float, high: float, share: float) -> float:
    return float(np.exp(np.log(low) + share * (np.log(high) - np.log(low))))
