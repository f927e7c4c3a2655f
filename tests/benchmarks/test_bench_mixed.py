"""The benchmark of mixed spaces: every method runs on every space, with the same calls."""

import math

import optuna
import pytest

from benchmarks import bench_mixed


@pytest.mark.parametrize("name", bench_mixed.SPACES)
def test_every_method_spends_the_same_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr(bench_mixed, "TRIALS", 2)
    for objective in bench_mixed.methods().values():
        search = bench_mixed.Search(bench_mixed.SPACES[name], 30, seed=0).run(objective)
        assert 60 <= search.spent < 90
        assert math.isfinite(search.at(1.0))
