"""Checkpoints by the command line: real processes over a real service."""

import contextlib
import gzip
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable
from typing import Final

import pytest

from tests.acceptance.shell import COMMAND, Shell
from tests.acceptance.test_cli import all_examples
from tests.traces import TEAM

pytestmark = pytest.mark.usefixtures("service")

STORY: Final = (
    "checkpoint create",
    "checkpoint list",
    "checkpoint show",
    "checkpoint verify",
    "checkpoint export",
    "checkpoint import",
    "checkpoint pin",
    "branch",
    "checkpoint diff",
    "restore",
    "rewind",
    "replay",
    "checkpoint prune",
)
"""The commands whose examples are typed here, in an order in which they make sense."""

MEASURELESS: Final = (
    "checkpoint diff 99999999999999999999",
    "restore 99999999999999999999",
    "rewind --to 99999999999999999999",
    "rewind --before 99999999999999999999",
    "history public/a --limit 99999999999999999999",
    "checkpoint create --barrier inf x",
    "checkpoint create --barrier nan x",
    "checkpoint create --barrier 1e306 x",
    "checkpoint create --barrier 1e300 x",
    "checkpoint prune --history nan",
    "checkpoint prune --history infd",
    "checkpoint prune --history 90",
    "checkpoint prune --history 500mb",
    "checkpoint prune --history=-1d",
    "checkpoint prune --history 90d --history 30d",
    "checkpoint prune --last 99999999999999999999",
    "set public/a 1 --ttl inf",
    "set public/a 1 --ttl 1e300",
    "memory remember x --ttl inf",
    "lock public/a --ttl inf -- true",
    "lock public/a --timeout inf -- true",
    "lock public/a --timeout nan -- true",
    "token create bob --ttl inf",
    "token narrow x --ttl inf",
    "backup prune backup --keep-days inf",
)


def _spoiled(shell: Shell) -> int:
    """A board with a checkpoint "good", on which something went wrong since; its revision."""
    shell.run("set", "public/valuation", '{"usd_bn": 2900}')
    shell.run("set", "private/ada/draft", "page 1", "--as", "ada")
    revision: int = shell.json("checkpoint", "create", "good", "--note", "all agree")["revision"]
    shell.run("set", "public/valuation", '{"usd_bn": 29}')
    shell.run("set", "private/ada/draft", "page 2", "--as", "ada")
    shell.run("set", "public/noise", "1")
    return revision


def asked(
    shell: Shell, answer: bytes, *arguments: str, meanwhile: Callable[[], object] = bool
) -> int:
    """The exit code of a command that asks on a terminal; without an answer, it gets Ctrl-C.
    `meanwhile` is called between the question and the answer."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=shell.environ
    )
    os.close(theirs)
    shown = b""
    with command, contextlib.suppress(OSError):  # EIO at its end
        while b"Restore the board? [y/N]: " not in shown:  # whole: what follows is the answer
            shown += os.read(ours, 65_536)
        meanwhile()
        if answer:
            os.write(ours, answer)
        else:
            _interrupt(command, ours)
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    assert b"Traceback" not in shown
    return command.returncode


def _interrupt(command: "subprocess.Popen[bytes]", terminal: int) -> None:
    """Press Ctrl-C until `command` answers it.

    Python notices a signal only when it interrupts a read: one that comes between the question and
    the read waits for the next key, as for a person.
    """
    command.send_signal(signal.SIGINT)
    while not select.select([terminal], [], [], 5)[0]:
        command.send_signal(signal.SIGINT)


def test_a_board_is_taken_back_with_every_agent(shell: Shell) -> None:
    """Public and private at once; the exit code and the output say what happened."""
    revision = _spoiled(shell)
    restored = shell.json("restore", "good", "--yes", "--note", "a slip")
    assert (restored["from_revision"], restored["put_back"], restored["removed"]) == (
        revision,
        2,
        1,
    )
    assert shell.json("get", "public/valuation") == {"usd_bn": 2900}
    assert shell.json("get", "private/ada/draft", "--as", "ada") == "page 1"
    shell.run("get", "public/noise", code=3)


def test_a_checkpoint_is_told_in_two_columns(shell: Shell) -> None:
    """Scripts cut its name and its revision out."""
    shell.run("set", "public/a", "1")
    assert shell.run("checkpoint", "create", "good").stdout == "good\t2\n"


def test_a_key_and_a_listing_are_read_as_they_were(shell: Shell) -> None:
    """By revision and by checkpoint; what was not there then is absent."""
    shell.run("set", "public/plan", "1")
    shell.run("checkpoint", "create", "first")
    shell.run("set", "public/plan", "2")
    shell.run("set", "public/new", "true")
    for at, value in (("first", 1), ("1", 1), ("now", 2)):
        assert shell.json("get", "public/plan", "--at", at) == value
    shell.run("get", "public/new", "--at", "first", code=3)
    listed = shell.json("ls", "--at", "first")["entries"]
    assert [(entry["key"], entry["value"]) for entry in listed] == [("public/plan", 1)]
    assert shell.error("get", "public/plan", "--at", "9", code=1)["code"] == "future_revision"
    assert shell.error("ls", "--at", "second", code=3)["code"] == "no_such_checkpoint"


def test_nobody_to_ask_means_no(shell: Shell) -> None:
    """Without --yes and without a terminal it shows what would change, and changes nothing."""
    _spoiled(shell)
    done = shell.run("restore", "good", code=2)
    assert "public/noise" in done.stderr
    assert "--yes" in done.stderr
    assert shell.json("get", "public/noise") == 1


@pytest.mark.parametrize(("typed", "code"), [(b"", 130), (b"n\n", 1), (b"\x04", 1), (b"y\n", 0)])
def test_the_question_has_answers(shell: Shell, typed: bytes, code: int) -> None:
    """Ctrl-C, no, the end of the input, yes: each with its exit code; only a yes changes it."""
    _spoiled(shell)
    assert asked(shell, typed, "restore", "good") == code
    shell.run("get", "public/noise", code=3 if code == 0 else 0)


def test_a_yes_is_for_what_was_shown(shell: Shell) -> None:
    """Not for a second restore, over what was done since somebody else restored the board."""
    _spoiled(shell)

    def restore_and_go_on() -> None:
        shell.run("restore", "good", "--yes")
        shell.run("set", "public/since", "1")

    assert asked(shell, b"y\n", "restore", "good", meanwhile=restore_and_go_on) == 4
    assert shell.json("get", "public/since") == 1


def test_the_abandoned_future_can_come_back(shell: Shell) -> None:
    """What a restore abandons is a checkpoint, too."""
    _spoiled(shell)
    before = shell.json("restore", "good", "--yes")["before"]
    assert before in [taken["name"] for taken in shell.json("checkpoint", "list")]
    shell.run("restore", before, "--yes")
    assert shell.json("get", "public/valuation") == {"usd_bn": 29}


def test_rewind_goes_to_just_before_a_revision(shell: Shell) -> None:
    """By the number of the one that went wrong."""
    shell.run("set", "public/a", "1")
    wrong = shell.json("set", "public/a", "2")["revision"]
    shell.run("rewind", "--before", str(wrong), "--yes")
    assert shell.json("get", "public/a") == 1
    shell.run("rewind", "--yes", code=2)
    shell.run("rewind", "--before", "3", "--to", "2", "--yes", code=2)


@pytest.mark.parametrize("typed", ["5", "1700000000", "2999-01-01", "0001-01-01T00:00", "10:30"])
def test_rewind_refuses_what_is_no_time_of_the_board(shell: Shell, typed: str) -> None:
    """As seconds since 1970, a revision would be a moment before all commits."""
    shell.run("set", "public/a", "1")
    assert shell.run("rewind", "--at", typed, "--yes", code=2).stderr.startswith("error: ")
    assert shell.json("get", "public/a") == 1


def test_rewind_goes_to_a_time(shell: Shell) -> None:
    """A date is its first instant; this board began after it."""
    shell.run("set", "public/a", "1")
    assert shell.json("rewind", "--at", "2020-11-21", "--yes")["from_revision"] == 0
    shell.run("get", "public/a", code=3)


def test_the_error_for_no_moment_says_what_one_is(shell: Shell) -> None:
    """By every command that takes one."""
    shell.run("set", "public/a", "1")
    for command in (["restore"], ["branch", "b"], ["checkpoint", "diff"], ["checkpoint", "verify"]):
        told = shell.run(*command, "a/b", code=2).stderr
        assert "'a/b' is no moment" in told
        assert "the name of a checkpoint, a revision, now, or a time such as" in told


def test_numbers_without_measure_are_wrong_arguments(shell: Shell) -> None:
    """Whether the command notices or what it asks; none ends with a traceback."""
    shell.run("set", "public/a", "1")
    for typed in MEASURELESS:
        assert shell.run(*typed.split(), code=2).stderr, typed


def test_a_refused_reader_learns_the_needed_right(shell: Shell) -> None:
    """Nothing that he may read would change; what he may not read does all the same."""
    shell.run("set", "private/ada/draft", "1", "--as", "ada")
    shell.run("checkpoint", "create", "good")
    shell.run("set", "private/ada/draft", "2", "--as", "ada")
    keeper = ("--token", shell.out("token", "create", "keeper", "--grant", "**=restore").strip())
    told = shell.run("restore", "good", *keeper, code=2).stderr
    assert "of what you may read, 0 keys would change" in told
    assert "of what you may read, revisions" in shell.run("checkpoint", "diff", "2", *keeper).stderr
    assert shell.json("restore", "good", "--yes", *keeper)["put_back"] == 1


def test_a_diff_names_what_changed(shell: Shell) -> None:
    """By namespace and key, for people and for programs."""
    _spoiled(shell)
    text = shell.out("checkpoint", "diff", "good")
    assert "public/valuation" in text
    assert "2900" in text
    changes = shell.json("checkpoint", "diff", "good")["changes"]
    kinds = {change["key"]: change["kind"] for change in changes}
    assert kinds["public/noise"] == "added"
    assert kinds["private/ada/draft"] == "changed"


def test_a_branch_goes_its_own_way(shell: Shell) -> None:
    """It begins as the board was, knows its past, and changes nothing of it."""
    _spoiled(shell)
    shell.run("branch", "cheaper", "good", "--note", "growth of 4 percent")
    shell.run("set", "public/valuation", '{"usd_bn": 1990}', "--board", "cheaper")
    assert shell.json("get", "public/valuation") == {"usd_bn": 29}
    versions = shell.json("history", "public/valuation", "--board", "cheaper")
    assert [version["entry"]["value"]["usd_bn"] for version in versions] == [1990, 2900]
    found = shell.json("checkpoint", "diff", "now", "now", "--other", "cheaper")["changes"]
    assert "public/valuation" in [change["key"] for change in found]
    shell.run("branch", "cheaper", code=2)


def test_a_checkpoint_is_sealed_and_verified(shell: Shell) -> None:
    """Its manifest has digests, agents and a signature; nothing is damaged."""
    _spoiled(shell)
    manifest = shell.json("checkpoint", "show", "good")
    assert {"public", "private/ada"} <= manifest["digests"].keys()
    assert manifest["signed_by"]
    assert "ada" in manifest["steps"]
    assert shell.json("checkpoint", "verify", "good")["ok"] is True
    assert "digest" in shell.out("checkpoint", "show", "good")


def test_an_exported_checkpoint_becomes_a_board_elsewhere(shell: Shell) -> None:
    """One file, which is not replaced unasked; a changed one is refused, and leaves no board."""
    revision = _spoiled(shell)
    file = shell.home / "good.bbx"
    exported = shell.json("checkpoint", "export", "good", str(file))
    assert (exported["file"], exported["revision"]) == (str(file), revision)
    assert exported["bytes"] == file.stat().st_size
    shell.run("checkpoint", "import", str(file), "rehearsal")
    assert shell.json("get", "public/valuation", "--board", "rehearsal") == {"usd_bn": 2900}
    told = shell.run("checkpoint", "export", "good", str(file), code=2).stderr
    assert f"{file} exists" in told
    assert "--overwrite" in told
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    shell.run("checkpoint", "import", str(file), "forged", code=1)
    assert "forged" not in shell.out("boards")


def test_pruning_keeps_what_people_named_and_pinned(shell: Shell) -> None:
    """A dry run removes nothing; names go only with --also-named, pins never."""
    for number in range(4):
        shell.run("set", "public/a", str(number))
        shell.run("checkpoint", "create", *([f"c{number}"] if number < 2 else []))
    shell.run("checkpoint", "pin", "c0")
    keep_nothing = ("checkpoint", "prune", "--last", "0", "--days", "0")
    names = [taken["name"] for taken in shell.json("checkpoint", "list")]
    assert set(shell.json(*keep_nothing, "--dry-run")["removed"]) == set(names[2:])
    assert [taken["name"] for taken in shell.json("checkpoint", "list")] == names
    shell.run(*keep_nothing, "--also-named")
    assert [taken["name"] for taken in shell.json("checkpoint", "list")] == ["c0"]


def test_names_that_nobody_gave_are_reported(shell: Shell) -> None:
    """With an exit code of their own, and what there is."""
    shell.run("set", "public/a", "1")
    for command in (("restore", "none", "--yes"), ("checkpoint", "show", "none")):
        error = shell.error(*command, code=3)
        assert error["code"] == "no_such_checkpoint"
    shell.run("checkpoint", "create", "12", code=2)
    shell.run("checkpoint", "create", "good")
    assert shell.error("checkpoint", "create", "good", code=4)["code"] == "conflict"


def test_a_watcher_sees_the_difference_of_a_restore(shell: Shell) -> None:
    """One revision, with exactly what came back, and the epoch that it begins."""
    _spoiled(shell)
    with shell.start("watch", "public/**", "--json") as watch:
        watch.wait_for_note("watching")
        revision = shell.json("restore", "good", "--yes")["revision"]
        line = watch.wait_for('"restore"')
        assert f'"revision": {revision}' in line or f'"revision":{revision}' in line
        assert "public/noise" in line
        watch.end(signal.SIGINT)


def test_the_examples_in_the_help_work(shell: Shell) -> None:
    """Each is typed as it stands; nobody is here to be asked, so --yes is added."""
    for number in range(4):
        shell.run("set", "public/valuation", str(number))
    shell.run("checkpoint", "create", "after-plan")
    (shell.home / "team.jsonl").write_bytes(TEAM.read_bytes())
    (shell.home / "team.jsonl.gz").write_bytes(gzip.compress(TEAM.read_bytes()))
    for command in STORY:
        for line in all_examples():
            if line.startswith(f"blackboard {command}"):
                typed = f"{line} --yes" if command in ("restore", "rewind") else line
                with shell.script(typed) as script:
                    code, _, err = script.end()
                assert (code, "Traceback" in err) == (0, False), f"{typed}: {err}"
