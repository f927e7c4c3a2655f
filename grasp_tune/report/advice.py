"""A run in words: how good it is, what the choice rests on, and what to do next.

Text between backticks is code; pages set it as such.
"""

import math
import shlex

import numpy as np

from grasp_tune.report.evaluation import Quality, RunMetadata, Scores
from grasp_tune.report.figures import chosen_look, winning_curve
from grasp_tune.report.formatting import WORKERS, duration, estimate, number, percent, plural
from grasp_tune.runtime.result import Result, error_bar
from grasp_tune.schedules.final_run import ENDED_EARLY

OVERFITS = 2.0  # a held-out loss above so many times the training loss is told
# What twice the budget may take off the loss, by `promise`. Of 89 runs that were resumed with it
# (62 by which the two were chosen, 27 of another seed: benchmarks/more_budget.py), the loss on
# held-out rows fell by 5 % or more on 9 of 12 where "likely" was said, 6 of 18 with "may", and 7 of
# 59 with "unlikely", of which 24 got worse by as much.
LIKELY, POSSIBLE = 0.25, 0.1
_SHARP = 0.25  # of the loss and of what was gained: a larger bound says nothing
_SURE = 2.0  # standard errors
_CLOSE = 0.02  # a model whose share of right answers is so close to that in training learned
_LEAST = 8  # points of a curve for a slope
_SHORT = 200  # calls of a run: a curve of fewer says nothing
_USUAL = 1000  # calls: the least that is worth proposing
_BRIEF = 60.0  # seconds of a run that needs no second worker
_SLOWEST = 0.8  # of the time, that many workers still take where they are hardly worth it
_FITS = 1e-3  # of a constant prediction's loss: a training loss below it is as good as none
_UNLIKELY = "More budget is unlikely to help"
_HELPS = "More budget is likely to help", "More budget may help a little"
_NAMES = {"f1": "F1", "auc": "AUC", "r2": "R²"}


def headline(result: Result, metadata: RunMetadata | None) -> str:
    """How good the model is, and how good a model that learned nothing would be."""
    words = "" if metadata is None else quality_words(metadata)
    if result.cell is not None:
        return words or outcome_words(result)
    if result.partial:
        return progress_words(result)
    first = "No run beat the start point, which is returned as it was."
    if result.runs and not any(math.isfinite(row.score) for row in result.candidates):
        first = "No loss is a finite number at the end, so the start point is returned as it was."
    return f"{first} {words}".rstrip()


def progress_words(result: Result) -> str:
    """How far the runs of a sweep have come that has no choice yet."""
    start, losses = result.candidates[0].score, [run.last_loss for run in result.runs]
    best = min(filter(math.isfinite, losses), default=math.inf)
    if result.choice.by != "value" or not best < start:
        return "No run has got further than the start point yet."
    return f"The lowest training loss so far is {number(best)}, after {number(start)} at the start."


def outcome_words(result: Result) -> str:
    """A sentence on the choice alone, where nobody has looked at all rows."""
    label, score = score_label(result), score_words(result)
    start = result.candidates[0].score
    start = start if result.metric is None else 1.0 - start
    if math.isfinite(start):
        score += f"; it was {number(start)} at the start"
    if result.partial:
        return f"The best point so far has a {label} of {score}."
    curve = winning_curve(result)
    if result.choice.by != "value" and curve:
        losses = f"{number(curve[0][1], 3)} to {number(result.loss, 3)}"
        return f"The training loss went from {losses}; the model's {label} is {score}."
    text = f"The model's {label} is {score}."
    if (look := chosen_look(result)) and math.isfinite(look.metric):
        other = "loss" if result.metric else metric_name(result.measured)
        seen = look.loss if result.metric else look.metric
        text += f" Its validation {other} is {number(seen, 3)}."
    return text


def metric_name(name: str | None) -> str:
    return _NAMES.get(name or "metric", name or "metric")


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
        text = f"The model's {metric_name(quality.metric)} is {told[0]} on {where}"
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
    return f"{runs}; {result.spent:,} of {budget:,} oracle calls were spent{time}."


def score_label(result: Result) -> str:
    if result.choice.by != "value":
        return "gradient norm on fresh samples"
    if result.choice.way == "exact":
        return "exact loss"
    if result.metric is not None:
        return f"validation {metric_name(result.metric)}"
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
    """What theory says about the choice, where its bound is well below what was gained."""
    certificate = result.certificate
    if certificate is None or (bound := certificate.bound) is None or result.metric is not None:
        return None
    ends = [row.score for row in (result.candidates[0], result.choice.chosen)]
    start, quality = (x**2 for x in ends) if result.choice.by == "gradient" else ends
    slack = min(abs(quality), start - quality if math.isfinite(start) else math.inf)
    if certificate.kind == "exact" or bound.additive > _SHARP * max(0.0, slack):
        return None
    what = "squared gradient norm" if result.choice.by == "gradient" else "loss"
    times = "" if bound.factor == 1.0 else f"{bound.factor:g} times "
    text = (
        f"With probability {percent(1.0 - certificate.delta)}, its {what} is at most {times}that "
        f"of the best candidate plus {number(bound.additive, 2)}, by the noise that was measured."
    )
    whole = certificate.covered and certificate.share == 1.0
    return f"{text} The paper's theorem covers the search." if whole else text


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


def promise(result: Result, quality: Quality | None) -> float | None:
    """The share by which twice the calls may lower the loss on held-out rows.

    That loss is taken to fall by no more than the training loss does.
    """
    gain = expected_gain(result)
    if gain is None or quality is None or not quality.held_out[1].loss > 0.0:
        return gain
    return gain * min(1.0, max(0.0, quality.train.loss) / quality.held_out[1].loss)


def overfits(result: Result, quality: Quality | None) -> str | None:
    """The sentence that says so where the loss on held-out data is far above the training loss."""
    row, error = result.choice.chosen, math.inf
    seen = min(filter(math.isfinite, (run.last_loss for run in result.runs)), default=math.nan)
    where = "held-back minibatches" if result.validation is None else "validation data"
    held = math.nan
    if result.metric is not None:  # a score is no loss, but there was a look at the same point
        held, error = (look.loss, 0.0) if (look := chosen_look(result)) else (held, error)
    elif result.choice.by == "value" and row.samples:
        held, bar = row.score, error_bar(row)
        error = error if math.isnan(bar) else bar
    if _passed_its_best(result) and held > max(OVERFITS * seen, seen + _SURE * error):
        return (
            f"After {plural(row.call, 'oracle call')} the training loss fell further but the "
            "validation loss did not: the model overfits from there on, so that point was chosen."
        )
    if quality is not None:
        (where, part), seen, error = quality.held_out, quality.train.loss, 0.0
        held = part.loss if _less_right(part, quality.train) else math.nan
    if not held > max(OVERFITS * seen, seen + _SURE * error):
        return None
    return (
        f"The loss on {where} ({number(held, 3)}) is far above that in training "
        f"({number(seen, 2)}): the model overfits."
    )


def _less_right(part: Scores, train: Scores) -> bool:
    """Whether a model is less often right on these rows, by more than chance explains."""
    if part.accuracy is None or train.accuracy is None:
        return part is not train
    error = math.sqrt(part.accuracy * (1.0 - part.accuracy) / part.rows)
    return train.accuracy - part.accuracy > max(_CLOSE, _SURE * error)


def _longest(result: Result) -> int:
    return max((stop for run in result.runs for _, stop in run.stretches), default=0)


def _passed_its_best(result: Result) -> bool:
    """Whether validation data chose a point on the way: the runs went on and got no better."""
    return result.validation is not None and 2 * result.choice.chosen.call < _longest(result)


def next_steps(
    result: Result, metadata: RunMetadata | None, folder: str | None = None
) -> list[str]:
    """What to do next, the most important first."""
    if result.partial and folder is None:
        return ["The same call of `gt.minimize`, with the same `out`, goes on with it."]
    again = f"grasp-tune resume {shlex.quote(folder or 'DIR')}"
    if result.partial:
        return [f"`{again}` goes on with it; if its minutes were over, add `--minutes 10`."]
    quality, steps = None if metadata is None else metadata.quality, list[str]()
    key = ("`problem.{}: {}`" if metadata else "`TorchProblem({}={})`").format
    overfit, short = overfits(result, quality), 0 < _longest(result) < _SHORT
    validate = f"{key('validation', 0.1)} keeps a tenth of the rows back to choose by"
    blind = result.validation is None and not (quality and quality.test)
    if quality and quality.baseline and _no_better(quality.held_out[1], quality.baseline):
        check = ": check the labels, and whether the inputs are on comparable scales."
        early = short and not overfit
        steps.append("It does no better than a constant prediction" + (" yet." if early else check))
    more = _more_budget(result, quality, blind=blind, overfit=bool(overfit))
    if overfit and result.validation is None:
        more = f"{overfit} {validate}, so that an earlier point can win. {more}"
    elif overfit:
        augment = "augmentation (`problem.augment`)" if metadata else "augmentation"
        decay = f"weight decay (such as {key('weight_decay', 0.1)})"
        more = f"{overfit} More data, {augment}, {decay} or a smaller model may help. {more}"
    elif more.startswith(_HELPS) and metadata and result.spec.get("schedule") == "promote":
        budget = max(2 * int(result.spec["budget"]), _USUAL)
        more += f" `{again} --budget {budget}` goes on from here."
    steps += [more] if more else []
    if blind and not overfit:
        unknown = "No validation or test rows were given, so nothing here tells how it does on new"
        steps.append(f"{unknown} data: {validate}.")
    return steps


def _more_budget(result: Result, quality: Quality | None, *, blind: bool, overfit: bool) -> str:
    """Whether more budget would help, as far as the runs tell; empty where they do not."""
    gain, share, longest = expected_gain(result), promise(result, quality), _longest(result)
    base, train = (quality.baseline, quality.train) if quality else (None, None)
    if ENDED_EARLY in result.notes or _passed_its_best(result):
        return f"{_UNLIKELY}: later points were no better."
    # Hardly anything is left to learn from the training rows:
    if train and (train.accuracy == 1.0 or (base and train.loss < _FITS * base.loss)):
        doubt = ", be it by learning or by memorizing" if blind else ""
        return f"{_UNLIKELY}: the model fits its training rows already{doubt}."
    still = "the training loss still fell at the end"
    if share is not None and share >= LIKELY and not overfit:
        return f"{_HELPS[0]}: {still}."
    if 0 < longest < _SHORT and not overfit:
        return f"{_HELPS[0]}: the longest run had {plural(longest, 'oracle call')}."
    if gain is None or share is None:
        return ""
    if gain < POSSIBLE:
        may = "A larger model, other features or a larger minibatch may help."
        return f"{_UNLIKELY}: the curve is flat. {may}"
    if quality is not None and quality.held_out[1].loss > quality.train.loss > 0.0:
        where, held = quality.held_out
        still += f", but that on {where} is {held.loss / quality.train.loss:.2g} times as high"
    return f"{_HELPS[1] if share >= POSSIBLE else _UNLIKELY}: {still}."


def _no_better(part: Scores, constant: Scores) -> bool:
    """Whether a model learned nothing by what was asked for, else by right answers, and by loss."""
    pairs = [(part.metric, constant.metric), (part.accuracy, constant.accuracy)]
    known = [own <= other for own, other in pairs if own is not None and other is not None]
    return not part.loss < constant.loss and (not known or known[0])


def worker_words(result: Result, metadata: RunMetadata | None) -> str:
    """What more workers would buy: a sweep takes at least depth + (calls - depth) / workers."""
    calls, depth, usage = result.spent, result.depth, result.usage
    alone = usage.busy if usage else metadata.seconds if metadata else 0.0  # measured
    if not depth or not calls or (0.0 < alone < _BRIEF and not usage):
        return ""
    shares = {count: (depth + max(0, calls - depth) / count) / calls for count in WORKERS}
    words = f"{plural(depth, 'step')} of {calls:,} oracle calls must follow each other: "
    if shares[16] > _SLOWEST:
        words += "more workers would hardly make it faster."
    elif alone:
        times = [f"{duration(alone * share)} on {count}" for count, share in shares.items()]
        words += f"at best {', '.join(times)} workers."
    else:
        faster = [f"{1.0 / shares[count]:.1f} times as fast on {count}" for count in (4, 16)]
        words += f"at best {', '.join(faster)} workers."
    if usage:
        held = "1 worker was" if usage.workers == 1 else f"{usage.workers} workers were"
        words += f" {held} held, and busy {percent(usage.share)} of the time."
    return words
