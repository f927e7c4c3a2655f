"""What people do with Lightning and the Hugging Face Trainer beyond the examples."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import grasp_tune as gt
from tests.loop.test_examples import example
from tests.loop.test_grasp import X, Y, bits, network, same, scaler_for_cpus

pytestmark = pytest.mark.filterwarnings("default")  # other people's packages


def fit(others: Sequence[Any] = (), by_hand: bool = False, **options: Any) -> Any:
    """Return Lightning's module and the callback after training by `network` and 60 steps."""
    lightning = example("lightning_digits").L

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = network(), not by_hand

        def training_step(self, batch: Any, at: int) -> Any:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            if by_hand:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self) -> Any:
            return gt.Grasp(self, 60)

    module, grasp = Module(), example("lightning_digits").GraspCallback()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet["enable_model_summary"] = False
    trainer = lightning.Trainer(
        max_epochs=-1, callbacks=[grasp, *others], accelerator="cpu", **quiet, **options
    )
    trainer.fit(module, loader)
    return module, grasp, trainer


def test_lightning_s_steps_by_hand_need_no_closure() -> None:
    (one, grasp, trainer), (other, _, _) = fit(), fit(by_hand=True)
    assert same(bits(one), bits(other))
    assert not grasp.result.partial
    assert trainer.callback_metrics["grasp/phase"] == 4.0  # done
    assert trainer.callback_metrics["grasp/calls"] == sum(grasp.result.calls.values())


def test_lightning_s_loss_is_that_of_all_minibatches_of_a_step() -> None:
    _, plain, _ = fit()
    _, grasp, _ = fit(accumulate_grad_batches=5)  # 25 minibatches an epoch
    assert not grasp.result.partial
    assert 0.5 < grasp.result.score / plain.result.score < 1.1  # not a fifth


def test_lightning_s_averages_of_weights_are_refused() -> None:
    from lightning.pytorch import callbacks

    averages = [callbacks.StochasticWeightAveraging(swa_lrs=0.1)]
    with pytest.raises(gt.InputError, match="StochasticWeightAveraging would replace the chosen"):
        fit(averages)


def test_lightning_s_scaled_losses_are_taken_without_their_scale() -> None:
    from lightning.pytorch.plugins import MixedPrecision

    scaler = scaler_for_cpus(growth_interval=5)
    _, grasp, _ = fit(plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    assert not grasp.result.partial
    assert 0.05 < grasp.result.score < 0.69  # twelve doublings of the scale do not show


class Noting:
    """A Trainer's loss of the user's own, three times the model's."""

    optimizer: Any

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        loss, outputs = 3.0 * (out := model(**inputs)).loss, out
        getattr(self.optimizer, "optimizer", self.optimizer).note_loss(loss)
        return (loss, outputs) if return_outputs else loss


def hugging(folder: Path, noting: bool = False, **options: Any) -> Any:
    """Return a Trainer after 40 steps, and its callback; it makes the optimizer itself."""
    text = example("transformers_text")
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 24}
    config = text.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, **sizes)
    kind = type("WithMyLoss", (Noting, text.Trainer), {}) if noting else text.Trainer
    grasp, arguments = text.GraspCallback(), {"report_to": [], "use_cpu": True, **options}
    trainer = kind(
        text.BertForSequenceClassification(config),
        text.TrainingArguments(str(folder), max_steps=40, disable_tqdm=True, **arguments),
        train_dataset=text.Brackets(80, seed=1),
        eval_dataset=text.Brackets(40, seed=2),
        optimizer_cls_and_kwargs=(gt.Grasp, {"budget": 40}),
        callbacks=[grasp],
    )
    trainer.train()
    return trainer, grasp


def test_hugging_face_s_losses_may_be_the_user_s_own(tmp_path: Path) -> None:
    _, grasp = hugging(
        tmp_path, noting=True, eval_strategy="steps", eval_steps=7, save_strategy="no"
    )
    assert not grasp.result.partial
    assert 1.2 < grasp.result.score < 2.4  # not the model's own, some 0.7


def test_hugging_face_s_losses_are_those_of_all_minibatches_of_a_step(tmp_path: Path) -> None:
    text = example("transformers_text")
    transformers = sys.modules["transformers"]
    scores = []
    for parts in (1, 4):
        torch.manual_seed(0)
        sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24}
        config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        rows = [{**row, "labels": row["input_ids"]} for row in text.Brackets(80, seed=1)]
        model, grasp = transformers.GPT2LMHeadModel(config), text.GraspCallback()
        arguments = {"gradient_accumulation_steps": parts, "save_strategy": "no"}
        text.Trainer(
            model,
            text.TrainingArguments(
                str(tmp_path), max_steps=40, report_to=[], use_cpu=True, **arguments
            ),
            train_dataset=rows,
            optimizer_cls_and_kwargs=(gt.Grasp, {"model": model, "budget": 40}),
            callbacks=[grasp],
        ).train()
        scores.append(grasp.result.score)
    assert scores[1] == pytest.approx(scores[0], rel=0.1)  # not a fourth


def test_hugging_face_s_trainer_may_load_the_best_evaluation(tmp_path: Path) -> None:
    options: dict[str, Any] = dict.fromkeys(("eval_strategy", "save_strategy"), "steps")
    options |= dict.fromkeys(("eval_steps", "save_steps", "logging_steps"), 5)
    trainer, grasp = hugging(tmp_path, load_best_model_at_end=True, **options)
    assert not grasp.result.partial
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric)
