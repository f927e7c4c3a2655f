"""Hugging Face's Trainer: `optimizers=(opt, None)`, and this callback does the rest.

The Trainer calls `step()` without a loss; `Grasp` takes it from the model's output.
"""

from typing import Any

from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

TrainerCallback: Any = need("transformers", "transformers", "GraspCallback").TrainerCallback


class GraspCallback(TrainerCallback):
    """Logs the phase, the calls and the best loss; ends training when the budget is spent.

    opt: the optimizer that the Trainer was given.

    The model then holds the chosen weights; `result` says how they were found.
    """

    def __init__(self, opt: Grasp) -> None:
        self._opt = opt
        self.result: Result | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Silence the schedule that the Trainer makes where it is given none."""
        schedule = kwargs.get("lr_scheduler")
        if schedule is not None and hasattr(schedule, "lr_lambdas"):
            schedule.lr_lambdas = [lambda step: 1.0 for _ in schedule.lr_lambdas]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = control.should_training_stop or self._opt.done
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (logs := kwargs.get("logs")) is not None:
            logs["grasp/calls"], logs["grasp/best_loss"] = self._opt.calls, self._opt.best_loss

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the chosen weights in the model; the best so far where the budget is not spent."""
        self.result = self._opt.finish()
