"""`python -m blackboard` is the command `blackboard`."""

from blackboard._lazy import whole

whole("blackboard.cli.main", "the command line").app(prog_name="blackboard")
