"""Networks on text and on sequences: transformers, recurrent nets, word vectors."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.datasets import Arrays
from benchmarks.models import Batch
from benchmarks.modern import text
from benchmarks.modern.layers import Block, Experts
from benchmarks.workload import Workload

LETTERS, WORDS = len(text.CHARACTERS), 500
LENGTH = 24  # tokens of a piece of text


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean negative log-likelihood of every next token."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class Transformer(nn.Module):
    """A decoder whose output layer shares the weights of its embedding."""

    def __init__(self, tokens: int, width: int, blocks: list[Block], *, last_norm: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.blocks = nn.Sequential(*blocks)
        self.norm: nn.Module = nn.LayerNorm(width) if last_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the next token at every position."""
        hidden = self.norm(self.blocks(self.embed(x) + self.places[: x.shape[1]]))
        return hidden @ self.embed.weight.T


class Recurrent(nn.Module):
    """A recurrent net over embedded tokens, or over numbers."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], inputs: nn.Module, sizes: tuple[int, ...]):
        super().__init__()
        width, hidden, outputs = sizes
        self.inputs = inputs
        self.core = kind(width, hidden, batch_first=True)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output at every position."""
        out: Tensor = self.out(self.core(self.inputs(x))[0])
        return out


def _characters(folder: Path) -> Arrays:
    train, test = text.characters()
    return Arrays(*text.windows(train, LENGTH, 20_000, 1), *text.windows(test, LENGTH, 1_000, 2))


def _words(folder: Path) -> Arrays:
    train, test = text.words(WORDS)
    return Arrays(*text.windows(train, LENGTH, 20_000, 3), *text.windows(test, LENGTH, 1_000, 4))


# ---- a chaotic series ----------------------------------------------------------------------------


def _series(folder: Path) -> Arrays:
    """Return the Mackey-Glass series with noise; the next values are to be predicted."""
    rng = np.random.default_rng(5101)
    delay, steps = 17, 24_000
    value = np.full(steps, 1.2)
    value[: delay + 1] += rng.normal(0.0, 0.1, delay + 1)
    for now in range(delay, steps - 1):
        old = value[now - delay]
        value[now + 1] = 0.9 * value[now] + 0.2 * old / (1.0 + old**10)
    seen = torch.tensor(value + rng.normal(0.0, 0.05, steps), dtype=torch.float32)[500::3]
    seen = (seen - seen.mean()) / seen.std()
    starts = torch.arange(0, len(seen) - LENGTH - 1)
    at = starts[:, None] + torch.arange(LENGTH + 1)
    x, y = seen[at[:, :-1], None], seen[at[:, 1:], None]
    cut = len(x) - 800
    return Arrays(x[:cut], y[:cut], x[cut + LENGTH :], y[cut + LENGTH :])


def squared_sequence(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error over all positions."""
    return F.mse_loss(model(batch[0]), batch[1])


# ---- word vectors --------------------------------------------------------------------------------

NEGATIVES, VECTORS, REACH = 5, 1_000, 4


def _pairs(folder: Path) -> Arrays:
    """Return words with one neighbour and five others, drawn by frequency to the power 3/4."""
    made = []
    for part, count, seed in zip(text.words(VECTORS), (40_000, 4_000), (5, 6), strict=True):
        draw = torch.Generator().manual_seed(seed)
        frequent = torch.bincount(part, minlength=VECTORS).float() ** 0.75
        centre = torch.randint(REACH, len(part) - REACH, (count,), generator=draw)
        shift = torch.randint(1, REACH + 1, (count,), generator=draw)
        shift = shift * (2 * torch.randint(0, 2, (count,), generator=draw) - 1)
        others = torch.multinomial(frequent, count * NEGATIVES, True, generator=draw)
        others = others.view(count, NEGATIVES)
        made += [part[centre], torch.cat([part[centre + shift][:, None], others], 1)]
    return Arrays(*made)


class Vectors(nn.Module):
    """Two vectors for every word: one as the centre, one as the neighbour."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.centre, self.context = nn.Embedding(VECTORS, width), nn.Embedding(VECTORS, width)
        nn.init.uniform_(self.centre.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.context.weight)


def negative_sampling(model: nn.Module, batch: Batch) -> Tensor:
    """Return Mikolov's loss, which raises the neighbour's score and lowers the others'."""
    assert isinstance(model, Vectors)
    scores = torch.einsum("bw,bnw->bn", model.centre(batch[0]), model.context(batch[1]))
    signs = torch.ones(scores.shape[1])
    signs[0] = -1.0
    return F.softplus(scores * signs).sum(1).mean()


def _decoder(tokens: int, width: int, **options: bool | float) -> Callable[[], nn.Module]:
    pre = bool(options.get("pre_norm", True))

    def build() -> nn.Module:
        blocks = [
            Block(width, causal=True, pre_norm=pre, dropout=float(options.get("dropout", 0.0)))
            for _ in range(2)
        ]
        return Transformer(tokens, width, blocks, last_norm=pre)

    return build


def _experts() -> nn.Module:
    block = Block(32, causal=True, inner=Experts(32))
    return Transformer(LETTERS, 32, [block], last_norm=True)


LANGUAGE = (
    Workload(
        "char-transformer",
        "character transformer, pre-norm, tied weights",
        False,
        _characters,
        _decoder(LETTERS, 32),
        next_token,
        budget=1_200,
        batch_size=16,
        sample=1_000,
    ),
    Workload(
        "word-transformer",
        "word transformer, post-norm, dropout 0.1",
        False,
        _words,
        _decoder(WORDS, 32, pre_norm=False, dropout=0.1),
        next_token,
        budget=1_200,
        batch_size=16,
        sample=1_000,
    ),
    Workload(
        "experts",
        "character transformer with a mixture of four experts",
        False,
        _characters,
        _experts,
        next_token,
        budget=1_200,
        batch_size=16,
        sample=1_000,
    ),
    Workload(
        "char-lstm",
        "character LSTM",
        False,
        _characters,
        lambda: Recurrent(nn.LSTM, nn.Embedding(LETTERS, 32), (32, 64, LETTERS)),
        next_token,
        budget=1_500,
        batch_size=16,
        sample=1_000,
    ),
    Workload(
        "series-gru",
        "GRU on a chaotic series, squared loss",
        False,
        _series,
        lambda: Recurrent(nn.GRU, nn.Identity(), (1, 32, 1)),
        squared_sequence,
        budget=1_500,
        batch_size=16,
        sample=1_000,
        classes=False,
    ),
    Workload(
        "skipgram",
        "skip-gram word vectors, negative sampling",
        False,
        _pairs,
        Vectors,
        negative_sampling,
        budget=2_000,
        batch_size=64,
        sample=4_000,
        classes=False,
    ),
)
