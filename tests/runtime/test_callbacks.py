"""Callbacks: what they hear of a sweep, on every backend."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import grasp_tune as gt
from grasp_tune.runtime.callbacks import Callback
from grasp_tune.runtime.result import Result
from tests.engine import workbench


class Heard(Callback):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.calls: list[int] = []
        self.best: list[float] = []
        self.curves: dict[int, list[tuple[int, float]]] = {}
        self.results: list[Result] = []

    def on_phase(self, phase: str) -> None:
        self.phases.append(phase)

    def on_progress(self, calls: int, best: float) -> None:
        self.calls.append(calls)
        self.best.append(best)

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        self.curves.setdefault(run, []).extend(curve)

    def on_end(self, result: Result) -> None:
        self.results.append(result)


@pytest.mark.parametrize("backend", ["local", "two workers", "optuna"])
def test_callbacks_hear_the_whole_sweep(backend: str) -> None:
    heard, quiet = Heard(), Callback()
    result = gt.minimize(
        workbench.problem(),
        600,
        gt.NonConvex(L_eps=0.5, F_eps=0.5),
        backend="optuna" if backend == "optuna" else "local",
        workers=2 if backend == "two workers" else None,
        progress=False,
        callbacks=[heard, quiet],
    )
    assert heard.results == [result]
    assert heard.phases[-1] == "done" and heard.phases[:2] == ["probe", "train"]
    assert {*heard.phases} == {"probe", "train", "score", "done"}
    assert heard.calls == sorted(heard.calls) and heard.calls[-1] <= 600
    trained = {run.arm: [(call, loss) for call, loss, _ in run.curve] for run in result.runs}
    assert {run: sorted(curve) for run, curve in heard.curves.items()} == trained


def test_callbacks_change_nothing() -> None:
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    plain = gt.minimize(workbench.problem(), 300, method, progress=False)
    heard = gt.minimize(workbench.problem(), 300, method, progress=False, callbacks=[Heard()])
    assert heard.choice == plain.choice


def test_a_callback_that_raises_costs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Callback):
        heard = 0

        def on_progress(self, calls: int, best: float) -> None:
            self.heard += 1
            raise ConnectionError("the server is away")

    class Unfinished(Callback):
        def on_end(self, result: Result) -> None:
            raise OSError("no space left")

    broken, heard, method = Broken(), Heard(), gt.NonConvex(L_eps=0.5, F_eps=0.5)
    callbacks = [broken, Unfinished(), heard]
    result = gt.minimize(workbench.problem(), 300, method, progress=False, callbacks=callbacks)
    assert heard.results == [result] and broken.heard == 1
    for words in ("Broken.on_progress failed", "the server is away", "Unfinished.on_end failed"):
        assert words in caplog.text


@pytest.mark.parametrize("backend", ["local", "optuna"])
def test_who_listens_to_a_sweep_that_goes_on_hears_all_of_it(backend: str, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_progress(self, calls: int, best: float) -> None:
            if calls > 200:
                raise KeyboardInterrupt

    method, folder = gt.NonConvex(L_eps=0.5, F_eps=0.5), tmp_path / "sweep"
    how: dict[str, Any] = {"backend": backend, "progress": False, "out": folder}
    with pytest.raises(KeyboardInterrupt):
        gt.minimize(workbench.problem(), 400, method, callbacks=[Stop()], **how)
    for _ in ("gone on with", "ended already"):
        heard = Heard()
        result = gt.minimize(workbench.problem(), 400, method, callbacks=[heard], **how)
        trained = {run.arm: [(call, loss) for call, loss, _ in run.curve] for run in result.runs}
        assert {run: sorted(curve) for run, curve in heard.curves.items()} == trained
        assert heard.results == [result] and heard.phases[-1] == "done"


def test_forked_workers_leave_the_callbacks_to_the_driver(tmp_path: Path) -> None:
    class Told(Callback):
        def on_progress(self, calls: int, best: float) -> None:
            (tmp_path / str(os.getpid())).touch()

    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    gt.minimize(workbench.problem(), 600, method, workers=2, progress=False, callbacks=[Told()])
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]
