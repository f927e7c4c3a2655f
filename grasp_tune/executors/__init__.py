"""Where tasks run: this process, worker processes, Ray actors, the trials of an Optuna study.

An executor hands the driver's tasks to its own kind of worker, and decides nothing.
"""
