"""Sweeps under deliberate faults; see benchmarks/faults."""
