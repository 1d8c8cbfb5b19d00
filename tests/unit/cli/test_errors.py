"""Every error has an exit code and a readable line; nothing but them reaches the user."""

import json

import pytest
import typer

from blackboard import errors
from blackboard.cli.errors import (
    EXIT_OF,
    MEANING,
    CommandError,
    Exit,
    explain,
    not_found,
    reported,
    wrong_usage,
)

CONFLICT = errors.Conflict("public/a", 4, 7, by="planner", at_revision=7, head=9)


def test_every_error_has_an_exit_code() -> None:
    """A new error must be put into the table, and the table holds no others."""
    assert set(EXIT_OF) == set(errors.BY_CODE)


def test_every_exit_code_has_a_meaning() -> None:
    """The help tells them all, in order."""
    assert list(MEANING) == list(Exit)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("key", "no"), 2),
        (CONFLICT, 4),
        (errors.StaleEpoch("a", "b", 2, "engine", from_revision=1, head=3), 4),
        (errors.AccessDenied("bob", "read", "private/eve/x"), 5),
        (errors.Unauthenticated("expired"), 5),
        (errors.Unavailable("service", "refused"), 6),
        (errors.Overloaded("service", "late", 1_000), 6),
        (errors.NoSuchBoard("mian"), 3),
        (errors.DataDirectoryInUse("data", 7, "ws://127.0.0.1:1"), 6),
        (errors.Corrupt("file", "flipped"), 1),
        (errors.OutcomeUnknown("bob", 0, "i", step=1, reason="gone"), 1),
    ],
)
def test_exit_codes(error: errors.BlackboardError, code: int) -> None:
    """The codes that scripts rely on."""
    assert explain(error).exit == code


@pytest.mark.parametrize(
    ("method", "fix"),
    [
        ("restore", "blackboard get system/restores/00ff is there"),
        ("branch", "blackboard boards"),
        ("import_end", "blackboard boards"),
        ("checkpoint", "blackboard checkpoint list"),
        ("erase", "blackboard audit"),
        ("prune", "repeating it is safe"),
    ],
)
def test_what_is_not_known_to_be_done_says_where_to_look(method: str, fix: str) -> None:
    """Each where it shows; what can be repeated need not be looked for."""
    told = explain(errors.OutcomeUnknown.of(method, "bob", "gone", request="00ff"))
    assert told.message == f"{method}: sent, but it may have been done or not (gone)"
    assert fix in told.fix


def test_an_excessive_request_learns_when_to_retry() -> None:
    told = explain(errors.RateLimited("10 requests a second", "bob asks for more", 1_200))
    assert (told.message, told.fix) == ("not now: bob asks for more", "Try again in 2 s.")


@pytest.mark.parametrize("limit", ["RESTORE_CHANGES_MAX", "RESTORE_BYTES_MAX"])
def test_a_restore_that_is_too_large_is_shown_the_way_out(limit: str) -> None:
    told = explain(errors.LimitExceeded(limit, 70_001, 65_536))
    assert "blackboard branch NEW MOMENT" in told.fix
    assert "branch" not in explain(errors.LimitExceeded("VALUE_BYTES_MAX", 2, 1)).fix


def test_a_conflict_says_what_to_try() -> None:
    """The message names the key and the revisions, the fix is a command."""
    told = explain(CONFLICT)
    assert told.message == (
        "public/a is at revision 7, not at revision 4, last written by planner at revision 7"
    )
    assert "--expect 7" in told.fix


def test_a_lease_of_somebody_else_names_its_holder() -> None:
    """In a sentence, as `blackboard leases` names it; the fields are for --json."""
    held = errors.LeaseHeld("public/deploy", "ann~5f3a", 7, 1_790_000_000_000)
    told = explain(held)
    assert told.message == "public/deploy is held by ann~5f3a"
    assert "--timeout" in told.fix
    assert told.fields == held.fields()


def test_a_checkpoint_of_that_name_is_no_matter_of_expect() -> None:
    """`checkpoint create` has no --expect; what helps is another name."""
    told = explain(errors.Conflict("system/checkpoints/a", 0, 7, by="planner"))
    assert told.message == "there is a checkpoint a already, made by planner"
    assert "another" in told.fix
    assert "--expect" not in told.fix
    changed = explain(errors.Conflict("system/checkpoints/a", 4, 7, by="planner"))
    assert "not at revision 4" in changed.message


@pytest.mark.parametrize("field", ["key", "keys.0", "ops.0.key"])
def test_a_wrong_key_is_called_key_wherever_it_stood(field: str) -> None:
    told = explain(errors.InvalidRequest(field, "'x' is not a key"))
    assert told.message == "key: 'x' is not a key"
    assert "public/plan/budget" in told.fix


def test_a_service_that_answers_is_not_said_to_be_out_of_reach() -> None:
    """It says what it lacks; to start another one would not help."""
    error = errors.Unavailable("ws://127.0.0.1:7420/v1", "unavailable: ...")
    error.__cause__ = errors.Unavailable("boards/a.db", "this process may open no more files")
    told = explain(error)
    assert told.message == (
        "ws://127.0.0.1:7420/v1 cannot do it now: boards/a.db: this process may open no more files"
    )
    assert "blackboard serve" not in told.fix
    error.__cause__ = errors.Unavailable("ws://127.0.0.1:7420/v1", "no connection in 30000 ms")
    assert "blackboard serve" in explain(error).fix


@pytest.mark.parametrize(
    ("field", "reason", "fix"),
    [
        ("file", "team.bbx exists already", "--overwrite"),
        ("board", "there is a board 'main'", "blackboard boards"),
        ("new", "there is a board 'main'", "blackboard boards"),
        ("file", "no such file", ""),
    ],
)
def test_what_is_taken_already_has_a_way_out(field: str, reason: str, fix: str) -> None:
    """Another name, or the option that replaces it."""
    found = explain(errors.InvalidRequest(field, reason)).fix
    assert fix in found
    assert bool(fix) == bool(found)


def test_a_file_that_is_no_export_is_not_taken_for_damage() -> None:
    told = explain(errors.Corrupt("file notes.txt", "it is not what was exported"))
    assert told.message == "file notes.txt cannot be imported: it is not what was exported"
    assert "checkpoint export" in told.fix


def test_a_directory_in_use_says_how_to_connect() -> None:
    """The process and its address are named."""
    told = explain(errors.DataDirectoryInUse("data", 7, "ws://127.0.0.1:1"))
    assert told.message == "data is in use by process 7"
    assert "--url ws://127.0.0.1:1" in told.fix
    assert explain(errors.DataDirectoryInUse("data", None, None)).fix == (
        "Stop another process first."
    )


def test_an_error_is_one_line_and_a_fix_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing goes to stdout; the exit code is the error's."""
    with pytest.raises(typer.Exit) as ended, reported(as_json=False):
        raise not_found("there is no x", "Make one.")
    assert ended.value.exit_code == Exit.NOT_FOUND
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: there is no x\n  Make one.\n"


def test_an_error_as_json_has_code_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get the fields of the error, bytes in it included."""
    with pytest.raises(typer.Exit), reported(as_json=True):
        raise errors.Conflict("public/a", 4, 7, current=b"\x00")
    told = json.loads(capsys.readouterr().err)["error"]
    assert told["code"] == "conflict"
    assert (told["key"], told["expected"], told["actual"]) == ("public/a", 4, 7)
    assert told["current"] == {"$bytes": "AA=="}


def test_an_error_inside_groups_is_found() -> None:
    """Task groups wrap what ends them."""
    wrapped = ExceptionGroup("a", [ExceptionGroup("b", [errors.Unavailable("x", "y")])])
    with pytest.raises(typer.Exit) as ended, reported(as_json=False):
        raise wrapped
    assert ended.value.exit_code == Exit.UNAVAILABLE


def test_ctrl_c_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 130, and no word."""
    with pytest.raises(typer.Exit) as ended, reported(as_json=False):
        raise KeyboardInterrupt
    assert ended.value.exit_code == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_swallowed() -> None:
    """What is no error of ours keeps its traceback."""
    with pytest.raises(ZeroDivisionError), reported(as_json=False):
        raise ZeroDivisionError


def test_wrong_usage_ends_with_2() -> None:
    """As the argument parser does."""
    error = wrong_usage("no")
    assert isinstance(error, CommandError)
    assert error.exit == 2


def test_a_refused_key_is_named_as_the_user_knows_it() -> None:
    """Users of the command know of no `ops.0`."""
    told = explain(errors.InvalidRequest(field="ops.0.key", reason="'plan' is not a key"))
    assert told.message == "key: 'plan' is not a key"
    assert "public/plan" in told.fix


@pytest.mark.parametrize(
    ("url", "fix"), [("ws://127.0.0.1:9/v1", "blackboard serve"), ("wss://far:9/v1", "there")]
)
def test_what_does_not_answer_is_to_be_started_where_it_should_be(url: str, fix: str) -> None:
    """Starting a service here does not help a user who named another machine."""
    reason = "[Errno 111] Connect call failed ('127.0.0.1', 9)"
    told = explain(errors.Unavailable(what=url, reason=reason))
    assert told.message == f"cannot reach {url}: nothing listens there"
    assert fix in told.fix


def test_numbers_of_the_operating_system_are_left_out() -> None:
    """`[Errno 98]` tells nobody more than the words behind it."""
    reason = "127.0.0.1:7420: [Errno 98] Address already in use"
    told = explain(errors.InvalidRequest(field="host", reason=reason))
    assert told.message == "host: 127.0.0.1:7420: Address already in use"


def test_a_directory_is_not_said_to_be_a_service_that_does_not_run() -> None:
    """There is nothing to start behind a path."""
    assert explain(errors.Unavailable(what="boards/x", reason="[Errno 13] No")).fix == ""


def test_a_limit_is_shown_with_its_name_and_readable_numbers() -> None:
    """The name is what the page of limits lists."""
    told = explain(errors.LimitExceeded("VALUE_BYTES_MAX", value=3_000_005, maximum=1_048_576))
    assert told.message == "3,000,005 is more than the limit VALUE_BYTES_MAX: 1,048,576"


def test_an_error_as_json_may_be_of_what_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    """An argument and the name of a file are any bytes."""
    with pytest.raises(typer.Exit) as ended, reported(as_json=True):
        raise CommandError("not_found", Exit.NOT_FOUND, "no \udcff", fields={"paths": ("\udcff",)})
    assert ended.value.exit_code == Exit.NOT_FOUND
    told = json.loads(capsys.readouterr().err)["error"]
    assert (told["message"], told["paths"]) == ("no \\udcff", ["\\udcff"])
