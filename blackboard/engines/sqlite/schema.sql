-- One board in one SQLite file. Twin of `State` in core/state.py, plus the log.
--
-- Invariants, in every committed transaction
-- * `log` and `epoch` together hold `head.oldest` .. the newest revision without a gap, but for the
--   revisions that an epoch of cause "engine" skipped. The newest is at least `head.log_end`, and
--   that at least the mark, `head.revision`. A restore has a row in `log`, and once the mark is
--   there, in `epoch`.
-- * the other tables hold the state that results from the log up to the mark, from its very
--   beginning. Single rows of `entry` and `tombstone` may be newer. The state of the board results
--   from applying the rest of the log to them (engines/sqlite/follower.py).
-- * `head.checksum` is the sum of the weights of the rows of all tables but `log`, whose rows have a
--   checksum each, and `entry`, whose weights add up in `tablet` (all in engines/sqlite/rows.py).
--   So flipped bits and pages of different transactions are detected.
-- * `tablet` and `usage` hold sums over the rows that `entry` has, newer ones than the mark included.
-- * `head.clean` is 0 while a process that does not sync has the file open.

CREATE TABLE head (
    board    TEXT    NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    time_ms  INTEGER NOT NULL,
    oldest   INTEGER NOT NULL,
    log_end  INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    clean    INTEGER NOT NULL
) WITHOUT ROWID;

-- The board's epochs. All are also entries of the log, but for one that is the board's first and has
-- revision 0; those of cause "restore" have their changes in table `log`.
CREATE TABLE epoch (
    revision      INTEGER PRIMARY KEY,
    time_ms       INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    cause         TEXT    NOT NULL,
    from_revision INTEGER NOT NULL
);

-- `body` and `digest` as wire/codec.py made them; `large` is NULL or a msgpack list of values.
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    time_ms  INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    large    BLOB,
    results  BLOB    NOT NULL,
    digest   BLOB    NOT NULL,
    checksum INTEGER NOT NULL
);

-- A value that its commit's row of `log` holds as it is lies there alone: `value` is empty then, and
-- `place` and `size` say which bytes of `body` followed by `large` it is, in the row of
-- `mod_revision`. Otherwise both are NULL.
-- With row ids: without them SQLite keeps at most a kilobyte of a row in place, and puts the rest
-- on a page of its own.
CREATE TABLE entry (
    key             TEXT    NOT NULL PRIMARY KEY,
    value           BLOB    NOT NULL,
    mod_revision    INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    author          TEXT    NOT NULL,
    time_ms         INTEGER NOT NULL,
    expires_at_ms   INTEGER,
    first_ms        INTEGER,
    place           INTEGER,
    size            INTEGER,
    weight          INTEGER
);

-- The values that lie in the log, in its order: they are moved before the log is cut.
CREATE INDEX entry_in_log ON entry (mod_revision) WHERE place IS NOT NULL;

-- The entries from `first_key` on, up to that of the next row: how many, the bytes of their keys and
-- values, their weight. None of them expires before `expires_at_ms`. The first row begins at ''.
CREATE TABLE tablet (
    first_key     TEXT    NOT NULL PRIMARY KEY,
    keys          INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    weight        INTEGER NOT NULL,
    expires_at_ms INTEGER
) WITHOUT ROWID;

-- `State.usage` over these rows.
CREATE TABLE usage (
    name  TEXT    NOT NULL PRIMARY KEY,
    keys  INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE tombstone (
    key      TEXT    NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    author   TEXT    NOT NULL
) WITHOUT ROWID;

-- `lease` is a msgpack list: holder, fence, ttl_ms, and of each in its queue holder and ttl_ms. Its
-- deadline is not stored. (The older form is the list of `to_result` in core/lease.py; such rows
-- are replaced when the board is loaded.)
CREATE TABLE lease (
    key   TEXT NOT NULL PRIMARY KEY,
    lease BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE next_item (
    prefix TEXT    NOT NULL PRIMARY KEY,
    item   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE answer (
    agent       TEXT    NOT NULL,
    lane        INTEGER NOT NULL,
    incarnation TEXT    NOT NULL,
    step        INTEGER NOT NULL,
    revision    INTEGER NOT NULL,
    time_ms     INTEGER NOT NULL,
    results     BLOB    NOT NULL,
    overwritten INTEGER NOT NULL,
    PRIMARY KEY (agent, lane)
) WITHOUT ROWID;
