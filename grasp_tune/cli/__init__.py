"""The command `grasp-tune`."""

from grasp_tune.cli.commands import app as app
from grasp_tune.cli.commands import main as main
