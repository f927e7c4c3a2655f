"""Faults on purpose, and what becomes of a sweep; see scripts/faults."""
