"""Runs the fault program; see benchmarks/faults."""

import sys

from benchmarks.faulting.command import main

if __name__ == "__main__":  # processes of the cases import this module too
    sys.exit(main())
