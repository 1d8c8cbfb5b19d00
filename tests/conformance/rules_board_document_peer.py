"""Rules of documents under hostile peers, restores and branches."""

import contextlib

import pytest

from blackboard.client.board import Board
from blackboard.client.documents.document import Document
from blackboard.client.link import Transport
from blackboard.core.access import AccessGrant, Principal, Right
from blackboard.core.path import document_prefix
from blackboard.errors import DocumentRefused, Unavailable
from blackboard.limits import DOCUMENT_UPDATE_BYTES_MAX
from blackboard.wire import ysync
from blackboard.wire.ysync import Awareness, AwarenessState, Step1, Step2
from tests.conformance.peers import Peer, state_of
from tests.conformance.rules_board_document import MEMO, agreed
from tests.conformance.team import PATIENCE_S, Team
from tests.unit.core.documents.test_update import HOSTILE
from tests.waiting import wait_until


async def reading(team: Team) -> Transport:
    """A way to the service for a principal that may only read the document."""
    reads = AccessGrant(f"{document_prefix(MEMO)}/**", frozenset({Right.READ}))
    return (await team.client(Principal("reader", (reads,)))).link


class DocumentPeerRules:
    """What a peer may send, and what becomes of it: the document and the others are unharmed."""

    async def test_a_peer_of_another_make_is_served(self, link: Transport, ada: Board) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("world")
            await doc.synced()
            async with Peer().connected(link, ada.name, MEMO) as peer:
                await peer.sync()
                assert str(peer.text) == "world"
                await peer.push(peer.edit("hello "))
                await peer.push(peer.edit("so: "))
                await wait_until(lambda: _reads(doc, "so: hello world"), timeout_s=PATIENCE_S)

    async def test_a_hostile_update_ends_the_session_of_its_sender(
        self, link: Transport, ada: Board
    ) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
            await doc.synced()
            for name, update in HOSTILE.items():
                async with Peer().connected(link, ada.name, MEMO) as peer:
                    await peer.sync()
                    await peer.push(update)
                    assert (await peer.refusal()).cause in ("malformed", "gap"), name
            doc.text().append(", still")
            await doc.synced()
        async with ada.document(MEMO) as again:
            assert str(again.text()) == "fine, still"

    async def test_an_update_with_a_gap_is_refused_and_coming_back_repairs_it(
        self, link: Transport, ada: Board
    ) -> None:
        peer = Peer()
        async with peer.connected(link, ada.name, MEMO):
            await peer.sync()
            peer.edit("lost ")
            await peer.push(peer.edit("found ", 5))
            assert (await peer.refusal()).cause == "gap"
        async with peer.connected(link, ada.name, MEMO):
            await peer.sync()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "lost found "

    async def test_nobody_writes_as_somebody_elses_client(
        self, link: Transport, ada: Board, bob: Board
    ) -> None:
        async with bob.document(MEMO) as doc:
            doc.text().append("bob's")
            await doc.synced()
            forger = Peer()
            async with forger.connected(link, ada.name, MEMO):
                await forger.sync()
                (victim,) = state_of(forger)
                forged = Peer(client_id=victim)
                forged.doc.apply_update(forger.doc.get_update())
                await forger.push(forged.edit("forged "))
                refused = await forger.refusal()
                assert (refused.cause, str(victim) in refused.reason) == ("foreign", True)
            doc.text().append(" own")
            await doc.synced()
            assert str(doc.text()) == "bob's own"

    async def test_who_writes_under_her_number_before_her_takes_no_edit_in_silence(
        self, link: Transport, ada: Board, bob: Board
    ) -> None:
        ann, forger = Peer(client_id=21), Peer(client_id=21)
        async with ann.connected(link, ada.name, MEMO):
            await ann.sync()
            async with Peer().connected(bob._link, bob.name, MEMO) as sent:
                await sent.sync()
                await sent.push(forger.edit("EVE FIRST "))
                await sent.sync_again()
            await ann.push(ann.edit("ann "))
            refused = await ann.refusal()
            assert (refused.cause, "21" in refused.reason) == ("foreign", True)
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "EVE FIRST "

    async def test_a_number_that_somebody_announced_is_hers(
        self, link: Transport, ada: Board, bob: Board
    ) -> None:
        ann, forger = Peer(client_id=21), Peer(client_id=21)
        async with ann.connected(link, ada.name, MEMO):
            await ann.sync()
            await ann.send(ysync.write_awareness([AwarenessState(21, 1, "{}")]))
            await ann.sync_again()
            async with Peer().connected(bob._link, bob.name, MEMO) as eve:
                await eve.sync()
                await eve.push(forger.edit("EVE FIRST "))
                assert (await eve.refusal()).cause == "foreign"
            await ann.push(ann.edit("ann "))
            await ann.sync_again()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "ann "

    async def test_a_reader_that_announces_her_number_keeps_no_editor_out(
        self, team: Team, link: Transport, ada: Board
    ) -> None:
        """While she is away, after she announced it and wrote nothing yet."""
        ann = Peer(client_id=21)
        async with ann.connected(link, ada.name, MEMO):
            await ann.sync()
            await ann.send(ysync.write_awareness([AwarenessState(21, 1, "{}")]))
            await ann.sync_again()
        ann.edit("made offline")
        async with Peer().connected(await reading(team), ada.name, MEMO) as reader:
            await reader.sync()
            await reader.send(ysync.write_awareness([AwarenessState(21, 9, "{}")]))
            await reader.sync_again()
            async with ann.connected(link, ada.name, MEMO):
                await ann.sync()
                await ann.sync_again()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "made offline"

    async def test_two_processes_of_one_agent_with_one_number_get_an_error(
        self, link: Transport, ada: Board
    ) -> None:
        one, other = Peer(client_id=21), Peer(client_id=21)
        async with one.connected(link, ada.name, MEMO), other.connected(link, ada.name, MEMO):
            await one.sync()
            await other.sync()
            await one.push(one.edit("one "))
            await one.sync_again()
            await other.push(other.edit("two "))
            assert (await other.refusal()).cause == "foreign"
            await one.push(one.edit("and on "))
            await one.sync_again()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "and on one "

    async def test_who_repeats_what_others_wrote_goes_on(
        self, link: Transport, ada: Board, bob: Board
    ) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("ada 😀 wrote")
            doc.map("facts")["n"] = {"i": 3, "f": 2.5, "deep": [True, None, "x"]}
            await doc.synced()
            doc.text().delete(4, 6)
            await doc.synced()
            async with Peer().connected(bob._link, bob.name, MEMO) as peer:
                await peer.sync()
                peer.edit("bob: ")
                await peer.push(peer.doc.get_update())  # all of it, his and hers
                await peer.push(peer.doc.get_update())
                await peer.sync_again()
            await wait_until(lambda: _reads(doc, str(peer.text)), timeout_s=PATIENCE_S)

    async def test_an_update_that_is_too_large_is_refused(
        self, link: Transport, ada: Board
    ) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
            await doc.synced()
            async with Peer().connected(link, ada.name, MEMO) as peer:
                await peer.sync()
                await peer.push(peer.edit("x" * DOCUMENT_UPDATE_BYTES_MAX))
                assert (await peer.refusal()).cause == "too_large"
            await doc.synced()
            assert str(doc.text()) == "fine"

    async def test_a_large_update_is_cut_into_values_and_put_together(
        self, link: Transport, ada: Board
    ) -> None:
        text = "x" * (DOCUMENT_UPDATE_BYTES_MAX - 100)
        async with Peer().connected(link, ada.name, MEMO) as peer:
            await peer.sync()
            await peer.push(peer.edit(text))
            await peer.sync_again()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == text

    async def test_a_frame_that_is_none_ends_the_session(self, link: Transport, ada: Board) -> None:
        async with Peer().connected(link, ada.name, MEMO) as peer:
            with contextlib.suppress(DocumentRefused):
                await peer.send(b"\x09nonsense")
            assert (await peer.refusal()).cause == "malformed"

    async def test_a_state_that_is_none_ends_the_session_at_any_time(
        self, link: Transport, ada: Board
    ) -> None:
        """Also of a peer that was greeted: the library would not survive it."""
        async with Peer().connected(link, ada.name, MEMO) as peer:
            await peer.sync()
            with contextlib.suppress(DocumentRefused):
                await peer.send(ysync.write_step1(b"\x05\x01"))
            assert (await peer.refusal()).cause == "malformed"

    async def test_who_may_only_read_changes_nothing(self, team: Team, ada: Board) -> None:
        reader = await reading(team)
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
            await doc.synced()
            async with Peer().connected(reader, ada.name, MEMO) as peer:
                await peer.sync()
                assert str(peer.text) == "fine"
                await peer.push(peer.edit("not "))
                assert (await peer.refusal()).cause == "read_only"
            await doc.synced()
            assert str(doc.text()) == "fine"

    async def test_who_does_not_read_is_disconnected_and_nobody_else_notices(
        self, link: Transport, ada: Board
    ) -> None:
        async with (
            ada.document(MEMO) as doc,
            Peer().connected(link, ada.name, MEMO) as peer,
        ):
            await peer.sync()
            parts = doc.list("parts")
            for _ in range(40):
                parts.append("x" * 1_000_000)
                await doc.synced()
                parts.delete(0)
            with contextlib.suppress(Unavailable):  # in the middle of a frame it sees no reason
                assert (await peer.refusal()).cause == "too_slow"
            doc.text().append("fine")
            await doc.synced()


class DocumentPastRules:
    """Checkpoints, restores and branches of boards with documents."""

    async def test_a_restore_takes_an_open_document_back(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        operator = await team.operator()
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            one.text().append("agreed")
            one.map("facts")["price"] = 3
            await agreed(one, two)
            digest = one.digest()
            await operator.checkpoint("then")
            two.text().append(" and regretted")
            del two.map("facts")["price"]
            await agreed(one, two)
            await operator.restore("then")
            await agreed(one, two)
            assert str(one.text()) == str(two.text()) == "agreed"
            assert two.map("facts")["price"] == 3
            assert one.digest() == two.digest() == digest
            assert not await operator.diff("then")
            one.text().append("!")
            assert one.digest() != digest
            two.text().insert(0, "We ")
            await agreed(one, two)
            assert str(one.text()) == str(two.text()) == "We agreed!"
        async with ada.document(MEMO) as again:
            assert str(again.text()) == "We agreed!"

    async def test_an_edit_of_the_abandoned_future_is_refused(self, team: Team, ada: Board) -> None:
        operator = await team.operator()
        link = (await team.client_of(ada)).link
        late, quiet, fresh = Peer(), Peer(), Peer()
        async with late.connected(link, ada.name, MEMO):
            late.edit("agreed")
            await late.sync()
            await operator.checkpoint("then")
            await late.push(late.edit("not "))
            await late.sync_again()
        async with quiet.connected(link, ada.name, MEMO):
            await quiet.sync()
        late.edit("really ")
        fresh.edit("new: ")
        await operator.restore("then")
        async with late.connected(link, ada.name, MEMO):
            with pytest.raises(DocumentRefused) as refused:
                await late.sync()
            assert refused.value.cause == "stale"
        for peer, text in ((quiet, "agreed"), (fresh, "new: agreed")):
            async with peer.connected(link, ada.name, MEMO):
                await peer.sync()
                await peer.sync_again()
                assert sorted(str(peer.text)) == sorted(text)
        quiet.edit("later ")
        async with quiet.connected(link, ada.name, MEMO):
            await quiet.sync()
        async with ada.document(MEMO) as doc:
            assert "later " in str(doc.text())
            assert "really" not in str(doc.text())

    async def test_who_has_seen_a_restore_may_write_at_once(self, team: Team, ada: Board) -> None:
        """Its edit may come together with its answer, which has nothing new."""
        link, peer = await self._returning(team, ada)
        async with peer.connected(link, ada.name, MEMO):
            await peer.send(ysync.write_step1(peer.doc.get_state()))
            asked = await _asked(peer)
            answer = peer.doc.get_update(asked.state)
            await peer.take()  # the restored content: it would pass for the answer below
            edit = peer.edit("seen: ")
            await peer.send(ysync.write_step2(answer) + ysync.write_update(edit))
            await peer.sync_again()
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "seen: agreed"

    async def test_after_a_restore_edits_are_asked_for_just_before_its_content_is_sent(
        self, team: Team, ada: Board
    ) -> None:
        """Or what a peer made after its answer, and before it saw the restore, would get in."""
        link, peer = await self._returning(team, ada)
        async with (
            Peer().connected(link, ada.name, MEMO) as other,
            peer.connected(link, ada.name, MEMO),
        ):
            await other.sync()
            await peer.send(ysync.write_awareness([AwarenessState(21, 1, "{}")]))
            while not any(isinstance(found, Awareness) for found in await other.take()):
                pass
            # Its session has begun: what that sends comes before the answer to this.
            await peer.send(ysync.QUERY_AWARENESS)
            assert [type(found) for found in await peer.take()] == [Awareness]
            await peer.send(ysync.write_step1(peer.doc.get_state()))
            assert [type(found) for found in await peer.take()] == [Step1]
            assert [type(found) for found in await peer.take()] == [Step2]

    async def test_a_refusal_that_gets_lost_lets_nothing_in(self, team: Team, ada: Board) -> None:
        """A peer with edits of the abandoned future does not get the restored content. With it, the
        peer would pass for one that has seen the restore."""
        link, peer = await self._returning(team, ada)
        peer.edit("really ")
        for _ in range(2):
            async with peer.connected(link, ada.name, MEMO):
                await peer.send(ysync.write_step1(peer.doc.get_state()))
                assert (await peer.refusal(takes=True)).cause == "stale"
            assert str(peer.text) == "really regretted agreed"
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "agreed"

    async def test_an_edit_made_before_a_removed_document_came_back_is_refused(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        operator = await team.operator()
        author, late = Peer(), Peer()
        async with author.connected((await team.client_of(ada)).link, ada.name, MEMO):
            author.edit("agreed")
            await author.sync()
        for then in ("then", "later"):  # the second time there are two marks
            await operator.checkpoint(then)
            link = (await team.client_of(bob)).link
            async with late.connected(link, ada.name, MEMO):
                await late.sync()
                await late.push(late.edit("regretted "))
                await late.sync_again()
            late.edit("really ")
            await operator.delete_prefix(document_prefix(MEMO))
            await operator.restore(then)
            async with late.connected(link, ada.name, MEMO):
                with pytest.raises(DocumentRefused) as refused:
                    await late.sync()
                assert refused.value.cause == "stale"
            async with ada.document(MEMO) as doc:
                assert str(doc.text()) == "agreed"
            late = Peer()

    async def test_the_authors_of_a_removed_document_that_came_back_edit_it_on(
        self, team: Team, ada: Board
    ) -> None:
        """Their replicas keep their client ids, which are theirs and nobody else's: also the second
        time, and if somebody has made another document there meanwhile."""
        operator = await team.operator()
        link = (await team.client_of(ada)).link
        author, text = Peer(), "agreed"
        async with author.connected(link, ada.name, MEMO):
            author.edit(text)
            await author.sync()
            await author.sync_again()
        for number in range(3):
            await operator.checkpoint(f"then-{number}")
            await operator.delete_prefix(document_prefix(MEMO))
            if number == 2:
                async with operator.document(MEMO) as doc:
                    doc.text().append("another")
            await operator.restore(f"then-{number}")
            async with author.connected(link, ada.name, MEMO):
                await author.sync()
                await author.push(author.edit(f"{number} "))
                await author.sync_again()
            text = f"{number} {text}"
            async with operator.document(MEMO) as doc:
                assert str(doc.text()) == text

    async def test_a_reader_with_edits_of_the_abandoned_future_is_refused_as_such(
        self, team: Team, ada: Board
    ) -> None:
        """Once it had the restored content, they would pass when it may write."""
        link, peer = await self._returning(team, ada)
        peer.edit("really ")
        for each in (await reading(team), link):
            async with peer.connected(each, ada.name, MEMO):
                with pytest.raises(DocumentRefused) as refused:
                    await peer.sync()
                assert refused.value.cause == "stale"

    async def test_what_is_no_document_any_more_is_in_no_restores_way(
        self, team: Team, ada: Board
    ) -> None:
        operator = await team.operator()
        await operator.put(f"{document_prefix(MEMO)}/update/junk", 1)
        await ada.put("public/a", 1)
        await operator.checkpoint("then")
        await operator.delete_prefix(document_prefix(MEMO))
        await ada.put("public/a", 2)
        await operator.restore("then")
        assert await ada.get("public/a") == 1

    async def test_who_never_knew_the_abandoned_future_may_lose_its_connection(
        self, team: Team, ada: Board
    ) -> None:
        """Even before it was sent the restored content."""
        link, _ = await self._returning(team, ada)
        fresh = Peer()
        fresh.edit("new: ")
        async with fresh.connected(link, ada.name, MEMO):
            await fresh.send(ysync.write_step1(fresh.doc.get_state()))
            found: list[ysync.Message] = []
            while not found or not isinstance(found[-1], Step1):
                found += await fresh.receive()
            await fresh.send(ysync.write_step2(fresh.doc.get_update(found[-1].state)))
            async with ada.document(MEMO) as doc:
                await wait_until(lambda: _has(doc, "new: "), timeout_s=PATIENCE_S)
        fresh.edit("more ", 5)
        async with fresh.connected(link, ada.name, MEMO):
            await fresh.sync()
            await fresh.sync_again()
            assert "more " in str(fresh.text)

    async def _returning(self, team: Team, ada: Board) -> tuple[Transport, Peer]:
        """A peer that comes back after a restore that it has not seen, without edits."""
        operator = await team.operator()
        link = (await team.client_of(ada)).link
        peer = Peer()
        async with peer.connected(link, ada.name, MEMO):
            peer.edit("agreed")
            await peer.sync()
            await operator.checkpoint("then")
            await peer.push(peer.edit("regretted "))
            await peer.sync_again()
        await operator.restore("then")
        return link, peer

    async def test_a_document_born_after_the_checkpoint_is_empty_again(
        self, team: Team, ada: Board
    ) -> None:
        operator = await team.operator()
        await operator.checkpoint("then")
        async with ada.document(MEMO) as doc:
            doc.text().append("later")
            await doc.synced()
            await operator.restore("then")
            await agreed(doc)
            assert str(doc.text()) == ""

    async def test_a_deleted_document_comes_back(self, team: Team, ada: Board) -> None:
        operator = await team.operator()
        async with ada.document(MEMO) as doc:
            doc.text().append("kept")
        await operator.checkpoint("then")
        await operator.delete_prefix(document_prefix(MEMO))
        await operator.restore("then")
        async with ada.document(MEMO) as doc:
            assert str(doc.text()) == "kept"

    async def test_a_diff_shows_what_a_document_said(self, team: Team, ada: Board) -> None:
        """As text, whatever it is kept as; on a branch likewise."""
        operator = await team.operator()
        lines = [f"line {number}" for number in range(30)]
        async with ada.document(MEMO) as doc:
            doc.text().append("\n".join(lines))
            doc.map("facts")["price"] = 3
            await doc.synced()
            await operator.checkpoint("then")
            doc.text().replace(str(doc.text()).index("line 7"), 6, "another")
            doc.map("facts").set_list("by").append("ada")
            await ada.put("public/plain", 1)
            await doc.synced()
            document, plain = (await operator.diff("then")).changes
            assert (document.key, document.kind, plain.key) == (MEMO, "changed", "public/plain")
            told = {part.path: part for part in document.parts}
            assert told.keys() == {"facts.by", "text"}
            assert told["text"].text[1:5] == (" line 6", "-line 7", "+another", " line 8")
            assert told["facts.by"].after == ["ada"]
            branch = await operator.branch(f"{ada.name}-compared", "then")
            (document, _) = (await branch.diff("then", other=ada.name)).changes
            assert {part.path for part in document.parts} == {"facts.by", "text"}

    async def test_a_branch_has_the_document_and_its_edits_can_be_taken_back(
        self, team: Team, ada: Board
    ) -> None:
        operator = await team.operator()
        async with ada.document(MEMO) as doc:
            doc.text().append("base")
        branch = await operator.branch(f"{ada.name}-branch")
        async with operator.document(MEMO) as main, branch.document(MEMO) as tried:
            tried.text().append(" tried")
            main.text().insert(0, "main ")
            await agreed(main, tried)
            assert (str(main.text()), str(tried.text())) == ("main base", "base tried")
            main.merge(tried)
            main.merge(tried)
            await agreed(main)
            assert str(main.text()) == "main base tried"


async def _asked(peer: Peer) -> Step1:
    """Take what comes until the service asks for what it lacks."""
    while True:
        for message in await peer.take():
            if isinstance(message, Step1):
                return message


async def _has(doc: Document, part: str) -> bool:
    return part in str(doc.text())


async def _reads(doc: Document, text: str) -> bool:
    return str(doc.text()) == text
