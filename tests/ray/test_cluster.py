"""A real cluster of three nodes, one of which is killed while it trains."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("cluster")  # a Ray of its own

ROOT = Path(__file__).parents[2]


def test_a_node_that_dies_in_mid_training_changes_nothing_but_the_time() -> None:
    # The script compares everything bit for bit with an undisturbed sweep, and judges.
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cluster_demo"), "--budget", "400"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "nodes that worked: 2, killed: 1" in done.stdout
    assert "equal to the undisturbed result bit for bit: yes" in done.stdout
