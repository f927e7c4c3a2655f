"""The examples, with the real packages: one file each, as a user would run it."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ray import cloudpickle

from grasp_tune.data.images import torchvision

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    torchvision("the examples")  # imported by others; a build for CUDA lacks its operators
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BRINGS = {
    "datasets": ("sklearn",),
    "lightning": ("lightning",),
    "optuna": ("optuna",),
    "ray": ("ray",),
    "transformers": ("accelerate", "transformers"),
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_which_extras_bring_what_it_imports(path: Path) -> None:
    text = path.read_text("utf-8")
    (extras,) = re.findall(r"^pip install 'grasp_tune\[([a-z,]+)\]'; \w", text, re.M)
    brought = {"torch", "grasp_tune", *(x for name in extras.split(",") for x in BRINGS[name])}
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.M)) - sys.stdlib_module_names
    assert imported <= brought


@pytest.mark.filterwarnings("default")  # other people's packages
@pytest.mark.parametrize(
    ("name", "budget", "least"),
    [
        ("plain_loop", 600, 0.93),
        ("lightning_digits", 600, 0.93),
        ("accelerate_digits", 600, 0.93),
        ("optuna_layers", 1, 0.8),  # trials
        ("transformers_text", 80, 0.4),  # a few steps: that it runs and ends, not that it is good
    ],
)
def test_an_example_runs(name: str, budget: int, least: float) -> None:
    assert example(name).main(budget) > least


@pytest.mark.filterwarnings("default")
def test_hugging_face_s_trainer_makes_the_optimizer(tmp_path: Path) -> None:
    text = example("transformers_text")
    sizes = {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 24}
    config = text.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, **sizes)
    model, grasp = text.BertForSequenceClassification(config), text.GraspCallback()
    trainer = text.Trainer(
        model,
        text.TrainingArguments(
            str(tmp_path), max_steps=40, report_to=[], save_strategy="no", use_cpu=True
        ),
        train_dataset=text.Brackets(80, seed=1),
        optimizer_cls_and_kwargs=(text.gt.Grasp, {"model": model, "budget": 40}),
        callbacks=[grasp],
    )
    trainer.train()
    assert grasp.result is not None and 30 <= sum(grasp.result.calls.values()) <= 40


@pytest.mark.filterwarnings("default")
def test_the_example_of_ray_tune_runs(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Tune keeps its results by default
    module = example("ray_tune_digits")
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    assert module.main(150) > 0.6


@pytest.mark.filterwarnings("default")
def test_the_example_of_ray_train_runs(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    module = example("ray_train_digits")
    cloudpickle.register_pickle_by_value(module)
    assert module.main(250) > 0.8


@pytest.mark.parametrize(
    "name",
    [
        "plain_loop",
        "lightning_digits",
        "transformers_text",
        "accelerate_digits",
        "ray_train_digits",
    ],
)
def test_three_lines_change(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("  # grasp") == 3
    used = [line for line in text.split("\n") if "opt.step(" in line or ".finish(" in line]
    assert all("  # grasp" in line for line in used)


@pytest.mark.parametrize(("name", "at"), [("ray_tune_digits", 0), ("optuna_layers", 1)])
def test_the_docs_show_how_an_example_came_about(name: str, at: int) -> None:
    docs = (EXAMPLES.parent / "docs" / "own-loop.md").read_text()
    diff = docs.split("```diff\n")[at + 1].split("```")[0].splitlines()
    code = [
        line.split("  # grasp")[0] for line in (EXAMPLES / f"{name}.py").read_text().split("\n")
    ]
    now = [line[1:] for line in diff if not line.startswith("-")]
    place = -1
    for line in now:  # all of them, in this order
        place = code.index(line, place + 1)
    changed = sum("  # grasp" in line for line in (EXAMPLES / f"{name}.py").read_text().split("\n"))
    assert changed <= sum(line.startswith("+") for line in diff) <= changed + 2
