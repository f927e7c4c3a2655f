"""The loop that runs a sweep: ask the search for a task, run it, tell the outcome, save.

`driver` has the loop and the ledger of running tasks. `executor` is the interface of the executors,
which run tasks: submit, poll, cancel. If a framework such as Ray Tune starts the workers, the
ledgers of `shared_sweep` and `cell_sweep` replace the loop. `sweep_folder` has the files of a
sweep: a `lock`, its state, checkpoints (`store`) and counts of calls, all written by `files`.
`lane_sharing` decides how many workers share a step, `callbacks` report progress, and `result` is
what a sweep returns.
"""
