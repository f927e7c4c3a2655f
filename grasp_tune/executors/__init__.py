"""Executors: they run tasks in this process, in worker processes, on Ray or on an Optuna study.

An executor gives the driver's tasks to its own kind of worker, and makes no decisions.
"""
