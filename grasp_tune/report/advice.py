"""What to do next after a run: whether more budget, more data or another model would help.

Text between backticks is code; pages set it as such.
"""

import math
import shlex

import numpy as np

from grasp_tune.report.evaluation import Quality, RunMetadata, Scores
from grasp_tune.report.figures import chosen_look, winning_curve
from grasp_tune.report.formatting import number, plural
from grasp_tune.runtime.result import Result, error_bar
from grasp_tune.schedules.final_run import ENDED_EARLY

OVERFITS = 2.0  # a held-out loss above so many times the training loss is told
# What twice the budget may take off the loss on held-out rows. Of 89 runs that were resumed with it
# (62 by which the two were chosen, 27 of another seed: benchmarks/more_budget.py), the loss on
# held-out rows fell by 5 % or more on 9 of 12 where "likely" was said, 6 of 18 with "may", and 7 of
# 59 with "unlikely", of which 24 got worse by as much.
LIKELY, POSSIBLE = 0.25, 0.1
_WIDE = 1.5  # a held-out loss above so many times the training loss asks for no larger model
_SURE = 2.0  # standard errors
_CLOSE = 0.02  # a model whose share of right answers is so close to that in training learned
_LEAST = 8  # points of a curve for a slope
_SHORT = 200  # calls of a run: a curve of fewer says nothing
_USUAL = 1000  # calls: the least that is worth proposing
_FITS = 1e-3  # of a constant prediction's loss: a training loss below it is as good as none
_UNLIKELY = "More budget is unlikely to help"
_HELPS = "More budget is likely to help", "More budget may help a little"


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
    quality, steps = metadata.quality if metadata else None, list[str]()
    key = ("`problem.{}: {}`" if metadata else "`TorchProblem({}={})`").format
    overfit = overfits(result, quality)
    validate = f"{key('validation', 0.1)} keeps a tenth of the rows back to choose by"
    blind = result.validation is None and not (quality and quality.test)
    if quality and quality.baseline and _no_better(quality.held_out[1], quality.baseline):
        check = ": check the labels, and whether the inputs are on comparable scales."
        early = 0 < _longest(result) < _SHORT and not overfit
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
    gain, longest = expected_gain(result), _longest(result)
    if ENDED_EARLY in result.notes or _passed_its_best(result):
        return f"{_UNLIKELY}: later points were no better."
    # How many times the loss on other rows, which is taken to fall by no more than that in training
    # does, is as high.
    times = 1.0
    if quality:
        base, train, (where, held) = quality.baseline, quality.train, quality.held_out
        # Hardly anything is left to learn from the training rows:
        if train.accuracy == 1.0 or (base and train.loss < _FITS * base.loss):
            doubt = ", be it by learning or by memorizing" if blind else ""
            return f"{_UNLIKELY}: the model fits its training rows already{doubt}."
        if held.loss > 0.0:
            times = max(1.0, held.loss / train.loss if train.loss > 0.0 else math.inf)
    still = "the training loss still fell at the end"
    if gain is not None and gain / times >= LIKELY and not overfit:
        return f"{_HELPS[0]}: {still}."
    if 0 < longest < _SHORT and not overfit:
        return f"{_HELPS[0]}: the longest run had {plural(longest, 'oracle call')}."
    if gain is None:
        return ""
    if gain < POSSIBLE:
        learns_more = quality and quality.held_out[1].loss > _WIDE * quality.train.loss > 0.0
        what = "More data, weight decay" if learns_more else "A larger model, a larger minibatch"
        may = f"{what} or other features may help."
        return f"{_UNLIKELY}: the curve is flat. {may}"
    if 1.0 < times < math.inf:
        still += f", but that on {where} is {times:.2g} times as high"
    return f"{_HELPS[1] if gain / times >= POSSIBLE else _UNLIKELY}: {still}."


def _no_better(part: Scores, constant: Scores) -> bool:
    """Whether a model learned nothing by what was asked for, else by right answers, and by loss."""
    pairs = [(part.metric, constant.metric), (part.accuracy, constant.accuracy)]
    known = [own <= other for own, other in pairs if own is not None and other is not None]
    return not part.loss < constant.loss and (not known or known[0])
