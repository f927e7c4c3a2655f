"""Every model by name: its shape, its start, how it reads bytes."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.config.errors import DataError, EntryPointError
from grasp_tune.config.loader import experiment_from
from grasp_tune.config.models import Augment, ModelFactory, Pixels, default_model
from grasp_tune.config.options import CONVEX_MODELS, MODELS, LinearModel, Mlp
from grasp_tune.core.errors import ProblemError
from grasp_tune.data import DataSpec, PixelScale

ROWS = DataSpec("rows", (6,), 3, 3)
PICTURES = DataSpec("pictures", (3, 8, 8), 3, 3, PixelScale((0.5, 0.25, 0.0), (0.5, 0.25, 1.0), 2))


def factory(spec: DataSpec, outputs: int, **options: Any) -> ModelFactory:
    experiment = experiment_from({"problem": {"dataset": "digits", "model": options}})
    assert experiment.problem.model is not None
    return ModelFactory(experiment.problem.model, spec, outputs)


def batch(spec: DataSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    if spec.pixels is None:
        return torch.randn(4, *spec.input_shape, generator=generator)
    return torch.randint(0, 256, (4, *spec.input_shape), generator=generator, dtype=torch.uint8)


def weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("spec", [ROWS, PICTURES], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "options",
    [
        {"name": "softmax"},
        {"name": "softmax", "bias": False},
        {"name": "softmax", "start": "random"},
        {"name": "mlp", "hidden": [5, 4], "activation": "tanh"},
        {"name": "mlp", "activation": "gelu"},
    ],
    ids=str,
)
def test_models_for_rows_take_pictures_too(spec: DataSpec, options: dict[str, Any]) -> None:
    make = factory(spec, 3, **options)
    scores = make()(batch(spec))
    assert scores.shape == (4, 3)
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize(
    "options",
    [
        {"name": "cnn"},
        {"name": "cnn", "channels": [2, 3, 4, 5, 6], "hidden": 7},
        {"name": "resnet18"},
        {"name": "resnet18", "stem": "small", "norm": "group"},
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_models_for_pictures(options: dict[str, Any], channels: int) -> None:
    scale = PixelScale((0.5,), (0.5,))
    spec = DataSpec("pictures", (channels, 8, 8), 3, 3, scale)
    assert factory(spec, 3, **options)()(batch(spec)).shape == (4, 3)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_models_for_pictures_refuse_rows(name: str) -> None:
    with pytest.raises(ProblemError, match=rf"got {name} for rows, .*shape \(6,\); expected pict"):
        factory(ROWS, 3, name=name)()


def test_linear_models_start_at_zero_unless_told_otherwise() -> None:
    assert all(not p.any() for p in factory(ROWS, 3, name="softmax")().parameters())
    assert all(p.any() for p in factory(ROWS, 3, name="softmax", start="random")().parameters())
    # 6 features and a constant for each of 3 outputs.
    assert weights(factory(ROWS, 3, name="softmax")()) == 21
    assert weights(factory(ROWS, 1, name="logistic", bias=False)()) == 6
    # 6 -> 5 -> 4 -> 3 with constants: 35 + 24 + 15.
    assert weights(factory(ROWS, 3, name="mlp", hidden=[5, 4])()) == 74


def test_resnet18_is_torchvisions_with_outputs_for_the_data() -> None:
    from grasp_tune.data import images

    theirs = images.torchvision("the test").models.resnet18()
    ours = factory(PICTURES, 10, name="resnet18")()
    assert weights(ours) == weights(theirs) - (512 * 1000 + 1000) + (512 * 10 + 10)


def test_bytes_become_numbers_by_the_channels_statistics() -> None:
    assert PICTURES.pixels is not None
    layer = Pixels(PICTURES.pixels)
    x = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 1, 3, 1).expand(1, 3, 3, 1)
    # 2 (b/255 - mean) / std with b/255 = 0, 1, 0.2.
    right = [[-2.0, 2.0, -1.2], [-2.0, 6.0, -0.4], [0.0, 2.0, 0.4]]
    assert torch.allclose(layer(x)[0, :, :, 0], torch.tensor(right), atol=1e-6)
    assert list(layer.state_dict()) == []


def test_a_factory_is_small_and_gives_the_same_model_for_the_same_seed() -> None:
    make = factory(PICTURES, 3, name="cnn")
    packed = pickle.dumps(make)
    assert len(packed) < 2000
    models = []
    for build in (make, pickle.loads(packed)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            models.append(build())
    one, two = (model.state_dict() for model in models)
    assert all(torch.equal(one[key], two[key]) for key in one)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        bare = list(make._network().parameters())[-2]
    last = list(models[0].parameters())[-2]
    assert torch.equal(bare, last)


def test_absurd_sizes_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(DataError, match=r"mlp has .* numbers for .*; expected at most 2147483648"):
        factory(ROWS, 3, name="mlp", hidden=[65536, 65536])()
    with pytest.raises(DataError, match=r"cnn has .* numbers"):
        factory(PICTURES, 3, name="cnn", channels=[65536, 65536])()


def test_defaults_follow_the_method_and_the_labels() -> None:
    assert default_model(False, ROWS) == Mlp()
    assert default_model(True, ROWS) == LinearModel(name="softmax")
    assert default_model(True, DataSpec("n", (6,), None, 1)) == LinearModel(name="linear")
    assert set(MODELS) >= set(CONVEX_MODELS)


def test_models_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def line(spec, width=1):\n"
        "    one, two = nn.Linear(spec.features, width), nn.Linear(width, spec.outputs)\n"
        "    return nn.Sequential(one, two)\n"
        "def wrong(spec):\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    make = factory(ROWS, 1, name="own_models:line", options={"width": 4})
    assert weights(make()) == 28 + 5
    with pytest.raises(EntryPointError, match=r"returned int, expected a torch.nn.Module"):
        factory(ROWS, 1, name="own_models:wrong")()
    with pytest.raises(
        EntryPointError, match=r"model: got own_models:line\(spec, width=1\), got an"
    ):
        factory(ROWS, 1, name="own_models:line", options={"widht": 4})()


def test_augmentation_changes_training_batches_and_no_others() -> None:
    spec = DataSpec("grey", (1, 8, 8), 3, 3)
    made = ModelFactory(Mlp(), spec, 3, ("flip", "crop", "noise"))
    model, x = made(), batch(spec)
    layer = model.get_submodule("augment")
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(layer(x), first)  # random numbers are torch's own, which calls address
    assert not torch.equal(first, x)
    model.eval()
    assert torch.equal(layer(x), x)
    assert torch.equal(model(x), model.get_submodule("network")(x))


def test_flips_and_crops_move_whole_pictures() -> None:
    x = torch.arange(64.0).reshape(1, 1, 8, 8).expand(50, 1, 8, 8)
    flipped = Augment(("flip",))(x)
    assert {bool(torch.equal(row, x[0])) for row in flipped} == {True, False}
    assert all(torch.equal(row, x[0]) or torch.equal(row, x[0].flip(-1)) for row in flipped)
    moved = Augment(("crop",))(x)  # by up to one pixel; neighbours in a row differ by 1
    assert {float(row[0, 4, 4]) for row in moved} == {
        36.0 + 8 * a + b for a in (-1, 0, 1) for b in (-1, 0, 1)
    }
    with pytest.raises(ProblemError, match=r"problem.augment: got flip for rows of shape \(6,\)"):
        Augment(("flip",))(batch(ROWS))


def test_a_model_starts_from_weights_that_fit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = factory(ROWS, 5, name="mlp")()  # five outputs: its last layer does not fit
    torch.save(other.state_dict(), tmp_path / "w.pt")
    torch.manual_seed(2)
    plain = factory(ROWS, 3, name="mlp")()
    torch.manual_seed(2)
    begun = factory(ROWS, 3, name="mlp", weights=str(tmp_path / "w.pt"))()
    assert torch.equal(begun.get_parameter("1.weight"), other.get_parameter("1.weight"))
    assert torch.equal(begun.get_parameter("3.weight"), plain.get_parameter("3.weight"))
    assert factory(ROWS, 3, name="mlp", weights=str(tmp_path / "w.pt")).notes() == (
        "2 of the 4 tensors of mlp start from the given weights; at random start 3.weight, 3.bias.",
    )
    assert factory(ROWS, 5, name="mlp", weights=str(tmp_path / "w.pt")).notes() == (
        "4 of the 4 tensors of mlp start from the given weights.",
    )
    assert factory(ROWS, 3, name="mlp").notes() == ()
    # Those of a backbone are for its features, not for the layer on them.
    assert weights(factory(ROWS, 3, name="backbone", weights=str(tmp_path / "w.pt"))()) == 21
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(DataError, match=r"none of the 1 tensors fits mlp; expected names such as"):
        factory(ROWS, 3, name="mlp", weights=str(tmp_path / "w.pt"))()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            nn.Linear(2, 2),
            r"as weights \(it holds more than tensors, or is damaged\); expected a state_dict",
        ),
        ({"epoch": 3, "state_dict": {}}, "w.pt: holds epoch, state_dict, expected a state_dict of"),
    ],
)
def test_a_file_without_plain_weights_is_one_line(
    given: object, words: str, tmp_path: Path
) -> None:
    torch.save(given, tmp_path / "w.pt")
    with pytest.raises(DataError, match=words) as caught:
        factory(ROWS, 3, name="mlp", weights=str(tmp_path / "w.pt"))()
    assert len(str(caught.value)) < 200 + len(str(tmp_path))


def nothing(x: Tensor) -> None:
    """An augmentation that forgets to return the rows."""


def half(x: Tensor) -> Tensor:
    return x[::2]


@pytest.mark.parametrize(("name", "got"), [("nothing", "NoneType"), ("half", "2 rows")])
def test_an_augmentation_returns_the_rows_it_was_given(name: str, got: str) -> None:
    layer = Augment((f"{__name__}:{name}",))
    with pytest.raises(EntryPointError, match=f"returned {got}, expected a tensor of the 4 rows"):
        layer(torch.zeros(4, 6))
