"""Hugging Face's Trainer: `optimizers=(opt, None)`; the loss comes from the model's output."""

import copy
from typing import Any

from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

TrainerCallback: Any = need("transformers", "transformers", "GraspCallback").TrainerCallback


class GraspCallback(TrainerCallback):
    """Logs `opt.figures()`; ends training when the budget is spent.

    opt: the optimizer that the Trainer was given; by default the one that it makes from
        `optimizer_cls_and_kwargs=(gt.Grasp, {"model": model, "budget": 10_000})`.

    The model then holds the chosen weights, the best so far where the budget is not spent, or with
    `load_best_model_at_end` those of the best evaluation; `result` says how the first were found.
    """

    def __init__(self, opt: Grasp | None = None) -> None:
        self._opt: Any = opt
        self.result: Result | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the optimizer; silence the schedule that a Trainer makes where it is given none."""
        if self._opt is None:
            made = kwargs.get("optimizer")
            self._opt = getattr(made, "optimizer", made)  # Accelerate's wrapper holds it
            if not isinstance(self._opt, Grasp):
                kind = type(self._opt).__name__
                raise TypeError(f"the Trainer's optimizer is a {kind}, expected a grasp_tune.Grasp")
        if self._opt.model is None:  # it was made from parameters
            self._opt.listen_to(kwargs["model"])
        schedule = kwargs.get("lr_scheduler")
        if schedule is not None and hasattr(schedule, "lr_lambdas"):
            schedule.lr_lambdas = [lambda step: 1.0 for _ in schedule.lr_lambdas]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = control.should_training_stop or self._opt.done
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (logs := kwargs.get("logs")) is not None:
            logs.update(self._opt.figures())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the chosen weights in the model, or those that the Trainer was to load instead."""
        model, loaded = kwargs["model"], None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            loaded = copy.deepcopy(model.state_dict())
        self.result = self._opt.finish()
        if loaded is not None:
            model.load_state_dict(loaded)
