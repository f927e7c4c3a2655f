"""What a peer gives back: the point it returns and what it cost."""

from dataclasses import dataclass, field

from grasp_tune.engine.checkpoints import Tensors


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The end of one peer's run with one seed."""

    tensors: Tensors = field(repr=False)  # `param.*` and `buffer.*` of the returned point
    calls: int  # oracle calls used, at most the budget
    seconds: float
    diverged: bool  # the returned point, or the run that led to it, stopped being finite
    note: str = ""  # what was chosen on the way: a learning rate, a number of trials
