"""The command line against a real service, as people and scripts use it."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.main import get_command

from blackboard.cli.main import app
from blackboard.core import access
from blackboard.integrity.tokens import issue
from tests.acceptance.shell import COMMAND, TIMEOUT_S, Running, Shell
from tests.otlp import receiving
from tests.ports import free_port
from tests.redis_process import RedisProcess, RedisSettings

VALUATION = '{"usd_bn": 2900}'


# --- what a board holds ---------------------------------------------------------------------------


@pytest.mark.usefixtures("service")
def test_a_value_is_set_read_listed_and_removed(shell: Shell) -> None:
    """Nothing was configured: the service that runs here is found."""
    told = shell.out("set", "public/valuation", VALUATION, "--note", "first estimate")
    assert told == "public/valuation is at revision 1 (on disk)\n"
    assert json.loads(shell.out("get", "public/valuation")) == {"usd_bn": 2900}
    assert shell.out("get", "public/valuation", "--json") == '{"usd_bn":2900}\n'
    [row] = shell.out("ls").splitlines()
    assert row.split("\t")[:3] == ["public/valuation", "1", "operator"]
    assert "revision 2" in shell.out("delete", "public/valuation")
    assert shell.run("ls").stderr == "nothing matches public/**\n"
    hint = "nothing matches public/plan; what is below it: 'public/plan/**'\n"
    assert shell.run("ls", "public/plan").stderr == hint


@pytest.mark.usefixtures("service")
def test_values_come_from_arguments_files_and_pipes(shell: Shell) -> None:
    """JSON, text and bytes go in and come out unchanged."""
    content = bytes(range(256))
    (shell.home / "image").write_bytes(content)
    shell.run("set", "public/image", "--file", "image")
    assert shell.json("get", "public/image")["$bytes"].startswith("AAECAw")
    script = f"{' '.join(COMMAND)} get public/image --raw"
    raw = subprocess.run(
        ["sh", "-c", script], env=shell.environ, capture_output=True, check=True, timeout=TIMEOUT_S
    )
    assert raw.stdout == content
    shell.run("set", "public/series", "-", given="[1, 2, 3]\n")
    assert shell.json("get", "public/series") == [1, 2, 3]
    shell.run("set", "public/digits", "5", "--string")
    assert shell.out("get", "public/digits", "--raw") == "5"
    assert shell.json("get", "public/digits") == "5"


@pytest.mark.usefixtures("service")
def test_every_answer_has_a_form_for_programs(shell: Shell) -> None:
    """Entries, listings, boards, receipts, the log, causes."""
    receipt = shell.json("set", "public/a", "1", "--ttl", "600")
    assert (receipt["revision"], receipt["level"]) == (1, "disk")
    entry = shell.json("get", "public/a", "--entry")
    assert (entry["value"], entry["mod_revision"], entry["author"]) == (1, 1, "operator")
    assert entry["expires_at_ms"] > entry["time_ms"]
    shell.run("set", "public/b", "2")
    top = shell.json("ls", "**", "--dirs")
    assert top["directories"] == [{"prefix": "public", "keys": 2, "more": False}]
    assert top["entries"] == []
    assert shell.json("history", "public/a", "--author", "nobody", "--since", "0") == []
    listing = shell.json("ls", "--limit", "1")
    assert [e["key"] for e in listing["entries"]] == ["public/a"]
    rest = shell.json("ls", "--after", listing["next_key"])
    assert [e["key"] for e in rest["entries"]] == ["public/b"]
    [board] = shell.json("boards")["boards"]
    assert (board["name"], board["revision"]) == ("main", 2)
    assert shell.json("why", "public/a")["causes"][0]["revision"] == 1
    lines = shell.out("log", "--json").splitlines()
    assert [json.loads(line)["revision"] for line in lines] == [1, 2]


@pytest.mark.usefixtures("service")
def test_the_log_shows_what_matches_and_what_one_agent_committed(shell: Shell) -> None:
    """Both options at once, too."""
    shell.run("set", "public/plan/a", "1", "--as", "ada")
    shell.run("set", "public/plan/b", "2")
    shell.run("set", "public/n", "3")

    def revisions(*options: str) -> list[int]:
        lines = shell.out("log", "--json", *options).splitlines()
        return [json.loads(line)["revision"] for line in lines]

    assert revisions("--limit", "1", "--pattern", "public/plan/*") == [2]
    assert revisions("--author", "ada") == [1]
    assert revisions("--after", "0", "--pattern", "public/**", "--author", "operator") == [2, 3]
    assert revisions("--since", "2001-01-01T00:00", "--author", "operator") == [2, 3]
    assert revisions("--since", "2") == revisions("--after", "2")


@pytest.mark.usefixtures("service")
def test_agents_see_their_own_only(shell: Shell) -> None:
    """`--as` takes an agent's name and rights; a token of an agent cannot take another's."""
    shell.run("set", "private/researcher/notes", "draft", "--as", "researcher")
    assert shell.json("get", "private/researcher/notes", "--as", "researcher") == "draft"
    denied = shell.error("get", "private/researcher/notes", "--as", "architect", code=5)
    assert (denied["code"], denied["principal"]) == ("access_denied", "architect")
    shell.environ["BLACKBOARD_TOKEN"] = shell.out("token", "create", "architect").strip()
    assert shell.json("token", "show")["principal"] == "architect"
    assert shell.error("ls", "--as", "researcher", code=5)["code"] == "access_denied"
    assert shell.json("ls", "private/**")["entries"] == []


@pytest.mark.usefixtures("service")
def test_a_token_holds_on_its_boards_with_its_rights_only(shell: Shell) -> None:
    """Rights are those that were granted, and nothing else."""
    grants = ["--grant", "public/**=read", "--board", "expansion"]
    token = shell.json("token", "create", "auditor", *grants)["token"]
    shell.run("set", "public/a", "1", "--board", "expansion")
    reader = ["--token", token, "--board", "expansion"]
    assert shell.json("get", "public/a", *reader) == 1
    assert shell.error("set", "public/a", "2", *reader, code=5)["right"] == "write"
    assert shell.error("get", "public/a", "--token", token, code=5)["key"] == "main"


@pytest.mark.usefixtures("service")
def test_a_file_is_uploaded_listed_and_downloaded(shell: Shell) -> None:
    """Above the size of a value; as it was before it was replaced, too."""
    content = bytes(range(256)) * 8_192
    (shell.home / "in").write_bytes(content)
    shell.run("set", "public/first", "1")
    told = shell.json("upload", "public/report", "in", "--type", "image/png", "--expect", "0")
    assert (told["size_bytes"], told["media_type"]) == (len(content), "image/png")
    (shell.home / "in").write_bytes(b"short")
    assert "(5 bytes)" in shell.out("upload", "public/report", "in", "--note", "shorter")
    keys = [row.split("\t")[0] for row in shell.out("ls").splitlines()]
    assert keys == ["public/first", "public/report"]
    rows = [row.split("\t") for row in shell.out("log").splitlines()]
    assert [row[3:5] for row in rows if "report" in row[4]] == [
        *(["upload", "public/report"], ["upload", "public/report"], ["put", "public/report"]) * 2,
    ]
    shell.run("download", "public/report", "now")
    shell.run("download", "public/report", "then", "--at", str(told["revision"]))
    assert (shell.home / "now").read_bytes() == b"short"
    assert (shell.home / "then").read_bytes() == content
    assert "exists already" in shell.error("download", "public/report", "now", code=2)["message"]
    shell.run("download", "public/report", "now", "--overwrite")
    refused = shell.error("upload", "public/report", "in", "--expect", "0", code=4)
    assert refused["code"] == "conflict"
    assert "no file" in shell.error("download", "public/none", "x", code=3)["message"]
    assert not (shell.home / "x").exists()


# --- how commands end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["get"], 2, "Missing argument"),
        (["gut", "x"], 2, "No such command"),
        (["set", "public/a", "1", "--expect", "x"], 2, "--expect"),
        (["set", "public/a"], 2, "VALUE or --file"),
        (["set", "public/a", '{"open'], 2, "not JSON"),
        (["set", "public/a", "--file", "missing"], 3, "missing cannot be read"),
        (["ls", "public//x"], 2, "not a pattern"),
        (["get", "public/none"], 3, "public/none is absent"),
        (["get", "public/none", "-b", "mian"], 3, "board mian has no commits yet"),
        (["get", "nonsense"], 2, "key: 'nonsense' is not a key"),
        (["why", "public/none"], 3, "public/none is absent"),
        (["delete", "public/none"], 3, "already absent"),
        (["set", "public/a", "1", "--expect", "7"], 4, "public/a is absent, not at revision 7"),
        (["get", "public/a", "--token", "x"], 5, "not let in"),
        (["get", "public/a", "--url", "ws://127.0.0.1:1"], 6, "blackboard serve"),
        (["ls", "--url", "nonsense"], 2, "ws://host:port"),
        (["ls", "--context", "prod"], 3, "no context prod"),
        (["ls", "--data", "nowhere"], 3, "no data directory"),
        (["ls", "--data", "d", "--url", "ws://x"], 2, "leave out --url"),
        (["watch", "--after", "1", "--snapshot"], 2, "leave out --after"),
        (["watch", "--after", "nonsense"], 2, "not a resume token"),
        (["watch", "--after", "99"], 1, "does not exist yet"),
        (["token", "create", "bob", "--grant", "public/**=rite"], 2, "is no grant"),
        (["token", "revoke", "--id", "id of bob"], 2, "'id of bob' cannot be the id of a token"),
        (["serve", "--port", "99999"], 2, "port"),
        (["serve", "--port", "0", "--engine", "mysql://x"], 2, "(or BLACKBOARD_ENGINE) sqlite"),
        (["serve", "--port", "0", "--host", "0.0.0.0"], 2, "secret"),
    ],
)
def test_failures_are_explained_in_words(
    served: Shell, arguments: list[str], code: int, words: str
) -> None:
    """An exit code, a readable line on stderr, no traceback, nothing on stdout."""
    done = served.run(*arguments, code=code)
    assert words in re.sub(r"[\s\u2502]+", " ", done.stderr)
    assert done.stdout == ""


def test_without_a_service_the_command_that_starts_one_is_named(shell: Shell) -> None:
    """Before the first one, and after the last one ended."""
    done = shell.run("ls", code=6)
    assert "no service is known" in done.stderr
    assert "blackboard serve" in done.stderr
    with shell.service() as running:
        code, _, _ = running.end(signal.SIGTERM)
        assert code == 0
    assert "blackboard serve" in shell.run("ls", code=6).stderr
    assert shell.error("ls", code=6)["code"] == "unavailable"


@pytest.mark.usefixtures("service")
def test_of_two_at_once_one_wins(shell: Shell) -> None:
    """Both say that the key must be absent; one hears of the other."""
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(
                lambda name: subprocess.run(
                    [*COMMAND, "set", "public/owner", name, "--expect", "0"],
                    env=shell.environ,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=TIMEOUT_S,
                ),
                ("ann", "bob"),
            )
        )
    assert sorted(one.returncode for one in done) == [0, 4]
    loser = next(one for one in done if one.returncode == 4)
    assert "--expect 1" in loser.stderr
    winner = ("ann", "bob")[[one.returncode for one in done].index(0)]
    assert shell.json("get", "public/owner") == winner


# --- the service ----------------------------------------------------------------------------------


def test_a_killed_service_comes_back_with_everything(shell: Shell) -> None:
    """What was answered is there after kill -9, and a watch goes on by itself."""
    port = free_port()
    with shell.service(port=port) as first:
        shell.run("set", "public/a", "1")
        with shell.start("watch", "--json") as watch:
            watch.wait_for_note("watching")
            first.end(signal.SIGKILL)
            with shell.service(port=port):
                assert shell.json("get", "public/a") == 1
                after = shell.json("set", "public/b", "2")["revision"]
                line = watch.wait_for('"public/b"')
                assert json.loads(line)["revision"] == after
                code, _, err = watch.end(signal.SIGINT)
                assert (code, "resume with --after" in err) == (130, True)


def test_a_second_service_learns_of_the_first(shell: Shell, service: Running) -> None:
    """The directory is one process's; the message says whose, and how to get in."""
    for arguments in (["serve", "--port", "0"], ["ls", "--data", "data"]):
        done = shell.run(*arguments, code=6)
        assert "in use by process" in done.stderr
        assert service.url in done.stderr
    assert shell.error("ls", "--data", "data", code=6)["url"] == service.url


def test_a_service_ends_quietly(shell: Shell) -> None:
    """Ctrl-C ends it in order: 0, and nothing on stderr."""
    with shell.service() as running:
        shell.run("set", "public/a", "1")
        code, _, err = running.end(signal.SIGINT)
        assert (code, err) == (0, "")


def test_the_banner_tells_what_matters(shell: Shell, service: Running) -> None:
    """Where, on which engine, where the boards are, what an answer survives, what to do next."""
    banner = "".join(service.lines)
    assert str(shell.home / "data") in banner
    assert re.search(r"engine +sqlite 3\.", banner)
    assert "an acknowledged commit is on disk" in banner
    for line in banner.splitlines():
        if line.startswith("   blackboard ") and "watch" not in line:
            shell.run(*line.partition("#")[0].split()[1:])


def test_a_missing_archive_is_reported_at_the_start(shell: Shell) -> None:
    """Before somebody relies on a checkpoint that nothing can be restored from."""
    told = "nothing can be restored"
    with shell.service() as running:
        assert told not in "".join(running.lines)
        running.end(signal.SIGINT)
    shell.environ["BLACKBOARD_ARCHIVE"] = "none"
    with shell.service() as running:
        assert told in "".join(running.lines)


def test_tokens_are_signed_for_the_service_in_use(shell: Shell) -> None:
    """Wherever its data are: the context remembers it."""
    del shell.environ["BLACKBOARD_DATA"]
    with shell.service("--data", "elsewhere"):
        done = shell.run("token", "create", "researcher")
        assert str(shell.home / "elsewhere" / "secret") in done.stderr
        shell.run("set", "public/a", "1", "--token", done.stdout.strip())
        assert str(shell.home / "elsewhere") in shell.out("doctor")


def test_a_service_for_other_machines_lets_in_with_tokens_only(shell: Shell) -> None:
    """It writes no context of its own; what its banner says to do next works."""
    (shell.home / "secret").write_text("s" * 64)
    arguments = ["--host", "0.0.0.0", "--insecure", "--secret-file", "secret"]
    with shell.service(*arguments) as running:
        assert "--secret-file FILE" in "".join(running.lines)
        assert "no service is known" in shell.run("ls", code=6).stderr
        url = f"ws://127.0.0.1:{running.port}"
        assert shell.error("ls", "--url", url, code=5)["code"] == "unauthenticated"
        token = shell.out("token", "create", "researcher", "--secret-file", "secret")
        adding = ["context", "add", "team", "--url", url, "--token", "-", "--use"]
        shell.run(*adding, given=token)
        assert shell.json("set", "public/a", "1")["revision"] == 1


def test_what_is_refused_leaves_nothing_behind(shell: Shell) -> None:
    """Unsafe settings make no directory, no secret and no context."""
    shell.run("serve", "--port", "0", "--host", "0.0.0.0", code=2)
    assert list(shell.home.iterdir()) == []


def test_a_port_that_is_taken_is_reported(shell: Shell, service: Running) -> None:
    """With what to try."""
    done = shell.run("serve", "--port", str(service.port), "--data", "other", code=2)
    assert "already in use" in done.stderr
    assert "--port" in done.stderr


def test_a_service_reports_in_json(shell: Shell) -> None:
    """One object a line, for machines that collect logs; the context is written as well."""
    with shell.start("serve", "--port", "0", "--log-format", "json") as running:
        record = json.loads(running.wait_for_note("serving"))
        assert (record["level"], record["logger"]) == ("info", "blackboard")
        shell.run("set", "public/a", "1")


def test_a_directory_needs_no_service(shell: Shell) -> None:
    """`--data` opens it in place; a service finds there what was written."""
    shell.run("set", "public/a", "1", "--data", "data")
    assert shell.json("get", "public/a", "--data", "data") == 1
    assert [
        json.loads(line)["revision"]
        for line in shell.out("log", "--data", "data", "--json").splitlines()
    ] == [1]
    with shell.service():
        assert shell.json("get", "public/a") == 1


def test_contexts_are_remembered_and_chosen(shell: Shell, service: Running) -> None:
    """A context carries address, token and board."""
    token = shell.out("token", "create", "researcher")
    adding = ["context", "add", "team", "--url", service.url, "--board", "expansion", "--use"]
    shell.run(*adding, "--token", "-", given=token)
    shell.run("set", "public/a", "1")
    assert [board["name"] for board in shell.json("boards")["boards"]] == ["expansion"]
    assert shell.json("get", "public/a", "--entry")["author"] == "researcher"
    listed = shell.run("context", "ls", "--json").stdout
    assert json.loads(listed)["current"] == "team"
    assert token.strip() not in listed + shell.out("context", "ls")
    shell.run("get", "public/a", "--context", "local", code=3)
    shell.run("context", "rm", "team")
    assert shell.json("context", "ls")["current"] == "local"


def test_everything_works_on_redis(shell: Shell, redis_url: str) -> None:
    """The same commands over the other engine."""
    with shell.service("--engine", redis_url) as running:
        assert re.search(r"engine +(redis|valkey) \d", "".join(running.lines))
        assert "(on disk)" in shell.out("set", "public/a", VALUATION)
        assert shell.json("get", "public/a") == {"usd_bn": 2900}
        assert shell.json("boards")["boards"][0]["revision"] == 1
        assert '"public/a"' in shell.out("log", "--json")


# --- doctor ---------------------------------------------------------------------------------------


def findings(shell: Shell, *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    """What doctor finds, by check; a check that failed last counts."""
    found = json.loads(shell.run("doctor", "--json", *arguments, code=code).stdout)["findings"]
    return {finding["check"]: finding for finding in found}


@pytest.mark.usefixtures("service")
def test_doctor_finds_nothing_wrong(shell: Shell) -> None:
    """Engine, machine and service, each on a line."""
    found = findings(shell)
    names = {"engine", "data", "disk", "fsync", "open files", "/healthz", "/readyz", "clock"}
    names |= {"version", "transport", "token", "access", "archive", "telemetry", "traces"}
    assert names == set(found)
    assert {finding["status"] for finding in found.values()} <= {"ok", "warn"}
    assert "in use by process" in found["engine"]["text"]
    lines = shell.out("doctor").splitlines()
    assert all(re.match(r"ok  |warn|   ", line) for line in lines)


def test_doctor_says_where_telemetry_goes(shell: Shell) -> None:
    """Of the service here, and of what starts with the same variables; no password is shown."""
    with receiving() as collector:
        endpoint = collector.url.replace("//", "//user:password@")
        shell.environ |= {
            "BLACKBOARD_TELEMETRY": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://127.0.0.1:1/v1/logs?key=password",
            "OTEL_METRICS_EXPORTER": "none",
        }
        with shell.service():
            told = shell.run("doctor", "--json").stdout
    found = [f for f in json.loads(told)["findings"] if f["check"] in ("telemetry", "traces")]
    traces, logs, service = found
    assert traces["status"] == service["status"] == "ok"
    assert traces["text"] == f"traces go to {collector.url}/v1/traces, which takes them"
    assert logs["status"] == "warn"
    assert logs["text"].startswith("logs go to http://127.0.0.1:1/v1/logs, which does not answer")
    assert "OTEL_LOGS_EXPORTER=none" in logs["fix"]
    assert service["text"] == "the service makes traces"
    assert "password" not in told


def test_doctor_names_the_engine_that_the_service_uses(shell: Shell, redis_url: str) -> None:
    """And not the one that the settings here would choose."""
    with shell.service("--engine", redis_url):
        found = findings(shell)
        lines = shell.out("doctor")
    assert re.match(
        "(redis|valkey), which the service on this machine uses", found["engine"]["text"]
    )
    assert "sqlite" not in lines
    assert "blackboard doctor --engine" in found["engine"]["fix"]


def test_doctor_warns_before_there_is_a_service(shell: Shell) -> None:
    """Nothing is broken yet, so it ends with 0."""
    found = findings(shell)
    assert (found["service"]["status"], "serve" in found["service"]["fix"]) == ("warn", True)
    assert not (shell.home / "data").exists()


def test_doctor_refuses_an_engine_that_evicts(shell: Shell, redis_binary: Path) -> None:
    """What would lose boards fails, with 1."""
    import anyio

    async def examine() -> dict[str, dict[str, str]]:
        settings = RedisSettings(memory_policy="allkeys-lru")
        async with RedisProcess(redis_binary, settings=settings) as server:
            return await anyio.to_thread.run_sync(
                lambda: findings(shell, "--engine", server.url, code=1)
            )

    found = anyio.run(examine)
    assert found["engine"]["status"] == "fail"
    assert "maxmemory-policy is allkeys-lru" in found["engine"]["text"]


def test_doctor_looks_at_a_service_on_another_machine(shell: Shell) -> None:
    """At what can be seen from here; of the rest it says where it can be found out."""
    secret = shell.home / "secret"
    secret.write_text("x" * 64)
    token = issue("x" * 64, access.agent("bob"), 3_600_000)
    # An address that no command takes for this machine's, and for which no proxy is asked.
    shell.environ |= {"no_proxy": "*", "NO_PROXY": "*"}
    with shell.service("--host", "0.0.0.0", "--insecure", "--secret-file", str(secret)) as running:
        there = ("--url", f"ws://127.0.0.2:{running.port}", "--token", token)
        found = findings(shell, *there)
    seen = {"/healthz", "/readyz", "version", "clock", "archive", "transport", "token"}
    assert set(found) == seen | {"access", "host", "telemetry", "traces"}
    assert [name for name in seen if found[name]["status"] == "fail"] == []
    assert "bob, valid until" in found["token"]["text"]
    assert "engine, data directory, disk and open files were not" in found["host"]["text"]
    assert "127.0.0.2 itself" in found["host"]["fix"]
    gone = findings(shell, *there, "--engine", "sqlite", code=1)
    assert {"engine", "data", "open files", "host"} <= set(gone)
    assert (gone["/healthz"]["status"], gone["token"]["status"]) == ("fail", "ok")
    assert "Is it running there" in gone["/healthz"]["fix"]


@pytest.mark.usefixtures("service")
def test_doctor_finds_a_token_that_is_not_let_in(shell: Shell) -> None:
    """A token of another service looks well and opens nothing."""
    (shell.home / "secret").write_text("x" * 64)
    token = shell.out("token", "create", "bob", "--ttl", "99", "--secret-file", "secret").strip()
    found = findings(shell, "--token", token, code=1)
    assert found["token"]["status"] == "ok"
    assert found["access"]["status"] == "fail"


# --- what people see ------------------------------------------------------------------------------


def on_terminal(shell: Shell, *arguments: str) -> str:
    """What a command shows on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environ = {**shell.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    try:
        subprocess.run(
            [*COMMAND, *arguments], stdout=theirs, env=environ, check=True, timeout=TIMEOUT_S
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO at its end: it need not come in one piece
            while part := os.read(ours, 65_536):
                shown += part
        return shown.decode()
    finally:
        os.close(ours)


@pytest.mark.usefixtures("service")
def test_a_terminal_gets_a_table_and_colours(shell: Shell) -> None:
    """Unless NO_COLOR is set: then it gets the table."""
    shell.run("set", "public/valuation", json.dumps({"text": "x" * 500}))
    plain = on_terminal(shell, "ls")
    assert "\x1b[3" not in plain
    assert "revision" in plain
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", plain).splitlines()) <= 80
    del shell.environ["NO_COLOR"]
    assert re.search(r"\x1b\[[0-9;]*3\d", on_terminal(shell, "log"))


EXAMPLES_ELSEWHERE = (
    "blackboard lock ",
    "blackboard serve",
    "blackboard context",
    "blackboard doctor --engine",
    "blackboard doctor --url",
    "blackboard checkpoint",
    "blackboard restore",
    "blackboard rewind",
    "blackboard demo",
    "blackboard new",
    "blackboard recover",
    "blackboard redact",
    "blackboard freeze",
    "blackboard thaw",
    "blackboard memory",
    "blackboard workspace",
    'echo "a longer text" | blackboard memory',
    "BB_EMBED_MODEL=",
    "blackboard board remove",
    "blackboard branch",
    "blackboard replay",
    "blackboard approve ",
    "blackboard reject",
    "blackboard migrate",
    "blackboard retrace",
    "blackboard export",
    "blackboard token create checker",
    "blackboard token narrow",
    "blackboard token inspect -",
    "blackboard token revoke",
    "blackboard upload",
    "blackboard download",
    "blackboard encryption",
    "blackboard audit",
    "blackboard backup",
    "BLACKBOARD_ENGINE=redis://localhost:6379 blackboard backup",
)
"""These need servers, files, agents or keys of their own; their own tests do what they say."""


def examples() -> list[str]:
    """The examples in the help of the commands, those first that write what others read."""
    ours = [line for line in all_examples() if not line.startswith(EXAMPLES_ELSEWHERE)]
    return sorted(ours, key=lambda line: (" delete " in line, " set " not in line))


def all_examples() -> list[str]:
    """Every example in the help of a command, without its remark."""
    groups = [get_command(app)]
    found: list[str] = []
    while groups:
        for command in groups.pop().commands.values():  # type: ignore[attr-defined]
            if hasattr(command, "commands"):
                groups.append(command)
            else:
                found += [line.partition("  # ")[0] for line in command.epilog.splitlines()]
    return found


@pytest.mark.usefixtures("service")
def test_the_examples_in_the_help_work(shell: Shell) -> None:
    """Each is typed as it stands; those that go on for ever are ended when they have begun."""
    (shell.home / "prod.token").write_text("a token of another service\n")
    for line in examples():
        typed = line if shutil.which("jq") else line.partition(" | jq")[0]
        endless = typed.startswith("blackboard watch") and "--count" not in typed
        with shell.script(typed) as script:
            if endless:
                script.wait_for_note("watching")
                assert script.end(signal.SIGINT)[0] in (130, -signal.SIGINT), typed
            elif "--http" in typed:
                script.wait_for_note("serving board")
                assert script.end(signal.SIGINT)[0] in (130, -signal.SIGINT), typed
            elif "--follow" in typed:
                script.wait_for("public/series")
                assert script.end(signal.SIGINT)[0] in (130, -signal.SIGINT), typed
            else:
                code, _, err = script.end()
                assert (code, "Traceback" in err) == (0, False), f"{typed}: {err}"
