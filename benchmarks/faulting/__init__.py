"""Faults on purpose, and what becomes of a sweep; see benchmarks/faults."""
