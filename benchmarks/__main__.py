"""The command line of the benchmark; see benchmarks/benchmark."""

import sys

from benchmarks.command import main

sys.exit(main())
