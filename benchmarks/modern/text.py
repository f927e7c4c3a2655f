"""Text without a download: the source of Python's standard library."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

MODULES = (
    *("argparse", "ast", "bisect", "calendar", "cmd", "codecs", "configparser", "contextlib"),
    *("csv", "dataclasses", "datetime", "decimal", "difflib", "email/message", "enum", "fractions"),
    *("functools", "gettext", "heapq", "http/client", "inspect", "json/decoder", "locale"),
    *("logging/__init__", "mailbox", "optparse", "pathlib", "pdb", "pickle", "random", "sched"),
    *("shutil", "socket", "statistics", "string", "subprocess", "tarfile", "textwrap", "threading"),
    *("tokenize", "traceback", "typing", "unittest/case", "urllib/request", "uuid", "zipfile"),
)
TEST_SHARE = 0.1  # the end of every module is kept for testing
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


@cache
def sources() -> tuple[str, ...]:
    """Return the source of each module that is a single file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = (folder / f"{name}.py" for name in MODULES)
    return tuple(file.read_text(encoding="utf-8") for file in files if file.exists())


def split(items: list[int], share: float = TEST_SHARE) -> tuple[list[int], list[int]]:
    """Return the beginning and the end of a sequence."""
    cut = len(items) - round(share * len(items))
    return items[:cut], items[cut:]


@cache
def characters() -> tuple[Tensor, Tensor]:
    """Return training and test text as character codes, without non-ASCII characters."""
    codes = {character: at for at, character in enumerate(CHARACTERS)}
    parts = [split([codes[c] for c in text if c in codes]) for text in sources()]
    return _joined(train for train, _ in parts), _joined(test for _, test in parts)


@cache
def words(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return training and test text as word numbers; rare words are 0."""
    texts = [re.findall(r"\w+|[^\w\s]", text) for text in sources()]
    common = Counter(word for text in texts for word in text).most_common(vocabulary - 1)
    codes = {word: at for at, (word, _) in enumerate(common, start=1)}
    parts = [split([codes.get(word, 0) for word in text]) for text in texts]
    return _joined(train for train, _ in parts), _joined(test for _, test in parts)


def _joined(parts: Iterable[list[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(parts)))


def windows(text: Tensor, length: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pieces of the text, and the next token at every position."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(text) - length - 1, (count, 1), generator=draw)
    at = starts + torch.arange(length + 1)
    return text[at[:, :-1]], text[at[:, 1:]]
