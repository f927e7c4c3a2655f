"""Lightning: `configure_optimizers` returns a `Grasp`, and this callback does the rest."""

from typing import Any

from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

Callback: Any = need("lightning.pytorch", "lightning", "GraspCallback").Callback


class GraspCallback(Callback):
    """Logs the phase, the calls and the best loss; ends training when the budget is spent.

    The model then holds the chosen weights, and so does every checkpoint saved from there on;
    `result` says how they were found.
    """

    def __init__(self) -> None:
        self.result: Result | None = None

    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        opt = _grasp(trainer)
        module.log_dict({"grasp/calls": float(opt.calls), "grasp/best_loss": opt.best_loss})
        if opt.done:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Leave the chosen weights in the module; the best so far where the budget is not spent."""
        self.result = _grasp(trainer).finish()


def _grasp(trainer: Any) -> Grasp:
    for found in trainer.optimizers:
        inner = getattr(found, "optimizer", found)
        if isinstance(inner, Grasp):
            return inner
    raise TypeError("configure_optimizers must return a grasp_tune.Grasp for this callback")
