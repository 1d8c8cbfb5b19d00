"""What names a call, and what is kept of its result."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field, RootModel

from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import (
    CALL_ATTEMPTS_MAX,
    CALL_PAUSE_MS_MAX,
    CALL_REASON_BYTES_MAX,
    LARGE_BYTES_MAX,
    TTL_MS_MAX,
)
from blackboard.runtime.agent import Agent
from blackboard.runtime.calls import (
    Call,
    CallOptions,
    CallRecord,
    Failure,
    Retry,
    adapter_of,
    canonical,
    name_of,
    plain_result,
    reason_of,
    takes_key,
)
from blackboard.runtime.context import Context
from blackboard.runtime.trial import try_step
from blackboard.wire.codec import decode_value
from tests.conformance.acting import Actor, Notes as Seen

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@dataclass
class Quote:
    """A result with a type of its own."""

    price: int
    at: datetime


def quote() -> Quote:
    """A tool that is annotated."""
    return Quote(7, datetime(2026, 1, 2, tzinfo=UTC))


class Shop:
    """Has a method that is a tool."""

    def price(self, item: str, *, idempotency_key: str = "") -> int:
        """A tool that wants its key."""
        return len(item + idempotency_key)


@given(JSON)
def test_equal_arguments_have_one_spelling(value: object) -> None:
    """Whatever the order of their keys."""

    def turned(found: object) -> object:
        if isinstance(found, dict):
            return {key: turned(found[key]) for key in reversed(found)}
        return [turned(item) for item in found] if isinstance(found, list) else found

    assert canonical(value) == canonical(turned(value))


class Basket(BaseModel):
    """An argument with sets in it, one of them under another name."""

    fruits: set[int] = Field(alias="contents")
    also: list[frozenset[int]] = []


@dataclass
class Shelf:
    """The same as a dataclass."""

    numbers: set[int]


def test_sets_have_one_spelling() -> None:
    """Their order is that of the hashes, which for texts are others in every process."""
    one, other = {0, 8}, set[int]()
    other |= {8}
    other |= {0}
    assert list(one) != list(other)
    spelled = {
        canonical([found, Basket(contents=found, also=[frozenset(found)]), Shelf(found), [{}]])
        for found in (one, other)
    }
    assert spelled == {'[[0,8],{"also":[[0,8]],"contents":[0,8]},{"numbers":[0,8]},[{}]]'}
    named = [canonical([{"in": (found,)}, RootModel[set[int]](found)]) for found in (one, other)]
    assert named == ['[{"in":[[0,8]]},[0,8]]'] * 2


@given(JSON, JSON)
def test_other_arguments_have_another_digest(one: object, other: object) -> None:
    """Two calls are the same only if their arguments are."""
    same = canonical(one) == canonical(other)
    assert (Call("tool", "f", one).digest == Call("tool", "f", other).digest) == same


def test_kind_name_and_version_are_part_of_a_call() -> None:
    """Each makes another call of it; so does its number among equal ones."""
    call = Call("tool", "f", [1])
    others = [Call("model", "f", [1]), Call("tool", "g", [1]), Call("tool", "f", [1], "2")]
    assert len({call.digest, *(other.digest for other in others)}) == 4
    assert call.slot(0) != call.slot(1)


def test_models_dataclasses_times_and_bytes_can_be_arguments() -> None:
    """As their fields, in ISO 8601, in base 64."""
    found = canonical([quote(), b"\xff", (1, 2)])
    assert found == '[{"at":"2026-01-02T00:00:00Z","price":7},"_w==",[1,2]]'
    for strange in (object(), float("inf"), {"x": float("nan")}):
        with pytest.raises(InvalidRequest):
            canonical([strange])


def test_a_call_is_named_by_its_function_or_by_its_terms() -> None:
    """What has no name of its own needs one: two lambdas are not one tool."""
    assert name_of(quote, CallOptions()) == "quote"
    assert name_of(Shop().price, CallOptions()) == "Shop.price"
    assert name_of(quote, CallOptions(name="quotes")) == "quotes"
    for nameless in (lambda: 1, partial(quote)):
        with pytest.raises(InvalidRequest):
            name_of(nameless, CallOptions())
        assert name_of(nameless, CallOptions(name="named")) == "named"


def test_a_tool_gets_its_key_if_it_asks_for_it() -> None:
    """By a keyword-only parameter, and by nothing else."""

    def positional(idempotency_key: str) -> str:
        return idempotency_key

    assert takes_key(Shop().price)
    assert not takes_key(quote)
    assert not takes_key(positional)


def test_results_come_back_as_their_annotation_says() -> None:
    """Plain ones and records as they are, others by pydantic."""
    adapter = adapter_of(quote)
    assert adapter is not None
    kept = decode_value(plain_result(quote(), adapter))
    assert kept == {"price": 7, "at": "2026-01-02T00:00:00Z"}
    assert adapter.validate_python(kept) == quote()
    assert decode_value(plain_result((1, b"x"), None)) == [1, b"x"]
    assert decode_value(plain_result(quote(), None))["price"] == 7
    with pytest.raises(InvalidRequest):
        plain_result(object(), None)
    with pytest.raises(LimitExceeded):
        plain_result(b"x" * LARGE_BYTES_MAX, None)


def test_a_result_that_cannot_be_stored_is_said_to_be_one() -> None:
    """So that the call, which was made, is not made again as if it had failed."""

    def photo() -> tuple[datetime, bytes]:
        return datetime(2026, 1, 2, tzinfo=UTC), b"\xff"

    with pytest.raises(InvalidRequest, match="result"):
        plain_result(photo(), adapter_of(photo))


@dataclass
class Finder:
    """A tool with settings, which has no hash."""

    url: str

    def __call__(self, what: str) -> str:
        """Look for something there."""
        return f"{self.url}/{what}"


class Notes(BaseModel):
    """What was found."""

    text: str = ""


class Search(Agent[Notes]):
    """Calls it."""

    async def step(self, ctx: Context[Notes]) -> None:
        """Once."""
        terms = CallOptions(name="find")
        ctx.state.text = await ctx.tool(Finder("http://a"), "tea", terms=terms)


async def test_an_object_without_a_hash_can_be_a_tool() -> None:
    """As any other that can be called."""
    assert (await try_step(Search("ada"))).state.text == "http://a/tea"


async def test_a_result_that_its_annotation_refuses_is_a_failed_attempt() -> None:
    """It is not recorded: every later run of the step would get it."""
    answers: list[object] = [None, {"tea": 3.5}]

    def prices() -> dict[str, float]:
        return answers.pop(0)  # type: ignore[return-value]

    async def step(ctx: Context[Seen]) -> None:
        terms = CallOptions(name="prices", retry=Retry(2, first_pause_ms=0))
        ctx.state.seen = [str(await ctx.tool(prices, terms=terms))]

    trial = await try_step(Actor("ada", step))
    [call] = trial.calls
    assert (trial.state.seen, len(call.failures)) == (["{'tea': 3.5}"], 1)


def test_an_annotation_that_says_nothing_is_none() -> None:
    """Any, no annotation, a name that is not there, a type that pydantic does not know."""

    def bare():  # type: ignore[no-untyped-def]
        return 1

    def strange() -> "Missing":  # type: ignore[name-defined] # noqa: F821
        return 1

    def locked() -> asyncio.Lock:
        return asyncio.Lock()

    assert [adapter_of(tool) for tool in (bare, strange, locked)] == [None, None, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": CALL_ATTEMPTS_MAX + 1},
        {"first_pause_ms": -1},
        {"first_pause_ms": 2, "pause_ms_max": 1},
        {"pause_ms_max": CALL_PAUSE_MS_MAX + 1},
    ],
)
def test_attempts_and_pauses_are_bounded(wrong: dict[str, int]) -> None:
    """At both ends."""
    Retry(attempts=CALL_ATTEMPTS_MAX, first_pause_ms=0, pause_ms_max=CALL_PAUSE_MS_MAX)
    with pytest.raises(InvalidRequest):
        Retry(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shared_ms", [-1, 0, TTL_MS_MAX + 1])
def test_a_result_is_shared_for_a_time_that_an_entry_can_have(shared_ms: int) -> None:
    """It is refused before the call is made, not when its result is to be recorded."""
    for bound in (None, 1, TTL_MS_MAX):
        CallOptions(shared_ms=bound)
    with pytest.raises(InvalidRequest, match="shared_ms"):
        CallOptions(shared_ms=shared_ms)


def test_of_an_error_so_much_is_kept() -> None:
    """Cut at a character."""
    kept = reason_of(OSError("ä" * CALL_REASON_BYTES_MAX))
    assert len(kept.encode()) in (CALL_REASON_BYTES_MAX - 1, CALL_REASON_BYTES_MAX)


def test_a_record_is_read_as_it_was_kept() -> None:
    """Bytes too."""
    record = CallRecord(
        number=3,
        kind="tool",
        name="f",
        digest="d",
        outcome="done",
        result={"x": b"\xff"},
        failures=(Failure(reason="down"),),
    )
    assert CallRecord.model_validate(record.plain()) == record
