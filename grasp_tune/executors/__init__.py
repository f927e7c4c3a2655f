"""Where tasks run: this process, worker processes, Ray actors, the trials of an Optuna study.

Each executor translates between the driver's tasks and its own kind of worker, and decides nothing.
"""
