"""The cost beside AdamW: all ways run, and a fresh process reports its own peak."""

from dataclasses import replace

from benchmarks.overhead import CASES, RUNS, peak_memory, seconds


def test_all_ways_are_timed() -> None:
    found = seconds(replace(CASES["small"], calls=60), repeats=1)
    assert set(found) == set(RUNS) == {"adamw", "grasp", "minimize"}
    assert all(0.0 < value < 60.0 for value in found.values())


def test_a_fresh_process_reports_its_own_peak() -> None:
    assert 50 * 2**20 < peak_memory("small", "device") < 4 * 2**30
