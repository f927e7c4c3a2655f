"""One loop for every body: ask the search for a task, have it run, tell the outcome, save.

`driver` is the loop, and the ledger of who runs what; `executor` is what it asks of those who run
tasks: submit, poll, cancel. Where workers are started by others, such as Ray Tune, `shared_sweep`
and `cell_sweep` are that ledger. `sweep_folder` is what a sweep leaves on a disk: a `lock`, state,
checkpoints (`store`) and counts of calls, all by way of `files`. `lane_sharing` says how many
workers share a step, `callbacks` hear how it goes, and `result` is what comes out.
"""
