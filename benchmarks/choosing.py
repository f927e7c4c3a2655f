"""The cost of the final choice: paired halving against the paper's uniform ensemble, simulated.

Real candidates (the paper's cells on a real problem) are sampled once on many minibatches. The
simulation draws from these samples as an ensemble would, thousands of times, and compares its
choices with the truth on all of the data.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import grasp_tune as gt
from benchmarks.records import Table
from benchmarks.workloads import WORKLOADS
from grasp_tune.core.ensemble import Tally, halving, survivors
from grasp_tune.engine.oracle import gradient_norm
from grasp_tune.engine.sampling import Samples
from grasp_tune.optimizers.registry import find_optimizer
from grasp_tune.peers.session import Run, Session

BUDGET = 10_000  # T
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)  # of the uniform ensemble's calls
TRIALS = 2_000
TOLERANCE = {"value": 0.01, "gradient": 0.05}  # a choice further behind the best is a failure

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates with their true quality and their samples on common minibatches."""

    name: str
    by: str  # "value" or "gradient"
    truth: Array  # (candidates,)
    samples: Array  # (candidates, minibatches) losses, or (candidates, minibatches, parameters)
    uniform: int  # samples per candidate in the paper's ensemble

    def score(self, candidate: int, minibatches: Array) -> float:
        """Return the ensemble's estimate from these minibatches."""
        mean = self.samples[candidate, minibatches].mean(axis=0)
        return float(mean) if self.by == "value" else float(np.linalg.norm(mean))


@dataclass(frozen=True, slots=True)
class Cost:
    """How good one way of choosing was over all trials."""

    pool: str
    by: str
    candidates: int
    way: str  # "uniform" or "race"
    share: float  # of the uniform ensemble's calls
    calls: int
    excess: float  # mean of (true quality of the choice - best) / best, per cent
    failures: float  # per cent of the trials in which the excess was above the tolerance


def uniform_choice(pool: Pool, samples: int, rng: np.random.Generator) -> int:
    """Return the candidate chosen with independent samples for each."""
    total = pool.samples.shape[1]
    scores = [pool.score(at, rng.integers(0, total, samples)) for at in range(len(pool.truth))]
    return int(np.argmin(scores))


def race_choice(pool: Pool, calls: int, rng: np.random.Generator) -> int:
    """Return the candidate chosen by paired halving with at most `calls` samples."""
    keys = [str(at) for at in range(len(pool.truth))]
    seen: list[Array] = []
    tallies: dict[str, Tally] = {}
    rungs = halving(len(keys), calls)
    for at, rung in enumerate(rungs):
        fresh = rng.integers(0, pool.samples.shape[1], rung.samples)
        seen.append(fresh)
        # Losses add up over the rounds; a gradient's norm is that of the last round.
        used = np.concatenate(seen) if pool.by == "value" else fresh
        tallies = {key: Tally(len(used), pool.score(int(key), used), math.nan) for key in keys}
        left = rungs[at + 1].survivors if at + 1 < len(rungs) else 1
        keys = survivors(keys, tallies, left)
    return int(keys[0])


def simulate(pool: Pool, trials: int = TRIALS, seed: int = 0) -> list[Cost]:
    """Return the results of both ways, the race with several shares of the uniform calls."""
    rng = np.random.default_rng(seed)
    candidates = len(pool.truth)
    full = pool.uniform * candidates
    costs = [
        _cost(
            pool,
            "uniform",
            1.0,
            full,
            [uniform_choice(pool, pool.uniform, rng) for _ in range(trials)],
        )
    ]
    for share in SHARES:
        calls = int(full * share)
        if halving(candidates, calls):
            chosen = [race_choice(pool, calls, rng) for _ in range(trials)]
            costs.append(_cost(pool, "race", share, calls, chosen))
    return costs


def _cost(pool: Pool, way: str, share: float, calls: int, chosen: Sequence[int]) -> Cost:
    best = float(pool.truth.min())
    excess = pool.truth[np.array(chosen)] / best - 1.0
    return Cost(
        pool.name,
        pool.by,
        len(pool.truth),
        way,
        share,
        calls,
        100.0 * float(excess.mean()),
        100.0 * float((excess > TOLERANCE[pool.by]).mean()),
    )


# ---- real candidates -----------------------------------------------------------------------------


def sample_pool(workload: str, by: str, data: Path | None, seed: int, minibatches: int) -> Pool:
    """Return the paper's candidates on a workload, with their samples."""
    problem = WORKLOADS[workload].bundle(data).problem
    method = gt.NonConvex() if by == "gradient" else gt.Convex()
    start = Session(problem, BUDGET, seed).run()
    seen = Samples(start.oracle.parameters)
    for call in range(BUDGET // 8):
        seen.add(float(start.oracle.gradient("probe", call)))
    plan = method.plan(BUDGET, grad_norm=seen.gradients[0], value=seen.losses[0])
    rng = np.random.default_rng(seed)
    truth, samples = [], []
    for cell in plan.cells:
        stops = [cell.budget]
        if by == "gradient":
            stops = sorted(rng.integers(0, cell.budget, plan.candidates_per_cell).tolist())
        for run in _points(problem, method, cell.value, stops, seed):
            exact, drawn = _sampled(run, by, minibatches)
            if math.isfinite(exact) and np.isfinite(drawn).all():
                truth.append(exact)
                samples.append(drawn)
    return Pool(workload, by, np.array(truth), np.stack(samples), plan.samples_per_candidate)


def _points(
    problem: gt.TorchProblem,
    method: gt.Convex | gt.NonConvex,
    value: float,
    stops: list[int],
    seed: int,
) -> Iterator[Run]:
    """Yield one run after each of the calls in `stops`."""
    base = find_optimizer(method.base_name("paper"), {})
    run = Session(problem, 10**9, seed).run()
    optimizer = base.build(list(run.oracle.parameters), {base.value: value})

    def closure() -> Any:
        loss = run.oracle.gradient("train", run.call)
        run.call += 1
        run.finite = run.finite and math.isfinite(float(loss))
        return loss

    for stop in stops:
        while run.finite and run.call + base.calls_per_step <= stop:
            optimizer.step(closure)
        if not run.result().diverged:
            yield run


def _sampled(run: Run, by: str, minibatches: int) -> tuple[float, Array]:
    oracle = run.oracle
    exact = oracle.exact(gradient=by == "gradient")
    if by == "value":
        return exact, np.array([oracle.value("ensemble", call) for call in range(minibatches)])
    norm, rows = float(gradient_norm(oracle.parameters)), []
    for call in range(minibatches):
        oracle.gradient("ensemble", call)
        grads = [p.grad.flatten() for p in oracle.parameters if p.grad is not None]
        rows.append(np.concatenate([g.numpy() for g in grads]))
    return norm, np.stack(rows).astype(np.float32)


POOLS = (("a9a", "value", 1_500), ("digits", "value", 1_500), ("a9a", "gradient", 400))


def run_pool(job: tuple[str, str, int, Path | None, Table, int]) -> str:
    """Sample and simulate one pool, save its costs and return a line about it."""
    workload, by, minibatches, data, results, seed = job
    pool = sample_pool(workload, by, data, seed, minibatches)
    costs = simulate(pool, seed=seed)
    rows = [asdict(cost) for cost in costs]
    results.append({"workload": workload, "by": by, "seed": seed, "costs": rows})
    return f"{workload} {by}: {len(pool.truth)} candidates, {len(costs)} ways simulated"
