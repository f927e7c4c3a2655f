"""A run in words: how good it is, what the choice rests on, and what to do next."""

import math

import numpy as np

from grasp_tune.report.evaluation import Quality, RunMetadata, Scores
from grasp_tune.report.figures import error_bar, winning_curve
from grasp_tune.report.formatting import WORKERS, duration, estimate, number, percent, plural
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.final_run import ENDED_EARLY

MEMORIZES = 2.0  # a held-out loss above so many times the training loss is told
_SURE = 2.0  # standard errors
_CLOSE = 0.02  # a model whose share of right answers is so close to that in training learned
_WORTH = 0.05  # what twice the budget must promise, as a share of the loss, to be worth a word
_LEAST = 8  # points of a curve for a slope
_SHORT = 200  # calls of a run: a flat curve of fewer says nothing
_BRIEF = 60.0  # seconds of a run that needs no second worker
_FITS = 1e-3  # of a constant prediction's loss: a training loss below it is as good as none
_VALIDATE = (
    "give validation data (problem.validation: 0.1 in a config, validation=0.1 of TorchProblem)"
)


def headline(result: Result, metadata: RunMetadata | None) -> str:
    """How good the model is, and how good a model that learned nothing would be."""
    words = "" if metadata is None else quality_words(metadata)
    if result.cell is not None:
        return words or outcome_words(result)
    if result.partial:
        return "No run has got further than the start point yet."
    runs = plural(len(result.runs), "run")
    first = f"None of {runs} beat the start point, which is returned as it was."
    if result.runs and not any(math.isfinite(row.score) for row in result.candidates):
        first = "No loss is a finite number at the end, so the start point is returned as it was."
    return f"{first} {words}".rstrip()


def outcome_words(result: Result) -> str:
    """A sentence on the choice alone, where nobody has looked at all rows."""
    row, start = result.choice.chosen, result.candidates[0].score
    whose, link = ("The best point so far has a", "of") if result.partial else ("The model's", "is")
    start = start if result.metric is None else 1.0 - start
    text = f"{whose} {score_label(result)} {link} {score_words(result)}"
    if math.isfinite(start):
        text += f"; it was {number(start)} at the start"
    at = row.arm, row.call, row.average
    for look in result.looks or ():
        if at == (look.arm, look.call, look.average) and math.isfinite(look.metric):
            other = "loss" if result.metric else result.measured or "metric"
            seen = look.loss if result.metric else look.metric
            text += f". Its validation {other} is {number(seen, 3)}"
    curve = winning_curve(result)
    if result.choice.by != "value" and curve:
        text += (
            f". Its training loss went from {number(curve[0][1], 3)} to {number(result.loss, 3)}"
        )
    return f"{text}."


def quality_words(metadata: RunMetadata) -> str:
    """A sentence on the model over all rows; empty where it was not judged."""
    if (quality := metadata.quality) is None:
        return ""
    where, held = quality.held_out
    parts = held, quality.baseline or held, quality.adamw or held
    constant = "a constant prediction gets"
    if held.accuracy is not None and quality.metric in (None, "accuracy"):
        told = [percent(part.accuracy) for part in parts]
        text = f"The model gets {told[0]} of {where} right"
        constant = "always naming the most common class gets"
    elif held.metric is not None:
        told = [number(part.metric, 3) for part in parts]
        text = f"The model reaches {quality.metric} {told[0]} on {where}"
    elif metadata.loss == "mse":
        told = [number(part.loss**0.5) for part in parts]
        text = f"The model is off by {told[0]} on {where} (root mean square)"
        constant = "always predicting the mean is off by"
    else:
        told = [number(part.loss) for part in parts]
        text = f"Its loss over {where} is {told[0]}"
    if quality.baseline is not None:
        text += f"; {constant} {told[1]}"
    if quality.adamw is not None:
        text += f", AdamW at its defaults {told[2]} with as many calls"
    return f"{text}."


def effort(result: Result, metadata: RunMetadata | None) -> str:
    time = "" if metadata is None else f" in {duration(metadata.seconds)}"
    runs, budget = plural(len(result.runs), "run"), int(result.spec["budget"])
    return f"{runs}; {spent_calls(result):,} of {budget:,} oracle calls were spent{time}."


def spent_calls(result: Result) -> int:
    return sum(amount for key, amount in result.calls.items() if key != "repeated")


def score_label(result: Result) -> str:
    if result.choice.by != "value":
        return "gradient norm on fresh samples"
    if result.choice.way == "exact":
        return "exact loss"
    if result.metric is not None:
        return f"validation {result.metric}"
    if result.validation is not None:
        return "validation loss"
    fresh = result.choice.way in ("race", "resample")
    return "loss on fresh training minibatches" if fresh else "training loss"


def score_words(result: Result) -> str:
    """The score with its error bar and its number of samples; the metric where it was one."""
    row = result.choice.chosen
    score = estimate(row.score if result.metric is None else 1.0 - row.score, error_bar(row))
    rows = f" of the {result.validation:,} validation rows" if result.validation else ""
    few = row.samples and result.choice.way != "exact"
    return f"{score} (mean of {plural(row.samples, 'minibatch', 'es')}{rows})" if few else score


def certificate_words(result: Result) -> str | None:
    """The certificate, where its bound is no larger than what it bounds and what was gained."""
    certificate = result.certificate
    if certificate is None or certificate.bound is None or result.metric is not None:
        return None
    ends = [row.score for row in (result.candidates[0], result.choice.chosen)]
    start, quality = (x**2 for x in ends) if result.choice.by == "gradient" else ends
    slack = min(abs(quality), start - quality if math.isfinite(start) else math.inf)
    return certificate.text if certificate.bound.additive <= max(0.0, slack) else None


def expected_gain(result: Result) -> float | None:
    """The share by which twice the calls would lower the training loss, by the curve's slope.

    The slope of log loss against log call over the last three quarters of the way to the choice.
    """
    chosen = result.choice.chosen
    curve = [(call, loss) for call, loss, _ in winning_curve(result) if call <= chosen.call]
    last = curve[-1][0] if curve else 0
    late = [(call, loss) for call, loss in curve if call >= last / 4 and 0 < loss < math.inf]
    if len(late) < _LEAST:
        return None
    calls, losses = np.log(np.array(late)).T
    return 1.0 - 2.0 ** float(np.polyfit(calls, losses, 1)[0])


def memorizes(result: Result, quality: Quality | None) -> str | None:
    """The sentence that says so where the loss on held-out data is far above the training loss."""
    row, losses = result.choice.chosen, [run.last_loss for run in result.runs]
    lowest = min(filter(math.isfinite, losses), default=math.nan)
    found: list[tuple[str, float, float, float]] = []  # where, its loss, in training, its error
    if quality is not None:
        right, train = quality.train.accuracy or math.inf, quality.train.loss
        where, held = quality.held_out
        if held is not quality.train and right - (held.accuracy or 0.0) > _CLOSE:
            found.append((where, held.loss, train, 0.0))
    # Where a point on the way was chosen, the others went on, and got no better.
    ends = [stop for run in result.runs for _, stop in run.stretches]
    early = 2 * row.call < max(ends, default=0)
    if (quality is None or (result.validation is not None and early)) and row.samples:
        kind = "held-back minibatches" if result.validation is None else "validation data"
        if result.metric is not None:
            at = (row.arm, row.call, row.average)
            looks = (x for x in result.looks or () if at == (x.arm, x.call, x.average))
            found += ((kind, look.loss, lowest, 0.0) for look in looks)
        elif result.choice.by == "value":
            found.append((kind, row.score, lowest, error_bar(row) or math.inf))
    for where, loss, train, error in found:
        if loss > MEMORIZES * train and loss > train + _SURE * error:
            best = "the lowest" if train == lowest else "that"
            return (
                f"The loss on {where} ({number(loss, 3)}) is far above {best} on training data "
                f"({number(train, 2)}): the model memorizes."
            )
    return None


def next_steps(result: Result, metadata: RunMetadata | None, folder: str = "DIR") -> list[str]:
    """What to do next, the most important first."""
    if result.partial:
        return ["Go on with it: the same call, or grasp-tune resume, continues where it stopped."]
    quality = None if metadata is None else metadata.quality
    steps: list[str] = []
    if quality and quality.baseline and _no_better(quality.held_out[1], quality.baseline):
        steps.append(
            "It does no better than a constant prediction: check labels, and whether the "
            "columns are on comparable scales."
        )
    if (words := memorizes(result, quality)) is not None:
        remedy = f"To let the choice go by other rows, {_VALIDATE}"
        if result.validation is not None:
            remedy = (
                "More data, augmentation (problem.augment in a config), weight decay (the "
                "problem's weight_decay) or a smaller model would help"
            )
        return [*steps, f"{words} {remedy}. More budget would not help."]
    base, train = (quality.baseline, quality.train) if quality else (None, None)
    gain = expected_gain(result)
    # Whether hardly anything is left to learn from the training rows:
    fits = train and (train.accuracy == 1.0 or (base and train.loss < _FITS * base.loss))
    blind = result.validation is None and not (quality and quality.test)
    longest = max((stop for run in result.runs for _, stop in run.stretches), default=0)
    more = ""
    if ENDED_EARLY in result.notes:
        more = (
            "would not help: the run ended when it got no better. More data, augmentation "
            "(problem.augment in a config) or the problem's weight_decay may."
        )
    elif fits:
        more = "would change little: the model fits its training rows already"
        more += ", be it by learning or by memorizing." if blind else "."
    elif gain is not None and gain > _WORTH:
        more = "would help: the training loss still fell at the end."
        if metadata is not None and result.spec.get("schedule") == "promote":
            budget = 2 * int(result.spec["budget"])
            more += f" grasp-tune resume {folder} --budget {budget} goes on from here."
    elif 0 < longest < _SHORT:
        more = f"is likely to help: the longest run had {plural(longest, 'oracle call')}."
    elif gain is not None:
        more = "would change little: the curve is flat. A larger model, other features or a larger "
        more += "minibatch may."
    if more:
        steps.append(f"More budget {more}")
    if blind:
        unknown = "No validation or test rows were given, so nothing here tells how it does on new"
        steps.append(f"{unknown} data: {_VALIDATE}.")
    return steps


def _no_better(part: Scores, constant: Scores) -> bool:
    """Whether a model learned nothing by what was asked for, else by right answers, and by loss."""
    pairs = [(part.metric, constant.metric), (part.accuracy, constant.accuracy)]
    known = [own <= other for own, other in pairs if own is not None and other is not None]
    return part.loss >= constant.loss and (not known or known[0])


def worker_words(result: Result, metadata: RunMetadata | None) -> str:
    """What more workers would buy: a sweep takes at least depth + (calls - depth) / workers."""
    calls, depth, usage = spent_calls(result), result.depth, result.usage
    alone = usage.busy if usage else metadata.seconds if metadata else 0.0  # measured
    if not depth or not calls or (0.0 < alone < _BRIEF and not usage):
        return ""
    shares = {count: (depth + max(0, calls - depth) / count) / calls for count in WORKERS}
    times = [f"{duration(alone * share)} on {count}" for count, share in shares.items()]
    faster = [f"{1.0 / shares[count]:.1f} times as fast on {count}" for count in (4, 16)]
    words = (
        f"{plural(depth, 'step')} of {calls:,} oracle calls must follow each other: at best "
        f"{', '.join(times if alone else faster)} workers."
    )
    if usage:
        held = "1 worker was" if usage.workers == 1 else f"{usage.workers} workers were"
        words += f" {held} held, and busy {percent(usage.share)} of the time."
    return words
