"""What each phase of a sweep adds to the memory of a process, on a model of 10^7 parameters.

python -m tests.engine.footprint: prints, as JSON, the peak of each phase in vectors of the
model's size, above what the worker holds at rest.
"""

import json
import sys

import torch
from torch import Tensor, nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.tasks import Arm, ProbeTask, Sample, ScoreTask, Segment, Task, TrainTask
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.store import CheckpointStore

SIZE = 10_000_000
VECTOR = 4 * SIZE  # bytes


class Large(nn.Module):
    """10^7 parameters whose loss needs hardly more than themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(SIZE))


def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    point = model.point
    assert isinstance(point, Tensor)
    return torch.dot(point, point) + batch[0].mean() * point[0]


def resident(name: str) -> int:
    """A line of the process's status, in bytes: VmRSS now, VmHWM at its highest."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name}")


def peak_of(worker: Worker, task: Task) -> float:
    """The highest resident memory during a task above that before it, in vectors."""
    for parameter in worker.oracle.parameters:
        parameter.grad = None
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the highest so far
    worker.run(task)
    return (resident("VmHWM") - before) / VECTOR


def main() -> None:
    torch.set_num_threads(1)
    problem = TorchProblem(
        model=Large, loss=loss, data=(torch.randn(64),), batch_size=4, device="cpu"
    )
    worker = Worker(problem, 0, CheckpointStore(sys.argv[1]))
    sgd = Segment(Arm.of(1, "sgd", 0.01), 0, 3)
    kept = Segment(Arm.of(2, "sgd", 0.01), 0, 3, keep=(1, 2, 3))
    worker.run(TrainTask("t", (kept,)))
    samples = tuple(Sample(str(key), 0, 3) for key in kept.candidates)
    tasks: dict[str, Task] = {
        "probe of 2": ProbeTask("p", (0, 2)),
        "probe of 8": ProbeTask("p", (0, 8)),
        "score one": ScoreTask("s", "gradient", (Sample(START, 0, 3),)),
        "score three": ScoreTask("s", "gradient", samples),
        "values": ScoreTask("s", "value", samples),
        "train": TrainTask("t", (sgd,)),
        "train and keep": TrainTask("t", (kept,)),
    }
    found = {name: peak_of(worker, task) for name, task in tasks.items()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
