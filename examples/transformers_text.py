"""Hugging Face's Trainer with a small BERT. Only the lines marked `grasp` change.

pip install 'grasp_tune[transformers]'; python examples/transformers_text.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import grasp_tune as gt
from grasp_tune.loop.transformers import GraspCallback


class Brackets(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of 24 tokens; the label says whether token 5 comes before token 6."""

    def __init__(self, rows: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(7, 40, (rows, 24), generator=draw)
        places = torch.rand(rows, 24, generator=draw).argsort(1)[:, :2]
        self.ids.scatter_(1, places, torch.tensor([[5, 6]]).expand(rows, 2))
        self.labels = (places[:, 0] < places[:, 1]).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[at], "labels": self.labels[at]}


def main(budget: int = 600) -> float:
    """Train the classifier; return the accuracy."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    train, test = Brackets(4_000, seed=1), Brackets(500, seed=2)
    opt = gt.Grasp(model, budget=budget)  # grasp
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=budget,
            per_device_train_batch_size=32,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train,
            optimizers=(opt, None),  # grasp
            callbacks=[GraspCallback(opt)],  # grasp
        )
        trainer.train()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test.ids).logits.argmax(1) == test.labels).float().mean())
    print(f"{accuracy:.1%} of {len(test)} test rows")
    return accuracy


if __name__ == "__main__":
    main()
