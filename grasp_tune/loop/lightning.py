"""The Lightning callback, for modules whose `configure_optimizers` returns a `Grasp`."""

from typing import Any

from grasp_tune.core.errors import InputError
from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

_callbacks: Any = need("lightning.pytorch.callbacks", "lightning", "GraspCallback")
Callback: Any = _callbacks.Callback
AVERAGES = ("WeightAveraging", "StochasticWeightAveraging")  # the first is new in Lightning 2.6


class GraspCallback(Callback):
    """A Lightning callback that logs `opt.figures()` and ends training when the budget is spent.

    The model then holds the chosen weights, and so does every checkpoint saved after that. `result`
    says how they were found. Earlier validation uses the current point of the current run.
    """

    def __init__(self) -> None:
        self.result: Result | None = None

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Raise `InputError` for callbacks that would replace the weights by an average."""
        kinds = tuple(getattr(_callbacks, name) for name in AVERAGES if hasattr(_callbacks, name))
        for item in trainer.callbacks:
            if isinstance(item, kinds):
                raise InputError(
                    f"{type(item).__name__} would replace the chosen weights by an average over "
                    "several runs; leave it out: the search averages its last run by itself"
                )

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Pass the loss to the optimizer: with a scaler or manual optimization, `step` gets none.

        In automatic optimization Lightning has divided it by the number of accumulated minibatches.
        """
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        loss = loss if scaler is None else loss / scaler.get_scale()
        _grasp(trainer).note_loss(loss, part=module.automatic_optimization)

    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        opt = _grasp(trainer)
        module.log_dict(opt.figures())
        if opt.done:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Load the chosen weights into the module, or the best so far if calls are left."""
        self.result = _grasp(trainer).finish()


def _grasp(trainer: Any) -> Grasp:
    for found in trainer.optimizers:
        inner = getattr(found, "optimizer", found)
        if isinstance(inner, Grasp):
            return inner
    raise TypeError("configure_optimizers must return a grasp_tune.Grasp for this callback")
