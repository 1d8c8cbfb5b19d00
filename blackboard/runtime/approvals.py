"""Approvals: an agent makes a request, its process may end, a person answers days later.

    decision = await ctx.approve("buy", facts=["public/price"])
    if decision:
        await ctx.tool(buy, decision.facts["public/price"])

The request is the entry `public/~approvals/<agent>/<id>`, the answer
`public/~decisions/<agent>/<id>`.

Invariants
- an answer refers to one request: it names the request's revision, and the board refuses it if the
  request was made again in between.
- An answer replaces only the answer that its author saw: of two people who answer at once, the
  second gets a Conflict.
- An answer counts only if every fact that the request was based on still has the value that the
  person saw, in the same commit that records the answer. If a fact changed, the request is made
  again.
- No account can answer its own requests: neither the agent itself, nor a name narrowed from its
  token, nor one that its token was narrowed from. The board records the accounts of requester and
  approver; what they claim does not count.
- The board accepts answers only with the approve right, which an agent does not have.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackboard.client.board import Board
from blackboard.client.step import Ground
from blackboard.client.views import Entry, Receipt
from blackboard.core.access import Right, names_above
from blackboard.core.commit import ABSENT, Condition, Delete, KeyAt, Op, Put
from blackboard.core.path import DECISIONS, check_name
from blackboard.errors import AccessDenied, InvalidRequest
from blackboard.limits import APPROVAL_FACTS_MAX, LARGE_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import decode_value, encode_value

REQUESTS = "public/~approvals"
_SHOWN_BYTES_MAX = 4_096
"""Bytes of a fact's value in a request; a larger one is replaced by its digest."""

_FACTS_BYTES_MAX = LARGE_BYTES_MAX - 2 * VALUE_BYTES_MAX
"""Bytes of the facts of a decision, which is one value with the reason of a person in it."""


def requests_of(agent: str) -> Prefix:
    """The prefix of the requests of `agent`."""
    return f"{REQUESTS}/{agent}"


def decisions_of(agent: str) -> Prefix:
    """The prefix of the answers to `agent`."""
    return f"{DECISIONS}/{agent}"


class Fact(BaseModel):
    """An entry that a request is based on; `revision` 0: it was absent. `value`: if it is small."""

    model_config = ConfigDict(frozen=True)

    key: Key
    revision: Revision
    digest: str
    value: Any = None


class ChangedFact(BaseModel):
    """A fact that changed since the previous request."""

    model_config = ConfigDict(frozen=True)

    key: Key
    was: Any = None
    now: Any = None


class Request(BaseModel):
    """A request. `asked` counts how often it was made, from 1; `changed` says why it was made
    again."""

    model_config = ConfigDict(frozen=True)

    question: str
    details: Any = None
    facts: tuple[Fact, ...] = Field(default=(), max_length=APPROVAL_FACTS_MAX)
    approvers: tuple[str, ...] = ()
    asked: int = Field(default=1, ge=1)
    changed: tuple[ChangedFact, ...] = ()


class Answer(BaseModel):
    """The value of an entry below `public/~decisions`; `request` is the revision it answers."""

    model_config = ConfigDict(frozen=True)

    approved: bool
    request: Revision
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer that counts; true if it was approved. `facts` are the values it was based on.

    `grounds` are the request, the answer and the facts, each with its revision: a step that acts on
    the decision rests on them, so that `why` leads to the person.
    """

    approved: bool
    by: str
    reason: str = ""
    facts: Mapping[Key, Any] = field(default_factory=dict)
    grounds: tuple[Ground, ...] = ()

    def __bool__(self) -> bool:
        return self.approved

    def plain(self) -> dict[str, Any]:
        """The form in the journal."""
        return {
            "approved": self.approved,
            "by": self.by,
            "reason": self.reason,
            "facts": dict(self.facts),
            "grounds": [list(ground) for ground in self.grounds],
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "Decision":
        """The inverse of `plain`; journals of older versions have no grounds."""
        grounds = tuple((key, revision) for key, revision in kept.get("grounds", ()))
        return cls(**{**kept, "grounds": grounds})


@dataclass(frozen=True, slots=True)
class Pending:
    """A request on a board, with the revision that an answer names, and its `answer`, if there is
    one that counts: from an allowed approver on another account.

    `account` is that of the agent's token if the agent's name was narrowed from it, else "".
    `answer_revision` is that of the entry which an answer will replace, whether it counts or not.
    """

    agent: str
    id: str
    revision: Revision
    time_ms: Milliseconds
    request: Request
    answer: Answer | None = None
    account: str = ""
    answer_revision: Revision = ABSENT


# --- for people -----------------------------------------------------------------------------------


async def pending(board: Board, agent: str = "*") -> tuple[Pending, ...]:
    """The requests that may be seen, of `agent` or of all, by agent and id."""
    answers = {_name_of(entry): entry async for entry in board.scan(f"{DECISIONS}/{agent}/*")}
    found = []
    async for entry in board.scan(f"{REQUESTS}/{agent}/*"):
        request, name = _parsed(Request, entry), _name_of(entry)
        # An entry here may come from others who can write public keys; only the agent may ask.
        if request is not None and entry.author == name[0]:
            given = answers.get(name)
            counts = _answer_to(request, entry, given)
            found.append(
                Pending(
                    *name,
                    entry.mod_revision,
                    entry.time_ms,
                    request,
                    counts,
                    entry.account,
                    ABSENT if given is None else given.mod_revision,
                )
            )
    return tuple(found)


async def answer(board: Board, asked: Pending, *, approved: bool, reason: str = "") -> Receipt:
    """Approve or reject the request `asked`, as it was when it was read.

    Errors: AccessDenied without the approve right; InvalidRequest of field `answer` when it would
    not count, because it was asked on your own account, or of others; Conflict when the agent has
    repeated or withdrawn the request, or when somebody has answered it since: read it again. (An
    approver without the right to read answers gets no Conflict because of one, and replaces it.
    Facts that the approver may not read are no grounds of the answer.)
    """
    request_key = f"{requests_of(asked.agent)}/{asked.id}"
    answer_key = f"{decisions_of(asked.agent)}/{asked.id}"
    found = await board.entry(request_key)
    if found is not None:
        _check_counts(asked.request, found, board)
    value = Answer(approved=approved, request=asked.revision, reason=reason).model_dump()
    note = f"{'approved' if approved else 'rejected'}: {asked.request.question}"[:200]
    # What an answer can do without, where its author may not read it.
    seen = {answer_key: KeyAt(answer_key, asked.answer_revision)}
    facts = {fact.key: fact.revision for fact in asked.request.facts if fact.revision}
    while True:
        try:
            return await board.commit(
                [Put(answer_key, encode_value(value))],
                conditions=[KeyAt(request_key, asked.revision), *seen.values()],
                based_on=[(request_key, asked.revision), *facts.items()],
                note=note,
            )
        except AccessDenied as denied:
            of: dict[Key, Any] = seen if denied.key in seen else facts
            if denied.right != Right.READ or of.pop(denied.key, None) is None:
                raise


# --- for agents without the runtime --------------------------------------------------------------


async def ask(
    board: Board,
    name: str,
    question: str,
    *,
    facts: Sequence[Key] = (),
    details: Any = None,
    approvers: Sequence[str] = (),
) -> Decision | None:
    """Ask people, as the agent of `board`; the decision, or None while nobody has answered.

    The first call makes the request `name`, and later calls with the same arguments look for its
    answer. `facts` are keys whose values the answer depends on: after one has changed, an answer
    does not count, and the request is made again. `approvers` are the only ones whose answers
    count; empty: anybody with the approve right, but for this agent's own account. An agent of the
    runtime calls `Context.approve` instead, which also keeps the decision.

    Errors: InvalidRequest, also for more than APPROVAL_FACTS_MAX facts; Conflict when a fact or the
    request changes at the same time: call it again; AccessDenied.
    """
    keys = tuple(dict.fromkeys(facts))
    # At one revision: an answer is never looked at beside facts from before or after it.
    found = await board.entries(Case.keys(board.agent, check_name(name, "name"), keys))
    case = Case(board.agent, board.account, name, found, keys)
    asked = case.asked()
    changed = case.changed(asked) if asked else ()
    if asked is not None and not changed and _is_same(asked, keys, question, details, approvers):
        return case.decision(asked)
    request = Request(
        question=question,
        details=details,
        facts=case.shown(),
        approvers=tuple(approvers),
        asked=asked.asked + 1 if asked else 1,
        changed=changed,
    )
    await board.commit(case.asking(request), conditions=case.as_found(), note=question[:200])
    return None


def _is_same(
    asked: Request, facts: Sequence[Key], question: str, details: Any, approvers: Sequence[str]
) -> bool:
    """Whether a request asks what is asked now; another question is not answered by its answer."""
    # The details as a board returns them: tuples are lists there.
    now = (question, decode_value(encode_value(details)), tuple(approvers))
    # An answer to one with more facts rests on what is not looked at now.
    is_based_on_same = {fact.key for fact in asked.facts} == set(facts)
    return is_based_on_same and (asked.question, asked.details, asked.approvers) == now


def _name_of(entry: Entry) -> tuple[str, str]:
    _, _, agent, name = entry.key.split("/")
    return agent, name


def _parsed(model: type[Any], entry: Entry) -> Any:
    """The entry as a `model`; None if it is malformed, because others may write there, too."""
    try:
        return model.model_validate(entry.value)
    except ValidationError:
        return None


# --- for the runtime ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One request of an agent, with its answer and facts, as of one revision."""

    agent: str
    account: str
    id: str
    found: Mapping[Key, Entry]
    facts: tuple[Key, ...]

    @staticmethod
    def keys(agent: str, name: str, facts: Sequence[Key]) -> list[Key]:
        """The keys to read together for a case. Errors: InvalidRequest."""
        if len(facts) > APPROVAL_FACTS_MAX:
            reason = f"{len(facts)} are more than a person checks: {APPROVAL_FACTS_MAX}"
            raise InvalidRequest(field="facts", reason=reason)
        return [f"{requests_of(agent)}/{name}", f"{decisions_of(agent)}/{name}", *facts]

    @property
    def request_key(self) -> Key:
        """The key of the request."""
        return f"{requests_of(self.agent)}/{self.id}"

    @property
    def decision_key(self) -> Key:
        """The key of the answer."""
        return f"{decisions_of(self.agent)}/{self.id}"

    def asked(self) -> Request | None:
        """The present request, if the agent has made one: not another agent, nor one of the same
        name on another account."""
        entry = self.found.get(self.request_key)
        if entry is None or (entry.author, entry.owner) != (self.agent, self.account):
            return None
        request = _parsed(Request, entry)
        assert request is None or isinstance(request, Request)
        return request

    def changed(self, asked: Request) -> tuple[ChangedFact, ...]:
        """The facts that changed since it was `asked`.

        The value counts, not the revision: the same price written again is not a change.
        """
        was = {fact.key: fact for fact in asked.facts}
        now = {fact.key: fact for fact in self.shown()}
        return tuple(
            ChangedFact(key=key, was=was[key].value if key in was else None, now=fact.value)
            for key, fact in now.items()
            if key not in was or was[key].digest != fact.digest
        )

    def decision(self, asked: Request) -> Decision | None:
        """The answer to exactly this request, by an allowed approver."""
        entry = self.found.get(self.decision_key)
        answer = _answer_to(asked, self.found[self.request_key], entry)
        if entry is None or answer is None:
            return None
        facts = {key: self.found[key].value if key in self.found else None for key in self.facts}
        return Decision(answer.approved, entry.author, answer.reason, facts, self.grounds())

    def facts_bytes(self) -> int:
        """The encoded size of the facts. Errors: InvalidRequest if no decision can hold them."""
        entries = (self.found.get(key) for key in self.facts)
        size = sum(len(encode_value(entry.value)) for entry in entries if entry is not None)
        if size > _FACTS_BYTES_MAX:
            reason = f"their values have {size} bytes together, at most {_FACTS_BYTES_MAX} may be"
            raise InvalidRequest(field="facts", reason=reason)
        return size

    def grounds(self) -> tuple[Ground, ...]:
        """Request, answer and facts, as they were read."""
        return tuple((key, entry.mod_revision) for key, entry in self.found.items())

    def shown(self) -> tuple[Fact, ...]:
        """The facts as listed in a request."""
        return tuple(_fact(key, self.found.get(key)) for key in self.facts)

    def as_found(self) -> list[Condition]:
        """The conditions that request, answer and facts have not changed."""
        # The answer as well: until it is taken in, its author may replace an approval by a refusal.
        keys = (self.request_key, self.decision_key, *self.facts)
        at = {key: entry.mod_revision for key, entry in self.found.items()}
        return [KeyAt(key, at.get(key, ABSENT)) for key in keys]

    def asking(self, request: Request) -> list[Op]:
        """The operations that make the request, or make it again; an answer to the last one is
        removed."""
        value = request.model_dump(mode="python")
        value["facts"] = [fact.model_dump() for fact in request.facts]
        ops: list[Op] = [Put(self.request_key, encode_value(value))]
        return [*ops, Delete(self.decision_key)] if self.decision_key in self.found else ops


def _answer_to(request: Request, asked: Entry, given: Entry | None) -> Answer | None:
    """The answer in `given`, if it counts for `request`, which is the value of `asked`: it is to
    exactly that one, by an allowed approver on another account."""
    answer = None if given is None else _parsed(Answer, given)
    if given is None or answer is None or answer.request != asked.mod_revision:
        return None
    may_answer = _may_answer(request.approvers, given.author, given.owner)
    # By account: a name can be chosen when a token is narrowed, the account cannot.
    if given.owner == asked.owner or not may_answer:
        return None
    assert isinstance(answer, Answer)
    return answer


def _check_counts(request: Request, asked: Entry, board: Board) -> None:
    """Errors: InvalidRequest when an answer that is given through `board` would not count."""
    if board.account == asked.owner:
        reason = f"it would not count: it was asked on your own account, {asked.owner}"
    elif not _may_answer(request.approvers, board.agent, board.account):
        reason = f"it would not count: only {', '.join(request.approvers)} may answer"
    else:
        return
    raise InvalidRequest(field="answer", reason=reason)


def _may_answer(approvers: Sequence[str], name: str, account: str) -> bool:
    """Whether `name` on `account` is one of `approvers`, or was narrowed from one; empty = any."""
    return not approvers or not set(approvers).isdisjoint(names_above(name, account))


def _fact(key: Key, entry: Entry | None) -> Fact:
    encoded = b"" if entry is None else encode_value(entry.value)
    shown = entry.value if entry is not None and len(encoded) <= _SHOWN_BYTES_MAX else None
    revision = entry.mod_revision if entry else ABSENT
    return Fact(key=key, revision=revision, digest=hashlib.sha256(encoded).hexdigest(), value=shown)
