"""After SIGKILL of the driver: the same choice, and nothing that had ended is run again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import tune
from torch.utils.data import DataLoader

import grasp_tune as gt
from grasp_tune.ray import GraspSearcher, grasp_trainable, load_result, optimizer
from tests.ray.shop import linear_problem, same, spent
from tests.ray.test_function import BUDGET, rows, shop, whole_loss

pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parents[2]
FEW: dict[str, Any] = {
    "method": gt.NonConvex(L_eps=10.0, F_eps=10.0),
    "budget": 300,
    "schedule": "paper",
    "ensemble": "window",
    "fused": False,
    "probe_parts": 1,
}

DRIVER = """
import sys
import ray
from ray import tune
from tests.ray.test_restore import BUDGET, FEW, own_function, slow
from grasp_tune.ray import GraspSearcher, grasp_trainable

folder, way = sys.argv[1:3]
ray.init(address=sys.argv[3], log_to_driver=False)
trainable, searcher = grasp_trainable(slow(folder)), GraspSearcher(**FEW)
if way == "function":
    trainable, searcher = own_function(folder), GraspSearcher(budget=BUDGET)
tune.Tuner(
    trainable,
    tune_config=tune.TuneConfig(search_alg=searcher),
    run_config=tune.RunConfig(storage_path=folder, name="killed", verbose=0),
).fit()
"""


def slow(folder: str) -> Any:
    """A problem with time to be killed in, whose every call leaves a byte in a file."""

    def on_call() -> None:
        import os
        import time

        time.sleep(0.01)
        os.makedirs(f"{folder}/seen", exist_ok=True)
        with open(f"{folder}/seen/{os.getpid()}", "ab", buffering=0) as file:
            file.write(b".")

    return linear_problem(on_call)


def own_function(folder: str) -> Any:
    """A training function of the user's own, with time to be killed in."""

    def train(config: dict[str, Any]) -> None:
        torch.manual_seed(3)
        model = torch.nn.Linear(6, 2)
        opt = optimizer(model)
        while not opt.done:
            for x, y in DataLoader(rows(), batch_size=8, shuffle=True):
                time.sleep(0.01 if folder else 0.0)
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                opt.step(loss)
        tune.report({"whole": whole_loss(model)})

    return train


def kill_in_the_middle(folder: Path, way: str) -> dict[Path, int]:
    """Run a driver, kill it when some tasks have ended, and return their outcomes' times."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    address = ray.get_runtime_context().gcs_address
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    log = (folder / "driver.log").open("w")
    driver = subprocess.Popen(
        [sys.executable, str(script), str(folder), way, address],
        env={**os.environ, "PYTHONPATH": path, "TUNE_GLOBAL_CHECKPOINT_S": "1"},
        stdout=log,
        stderr=log,
    )
    try:
        while len(ended := list(folder.glob("killed/grasp/*/outcomes/*-run*.safetensors"))) < 2:
            assert driver.poll() is None, (folder / "driver.log").read_text()
            time.sleep(0.05)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        log.close()
    return {item.relative_to(folder / "killed"): item.stat().st_mtime_ns for item in ended}


@pytest.fixture(scope="module")
def wanted() -> gt.Result:
    return gt.minimize(linear_problem()(), progress=False, **FEW)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Path, int]]:
    folder = tmp_path_factory.mktemp("killed")
    return folder, kill_in_the_middle(folder, "problem")


@pytest.mark.parametrize("way", ["tuner", "run"])
def test_a_killed_driver_is_resumed_to_the_same_choice(
    tmp_path: Path, way: str, killed: tuple[Path, dict[Path, int]], wanted: gt.Result
) -> None:
    folder, before = killed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    trainable = grasp_trainable(slow(str(tmp_path)))
    if way == "tuner":
        home = tmp_path / "moved" / "elsewhere"
        home.parent.mkdir()
        (tmp_path / "killed").rename(home)  # the experiment's folder may move in between
        saved = list(home.rglob("searcher-state-*"))
        assert saved
        for item in saved:
            item.write_bytes(b"")  # killed while Tune copied it
        grid = tune.Tuner.restore(str(home), trainable=trainable).fit()
        result = load_result(grid)
    else:
        home = tmp_path / "killed"
        for _ in ("the rest", "nothing is left to do"):
            searcher = GraspSearcher(**FEW)
            tune.run(
                trainable,
                search_alg=searcher,
                storage_path=str(tmp_path),
                name="killed",
                resume="AUTO",
                verbose=0,
            )
            result = searcher.result
            assert same(result, wanted)
    assert same(result, wanted)
    # What had ended was not run again: its outcomes are the very files of before.
    assert {item: (home / item).stat().st_mtime_ns for item in before} == before
    # Calls that the killed driver's workers had begun and not ended are told apart from budget;
    # each of the two workers may have been killed between counting a call and making it.
    seen = sum(item.stat().st_size for item in (tmp_path / "seen").iterdir())
    assert seen <= spent(result) + result.calls["repeated"] <= seen + 2
    assert spent(result) <= FEW["budget"]


def test_a_killed_driver_of_a_user_s_own_function_is_resumed(tmp_path: Path) -> None:
    before = kill_in_the_middle(tmp_path, "function")
    home = tmp_path / "killed"
    function = own_function(str(tmp_path))
    result = load_result(tune.Tuner.restore(str(home), trainable=function).fit())
    wanted, _ = shop(tmp_path / "undisturbed", own_function(""))
    assert same(result, wanted.result)
    assert {item: (home / item).stat().st_mtime_ns for item in before} == before
    assert spent(result) <= BUDGET


# Every trial that fails costs a new process, half a minute each on a machine with a load of 15.
@pytest.mark.timeout(400)
def test_an_experiment_that_ended_in_errors_is_restarted(tmp_path: Path, wanted: gt.Result) -> None:
    down = tmp_path / "down"
    down.touch()
    path = str(down)

    def on_call() -> None:
        import os

        if os.path.exists(path):
            raise RuntimeError("the network is down")

    trainable = grasp_trainable(linear_problem(on_call))
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(search_alg=GraspSearcher(**FEW), max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="errors", verbose=0),
    )
    with pytest.raises(gt.SearchError, match=r"probe failed 3 times.*the network is down"):
        tuner.fit()
    down.unlink()
    grid = tune.Tuner.restore(
        str(tmp_path / "errors"), trainable=trainable, restart_errored=True
    ).fit()
    assert same(load_result(grid), wanted)
