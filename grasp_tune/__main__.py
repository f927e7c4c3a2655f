"""`python -m grasp_tune` is `grasp-tune`."""

import sys

from grasp_tune.cli import main

sys.exit(main())
