"""The archive's tables, in SQLite and in PostgreSQL.

Invariants
- `version` has a row for each key and each revision that changed it. The content of a board at
  revision r is the newest version of each key up to r, without removals. `position` orders the
  changes of one commit.
- `content` holds a value plain, deflated, or as the hash of a blob; or it says where in the log of
  the board the value lies (`form`).
- `total` holds each namespace's sum (core/digest.py) at the board's newest archived revision;
  `digest` has rows for the namespaces that changed up to the end of an append, a checkpoint, or the
  beginning of a board or of what pruning left of it; `ArchivedHistory.digests` computes those in
  between.
- `board.id` is never reused: a later board of the same name has another one.

Names sort by their bytes everywhere (COLLATE "C"), as they do in Python and in the engines.
"""

import re
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    TypeDecorator,
)

ABSENT: Final = 0
"""Forms of a version's content: the key was removed,"""
PLAIN: Final = 1
"""the encoded value,"""
DEFLATED: Final = 2
"""the encoded value, compressed by zlib,"""
BLOB: Final = 3
"""the SHA-256 of the encoded value, which lies in the object store,"""
LOGGED: Final = 4
"""or its SHA-256, and where it lies in the row of its commit, in the log of an embedded board
(archive/rows.py)."""

METADATA: Final = MetaData()
# In the order of bytes, as keys are everywhere. That is what SQLite does by itself.
_NAME: Final = String().with_variant(String(collation="C"), "postgresql")
_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")
# Of the characters that Unicode reserves for use inside of programs.
_MARK: Final = "\ufdd0"
_MARKED: Final = re.compile(f"{_MARK}([01])")


class TextWithNul(TypeDecorator[str]):
    """Text in PostgreSQL, which keeps every character but NUL: that one is stored as two others.

    `add` (archive/database.py) gives values to the driver as they are, so call `stored` before.
    """

    impl = String
    cache_ok = True

    @staticmethod
    def stored(text: str) -> str:
        """How `text` is stored."""
        return text.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0")

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        """As SQLAlchemy wants it: how a value is stored."""
        return None if value is None else self.stored(value)

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        """As SQLAlchemy wants it: the inverse."""
        if value is None or _MARK not in value:
            return value
        return _MARKED.sub(lambda found: "\0" if found[1] == "0" else _MARK, value)


def _key(name: str, kind: Any = _NUMBER) -> "Column[Any]":
    return Column(name, kind, primary_key=True, autoincrement=False)


def _must(name: str, kind: Any = _NUMBER) -> "Column[Any]":
    return Column(name, kind, nullable=False)


BOARD: Final = Table(
    "board",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", _NAME, unique=True),  # NULL: another board has the name now
    _must("called", _NAME),  # the name that it was made with
    Column("oldest", _NUMBER),  # NULL, with the next two: not joined yet
    Column("through", _NUMBER),
    Column("chain", LargeBinary),
    Column("origin", Integer),
    Column("origin_revision", _NUMBER),
    _must("continues", Boolean),  # the origin is this board, before its engine lost revisions
    Column("owner", String),
    _must("fence"),
    _must("until_ms"),
    # No id is used again: what refers to a removed row, or caches it, must not fit a new one.
    sqlite_autoincrement=True,
)

VERSION: Final = Table(
    "version",
    METADATA,
    _must("board", Integer),
    _must("revision"),
    _must("position", Integer),
    _must("key", _NAME),
    _must("form", SmallInteger),
    Column("content", LargeBinary),
    _must("create_revision"),
    _must("author", _NAME),
    _must("time_ms"),
    Column("expires_at_ms", _NUMBER),
    Column("item", _NUMBER),
    Column("first_ms", _NUMBER),
)
# Ordinary indexes on an ordinary table: SQLite keeps a kilobyte inside a row, but not inside a
# primary key.
VERSION_BY_KEY: Final = Index(
    "version_by_key", VERSION.c.board, VERSION.c.key, VERSION.c.revision, unique=True
)
VERSION_BY_REVISION: Final = Index(
    "version_by_revision", VERSION.c.board, VERSION.c.revision, VERSION.c.position
)

COMMIT: Final = Table(
    "commit_log",
    METADATA,
    _key("board", Integer),
    _key("revision"),
    _must("time_ms"),
    _must("agent", _NAME),
    _must("lane", SmallInteger),
    _must("incarnation", String),
    _must("step"),
    _must("note", String().with_variant(TextWithNul(), "postgresql")),
    _must("digest", LargeBinary),
    _must("chain", LargeBinary),
    _must("cost", Integer),  # about its bytes, to cut pages by
    Column("details", LargeBinary),  # grounds, results, changes of leases
    sqlite_with_rowid=False,
)

COMMIT_BY_AGENT: Final = Index("commit_by_agent", COMMIT.c.board, COMMIT.c.agent, COMMIT.c.revision)

EPOCH: Final = Table(
    "epoch",
    METADATA,
    _key("board", Integer),
    _key("revision"),
    _must("number"),
    _must("id", String),
    _must("cause", String),
    _must("from_revision"),
    sqlite_with_rowid=False,
)

TOTAL: Final = Table(
    "total",
    METADATA,
    _key("board", Integer),
    _key("namespace", _NAME),
    _must("total", LargeBinary),
    sqlite_with_rowid=False,
)

DIGEST: Final = Table(
    "digest",
    METADATA,
    _key("board", Integer),
    _key("namespace", _NAME),
    _key("revision"),
    _must("digest", LargeBinary),
    sqlite_with_rowid=False,
)

AGENT: Final = Table(
    "agent",
    METADATA,
    _key("board", Integer),
    _key("agent", _NAME),
    _must("revision"),
    _must("incarnation", String),
    _must("lane", SmallInteger),
    _must("step"),
    sqlite_with_rowid=False,
)

CHECKPOINT: Final = Table(
    "checkpoint",
    METADATA,
    _key("board", Integer),
    _key("revision"),
    _key("name", _NAME),
    _must("time_ms"),
    _must("kind", String),
    _must("manifest", LargeBinary),  # packed; empty once it was removed
    _must("signature", LargeBinary),
    _must("hash", LargeBinary),
    _must("pinned", Boolean),
    sqlite_with_rowid=False,
)

COUNTER: Final = Table(
    "counter",
    METADATA,
    _key("board", Integer),
    _key("prefix", _NAME),
    _must("next"),
    sqlite_with_rowid=False,
)
"""Counters of `append` that cannot be derived from the versions."""

KEPT: Final = Table(
    "kept",
    METADATA,
    _key("board", Integer),
    _key("revision"),
    sqlite_with_rowid=False,
)
"""Revisions below a board's `oldest` that stay readable."""

OF_A_BOARD: Final = (VERSION, COMMIT, EPOCH, TOTAL, DIGEST, AGENT, CHECKPOINT, COUNTER, KEPT)
"""Every table but BOARD: their rows go with the board."""
