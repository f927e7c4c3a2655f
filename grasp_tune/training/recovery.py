"""The chosen model at the end of a sweep, even where its checkpoint is lost by then."""

from grasp_tune.method.errors import CheckpointError
from grasp_tune.method.search import Search, Step
from grasp_tune.training.worker import Worker


def place_chosen(worker: Worker, search: Search) -> None:
    """Put the worker's model at the search's choice, made again here where it cannot be read.

    Raises `CheckpointError` where making it again does not help.
    """
    while True:
        try:
            worker.place(search.partial().key)
            return
        except CheckpointError as error:
            if error.key is None:
                raise
            search.make_again(error.key)
        while not isinstance(task := search.ask(), Step):
            try:
                search.tell(task, worker.run(task))
            except CheckpointError as error:
                if error.key is None:
                    raise
                search.lost_checkpoint(task, error.key)
