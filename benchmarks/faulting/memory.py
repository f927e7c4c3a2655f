"""Memory must not grow with the number of candidates; the disk space is announced."""

import math
import multiprocessing
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import grasp_tune as gt
from benchmarks.faulting.patches import replaced
from benchmarks.faulting.row import Row, expect
from grasp_tune.runtime import sweep_folder as runner
from grasp_tune.runtime.sweep_folder import USUAL_BYTES, check_room

STEP_RANGE = 1e-30  # L_eps that gives about 200 cells, all finite in single precision


class Bounded(nn.Module):
    """A model of about `size` squared numbers whose loss is finite everywhere."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, size))

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(features @ self.weight)


def _sweep(cells: int, side: int, out: Path | None, pipe: Any) -> None:
    """Run a sweep with about so many cells; send its memory and disk use to the pipe."""
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(1)
    features = torch.randn(64, side, generator=source) / math.sqrt(side)

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return (model(batch[0]) - 0.5).square().mean()

    problem = gt.TorchProblem(
        model=lambda: Bounded(side), loss=loss, data=(features,), batch_size=2, device="cpu"
    )
    announced = []

    def heard(folder: Path, checkpoints: int, numbers: int) -> None:
        announced.append(checkpoints * numbers * USUAL_BYTES)
        check_room(folder, checkpoints, numbers)

    # Each factor of two between the ends of the range gives one more cell.
    method = gt.NonConvex(L_eps=STEP_RANGE * 2.0 ** (200 - cells), F_eps=1e-26, delta=0.03)
    with replaced(runner, "check_room", heard):
        result = gt.minimize(
            problem, 30 * cells, method, schedule="paper", fused=False, progress=False, out=out
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipe.send(
        {
            "peak": peak,
            "cells": 0 if result.plan is None else len(result.plan.cells),
            "scored": sum(row.samples > 0 for row in result.candidates) - 1,
            "calls": sum(result.calls.values()),
            "announced": sum(announced),
        }
    )


def _measured(cells: int, side: int, out: Path | None) -> dict[str, int]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.faulting.sweep"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_sweep, args=(cells, side, out, theirs))
    process.start()
    theirs.close()
    try:
        found: dict[str, int] = ours.recv()
        return found
    finally:
        process.join()
        ours.close()


def many_candidates(folder: Path, side: int, few: int, many: int) -> Row:
    """Compare peak memory with few and with many cells, and the disk space with many."""
    small = _measured(few, side, folder / "few")
    large = _measured(many, side, folder / "many")
    model = 4 * side * side
    expect(large["scored"] > 4 * small["scored"], f"not many more: {small}, {large}")
    growth = large["peak"] - small["peak"]
    allowed = max(4 * model, 24 * 2**20)
    expect(growth < allowed, f"{growth} bytes more for {large['scored']} than {small['scored']}")
    files = list((folder / "many" / "checkpoints").glob("*.safetensors"))
    taken = sum(path.stat().st_size for path in files)
    # Apart from headers and the start point. The announced space must not be far too high either.
    announced, headers = large["announced"], 4096 * len(files) + 2 * model
    expect(taken <= announced + headers, f"{taken} taken, {announced} announced")
    expect(announced <= 1.2 * taken + headers, f"{announced} announced, {taken} taken")
    outcome = (
        f"peak {small['peak'] / 1e6:.0f} MB with {small['scored']} candidates, "
        f"{large['peak'] / 1e6:.0f} MB with {large['scored']}; disk {taken / 1e6:.0f} MB, "
        f"{announced / 1e6:.0f} MB announced before"
    )
    return Row(
        f"{large['cells']} cells of a model of {side * side} numbers",
        "local",
        outcome,
        f"{large['calls']} of {30 * many}",
        "0",
    )


def many_candidates_without_a_folder(folder: Path, side: int, few: int, many: int) -> Row:
    """Compare the same without a folder: beyond a fixed amount, candidates go to a file."""
    small = _measured(few, side, None)
    large = _measured(many, side, None)
    growth = large["peak"] - small["peak"]
    allowed = 64 * 2**20 + max(4 * 4 * side * side, 24 * 2**20)
    expect(growth < allowed, f"{growth} bytes more for {large['scored']} than {small['scored']}")
    outcome = (
        f"peak {small['peak'] / 1e6:.0f} MB with {small['scored']} candidates, "
        f"{large['peak'] / 1e6:.0f} MB with {large['scored']}"
    )
    fault = f"{large['cells']} cells of a model of {side * side} numbers, no output folder"
    return Row(fault, "local", outcome, f"{large['calls']} of {30 * many}", "0")
