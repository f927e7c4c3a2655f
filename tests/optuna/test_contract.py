"""Optuna's own contract suite, unmodified, against the sampler.

Twice: with a parameter that the suite never asks for, and with the one that it always asks for,
in ranges and kinds that do not hold the plan's values.
"""

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase, SingleOnlySamplerTestCase

from grasp_tune.core.plan import Plan
from grasp_tune.optuna import GraspSampler


# The suite never asks for the parameter, which is worth a warning.
@pytest.mark.filterwarnings("ignore:trial .* without asking for")
class TestWithAnotherParameter(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self, plan: Plan) -> Callable[[], BaseSampler]:
        return lambda: GraspSampler(plan, "lr", seed=11)


# The suite asks for ranges that do not hold the cells' values, which is worth a warning.
@pytest.mark.filterwarnings("ignore:trial .* does not hold", "ignore:trial .* without asking for")
class TestWithItsParameter(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self, plan: Plan) -> Callable[[], BaseSampler]:
        return lambda: GraspSampler(plan, "x", seed=11)


# The search without a plan, as the paper's plan above.
@pytest.mark.filterwarnings("ignore:trial .* does not hold", "ignore:trial .* without asking for")
class TestWithoutAPlan(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: GraspSampler(budget=5000, parameter="x", seed=11)
