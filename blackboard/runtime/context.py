"""The context of a step, `ctx`: reads are tracked, writes gathered, calls journaled.

    async def step(self, ctx: Context[Notes]) -> None:
        price = await ctx.tool(fetch_price, "AAPL")
        ctx.state.prices.append(price)
        ctx.put("public/price", price)
        ctx.send("architect", {"see": "public/price"})

Invariants
- what a step writes, sends and changes in `ctx.state` takes effect in one commit after it returned,
  or not at all.
- A step that has to wait ends with a Suspended (a BaseException), and runs again from its
  beginning; its earlier calls are answered from the journal.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

from anyio import to_thread
from pydantic import BaseModel, ConfigDict

from blackboard import telemetry
from blackboard.client.step import Step
from blackboard.client.views import Entry, Listing
from blackboard.core.commit import Condition, Op, Put
from blackboard.core.path import is_meant, parse_pattern
from blackboard.errors import Corrupt, InvalidRequest, Rejected
from blackboard.limits import INBOX_TAKE_MAX, OPERATIONS_MAX, Limits
from blackboard.runtime import chunks as large
from blackboard.runtime.approvals import Case, Decision, Request
from blackboard.runtime.board_port import BoardPort
from blackboard.runtime.calls import (
    Call,
    CallOptions,
    adapter_of,
    canonical,
    name_of,
    plain_result,
    takes_key,
)
from blackboard.runtime.files import AgentFiles
from blackboard.runtime.journal import TIMER, CallPlace, Journal
from blackboard.runtime.models import DocumentText, Model, Prompt, Reply, streamed
from blackboard.runtime.state import S, Status, state_key
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import decode_value, encode_large, encode_value

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
_OWN_OPS, _OWN_CONDITIONS = 8, 1
"""What the runtime adds to the commit of a step, at least."""


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message from the inbox. The board recorded the name of its `sender` and the `account` of
    the sender's token. Trust the account: names can be chosen when a token is narrowed, accounts
    are assigned by the service."""

    key: Key
    sender: str
    value: Any
    time_ms: Milliseconds
    account: str = ""


class Reference(BaseModel):
    """Refers to a large value that is stored beside the state, by its digest, size, and a
    summary."""

    model_config = ConfigDict(frozen=True)

    digest: str
    size_bytes: int
    summary: str = ""


class Suspended(BaseException):
    """The step cannot continue now. It is not an Exception, so that no `except Exception` of an
    agent catches it."""

    def __init__(
        self,
        status: Status,
        patterns: Sequence[str],
        ops: Sequence[Op] = (),
        conditions: Sequence[Condition] = (),
    ) -> None:
        super().__init__(status.value)
        self.status = status
        self.patterns = tuple(patterns)
        self.ops = tuple(ops)
        self.conditions = tuple(conditions)


@dataclass(frozen=True, slots=True)
class StepRun:
    """The present run of a step: `number` of the step from 1, `attempt` from 1.

    `refused` is why the previous run was not accepted: a Conflict says which key changed, and its
    value now.
    """

    number: int
    attempt: int = 1
    refused: Rejected | None = None


class Context(Generic[S]):
    """A step's view of everything. Used during the step only."""

    def __init__(
        self,
        state: S,
        run: StepRun,
        step: Step,
        journal: Journal,
        port: BoardPort,
        files: AgentFiles | None = None,
    ) -> None:
        self.state = state
        """The private state. Change it freely: it is written when the step commits."""
        self.run = run
        self.outcome: str | None = None
        """The argument of `done`."""
        self.keeping = large.Keeping()
        """The large values of `keep` and `drop`, in parts."""
        self._step = step
        self._journal = journal
        self._port = port
        self._files = files
        self._taken: Key | None = None

    @property
    def agent(self) -> str:
        """The agent that takes the step."""
        return self._port.agent

    @property
    def limits(self) -> Limits:
        """How long this process waits, how often it tries, and how much it keeps."""
        return self._port.limits

    @property
    def refused(self) -> Rejected | None:
        """Why the last run of this step was not accepted; None in its first one."""
        return self.run.refused

    @property
    def files(self) -> AgentFiles:
        """The files of the agent. Errors: InvalidRequest when it has none, as in a trial."""
        if self._files is None:
            reason = "the agent has no files: let `Agent.workspace` return a directory"
            raise InvalidRequest("workspace", f"{reason}; a trial has none either")
        return self._files

    # --- reading: tracked -------------------------------------------------------------------------

    async def get(self, key: Key, default: Any = None) -> Any:
        """The value at `key`, own writes included. The step is refused if the key changes."""
        return await self._step.get(key, default)

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`, with revision and author; tracked as `get`."""
        return await self._step.entry(key)

    async def list(self, pattern: str) -> Listing:
        """The entries that match, without own writes; tracked: see `Step.list`."""
        return await self._step.list(pattern)

    async def peek(self, key: Key, default: Any = None) -> Any:
        """The value at `key` as it is now, not tracked: the step is valid even if it changes."""
        entry = await self._port.entry(key)
        return default if entry is None else entry.value

    async def count(self, pattern: str) -> int:
        """How many entries match now, with those that this step puts; not tracked, as `peek`."""
        meant = parse_pattern(pattern)
        keys = {op.key for op in self._step.ops if isinstance(op, Put) and meant.matches(op.key)}
        after: Key | None = None
        while True:
            page = await self._port.list(pattern, after=after)
            keys |= {entry.key for entry in page.entries}
            after = page.next_key
            if after is None:
                return len(keys)

    async def inbox(self, limit: int = INBOX_TAKE_MAX) -> tuple[InboxMessage, ...]:
        """Take the oldest messages, at most `limit` (up to INBOX_TAKE_MAX), perhaps none.

        They are removed when the step commits, so that each is processed by one step. A further
        call returns the next ones, or none when half of the operations of one commit are used: what
        is left is for the next step.
        """
        room = self._room_for_messages()
        if room < 1:
            return ()
        page = await self._port.list(
            f"inbox/{self.agent}/messages/*",
            after=self._taken,
            limit=min(limit, INBOX_TAKE_MAX, room),
        )
        for entry in page.entries:
            # Also a read: the message is a ground of the step (`why`) and an input of its replay.
            self._step.saw(entry)
            self._step.delete(entry.key)
            self._taken = entry.key
        return tuple(
            InboxMessage(e.key, e.author, e.value, e.time_ms, e.owner) for e in page.entries
        )

    def _room_for_messages(self) -> int:
        """How many more messages the step can take: each is an operation and a condition of its
        commit."""
        ops, conditions = len(self._step.ops), len(self._step.conditions)
        room = OPERATIONS_MAX - _OWN_CONDITIONS - conditions
        if self._taken is None:
            # At least one: a step that is full before its first message fails, and says so.
            return max(min(room, OPERATIONS_MAX - _OWN_OPS - ops), 1)
        # Half is for what the step does about the messages.
        return min(room, OPERATIONS_MAX // 2 - ops)

    # --- writing: gathered ------------------------------------------------------------------------

    def put(self, key: Key, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Set `key` to `value` when the step commits."""
        self._step.put(key, value, ttl_ms=ttl_ms)

    def delete(self, key: Key) -> None:
        """Remove `key` when the step commits."""
        self._step.delete(key)

    def delete_prefix(self, prefix: Prefix) -> None:
        """Remove everything below `prefix` when the step commits."""
        self._step.delete_prefix(prefix)

    def append(self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Add `value` as the next item below `prefix` when the step commits."""
        self._step.append(prefix, value, ttl_ms=ttl_ms)

    def increment(self, key: Key, by: int = 1) -> None:
        """Add `by` to the integer at `key` when the step commits."""
        self._step.increment(key, by)

    async def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch to `key` as the step sees it; returns the value."""
        return await self._step.merge(key, patch)

    def send(self, agent: str, message: Any) -> None:
        """Put `message` into the inbox of `agent` when the step commits."""
        self._step.send(agent, message)

    def expect(self, *conditions: Condition) -> None:
        """Add conditions to the step's commit."""
        self._step.expect(*conditions)

    def note(self, text: str) -> None:
        """The note of the step in the log."""
        self._step.note = text

    def done(self, outcome: str = "done") -> None:
        """Make this the agent's last step; `outcome` is recorded."""
        self.outcome = outcome

    def keep(self, value: Any, summary: str = "") -> Reference:
        """Keep a large value (up to LARGE_BYTES_MAX) beside the state, when the step commits.

        Equal values are kept once. `load` reads it, in any later step; `drop` removes it. One above
        VALUE_BYTES_MAX is stored in parts. Errors: LimitExceeded, also when the step keeps too
        many.
        """
        encoded = encode_large(value)
        digest = large.digest_of(encoded)
        if large.is_large(len(encoded)):
            self._journal.make_room(len(encoded))
            self.keeping.keep(digest, encoded)
        else:
            self._step.put(self._kept_key(digest), value)
        return Reference(digest=digest, size_bytes=len(encoded), summary=summary)

    async def load(self, reference: Reference) -> Any:
        """The value that a reference stands for. Errors: Corrupt when it is missing or
        different."""
        key, digest = self._kept_key(reference.digest), reference.digest
        if digest in self.keeping.kept:
            return decode_value(self.keeping.kept[digest])
        if large.is_large(reference.size_bytes):
            keys = large.part_keys(key, reference.size_bytes)
            return large.joined(key, [await self._step.get(part) for part in keys], digest)
        value = await self._step.get(key, ...)
        if value is ... or large.digest_of(encode_value(value)) != digest:
            raise Corrupt(what=key, reason="it is not what the reference stands for")
        return value

    def drop(self, reference: Reference) -> None:
        """Remove the value that a reference stands for, when the step commits."""
        if large.is_large(reference.size_bytes):
            self.keeping.drop(reference.digest)
        else:
            self._step.delete(self._kept_key(reference.digest))

    def _kept_key(self, digest: str) -> Key:
        return f"{large.kept_prefix(self.agent)}/{digest}"

    # --- calls: journaled -------------------------------------------------------------------------

    @overload
    async def tool(
        self,
        function: Callable[[*Arguments], Awaitable[T]],
        /,
        *arguments: *Arguments,
        terms: CallOptions | None = None,
    ) -> T: ...

    @overload
    async def tool(
        self,
        function: Callable[[*Arguments], T],
        /,
        *arguments: *Arguments,
        terms: CallOptions | None = None,
    ) -> T: ...

    @overload
    async def tool(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        terms: CallOptions | None = None,
        **named: Any,
    ) -> Any: ...

    async def tool(  # type: ignore[misc]  # a TypeVarTuple does not match *tuple[Any, ...]
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        terms: CallOptions | None = None,
        **named: Any,
    ) -> Any:
        """Call `function`, once: its result is recorded before the step continues.

        Arguments are passed on by place and by name, so that a model's tool call is carried out by
        `await ctx.tool(search, **call.parsed())`; only `terms` is kept back. The function returns
        JSON types, bytes, or what its annotation describes to pydantic. One that is not async runs
        in a thread. One with a keyword-only parameter `idempotency_key` gets it: the same text for
        the same call after a crash, to be passed to the called service.

        Errors: CallFailed when it raised, or returned what its annotation refuses (as often as
        `terms` let it), also when that is known from the journal. CallInterrupted, LimitExceeded:
        see Terms. Cancellation: as of `Journal.call`.
        """
        terms = terms or CallOptions()
        adapter, wants_key = adapter_of(function), takes_key(function)

        async def work(key: str) -> bytes:
            bound = partial(function, *arguments, **named)
            if wants_key:
                bound = partial(bound, idempotency_key=key)
            return plain_result(await _called(bound), adapter)

        # Recorded by name, so that two different calls never share a record.
        meant = {"positional": list(arguments), "named": named} if named else list(arguments)
        call = Call("tool", name_of(function, terms), json.loads(canonical(meant)), terms.version)
        # The first run reads it from its plain form, too: later runs get nothing else.
        read = adapter.validate_python if adapter else _as_it_is
        return read(await self._journal.call(call, work, terms, read=read))

    async def model(
        self,
        model: Model,
        prompt: Prompt,
        *,
        into: Key | None = None,
        terms: CallOptions | None = None,
    ) -> Reply:
        """Ask `model`, once: the reply, with version, seed and usage, is recorded before the step
        continues.

        With `into`, the text of the document at that key is the reply's while it comes, for all who
        may read it; what stood there before is removed. Keep it for this call. When the reply is
        known from the journal of the step, the text only gets what it lacks.

        Errors: CallFailed when the model did not answer. Those of `Board.document`: if the model
        has answered by then, that is recorded. Cancellation: as of `Journal.call`.
        """
        opening = None if into is None else self._port.document(into)
        if opening is None:
            return await self._reply(model, prompt, model.complete, terms)
        # Opened before the model is asked: an answer that cannot be written is not paid for.
        async with opening as document:
            text = DocumentText(document.text())
            is_written = self._journal.has_result(_call_of(model, prompt, terms))

            async def ask(prompt: Prompt) -> Reply:
                nonlocal is_written
                is_written = True
                return await streamed(model, prompt, text)

            reply = await self._reply(model, prompt, ask, terms)
            if not is_written:  # the team shares the reply, or a restore kept it
                text.restart()
            text.complete(reply.text)
            return reply

    async def _reply(
        self,
        model: Model,
        prompt: Prompt,
        ask: Callable[[Prompt], Awaitable[Reply]],
        terms: CallOptions | None,
    ) -> Reply:
        terms = terms or CallOptions()

        async def work(_: str) -> bytes:
            _tell(model, prompt)
            return encode_large((await ask(prompt)).model_dump(mode="json"))

        read = Reply.model_validate
        call = _call_of(model, prompt, terms)
        return read(await self._journal.call(call, work, terms, read=read))

    # --- waiting: the step ends, and runs again ---------------------------------------------------

    async def wait(
        self, pattern: str, *, after: Revision = 0, timeout_ms: Milliseconds | None = None
    ) -> Entry | None:
        """The first entry that matches and was written after revision `after`. The runtime's
        branches (such as `public/~agents`) count only if the pattern names them.

        Without one the step ends here, the process may end too, and the step runs again when there
        is one. None when `timeout_ms` is over by the service's clock, from when it first waited.
        """
        call = Call("timer", "wait", [pattern, after, timeout_ms])
        # Even if the entry is there already: a step distinguishes equal waits by their order, which
        # must not depend on what is on the board.
        place = self._journal.place(call) if timeout_ms is not None else None
        if place is not None and place.record is not None and place.record.outcome == "done":
            return None
        found = await self._first(pattern, after)
        if found is not None:
            self._step.saw(found)
            return found
        if place is None:
            raise Suspended(Status.WAITING, [pattern])
        await self._wait_on(call, place, pattern, timeout_ms)
        return None

    async def _first(self, pattern: str, after: Revision) -> Entry | None:
        page_after: Key | None = None
        while True:
            page = await self._port.list(pattern, after=page_after)
            for entry in page.entries:
                # Its own state is put by the commit that records this wait, and would end it at
                # once; so would its presence. What is not meant does not end the rest either.
                is_own = entry.key == state_key(self.agent)
                if entry.mod_revision > after and not is_own and is_meant(pattern, entry.key):
                    return entry
            page_after = page.next_key
            if page_after is None:
                return None

    async def _wait_on(
        self, call: Call, place: CallPlace, pattern: str, timeout_ms: Milliseconds | None
    ) -> None:
        """Set the timer, or continue to wait while it runs; return when it is over.

        It is an entry with a time to live, so that only the engine's clock is used.
        """
        timer = self._journal.key_of(place.slot, TIMER)
        if place.record is None:
            record = self._journal.begin(place, call)
            put = Put(self._journal.key_of(place.slot), encode_value(record.plain()))
            running = Put(timer, encode_value(True), timeout_ms)
            raise Suspended(Status.WAITING, [pattern, timer], [put, running])
        if self._journal.timer_runs(place.slot):
            raise Suspended(Status.WAITING, [pattern, timer])
        # Recorded, so that every later run of the step knows that the time was over.
        over = place.record.model_copy(update={"outcome": "done"})
        await self._journal.write(place.slot, over)

    async def approve(
        self,
        question: str,
        *,
        facts: Sequence[Key] = (),
        details: Any = None,
        approvers: Sequence[str] = (),
    ) -> Decision:
        """Ask people, and wait for as long as it takes: the decision, true if it was approved.

        `facts` are keys whose values are in the request: if one has another value when the answer
        is accepted, the request is made again. Act on `decision.facts`, which were approved, and do
        not read them again. With `approvers`, only their answers count. An agent cannot answer
        itself.

        An accepted decision is in the journal and holds for the rest of the step. Errors:
        InvalidRequest, LimitExceeded for facts that are too many or too large. Conflict when a fact
        changes while the answer is accepted: the step runs again, with a new request.
        """
        keys = tuple(dict.fromkeys(facts))
        plain = json.loads(canonical([question, details, list(keys), list(approvers)]))
        call = Call("decision", question, plain)
        place = self._journal.place(call)
        if place.record is not None and place.record.outcome == "done":
            # Not checked again, and no condition: after a payment, a changed price would lead to a
            # second one.
            taken_in = Decision.of(self._journal.result_at(place))
            self._step.rest_on(*taken_in.grounds)
            return taken_in
        found = await self._port.entries(Case.keys(self.agent, place.slot, keys))
        case = Case(self.agent, self._port.account, place.slot, found, keys)
        # Before anybody is asked: a decision that cannot be recorded would be of no use.
        self._journal.make_room(case.facts_bytes())
        asked = case.asked()
        changed = case.changed(asked) if asked else ()
        decision = case.decision(asked) if asked and not changed else None
        if decision is not None:
            return await self._take_in(call, place, case, decision)
        # Also the facts: when one changes, the step runs again and repeats the request.
        waits_for = (f"{case.decision_key}", *keys)
        if asked is not None and not changed:
            raise Suspended(Status.WAITING_FOR_APPROVAL, waits_for)
        request = Request(
            question=question,
            details=plain[1],
            facts=case.shown(),
            approvers=tuple(approvers),
            asked=asked.asked + 1 if asked else 1,
            changed=changed,
        )
        raise Suspended(
            Status.WAITING_FOR_APPROVAL, waits_for, case.asking(request), case.as_found()
        )

    async def _take_in(
        self, call: Call, place: CallPlace, case: Case, decision: Decision
    ) -> Decision:
        """Record the answer, if request, answer and facts have not changed."""
        # The facts are conditions here, once; from then on this is a record as that of a call.
        encoded = encode_large(decision.plain())
        await self._journal.decided(place, call, encoded, case.as_found())
        self._step.rest_on(*decision.grounds)
        return decision


def _as_it_is(result: Any) -> Any:
    return result


async def _called(bound: Callable[[], Any]) -> Any:
    """Call a function, in a thread if it is not async; returns its result."""
    function = bound
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return await bound()
    # An object whose `__call__` is async is no coroutine function: its result is awaited below.
    result = await to_thread.run_sync(bound)
    return await result if inspect.isawaitable(result) else result


def _call_of(model: Model, prompt: Prompt, terms: CallOptions | None) -> Call:
    """The call that asks `model`."""
    return Call("model", model.name, prompt.plain(), terms.version if terms else "")


def _tell(model: Model, prompt: Prompt) -> None:
    """Tell telemetry what a model is asked: its provider and the settings, never the prompt."""
    settings = {
        "temperature": prompt.temperature,
        "seed": prompt.seed,
        "max_tokens": prompt.tokens_max,
    }
    provider = str(getattr(model, "provider", ""))
    telemetry.asks_model(provider, settings, is_structured=prompt.output is not None)
