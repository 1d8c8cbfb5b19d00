"""Transcripts on a real board: windows, pages, summaries, recall, accounts."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

import blackboard
from blackboard import Board, InvalidRequest
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.commit import Condition, Op, Put
from blackboard.errors import Corrupt, LimitExceeded
from blackboard.limits import TRANSCRIPT_PAGE_BYTES_MAX, TRANSCRIPT_TURN_BYTES_MAX, Limits
from blackboard.runtime import transcripts
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner
from blackboard.runtime.transcripts import Recall, Transcript, Turn, tokens_of
from blackboard.units import Key
from blackboard.wire.codec import encode_value

TALK = Transcript("ada", count_tokens=lambda text: len(text.split()))


class Notes(BaseModel):
    """What an agent that archives knows."""

    archived: int = 0


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board of the agent's own."""
    async with blackboard.open(tmp_path, level="memory", agent="ada") as client:
        yield client.board("main")


async def say(board: Board, *texts: str) -> None:
    """Add turns, a step each."""
    for text in texts:
        async with board.step() as step:
            TALK.add(step, "user", text)


async def shorten(before: str, turns: Sequence[Turn]) -> str:
    """A summary that shows what it is made of."""
    return f"{before}[{turns[0].text}..{turns[-1].text}]"


def texts(turns: Sequence[Turn]) -> list[str]:
    """What was said."""
    return [turn.text for turn in turns]


# --- windows --------------------------------------------------------------------------------------


async def test_a_window_slides(board: Board) -> None:
    """The newest turns, in order, as many as are asked for in turns and in tokens."""
    await say(board, "one", "two words", "three words here", "four")
    window = await TALK.window(board)
    assert texts(window.turns) == ["one", "two words", "three words here", "four"]
    assert [turn.index for turn in window.turns] == [0, 1, 2, 3]
    assert texts((await TALK.window(board, turns_max=2)).turns) == ["three words here", "four"]
    window = await TALK.window(board, tokens_max=6)
    assert (texts(window.turns), window.tokens) == (["two words", "three words here", "four"], 6)
    assert texts((await TALK.window(board, tokens_max=0)).turns) == ["four"]
    assert [message.role for message in window.messages] == ["user"] * 3


async def test_a_summary_counts_as_its_tokenizer_says(board: Board) -> None:
    """As turns do; by the usual estimate this one has as many tokens as the window may."""
    await say(board, *"abcd")

    async def at_length(before: str, turns: Sequence[Turn]) -> str:
        return f"{'x' * 40} y"

    await TALK.archive(board, at_length, every=1, keep=3)
    window = await TALK.window(board, tokens_max=5)
    assert (texts(window.turns), window.tokens) == (["b", "c", "d"], 5)
    window = await TALK.window(board, tokens_max=4)
    assert (texts(window.turns), window.tokens) == (["c", "d"], 4)


async def test_a_step_that_fails_says_nothing(board: Board) -> None:
    """A turn is part of the step's commit."""

    async def fail() -> None:
        async with board.step() as step:
            TALK.add(step, "user", "lost")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await TALK.window(board)).turns == ()


async def test_account_is_kept(board: Board) -> None:
    """Turns, tokens, bytes; of what is archived too."""
    await say(board, "one", "two words", "grün")
    await TALK.archive(board, shorten, every=1, keep=1)
    assert await TALK.account(board) == transcripts.TranscriptSize(3, 1, 4, 17)
    assert await Transcript("ada", "other").account(board) == transcripts.TranscriptSize(0, 0, 0, 0)


# --- archiving ------------------------------------------------------------------------------------


async def test_archived_turns_make_room_for_their_summary(board: Board) -> None:
    """The window has the summary first; the turns stand in a page, as they were said."""
    await say(board, *"abcdefg")
    assert await TALK.archive(board, shorten, every=4, keep=4) is None
    before = [turn async for turn in _turns(board)]
    summary = await TALK.archive(board, shorten, every=3, keep=2)
    assert summary == transcripts.Summary(text="[a..c]", last=2, archived=3, tokens=3)
    window = await TALK.window(board)
    assert (window.summary, texts(window.turns)) == ("[a..c]", ["d", "e", "f", "g"])
    assert window.messages[0].role == "system"
    assert window.messages[0].content.endswith("[a..c]")
    [page] = await TALK.pages(board)
    assert page.key == "private/ada/~transcript/main/pages/0000000000"
    with Recall(TALK) as recall:
        assert await recall.search(board, "b") == (before[1],)


async def _turns(board: Board) -> AsyncIterator[Turn]:
    for turn in (await TALK.window(board)).turns:
        yield turn


async def test_summaries_go_on_from_each_other(board: Board) -> None:
    """Each one covers all that is archived."""
    await say(board, *"abcdef")
    for _ in range(3):
        await TALK.archive(board, shorten, every=2, keep=0)
    assert await TALK.archive(board, shorten, every=2, keep=0) is None
    window = await TALK.window(board)
    assert (window.summary, window.turns) == ("[a..b][c..d][e..f]", ())


async def test_of_two_janitors_one_archives(board: Board) -> None:
    """The other one learns that there was nothing to do; no turn is lost or doubled."""
    await say(board, *"abcd")
    together = anyio.Event()
    met: list[str] = []

    async def slow(before: str, turns: Sequence[Turn]) -> str:
        met.append(before)
        if len(met) == 2:
            together.set()
        await together.wait()
        return await shorten(before, turns)

    found: list[transcripts.Summary | None] = []

    async def clean() -> None:
        found.append(await TALK.archive(board, slow, every=2, keep=2))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clean)
        tasks.start_soon(clean)
    assert sorted(summary is None for summary in found) == [False, True]
    assert len(await TALK.pages(board)) == 1
    assert texts((await TALK.window(board)).turns) == ["c", "d"]


class Cleaned:
    """A board on which a janitor archives turns right after the first of two readings."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._is_clean = False

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""
        found = await self._board.entry(key)
        if key.endswith("/summary"):
            await self._clean()
        return found

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`."""
        return await self._board.entries(keys)

    async def list(
        self, pattern: str, *, after: Key | None = None, limit: int = 9, keys_only: bool = False
    ) -> Listing:
        """A page of the entries that match."""
        listing = await self._board.list(pattern, after=after, limit=limit, keys_only=keys_only)
        await self._clean()
        return listing

    async def commit(
        self, ops: Sequence[Op], *, conditions: Sequence[Condition] = (), note: str = ""
    ) -> Receipt:
        """Carry out `ops`."""
        return await self._board.commit(ops, conditions=conditions, note=note)

    async def _clean(self) -> None:
        if not self._is_clean:
            self._is_clean = True
            await TALK.archive(self._board, shorten, every=2, keep=1)


async def test_what_is_archived_meanwhile_is_missing_in_no_window(board: Board) -> None:
    """It may be told twice: as it was said, and by the summary."""
    await say(board, *"abcd")
    window = await TALK.window(Cleaned(board))
    assert window.summary == "[a..b]"
    assert texts(window.turns) == ["a", "b", "c", "d"]


async def test_a_summary_that_fails_moves_nothing(board: Board) -> None:
    """What cannot be summarised stays where it is."""
    await say(board, *"abcd")

    async def fail(before: str, turns: Sequence[Turn]) -> str:
        raise TimeoutError("the model did not answer")

    with pytest.raises(TimeoutError):
        await TALK.archive(board, fail, every=2, keep=0)
    assert len((await TALK.window(board)).turns) == 4
    assert await TALK.pages(board) == []


async def test_long_turns_make_short_pages(board: Board) -> None:
    """A page fits into a value; a listing that ends early is gone on with."""
    long = "x" * TRANSCRIPT_TURN_BYTES_MAX
    await say(board, *[long] * 12)
    summary = await TALK.archive(board, shorten, every=6, keep=5)
    fit = TRANSCRIPT_PAGE_BYTES_MAX // TRANSCRIPT_TURN_BYTES_MAX
    assert summary is not None
    assert summary.archived == fit
    assert len((await TALK.window(board)).turns) == 12 - fit


class Secretary(Agent[Notes]):
    """Archives what ada said."""

    async def step(self, ctx: Context[Notes]) -> None:
        """All that there is to do."""
        summary = await TALK.archive_in(ctx, shorten, every=6, keep=5)
        ctx.state.archived = 0 if summary is None else summary.archived


async def test_long_turns_are_archived_in_a_step(board: Board) -> None:
    """Also when not all of them stand in one answer of the board."""
    await say(board, *["x" * TRANSCRIPT_TURN_BYTES_MAX] * 10)
    runner = Runner(Secretary("ada"), LiveBoardPort(board))
    await runner.step()
    assert len((await TALK.window(board)).turns) == 10
    await say(board, *["x" * TRANSCRIPT_TURN_BYTES_MAX] * 2)
    await runner.step()
    fit = TRANSCRIPT_PAGE_BYTES_MAX // TRANSCRIPT_TURN_BYTES_MAX
    state, _ = await runner.hydrate()
    assert state.archived == fit
    assert len((await TALK.window(board)).turns) == 12 - fit
    await runner.step()
    assert len((await TALK.window(board)).turns) == 12 - fit


# --- recall ---------------------------------------------------------------------------------------


async def test_words_are_found_wherever_they_are(board: Board) -> None:
    """In pages and in recent turns, in any form and case; the best match first."""
    await say(board, "The Valuation rose", "markets fell", "budget", "they are valuing a market")
    await TALK.archive(board, shorten, every=2, keep=2)
    with Recall(TALK) as recall:
        assert texts(await recall.search(board, "VALUATIONS")) == ["The Valuation rose"]
        both = await recall.search(board, "market")
        assert set(texts(both)) == {"markets fell", "they are valuing a market"}
        assert both[0].text == "markets fell"  # the shorter one of two with one match
        assert texts(await recall.search(board, "budget", limit=1)) == ["budget"]
        assert await recall.search(board, "nothing of that") == ()


async def test_the_index_grows_with_the_board(board: Board) -> None:
    """Turns are found when they are said, when they are archived, and never twice."""
    with Recall(TALK) as recall:
        assert await recall.search(board, "green") == ()
        await say(board, "green one", "green two")
        assert len(await recall.search(board, "green")) == 2
        await TALK.archive(board, shorten, every=1, keep=1)
        assert len(await recall.search(board, "green")) == 2
        await say(board, "green three")
        await TALK.archive(board, shorten, every=1, keep=1)
        assert len(await recall.search(board, "green")) == 3


class Late(Cleaned):
    """A board whose first answer comes late, and after which nobody archives anything."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self.is_read, self.may_go_on = anyio.Event(), anyio.Event()

    async def _clean(self) -> None:
        self.is_read.set()
        await self.may_go_on.wait()


async def test_what_is_archived_during_a_search_is_found_by_the_next_one(board: Board) -> None:
    """It was read as a recent turn, and then in its page."""
    await say(board, "green one", "green two", "green three")
    with Recall(TALK) as recall:
        assert len(await recall.search(Cleaned(board), "green")) == 3
        assert len(await TALK.pages(board)) == 1
        assert len(await recall.search(board, "green")) == 3


async def test_a_turn_is_found_in_either_normal_form(board: Board) -> None:
    """As in a memory."""
    await say(board, "Der Lo\u0308sungsweg")
    with Recall(TALK) as recall:
        for question in ("l\u00f6sungsweg", "lo\u0308sungsweg"):
            assert len(await recall.search(board, question)) == 1


async def test_two_searches_at_once_lose_nothing(board: Board) -> None:
    """A turn that was archived between them is still found by the next one."""
    await say(board, "green one", "green two")
    late = Late(board)
    with Recall(TALK) as recall:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recall.search, late, "green")
            await late.is_read.wait()
            await TALK.archive(board, shorten, every=1, keep=1)
            tasks.start_soon(recall.search, board, "green")
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            late.may_go_on.set()
        assert len(await recall.search(board, "green")) == 2


async def test_what_was_taken_back_is_not_recalled(board: Board) -> None:
    """As after a restore: pages that are gone, or are others, are noticed."""
    await say(board, "green", "red", "blue")
    await TALK.archive(board, shorten, every=2, keep=1)
    [page] = await TALK.pages(board)
    with Recall(TALK) as recall:
        assert len(await recall.search(board, "green")) == 1
        other = page.value | {"turns": [page.value["turns"][1]]}
        await board.commit([Put(page.key, encode_value(other))])
        assert await recall.search(board, "green") == ()
        assert len(await recall.search(board, "red blue")) == 2
        await board.delete(page.key)
        assert texts(await recall.search(board, "red blue")) == ["blue"]


async def test_a_page_that_was_redacted_is_not_recalled(board: Board) -> None:
    """Also if it is not the last one, and what is on the other pages still is."""
    await say(board, "green", "red", "blue")
    for _ in range(2):
        await TALK.archive(board, shorten, every=1, keep=1)
    first, _ = await TALK.pages(board)
    with Recall(TALK) as recall:
        assert len(await recall.search(board, "green red blue")) == 3
        await board.delete(first.key)  # as a redaction begins
        assert set(texts(await recall.search(board, "green red blue"))) == {"red", "blue"}


@pytest.mark.parametrize(
    "question", ['"', "a OR (", "text:x", "NEAR(", "*", "", "x' --", "\0", "🙂"]
)
async def test_a_question_is_no_query(board: Board, question: str) -> None:
    """What means something to the index means nothing here."""
    await say(board, "something")
    with Recall(TALK) as recall:
        assert await recall.search(board, question) == ()


@pytest.mark.limits(recall_turns_max=2, recall_words_max=2)
async def test_the_index_is_bounded(board: Board, limits: Limits) -> None:
    """The newest turns stay, and of a long question its beginning counts."""
    await say(board, "green a", "green b", "green c")
    with Recall(TALK, limits=limits) as recall:
        assert set(texts(await recall.search(board, "green"))) == {"green b", "green c"}
        assert texts(await recall.search(board, "b x green")) == ["green b"]


# --- what is refused ------------------------------------------------------------------------------


async def test_a_turn_has_an_edge(board: Board) -> None:
    """TRANSCRIPT_TURN_BYTES_MAX bytes, and no more."""
    await say(board, "x" * TRANSCRIPT_TURN_BYTES_MAX)
    with pytest.raises(LimitExceeded) as caught:
        await say(board, "x" * (TRANSCRIPT_TURN_BYTES_MAX + 1))
    assert caught.value.limit == "TRANSCRIPT_TURN_BYTES_MAX"


async def test_numbers_out_of_range_are_refused(board: Board) -> None:
    """Before anything is read."""
    for turns_max in (0, 1_025):
        with pytest.raises(InvalidRequest):
            await TALK.window(board, turns_max=turns_max)
    for every, keep in ((0, 1), (257, 1), (1, 513), (1, -1)):
        with pytest.raises(InvalidRequest):
            await TALK.archive(board, shorten, every=every, keep=keep)
    with Recall(TALK) as recall:
        for limit in (0, 101):
            with pytest.raises(InvalidRequest):
                await recall.search(board, "x", limit=limit)


async def test_what_is_no_turn_is_named(board: Board) -> None:
    """Somebody wrote something else there."""
    key = await board.append(f"{TALK.prefix}/turns", {"role": "king"})
    with pytest.raises(Corrupt) as caught:
        await TALK.window(board)
    assert caught.value.what == key


def test_tokens_are_estimated() -> None:
    """A quarter of the bytes, rounded up."""
    assert [tokens_of(text) for text in ("", "a", "abcd", "abcde", "üü")] == [0, 1, 1, 2, 1]


def test_what_is_no_text_is_refused() -> None:
    """Half of a surrogate pair, as of a text that was cut: before it is in a step."""
    no_step: Any = None
    for call in (partial(tokens_of, "\ud83d"), partial(TALK.add, no_step, "user", "\ud83d")):
        with pytest.raises(InvalidRequest) as refused:
            call()
        assert refused.value.field == "text"
