"""Checkpoints in an artifact store: each knows its key and its sweep."""

import shutil
from pathlib import Path

import pytest
import torch
from optuna.artifacts import FileSystemArtifactStore

import grasp_tune as gt
from grasp_tune.executors.optuna import ArtifactCheckpoints


def test_an_artifact_of_another_sweep_or_key_is_refused(tmp_path: Path) -> None:
    artifacts = FileSystemArtifactStore(tmp_path)
    ours, theirs = (ArtifactCheckpoints(artifacts, sweep) for sweep in ("a", "b"))
    assert not ours.exists("point")
    with pytest.raises(
        gt.CheckpointError, match="checkpoint point is missing: there is no grasp-a"
    ):
        ours.read("point")
    theirs.write("point", {"x": torch.ones(3)}, {"n": 1})
    assert theirs.read("point").tensors["x"].tolist() == [1.0] * 3
    name = theirs.name("point")
    for copy in (ours.name("point"), theirs.name("other")):
        shutil.copy(tmp_path / name, tmp_path / copy)
    with pytest.raises(gt.CheckpointError, match="its sweep is 'b', expected 'a'") as caught:
        ours.read("point")
    assert caught.value.key == "point"  # so that it is made again
    with pytest.raises(gt.CheckpointError, match="its key is 'point', expected 'other'"):
        theirs.read("other")
    theirs.delete("point")
    theirs.delete("point")
    assert not theirs.exists("point") and theirs.keys() == ()
