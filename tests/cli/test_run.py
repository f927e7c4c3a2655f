"""`run`, `resume` and `report` through the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import grasp_tune
from grasp_tune.config import load_run
from grasp_tune.runtime.lock import folder_lock
from grasp_tune.runtime.sweep_folder import load_search
from tests.cli.conftest import Command

ROOT = Path(grasp_tune.__file__).parents[1]


def test_run_writes_all_that_it_promises(command: Command, place: Path) -> None:
    ended = command("run", "small.yaml", "--out", "o")
    assert ended.code == 0, ended.err
    names = {"config.yaml", "result.json", "report.html", "model.safetensors", "run.json"}
    assert names <= {path.name for path in (place / "o").iterdir()}
    assert str(place / "o" / "report.html") in ended.out
    assert "oracle calls were spent" in ended.out
    assert "of 400 calls" in ended.err  # progress, in a log: lines
    # One number of calls everywhere.
    calls = sum(json.loads((place / "o" / "result.json").read_text())["calls"].values())
    assert f"done: {calls} of 400 calls" in ended.err
    assert f"{calls} of 400 oracle calls were spent" in ended.out
    assert f"{calls} of 400 oracle calls" in (place / "o" / "report.html").read_text()
    assert f"path: {place / 'rows.npz'}" in (place / "o" / "config.yaml").read_text()


OWN_LOSS = """
import sys, pathlib, torch.nn.functional as F
def loss(model, batch):
    frame, count = sys._getframe(1), 0
    while frame is not None:
        count += "/grasp_tune/" in frame.f_code.co_filename and frame.f_code.co_name != "<module>"
        frame = frame.f_back
    with open("hops.txt", "a") as file:
        file.write(f"{count}\\n")
    return F.cross_entropy(model(batch[0]), batch[1])
"""


def test_a_call_passes_at_most_fifteen_functions_from_command_to_loss(place: Path) -> None:
    (place / "own_loss.py").write_text(OWN_LOSS)
    arguments = ["small.yaml", "--out", "o", "--set", "problem.loss=own_loss:loss", "-q"]
    arguments += ["--set", "backend.fused=false"]
    subprocess.run(
        [sys.executable, "-m", "grasp_tune", "run", *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    hops = [int(line) for line in (place / "hops.txt").read_text().split()]
    assert len(hops) > 300  # most of the budget, 400
    assert max(hops) <= 15


def test_json_goes_to_standard_output_alone(command: Command, place: Path) -> None:
    ended = command("run", "small.yaml", "--out", "o", "--format", "json", "--quiet")
    assert ended.err == ""
    assert sum(ended.json["calls"].values()) <= 400
    assert ended.json["folder"] == str(place / "o")
    assert ended.json["quality"]["test"]["accuracy"] > 0.5
    result = load_run("o")
    assert result.score == ended.json["score"]


def test_the_same_command_again_trains_nothing(command: Command, place: Path) -> None:
    first = command("run", "small.yaml", "--out", "o", "--format", "json")
    tensors = load_run("o").tensors
    (place / "o" / "report.html").unlink()
    again = command("run", "small.yaml", "--out", "o", "--format", "json")
    assert again.json == first.json
    assert (place / "o" / "report.html").exists()
    for name, tensor in load_run("o").tensors.items():
        assert torch.equal(tensor, tensors[name])


def test_a_folder_of_another_config_is_refused_unless_fresh(command: Command, place: Path) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    before = (place / "o" / "result.json").read_bytes()
    (place / "o" / "mine.txt").write_text("kept")
    other = ["run", "small.yaml", "--out", "o", "-q", "--set", "seed=3"]
    ended = command(*other)
    assert ended.code == 2
    assert "the folder of another run (seed was 0, now 3), expected another folder" in ended.err
    assert (place / "o" / "result.json").read_bytes() == before
    assert command(*other, "--fresh").code == 0
    assert json.loads((place / "o" / "result.json").read_text())["spec"]["seed"] == 3
    assert (place / "o" / "mine.txt").read_text() == "kept"


@pytest.mark.usefixtures("place")
def test_a_finished_run_is_extended_by_more_budget_and_by_nothing_else(command: Command) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    before = load_run("o")
    ended = command("resume", "o", "-q", "--format", "json", "--budget", "900")
    assert ended.code == 0, ended.err
    assert 400 < sum(ended.json["calls"].values()) <= 900
    assert load_run("o").spec["extends"] == [400]
    assert load_run("o").runs[: len(before.runs)] == before.runs
    assert command("run", "small.yaml", "--out", "o", "-q", "--budget", "1000").code == 0
    assert load_run("o").spec["extends"] == [400, 900]
    less = command("resume", "o", "-q", "--budget", "800")
    assert less.code == 2 and "budget was 1000, now 800" in less.err
    other = command("run", "small.yaml", "--out", "o", "-q", "--budget", "1200", "--set", "seed=3")
    assert other.code == 2 and "seed was 0, now 3" in other.err


@pytest.mark.usefixtures("place")
def test_a_finished_run_is_extended_by_steps(command: Command) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    ended = command("resume", "o", "-q", "--format", "json", "--steps", "700")
    assert ended.code == 0, ended.err
    assert 400 < sum(ended.json["calls"].values()) <= 700
    assert load_run("o").spec["extends"] == [400]


@pytest.mark.usefixtures("place")
def test_a_finished_run_goes_on_for_minutes(command: Command) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    begun = time.monotonic()
    ended = command("resume", "o", "-q", "--format", "json", "--minutes", "0.02")
    assert ended.code == 0, ended.err
    assert time.monotonic() - begun < 30
    assert sum(ended.json["calls"].values()) > 400
    assert load_run("o").spec["extends"][0] == 400
    # The minutes are decided: nothing is left to do.
    again = command("resume", "o", "-q", "--format", "json")
    assert again.code == 0 and again.json["calls"] == ended.json["calls"], again.err
    refused = command("resume", "o", "--minutes", "0")
    assert refused.code == 2 and "minutes: got 0.0, expected a number > 0" in refused.err


def test_a_run_whose_minutes_are_over_gets_more(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "slow_loss.py").write_text(SLOW)
    sys.modules.pop("slow_loss", None)
    slow = ["--set", "problem.loss=slow_loss:loss", "--set", "backend.fused=false"]
    words = ["--minutes", "0.02", "--budget", "400", "--format", "json"]
    first = command("run", "small.yaml", "--out", "o", "-q", *slow, *words)
    assert first.code == 0 and load_run("o").partial, first.err
    again = command("resume", "o", "-q", "--format", "json")  # its time is over
    assert again.code == 0 and load_run("o").partial, again.err
    refused = command("resume", "o", "-q", "--budget", "900")
    assert refused.code == 2 and "a change (budget was 400, now 900)" in refused.err
    (place / "slow_loss.py").write_text(SLOW.replace("0.01", "0.0"))
    sys.modules.pop("slow_loss", None)
    monkeypatch.setattr("grasp_tune.cli.commands._BEGUN", time.monotonic())  # not that of pytest
    ended = command("resume", "o", "-q", "--format", "json", "--minutes", "2")
    assert ended.code == 0, ended.err
    assert not load_run("o").partial and load_run("o").spec["budget"] == 400
    assert sum(ended.json["calls"].values()) > sum(first.json["calls"].values())
    sys.modules.pop("slow_loss", None)


def test_a_refused_extension_leaves_the_run_as_it_was(command: Command, place: Path) -> None:
    run = ["run", "small.yaml", "--out", "o", "-q", "--set", "schedule=paper"]
    assert command(*run).code == 0
    config = (place / "o" / "config.yaml").read_text()
    refused = command("resume", "o", "-q", "--budget", "900")  # its plan is made for one budget
    assert refused.code in (1, 2) and refused.err.count("\n") == 1
    assert (place / "o" / "config.yaml").read_text() == config
    assert command("resume", "o", "-q").code == 0


def test_an_unfinished_run_gets_no_other_limit(command: Command, place: Path) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    (place / "o" / "result.json").unlink()
    refused = command("resume", "o", "--steps", "900")
    assert refused.code == 2
    assert "a change (steps was empty, now 900), expected only keys" in refused.err


def test_what_does_not_change_the_result_may_change(command: Command, place: Path) -> None:
    first = command("run", "small.yaml", "--out", "o", "-q", "--format", "json")
    (place / "o" / "state.json").unlink()
    again = command(
        "resume", "o", "-q", "--format", "json", "--set", "backend.workers=2", "--set", "title=T"
    )
    assert again.code == 0, again.err
    assert again.json["chosen"] == first.json["chosen"]
    refused = command("resume", "o", "--set", "budget=399")
    assert refused.code == 2
    assert "a change (budget was 400, now 399)" in refused.err


def test_environment_variables_override(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_TUNE__BUDGET", "350")
    command("run", "small.yaml", "--out", "o", "-q")
    assert json.loads((place / "o" / "result.json").read_text())["spec"]["budget"] == 350


def test_report_is_written_again_from_the_folder(command: Command, place: Path) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    page = (place / "o" / "report.html").read_text()
    (place / "o" / "report.html").unlink()
    ended = command("report", "o")
    assert (ended.code, ended.out) == (0, f"{place / 'o' / 'report.html'}\n")
    assert (place / "o" / "report.html").read_text() == page


def test_a_folder_in_use_is_a_failure_not_bad_input(command: Command, place: Path) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    with folder_lock(place / "o"):
        ended = command("resume", "o", "-q")
        fresh = command("run", "small.yaml", "--out", "o", "-q", "--fresh")
    assert (ended.code, fresh.code) == (1, 1)
    assert f"o is in use by process {os.getpid()}" in ended.err
    assert ended.err.count("\n") == 1
    assert (place / "o" / "result.json").exists()


def test_a_loss_that_is_never_finite_is_one_line(command: Command, place: Path) -> None:
    (place / "broken_loss.py").write_text(
        "def loss(model, batch):\n    return model(batch[0]).sum() * float('nan')\n"
    )
    loss = "problem.loss=broken_loss:loss"
    ended = command("run", "small.yaml", "--out", "o", "-q", "--set", loss)
    assert ended.code in (1, 2)
    assert "at the start point" in ended.err
    assert ended.err.count("\n") == 1


SLOW = """\
import time
import torch.nn.functional as F

def loss(model, batch):
    time.sleep(0.01)
    return F.cross_entropy(model(batch[0]), batch[1])
"""


def test_a_run_stopped_before_its_folder_was_made_names_no_folder_to_resume(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "stopping.py").write_text("def rows():\n    raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(place)
    stopped = command("run", "small.yaml", "--out", "o", "--set", "problem.dataset=stopping:rows")
    assert stopped.code == 130
    assert stopped.err.splitlines()[-1] == "stopped before anything was begun"
    assert not (place / "o").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on_and_does(
    command: Command, place: Path, number: signal.Signals, code: int
) -> None:
    (place / "slow_loss.py").write_text(SLOW)
    run = [sys.executable, "-m", "grasp_tune", "run", "small.yaml", "--out", "o"]
    run += ["--set", "problem.loss=slow_loss:loss", "--set", "backend.fused=false"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        run, cwd=place, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    state = place / "o" / "state.json"
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None:
        if state.exists() and load_search(state).outcomes:
            break
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert not out
    assert err.splitlines()[-1].endswith(f"To go on: grasp-tune resume {place / 'o'}")
    partial = command("report", "o")  # what there is so far
    assert partial.code == 0
    assert "Stopped before the end" in (place / "o" / "report.html").read_text()
    # The loss without its pause is the same function: going on ends where a whole run ends.
    (place / "slow_loss.py").write_text(SLOW.replace("0.01", "0.0"))
    sys.modules.pop("slow_loss", None)
    ended = command("resume", "o", "-q", "--format", "json")
    assert ended.code == 0, ended.err
    whole = command("run", "small.yaml", "--out", "whole", "-q", "--format", "json", *run[7:])
    assert ended.json["chosen"] == whole.json["chosen"]
    sys.modules.pop("slow_loss", None)


def test_resume_works_from_another_folder(
    command: Command,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    command("run", "small.yaml", "--out", "o", "-q")
    (place / "o" / "result.json").unlink()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    ended = command("resume", place / "o", "-q")
    assert ended.code == 0, ended.err
    model = load_run(place / "o").model
    assert model(torch.zeros(2, 3)).shape == (2, 2)


def budget_in(folder: Path) -> int:
    budget: int = json.loads((folder / "result.json").read_text())["spec"]["budget"]
    return budget


def test_a_budget_may_be_given_in_epochs(command: Command, place: Path) -> None:
    # 40 rows in minibatches of 4: ten calls an epoch. The smallest limit counts.
    run = ["run", "small.yaml", "-q", "--set", "epochs=12"]
    assert command(*run, "--out", "o").code == 0
    assert budget_in(place / "o") == 120
    saved = (place / "o" / "config.yaml").read_text()
    assert "budget: 120" in saved and "epochs: 12.0" in saved
    assert command("resume", "o", "-q").code == 0
    assert command(*run, "--out", "o").code == 0  # the same command goes on with the same run
    (place / "epochs.yaml").write_text(
        (place / "small.yaml").read_text().replace("budget: 400", "")
    )
    plan = command("plan", "epochs.yaml", "--set", "epochs=30", "--format", "json").json
    assert plan["budget"] == 300
    refused = command("plan", "epochs.yaml", "--set", "epochs=30", "--grad-norm", "1")
    assert refused.code == 2 and "expected budget or steps" in refused.err


def test_limits_on_the_command_line_replace_those_of_the_config(
    command: Command, place: Path
) -> None:
    # The config says 400 calls; 40 rows in minibatches of 4 make ten calls an epoch.
    for words, calls in (
        (["--epochs", "50"], 500),
        (["--steps", "450"], 450),
        (["--budget", "410", "--epochs", "50"], 410),
        (["--minutes", "5", "--budget", "60"], 60),
    ):
        plan = command("plan", "small.yaml", *words, "--format", "json")
        assert plan.json["budget"] == calls
    assert command("run", "small.yaml", "--out", "o", "-q", "--epochs", "12").code == 0
    assert budget_in(place / "o") == 120
    assert command("resume", "o", "-q").code == 0
    refused = command("run", "small.yaml", "--out", "p", "--epochs", "0")
    assert refused.code == 2 and "epochs: got 0.0, expected > 0" in refused.err


def test_minutes_are_decided_once_for_a_folder(command: Command, place: Path) -> None:
    (place / "minutes.yaml").write_text(
        (place / "small.yaml").read_text().replace("budget: 400", "minutes: 0.02")
    )
    run = ["run", "minutes.yaml", "--out", "o", "-q", "--format", "json"]
    first = command(*run)
    assert first.code == 0, first.err
    assert first.json["seconds"] < 0.02 * 60 * 1.05 + 0.5
    again = command(*run)
    assert again.json["chosen"] == first.json["chosen"]
    assert command("resume", "o", "-q", "--format", "json").json == again.json


def test_a_folder_of_the_users_own_outlives_a_run_that_cannot_begin(
    command: Command, place: Path
) -> None:
    (place / "own").mkdir()
    (place / "link").symlink_to(place / "own")
    for out in ("own", "link"):
        ended = command("run", "small.yaml", "--out", out, "-q", "--budget", "1")
        assert ended.code == 2 and ended.err.startswith("budget=1 is too small"), ended.err
        assert (place / out).is_dir() and not list((place / out).iterdir())


def test_a_name_that_no_folder_can_have_is_bad_input(command: Command, place: Path) -> None:
    ended = command("run", "small.yaml", "--out", "n" * 300, "-q")
    assert ended.code == 2 and ended.err.endswith(
        "File name too long, expected a writable folder\n"
    )


@pytest.mark.parametrize("schedule", ["promote", "paper"])
@pytest.mark.parametrize("method", ["nonconvex", "convex", "convex-free"])
def test_the_smallest_budget_that_an_error_names_works(
    command: Command, place: Path, schedule: str, method: str
) -> None:
    change = ["--set", f"schedule={schedule}", "--set", f"method={method}", "--budget"]
    for start in (1, 9):
        budget = start
        for attempt in range(2):
            # The same folder: a run that could not begin leaves nothing in the way.
            ended = command("run", "small.yaml", "--out", f"o{start}", "-q", *change, str(budget))
            if ended.code == 0:
                break
            assert ended.code == 2 and attempt == 0, ended.err
            assert not (place / f"o{start}").exists()
            budget = max(int(word) for word in re.findall(r"[0-9]+", ended.err.replace(",", "")))
        assert ended.code == 0, ended.err


def test_watch_follows_a_run_to_its_end(command: Command, place: Path) -> None:
    (place / "slow_loss.py").write_text(SLOW)
    words = ["run", "small.yaml", "--out", "o", "-q", "--set", "problem.loss=slow_loss:loss"]
    process = subprocess.Popen(
        [sys.executable, "-m", "grasp_tune", *words, "--set", "backend.fused=false"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    limit = time.monotonic() + 60
    while not (place / "o" / "config.yaml").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    ended = command("watch", "o", "--every", "0.1")
    assert process.wait(timeout=60) == 0
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) >= 3  # some of the way, the end, the report
    assert re.fullmatch(r"done: [0-9]+ of 400 calls, best loss .*", lines[-2])
    assert lines[-1] == f"report: {place / 'o' / 'report.html'}"
    sys.modules.pop("slow_loss", None)


def test_a_metric_chooses_and_ends_a_run_from_the_command_line(
    command: Command, place: Path
) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 3))
    y = (x[:, 0] + 0.8 * rng.standard_normal(200) > 0).astype(int)  # nobody gets all of them right
    np.savez(place / "rows.npz", x_train=x, y_train=y)
    words = ["--set", "problem.model={name: mlp, hidden: [32]}", "--set", "problem.validation=0.3"]
    words += [
        "--set",
        "problem.metric=auc",
        "--set",
        "problem.choose_by=metric",
        "--budget",
        "3000",
    ]
    run = ["run", "small.yaml", "-q", "--format", "json", *words]
    whole = command(*run, "--out", "whole", "--set", "patience=0").json
    early = command(*run, "--out", "early", "--set", "patience=2").json
    assert whole["by"] == early["by"] and 0 < 1 - early["score"] < 1
    assert sum(early["calls"].values()) < sum(whole["calls"].values())
    assert any("ended early" in note for note in early["notes"])
    assert early["quality"]["metric"] == "auc" and early["quality"]["validation"]["metric"] > 0.5
    page = (place / "early" / "report.html").read_text()
    assert "validation auc" in page.lower() or "auc on validation" in page.lower()
    config = (place / "early" / "config.yaml").read_text()
    assert "patience: 2" in config and "choose_by: metric" in config
    # What a metric needs is said in one line before anything is trained.
    refused = command("run", "small.yaml", "--out", "o", "--set", "problem.choose_by=metric")
    assert refused.code == 2 and "metric without a metric or validation rows" in refused.err
    refused = command("plan", "small.yaml", "--set", "schedule=paper", "--set", "patience=2")
    assert refused.code == 2 and "patience" in refused.err and refused.err.count("\n") == 1
