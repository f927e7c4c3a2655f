"""One task in a thread of its worker process, so that the actor can answer while it runs."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Product = TypeVar("Product")


class Cancelled(BaseException):
    """The task was given up; not an Exception, so that no user code swallows it."""


class Count:
    """Oracle calls of the task under way; stops it at its next call when told to."""

    def __init__(self, total: Callable[[int], None]) -> None:
        self._total = total
        self.calls = 0
        self.cancelled = False

    def __call__(self, calls: int) -> None:
        """Add calls."""
        if self.cancelled:
            raise Cancelled
        self.calls += calls
        self._total(calls)


class Job(Generic[Product]):
    """A function that runs in a thread."""

    def __init__(self, run: Callable[[], Product], name: str) -> None:
        self._run = run
        self._products: list[Product] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._products.append(self._run())
        except BaseException as error:  # raised again where the product is asked for
            self._error = error

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it has ended, waiting for it up to so long."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def product(self) -> Product:
        """Return what the function returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._products[0]
