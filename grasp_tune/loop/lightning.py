"""Lightning: `configure_optimizers` returns a `Grasp`, and this callback does the rest."""

from typing import Any

from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

Callback: Any = need("lightning.pytorch", "lightning", "GraspCallback").Callback


class GraspCallback(Callback):
    """Logs `opt.figures()`; ends training when the budget is spent.

    The model then holds the chosen weights, and so does every checkpoint saved from there on;
    `result` says how they were found. Validation before that sees the point of the run under way.
    """

    def __init__(self) -> None:
        self.result: Result | None = None

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Note the loss, for steps that are given none: with a scaler, or made by hand."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        _grasp(trainer).note_loss(loss if scaler is None else loss / scaler.get_scale())

    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        opt = _grasp(trainer)
        module.log_dict(opt.figures())
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
