"""What a report says in words: how good, how certain, what next."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import grasp_tune as gt
from grasp_tune.core.choice import Candidate, Certificate, Choice
from grasp_tune.data import DataSpec
from grasp_tune.report.advice import (
    certificate_words,
    expected_gain,
    headline,
    next_steps,
    score_label,
    score_words,
    worker_words,
)
from grasp_tune.report.evaluation import Quality, RunMetadata, Scores
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


def test_a_model_chosen_by_a_metric_that_memorizes_is_told() -> None:
    row = result().choice.chosen
    look = Look(row.arm, row.call, row.average, 2, 0.5, math.nan, 0.7)  # training loss 0.032
    found = replace(result(), metric="f1", validation=9, looks=(look,))
    (words,) = next_steps(found, None)
    assert "loss on validation data (0.5) is far above" in words
    assert "`TorchProblem(weight_decay=0.1)`" in words and "problem.augment" not in words


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


def test_more_budget_is_advised_by_the_slope_of_the_curve() -> None:
    # Loss call^-0.5: twice the calls give 2^-0.5 = 0.7071 of it.
    assert expected_gain(result(-0.5)) == pytest.approx(1 - 2**-0.5)
    low = result(-0.5, score=1000**-0.5)
    words = next_steps(low, None)[0]
    assert words == "More budget is likely to help: the training loss still fell at the end."
    flat = result(-0.01, score=0.93)
    assert next_steps(flat, None)[0].startswith("More budget is unlikely to help")
    assert expected_gain(replace(result(), runs=())) is None


def test_more_budget_is_advised_by_the_loss_on_other_rows_too() -> None:
    # The training loss falls by 29 % with twice the calls; on rows where it is twice as high that
    # is 15 %, and where it is ten times as high 3 %, as often a loss as a gain.
    train = Scores(99, 0.1, 0.99)
    for factor, words in (
        (1.0, "is likely to"),
        (1.9, "may help a little"),
        (10.0, "is unlikely"),
    ):
        quality = Quality(train, Scores(99, 0.1 * factor, 0.99), baseline=Scores(99, 2.3, 0.1))
        (step,) = next_steps(result(-0.5), metadata(quality), "a b")
        assert step.startswith(f"More budget {words}")
        assert (f"that on 99 test rows is {factor:.2g} times as high" in step) == (factor > 1)


def test_the_command_that_goes_on_can_be_copied() -> None:
    found = replace(result(-0.5), spec={"budget": 1010, "schedule": "promote"})
    quality = Quality(Scores(99, 0.1, 0.98), Scores(99, 0.1, 0.98))
    (step,) = next_steps(found, metadata(quality), "a b")
    assert step.endswith("`grasp-tune resume 'a b' --budget 2020` goes on from here.")


def test_a_short_run_that_has_learned_nothing_is_told_to_go_on_not_to_check_its_labels() -> None:
    short = replace(result(-0.01).runs[0], stretches=((0, 16),), calls=16)
    quality = Quality(Scores(9, 2.4, 0.1), Scores(359, 2.5, 0.1), baseline=Scores(359, 2.3, 0.1))
    first, more = next_steps(replace(result(-0.01), runs=(short,)), metadata(quality))
    assert first == "It does no better than a constant prediction yet."
    assert more.startswith("More budget is likely to help: the longest run had 16 oracle calls.")


def test_a_model_that_memorizes_is_told_with_the_remedy() -> None:
    quality = Quality(Scores(99, 0.001, 1.0), Scores(99, 0.2, 0.9))
    (words,) = next_steps(result(), metadata(quality))
    assert "The loss on 99 test rows (0.2) is far above that in training (0.001)" in words
    assert "`problem.validation: 0.1`" in words and "More budget is unlikely to help" in words
    (words,) = next_steps(result(validation=50), metadata(quality))
    assert "weight decay" in words
    # From Python, where held-back minibatches are all there is: 0.5 against 0.032, error 0.1.
    (words,) = next_steps(result(), None)
    assert "held-back minibatches (0.5)" in words


def test_a_model_no_better_than_a_constant_is_told() -> None:
    quality = Quality(Scores(9, 2.4, 0.1), Scores(359, 2.5, 0.1), baseline=Scores(359, 2.3, 0.1))
    assert next_steps(result(-0.01), metadata(quality))[0].startswith("It does no better than a")


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


def test_runs_that_went_on_and_memorized_are_told() -> None:
    # The choice was made after 20 calls, by validation: 0.5 ± 0.1; training went on to 0.001.
    quality = Quality(Scores(99, 0.4, 0.9), validation=Scores(50, 0.5, 0.9))
    found = result(-1.0, validation=50)
    rows = tuple(replace(row, call=min(row.call, 20)) for row in found.candidates)
    found = replace(found, choice=replace(found.choice, candidates=rows))
    (words,) = next_steps(found, metadata(quality))
    assert words.startswith(
        "After 20 oracle calls the training loss fell further but the validation"
    )
    assert words.endswith("More budget is unlikely to help: later points were no better.")


def test_a_model_nearly_as_right_elsewhere_does_not_memorize() -> None:
    # A loss of 1e-9 is far below 0.04, but 100 % and 99 % right are close.
    quality = Quality(Scores(99, 1e-9, 1.0), Scores(99, 0.04, 0.99))
    (words,) = next_steps(result(score=0.04), metadata(quality))
    assert words.startswith("More budget is unlikely to help: the model fits its training rows")


def test_test_rows_count_more_than_a_few_validation_rows() -> None:
    quality = Quality(
        Scores(1294, 0.074, 0.981), Scores(359, 0.071, 0.981), Scores(144, 0.162, 0.921)
    )
    assert "overfits" not in " ".join(next_steps(result(validation=144), metadata(quality)))
    quality = replace(quality, test=None)
    (words,) = next_steps(result(validation=144), metadata(quality))
    assert "The loss on 144 validation rows (0.162) is far above that in training (0.074)" in words
    # 1.7 % of 144 rows are chance: their standard error is 2.2 %.
    quality = replace(quality, validation=Scores(144, 0.162, 0.951))
    assert "overfits" not in " ".join(next_steps(result(validation=144), metadata(quality)))


def test_a_flat_curve_of_a_short_run_is_not_taken_for_the_end() -> None:
    flat = result(-0.01, score=0.93)
    short = replace(flat.runs[0], stretches=((0, 16),), calls=16)
    (words, *_) = next_steps(replace(flat, runs=(short,)), None)
    assert words == "More budget is likely to help: the longest run had 16 oracle calls."


def test_a_model_that_is_often_right_and_too_sure_is_no_constant() -> None:
    # Its loss is far above the constant's, but it names 90 % of the classes, the constant 50 %.
    quality = Quality(Scores(9, 0.9, 0.9), Scores(9, 5.0, 0.9), baseline=Scores(9, 0.7, 0.5))
    assert "constant" not in " ".join(next_steps(result(-0.01), metadata(quality)))
    by_metric = replace(
        quality, metric="f1", test=Scores(9, 5.0, 0.9, 0.4), baseline=Scores(9, 0.7, 0.5, 0.6)
    )
    assert "no better than a constant" in next_steps(result(-0.01), metadata(by_metric))[0]


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


def test_a_model_that_fits_its_rows_is_not_promised_more() -> None:
    quality = Quality(Scores(99, 0.02, 1.0), baseline=Scores(99, 0.7, 0.5))
    fitted, blind = next_steps(result(-0.5, score=0.02), metadata(quality))
    assert fitted.endswith("fits its training rows already, be it by learning or by memorizing.")
    assert "nothing here tells how it does on new data: `problem.validation: 0.1` keeps" in blind


def test_labels_without_a_pattern_are_seen_to_be_memorized() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 30, generator=generator), torch.randint(0, 2, (64,), generator=generator)
    problem = gt.TorchProblem(
        model=lambda: nn.Linear(30, 2),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=(x[:32], y[:32]),
        validation=(x[32:], y[32:]),
        batch_size=8,
        device="cpu",
    )
    found = gt.minimize(problem, 800, progress=False)
    assert found.validation == 32
    assert score_words(found).endswith("of the 32 validation rows)")
    assert any("the model overfits" in step for step in next_steps(found, None))
