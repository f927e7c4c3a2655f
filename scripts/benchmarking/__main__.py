"""The command line of the benchmark; see scripts/benchmark."""

import sys

from scripts.benchmarking.command import main

sys.exit(main())
