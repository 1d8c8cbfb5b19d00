"""Keys, namespaces and patterns.

A key is a path of at least two segments: `public/plan/budget`, `private/researcher/notes/3`,
`inbox/architect/0000000007`. Its namespace is `public`, `private/<agent>`, `inbox/<agent>`, or
`system`, which only the service writes; below `private` and `inbox` a key has three segments or
more.

A pattern is a path in which `*` stands for one segment and a final `**` for one or more; it matches
keys that do not exist yet.

Nothing is normalised: a path has exactly one spelling, so what is authorised is what is executed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import KEY_BYTES_MAX, PATTERNS_MAX, SEGMENT_BYTES_MAX
from blackboard.units import Key, Prefix

_SEGMENT = rf"[A-Za-z0-9._~-]{{1,{SEGMENT_BYTES_MAX}}}"
_NAME = re.compile(_SEGMENT)
_SHARED = "(?:public|system)"
_OWNED = rf"(?:private|inbox)/{_SEGMENT}"
_KEY = re.compile(rf"(?:{_SHARED}|{_OWNED})(?:/{_SEGMENT})+")
_PREFIX = re.compile(rf"(?:{_SHARED}|{_OWNED})(?:/{_SEGMENT})*")
_PATTERN = re.compile(rf"(?:\*|{_SEGMENT})(?:/(?:\*|{_SEGMENT}))*(?:/\*\*)?|\*\*")
_BELOW = "public/..., private/AGENT/..., inbox/AGENT/..."
_SEGMENTS = f"segments of A-Z a-z 0-9 . _ ~ -, at most {SEGMENT_BYTES_MAX} each, joined by /"
_HINTS = {
    "key": f"write {_BELOW}: {_SEGMENTS}",
    "prefix": f"write a key's beginning without a trailing slash, below {_BELOW}",
    "pattern": f"write a key in which * is one segment and a final ** is the rest: {_SEGMENTS}",
}
"""What to write instead, by field: the reader of an error may not have the documentation at
hand."""
ITEM_DIGITS = 10
"""Digits of an index that `append` assigns: keys of one list sort in the order of appending."""
BOOK = "~"
"""The first character of the runtime's branches of a namespace, such as `public/~agents`. They
change all the time, and are not messages between agents."""
JOURNAL = "~journal"
"""The branch of an agent's private namespace that holds the calls of its current step."""
SYSTEM = "system"
"""The namespace of the service's own records. A restore does not change it."""


@lru_cache(maxsize=4_096)
def check_name(name: str, field: str = "name") -> str:
    """Return `name` if it is a valid segment (an agent's, a board's), else InvalidRequest."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(field=field, reason=f"{name!r} is not a name: {_NAME.pattern}")
    return name


@lru_cache(maxsize=4_096)
def check_holder(holder: str, field: str = "holder") -> str:
    """Return `holder` if it may be the holder of a lease: a name, which may have one `@` in it,
    where an account ends; else InvalidRequest."""
    check_name(holder.replace("@", ".", 1), field)
    return holder


@lru_cache(maxsize=16_384)
def check_key(key: Key) -> Key:
    """Return `key` if it is well formed, else InvalidRequest or LimitExceeded."""
    return _checked(key, _KEY, "key")


@lru_cache(maxsize=4_096)
def check_prefix(prefix: Prefix) -> Prefix:
    """Return `prefix` if keys can lie below it, else InvalidRequest or LimitExceeded.

    A prefix is a path without trailing slash that names a namespace or something within one.
    """
    return _checked(prefix, _PREFIX, "prefix")


def is_prefix(path: str) -> bool:
    """Whether `check_prefix` would accept `path`: keys of one namespace can lie below it."""
    return len(path) <= KEY_BYTES_MAX and bool(_PREFIX.fullmatch(path)) and not _has_dots(path)


@lru_cache(maxsize=4_096)
def namespace_of(key: Key) -> str:
    """The namespace of a well-formed key or prefix: as above."""
    first, _, rest = key.partition("/")
    return first if first in ("public", SYSTEM) else f"{first}/{rest.partition('/')[0]}"


def range_below(prefix: Prefix) -> tuple[str, str]:
    """The half-open range [first, last) of strings that holds exactly the keys below `prefix`.

    "/" (0x2f) is directly followed by "0" (0x30), so `p/` <= key < `p0` is "starts with p/".
    """
    return prefix + "/", prefix + "0"


def directory_of(prefix: Prefix, key: Key) -> Prefix | None:
    """The directory of `prefix` that `key` lies in: `prefix` with one more segment; None if `key`
    lies directly below `prefix`."""
    end = key.find("/", len(prefix) + 1 if prefix else 0)
    return None if end < 0 else key[:end]


Ranges = tuple[tuple[str, str], ...]
"""Half-open ranges [first, last) of keys: sorted, and apart."""
EVERYTHING: Final[Ranges] = (("!", "\x7f"),)
"""The range of all keys: they are printable ASCII without these two."""
_NEXT: Final = "\x01"
"""In no key, and below every character of one: nothing lies between key and key + _NEXT."""


def range_of(key: Key) -> tuple[str, str]:
    """The range that holds `key` alone."""
    return key, key + _NEXT


def ranges_of(
    within: Prefix | Ranges, after: Key | None = None, *, reverse: bool = False
) -> Ranges:
    """`within` as ranges, cut to what lies after `after`; before it with `reverse`.

    A prefix stands for the keys below it, "" for all keys.
    """
    if isinstance(within, str):
        within = (range_below(within),) if within else EVERYTHING
    if after is None:
        return within
    if reverse:
        return tuple((first, min(last, after)) for first, last in within if first < after)
    begin = after + _NEXT
    return tuple((max(first, begin), last) for first, last in within if last > begin)


def joined_ranges(ranges: Iterable[tuple[str, str]]) -> Ranges:
    """The union of `ranges`, which may be in any order."""
    found: list[tuple[str, str]] = []
    for first, last in sorted(ranges):
        # Ranges that touch are joined as well: they are half-open.
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def range_watched(prefix: Prefix) -> tuple[str, str]:
    """The range that a condition on `prefix` covers: for a whole namespace, without its runtime
    branches.

    They begin with "~" (0x7e), the last character that a segment may have, and so lie at the end.
    """
    first, last = range_below(prefix)
    return first, first + BOOK if namespace_of(prefix) == prefix else last


def is_meant(pattern: str, key: Key) -> bool:
    """Whether a read of `pattern`, which matches `key`, depends on `key`. Keys in the runtime's
    branches count only if the pattern names the branch."""
    branch = key[len(namespace_of(key)) + 1 :].partition("/")[0]
    return not branch.startswith(BOOK) or branch in pattern.split("/")


def item_key(prefix: Prefix, index: int) -> Key:
    """The key of item `index` (from 0) of the list below `prefix`."""
    return f"{prefix}/{index:0{ITEM_DIGITS}d}"


_SUPERSEDED: Final = "/~superseded"


def superseding_key(agent: str) -> Key:
    """An absent key that `agent` removes to supersede the commit in flight on its lane."""
    return f"private/{agent}{_SUPERSEDED}"


def is_superseding(key: Key) -> bool:
    """Whether removing `key` makes a revision even though it is absent. Twin: `removes` of
    commit.lua."""
    return key.endswith(_SUPERSEDED)


DECISIONS: Final = "public/~decisions"
"""The prefix of people's answers to requests of agents; writing there takes a right of its own."""


def is_decision(path: str) -> bool:
    """Whether `path` is that prefix or lies below it."""
    return path == DECISIONS or path.startswith(DECISIONS + "/")


_IDENTITY: Final = "~identity"


def identity_key(agent: str) -> Key:
    """The lease that is the identity of `agent`."""
    return f"private/{agent}/{_IDENTITY}"


def agent_identified(key: Key) -> str | None:
    """The agent whose identity the lease `key` is; None for any other lease."""
    first, _, rest = key.partition("/")
    agent, _, last = rest.partition("/")
    return agent if (first, last) == ("private", _IDENTITY) else None


@lru_cache(maxsize=4_096)
def barrier_key(agent: str) -> Key:
    """The entry that says that a checkpoint waits for `agent`."""
    return f"{SYSTEM}/barriers/{agent}"


@lru_cache(maxsize=4_096)
def cut_key(agent: str) -> Key:
    """The entry that exists from a checkpoint's request for the state of `agent` until the cut."""
    return f"{barrier_key(agent)}/cut"


_REST: Final = re.compile(".+")
_ASKED_OFTEN: Final = 256
"""How often a pattern is used before it is compiled. Compiling takes 50 us and a kilobyte, as long
as a hundred matches without it, and one token may watch with a quarter of a million patterns."""


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern. `matches(key)` says whether it matches a key."""

    text: str
    prefix: str
    """The literal path before the first wildcard, without trailing slash ("" if there is none)."""
    literal: bool
    """Whether the pattern has no wildcard and so matches one key only."""
    is_subtree: bool
    """Whether it is `<prefix>/**` or `**`, and so matches everything below the prefix."""

    def matches(self, key: Key) -> bool:
        """Whether the pattern matches `key`."""
        # Not `self._regex`, which would compile it now.
        regex = self.__dict__.get("_regex")
        if regex is None:
            regex = self._regex_if_worth_it()
            if regex is None:
                return self._matches_by_segments(key)
        return regex.fullmatch(key) is not None

    def _regex_if_worth_it(self) -> "re.Pattern[str] | None":
        asked: int = self.__dict__.get("_asked", 0)
        self.__dict__["_asked"] = asked + 1  # not a field: it does not take part in comparison
        return self._regex if asked >= _ASKED_OFTEN else None

    @cached_property
    def _regex(self) -> "re.Pattern[str]":
        return re.compile(expression_of(self.text))

    def _matches_by_segments(self, key: Key) -> bool:
        wanted = self.text.split("/")
        if wanted[-1] == "**":
            *wanted, _ = wanted
            # The last part keeps its slashes: `**` matches any number of segments.
            parts = key.split("/", len(wanted))
            if len(parts) != len(wanted) + 1 or _REST.fullmatch(parts.pop()) is None:
                return False
        else:
            parts = key.split("/")
        # An empty segment matches nothing, as in the regular expression.
        return len(parts) == len(wanted) and all(
            part and want in ("*", part) for want, part in zip(wanted, parts, strict=True)
        )


def expression_of(pattern: str) -> str:
    """The regular expression that matches the same keys as `pattern`, in full."""
    return "/".join(_segment_regex(segment) for segment in pattern.split("/"))


@lru_cache(maxsize=4_096)
def parse_pattern(text: str) -> Pattern:
    """Parse a pattern such as `public/*/budget` or `private/researcher/**`.

    Errors: InvalidRequest when it is not a path; LimitExceeded above KEY_BYTES_MAX.
    """
    _checked(text, _PATTERN, "pattern")
    segments = text.split("/")
    wild = next((i for i, segment in enumerate(segments) if segment in ("*", "**")), None)
    return Pattern(
        text=text,
        prefix="/".join(segments[:wild]),
        literal=wild is None,
        is_subtree=segments[-1] == "**" and wild == len(segments) - 1,
    )


def parse_patterns(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Parse a list of 1..PATTERNS_MAX patterns."""
    found = tuple(parse_pattern(text) for text in texts)
    if not found:
        raise InvalidRequest(field="pattern", reason="at least one pattern is needed")
    if len(found) > PATTERNS_MAX:
        raise LimitExceeded(limit="PATTERNS_MAX", value=len(found), maximum=PATTERNS_MAX)
    return found


def _segment_regex(segment: str) -> str:
    if segment == "**":
        return ".+"
    return "[^/]+" if segment == "*" else re.escape(segment)


def _checked(path: str, grammar: "re.Pattern[str]", field: str) -> str:
    # First, so that no long text is matched. What then matches is ASCII: characters are bytes.
    if len(path) > KEY_BYTES_MAX:
        raise LimitExceeded(limit="KEY_BYTES_MAX", value=len(path), maximum=KEY_BYTES_MAX)
    if not grammar.fullmatch(path) or _has_dots(path):
        hint = _HINTS[field]
        if grammar.fullmatch(path):
            hint = "no segment is . or .."
        elif field == "key" and grammar.fullmatch(f"{path}/x"):
            hint = f"everything below it is {path}/**, a key below it is {path}/NAME"
        raise InvalidRequest(field=field, reason=f"{path!r} is not a {field}: {hint}")
    return path


def _has_dots(path: str) -> bool:
    """Whether a segment is `.` or `..`, which readers would take for "here" and "above"."""
    return "." in path and any(segment in (".", "..") for segment in path.split("/"))


# --- documents ------------------------------------------------------------------------------------
# The keys of a document. A document at key K is stored with ordinary operations on ordinary keys.
#
#     K/~doc/base                      {"parts": [generation, n], "owners": {...}, "mark": ...}
#     K/~doc/part/<generation>/<i>     the compacted state, in n pieces of at most a value's size
#     K/~doc/update/<index>            updates since then, appended: {"update": bytes, ...}
#     K/~doc/update/restore-<mark>-<i> the update of a restore, the last piece with "mark", and with
#                                      "owners" of clients that it put back
#     K/~doc/overlap/<index>           {"text": ..., "start": ..., "end": ..., "agents": [...]}:
#                                      what was edited by several at once, for OVERLAP_TTL_MS
#
# So reads at a revision, watches, checkpoints, digests, diffs and branches include documents. The
# content is that of the base with every update applied, in any order.
#
# Invariants
# - A compaction is one commit: it puts the new base and removes the updates that the base contains.
# - The pieces of one update in a commit are adjacent (`more` says that another one follows).
# - Only the base is ever changed in place.

RESERVED = "~doc"
"""The segment below which a document lies. Only the service writes there."""


def document_prefix(key: Key) -> Prefix:
    """The prefix below which all of the document at `key` lies."""
    return f"{key}/{RESERVED}"


def base_key(key: Key) -> Key:
    """The base of a document: it says where the compacted state is."""
    return f"{key}/{RESERVED}/base"


def parts_prefix(key: Key, generation: str) -> Prefix:
    """The prefix of the pieces of the compacted state `generation`."""
    return f"{key}/{RESERVED}/part/{generation}"


def updates_prefix(key: Key) -> Prefix:
    """The prefix of the updates since the compacted state."""
    return f"{key}/{RESERVED}/update"


def overlaps_prefix(key: Key) -> Prefix:
    """The prefix of the reports of regions that several agents edited at once."""
    return f"{key}/{RESERVED}/overlap"


def check_document(key: Key) -> Key:
    """Return `key` if a document can be there. Errors: InvalidRequest, LimitExceeded."""
    # The keys of its parts have to fit as well: a document must not fail later for its name.
    check_key(check_key(key) + f"/{RESERVED}/part/{0:016}-{0:08}/{0:04}")
    return key


def _key_above(path: str, segment: str) -> Key | None:
    """The part of `path` (a key or prefix) above the reserved `segment`; None without it."""
    key, found, rest = path.partition(f"/{segment}")
    return key if found and (not rest or rest.startswith("/")) else None


def document_of(path: str) -> Key | None:
    """The key of the document that `path` (a key or prefix) belongs to; None if to none."""
    return _key_above(path, RESERVED)


# --- files ----------------------------------------------------------------------------------------
# A value that is too large for one entry. The file at key K consists of ordinary entries, too.
#
#     K/~file/info             {"sha256": hex, "size_bytes": n, "media_type": ..., "parts": id}
#     K/~file/part/<id>/<i>    its bytes, LARGE_PART_BYTES in each part but the last
#     K/~file/upload           {"parts": id}: a file whose parts are being put, or were once
#
# Invariants
# - `info` appears in the commit that removes `upload`, once all parts are there; the same commit
#   removes the parts of the file that it replaces.
# - A part is put only while `upload` names its id: another upload of the same file ends this one.

FILE = "~file"
"""The segment below which a file lies."""


def file_prefix(key: Key) -> Prefix:
    """The prefix below which all of the file at `key` lies."""
    return f"{key}/{FILE}"


def file_info_key(key: Key) -> Key:
    """The entry that says what file is at `key`."""
    return f"{key}/{FILE}/info"


def upload_key(key: Key) -> Key:
    """The entry that says whose parts are being put."""
    return f"{key}/{FILE}/upload"


def file_parts_prefix(key: Key, upload: str) -> Prefix:
    """The prefix of the parts of one upload."""
    return f"{key}/{FILE}/part/{upload}"


def check_file(key: Key) -> Key:
    """Return `key` if a file can be there. Errors: InvalidRequest, LimitExceeded."""
    check_key(check_key(key) + f"/{FILE}/part/{0:016}/{0:04}")
    return key


def file_of(path: str) -> Key | None:
    """The key of the file that `path` (a key or prefix) belongs to; None if to none."""
    return _key_above(path, FILE)


# --- workspaces -----------------------------------------------------------------------------------
# The keys of a workspace at key K:
#
#     K/~tree/head            which tree the files are, as of the last snapshot
#     K/~tree/object/<id>     the parts of files, the leaves of the tree, and its root
#     K/~tree/upload          while a snapshot takes more than one commit: who puts its objects

TREE: Final = "~tree"
"""The segment below which the files of a workspace lie."""


def tree_prefix(key: Key) -> Prefix:
    """The prefix below which all of the workspace at `key` lies."""
    return f"{key}/{TREE}"


def tree_head_key(key: Key) -> Key:
    """The entry that says which tree the present snapshot is."""
    return f"{key}/{TREE}/head"


def tree_upload_key(key: Key) -> Key:
    """The entry that says that objects are being put."""
    return f"{key}/{TREE}/upload"


def tree_objects_prefix(key: Key) -> Prefix:
    """The prefix of the objects."""
    return f"{key}/{TREE}/object"


def check_tree(key: Key) -> Key:
    """Return `key` if a workspace can be there. Errors: InvalidRequest, LimitExceeded."""
    check_key(check_key(key) + f"/{TREE}/object/{0:064}")
    return key


def tree_of(path: str) -> Key | None:
    """The key of the workspace that `path` (a key or prefix) belongs to; None if to none."""
    return _key_above(path, TREE)
