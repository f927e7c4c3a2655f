"""Several processes that train together (DistributedDataParallel): all of them decide alike."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

import grasp_tune as gt
from grasp_tune.loop import grasp
from tests.loop.test_grasp import BUDGET, batches, network, train, whole_loss


def _rank(rank: int, port: int, folder: str, budget: dict[str, float]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    grasp.TIMED += 8 * rank  # by its own clock, the second rank has timed enough later
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    inner = network(seed=rank)  # DDP sends rank 0's weights to all
    model = DistributedDataParallel(inner)
    opt = gt.Grasp(model, **budget)  # type: ignore[arg-type]
    train(model, opt, batches(seed=rank))
    result = opt.finish()
    kept = [inner.state_dict(), result.score, opt.calls, opt.budget]
    torch.save(kept, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()
    os._exit(0)  # the interpreter's own way out now and then aborts in torch's threads


@pytest.mark.parametrize("budget", [{"budget": BUDGET}, {"minutes": 0.03}])
def test_all_ranks_decide_alike(tmp_path: Path, budget: dict[str, float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined]
        _rank, (port, str(tmp_path), budget), nprocs=2, start_method="spawn"
    )
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    weights = [name for name in one[0] if "running" not in name and "tracked" not in name]
    assert all(torch.equal(one[0][name], other[0][name]) for name in weights)
    assert one[1:] == other[1:]
    model = network()
    model.load_state_dict(one[0])
    assert whole_loss(model) < 0.6
