"""How a command ends: the exit codes, and each error as one readable line with what to do next.

Invariants
- Every error of blackboard/errors.py has an exit code in `EXIT_OF`; a test fails on a new one.
- An error is written to stderr, never to stdout: what a pipe reads is data only.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final
from urllib.parse import urlsplit

import typer

from blackboard import errors
from blackboard.cli import screen

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    DENIED = 5
    UNAVAILABLE = 6
    LEASE_LOST = 7
    NOT_EXECUTABLE = 126
    COMMAND_NOT_FOUND = 127
    INTERRUPTED = 130
    READER_GONE = 141


MEANING: Mapping[Exit, str] = {
    Exit.OK: "done",
    Exit.ERROR: (
        "any other error, including an unknown outcome: the message says so, and where to look"
    ),
    Exit.USAGE: "wrong arguments, or an invalid request",
    Exit.NOT_FOUND: "no such key, board, checkpoint, context or data directory",
    Exit.CONFLICT: "a condition did not hold; nothing was changed",
    Exit.DENIED: "no valid token, or no right to do that",
    Exit.UNAVAILABLE: (
        "the service or the engine cannot be reached or is overloaded; nothing was changed, "
        "try again"
    ),
    Exit.LEASE_LOST: "the lock was lost; the command under it was ended",
    Exit.NOT_EXECUTABLE: "the command to run under a lock cannot be run",
    Exit.COMMAND_NOT_FOUND: "the command to run under a lock does not exist",
    Exit.INTERRUPTED: "ended by Ctrl-C",
    Exit.READER_GONE: "the reader of the output went away (as in `| head`)",
}

_CODES: Final = {
    Exit.ERROR: (
        "rejected document_refused type_mismatch limit_exceeded compacted future_revision "
        "rolled_back resync outcome_unknown local_protocol_error remote_protocol_error "
        "model_failed call_failed call_interrupted command_stopped diverged schema_too_new "
        "migration_failed invalid_state agent_interrupted corrupt newer_format older_format "
        "engine_refused"
    ),
    Exit.CONFLICT: (
        "conflict file_refused unsaved_files workspace_held fenced lease_held nothing_to_claim "
        "stale_epoch step_superseded attempt_too_old head_moved snapshot_first board_frozen "
        "barrier_missed"
    ),
    Exit.LEASE_LOST: "lease_lost",
    Exit.DENIED: "access_denied unauthenticated",
    Exit.USAGE: "invalid_request",
    Exit.NOT_FOUND: "no_such_board no_such_checkpoint",
    Exit.UNAVAILABLE: "unavailable overloaded rate_limited data_directory_in_use",
}
EXIT_OF: Final = {code: end for end, codes in _CODES.items() for code in codes.split()}
"""The exit code of each error, by its code."""


@dataclass
class CommandError(Exception):
    """The error of a command.

    `message` says what is wrong in one line, `fix` what to do next ("" = nothing to suggest).
    """

    code: str
    exit: Exit
    message: str
    fix: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def wrong_usage(message: str, fix: str = "") -> CommandError:
    """An error about arguments that do not go together."""
    return CommandError("usage", Exit.USAGE, message, fix)


def not_found(message: str, fix: str = "") -> CommandError:
    """An error about something that does not exist."""
    return CommandError("not_found", Exit.NOT_FOUND, message, fix)


def explain(error: errors.BlackboardError) -> CommandError:
    """The command error for an error of the library."""
    found = _of_a_commit(error) or _of_the_past(error) or _of_the_service(error)
    message, fix = found or (str(error), "")
    return CommandError(error.code, EXIT_OF[error.code], message, fix, error.fields())


def _of_a_commit(error: errors.BlackboardError) -> tuple[str, str] | None:
    match error:
        # A checkpoint is an entry that is put on condition that its name is free.
        case errors.Conflict(expected=0) if error.key.startswith(_CHECKPOINTS):
            name = error.key.removeprefix(_CHECKPOINTS)
            return f"there is a checkpoint {name} already, made by {error.by}", (
                "A name is given once: give another. blackboard checkpoint list shows them."
            )
        case errors.Conflict() if error.key.endswith(_SNAPSHOT):
            return f"the snapshot on the board is revision {error.actual}, not of here", (
                "blackboard workspace restore brings it here; --overwrite replaces it."
            )
        case errors.FileRefused():
            return f"{error.path}: {error.reason}", "Nothing was changed."
        case errors.UnsavedFiles():
            return str(error).removeprefix("unsaved files: "), (
                "blackboard workspace snapshot keeps them; --discard loses them."
            )
        case errors.WorkspaceHeld():
            return str(error).removeprefix("workspace held: "), "Try again when it has ended."
        case errors.Conflict():
            message = str(error).removeprefix("conflict: ").replace(", expected ", ", not ")
            return message, (
                f"Look at it (blackboard get {error.key} --entry), then try again"
                f" with --expect {error.actual}."
            )
        case errors.LeaseHeld():
            return f"{error.key} is held by {error.holder}", (
                "Wait for it (--timeout), or see who holds what: blackboard leases"
            )
        case errors.LimitExceeded():
            where = f" ({error.where})" if error.where else ""
            message = (
                f"{error.value:,} is more than the limit {error.limit}{where}: {error.maximum:,}"
            )
            if error.account:
                message += f", the share of account {error.account}"
            return message, _WAYS_OUT.get(error.limit, _LIMITS_PAGE)
        case errors.InvalidRequest():
            # "ops.0.key", "keys.0": a command has one operation, and asks for one key.
            field = error.field.removesuffix(".0").rpartition(".")[2]
            field = {"keys": "key", "patterns": "pattern"}.get(field, field)
            return f"{field}: {_plain(error.reason)}", _hint(field, error.reason)
        case errors.StaleEpoch():
            return f"the board is in a new epoch since revision {error.head} ({error.cause})", (
                "Read what you rely on again, then try again."
            )
        case errors.OutcomeUnknown() if error.method != "commit":
            return f"{error.method}: sent, but it may have been done or not ({error.reason})", (
                _looking_for(error.method, error.request)
            )
        case errors.OutcomeUnknown():
            return f"sent, but no answer came ({error.reason}): it may have been applied or not", (
                "Look before you repeat it: blackboard log"
            )
    return None


def _of_the_past(error: errors.BlackboardError) -> tuple[str, str] | None:
    match error:
        case errors.NoSuchCheckpoint():
            return f"board {error.board} has no checkpoint {error.name}", (
                "See which there are: blackboard checkpoint list"
            )
        case errors.BarrierMissed():
            missed = ", ".join(error.agents)
            return (
                f"no state from {missed} within {error.timeout_ms} ms; no checkpoint was taken",
                ("Give them longer (--barrier), or take it without them (--stale-ok)."),
            )
        case errors.HeadMoved():
            return f"others committed all the time (the head is {error.head})", "Try again."
        case errors.SnapshotFirst():
            return f"a checkpoint waits for the state of {error.agent}", (
                "It continues when the agent has delivered it, or the checkpoint gives up."
            )
        case errors.BoardFrozen():
            why = f": {_plain(error.note)}" if error.note else ""
            return f"the board is frozen by {error.by} since revision {error.revision}{why}", (
                "Reading is possible. An admin can thaw it: blackboard thaw BOARD"
            )
        case errors.Resync():
            return f"the restore at revision {error.revision} changed too much to be delivered", (
                "Start again: watch with --snapshot."
            )
        case errors.RolledBack():
            return (
                f"what you saw after revision {error.from_revision} is no longer in the history",
                ("Start again: watch with --snapshot and without --after."),
            )
    return None


def _looking_for(method: str, request: str | None) -> str:
    """How to find out whether a request was carried out, or that repeating it is safe."""
    match method:
        case "restore":
            return f"Look before you repeat it: blackboard get system/restores/{request} is there."
        case "branch" | "import_end":
            return "Look before you repeat it: blackboard boards shows it if it was made."
        case "checkpoint":
            return "Look before you repeat it: blackboard checkpoint list"
        case "erase":
            return "Look before you repeat it: blackboard audit"
        case _:
            return "Try again: repeating it is safe."


_CHECKPOINTS: Final = "system/checkpoints/"
_SNAPSHOT: Final = "/~tree/head"

_LIMITS_PAGE: Final = "The page of limits (docs/limits.md) gives the reason."
_BRANCH: Final = "A branch has no such limit, and leaves this board: blackboard branch NEW MOMENT."
_WAYS_OUT: Final = {"RESTORE_CHANGES_MAX": _BRANCH, "RESTORE_BYTES_MAX": _BRANCH}

_HINTS = {
    "engine": "Give --engine (or BLACKBOARD_ENGINE) sqlite, or such a URL: redis://HOST:PORT/0",
    "key": "Keys look like public/plan/budget, private/AGENT/notes or inbox/AGENT/messages/0.",
    "pattern": "Patterns look like public/** or public/*/budget.",
    "host": "Is a service already running there? Try blackboard doctor, or another --port.",
    "existing": "Take another name, or replace it with --overwrite.",
    "new": "Take another name; blackboard boards shows those that are taken.",
    "master_key": "docs/howto/encryption.md says how to set it, and how to rotate it.",
    "tokens": "Give a TOKEN, --id ID or --all-of NAME.",
    "secret": "Write 32 random bytes to a file (openssl rand -hex 32), and give --secret-file.",
    "tls_cert": "Give --tls-cert and --tls-key, or --insecure behind a proxy that adds TLS.",
}


def _hint(field: str, reason: str) -> str:
    """What to do about an argument that was refused."""
    if reason.startswith("there is a board"):
        field = "new"
    elif field == "file" and reason.endswith("exists already"):
        field = "existing"
    return _HINTS.get(field, "")


def _of_the_service(error: errors.BlackboardError) -> tuple[str, str] | None:
    match error:
        case errors.AccessDenied():
            return f"{error.principal} may not {error.right} {error.key}", (
                "Use a token with that right (blackboard token create), or another --as."
            )
        case errors.Unauthenticated():
            return f"not let in: {error.reason}", (
                "Give a valid token: --token, BLACKBOARD_TOKEN or blackboard context add."
            )
        case errors.NoSuchBoard():
            return f"there is no board {error.board}", (
                "The first commit makes it: is the name right, or may your token only read?"
            )
        case errors.Overloaded():
            seconds = math.ceil(error.retry_after_ms / 1_000)
            return f"not now: {_plain(error.reason)}", f"Try again in {seconds} s."
        case errors.Unavailable(__cause__=errors.Unavailable() as lack) if lack.what != error.what:
            # The service has answered (client/remote/channel.py).
            return f"{error.what} cannot do it now: {lack.what}: {_plain(lack.reason)}", (
                "Nothing was changed. Its log and blackboard doctor say more."
            )
        case errors.Unavailable():
            return f"cannot reach {error.what}: {_plain(error.reason)}", way_to(
                error.what, error.reason
            )
        case errors.DataDirectoryInUse():
            owner = f"process {error.pid}" if error.pid else "another process"
            connect = (
                f"Connect to its service: --url {error.url}, and no --data."
                " A second service needs a directory of its own: serve --data DIR --port PORT."
            )
            return f"{error.path} is in use by {owner}", (
                connect if error.url else f"Stop {owner} first."
            )
        case errors.EngineRefused():
            return f"the engine's {error.setting} is {error.value}; {error.needed} is needed", (
                _HINTS.get(error.setting)
                or "Change it in the engine's configuration; blackboard doctor checks all of it."
            )
        case errors.Compacted():
            return f"revision {error.revision} is no longer in the log", (
                f"The log starts at revision {error.oldest}: use --after {error.oldest - 1}, or"
                " watch with --snapshot."
            )
        case errors.FutureRevision():
            return f"revision {error.revision} does not exist yet; the head is {error.head}", ""
        case errors.Corrupt() if error.what.startswith("file "):
            return f"{error.what} cannot be imported: {error.reason}", (
                "Nothing was made. Is it complete, and from blackboard checkpoint export?"
            )
        case errors.Corrupt():
            return f"{error.what} is not what was written: {error.reason}", (
                "Nothing was changed. Keep the files, and check with: blackboard doctor"
            )
        case errors.NewerFormat():
            return (
                f"{error.what} was written by a newer Blackboard: it has format {error.found}, and"
                f" this program knows formats up to {error.known}",
                "Nothing was changed. Run the newer version again (pip install -U"
                " agent-blackboard).",
            )
        case errors.OlderFormat():
            head, _, way = str(error).partition(". Nothing was changed: ")
            return head, f"Nothing was changed: {way} (blackboard export, blackboard import)."
        case errors.RemoteProtocolError():
            return f"the answer makes no sense: {error.reason}", (
                "Is there a Blackboard service at that address? blackboard doctor checks it."
            )
    return None


START: Final = "Start a service on this machine with: blackboard serve"


def _plain(reason: str) -> str:
    """The message of the operating system, without error numbers and Python's brackets."""
    if "Connect call failed" in reason:
        return "nothing listens there"
    return re.sub(r"\[Errno -?\d+\] ", "", reason)


def way_to(what: str, reason: str) -> str:
    """What to do when `what` (an address, the engine or a directory) cannot be reached."""
    if what == "engine":
        return "Is it running, and is the address (--engine) right?"
    if "://" not in what:  # a directory
        return ""
    if "no answer in" in reason or "engine is away" in reason:
        return "It is running, but its engine may be down: blackboard doctor says more."
    if hint := _way_through_tls(what, reason):
        return hint
    if urlsplit(what).hostname in LOOPBACK:
        return START
    return "Is it running there, and is the address right? blackboard doctor says more."


def other_scheme(url: str) -> str:
    """The same service's address with TLS if `url` is without, and without if it is with."""
    parts = urlsplit(url)
    scheme = "ws" if parts.scheme in ("wss", "https") else "wss"
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _way_through_tls(url: str, reason: str) -> str:
    """What to do when the server answers with another protocol than the address says; "" for other
    reasons.

    The reasons are those of client/remote/connect.py; what follows a certificate's is OpenSSL's.
    """
    if "does not speak TLS" in reason:
        return f"It is running without TLS: use {other_scheme(url)}, or serve it with --tls-cert."
    if "does not answer in HTTP" in reason:
        return f"Use {other_scheme(url)} if it is served over TLS: try blackboard doctor."
    if "certificate is not accepted" not in reason:
        return ""
    if "mismatch" in reason:
        return "Use a name that its certificate has (--url), or give it one for this name."
    if "expired" in reason or "not yet valid" in reason:
        return "It needs a new certificate; if it has one, set the clock of this machine."
    return "If it is your own, trust its CA (--ca FILE, or BLACKBOARD_CA)."


@contextmanager
def reported(*, as_json: bool) -> Iterator[None]:
    """Turn whatever ends the block into a message on stderr and an exit code."""
    try:
        yield
        # Here, and not at exit, where a full disk or a reader that is gone would be a traceback.
        sys.stdout.flush()
    except BaseException as error:
        # Of any kind: Ctrl-C is no Exception, and anyio puts the errors of tasks into groups.
        code = _code_of(_innermost(error), as_json=as_json)
        if code is None:
            raise
        raise typer.Exit(code) from error


def _code_of(cause: BaseException, *, as_json: bool) -> int | None:
    """Say what ended a command, and return its exit code; None for an error of ours."""
    if isinstance(cause, KeyboardInterrupt) or _is_interrupted_question(cause):
        return Exit.INTERRUPTED
    if isinstance(cause, (BrokenPipeError, screen.NotWrittenError)):
        return _unread(cause, as_json=as_json)
    if isinstance(cause, errors.BlackboardError):
        cause = explain(cause)
    if not isinstance(cause, (CommandError, typer.Exit)):
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        _unread(error, as_json=as_json)
    if isinstance(cause, typer.Exit):
        return cause.exit_code
    complain(cause, as_json=as_json)
    return cause.exit


def _unread(error: OSError, *, as_json: bool) -> Exit:
    """Give up an output that goes nowhere."""
    screen.discard_output()
    if isinstance(error, BrokenPipeError):
        return Exit.READER_GONE
    message = f"the output cannot be written: {error.strerror}"
    fix = "A change that the command made stays: look before you repeat it."
    complain(CommandError("not_written", Exit.ERROR, message, fix), as_json=as_json)
    return Exit.ERROR


def _is_interrupted_question(error: BaseException) -> bool:
    """Whether it is Ctrl-C at a question, as opposed to a no or the end of the input."""
    return isinstance(error, typer.Abort) and isinstance(error.__context__, KeyboardInterrupt)


def _innermost(error: BaseException) -> BaseException:
    """The one error inside groups that hold a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def complain(error: CommandError, *, as_json: bool) -> None:
    """Write `error` to stderr: for people, or as one line of JSON."""
    if as_json:
        from blackboard.wire.frames import JSON

        document = {"code": error.code, "message": error.message, **error.fields}
        screen.answer_error(JSON.pack({"error": _unicode(document)}).decode())
    else:
        screen.say_error(error.message, error.fix)


def _unicode(found: Any) -> Any:
    """`found` without what is no Unicode: an argument, or the name of a file, need not be text."""
    match found:
        case str():
            return found.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {name: _unicode(one) for name, one in found.items()}
        case list() | tuple():
            return [_unicode(one) for one in found]
    return found
