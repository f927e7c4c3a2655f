"""A run in words: how good its model is, what the choice rests on, what the run took.

Text between backticks is code; pages set it as such.
"""

import math

from grasp_tune.report.evaluation import RunMetadata
from grasp_tune.report.figures import chosen_look, winning_curve
from grasp_tune.report.formatting import WORKERS, duration, estimate, number, percent, plural
from grasp_tune.runtime.result import Result, error_bar

_SHARP = 0.25  # of the loss and of what was gained: a larger bound says nothing
_BRIEF = 60.0  # seconds of a run that needs no second worker
_SLOWEST = 0.8  # of the time, that many workers still take where they are hardly worth it
_NAMES = {None: "metric", "f1": "F1", "auc": "AUC", "r2": "R²"}


def headline(result: Result, metadata: RunMetadata | None) -> str:
    """How good the model is, and how good a model that learned nothing would be."""
    words, start = "" if metadata is None else quality_words(metadata), result.candidates[0].score
    if result.cell is not None:
        return words or outcome_words(result)
    if result.partial:
        best = min((x for run in result.runs if math.isfinite(x := run.last_loss)), default=start)
        if result.choice.by != "value" or not best < start:
            return "No run has got further than the start point yet."
        told = f"{number(best)}, after {number(start)} at the start"
        return f"The lowest training loss so far is {told}."
    first = "No run beat the start point, which is returned as it was."
    if result.runs and not any(math.isfinite(row.score) for row in result.candidates):
        first = "No loss is a finite number at the end, so the start point is returned as it was."
    return f"{first} {words}".rstrip()


def outcome_words(result: Result) -> str:
    """A sentence on the choice alone, where nobody has looked at all rows."""
    label, score, start = score_label(result), score_words(result), result.candidates[0].score
    if math.isfinite(start):
        score += f"; it was {number(start if result.metric is None else 1.0 - start)} at the start"
    if result.partial:
        return f"The best point so far has a {label} of {score}."
    curve = winning_curve(result)
    if result.choice.by != "value" and curve:
        losses = f"{number(curve[0][1], 3)} to {number(result.loss, 3)}"
        return f"The training loss went from {losses}; the model's {label} is {score}."
    text, look = f"The model's {label} is {score}.", chosen_look(result)
    if look and math.isfinite(look.metric):
        other = "loss" if result.metric else metric_name(result.measured)
        seen = look.loss if result.metric else look.metric
        text += f" Its validation {other} is {number(seen, 3)}."
    return text


def metric_name(name: str | None) -> str:
    return _NAMES.get(name, str(name))


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
    text += f"; {constant} {told[1]}" if quality.baseline else ""
    text += f", AdamW at its defaults {told[2]} with as many calls" if quality.adamw else ""
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
    if result.validation is not None or result.metric is not None:
        return f"validation {metric_name(result.metric) if result.metric else 'loss'}"
    fresh = result.choice.way in ("race", "resample")
    return "loss on fresh training minibatches" if fresh else "training loss"


def score_words(result: Result) -> str:
    """The score with its error bar and its number of samples; the metric where it was one."""
    row = result.choice.chosen
    score = estimate(row.score if result.metric is None else 1.0 - row.score, error_bar(row))
    if not row.samples or result.choice.way == "exact":
        return score
    rows = f" of the {result.validation:,} validation rows" if result.validation else ""
    return f"{score} (mean of {plural(row.samples, 'minibatch', 'es')}{rows})"


def certificate_words(result: Result) -> str | None:
    """What theory says about the choice, where its bound is well below what was gained."""
    certificate = result.certificate
    if certificate is None or (bound := certificate.bound) is None or result.metric is not None:
        return None
    start, quality = (row.score for row in (result.candidates[0], result.choice.chosen))
    what = "loss"
    if result.choice.by == "gradient":
        what, start, quality = "squared gradient norm", start**2, quality**2
    slack = min(abs(quality), start - quality if math.isfinite(start) else math.inf)
    if certificate.kind == "exact" or bound.additive > _SHARP * max(0.0, slack):
        return None
    times = "" if bound.factor == 1.0 else f"{bound.factor:g} times "
    text = (
        f"With probability {percent(1.0 - certificate.delta)}, its {what} is at most {times}that "
        f"of the best candidate plus {number(bound.additive, 2)}, by the noise that was measured."
    )
    whole = certificate.covered and certificate.share == 1.0
    return f"{text} The paper's theorem covers the search." if whole else text


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
    else:
        times = [f"{duration(alone * share)} on {count}" for count, share in shares.items()]
        faster = [f"{1.0 / shares[count]:.1f} times as fast on {count}" for count in (4, 16)]
        words += f"at best {', '.join(times if alone else faster)} workers."
    if usage:
        were = "worker was" if usage.workers == 1 else "workers were"
        words += f" {usage.workers} {were} held, and busy {percent(usage.share)} of the time."
    return words
