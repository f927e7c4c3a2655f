"""The commands of `grasp-tune`, one module each; `grasp_tune.cli` puts them together.

Results go to standard output, progress and errors to standard error. Heavy modules are imported
inside the commands, so that `--help` and a wrong config answer at once.
"""
