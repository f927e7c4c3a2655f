"""Modern workloads: each trains, each is the same twice, and a third is held out by the rule."""

import hashlib
import os
from pathlib import Path

import pytest
import torch

from benchmarks.measures import judge
from benchmarks.modern import HELD_OUT, MODERN, held_out
from benchmarks.modern.structured import NODES, graph
from benchmarks.workload import Workload
from grasp_tune.peers import find_peer

DATA = Path(os.environ["GRASP_TUNE_DATA"]) if os.environ.get("GRASP_TUNE_DATA") else None
PRESENT = [item for item in MODERN if item.missing(DATA) is None]


def test_a_third_is_held_out_by_the_hash_of_the_name() -> None:
    # SHA-256 of "a" begins with ca, of "b" with 3e, of "c" with 2e, of "d" with 18.
    assert hashlib.sha256(b"d").hexdigest().startswith("18")
    assert held_out(["a", "b", "c", "d"]) == {"d"}
    assert len(MODERN) == 19
    assert {item.name for item in MODERN if item.held_out} == HELD_OUT
    assert {"char-lstm", "diffusion", "finetune", "fourier", "skipgram", "vit"} == HELD_OUT


def test_budgets_are_those_of_a_short_run() -> None:
    assert all(1_000 <= item.budget <= 4_000 for item in MODERN)
    assert all(item.group == "modern" and not item.convex for item in MODERN)


@pytest.mark.parametrize("item", PRESENT, ids=lambda item: item.name)
def test_a_few_steps_lower_the_loss_and_the_test_rows_are_judged(item: Workload) -> None:
    bundle = item.bundle(DATA)
    start = judge(bundle, None, 3)
    result = find_peer("adamw").run(bundle.problem, 40, seed=3)
    assert not result.diverged
    end = judge(bundle, result.tensors, 3)
    assert end.loss < start.loss
    assert 0.5 * end.loss < end.test_loss < 2.0 * end.loss  # test rows are like the others
    assert (0.0 <= end.accuracy <= 1.0) == item.classes
    assert judge(bundle, result.tensors, 3).loss == end.loss


def test_the_graph_is_symmetric_and_normalised() -> None:
    links, _, label = graph()
    torch.testing.assert_close(links, links.T)
    degree = (links > 0).sum(1).float()  # with the node itself
    torch.testing.assert_close(links.diagonal(), 1.0 / degree)
    assert 7.0 < float(degree.mean()) - 1.0 < 9.0  # eight edges a node
    same = (label[:, None] == label[None, :]) & (links > 0)
    inside = (int(same.sum()) - NODES) / (int((links > 0).sum()) - NODES)
    assert 0.6 < inside < 0.73  # two thirds
