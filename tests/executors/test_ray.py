"""`minimize(..., backend="ray")`: Ray actors as workers, and what happens when they die."""

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from pyarrow import fs as arrow
from torch import nn

import grasp_tune as gt
from grasp_tune.executors.ray import RayBackend, RayExecutor
from grasp_tune.runtime.lock import folder_lock
from tests.ray.shop import linear_problem, same

FEW: dict[str, Any] = {
    "method": gt.Convex(d_eps=0.1, L_eps=0.1),
    "budget": 600,
    "schedule": "paper",
    "ensemble": "window",
    "fused": False,
}


def run(problem: gt.TorchProblem | None = None, **how: Any) -> gt.Result:
    # One worker, because each takes seconds to start.
    how = {"backend": RayBackend(workers=1), "progress": False, **FEW, **how}
    return gt.minimize(problem or linear_problem()(), **how)


@pytest.fixture(scope="module")
def wanted() -> gt.Result:
    return run(backend="local")


@pytest.mark.usefixtures("ray_session")
def test_minimize_through_ray_gives_the_same_bits_and_resumes(
    tmp_path: Path,
    wanted: gt.Result,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, seen = tmp_path / "out", tmp_path / "seen"
    seen.mkdir()
    path = str(seen)

    def note() -> None:
        import os

        open(f"{path}/{os.getpid()}", "a").close()

    caplog.set_level(logging.INFO)
    for _ in range(2):  # the second finds everything done
        backend = RayBackend(cpus_per_task=0.7)
        result = run(linear_problem(note)(), out=out, progress=True, backend=backend)
        assert 1 <= len(list(seen.iterdir())) <= 2  # as many as the cluster holds
        assert same(result, wanted)
        assert result.calls == wanted.calls
        assert isinstance(result.model, nn.Linear)
        assert torch.equal(result.model.weight, wanted.model.weight)  # type: ignore[arg-type]
    assert same(gt.Result.load(out), wanted)
    assert f"done: {sum(wanted.calls.values())} of 600 calls" in caplog.text
    assert not [item for item in caplog.records if item.levelno >= logging.WARNING]
    assert capfd.readouterr() == ("", "")  # no error of Ray's, no traceback
    with pytest.raises(gt.InputError, match="budget 600 became 500"):
        run(out=out, budget=500)
    assert not list(out.glob("checkpoints/driver-*"))


# Where Ctrl-C comes while a file is being opened, Python drops the open file, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ray_session")
def test_a_stopped_sweep_goes_on_from_what_had_ended(tmp_path: Path, wanted: gt.Result) -> None:
    def stop() -> None:
        while not list(tmp_path.glob("out/checkpoints/run*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(linear_problem(lambda: time.sleep(0.01))(), out=tmp_path / "out")
    result = run(out=tmp_path / "out")
    assert same(result, wanted)
    assert result.calls["repeated"] < 200  # what had ended was not run again


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("remote", [False, True])
def test_checkpoints_go_to_the_storage_that_was_asked_for(
    tmp_path: Path, wanted: gt.Result, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote:  # a file system that is not the local one, as a bucket is not
        tree = arrow.SubTreeFileSystem(str(tmp_path), arrow.LocalFileSystem())
        bucket = SimpleNamespace(from_uri=lambda uri: (tree, "shared"))
        fake = SimpleNamespace(**{**vars(arrow), "FileSystem": bucket})
        monkeypatch.setattr("grasp_tune.runtime.shared_sweep.arrow", fake)
    storage = "s3://bucket/shared" if remote else str(tmp_path / "shared")
    out = tmp_path / "out"
    result = run(out=out, backend=RayBackend(storage=storage, workers=1))
    assert same(result, wanted)
    assert result.calls == wanted.calls
    assert list(tmp_path.glob("shared/grasp-*/run*.safetensors"))
    assert not list(out.glob("checkpoints/*"))
    if remote:  # without a folder of its own
        assert same(run(backend=RayBackend(storage=storage, workers=1)), wanted)
    assert len(list(tmp_path.glob("shared/*/*"))) == len(list(tmp_path.glob("shared/*/run*")))


def test_bad_storage_is_named(tmp_path: Path) -> None:
    with pytest.raises(gt.InputError, match="storage: got 'nowhere://x', expected a folder or URI"):
        run(backend=RayBackend(storage="nowhere://x"))


@pytest.mark.usefixtures("ray_session")
def test_what_would_fail_anywhere_fails_at_once_with_its_reason(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("the user's own fault")

    with pytest.raises(RuntimeError, match="the user's own fault"):
        run(linear_problem(broken)(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    problem = linear_problem()()
    lock: Any = threading.Lock()
    with pytest.raises(gt.InputError, match="problem: it cannot be sent to other processes"):
        run(gt.TorchProblem(model=problem.model, loss=lambda m, b: lock, data=problem.data))


class Elsewhere:
    """A function of a module that only the driver has."""

    def __reduce__(self) -> Any:
        return __import__, ("module_of_the_driver",)


@pytest.mark.usefixtures("ray_session")
def test_a_problem_that_cannot_be_imported_elsewhere_ends_the_run_with_the_reason() -> None:
    problem, own = linear_problem()(), Elsewhere()

    def loss(model: nn.Module, batch: Any) -> Any:
        assert own is not None
        return problem.loss(model, batch)

    given = gt.TorchProblem(model=problem.model, loss=loss, data=problem.data)
    with pytest.raises(gt.SearchError, match=r"cannot be loaded on .*module_of_the_driver"):
        run(given)


@pytest.mark.usefixtures("ray_session")
def test_a_machine_that_does_not_see_the_checkpoints_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(executor: RayExecutor, *rest: Any) -> None:
        begin(executor, *rest)
        executor._store.delete(executor._token)

    begin = RayExecutor.__init__
    monkeypatch.setattr(RayExecutor, "__init__", start)
    with pytest.raises(gt.SearchError, match=r"does not see the checkpoints.*shared folder"):
        run()


@pytest.mark.usefixtures("ray_session")
def test_a_hard_cap_holds_for_what_a_death_undid(tmp_path: Path, wanted: gt.Result) -> None:
    path = str(tmp_path / "calls")

    def die_once() -> None:
        import os
        import signal

        with open(path, "ab", buffering=0) as file:
            file.write(b".")
            if file.tell() == 450:
                os.kill(os.getpid(), signal.SIGKILL)

    backend = RayBackend(workers=1, hard_cap=True)
    result = run(linear_problem(die_once)(), backend=backend, out=tmp_path / "out")
    seen = os.path.getsize(path)
    assert 450 < seen <= FEW["budget"]
    assert result.calls["repeated"] > 0 and sum(result.calls.values()) in (seen, seen + 1)
    assert result.partial == (wanted.to_dict()["choice"] != result.to_dict()["choice"])


def test_a_second_driver_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    before = ray.is_initialized()
    with folder_lock(tmp_path), pytest.raises(gt.GraspError, match=f"process {os.getpid()} on"):
        run(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".grasp_tune.json"]
    assert ray.is_initialized() == before  # refused before anything is started


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers: got 0"),
        ({"cpus_per_task": 0.0}, "cpus_per_task, gpus_per_task: got 0.0, 0.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        RayBackend(**options)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://nowhere.invalid:10001", "here:x"])
def test_a_cluster_that_is_not_there_is_named_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(gt.SearchError, match=f"no Ray cluster answers at '{address}'"):
        run(backend=RayBackend(address=address))


@pytest.mark.parametrize("named", [None, "10.0.0.1:6379"])
def test_a_cluster_of_somebody_else_on_this_machine_is_left_alone(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def init(address: str | None = None, **how: Any) -> None:
        given.append(str(address))  # of None Ray makes what `ray start` left in /tmp/ray
        raise Exception("too slow")  # as Ray does on a machine under load

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if named is not None:
        monkeypatch.setenv("RAY_ADDRESS", named)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(
        "socket.create_connection", lambda *place, **how: SimpleNamespace(close=int)
    )
    where = "Ray did not start here" if named is None else f"no Ray cluster answers at {named!r}"
    with pytest.raises(gt.SearchError, match=f"{where}: too slow"):
        run()
    assert given == [named or "local"]


def test_what_this_machine_never_has_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)  # as the fault program leaves it
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, lambda **how: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(gt.InputError, match=r"needs .*'GPU': 1.*this machine has .*'GPU': 0.0"):
        run(backend=RayBackend(gpus_per_task=1))
