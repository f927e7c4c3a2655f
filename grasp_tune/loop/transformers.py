"""The callback for Hugging Face's Trainer with `optimizers=(opt, None)`."""

import copy
from typing import Any

from grasp_tune.extras import need
from grasp_tune.loop.grasp import Grasp
from grasp_tune.runtime.result import Result

TrainerCallback: Any = need("transformers", "transformers", "GraspCallback").TrainerCallback


class GraspCallback(TrainerCallback):
    """A Trainer callback that logs `opt.figures()` and ends training when the budget is spent.

    The model then holds the chosen weights (the best so far if calls are left), and `result` says
    how they were found. With `load_best_model_at_end` it holds those of the best evaluation.

    opt: the optimizer given to the Trainer; by default the one that the Trainer makes from
        `optimizer_cls_and_kwargs=(gt.Grasp, {"model": model, "budget": 10_000})`.
    """

    def __init__(self, opt: Grasp | None = None) -> None:
        self._opt: Any = opt
        self.result: Result | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the optimizer; disable the Trainer's default learning rate schedule."""
        if self._opt is None:
            made = kwargs.get("optimizer")
            self._opt = getattr(made, "optimizer", made)  # Accelerate's wrapper holds it
            if not isinstance(self._opt, Grasp):
                kind = type(self._opt).__name__
                raise TypeError(f"the Trainer's optimizer is a {kind}, expected a grasp_tune.Grasp")
        if self._opt.model is None:  # the optimizer was made from parameters
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
        """Load the chosen weights, or keep those that the Trainer was told to load at the end."""
        model, loaded = kwargs["model"], None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            loaded = copy.deepcopy(model.state_dict())
        self.result = self._opt.finish()
        if loaded is not None:
            model.load_state_dict(loaded)
