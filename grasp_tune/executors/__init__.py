"""Executors: they run the driver's tasks here, in other processes, on Ray or on a study."""
