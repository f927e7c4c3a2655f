"""The loop of every body: ask the search for a task, have it run, tell the outcome, save.

`driver` has the loop and the ledger of running tasks; `executor` is the interface of those who run
them: submit, poll, cancel. Where a framework such as Ray Tune starts the workers, the ledgers of
`shared_sweep` and `cell_sweep` take the place of the loop. `sweep_folder` is what a sweep keeps on
disk: a `lock`, its state, checkpoints (`store`) and counts of calls, all written by `files`.
`lane_sharing` decides how many workers share a step, `callbacks` report progress, and `result` is
what a sweep returns.
"""
