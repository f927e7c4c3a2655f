"""Features of a frozen network: computed once, the same as by hand, computed anew when stale."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from grasp_tune.config.errors import DataError, MissingDataError
from grasp_tune.config.options import Backbone
from grasp_tune.core.errors import ProblemError
from grasp_tune.data import Data, PixelScale, images
from grasp_tune.data import backbone_features as features
from grasp_tune.data.backbone_features import with_features

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the weights of a network that nobody trained."""
    file = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = images.torchvision("the test").models.resnet18()
    torch.save(network.state_dict(), file)
    return file


def pictures(channels: int = 3, rows: int = 5) -> Data:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(0, 256, (rows, channels, 8, 8), generator=generator, dtype=torch.uint8)
    y = torch.arange(rows) % 2
    return Data("p", x, y, x[:2], y[:2], ("a", "b"), PixelScale((0.1,), (0.3,), 9.0))


def options(weights: Path, cache: Path, **more: Any) -> Backbone:
    return Backbone(weights=str(weights), cache=str(cache), size=32, chunk=2, **more)


def test_features_are_what_enters_the_last_layer(weights: Path, tmp_path: Path) -> None:
    data = pictures()
    got = with_features(data, options(weights, tmp_path), CPU)
    network = images.torchvision("the test").models.resnet18()
    network.load_state_dict(torch.load(weights, weights_only=True))
    seen: list[torch.Tensor] = []
    network.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    x = F.interpolate(data.x.float() / 255, (32, 32), mode="bilinear", antialias=True)
    with torch.no_grad():
        network.eval()((x - mean) / std)
    assert torch.allclose(got.x, seen[0], atol=1e-5)
    assert got.x_test is not None
    assert torch.allclose(got.x_test, seen[0][:2], atol=1e-5)
    assert got.spec.input_shape == (512,)
    assert got.spec.pixels is None
    assert torch.equal(got.y, data.y)


def test_features_are_computed_once(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    compute = features._compute

    def counted(*given: Any) -> torch.Tensor:
        calls.append(1)
        return compute(*given)

    monkeypatch.setattr(features, "_compute", counted)
    settings = options(weights, tmp_path)
    first = with_features(pictures(), settings, CPU)
    assert len(calls) == 2  # training pictures, test pictures
    again = with_features(pictures(), settings, CPU)
    assert len(calls) == 2
    assert torch.equal(first.x, again.x)
    # Other pictures, another size: other features.
    with_features(pictures(rows=6), settings, CPU)
    assert len(calls) == 3  # the first two, the test pictures, are the same as before
    with_features(pictures(), settings.model_copy(update={"size": 40}), CPU)
    assert len(calls) == 5


def test_half_a_file_is_computed_again(weights: Path, tmp_path: Path) -> None:
    settings = options(weights, tmp_path)
    first = with_features(pictures(), settings, CPU)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:50])
    assert torch.equal(with_features(pictures(), settings, CPU).x, first.x)
    assert {file.suffix for file in tmp_path.iterdir()} == {".npy"}


def test_grey_pictures_are_shown_in_every_channel(weights: Path, tmp_path: Path) -> None:
    assert with_features(pictures(1), options(weights, tmp_path), CPU).spec.input_shape == (512,)


def test_weights_that_do_not_fit_are_told(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"they do not fit resnet50"):
        with_features(pictures(), options(weights, tmp_path, architecture="resnet50"), CPU)
    with pytest.raises(MissingDataError, match=r"problem.model.weights: .*gone is not there"):
        with_features(pictures(), options(tmp_path / "gone", tmp_path), CPU)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(DataError, match=r"cannot be read as weights"):
        with_features(pictures(), options(tmp_path / "text.pth", tmp_path), CPU)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(DataError, match=r"holds list, expected a state_dict"):
        with_features(pictures(), options(tmp_path / "list.pth", tmp_path), CPU)


def test_a_file_of_weights_cannot_run_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"conv1.weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(DataError, match=r"cannot be read as weights"):
        with_features(pictures(), options(tmp_path / "trap.pth", tmp_path), CPU)
    assert not (tmp_path / "sprung").exists()


def test_weights_that_were_not_downloaded_say_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(MissingDataError) as caught:
        with_features(pictures(), Backbone(cache=str(tmp_path)), CPU)
    told = str(caught.value)
    assert f"{tmp_path}/checkpoints/resnet18-" in told
    assert "problem.model.weights" in told
    assert "problem.model.download: true" in told


def test_weights_that_were_downloaded_before_are_found(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    entry = images.torchvision("the test").models.get_model_weights("resnet18").DEFAULT
    place = tmp_path / "checkpoints" / entry.url.rpartition("/")[2]
    place.parent.mkdir()
    place.write_bytes(weights.read_bytes())
    found = with_features(pictures(), Backbone(cache=str(tmp_path), size=32), CPU)
    named = with_features(pictures(), options(weights, tmp_path / "other"), CPU)
    assert torch.allclose(found.x, named.x, atol=1e-6)


def test_rows_have_no_features(weights: Path, tmp_path: Path) -> None:
    rows = Data("rows", torch.ones(3, 4), torch.tensor([0, 1, 0]), labels=("a", "b"))
    with pytest.raises(
        ProblemError, match=r"shape \(4,\); expected pictures .*use the data set npz"
    ):
        with_features(rows, options(weights, tmp_path), CPU)
