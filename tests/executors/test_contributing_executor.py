"""An executor of one's own, added as CONTRIBUTING.md says: one class outside the package."""

from collections.abc import Mapping
from pathlib import Path

import grasp_tune as gt
from grasp_tune.core.spec import SweepSpec
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import run_sweep
from tests.executors.sweeps import BUDGET, fingerprint, problem
from tests.executors.thread_executor import ThreadExecutor


class Threads:
    """The toy executor as a backend."""

    def run(
        self,
        problem: gt.TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None,
        bases: Mapping[str, Factory],
        progress: bool,
    ) -> gt.Result:
        return run_sweep(problem, spec, ThreadExecutor, out=out, bases=bases)


def test_an_executor_from_outside_gives_the_same_model(tmp_path: Path) -> None:
    method = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam")
    here, there = (
        gt.minimize(problem(), BUDGET, method, seed=3, backend=where, out=out, progress=False)
        for where, out in (("local", None), (Threads(), tmp_path / "out"))
    )
    assert fingerprint(here) == fingerprint(there)
    assert fingerprint(gt.Result.load(tmp_path / "out")) == fingerprint(here)
