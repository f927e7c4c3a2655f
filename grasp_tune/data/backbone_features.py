"""Pictures as a frozen, pre-trained network sees them: computed once, kept in a file.

A linear layer on them is the convex problem of the paper's experiments.
"""

import logging
import pickle
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from grasp_tune.config.errors import DataError, MissingDataError, require
from grasp_tune.config.options import Backbone, Model
from grasp_tune.core.errors import ProblemError
from grasp_tune.data.data import Data, reading
from grasp_tune.data.images import torchvision
from grasp_tune.engine.checkpoints import digest
from grasp_tune.runtime.files import replace_atomically

logger = logging.getLogger(__name__)

# The pixels that the pre-trained networks of torchvision were trained on.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FORMAT = 2  # a change in what is computed must not find old files


def with_features(data: Data, options: Backbone, device: torch.device) -> Data:
    """The data with the network's features in place of its pictures; labels stay."""
    if data.pixels is None or data.x.ndim != 4 or data.x.shape[1] not in (1, 3):
        raise ProblemError(
            f"problem.model: got backbone for {data.name}, whose rows have shape "
            f"{tuple(data.x.shape[1:])}; expected pictures of 1 or 3 channels (mnist, cifar10, "
            "image_folder). For features of your own use the data set npz with the model softmax"
        )
    weights = starting_weights(options) or _torchvision_weights(options)
    folder = Path(options.cache or "~/.cache/grasp_tune/features").expanduser()
    name = f"{options.architecture}-{options.size}-{_FORMAT}-{digest(weights)}"

    def features(pictures: Tensor) -> Tensor:
        # A name that changes with anything the features depend on.
        file = folder / f"{name}-{digest({'pictures': pictures})}.npy"
        try:
            return torch.from_numpy(np.load(file, allow_pickle=False))
        except FileNotFoundError:
            pass
        except (ValueError, OSError, EOFError, MemoryError):  # half a file, say from a full disk
            logger.warning("%s cannot be read; computing the features again", file)
        logger.info("computing the features of %d pictures, once", len(pictures))
        found = _compute(pictures, weights, options, device)
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(file, partial(np.save, arr=found.numpy(), allow_pickle=False))
        return found

    x_test = None if data.x_test is None else features(data.x_test)
    return replace(data, x=features(data.x), x_test=x_test, pixels=None)


def starting_weights(options: Model) -> dict[str, Tensor]:
    """The weights that a model starts from; none where a config names none."""
    if path := getattr(options, "weights", None):
        return _load(Path(path), "problem.model.weights")
    return _torchvision_weights(options) if getattr(options, "pretrained", False) else {}


def _torchvision_weights(options: Any) -> dict[str, Tensor]:
    """torchvision's ImageNet weights, if they were fetched before or may be now."""
    architecture = getattr(options, "architecture", options.name)
    models = torchvision(f"the model {options.name}").models
    entry: Any = models.get_model_weights(architecture).DEFAULT
    place = Path(torch.hub.get_dir()) / "checkpoints" / entry.url.rpartition("/")[2]
    fault = f"are not in {place}; put the file of that name there"
    if place.is_file():
        return _load(place, "problem.model")
    if options.download:
        try:
            return dict(entry.get_state_dict(progress=False, check_hash=True))
        except (OSError, RuntimeError) as error:
            fault = f"could not be fetched ({error})"
    raise MissingDataError(
        f"problem.model: the weights of {architecture} {fault}, name a file with "
        "problem.model.weights, or set problem.model.download: true to fetch them"
    )


def _load(path: Path, key: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise MissingDataError(
            f"{key}: {path} is not there; expected a file with the network's state_dict, saved by "
            "torch.save or as .safetensors"
        )
    how = "a state_dict of tensors, as torch.save(model.state_dict(), path) writes"
    with reading(path, "weights", how):
        if path.suffix == ".safetensors":
            return load_file(path)
        # weights_only: tensors alone, so that a file of weights cannot run code.
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # its own words are a page long
            raise ValueError("it holds more than tensors, or is damaged") from None
    right = isinstance(state, dict) and all(isinstance(v, Tensor) for v in state.values())
    names = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
    got = textwrap.shorten(names, 80, placeholder=" ...")
    require(path, right, f"holds {got}, expected {how}")
    return dict(state)


@torch.no_grad()
def _compute(
    pictures: Tensor, weights: dict[str, Tensor], options: Backbone, device: torch.device
) -> Tensor:
    network: nn.Module = torchvision("the model backbone").models.get_model(options.architecture)
    network.fc = nn.Identity()  # what enters the last layer is what we want
    try:
        network.load_state_dict({k: v for k, v in weights.items() if not k.startswith("fc.")})
    except RuntimeError as error:
        fault = (
            f"they do not fit {options.architecture} ({str(error).splitlines()[-1].strip()[:200]})"
        )
        raise DataError(f"problem.model.weights: {fault}") from None
    network.to(device).eval()
    mean, std = (torch.tensor(part, device=device).view(3, 1, 1) for part in (_MEAN, _STD))
    side, done = (options.size, options.size), []
    for chunk in pictures.split(options.chunk):
        x = (chunk.to(device).float() / 255).expand(-1, 3, -1, -1)  # grey: the same in each channel
        if x.shape[-2:] != side:
            x = F.interpolate(x, side, mode="bilinear", align_corners=False, antialias=True)
        done.append(network((x - mean) / std).float().cpu())
    return torch.cat(done)
