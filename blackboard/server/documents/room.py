"""One document in one process: its committed content, and the connected members.

The log is the only way in. An edit is tried on a copy and committed. It reaches the document
(`live`) and the other members when its commit is acknowledged here, or when it comes from the log,
whichever is first. So no member ever sees an edit that could still be lost, and processes need no
other channel.

Invariants
- `live` holds all committed content up to `revision`; a peer gets only content that `live` holds,
  or will hold at the end of the same turn.
- a client belongs to the agent that first used it, for ever; another agent cannot write as it.
- when the room ends, its members are disconnected: they reconnect and get the committed content.

`EditsInFlight` has the edits of the members here that are admitted, and not yet back from the log.
An edit may be forwarded as soon as its commit is acknowledged, because it cannot be lost any more.
The log delivers it a little later, with its revision, and then it is not forwarded again. Edits of
one call of the engine are forwarded together.

Invariants of `EditsInFlight`
- an edit is forwarded once, whether the acknowledgement or the log comes first.
- after `close` nothing is forwarded.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blackboard import telemetry
from blackboard.client.documents import layout as storage
from blackboard.client.documents.layout import Base, Item, StoredDocument, UpdateTail
from blackboard.client.documents.replica import DamagedError, Replica, merged
from blackboard.client.link import Transport, WatchRequest
from blackboard.client.views import RevisionEvent
from blackboard.client.watch import Watch
from blackboard.client.writer import CommitRequest, Writer
from blackboard.core.access import ALL_RIGHTS, AccessGrant, Credential, Principal
from blackboard.core.commit import Append, Op, name_of, signature
from blackboard.core.documents import update as crdt
from blackboard.core.documents.update import Update
from blackboard.core.path import base_key, document_prefix, overlaps_prefix
from blackboard.errors import (
    BlackboardError,
    Corrupt,
    DocumentRefused,
    InvalidRequest,
    Unavailable,
)
from blackboard.limits import DEFAULT, OVERLAP_TTL_MS, Limits
from blackboard.server.documents.awareness import Presences, Publishing, RoomPeer
from blackboard.server.documents.staging import EditStaging
from blackboard.units import Key, Revision
from blackboard.wire import ysync
from blackboard.wire.codec import SYSTEM_AGENT, encode_value
from blackboard.wire.ysync import AwarenessState, Met


@dataclass(slots=True)
class EditInFlight:
    """An edit of `member`, parsed as `update`; `is_forwarded` once all members here have it."""

    member: RoomPeer
    update: Update
    is_forwarded: bool = False


class EditsInFlight:
    """The edits of one document in flight, by their bytes, oldest first.

    `acknowledged` is called with edits that are committed and not forwarded yet, in the order of
    their acknowledgements; `failed` when one was certainly or possibly not committed.
    """

    def __init__(
        self, acknowledged: Callable[[Sequence[bytes]], None], failed: Callable[[], None]
    ) -> None:
        self._acknowledged = acknowledged
        self._failed = failed
        self._in_flight: dict[bytes, EditInFlight] = {}
        self._flying = 0
        """The edits without an acknowledgement."""
        self._landed: list[bytes] = []
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._in_flight)

    def find(self, data: bytes) -> EditInFlight | None:
        """The edit in flight; None if it is not from this process, or the log has brought it."""
        return self._in_flight.get(data)

    def came_back(self, data: bytes) -> None:
        """The log has brought an edit, and it was forwarded."""
        self._in_flight.pop(data, None)

    async def commit(
        self, writer: Writer, ops: tuple[Op, ...], data: bytes, edit: EditInFlight
    ) -> None:
        """Commit `ops`, which put an edit into the log. Errors: those of `Board.commit`."""
        self._in_flight[data] = edit
        self._flying += 1
        try:
            await writer.commit(CommitRequest(ops), with_held=False)
        except BaseException:
            # If the log has brought it by now, it was committed, whatever the error says.
            if self._in_flight.pop(data, None) is not None:
                self._failed()
            raise
        finally:
            self._flying -= 1
        self._land(data)

    def _land(self, data: bytes) -> None:
        """Forward an edit, together with those that were acknowledged at the same time."""
        self._landed.append(data)
        if not self._flying:
            self._tell()
        elif len(self._landed) == 1:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        landed, self._landed = self._landed, []
        if landed and not self._is_closed:
            self._acknowledged(landed)

    def close(self) -> None:
        """Forward nothing any more."""
        self._is_closed = True


log = logging.getLogger(__name__)


class Linking(Protocol):
    """Makes links to the boards, as `Service.link`."""

    def __call__(self, principal: Principal, permitted: Principal | None = None) -> Transport:
        """A link for `principal`, whose commits need the token of `permitted`."""


class Room:
    """The document at `key` of `board`. Use: `start`, `await ready()`, ..., `await aclose()`."""

    def __init__(
        self,
        link: Linking,
        board: str,
        key: Key,
        publishing: Publishing | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self.board, self.key = board, key
        self.limits = limits
        self.live = Replica()
        self.revision: Revision = 0
        self.mark: int | None = None
        self._at_mark: frozenset[int] = frozenset()
        """The clients that the document had when `mark` came."""
        self.members: set[RoomPeer] = set()
        self.users = 0
        """The users of the room: it may be closed when there are none."""
        self._link = link
        self._publishing = publishing
        self._owners: dict[int, str] = {}
        self._base, self._tail = Base(), UpdateTail(key, limits=limits.documents)
        self._late: list[Item] = []
        self._reports: set[Key] = set()
        self._reporting = 0
        """Reports of overlaps that are being committed; `_reports` has those that are there."""
        self._in_flight = EditsInFlight(self._forward_acknowledged, self.forget)
        self._staging = EditStaging(key, lambda: self.live, self._in_flight)
        self._listening: set[RoomPeer] = set()
        self._presences = Presences(lambda client: self._owners.get(client), limits.documents)
        self._writers: dict[_Author, Writer] = {}
        self._watch: Watch | None = None
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._ended: Callable[[Room], None] = lambda _: None

    # --- life cycle -------------------------------------------------------------------------------

    def start(self, ended: Callable[["Room"], None]) -> None:
        """Begin to load; `ended` is called when the room has ended."""
        self._ended = ended
        # It outlives the request that opened it, and must not be served in its trace.
        with telemetry.apart():
            self._task = asyncio.create_task(self._run(), name=f"document {self.key}")

    async def ready(self) -> None:
        """Wait until the document is loaded. Errors: why it cannot be."""
        await asyncio.shield(self._opened)

    async def aclose(self) -> None:
        """End the room and disconnect its members, after a compaction if one is due."""
        self._closing.set()
        try:
            if self._compacting is not None:
                timeout_ms = self.limits.documents.last_compaction_ms
                await asyncio.wait([self._compacting], timeout=timeout_ms / 1000)
        finally:
            for task in (self._task, self._compacting):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            if not self.users:
                self._let_go()

    def _let_go(self) -> None:
        """Drop the document. This object is part of a reference cycle, and the oldest generation of
        the garbage collector is collected rarely, while a document may take a hundred megabytes."""
        tail = UpdateTail(self.key, limits=self.limits.documents)
        self.live, self._base, self._tail = Replica(), Base(), tail
        self._task = self._compacting = self._watch = None
        self._writers.clear()

    async def _run(self) -> None:
        reason = "the document is loaded again"
        try:
            await self._serve()
        except BlackboardError as error:
            reason = str(error)
            log.info("document %s of %s: %s", self.key, self.board, error)
            if not self._opened.done():
                self._opened.set_exception(error)
        finally:
            self._end(reason)
            if self._publishing is not None:
                await self._publishing.leave(self.board, self.key, self)

    def _end(self, reason: str) -> None:
        # First: its members come back at once, and must not find this room again.
        self._ended(self)
        failure = Unavailable(what=f"document {self.key}", reason=reason)
        if not self._opened.done():
            self._opened.set_exception(failure)
        self._opened.exception()  # a caller may have given up waiting for it
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(Unavailable(**failure.fields()))
        for member in list(self.members):
            member.end("closed", reason)
        if self._compacting is not None:
            self._compacting.cancel()
        self._in_flight.close()
        self.live.close()
        self._staging.forget()

    async def _serve(self) -> None:
        link = self._link(_keeper(SYSTEM_AGENT, self.key))
        request = WatchRequest((storage.pattern(self.key),))
        watch = Watch(link, self.board, request, revision=None, snapshot=True, saw=lambda *_: None)
        async with watch:
            stored = storage.read_document(self.key, watch.state)
            self._load(stored)
            await self._staging.begin(stored)
            for found, entry in watch.state.items():
                if storage.is_update(self.key, found):
                    self._add_to_tail(found, entry.value, entry.mod_revision)
                elif storage.is_part(self.key, found):
                    self._tail.add_part(found)
                elif storage.is_report(self.key, found):
                    self._reports.add(found)
            # `live` has all of it now, and a document may be large.
            watch.state.clear()
            self._watch, watch.on_progress = watch, self._reached
            self._reached()
            self._compact_soon()
            self._opened.set_result(None)
            if self._publishing is not None:
                self._publishing.join(self.board, self.key, self)
            async for revised in watch:
                if not self._follow([revised, *watch.take_received()]):
                    return

    def _load(self, stored: StoredDocument) -> None:
        """Errors: Corrupt when the base is not what was written."""
        self._base, self.mark = stored.base, stored.base.mark
        self._tail.base_bytes = len(stored.base.state)
        self._owners = dict(stored.base.owners)
        bad: set[bytes] = set()
        while True:
            # From the beginning again: an update that failed may have been applied in part.
            try:
                self.live = Replica(stored.base.state)
            except DamagedError as error:
                raise Corrupt(what=f"document {self.key}", reason=str(error)) from error
            # Which of them came after the mark is not kept.
            self._at_mark = frozenset(self.live.clocks)
            try:
                for item in stored.items:
                    damaging = item.update
                    if damaging not in bad:
                        self._apply(item)
            except DamagedError:
                log.exception("document %s: an update is left out", self.key)
                bad.add(damaging)
            else:
                break

    # --- the log ----------------------------------------------------------------------------------

    def _follow(self, revisions: list[RevisionEvent]) -> bool:
        """Apply committed updates; False when the document must be loaded again."""
        fresh: list[Item] = []
        for revised in revisions:
            if revised.epoch is not None:
                # After a restore, members may have edits of the abandoned future, and after a loss
                # edits that are lost. They come back with their state, which shows what they have
                # seen (`is_stale`); and who writes for them here must begin in the new epoch.
                return False
            if self._tail.is_lost(revised):
                for member in list(self.members):
                    member.end("deleted", "the document was deleted")
                return False
            fresh += self._take(revised)
        self._broadcast([found for item in fresh for found in self._apply_once(item)])
        # After they were sent: until here it is known by which member each was made.
        for item in fresh:
            self._in_flight.came_back(item.update)
        self._reached()
        self._compact_soon()
        return True

    def _take(self, revised: RevisionEvent) -> list[Item]:
        """The updates of one revision; also records compactions."""
        pieces = []
        for change in revised.changes:
            if change.kind == "delete":
                self._tail.drop(change.key)
                self._reports.discard(change.key)
            elif change.kind == "put" and storage.is_update(self.key, change.key):
                author = signature(revised.author, revised.account)
                pieces.append((change.key, change.value, author))
            elif change.kind == "put" and storage.is_part(self.key, change.key):
                self._tail.add_part(change.key)
            elif change.kind == "put" and storage.is_report(self.key, change.key):
                self._reports.add(change.key)
            elif change.kind == "put" and change.key == base_key(self.key):
                generation, count = change.value["parts"]
                self._base = storage.base_of(self.key, generation, count, revised.revision)
        found = list(storage.read_items(pieces))
        for path, value, _ in pieces:
            self._add_to_tail(path, value, revised.revision)
        return found

    def _add_to_tail(self, path: Key, value: Mapping[str, Any], revision: Revision) -> None:
        goes_on = bool(value.get("more"))
        self._tail.add(path, revision, len(value["update"]), goes_on=goes_on)

    def _forward_acknowledged(self, edits: Sequence[bytes]) -> None:
        """Forward what members here just committed, without waiting for the log.

        It is forwarded first and applied afterwards, in the same turn of the loop: there is no
        visible difference, but peers get it sooner.
        """
        items: list[Item] = []
        clocks = dict(self.live.clocks)
        for data in edits:
            edit = self._in_flight.find(data)
            if edit is None or edit.is_forwarded or self._late or edit.update.gap(clocks):
                continue  # the log was first, or must be
            edit.is_forwarded = True
            clocks.update(edit.update.news(clocks))
            items.append(Item((), data, edit.member.signed))
        try:
            self._broadcast(items)
            for item in items:
                self._apply(item)
        except DamagedError:
            log.exception("document %s is loaded again", self.key)
            # It is committed and was sent, so `live` must not go on without it.
            if self._task is not None:
                self._task.cancel()

    def _apply_once(self, item: Item) -> list[Item]:
        """As `_apply`, except for edits that were forwarded when they were acknowledged."""
        edit = self._in_flight.find(item.update)
        return [] if edit is not None and edit.is_forwarded else self._apply(item)

    def _apply(self, item: Item) -> list[Item]:
        """Apply an update to the committed content; returns the updates to forward, because others
        may have waited for it. Errors: DamagedError.
        """
        waiting, self._late, applied = [item, *self._late], [], []
        for candidate in waiting:
            try:
                edit = self._in_flight.find(candidate.update)
                update = edit.update if edit else crdt.read_update(candidate.update)
                self.live.apply(candidate.update, update)
            except InvalidRequest as error:
                if "missing" in error.reason:
                    self._late.append(candidate)
                else:
                    log.warning("document %s: %s is left out: %s", self.key, item.keys, error)
                continue
            applied.append(candidate)
            if candidate.mark:
                self.mark, self._at_mark = candidate.mark, frozenset(self.live.clocks)
            for client in update.reached():
                self._owners.setdefault(client, candidate.author)
            self._owners.update(candidate.owners)
        return applied

    def _broadcast(self, items: list[Item]) -> None:
        """Send each member the updates that it did not make itself."""
        if not items:
            return
        updates, made_by = [], []
        for item in items:
            edit = self._in_flight.find(item.update)
            made_by.append(edit and edit.member)
            updates.append(item.update)
            # What a member here made is in the copy already: it was tried there.
            if made_by[-1] is None:
                self._staging.trust(item.update)
        frame: bytes | None = None
        for member in list(self._listening):
            if member in made_by:
                others = [u for u, by in zip(updates, made_by, strict=True) if by is not member]
                if others:
                    member.deliver(ysync.write_update(merged(others)))
                continue
            frame = frame or ysync.write_update(merged(updates))
            member.deliver(frame)

    def _reached(self) -> None:
        assert self._watch is not None, "the room is loaded"
        self.revision = self._watch.reached
        for wanted, waiter in self._waiting:
            if wanted <= self.revision and not waiter.done():
                waiter.set_result(None)
        self._waiting = [(wanted, w) for wanted, w in self._waiting if not w.done()]

    async def caught_up(self) -> None:
        """Wait until everything that is committed now is in `live`. Errors: Unavailable."""
        head = await self._link(_keeper(SYSTEM_AGENT, self.key)).head(self.board)
        if head.revision <= self.revision:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((head.revision, waiter))
        assert self._watch is not None, "the room is ready"
        # If the revisions up to the head change nothing here, nothing else would tell for seconds.
        await self._watch.request_progress()
        await waiter

    # --- edits ------------------------------------------------------------------------------------

    def is_stale(self, state: bytes) -> bool:
        """Whether a peer that knows `state` knew the document before its last restore, and has not
        seen that. Errors: InvalidRequest."""
        clocks = crdt.read_state(state)
        if self.mark is None or self.mark in clocks:
            return False
        return not self._at_mark.isdisjoint(clocks)

    def lacks(self, state: bytes) -> bool:
        """Whether a peer that knows `state` has insertions that the document lacks. Errors:
        InvalidRequest."""
        clocks = self.live.clocks
        return any(clock > clocks.get(c, 0) for c, clock in crdt.read_state(state).items())

    def read(self, data: bytes) -> Update:
        """Parse an edit. Errors: DocumentRefused."""
        return self._staging.read(data)

    def admit(self, data: bytes, update: Update, signed: str) -> tuple[bytes, Update]:
        """Try an edit of the author `signed`, read as `update`; returns its new part, which is to
        be committed.

        Errors: DocumentRefused; the document is unharmed.
        """
        if update.is_empty:  # a new peer sends this, and it needs no trial on a copy
            return crdt.EMPTY_UPDATE, update
        clients = self._staging.news(update)
        for client in clients:
            if self._owner_of(client, signed) != signed:
                reason = f"client {client} belongs to another author"
                raise DocumentRefused(self.key, "foreign", reason)
        news, update = self._staging.take(data, update)
        if news != crdt.EMPTY_UPDATE:
            # Before the commit: meanwhile no other author may begin to write as this client.
            self._owners.update(dict.fromkeys(clients, signed))
        return news, update

    def check_known(self, data: bytes, update: Update, member: RoomPeer) -> None:
        """Units that an edit repeats must equal the known ones: otherwise the edit of an author
        whose client id another one has used would be lost silently. `update` is what was read of
        `data`.

        Errors: DocumentRefused; DamagedError.
        """
        place = self._staging.other_than_known(data, update)
        if place is None:
            return
        client, clock = place
        owner = self._owners.get(client, member.signed)
        whose = "another author's" if owner != member.signed else "in use elsewhere"
        reason = f"client {client} is {whose}: its known content at {clock} differs"
        raise DocumentRefused(self.key, "foreign", reason)

    def _owner_of(self, client: int, signed: str) -> str:
        """The owner of a client: the author that first wrote as it, or else the one that announced
        it here."""
        return self._owners.get(client) or self._presences.signed_of(client) or signed

    def has_news(self, data: bytes) -> bool:
        """Whether an update that may not be admitted has anything new. Errors: InvalidRequest."""
        update = crdt.read_update(data)
        if update.news(self.live.clocks):
            return True
        if not update.deleted:
            return False
        probe = Replica(self.live.update_since(), listening=True)
        try:
            return probe.apply(data) != crdt.EMPTY_UPDATE
        finally:
            probe.close()

    def forget(self) -> None:
        """The edit that was just admitted will not be committed."""
        self._staging.forget()

    async def commit(self, news: tuple[bytes, Update], member: RoomPeer) -> None:
        """Commit what was admitted. Errors: those of `Board.commit`; it is not tried any more."""
        data, update = news
        ops, writer = storage.append_update(self.key, data), self._writer(member)
        await self._in_flight.commit(writer, ops, data, EditInFlight(member, update))

    def report_of(self, met: Met, member: RoomPeer) -> bytes:
        """The value that records that an edit of a member overlaps with others."""
        others = {owner for c in met.clients if (owner := self._owners.get(c)) is not None}
        agents = sorted({member.agent, *map(name_of, others)})
        value = {"text": met.text, "start": met.start, "end": met.end, "agents": agents}
        return encode_value(value)

    async def report(self, value: bytes, member: RoomPeer) -> None:
        """Record an overlap for its readers; above OVERLAP_REPORTS_MAX, it is left out. Errors: as
        of `commit`."""
        if len(self._reports) + self._reporting >= self.limits.documents.overlap_reports_max:
            log.debug("document %s: too many overlaps are recorded already", self.key)
            return
        op = Append(overlaps_prefix(self.key), value, OVERLAP_TTL_MS)
        self._reporting += 1
        try:
            request = CommitRequest((op,))
            receipt = await self._writer(member).commit(request, with_held=False)
            self._reports.add(str(receipt.results[0]))  # before the log brings it
        finally:
            self._reporting -= 1

    def _writer(self, member: RoomPeer) -> Writer:
        author = _author_of(member)
        writer = self._writers.get(author)
        if writer is None:
            keeper = _keeper(member.agent, self.key, member.account)
            link = self._link(keeper, member.principal)
            writer = self._writers[author] = Writer(link, self.board)
        # What it commits was made on this document: in no epoch that lost a part of it, and not in
        # that of a later restore.
        writer.saw(self.revision)
        return writer

    # --- members ----------------------------------------------------------------------------------

    def join(self, member: RoomPeer) -> None:
        """Add a member; nothing is sent to it until `tell` has sent the whole state."""
        self.members.add(member)

    def leave(self, member: RoomPeer) -> None:
        """A member left; its awareness states are removed."""
        self.members.discard(member)
        if all(_author_of(other) != _author_of(member) for other in self.members):
            self._writers.pop(_author_of(member), None)
        self._listening.discard(member)
        self._spread(self._presences.leave(member))

    def tell(self, member: RoomPeer, state: bytes) -> None:
        """Send what a member with `state` lacks; from now on, it gets every update.

        Errors: DamagedError.
        """
        member.answer(ysync.write_step2(self.live.update_since(state)))
        if member not in self._listening:
            self._listening.add(member)
            self.tell_present(member)

    def tell_present(self, member: RoomPeer) -> None:
        """Send the awareness states."""
        known = self._presences.known()
        if known:
            member.deliver(ysync.write_awareness(known))

    def note_present(self, member: RoomPeer, states: Iterable[AwarenessState]) -> None:
        """A member announces itself; what it repeats of others is left out."""
        self._spread(self._presences.note(member, states))

    def hear(self, states: Iterable[AwarenessState]) -> None:
        """As `Listener.hear`."""
        self._announce(self._presences.hear(states))

    def present(self) -> list[AwarenessState]:
        """As `Listener.present`."""
        return self._presences.brought_here()

    def expire(self) -> None:
        """As `Listener.expire`."""
        self._announce(self._presences.expire())

    def _spread(self, news: list[AwarenessState]) -> None:
        """Send new states to all members, here and in other processes."""
        self._announce(news)
        if news and self._publishing is not None:
            self._publishing.tell(self.board, self.key, news)

    def _announce(self, news: list[AwarenessState]) -> None:
        """Send new states to all members here, including the sender: a stock client that receives
        nothing for 30 s assumes that the connection is dead."""
        if news:
            frame = ysync.write_awareness(news)
            for member in list(self._listening):
                member.deliver(frame)

    # --- compaction -------------------------------------------------------------------------------

    def _compact_soon(self) -> None:
        if self._tail.is_due and self._compacting is None:
            self._compacting = asyncio.create_task(self._compact())

    async def _compact(self) -> None:
        """Put the updates into the base. Of several processes, one succeeds."""
        try:
            with contextlib.suppress(TimeoutError):
                # At a random moment: other processes that have the document open then mostly find
                # the new base, and have nothing to compact.
                delay_s = self.limits.documents.compaction_delay_ms / 1000
                async with asyncio.timeout(random.uniform(0, delay_s)):
                    await self._closing.wait()
            # What waits for another update is not in `live`, so the new base would lack it.
            if not self._tail.is_due or self._late:
                return
            new = Base(self.live.update_since(), self._owners, self.mark)
            writer = Writer(self._link(_keeper(SYSTEM_AGENT, self.key)), self.board)
            await self._tail.compact(writer, new, old=self._base, revision=self.revision)
        except BlackboardError as error:
            log.info("document %s was not compacted: %s", self.key, error)
        finally:
            self._compacting = None


_Author = tuple[str, Credential | None]
"""Who writes here, by signature and token: lanes of one name on two accounts are separate, and each
commit needs the token of its own peer."""


def _author_of(member: RoomPeer) -> _Author:
    return member.signed, member.principal.credential


def _keeper(agent: str, key: Key, account: str = "") -> Principal:
    """The principal that writes a document's entries for `agent`; the content was checked
    before."""
    grants = (AccessGrant(f"{document_prefix(key)}/**", ALL_RIGHTS),)
    return Principal(agent, grants, on_account=account)
