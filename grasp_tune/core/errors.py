"""The errors of the package: one root, and each error is also the built-in that it resembles."""


class GraspError(Exception):
    """The root: whatever the package raises on purpose."""


class InputError(GraspError, ValueError):
    """An input that cannot be right; the message says what was given and what would be right."""


class PlanError(InputError):
    """A plan that cannot be made or read."""


class BudgetTooSmall(PlanError):
    """A budget that does not reach, with the smallest one that does."""

    def __init__(self, message: str, smallest: int = 0) -> None:  # pickle gives the first alone
        super().__init__(message)
        self.smallest = smallest  # oracle calls; never below the budget that was refused


class ProblemError(InputError):
    """A problem (model, loss, data) that cannot be minimised as given."""


class SearchError(GraspError, RuntimeError):
    """A search that was used out of order, or that cannot go on."""


class CheckpointError(GraspError, RuntimeError):
    """A checkpoint that is missing, damaged, or belongs to another run."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key  # the checkpoint that could not be read, so that it can be made again


class DamagedState(CheckpointError):
    """A state file of ours of which nothing can be used: what it knew has to be done again."""


class LockedError(GraspError, RuntimeError):
    """A folder that another process is using."""


class MissingExtra(GraspError, ImportError):
    """An optional dependency that is not installed; the message names the extra to install."""
