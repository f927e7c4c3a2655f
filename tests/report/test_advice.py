"""What a report says to do next."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import grasp_tune as gt
from grasp_tune.report.advice import expected_gain, next_steps
from grasp_tune.report.evaluation import Quality, Scores
from grasp_tune.report.summary import score_words
from grasp_tune.runtime.result import Look
from tests.report.test_summary import metadata, result


def test_a_model_chosen_by_a_metric_that_memorizes_is_told() -> None:
    row = result().choice.chosen
    look = Look(row.arm, row.call, row.average, 2, 0.5, math.nan, 0.7)  # training loss 0.032
    found = replace(result(), metric="f1", validation=9, looks=(look,))
    (words,) = next_steps(found, None)
    assert "loss on validation data (0.5) is far above" in words
    assert "`TorchProblem(weight_decay=0.1)`" in words and "problem.augment" not in words


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
