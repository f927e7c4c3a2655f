"""The pre-trained network: its pieces of words, and what is trained."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks.modern import pretrained
from benchmarks.modern.pretrained import LENGTH, PACKAGE, Encoder, encode

pytestmark = pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")


def test_words_are_split_into_the_longest_pieces() -> None:
    codes = pretrained._vocabulary()
    words = ["return", "it", "##era", "##bles"]
    assert encode("Return iterables") == [101, *(codes[w] for w in words), *[0] * (LENGTH - 5)]


def test_low_rank_additions_start_at_the_given_network() -> None:
    torch.manual_seed(1)
    whole, low = Encoder(0), Encoder(4)
    low.classify.load_state_dict(whole.classify.state_dict())
    tokens = torch.tensor([encode("Read the next line of the file"), encode("Close it")])
    torch.testing.assert_close(whole(tokens), low(tokens))
    trained = {name.split(".")[-1] for name, p in low.layers.named_parameters() if p.requires_grad}
    assert trained == {"inward", "outward"}


def test_padding_changes_nothing() -> None:
    model, tokens = Encoder(0), torch.tensor([encode("Close it")])
    assert int((tokens != 0).sum()) == 3
    whole, places = model(tokens), model.places
    model.places = places[:-2]
    torch.testing.assert_close(model(tokens[:, :-2]), whole)
