"""Memory on a model of 10^7 parameters, measured in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
def test_samples_and_candidates_cost_no_memory_each(tmp_path: Path) -> None:
    # Large blocks go back to the system at once, so that what is resident is what is in use.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.engine.footprint", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | settings,
    )
    vectors = json.loads(found.stdout)  # of the model's size
    slack = 0.3
    # The loss itself needs some; a probe holds one running vector beside that, however long it is.
    assert vectors["probe of 2"] <= vectors["train"] + 1.0 + slack
    assert vectors["probe of 8"] <= vectors["probe of 2"] + slack
    # One running vector for the candidate being scored, however many there are.
    assert vectors["score one"] <= vectors["train"] + 1.0 + slack
    assert vectors["score three"] <= vectors["score one"] + slack
    assert vectors["values"] <= 1.0 + slack  # the checkpoint, while it is read
    # What a run keeps is in the store, and only what it was told to keep.
    assert vectors["train and keep"] <= vectors["train"] + slack
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
