"""What a memory is: the entry of the board that holds it, and what a search returns.

    <namespace>/~memory/<store>/model          {"model": ..., "dimensions": ...}
    <namespace>/~memory/<store>/entries/<id>   one memory: its text, its fact, its embedding

`<id>` is an index that `append` assigns, or the name that was given. All of it is ordinary entries.
So cuts, restores, branches, rights, quotas, encryption, erasure and redaction include it.

Invariants
- `model` is there before the first entry, and changes only by an explicit `reembed`.
- An embedding has the model and the dimensions that `model` names; one that has others is not
  compared with anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, ValidationError, convert

from blackboard.client.views import Entry
from blackboard.core.commit import Append, Put, in_batches
from blackboard.core.path import check_name, check_prefix, namespace_of, parse_pattern
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import (
    BASED_ON_MAX,
    COMMIT_BYTES_MAX,
    EMBED_TEXTS_MAX,
    EMBEDDING_DIMENSIONS_MAX,
    INTEGER_MAX,
    MEMORY_FILTER_FACTS_MAX,
    MEMORY_TEXT_BYTES_MAX,
)
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import SYSTEM_AGENT, encode_value

Fact = Mapping[str, Any]
"""A structured memory: members by name. Its member `text`, if there is one, is its text."""
_BRANCH: Final = "~memory"


class ModelRecord(Struct, frozen=True):
    """The value of `model`: which model made the embeddings ("" = none yet), and their size."""

    model: str
    dimensions: Annotated[int, Meta(ge=0, le=EMBEDDING_DIMENSIONS_MAX)]


NO_MODEL: Final = ModelRecord("", 0)
"""That of a store without embeddings."""


class MemoryRecord(Struct, frozen=True, omit_defaults=True):
    """The value of one memory. `vector` is the embedding: unit length, float32, little endian.

    `author` and `time_ms` are as the writer states them. They count if the service put the entry
    back (a restore) or if `kept` says that it was embedded again; else the entry's own do.
    """

    text: str
    author: str
    time_ms: Annotated[Milliseconds, Meta(ge=0, le=INTEGER_MAX)]
    fact: dict[str, Any] = {}
    sources: tuple[Key, ...] = ()
    model: str = ""
    vector: bytes = b""
    kept: bool = False


class Remembered(Struct, frozen=True):
    """One memory, as the board has it.

    `fact` is empty if it is a text only. `sources` are the keys that it was made from, which
    `Board.why` follows. `score` orders the results of one search, and means nothing beside those of
    another one. `similarity` is the cosine of the angle between its embedding and the question's,
    in -1..1; None if they were not compared.
    """

    key: Key
    text: str
    fact: dict[str, Any]
    author: str
    time_ms: Milliseconds
    revision: Revision
    sources: tuple[Key, ...] = ()
    score: float = 0.0
    similarity: float | None = None


class MemoryFilter(Struct, frozen=True):
    """Which memories a search considers: those that meet every condition that is given.

    `author` made it; at `since` or later; before `until`; its key matches the pattern `keys`; its
    fact has each member of `facts` with exactly that value (up to MEMORY_FILTER_FACTS_MAX).
    """

    author: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    keys: str | None = None
    facts: dict[str, Any] = {}

    def check(self) -> "MemoryFilter":
        """Errors: InvalidRequest for a malformed pattern, or a time without a zone;
        LimitExceeded."""
        if self.keys is not None:
            parse_pattern(self.keys)
        for name in ("since", "until"):
            moment: datetime | None = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise InvalidRequest(name, "a time without a zone: pass tzinfo")
        if len(self.facts) > MEMORY_FILTER_FACTS_MAX:
            raise LimitExceeded("MEMORY_FILTER_FACTS_MAX", len(self.facts), MEMORY_FILTER_FACTS_MAX)
        return self


class MemoryPolicy(Struct, frozen=True):
    """Which memories `consolidate` takes away: those older than `age_ms_max`, and the oldest ones
    while there are more than `count_max`. `group` (2..BASED_ON_MAX) become one
    summary."""

    age_ms_max: Milliseconds | None = None
    count_max: int | None = None
    group: int = 32

    def check(self) -> "MemoryPolicy":
        """Errors: InvalidRequest for a number that is out of range, or without any bound."""
        if self.age_ms_max is None and self.count_max is None:
            raise InvalidRequest("policy", "give age_ms_max, count_max, or both")
        for name in ("age_ms_max", "count_max"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidRequest(name, f"{getattr(self, name)} is below 0")
        if not 2 <= self.group <= BASED_ON_MAX:
            reason = f"{self.group} is not in 2..{BASED_ON_MAX}"
            raise InvalidRequest("group", reason)
        return self


class Consolidated(Struct, frozen=True):
    """What `consolidate` did: the keys of the new summaries, and how many memories it removed."""

    summaries: tuple[Key, ...]
    forgotten: int


def store_prefix(namespace: Prefix, store: str) -> Prefix:
    """The prefix of the store. Errors: InvalidRequest unless `namespace` is `public` or
    `private/<agent>`."""
    first, _, agent = namespace.partition("/")
    is_whole = namespace_of(check_prefix(namespace)) == namespace
    if not is_whole or (first, bool(agent)) not in (("public", False), ("private", True)):
        reason = f"{namespace!r} has no memory: pass public or private/AGENT"
        raise InvalidRequest("namespace", reason)
    return f"{namespace}/{_BRANCH}/{check_name(store, 'store')}"


def text_and_fact(what: str | Fact) -> tuple[str, dict[str, Any]]:
    """The text of a memory, and its fact. Errors: InvalidRequest without any text; LimitExceeded
    (MEMORY_TEXT_BYTES_MAX)."""
    if not isinstance(what, str | Mapping):
        reason = f"{type(what).__name__} here: pass a text, or a fact with members by name"
        raise InvalidRequest("what", reason)
    fact = {} if isinstance(what, str) else dict(what)
    text = what if isinstance(what, str) else _text_of(fact)
    return checked_text(text), fact


def checked_text(text: str) -> str:
    """`text`, if a memory or a question can have it."""
    if not text.strip():
        raise InvalidRequest("text", "nothing to remember or to look for: the text is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("text", "is not Unicode text") from error
    if size > MEMORY_TEXT_BYTES_MAX:
        raise LimitExceeded("MEMORY_TEXT_BYTES_MAX", size, MEMORY_TEXT_BYTES_MAX)
    return text


def _text_of(fact: Fact) -> str:
    """The member `text`, or all members in words."""
    for name in fact:
        if not isinstance(name, str):
            raise InvalidRequest("fact", f"its member {name!r:.100} has no text for a name")
    text = fact.get("text")
    if isinstance(text, str):
        return text
    return "; ".join(f"{name}: {value}" for name, value in fact.items())


def record_of(entry: Entry) -> MemoryRecord | None:
    """The memory in an entry; None if it is none: malformed, redacted, erased, or of a time that no
    clock shows, for which an index has no room."""
    try:
        return convert(entry.value, MemoryRecord, builtin_types=(bytes,))
    except ValidationError:
        return None


def model_of(entry: Entry | None) -> ModelRecord | None:
    """The model that `entry` names; None if it names none: absent, malformed, erased, or of a size
    that no embedding has."""
    try:
        return None if entry is None else convert(entry.value, ModelRecord)
    except ValidationError:
        return None


def remembered(entry: Entry, record: MemoryRecord) -> Remembered:
    """The memory in an entry, as callers see it."""
    # A restore writes as the service, and `reembed` as its caller: the entry names neither the
    # agent that made the memory nor the time.
    is_stated = record.kept or entry.author == SYSTEM_AGENT
    return Remembered(
        entry.key,
        record.text,
        record.fact,
        record.author if is_stated else entry.author,
        record.time_ms if is_stated else entry.time_ms,
        entry.mod_revision,
        record.sources,
    )


class Writing(Struct, frozen=True):
    """A memory that is about to be kept: at `key`, or as the next item."""

    key: Key | None
    record: MemoryRecord
    ttl_ms: Milliseconds | None = None

    def op(self, entries: Prefix) -> Put | Append:
        """What writes it below `entries`."""
        value = encode_value(self.record)
        if self.key is None:
            return Append(entries, value, self.ttl_ms)
        return Put(self.key, value, self.ttl_ms)


def in_commits(writings: Sequence[Writing]) -> Iterator[Sequence[Writing]]:
    """`writings` in order, in parts of up to EMBED_TEXTS_MAX that are at most half of what one
    commit may hold: others wait for it meanwhile."""
    half = COMMIT_BYTES_MAX // 2
    return in_batches(writings, lambda one: len(encode_value(one.record)), half, EMBED_TEXTS_MAX)
