"""The loop that runs a sweep: ask the search for a task, run it, tell the outcome, save.

`driver` has the loop, `executor` the interface of what runs tasks, `sweep_folder` the files. If a
framework starts the workers, the ledgers of `shared_sweep` and `cell_sweep` replace the loop.
"""
