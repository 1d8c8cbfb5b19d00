"""`python -m blackboard` is the command `blackboard`."""

from blackboard.cli.main import app

app(prog_name="blackboard")
