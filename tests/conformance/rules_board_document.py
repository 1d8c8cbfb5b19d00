"""Rules of `Board.document`."""

import asyncio
import random

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.documents.document import Document
from blackboard.client.documents.overlap import Overlap
from blackboard.client.documents.shared_types import EMBEDDED, Delta, MapDelta
from blackboard.client.link import Transport
from blackboard.core.path import document_prefix
from blackboard.errors import (
    AccessDenied,
    DocumentRefused,
    InvalidRequest,
    LocalProtocolError,
)
from tests.conformance.peers import Peer
from tests.conformance.team import PATIENCE_S, Team
from tests.waiting import wait_until

MEMO = "public/memo"


async def agreed(*documents: Document) -> None:
    """Wait until everything that each has made is everywhere."""
    for _ in range(2):
        await asyncio.gather(*(document.synced() for document in documents))


class DocumentRules:
    """Several agents edit one document at once, and all have the same in the end."""

    async def test_a_document_begins_empty_and_keeps_what_is_written(self, ada: Board) -> None:
        doc = await ada.document(MEMO)
        assert (str(doc.text()), len(doc.text())) == ("", 0)
        doc.text().append("Buy.")
        await doc.synced()
        await doc.aclose()
        async with ada.document(MEMO) as again:
            assert str(again.text()) == "Buy."

    async def test_concurrent_edits_are_merged(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            one.text().append("The price is fair.")
            await agreed(one, two)
            one.text().insert(0, "Ada: ")
            two.text().append(" Buy.")
            await agreed(one, two)
            assert str(one.text()) == str(two.text()) == "Ada: The price is fair. Buy."

    async def test_positions_are_code_points(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            text = one.text()
            text.append("né😀漢")
            text.insert(3, "X")
            text.replace(1, 1, "e")
            text.delete(4, 1)
            assert (str(text), len(text)) == ("ne😀X", 4)
            await agreed(one, two)
            assert str(two.text()) == "ne😀X"
            for position in (-1, 5):
                with pytest.raises(InvalidRequest):
                    text.insert(position, "!")
            with pytest.raises(InvalidRequest):
                text.delete(3, 2)
            with pytest.raises(InvalidRequest):
                text.delete(3, -1)
            assert str(text) == "ne😀X"

    async def test_what_is_no_character_counts_as_one(self, link: Transport, ada: Board) -> None:
        async with Peer().connected(link, ada.name, MEMO) as peer:
            await peer.sync()
            before = peer.doc.get_state()
            peer.text.insert(0, "né")
            peer.text.insert_embed(3, {"image": "logo"})
            peer.text.insert(4, "tail")
            await peer.push(peer.doc.get_update(before))
            await peer.sync_again()
            async with ada.document(MEMO) as doc:
                text = doc.text()
                assert str(text) == f"né{EMBEDDED}tail"
                text.insert(3, "漢")
                text.delete(4, 1)
                text.insert(2, "|")
                assert str(text) == f"né|{EMBEDDED}漢ail"

    async def test_lists_maps_and_what_lies_in_them(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            plan, facts = one.list("plan"), one.map("facts")
            plan.append("read")
            step = plan.insert_map(1)
            step["title"] = "value"
            step.set_text("note", "a note").append("!")
            facts["price"] = {"usd_bn": 2900, "share": 2.5, "sources": [1, None, True, b"\x00"]}
            facts.set_list("rivals").append("tesla")
            await agreed(one, two)
            assert two.map("facts")["rivals"][0] == "tesla"
            two.list("plan")[1]["note"].append("?")
            await agreed(one, two)
            assert (
                one.value()
                == two.value()
                == {
                    "plan": ["read", {"title": "value", "note": "a note!?"}],
                    "facts": {
                        "price": {
                            "usd_bn": 2900,
                            "share": 2.5,
                            "sources": [1, None, True, b"\x00"],
                        },
                        "rivals": ["tesla"],
                    },
                }
            )

    async def test_integers_stay_integers(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            facts = one.map("facts")
            for number in (0, 3, -7, 2**53 - 1, 1 - 2**53):
                facts[f"n{number}"] = number
            await agreed(one, two)
            for number in (0, 3, -7, 2**53 - 1, 1 - 2**53):
                found = two.map("facts")[f"n{number}"]
                assert (type(found), found) == (int, number)
            for number in (2**53, 2**63, 2**70):
                with pytest.raises(InvalidRequest):
                    facts["n"] = [number]

    async def test_an_edit_is_there_at_once_and_sent_in_the_background(
        self, ada: Board, bob: Board
    ) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            one.text().append("now")
            assert str(one.text()) == "now"

            async def arrived() -> bool:
                return str(two.text()) == "now"

            await wait_until(arrived, timeout_s=PATIENCE_S)

    async def test_changes_are_sent_as_deltas(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            texts: list[Delta] = []
            items: list[Delta] = []
            keys: list[MapDelta] = []
            one.text().append("é😀 fine")
            await agreed(one, two)
            ends = two.text().observe(texts.extend)
            two.list("l").observe(items.extend)
            two.map("m").observe(keys.extend)
            one.text().replace(2, 1, "漢")
            one.list("l").append({"n": 1})
            one.map("m")["k"] = 2
            await agreed(one, two)
            ends()
            one.text().append("unseen")
            await agreed(one, two)
        inserted = [delta for delta in texts if delta.insert]
        assert inserted == [Delta(insert="漢")]
        assert Delta(retain=2) in texts
        assert Delta(delete=1) in texts
        assert items == [Delta(insert=[{"n": 1}])]
        assert keys == [MapDelta("k", "add", None, 2)]

    async def test_undo_takes_back_only_ones_own(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            one.text().append("ada ")
            await agreed(one, two)
            two.text().append("bob")
            await agreed(one, two)
            assert one.undo()
            assert not one.undo()
            await agreed(one, two)
            assert str(two.text()) == "bob"
            assert one.redo()
            await agreed(one, two)
            assert str(two.text()) == "ada bob"

    async def test_a_transaction_is_one_step(self, ada: Board) -> None:
        async with ada.document(MEMO) as doc:
            text = doc.text()
            with doc.transaction():
                text.append("one ")
                text.append("two")
                with pytest.raises(LocalProtocolError):
                    doc.list("not asked for before")
            assert doc.undo()
            assert str(text) == ""

    async def test_everybody_sees_the_present_agents(self, ada: Board, bob: Board) -> None:
        async with ada.document(MEMO) as one:
            one.tell({"name": "Ada"})
            await one.synced()
            async with bob.document(MEMO) as two:
                two.tell({"name": "Bob"})

                async def met() -> bool:
                    seen = (*one.others().values(), *two.others().values())
                    bob_is, ada_is = ({"name": n.title(), "agent": n} for n in ("bob", "ada"))
                    return bob_is in seen and ada_is in seen

                await wait_until(met, timeout_s=PATIENCE_S)

            async def alone() -> bool:
                return "bob" not in {seen["agent"] for seen in one.others().values()}

            await wait_until(alone, timeout_s=PATIENCE_S)

    async def test_concurrent_edits_of_one_region_are_merged_and_reported(
        self, ada: Board, bob: Board
    ) -> None:
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            told: list[Overlap] = []
            one.text().append("The price is fair. Buy.")
            await agreed(one, two)
            for doc in (one, two):
                doc.observe_overlaps(told.append)
            one.text().insert(0, "Ada: ")
            two.text().append(" Soon.")
            await agreed(one, two)
            assert told == []
            one.text().replace(18, 4, "good")
            two.text().replace(18, 4, "high")
            await agreed(one, two)
            assert str(one.text()) == str(two.text())
            assert {overlap.agents for overlap in told} == {("ada", "bob")}
            merged = str(one.text())
            assert {"good", "high"} == {merged[18:22], merged[22:26]}
            assert all(overlap.start >= 18 and overlap.end <= 26 for overlap in told)
            told.clear()
            one.text().insert(18, "very ")
            await agreed(one, two)
            two.text().insert(18, "not ")
            await agreed(one, two)
            assert told == []

    async def test_an_overlap_with_a_deletion_names_its_finder_alone(
        self, ada: Board, bob: Board
    ) -> None:
        """An update does not say who deletes. Both replicas go on, and both edits are merged."""
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            overlaps: list[Overlap] = []
            one.text().append("The price is fair. Buy.")
            await agreed(one, two)
            for doc in (one, two):
                doc.observe_overlaps(overlaps.append)
            one.text().delete(12, 8)
            two.text().delete(4, 10)
            await agreed(one, two)
            finders = [overlap.agents for overlap in overlaps]
            assert 1 <= len(finders) <= 2
            assert set(finders) <= {("ada",), ("bob",)}
            found = await ada.list(f"{document_prefix(MEMO)}/overlap/*")
            assert {tuple(entry.value["agents"]) for entry in found.entries} <= set(finders)
            two.text().insert(0, "Still here. ")
            await agreed(one, two)
            assert str(one.text()) == str(two.text())

    async def test_an_overlap_in_an_inner_text_is_reported_and_in_the_log(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Every reader of the document may watch it; others get nothing."""
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            told: list[Overlap] = []
            for doc in (one, two):
                doc.list("plan")
                doc.observe_overlaps(told.append)
            one.list("plan").insert_map(0).set_text("note", "né: fair")
            await agreed(one, two)
            async with ada.watch(f"{document_prefix(MEMO)}/overlap/*") as watch:
                for doc, word in ((one, "good"), (two, "high")):
                    doc.list("plan")[0]["note"].replace(4, 4, word)
                await agreed(one, two)
                with anyio.fail_after(PATIENCE_S):
                    (change,) = (await anext(watch)).changes
            value = change.value
            expected = Overlap("plan/0/note", value["start"], value["end"], ("ada", "bob"))
            assert set(told) == {expected}, told
            assert (value["text"], value["agents"]) == ("plan/0/note", ["ada", "bob"])
            assert 4 <= value["start"] < value["end"] <= 12
            found = await ada.list(f"{document_prefix(MEMO)}/overlap/*")
            assert 1 <= len(found.entries) <= 2
            assert all(entry.expires_at_ms is not None for entry in found.entries)

    async def test_a_long_history_is_compacted_and_nothing_is_lost(
        self, ada: Board, bob: Board, seed: int
    ) -> None:
        rng = random.Random(seed)
        async with ada.document(MEMO) as one, bob.document(MEMO) as two:
            for round_ in range(300):
                doc = rng.choice((one, two))
                doc.text().insert(rng.randrange(len(doc.text()) + 1), f"{round_} ")
                await doc.synced()
            await agreed(one, two)
            written = str(one.text())
            assert str(two.text()) == written

            async def compacted() -> bool:
                found = await ada.list(f"{document_prefix(MEMO)}/update/*")
                return len(found.entries) < 100

            await wait_until(compacted, timeout_s=PATIENCE_S)
        async with ada.document(MEMO) as again:
            assert str(again.text()) == written

    async def test_many_open_a_new_document_at_once(self, ada: Board, bob: Board) -> None:
        for number in range(20):
            key = f"public/new/{number}"
            boards = (ada, bob, ada, bob, ada)
            documents = await asyncio.gather(*(_opened(board, key) for board in boards))
            for index, document in enumerate(documents):
                document.text().append(f"{index}")
            await agreed(*documents)
            (text,) = {str(document.text()) for document in documents}
            assert sorted(text) == list("01234")
            await asyncio.gather(*(document.aclose() for document in documents))

    async def test_no_document_is_edited_where_people_decide(self, ada: Board) -> None:
        """An agent without the approve right writes nothing below the decisions."""
        async with ada.document("public/~decisions/ada/x") as document:
            document.text().append("approved")
            with pytest.raises(DocumentRefused) as refused:
                await document.synced()
        assert refused.value.cause == "read_only"
        assert [entry.key async for entry in ada.scan("public/~decisions/**")] == []

    async def test_private_documents_are_private(self, ada: Board, bob: Board) -> None:
        async with ada.document("private/ada/notes") as doc:
            doc.text().append("secret")
        with pytest.raises(AccessDenied):
            await bob.document("private/ada/notes")
        with pytest.raises(InvalidRequest):
            bob.document("public//memo")

    async def test_what_lies_below_a_document_is_written_by_the_service_alone(
        self, ada: Board
    ) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
        for write in (
            ada.put(f"{document_prefix(MEMO)}/base", 1),
            ada.append(f"{document_prefix(MEMO)}/update", {"update": b"\x00"}),
            ada.delete(f"{document_prefix(MEMO)}/update/0000000000"),
            ada.delete_prefix(f"{document_prefix(MEMO)}/update"),
            ada.increment(f"{document_prefix(MEMO)}/base"),
        ):
            with pytest.raises(AccessDenied):
                await write
        async with ada.document(MEMO) as again:
            assert str(again.text()) == "fine"

    async def test_a_deleted_document_is_gone_while_it_is_open(
        self, ada: Board, bob: Board
    ) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
        doc = await ada.document(MEMO)
        await bob.delete_prefix(document_prefix(MEMO))

        async def told() -> bool:
            try:
                doc.text()
            except DocumentRefused as refused:
                return refused.cause == "deleted"
            return False

        await wait_until(told, timeout_s=PATIENCE_S)
        await doc.aclose()
        async with bob.document(MEMO) as again:
            assert str(again.text()) == ""

    async def test_a_document_is_part_of_the_log(self, team: Team, ada: Board) -> None:
        async with ada.document(MEMO) as doc:
            doc.text().append("fine")
        entries = (await ada.log())[-1]
        assert entries.author == "ada"
        assert entries.changes[0].key.startswith(f"{document_prefix(MEMO)}/update/")


async def _opened(board: Board, key: str) -> Document:
    return await board.document(key)
