"""Files, includes, environment variables and --set."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.loader import experiment_from, load_experiment
from grasp_tune.config.schema import Experiment

DIGITS = "problem: {dataset: digits}\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / "main.yaml"


def load(path: Path, *overrides: str, **environment: str) -> Experiment:
    return load_experiment(path, overrides=overrides, environment=environment)


def refused(path: Path, *overrides: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, *overrides, **environment)
    return str(caught.value)


def test_a_config_with_only_a_dataset_is_whole(tmp_path: Path) -> None:
    experiment = load(write(tmp_path, main=DIGITS))
    assert experiment.budget == 10_000
    assert experiment.batch_size == 64
    assert experiment.method.name == "nonconvex"
    assert experiment.backend.kind == "local"
    assert not list(experiment.notes())


def test_an_experiment_survives_the_way_through_json() -> None:
    given = experiment_from(
        {
            "problem": {"dataset": {"name": "npz", "path": "x"}, "model": "cnn"},
            "method": {"name": "convex", "probe": 0.125},
            "backend": {"kind": "ray", "gpus_per_task": 0},
            "challengers": ["momentum", "adamw"],
        }
    )
    assert experiment_from(given.to_dict()) == given
    assert experiment_from({"problem": {"dataset": "a.b:c"}}).problem.dataset.name == "a.b:c"


def test_an_experiment_is_frozen() -> None:
    experiment = experiment_from({"problem": {"dataset": "digits"}})
    with pytest.raises(ValueError, match=r"frozen"):
        experiment.budget = 3


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    assert load(write(tmp_path, main=DIGITS + "budget: 1e5")).budget == 100_000


def test_a_convex_method_on_a_network_is_remarked_upon(tmp_path: Path) -> None:
    text = "problem: {dataset: digits, model: mlp}\nmethod: convex"
    (note,) = load(write(tmp_path, main=text)).notes()
    assert "mlp is not convex" in note


def test_code_that_a_config_names_is_told() -> None:
    own = {"name": "a:data", "collate_fn": "a:batch"}
    (note,) = experiment_from({"problem": {"dataset": own, "loss": "a:loss"}}).notes()
    assert note == "The config runs code of its own: a:batch, a:data, a:loss."


# -- includes ----------------------------------------------------------------------------------


def test_an_included_file_lies_below_the_one_that_includes_it(tmp_path: Path) -> None:
    base = "problem: {dataset: digits, batch_size: 8}\nbudget: 70\nseed: 3"
    main = "include: base.yaml\nproblem: {batch_size: 16}\nbudget: 90"
    experiment = load(write(tmp_path, base=base, main=main))
    assert (experiment.batch_size, experiment.budget, experiment.seed) == (16, 90, 3)


def test_later_includes_win_and_includes_may_include(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(
        tmp_path / "parts", deep=DIGITS + "seed: 1\nbudget: 11", one="include: deep.yaml\nseed: 2"
    )
    main = "include: [parts/one.yaml, two.yaml]\n"
    experiment = load(write(tmp_path, two="seed: 3", main=main))
    assert (experiment.seed, experiment.budget) == (3, 11)


def test_a_section_whose_name_changes_is_replaced_whole(tmp_path: Path) -> None:
    base = "problem: {dataset: {name: npz, path: x.npz, scale: 2}}\nmethod: {L_eps: 3}"
    main = "include: base.yaml\nproblem: {dataset: {name: digits}}\nmethod: {name: convex}"
    experiment = load(write(tmp_path, base=base, main=main))
    assert (
        experiment.problem.dataset
        == experiment_from({"problem": {"dataset": "digits"}}).problem.dataset
    )


def test_an_error_names_the_file_that_holds_the_slip(tmp_path: Path) -> None:
    path = write(tmp_path, base="budget: 0", main=f"include: base.yaml\n{DIGITS}")
    assert refused(path) == f"{tmp_path}/base.yaml: budget: got 0, expected >= 1"
    path = write(tmp_path, base="budget: 5", main=f"include: base.yaml\n{DIGITS}\nseed: -1")
    assert refused(path) == f"{path}: seed: got -1, expected >= 0"


def test_circles_of_includes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, main="include: other.yaml", other="include: main.yaml")
    assert "expected at most 32" in refused(path)
    assert "expected at most 32" in refused(write(tmp_path, main="include: main.yaml"))


def test_endless_chains_of_includes_are_refused(tmp_path: Path) -> None:
    files = {f"f{i}": f"include: [f{i + 1}.yaml, f{i + 1}.yaml]" for i in range(40)}
    path = write(tmp_path, main="include: f0.yaml", **files, f40=DIGITS)
    assert "expected at most 32" in refused(path)


@pytest.mark.parametrize("name", ["../secret.yaml", "link.yaml", "sub/../../secret.yaml"])
def test_includes_stay_in_the_folder_of_the_first_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, secret="password: 1")
    folder = tmp_path / "here"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    told = refused(write(folder, main=f"include: {name}"))
    assert f"include: got '{name}', expected a file in {folder} or below it" in told
    assert "password" not in told


def test_absolute_and_odd_includes_are_refused(tmp_path: Path) -> None:
    assert "or below it" in refused(write(tmp_path, main=f"include: {tmp_path}/main.yaml"))
    assert "a .yaml or .yml file" in refused(write(tmp_path, main="include: notes.txt"))
    assert "a file name" in refused(write(tmp_path, main="include: 3"))
    assert "a file name" in refused(write(tmp_path, main='include: "a\\0.yaml"'))
    assert "no such file" in refused(write(tmp_path, main="include: gone.yaml"))


# -- files that are none -----------------------------------------------------------------------


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone.yaml") == (
        f"{tmp_path}/gone.yaml: got no such file, expected a YAML file"
    )
    assert "expected a readable file" in refused(tmp_path)
    assert "expected keys and values" in refused(write(tmp_path, main="just words"))
    assert "problem: got nothing" in refused(write(tmp_path, main=""))
    (tmp_path / "main.yaml").write_bytes(b"#" * (1 << 20) + b"\n#")
    assert "more than 1048576 bytes" in refused(tmp_path / "main.yaml")


# -- overrides ---------------------------------------------------------------------------------


def test_set_wins_over_environment_wins_over_file(tmp_path: Path) -> None:
    path = write(tmp_path, main=DIGITS + "budget: 10\nseed: 10\ntitle: file")
    experiment = load(
        path, "budget=30", GRASP_TUNE__BUDGET="20", GRASP_TUNE__SEED="20", GRASP_TUNE_DATA="x"
    )
    assert (experiment.budget, experiment.seed, experiment.title) == (30, 20, "file")


def test_overrides_reach_into_sections_written_short(tmp_path: Path) -> None:
    path = write(tmp_path, main=DIGITS)
    experiment = load(path, "problem.dataset.scale=1e-2", GRASP_TUNE__METHOD__L_EPS="0.5")
    assert experiment.problem.dataset.scale == 0.01  # type: ignore[attr-defined]
    assert experiment.method.L_eps == 0.5  # type: ignore[attr-defined]


def test_the_order_of_set_does_not_matter_for_kinds(tmp_path: Path) -> None:
    path = write(tmp_path, main=DIGITS + "backend: {kind: local, fused: true}")
    one = load(path, "backend.workers=4", "backend.kind=ray")
    assert one == load(path, "backend.kind=ray", "backend.workers=4")
    assert one.backend.workers == 4


def test_values_of_set_are_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, main=DIGITS + "out: somewhere")
    experiment = load(
        path,
        "problem.model={name: mlp, hidden: [7, 5]}",
        "out=~",
        "challengers=[sgd]",
        "title='3'",
    )
    assert experiment.problem.model.hidden == (7, 5)  # type: ignore[union-attr]
    assert (experiment.out, experiment.challengers, experiment.title) == (None, ("sgd",), "3")
    assert load(path, "title=a: b # c").title == "a: b # c"  # a bare value is taken as it is


def test_errors_name_the_override(tmp_path: Path) -> None:
    path = write(tmp_path, main=DIGITS)
    assert refused(path, "budget=0") == "--set: budget: got 0, expected >= 1"
    assert refused(path, "budget") == (
        "--set: got 'budget', expected key=value, such as problem.batch_size=32"
    )
    assert refused(path, "a..b=1").startswith("--set: got 'a..b=1', expected key=value")
    assert refused(path, GRASP_TUNE__BUDGET="x") == (
        "GRASP_TUNE__BUDGET: budget: got 'x', expected a whole number"
    )
    assert refused(path, GRASP_TUNE__BUDGETS="1") == (
        "GRASP_TUNE__BUDGETS: budgets: got an unknown key, expected budget, the nearest key"
    )
    assert refused(path, "problem.dataset={name: npz").startswith("--set: problem.dataset: line 1")
    assert refused(path, "problem.dataset=!!python/name:os.system").startswith("--set: problem.dat")
    assert "at most 18 digits" in refused(path, f"budget={'9' * 5000}")
    assert "expected words between dots" in refused(path, GRASP_TUNE__="1")
    assert "expected words between dots" in refused(path, f"{'a.' * 40}b=1")


def test_the_environment_is_looked_at_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_TUNE__SEED", "17")
    assert load_experiment(write(tmp_path, main=DIGITS)).seed == 17
    assert experiment_from({"problem": {"dataset": "digits"}}).seed == 0


# -- what loading does not do ------------------------------------------------------------------


def test_loading_imports_nothing_that_a_config_names(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    text = "problem: {dataset: trap:data, model: trap:model, loss: trap:loss}\n"
    path = write(tmp_path, main=text + "method: {base: trap:base}\nchallengers: [trap:peer]")
    code = (
        "import sys; from grasp_tune.config import load_experiment; "
        "load_experiment(sys.argv[1]); "
        "print(sorted({'torch', 'ray', 'optuna', 'trap', 'sklearn'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"


def test_errors_travel_between_processes(tmp_path: Path) -> None:
    error = ConfigError("a.yaml", "budget", "0", ">= 1")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "a.yaml: budget: got 0, expected >= 1"
