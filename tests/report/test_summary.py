"""What a report says of a run in words: how good, how certain, what it took."""

import math
from dataclasses import replace

import pytest

from grasp_tune.core.choice import Candidate, Certificate, Choice
from grasp_tune.data import DataSpec
from grasp_tune.report.evaluation import Quality, RunMetadata, Scores
from grasp_tune.report.summary import (
    certificate_words,
    headline,
    score_label,
    score_words,
    worker_words,
)
from grasp_tune.runtime.lane_sharing import Usage
from grasp_tune.runtime.result import Look, Result, Run, error_bar
from tests.report.test_figures import result_of


def result(power: float = -0.5, *, score: float = 0.5, validation: int | None = None) -> Result:
    """One run of 1,000 calls whose loss is a power of the calls."""
    curve = tuple((call, call**power, 1.0) for call in range(10, 1001, 10))
    run = Run(1, "adam", 0.1, 0.0, 1000, True, ((0, 1000),), curve, (curve[-1][1],))
    start = Candidate("x0", 0, "", math.nan, 0, False, 2.0, 5, 4.0)
    # Two samples, score - 0.1 and score + 0.1: the variance is 0.02, the error of the mean 0.1.
    row = Candidate("a", 1, "adam", 0.1, 1000, False, score, 2, score**2 + 0.01)
    choice = Choice("a", "value", "race", (start, row))
    return replace(result_of(run, chosen=1), choice=choice, validation=validation)


def metadata(quality: Quality) -> RunMetadata:
    spec = DataSpec("digits", (64,), 10, 10)
    return RunMetadata(
        started="2026-01-02 03:04:05",
        seconds=7.0,
        versions=(),
        spec=spec,
        rows=1438,
        test_rows=359,
        model="mlp",
        parameters=9,
        loss="cross_entropy",
        outputs=10,
        batch=32,
        quality=quality,
    )


def test_the_first_sentence_says_how_good_the_model_is() -> None:
    quality = Quality(
        Scores(1438, 0.1, 0.99), Scores(359, 0.2, 0.981), baseline=Scores(359, 2.3, 0.103)
    )
    assert headline(result(), metadata(quality)) == (
        "The model gets 98.1 % of 359 test rows right; always naming the most common class gets "
        "10.3 %."
    )
    held = Scores(200, 0.3, 0.9, 0.875)
    quality = Quality(Scores(9, 0.1), validation=held, baseline=Scores(200, 1), metric="f1")
    assert "The model's F1 is 0.875 on 200 validation rows" in headline(result(), metadata(quality))
    regression = Quality(Scores(20, 0.25), baseline=Scores(20, 4.0))
    assert headline(result(), metadata(regression)) == (
        "Its loss over all training rows is 0.25; a constant prediction gets 4."
    )
    assert headline(result(), None) == (
        "The model's loss on fresh training minibatches is 0.5 ± 0.1 (mean of 2 minibatches); it "
        "was 2 at the start."
    )


def test_a_score_is_named_and_has_an_error_bar() -> None:
    assert error_bar(result().choice.chosen) == pytest.approx(0.1)
    found = result(score=0.25)
    assert score_words(found) == "0.25 ± 0.1 (mean of 2 minibatches)"
    row = replace(found.choice.chosen, square=found.score**2)  # both minibatches were all rows
    alike = replace(found, choice=replace(found.choice, candidates=(row,)))
    assert error_bar(row) == 0.0 and score_words(alike) == "0.25 (mean of 2 minibatches)"
    assert "±" not in repr(alike)
    by_metric = replace(found, metric="f1", validation=9)  # scores are then 1 - metric
    assert headline(by_metric, None) == (
        "The model's validation F1 is 0.75 ± 0.1 (mean of 2 minibatches of the 9 validation rows); "
        "it was -1 at the start."
    )
    assert score_label(result(validation=120)) == "validation loss"
    assert score_words(result(validation=0)).endswith("(mean of 2 minibatches)")  # an iterable


def test_a_certificate_is_shown_where_it_says_something() -> None:
    vague = Certificate("value", 4, 15, 0.05, 1.0)
    assert vague.bound is not None and vague.bound.additive > 0.5
    assert certificate_words(replace(result(), certificate=vague)) is None
    sharp = Certificate("value", 4, 15, 0.05, 1e-4)
    assert certificate_words(replace(result(), certificate=sharp)) == (
        "With probability 95.0 %, its loss is at most that of the best candidate plus 0.016, by "
        "the noise that was measured. The paper's theorem covers the search."
    )  # sqrt(8 * 1e-4 * log(2 * 4 / 0.05) / 15) = 0.0165
    assert certificate_words(result()) is None


def test_what_workers_buy_follows_from_depth_and_calls() -> None:
    # 1,000 calls of which 200 follow each other: on 4 workers 200 + 800 / 4 = 400 calls' time.
    found = replace(result(), calls={"train": 1000}, depth=200)
    begin = "200 steps of 1,000 oracle calls must follow each other: at best "
    assert worker_words(found, None) == (
        begin + "2.5 times as fast on 4, 4.0 times as fast on 16 workers."
    )
    # 80 s on one worker are 16 s in a row and 64 s that workers share.
    found = replace(found, usage=Usage(2, 96.0, 80.0))
    assert worker_words(found, None) == (
        begin + "80 s on 1, 48 s on 2, 32 s on 4, 24 s on 8, 20 s on 16 workers. 2 workers were "
        "held, and busy 83.3 % of the time."
    )


def test_a_start_point_that_won_is_judged_too() -> None:
    start = result().candidates[0]
    found = replace(result(), choice=replace(result().choice, key=start.key))
    quality = Quality(Scores(9, 0.7, 0.5), Scores(9, 0.7, 0.556), baseline=Scores(9, 0.7, 0.6))
    first = "No run beat the start point, which is returned as it was."
    assert headline(found, None) == first
    assert headline(found, metadata(quality)) == (
        f"{first} The model gets 55.6 % of 9 test rows right; always naming the most common class "
        "gets 60.0 %."
    )
    nowhere = tuple(replace(row, score=math.nan) for row in found.candidates)
    lost = replace(found, choice=replace(found.choice, candidates=nowhere))
    assert headline(lost, None).startswith("No loss is a finite number at the end")


def test_a_run_under_way_tells_how_far_it_has_come() -> None:
    found = result()  # from 2 at the start to 1000 ** -0.5
    start = found.candidates[0]
    found = replace(found, choice=replace(found.choice, key=start.key, way="partial", partial=True))
    assert headline(found, None) == (
        "The lowest training loss so far is 0.03162, after 2 at the start."
    )
    assert headline(replace(found, runs=()), None).startswith("No run has got further")


def test_a_choice_by_gradients_is_told_with_its_loss() -> None:
    found = replace(result(), choice=replace(result().choice, by="gradient"))
    words = headline(found, None)
    assert words.startswith(
        "The training loss went from 0.316 to 0.0316; the model's gradient norm "
    )
    assert words.endswith("; it was 2 at the start.")  # the losses are 10 and 1000 ** -.5


def test_a_metric_that_did_not_choose_is_told_beside_the_loss() -> None:
    row = result().choice.chosen
    look = Look(row.arm, row.call, row.average, 2, 0.5, 0.1, 0.9512)
    found = replace(result(validation=9), looks=(look,), measured="r2")
    assert headline(found, None).endswith("at the start. Its validation R² is 0.951.")


def test_an_exact_loss_is_no_mean_of_minibatches() -> None:
    found = replace(result(), choice=replace(result().choice, way="exact"))
    assert score_words(found) == "0.5 ± 0.1"


def test_accuracy_and_squared_error_are_told_in_the_usual_words() -> None:
    held = Scores(50, 0.3, 0.9, 0.9)
    quality = Quality(Scores(99, 0.2, 0.9, 0.9), validation=held, metric="accuracy")
    assert headline(result(), metadata(quality)) == (
        "The model gets 90.0 % of 50 validation rows right."
    )
    quality = Quality(Scores(20, 0.2), Scores(30, 0.25), baseline=Scores(30, 4.0))
    assert headline(result(), replace(metadata(quality), loss="mse")) == (
        "The model is off by 0.5 on 30 test rows (root mean square); always predicting the mean is "
        "off by 2."
    )
