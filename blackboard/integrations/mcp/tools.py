"""The tools: what each does on the board of its agent.

Descriptions are the docstrings: short, and with when to use a tool. Each tool checks nothing that
the board checks; errors of the board leave as they are, and the server explains them.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import anyio

import blackboard
from blackboard.errors import InvalidRequest
from blackboard.integrations.mcp import answers as said, arguments as given
from blackboard.integrations.mcp.answers import AnswerRoom, entry_shown, refused, time_text
from blackboard.integrations.mcp.session import AgentSession
from blackboard.ops import Append, Delete, Put, encode_value
from blackboard.types import Checkpoint, Diff, Entry, Pending, Version

KEYS_LOOKED_AT_MAX: Final = 4_096
"""Keys that one `list` counts: four requests to the service."""
LATE_S: Final = 0.05
"""How long a wait that has found something looks for what comes right behind it."""
_PAGE: Final = 1_024

A = TypeVar("A", bound=given.ToolArguments)
Run = Callable[[AgentSession, A], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class BoardTool:
    """A tool: its texts for models, and what it does."""

    name: str
    arguments: type[given.ToolArguments]
    answer: type
    run: Callable[[AgentSession, Any], Awaitable[Any]]
    description: str
    reads: bool
    destroys: bool


TOOLS: dict[str, BoardTool] = {}
"""By name, in the order in which a model reads them."""


def tool(
    arguments: type[A], answer: type, *, reads: bool = False, destroys: bool = False
) -> Callable[[Run[A]], Run[A]]:
    """Declare a tool: the name of the function is its name, its docstring the description."""

    def declare(run: Run[A]) -> Run[A]:
        name = run.__name__.strip("_")
        text = " ".join((run.__doc__ or "").split())
        TOOLS[name] = BoardTool(name, arguments, answer, run, text, reads, destroys)
        return run

    return declare


def moment(at: int | str | None) -> "int | str | datetime | None":
    """A moment as the board takes it: a time has a colon, and is UTC unless it says otherwise."""
    if not isinstance(at, str) or ":" not in at:
        return at
    try:
        found = datetime.fromisoformat(at)
    except ValueError as error:
        raise InvalidRequest(
            "at", f"{at[:100]!r} is no moment: give a revision or a name"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# --- reading and writing --------------------------------------------------------------------------


@tool(given.ReadArguments, said.ReadAnswer, reads=True)
async def read(session: AgentSession, args: given.ReadArguments) -> said.ReadAnswer:
    """Read entries of the team's board, all as of one moment. Read before you decide: each entry
    has the revision that `write` takes as expected_revision."""
    keys = list(dict.fromkeys(args.keys))
    if args.offset and len(keys) > 1:
        raise refused("invalid_arguments", "offset goes with one key", "Read one key at a time.")
    entries = await session.board.entries(keys, at=moment(args.at))
    room, shown, not_shown = AnswerRoom(), [], []
    # One long value has the whole answer.
    most = said.VALUE_CHARACTERS if len(keys) > 1 else said.ANSWER_CHARACTERS // 2
    for key in keys:
        entry = entries.get(key)
        if entry is None:
            continue
        if room.is_used_up:
            not_shown.append(key)
        else:
            shown.append(entry_shown(entry, room.show(entry.value, most, args.offset)))
    absent = [key for key in keys if key not in entries]
    # What was not shown, or not as it is now, is nothing that a change can rely on.
    if args.at is None:
        session.saw(entry for key, entry in entries.items() if key not in not_shown)
        for key in absent:
            session.saw_at(key, 0)
    answer: said.ReadAnswer = {"entries": shown}
    if absent:
        answer["absent"] = absent
    if not_shown:
        answer["not_shown"] = not_shown
    return answer


@tool(given.ListArguments, said.ListAnswer, reads=True)
async def list_(session: AgentSession, args: given.ListArguments) -> said.ListAnswer:
    """See what is on the board: the directories and keys below one. Begin here, with "", to see
    who you are and what there is."""
    under = args.directory.strip("/")
    if "*" in under:
        fix = 'Name the directory itself ("public/plan"), with recursive for all keys below it.'
        raise refused("invalid_arguments", "directory: a pattern is no directory", fix)
    pattern = f"{under}/**" if under else "**"
    answer: said.ListAnswer = {"revision": 0, "directories": {}, "entries": []}
    if not under:
        answer["you"], answer["board"] = session.board.agent, session.board.name
    room, looked_at, after = AnswerRoom(), 0, args.after
    at = moment(args.at)
    while True:
        page = await session.board.list(
            pattern, after=after, limit=_PAGE, at=at, keys_only=not args.values
        )
        answer["revision"] = page.revision
        for entry in page.entries:
            if room.is_used_up:
                answer["next"] = after or ""
                return answer
            _sort_in(entry, under, args, answer, room)
            after, looked_at = entry.key, looked_at + 1
        if page.next_key is None:
            return answer
        if looked_at >= KEYS_LOOKED_AT_MAX:
            answer["next"] = page.next_key
            return answer
        # All pages are of one revision: a name or a time is looked up once.
        after, at = page.next_key, at and page.revision


def _sort_in(
    entry: Entry, under: str, args: given.ListArguments, answer: said.ListAnswer, room: AnswerRoom
) -> None:
    """Count a key to its directory, or list it."""
    inside = entry.key[len(under) + 1 :] if under else entry.key
    directory, slash, _ = inside.partition("/")
    if slash and not args.recursive:
        counts = answer["directories"]
        room.items -= directory not in counts
        counts[directory] = counts.get(directory, 0) + 1
        return
    room.items -= 1
    shown: said.ShownEntry = {}
    if args.values:
        room.items += 1
        shown = room.show(entry.value, said.PREVIEW_CHARACTERS)
    answer["entries"].append(entry_shown(entry, shown))


@tool(given.WriteArguments, said.WriteAnswer, destroys=True)
async def write(session: AgentSession, args: given.WriteArguments) -> said.WriteAnswer:
    """Write one entry. Give expected_revision from your last read (0: it must not exist yet), so
    that you overwrite nothing you have not seen; a conflict tells you what is there now. public/ is
    for the team, private/YOU/ only for you."""
    ttl_ms = None if args.ttl_s is None else max(1, round(args.ttl_s * 1000))
    op = Put(args.key, encode_value(said.meant(args.value)), ttl_ms)
    expected = (args.key, args.expected_revision)
    done = await session.change(op, expected=expected, based_on=args.based_on, note=args.note)
    return {"key": args.key, "revision": done.revision}


@tool(given.AppendArguments, said.WriteAnswer)
async def append(session: AgentSession, args: given.AppendArguments) -> said.WriteAnswer:
    """Add an entry under the next free number of a directory. Use it to announce something, or to
    send a message to another agent: inbox/AGENT/messages. It never conflicts."""
    directory = args.directory.strip("/")
    op = Append(directory, encode_value(said.meant(args.value)))
    done = await session.change(op, expected=(directory, None), note=args.note)
    return {"key": str(done.results[0]), "revision": done.revision}


@tool(given.DeleteArguments, said.WriteAnswer, destroys=True)
async def delete(session: AgentSession, args: given.DeleteArguments) -> said.WriteAnswer:
    """Remove one entry. Its history stays, and `restore` can bring it back."""
    expected = (args.key, args.expected_revision)
    done = await session.change(Delete(args.key), expected=expected, note=args.note)
    return {"key": args.key, "revision": done.revision, "removed": bool(done.results[0])}


# --- claims and waiting ---------------------------------------------------------------------------


@tool(given.ClaimArguments, said.ClaimAnswer)
async def claim(session: AgentSession, args: given.ClaimArguments) -> said.ClaimAnswer:
    """Take something for yourself before you work on it: a file, a task, a deployment. Others are
    refused until you release it, until its time is over, or until you are gone. Claim again to
    prolong it."""
    held = await session.claims.claim(args.key, args.seconds, args.wait_s)
    return {"key": args.key, "holder": session.board.agent, "seconds": held.left_s}


@tool(given.ReleaseArguments, said.ClaimAnswer)
async def release(session: AgentSession, args: given.ReleaseArguments) -> said.ClaimAnswer:
    """Give back what you claimed, as soon as your work on it is written down."""
    return {"key": args.key, "released": await session.claims.release(args.key)}


@tool(given.ClaimsArguments, said.ClaimsAnswer, reads=True)
async def claims(session: AgentSession, args: given.ClaimsArguments) -> said.ClaimsAnswer:
    """List claims, their holders and how many agents wait. Look before you choose your work."""
    leases = await session.board.leases(args.pattern)
    found: list[said.ClaimAnswer] = [
        {"key": lease.key, "holder": said.agent_in(lease.holder), "waiting": len(lease.waiters)}
        for lease in leases[: said.ANSWER_ITEMS]
    ]
    return {"claims": found, "more": len(leases) > len(found)}


@tool(given.WaitArguments, said.WaitAnswer, reads=True)
async def wait(session: AgentSession, args: given.WaitArguments) -> said.WaitAnswer:
    """Wait until something changes: a key, a directory (public/news/**), a message
    (inbox/YOU/**), the end of a claim. Use it instead of reading again and again; if it timed out,
    call it again with `after`."""
    changes: list[said.ShownChange] = []
    room, not_shown = AnswerRoom(), 0
    await session.check_readable(args.patterns)
    async with session.board.watch(*args.patterns, after=args.after) as watch:
        until = anyio.current_time() + args.seconds
        with anyio.CancelScope(deadline=until) as scope:
            async for revised in watch:
                for one in revised.changes:
                    if room.is_used_up:
                        not_shown += 1
                    else:
                        changes.append(said.change_shown(one, revised, room))
                if room.is_used_up:
                    break
                scope.deadline = min(until, anyio.current_time() + LATE_S)
        answer: said.WaitAnswer = {"changes": changes, "timed_out": not changes}
        answer["next"] = watch.position
        if not_shown:
            answer["not_shown"] = not_shown
        return answer


# --- the past -------------------------------------------------------------------------------------


@tool(given.HistoryArguments, said.HistoryAnswer, reads=True)
async def history(session: AgentSession, args: given.HistoryArguments) -> said.HistoryAnswer:
    """The earlier versions of a key: who wrote what, and when."""
    found = await session.board.history(args.key, before=args.before, limit=args.limit + 1)
    room = AnswerRoom()
    versions: list[said.ShownChange] = []
    for version in islice(found, args.limit):
        if room.is_used_up:
            break
        versions.append(_version_shown(version, room))
    answer: said.HistoryAnswer = {"versions": versions}
    if len(versions) < len(found):
        answer["next"] = versions[-1]["revision"]
    return answer


def _version_shown(version: Version, room: AnswerRoom) -> said.ShownChange:
    found: said.ShownChange = {
        "key": version.key,
        "kind": "delete" if version.entry is None else "put",
        "revision": version.revision,
        "author": version.author,
        "time": time_text(version.time_ms),
    }
    return found if version.entry is None else {**found, **room.show(version.value, 2_000)}


@tool(given.WhyArguments, said.WhyAnswer, reads=True)
async def why(session: AgentSession, args: given.WhyArguments) -> said.WhyAnswer:
    """Why a key holds what it holds: the commits it rests on, with authors and notes."""
    causes = await session.board.why(args.key)
    found: list[said.ShownCause] = []
    for cause in causes[: said.ANSWER_ITEMS]:
        shown: said.ShownCause = {
            "key": cause.key,
            "revision": cause.revision,
            "depth": cause.depth,
            "author": cause.author,
            "note": cause.note,
        }
        if cause.time_ms:
            shown["time"] = time_text(cause.time_ms)
        if cause.missing:
            shown["missing"] = cause.missing
        found.append(shown)
    return {"causes": found, "more": len(causes) > len(found)}


@tool(given.CheckpointArguments, said.CheckpointAnswer)
async def checkpoint(
    session: AgentSession, args: given.CheckpointArguments
) -> said.CheckpointAnswer:
    """Name the present state of the whole team, private memory included. Take one before anything
    risky: `restore` goes back to it."""
    return _checkpoint_shown(await session.board.checkpoint(args.name, note=args.note))


@tool(given.CheckpointsArguments, said.CheckpointsAnswer, reads=True)
async def checkpoints(
    session: AgentSession, args: given.CheckpointsArguments
) -> said.CheckpointsAnswer:
    """The checkpoints of the board, the newest first."""
    found = (await session.board.checkpoints())[::-1]
    shown: list[said.ShownCheckpoint] = [_checkpoint_shown(one) for one in found[: args.limit]]
    return {"checkpoints": shown, "more": len(found) > len(shown)}


def _checkpoint_shown(one: Checkpoint) -> said.CheckpointAnswer:
    return {
        "name": one.name,
        "revision": one.revision,
        "by": one.by,
        "time": time_text(one.time_ms),
        "note": one.note,
    }


@tool(given.DiffArguments, said.DiffAnswer, reads=True)
async def diff(session: AgentSession, args: given.DiffArguments) -> said.DiffAnswer:
    """What differs between two moments, key by key. Use it to review what was done since a
    checkpoint."""
    since, until = moment(args.since), moment(args.until)
    assert since is not None
    assert until is not None
    found = await session.board.diff(
        since, until, pattern=args.pattern, limit=said.ANSWER_ITEMS + 1
    )
    return diff_shown(found)


def diff_shown(found: Diff) -> said.RestoreAnswer:
    """A diff, with as much of each difference as there is room for."""
    room = AnswerRoom()
    changes: list[said.ShownDifference] = []
    for change in found.changes:
        if room.is_used_up:
            break
        text = "\n".join(str(change).split("\n")[1:])
        shown = room.show(text, 2_000)
        cut = f" ... ({shown['characters']} characters)" if "characters" in shown else ""
        difference = str(shown.get("value", shown.get("text"))) + cut
        changes.append({"key": change.key, "kind": change.kind, "difference": difference})
    more = found.more or len(changes) < len(found.changes)
    return {"since": found.a, "until": found.b, "changes": changes, "more": more}


# --- people ---------------------------------------------------------------------------------------


@tool(given.AskArguments, said.ApprovalAnswer)
async def ask(session: AgentSession, args: given.AskArguments) -> said.ApprovalAnswer:
    """Ask a person to approve something, with the facts it depends on. Then wait for the key in
    `wait_for`, and call ask again with the same arguments and the id: state says the answer."""
    board, name = session.board, args.id or secrets.token_hex(4)
    decision = await blackboard.ask(
        board,
        name,
        args.question,
        facts=args.facts,
        details=said.meant(args.details),
        approvers=args.approvers,
    )
    own = [one for one in await blackboard.pending(board, board.agent) if one.id == name]
    if not own:
        raise refused("not_found", f"the request {name} was withdrawn", "Ask again, without id.")
    shown = _approval_shown(own[0], AnswerRoom())
    shown["wait_for"] = f"public/~decisions/{board.agent}/{name}"
    if decision is not None:
        shown["state"] = "approved" if decision.approved else "rejected"
        shown["by"], shown["reason"] = decision.by, decision.reason
    else:
        shown["state"] = "pending"
        shown.pop("reason", None)
    return shown


@tool(given.ApprovalsArguments, said.ApprovalsAnswer, reads=True)
async def approvals(session: AgentSession, args: given.ApprovalsArguments) -> said.ApprovalsAnswer:
    """What agents ask people to approve, and what was answered."""
    found = await blackboard.pending(session.board, args.agent)
    room = AnswerRoom()
    shown: list[said.ShownApproval] = []
    for one in found:
        if room.is_used_up:
            break
        shown.append(_approval_shown(one, room))
    return {"approvals": shown, "more": len(shown) < len(found)}


def _approval_shown(one: Pending, room: AnswerRoom) -> said.ApprovalAnswer:
    room.items -= 1
    room.characters -= len(one.request.question)
    found: said.ApprovalAnswer = {
        "agent": one.agent,
        "id": one.id,
        "revision": one.revision,
        "time": time_text(one.time_ms),
        "question": one.request.question,
        "facts": {fact.key: _brief(fact.value, room) for fact in one.request.facts},
        "state": "pending",
    }
    if one.request.details is not None:
        found["details"] = _brief(one.request.details, room)
    if one.answer is not None:
        found["state"] = "approved" if one.answer.approved else "rejected"
        found["reason"] = one.answer.reason
    return found


def _brief(value: Any, room: AnswerRoom) -> Any:
    shown = room.show(value, said.PREVIEW_CHARACTERS)
    return shown["value"] if "value" in shown else f"{shown['text']} ..."


@tool(given.AnswerArguments, said.WriteAnswer)
async def answer(session: AgentSession, args: given.AnswerArguments) -> said.WriteAnswer:
    """Approve or reject the request of another agent. Only on the instruction of your user, and
    with the right to approve. Nobody answers their own requests."""
    found = await blackboard.pending(session.board, args.agent)
    for one in found:
        # A request that was made again has another revision: it was not this one that was read.
        if one.id == args.id and one.revision == args.revision:
            if one.answer is not None:
                state = "approved" if one.answer.approved else "rejected"
                what = f"request {one.id} of {one.agent} was {state} already"
                raise refused("answered", what, "Nothing was changed. Call approvals to see it.")
            done = await blackboard.answer(
                session.board, one, approved=args.approved, reason=args.reason
            )
            key = f"public/~decisions/{one.agent}/{one.id}"
            return {"key": key, "revision": done.revision}
    ids: Sequence[str] = [f"{one.id} (revision {one.revision})" for one in found]
    what = f"{args.agent} has no request {args.id} of revision {args.revision}"
    raise refused("not_found", what, f"There are: {', '.join(ids[:10]) or 'none'}.")
