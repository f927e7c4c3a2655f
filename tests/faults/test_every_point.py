"""A fault at every point of a small sweep, not at random moments: it ends the same, or in words."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import pytest
from optuna.artifacts import FileSystemArtifactStore
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.optuna import OptunaBackend
from grasp_tune.runtime import files
from tests.engine import workbench
from tests.executors.contract import CountedCalls
from tests.executors.sweeps import fingerprint, forked

pytestmark = pytest.mark.xdist_group("faults")

SMALL, LARGE = 30, 52  # 29 and 51 calls of the loss: two runs, one of several rounds
METHOD = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam")
OPERATIONS = ("fsync", "replace", "link", "unlink", "mkdir")

Before = Callable[[], None]


class Points:
    """Counts the points at which something can go wrong; at the n-th it does.

    at: which one, counted from 1; 0: none, -1: every third one.
    fault: what happens there.
    """

    def __init__(self, at: int = 0, fault: Before = lambda: None) -> None:
        self.count, self._at, self._fault = 0, at, fault

    def __call__(self) -> None:
        self.count += 1
        if self.count == self._at or (self._at < 0 and self.count % 3 == 1):
            self._fault()

    @contextmanager
    def of(self, operation: str) -> Iterator["Points"]:
        """Take every call of an operation of the system as a point; flushing costs nothing."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda handle: None)
            real = getattr(os, operation)

            def shaky(*args: object, **options: object) -> object:
                self()
                return real(*args, **options)

            patch.setattr(os, operation, shaky)
            yield self


def sweep(
    out: Path, before: Before = lambda: None, *, budget: int = SMALL, **rest: Any
) -> gt.Result:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        before()
        return workbench.cross_entropy(model, batch)

    given = workbench.problem(workbench.linear, loss)
    options = {"seed": 3, "out": out, "fused": False, "progress": False, **rest}
    return gt.minimize(given, budget, METHOD, **options)


def check_resumed(
    out: Path, calls: CountedCalls, expected: str, begun: int = 0, **rest: Any
) -> None:
    """The sweep goes on to the undisturbed result, and every call of the loss is in the books."""
    if not out.exists():  # it had got nowhere, and left nothing: this is a new sweep
        begun = calls.total
    result = sweep(out, calls, **rest)
    assert fingerprint(result) == expected
    assert calls.total - begun == sum(result.calls.values())
    assert not list(out.rglob("*.tmp"))


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def flaky() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def mistaken() -> None:
    raise ZeroDivisionError("a mistake in the loss")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def point_by_point(
    folder: Path, count: int, step: int = 1
) -> Iterator[tuple[int, Path, CountedCalls]]:
    """A number, a folder and a counter of its own for each point, or for each of every few."""
    assert count
    for at in range(1, count + 1, step):
        yield at, folder / f"run{at}", CountedCalls(folder / f"calls{at}")


def failing(calls: CountedCalls, points: Points) -> Before:
    """What a loss does that is counted, and goes wrong at a point."""

    def before() -> None:
        calls()
        points()

    return before


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_full_disk_at_every_operation(tmp_path: Path, operation: str) -> None:
    budget = LARGE if operation == "replace" else SMALL
    with Points().of(operation) as points:
        expected = fingerprint(sweep(tmp_path / "undisturbed", budget=budget))
    if sys.version_info < (3, 11) and operation in ("mkdir", "unlink"):
        pytest.skip("pathlib of Python 3.10 keeps its own references to these functions")
    for at, out, calls in point_by_point(tmp_path, points.count):
        with Points(at, full).of(operation), suppress(gt.CheckpointError):
            assert fingerprint(sweep(out, calls, budget=budget)) == expected
        check_resumed(out, calls, expected, budget=budget)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_that_passes_at_every_operation(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAUSES", (0.0,) * len(files.PAUSES))
    expected = fingerprint(sweep(tmp_path / "undisturbed"))
    with Points(-1, flaky).of(operation):
        result = sweep(tmp_path / "run")
    assert fingerprint(result) == expected
    assert result.calls["repeated"] == 0


BODIES: dict[str, dict[str, Any]] = {
    "local": {"budget": LARGE},
    "optuna": {"backend": "optuna"},
}
STEPS = {"local": 3, "optuna": 2}  # each of several points in a task: not at all of them


@pytest.mark.parametrize("body", BODIES)
def test_a_mistake_in_every_call_of_the_loss(tmp_path: Path, body: str) -> None:
    points, rest = Points(), BODIES[body]
    expected = fingerprint(sweep(tmp_path / "undisturbed", points, **rest))
    for at, out, calls in point_by_point(tmp_path, points.count, STEPS[body]):
        with pytest.raises(ZeroDivisionError):
            sweep(out, failing(calls, Points(at, mistaken)), **rest)
        check_resumed(out, calls, expected, **rest)


@pytest.mark.parametrize("body", ["local", "optuna"])
def test_a_death_in_every_call_of_the_loss(tmp_path: Path, body: str) -> None:
    points, backend = Points(), dict[str, Any](backend=body)
    expected = fingerprint(sweep(tmp_path / "undisturbed", points, **backend))
    for at, out, calls in point_by_point(tmp_path, points.count, 1 if body == "local" else 2):
        before = failing(calls, Points(at, killed))
        os.waitpid(forked(partial(sweep, out, before, **backend)), 0)
        check_resumed(out, calls, expected, **backend)


def test_a_death_of_a_worker_in_every_call_of_the_loss(tmp_path: Path) -> None:
    expected = fingerprint(sweep(tmp_path / "undisturbed"))
    for at, out, calls in point_by_point(tmp_path, 8):

        def once(sign: Path = tmp_path / f"died{at}") -> None:
            if not sign.exists():
                sign.touch()
                killed()

        result = sweep(out, failing(calls, Points(at, once)), workers=2)
        assert fingerprint(result) == expected
        assert calls.total == sum(result.calls.values())


def crash(at: int, kind: str) -> None:
    """Die in the n-th renaming, and leave what a machine without power may leave of it."""
    points, real = Points(), os.replace

    def replace(source: str, target: str) -> None:
        points()
        if points.count != at:
            real(source, target)
            return
        size = os.path.getsize(source)
        if kind != "lost":
            real(source, target)
            os.truncate(target, {"zeros": 0, "empty": 0, "torn": size // 2}[kind])
            os.truncate(target, 0 if kind == "empty" else size)
        os._exit(9)

    os.replace = replace  # type: ignore[assignment]


def test_a_crash_in_every_renaming(tmp_path: Path) -> None:
    with Points().of("replace") as points:
        expected = fingerprint(sweep(tmp_path / "undisturbed", budget=LARGE))
    kinds = ("lost", "zeros", "torn", "empty")
    for at, out, calls in point_by_point(tmp_path, points.count):

        def work(at: int = at, out: Path = out, calls: CountedCalls = calls) -> None:
            crash(at, kinds[at % 4])
            sweep(out, calls, budget=LARGE)

        os.waitpid(forked(work), 0)
        check_resumed(out, calls, expected, budget=LARGE)


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in main memory where the system has one: a database flushes all the time."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def artifacts_fail(at: int, kind: str, patch: pytest.MonkeyPatch) -> Points:
    """Fail in the n-th artifact: a full disk, or a death that leaves what a crash may leave."""
    points, real = Points(), FileSystemArtifactStore.write

    def write(store: FileSystemArtifactStore, name: str, body: BinaryIO) -> None:
        points()
        path, content = Path(str(store._base_path)) / name, body.read()
        images = {"zeros": bytes(len(content)), "torn": content[: len(content) // 2], "empty": b""}
        if points.count != at:
            real(store, name, BytesIO(content))
            return
        if kind in images:
            path.write_bytes(images[kind])
        if kind == "full":
            path.write_bytes(content[:7])
            full()
        os._exit(9)

    patch.setattr(FileSystemArtifactStore, "write", write)
    return points


def test_a_fault_in_every_artifact_of_a_study(quick_path: Path) -> None:
    def on_study(out: Path) -> dict[str, Any]:
        return {"backend": OptunaBackend(storage=f"sqlite:///{out}.db")}

    def disturbed(at: int, kind: str, out: Path, calls: Before) -> None:
        with pytest.MonkeyPatch.context() as patch:
            artifacts_fail(at, kind, patch)
            sweep(out, calls, **on_study(out))

    out = quick_path / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        points = artifacts_fail(0, "", patch)
        expected = fingerprint(sweep(out, **on_study(out)))
    kinds = ("full", "lost", "zeros", "torn", "empty")
    for at, out, calls in point_by_point(quick_path, points.count):
        if (kind := kinds[at % 5]) == "full":
            with pytest.raises(gt.CheckpointError, match="the disk is full"):
                disturbed(at, kind, out, calls)
        else:
            process = forked(partial(disturbed, at, kind, out, calls))
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
        check_resumed(out, calls, expected, **on_study(out))


def test_a_hard_cap_holds_at_every_death(tmp_path: Path) -> None:
    points = Points()
    whole = sweep(tmp_path / "undisturbed", points, budget=LARGE, hard_cap=True)
    assert not whole.partial
    for at, out, calls in point_by_point(tmp_path, points.count, 7):
        before = failing(calls, Points(at, killed))
        os.waitpid(forked(partial(sweep, out, before, budget=LARGE, hard_cap=True)), 0)
        result = sweep(out, calls, budget=LARGE, hard_cap=True)
        assert calls.total <= LARGE
        assert calls.total == sum(result.calls.values())
        assert result.partial == (result.calls["repeated"] > LARGE - sum(whole.calls.values()))
