"""The three guarantees by hand, and what a certificate says when something is missing."""

import json
from typing import Any

import pytest

from grasp_tune.core.choice import Bound, Certificate
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import decode, encode


def test_gradient_choice_by_hand() -> None:
    # n = 10, M = 50, delta = 0.05, Delta^2 = 2: ln 200 = 5.298317;
    # 24 (1 + 3 * 5.298317) 2 / 50 = 0.96 * 16.894952 = 16.219154.
    bound = Certificate("gradient", 10, 50, 0.05, noise=2.0).bound
    assert bound is not None and bound.factor == 4.0
    assert bound.additive == pytest.approx(16.219154, rel=1e-7)


def test_value_choice_by_hand() -> None:
    # sigma^2 = 0.09, ln 400 = 5.991465:
    # sqrt(8 * 0.09 * 5.991465 / 50) = sqrt(0.08627709) = 0.2937296.
    bound = Certificate("value", 10, 50, 0.05, noise=0.09).bound
    assert bound is not None and bound.factor == 1.0
    assert bound.additive == pytest.approx(0.2937296, rel=1e-6)


def test_an_exact_choice_is_the_best() -> None:
    assert Certificate("exact", 10, 0, 0.05).bound == Bound(1.0, 0.0)


def test_certificate_without_a_measurement_has_no_bound_and_says_so() -> None:
    missing = Certificate("gradient", 10, 50, 0.05)
    assert missing.bound is None
    assert "not measured" in missing.text
    infinite = Certificate("value", 10, 50, 0.05, float("inf"))
    assert infinite.bound is None
    unsampled = Certificate("none", 10, 0, 0.05)
    assert unsampled.bound is None
    assert "no fresh samples" in unsampled.text


def test_text_calls_itself_an_estimate_and_names_the_numbers() -> None:
    text = Certificate("gradient", 10, 50, 0.05, 2.0).text
    assert text.startswith("Estimate: with probability 0.95, the squared gradient norm")
    assert "at most 4 times that of the best of 10 candidates plus 16.22." in text
    assert "whole budget" in text
    plain = Certificate("value", 10, 50, 0.05, 0.09).text
    assert "at most that of the best of 10 candidates plus 0.2937." in plain


def test_text_states_what_the_theorem_covers() -> None:
    assert "with 0.25 of the budget" in Certificate("exact", 3, 0, 0.1, share=0.25).text
    words = "The base optimizer or the choice is not the paper's: its theorem does not apply."
    assert words in Certificate("exact", 3, 0, 0.1, covered=False).text
    assert "does not apply" in Certificate("exact", 3, 0, 0.1, share=0.0).text


@pytest.mark.parametrize(
    "certificate",
    [
        Certificate("gradient", 10, 50, 1 / 30, 1 / 3, share=1 / 7, covered=False),
        Certificate("value", 9, 4, 0.2, 0.1),
        Certificate("none", 1, 0, 0.05),
    ],
)
def test_save_and_load_gives_the_same_certificate(certificate: Certificate) -> None:
    written = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    kept = {key: item for key, item in written.items() if key not in ("bound", "text")}
    assert decode(Certificate, kept) == certificate
    assert written["text"] == certificate.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "faith"}, "kind"),
        ({"samples": "5"}, "samples"),
        ({"other": 1}, "other"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"share": 1.5}, "share=1.5"),
        ({"candidates": 0}, "candidates: got 0"),
    ],
)
def test_reading_is_strict(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decode(Certificate, {**encode(Certificate("none", 1, 0, 0.05)), **change})
    with pytest.raises(InputError, match="expected Certificate"):
        decode(Certificate, [])
