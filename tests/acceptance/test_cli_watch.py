"""watch and log --follow: how they begin, go on, and end."""

import json
import os
import signal
import subprocess

import pytest

from tests.acceptance.shell import COMMAND, TIMEOUT_S, Shell


@pytest.mark.usefixtures("service")
def test_ctrl_c_ends_a_watch_with_a_token_that_continues(shell: Shell) -> None:
    """130, no traceback; what happened in between comes first, once."""
    with shell.start("watch", "public/**") as watch:
        watch.wait_for_note("watching public/** on main")
        shell.run("set", "public/a", "1", "--note", "why")
        fields = watch.wait_for("public/a").rstrip("\n").split("\t")
        assert (fields[0], fields[2:]) == ("1", ["operator", "put", "public/a", "1", "why"])
        code, out, err = watch.end(signal.SIGINT)
    assert (code, out) == (130, "")
    [note] = err.splitlines()
    token = note.removeprefix("resume with --after ")
    for value in ("2", "3"):
        shell.run("set", "public/a", value)
    lines = shell.out("watch", "--after", token, "--count", "2", "--json").splitlines()
    assert [json.loads(line)["changes"][0]["value"] for line in lines] == [2, 3]
    assert json.loads(lines[0])["position"] != json.loads(lines[1])["position"]


@pytest.mark.usefixtures("service")
def test_a_watch_can_begin_with_what_there_is(shell: Shell) -> None:
    """First the state, then exactly what follows it."""
    shell.run("set", "public/a", "1")
    with shell.start("watch", "--snapshot", "--count", "1") as watch:
        assert "\tstate\tpublic/a\t1\t" in watch.wait_for("public/a")
        shell.run("delete", "public/a")
        assert "\tdelete\tpublic/a\t" in watch.wait_for("public/a")
        assert watch.end()[0] == 0


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("command", ["watch", "log --follow"])
def test_a_reader_that_goes_away_ends_it_quietly(shell: Shell, command: str) -> None:
    """`| head -1` ends with its line, not with the next change, and without a word."""
    with shell.script(f"{{ blackboard {command}; echo code $? >&2; }} | head -1") as script:
        if command == "watch":
            script.wait_for_note("watching")
        shell.run("set", "public/a", "1")
        script.wait_for("public/a")
        assert script.wait_for_note("code") == "code 141\n"
        assert script.end() == (0, "", "")


@pytest.mark.usefixtures("service")
def test_a_long_listing_can_be_cut(shell: Shell) -> None:
    """`ls | head -1` writes more than a pipe holds into one that is closed."""
    for name in ("a", "b", "c"):
        shell.run("set", f"public/{name}", "-", "--string", given="x" * 200_000)
    with shell.script("{ blackboard ls; echo code $? >&2; } | head -c 10") as script:
        assert script.wait_for_note("code") == "code 141\n"
        assert script.end() == (0, "public/a\t1", "")


@pytest.mark.usefixtures("service")
def test_a_diff_that_nobody_reads_any_more_ends_quietly(shell: Shell) -> None:
    """So does what is written line by line, with the first of them."""
    shell.run("set", "public/a", "1")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "checkpoint", "diff", "0"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=shell.environ,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.usefixtures("service")
def test_the_log_shows_the_newest_and_follows(shell: Shell) -> None:
    """`--limit` counts from the end, `--after` from there on, `--follow` goes on."""
    for value in "12345":
        shell.run("set", "public/a", value)
    revisions = [line.split("\t")[0] for line in shell.out("log", "--limit", "2").splitlines()]
    assert revisions == ["4", "5"]
    after = shell.out("log", "--after", "1", "--limit", "2").splitlines()
    assert [line.split("\t")[0] for line in after] == ["2", "3"]
    with shell.start("log", "--after", "4", "--follow") as log:
        log.wait_for("5\t")
        shell.run("set", "public/a", "6")
        assert log.wait_for("public/a").startswith("6\t")
