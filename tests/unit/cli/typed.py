"""Commands in this process, as they are typed."""

from blackboard.cli.main import app


def ended(*arguments: str) -> int:
    """The exit code of a command of ours."""
    code = app(arguments, prog_name="blackboard", standalone_mode=False)
    assert code is None or isinstance(code, int)
    return code or 0
