"""Conversations of Pydantic AI on a board.

    store = BlackboardConversationStore(board)
    conversation = await store.load("thread 7") or Conversation(conversation_id="thread 7")
    await store.save(await agent.run("And then?", conversation=conversation))

A conversation and its forks are one tree. Below `<prefix>/trees/<root>` it has its messages
(`entries`), the conversations that have parts of it (`used_by`), and `open`, which changes when one
joins and goes before the messages do: nothing is added to a tree that is being deleted. While that
goes on, `<prefix>/ending/<root>` is there: if the process dies, the next deletion ends it.
`<prefix>/tips/<id>` names the tree in which a history ends, so that it is read page by page.
"""

import json
from collections.abc import Sequence

from blackboard.errors import BlackboardError, Rejected
from blackboard.integrations.framework import framework
from blackboard.integrations.sessions import AnyBoard, Condition, Op, Records, readable
from blackboard.limits import OPERATIONS_MAX
from blackboard.ops import ABSENT, PRESENT, Delete, KeyAt
from blackboard.types import Entry

with framework("pydantic-ai"):
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.exceptions import AgentRunError, UserError

_RECORD = TypeAdapter(ConversationRecord)
_ENTRY = TypeAdapter(ConversationEntry)


class BlackboardConversationStore(ConversationStore):
    """A `ConversationStore` on `board` (asynchronous, or of `blackboard.sync`), below `prefix`.

    A save is one commit. Of two that extend the same revision of a conversation, one gets
    ConversationConflict. Other errors of every method: UserError for what the board refuses (no
    right to `prefix`, a message of more than 1 MiB); AgentRunError when it cannot be reached, or
    the outcome is unknown. Their `__cause__` is the board's error.
    """

    def __init__(self, board: AnyBoard, *, prefix: str = "public/pydantic-ai") -> None:
        self._records = Records(board, prefix, _translate)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation, or None."""
        found = readable(await self._records.entry(self._records.key("records", conversation_id)))
        return _record(found) if found else None

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """The records, or those of `scope`, the last saved first."""
        every = map(_record, await self._records.all(f"{self._records.key('records')}/*"))
        found = [record for record in every if scope is None or record.scope == scope]
        return sorted(found, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries (up to 1,000 and 4 MiB), all of it or nothing."""
        key = self._records.key("records", record.conversation_id)
        stored = await self._records.entry(key)
        before = readable(stored)  # one that was redacted is replaced
        if (_record(before).revision if before else None) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        roots: list[str] = list(before.value["roots"]) if before else []
        ops: list[Op] = []
        conditions: list[Condition] = [KeyAt(key, stored.mod_revision if stored else ABSENT)]
        if record.head_id is not None:
            root = await self._root_below(record, new_entries)
            ops += self._entries(root, record.head_id, new_entries)
            tree = self._records.key("trees", root)
            if all(entry.id != root for entry in new_entries):
                conditions.append(KeyAt(f"{tree}/open", PRESENT))
            if all(entry.id != record.head_id for entry in new_entries):
                conditions.append(KeyAt(self._entry_key(root, record.head_id), PRESENT))
            if root not in roots:
                conditions.append(await self._unless_ending(root))
                roots.append(root)
                joining = self._records.below(tree, "used_by", record.conversation_id)
                ops += [self._records.put(joining, 1), self._records.put(f"{tree}/open", 1)]
        plain = _RECORD.dump_python(record, mode="json")
        ops.append(self._records.put(key, {"record": plain, "roots": roots}))
        if not await self._records.accepted(ops, *conditions):
            raise ConversationConflict(record.conversation_id)

    def _entries(self, root: str, head_id: str, entries: Sequence[ConversationEntry]) -> list[Op]:
        tip = self._records.put(self._records.key("tips", head_id), root)
        plain = [(entry.id, _ENTRY.dump_python(entry, mode="json")) for entry in entries]
        puts = [self._records.put(self._entry_key(root, id_), [root, one]) for id_, one in plain]
        return [tip, *puts]

    async def _root_below(
        self, record: ConversationRecord, entries: Sequence[ConversationEntry]
    ) -> str:
        """The first entry of the history that `record` ends. Errors: ConversationConflict."""
        if entries and entries[0].parent_id is None:
            return str(entries[0].id)
        before = entries[0].parent_id if entries else record.head_id
        root = await self._root(before) if before else None
        if root is None:
            raise ConversationConflict(record.conversation_id)
        return root

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation. Its messages go with the last conversation that has parts of their
        tree: with this one, if it was not forked and is no fork. They go after the record: if the
        process dies in between, the next deletion of any conversation removes them."""
        key = self._records.key("records", conversation_id)
        stored = readable(await self._records.entry(key))
        if stored is None or _record(stored).revision != expected_revision:
            raise ConversationConflict(conversation_id)
        ops: list[Op] = [Delete(key)]
        conditions: list[Condition] = [KeyAt(key, stored.mod_revision)]
        for root in stored.value["roots"]:
            tree = self._records.key("trees", root)
            still_open = await self._records.entry(f"{tree}/open")
            users = await self._records.all(f"{tree}/used_by/*", keys_only=True)
            mine = self._records.below(tree, "used_by", conversation_id)
            ops.append(Delete(mine))
            others = [user.key for user in users if user.key != mine]
            if others:
                # Of two that are deleted at once, the later one takes the messages with it.
                conditions.append(KeyAt(others[0], PRESENT))
            elif still_open:
                ops.append(self._records.put(self._records.key("ending", root), root))
                ops.append(Delete(f"{tree}/open"))
                conditions.append(KeyAt(f"{tree}/open", still_open.mod_revision))
        if not await self._records.accepted(ops, *conditions):
            raise ConversationConflict(conversation_id)
        for ending in await self._records.all(f"{self._records.key('ending')}/*"):
            await self._end(ending)

    async def _unless_ending(self, root: str) -> Condition:
        """The condition that no tree of that name is being deleted; one that is left is ended."""
        key = self._records.key("ending", root)
        ending = await self._records.entry(key)
        if ending is not None:
            await self._end(ending)
        return KeyAt(key, ABSENT)

    async def _end(self, ending: Entry) -> None:
        """Remove a tree that is being deleted; another process may do so at the same time, but none
        goes on once it is done, as a tree of that name may begin again."""
        tree, ops = self._records.key("trees", ending.value), list[Op]()
        # By keys, so that what was redacted goes, too.
        for entry in await self._records.all(f"{tree}/**", keys_only=True):
            above, _, name = entry.key.rpartition("/")
            if above == f"{tree}/entries":
                ops.append(Delete(f"{self._records.key('tips')}/{name}"))
            ops.append(Delete(entry.key))
        ops.append(Delete(ending.key))
        for start in range(0, len(ops), OPERATIONS_MAX):
            some = ops[start : start + OPERATIONS_MAX]
            if not await self._records.accepted(some, KeyAt(ending.key, ending.mod_revision)):
                return

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """The entries up to `head_id`, in order, or the last `limit` of them."""
        root = await self._root(head_id) if head_id else None
        tree = self._records.key("trees", root or "")
        # The newest of the tree are mostly of this history; the others are read one by one.
        found = await self._records.all(f"{tree}/entries/*", newest=limit)
        by_id = {entry.value[1]["id"]: entry for entry in found}
        history: list[ConversationEntry] = []
        while head_id is not None and (limit is None or len(history) < limit):
            known = by_id.get(head_id)
            history.append(_entry(known) if known else await self.read_entry(head_id))
            head_id = history[-1].parent_id
        return history[::-1]

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry with that id. Errors: KeyError."""
        root = await self._root(entry_id)
        found = readable(await self._records.entry(self._entry_key(root or "", entry_id)))
        if found is None:
            raise KeyError(entry_id)
        return _entry(found)

    async def _root(self, entry_id: str) -> str | None:
        """The tree that has an entry: known for ends of histories, else looked for in all trees."""
        tip = readable(await self._records.entry(self._records.key("tips", entry_id)))
        if tip is not None:
            return str(tip.value)
        anywhere = self._records.below(f"{self._records.key('trees')}/*", "entries", entry_id)
        found = await self._records.all(anywhere)
        return str(found[0].value[0]) if found else None

    def _entry_key(self, root: str, entry_id: str) -> str:
        return self._records.key("trees", root, "entries", entry_id)


def _record(stored: Entry) -> ConversationRecord:
    return _RECORD.validate_json(
        json.dumps(stored.value["record"])
    )  # bytes are base64 in JSON only


def _entry(stored: Entry) -> ConversationEntry:
    return _ENTRY.validate_json(json.dumps(stored.value[1]))


def _translate(error: BlackboardError) -> UserError | AgentRunError:
    return (UserError if isinstance(error, Rejected) else AgentRunError)(str(error))
