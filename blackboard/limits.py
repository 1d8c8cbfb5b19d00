"""The one table of limits: what bounds everything that could grow, and why so much.

Two kinds stand apart. Constants in capitals belong to the format and the protocol: every process
that shares a board must agree on them, so nobody can change them. A few are defaults of arguments.
What one process may choose for itself is a field of `Limits`, one frozen value that is passed in:
`blackboard.open(limits=...)`, `connect(limits=...)`, `Service(limits=...)`. `DEFAULT` has what is
used otherwise:

    limits = replace(DEFAULT, client=replace(DEFAULT.client, merge_attempts_max=64))

An error names a limit in capitals, whichever kind it is. A limit that is not in this table does not
exist; each row says what it bounds, in which unit, and where the number comes from.
`tests/unit/test_limits.py` tests each of them at its edge.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

from blackboard.errors import InvalidRequest

# --- numbers --------------------------------------------------------------------------------------
REVISION_MAX: Final = 2**53 - 1
"""Largest revision: the last integer that Redis' Lua (a double) counts exactly."""
INTEGER_MAX: Final = 2**53 - 1
"""Largest magnitude that `increment` reaches, for the same reason."""
EPOCH_JUMP: Final = 2**24
"""Revisions skipped after a loss: more than any engine commits in a second. None is used twice."""
EPOCH_JUMP_PER_SECOND: Final = 2**17
"""Skipped in addition for each second since what is known: several times what a board takes in."""
EPOCH_SPREAD: Final = 2**34
"""Up to so many more are skipped where an engine can split in two: a primary and its replica."""

# --- telemetry ------------------------------------------------------------------------------------
TRACEPARENT_CHARACTERS_MAX: Final = 64
"""The trace context of a request: W3C Trace Context has 55. A longer one is ignored."""
TELEMETRY_QUEUE_MAX: Final = 2_048
"""Spans, and lines of the log, that wait for the collector; what does not fit is dropped."""
TELEMETRY_LOG_CHARACTERS_MAX: Final = 8_192
"""What is sent of one line of the log, and of its traceback."""
TELEMETRY_COMMITS_ONE_IN: Final = 1_000
"""Of commits in no trace, one in so many begins one. OTEL_TRACES_SAMPLER sets another rule."""
TELEMETRY_FLUSH_MS: Final = 2_000
"""How long a process that ends waits until what is left was sent to the collector."""

# --- keys -----------------------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 1024
"""A whole key. S3 and etcd users know this bound; it keeps an index entry in one cache page."""
SEGMENT_BYTES_MAX: Final = 128
"""One segment of a key, and any name (agent, board)."""
PATTERNS_MAX: Final = 64
"""Patterns in one list (a watch, a grant): matching costs time per change and pattern."""

# --- values and commits ---------------------------------------------------------------------------
VALUE_BYTES_MAX: Final = 1024 * 1024
"""One encoded value. Put larger artefacts into a blob store, and a reference here."""
VALUE_INLINE_BYTES_MAX: Final = 2048
"""Larger values go to Redis as separate arguments, because Lua hashes every string it makes."""
SEALED_SEARCH_MAX: Final = 4_096
"""Revisions after the encryption of a value in which its commit is distinguished from a copy."""
VALUE_DEPTH_MAX: Final = 64
"""Nesting of a value: decoders recurse, and no plan that people read is nested deeper."""
OPERATIONS_MAX: Final = 1024
"""Operations in one commit, conditions in one commit, and keys touched by one prefix operation.
Redis' Lua unpacks about 8,000 arguments; this stays far below, with room for several each."""
FENCES_MAX: Final = 64
"""Fences that one commit may rely on."""
BASED_ON_MAX: Final = 256
"""Reads that one commit may name as what it was based on."""
REQUEST_CHARACTERS_MAX: Final = 64
"""The id of a request for a checkpoint, a restore, a branch, an import or a redaction, by which a
repeated one is recognised: room for a UUID, or for the name of a step."""
NOTE_BYTES_MAX: Final = 1024
"""The free text of a commit, for people who read the log."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""One encoded commit with all its values."""
BATCH_COMMITS_MAX: Final = 256
"""Commits that share one engine call: 256 small ones keep a Redis script near 5 ms."""
LOG_AHEAD_ROWS_MAX: Final = 8_192
"""Rows of an embedded board's log that its tables do not follow yet: half a second to apply."""
LOG_AHEAD_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of these rows: two of the largest restores."""
TTL_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
"""Longest time to live of an entry or a lease: ten years, so that sums stay exact integers."""
LEASE_TTL_MS_MIN: Final = 100
"""Shortest lease: a shorter one cannot be renewed in time over a network."""
LEASE_TTL_MS: Final = 10_000
"""Default time to live of the leases of a block: how long a dead process goes unnoticed, and how
long a service may be away before its holders lose them."""
LANES_MAX: Final = 64
"""Commits that one agent may have in flight at once; each lane keeps one answer for retries."""

# --- boards ---------------------------------------------------------------------------------------
BOARD_KEYS_MAX: Final = 2_000_000
"""Live keys of a board: one Redis slot, one core, one in-memory index."""
BOARD_BYTES_MAX: Final = 4 * 1024**3
"""Sum of live keys and values of a board."""
NAMESPACE_KEYS_MAX: Final = 1_000_000
"""Live keys of one namespace, so that no agent can fill a board alone."""
NAMESPACE_BYTES_MAX: Final = 2 * 1024**3
"""Sum of live keys and values of one namespace."""
ACCOUNT_KEYS_MAX: Final = 3 * NAMESPACE_KEYS_MAX // 4
"""Live keys of a board that one account wrote last; others can still write in any namespace."""
ACCOUNT_BYTES_MAX: Final = 3 * NAMESPACE_BYTES_MAX // 4
"""The same in bytes."""
ACCOUNT_INBOX_KEYS_MAX: Final = 65_536
"""Messages of one account in all inboxes of a board together: more than anybody reads."""
ACCOUNT_INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same in bytes: 64 of the largest messages. Taking messages makes room."""
LEASES_MAX: Final = 4_096
"""Leases of one board, including expired ones until they are released or granted again."""
LEASES_ORDINARY_MAX: Final = 3 * LEASES_MAX // 4
"""Leases of one board other than agents' identities, for which the rest is reserved."""
LEASES_PER_ACCOUNT_MAX: Final = LEASES_MAX // 2
"""Leases of one board that one account holds or waits for; a thousand are left for others."""
LEASE_WAITERS_MAX: Final = 256
"""Holders in the queue of one lease: each change of a lease is logged with its whole queue."""
LEASE_WAITERS_PER_ACCOUNT_MAX: Final = LEASE_WAITERS_MAX // 2
"""Waiters of one account in one queue, so that half of it is left for others."""
CLAIM_TRIES_MAX: Final = 5
"""Default number of attempts at a claimed entry before it becomes a dead letter."""
RESTORE_CHANGES_MAX: Final = 65_536
"""Keys that one restore changes, while other commits wait. A branch has no such limit."""
RESTORE_BYTES_MAX: Final = 68 * 1024 * 1024
"""One encoded restore with all the values that it puts back: the largest file or kept value, and
another commit's worth of changes (LARGE_BYTES_MAX + COMMIT_BYTES_MAX)."""
RESYNC_BYTES: Final = 4 * 1024 * 1024
"""If a restore changes more than this for a watcher, the watcher has to read the state again."""
HOLD_MS_MAX: Final = 2_000
"""Longest time for which a restore delays other commits, even if its process dies."""
BARRIER_MS_MAX: Final = 600_000
"""Longest time that a checkpoint waits for the agents' state: an agent thinks for minutes."""
BARRIER_GRACE_MS: Final = 5_000
"""How long a barrier outlives its timeout if its service died."""
FROZEN_WAIT_MS_MAX: Final = 86_400_000
"""Longest time that a commit waits for the thaw of its board: a working day and a night."""
CHECKPOINTS_MAX: Final = 10_000
"""Checkpoints of one board; pruning makes room. A restore takes one all the same."""
CHECKPOINTS_PAGE_MAX: Final = 1_024
"""Checkpoints of one page of their list."""
DIFF_KEYS_MAX: Final = 10_000
"""Keys that one `Board.diff` collects; `differences` goes through any number, page by page."""
TEXT_DIFF_LINES_MAX: Final = 2_000
"""Lines of a text that is compared line by line, which takes quadratic time."""
TABLE_ROWS_MAX: Final = 100
"""Rows of a table in a notebook: a screen or two, which stays small in the saved file."""
TABLE_CELL_CHARACTERS_MAX: Final = 500
"""Characters of one cell of such a table."""
HISTORY_VERSIONS_MAX: Final = 1_024
"""Versions of a key on one page of its history."""
FINDINGS_MAX: Final = 100
"""Findings that one `verify` reports; nobody reads more."""
COMMAND_PATIENCE_MS: Final = 5_000
"""Time after which a command reports that its service does not answer: a person is waiting."""
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""One manifest: it has a digest per namespace, a line per agent, and the agents' declarations. A
checkpoint that would have a larger one is refused, except the one before a restore."""
EXPORT_ITEMS_MAX: Final = 100_000
"""Counters of lists that one export carries; they travel with its first page."""

# --- the archive ----------------------------------------------------------------------------------
BLOB_BYTES: Final = 64 * 1024
"""Larger values lie in the object store; the archive's database keeps their hash."""
ARCHIVE_WARM_BOARDS: Final = 16
"""Boards whose position the archiver keeps in memory; others cost it some queries each time."""
ARCHIVE_WARM_KEYS: Final = 8_192
"""Keys that the archiver remembers for each of them: about two megabytes."""
ARCHIVE_WARM_NAMESPACES: Final = 512
"""Namespaces whose sums the archiver remembers for each of them: a megabyte."""

# --- reading --------------------------------------------------------------------------------------
READ_KEYS_MAX: Final = 1024
"""Keys read at one revision by one request."""
LIST_ENTRIES_MAX: Final = 1024
"""Entries of one page of a listing, with its directories."""
DIRECTORY_KEYS_MAX: Final = 1_000
"""Keys that a listing counts in one directory; if there are more, it says so. Counting all would
make a page of the past cost as much as the board has keys."""
LOG_ENTRIES_MAX: Final = 1024
"""Log entries of one page of the log."""
ACTIVITY_PARTS_MAX: Final = 512
"""Parts of a span of revisions in which commits are counted: a screen has room for as many."""
ACTIVITY_AUTHORS_MAX: Final = 64
"""Agents whose commits are counted, the most active ones: nobody reads more lanes."""
ACTIVITY_LOG_MAX: Final = 8192
"""Log entries that are read to count what is not archived: a second of the fastest boards."""
REFUSALS_KEPT: Final = 256
"""Refused commits of a board that a process remembers, to show them: more than a person reads."""
REFUSAL_KEYS_MAX: Final = 64
"""Keys of a refused commit that are remembered, to decide which readers see it."""
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes after which a page of a listing or of the log ends (it holds at least one item)."""
PROOF_LEAVES_MAX: Final = 4096
"""Leaves (of 32 bytes each) of a revision with a proof: any step has fewer, large restores more."""

# --- connections ----------------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""One WebSocket message: the largest commit, in the more verbose of the two encodings."""
MESSAGE_FRAGMENTS_MAX: Final = 4096
"""WebSocket frames of one message: each is kept until the last one, and may be empty."""
MESSAGES_PER_FRAME_MAX: Final = 1024
"""Messages that share one frame."""
REQUESTS_IN_FLIGHT_MAX: Final = 1024
"""Unanswered requests per connection; the server then stops reading from that connection."""
WATCHES_PER_CONNECTION_MAX: Final = 256
"""Watches of one connection."""
STRANGER_BYTES_MAX: Final = 128 * 1024
"""Bytes that a connection may send before it has shown a valid token, of a few kilobytes."""
REQUEST_HEAD_BYTES_MAX: Final = 32 * 1024
"""The request line and headers of one HTTP request: a token of 8 KiB at most, and cookies."""
REQUEST_HEADERS_MAX: Final = 128
"""Headers of one HTTP request, each many times its bytes in memory: browsers send twenty."""
PAGE_LINK_TTL_MS: Final = 3_600_000
"""How long the link in the banner of a service lets its operator in, once."""
PAGE_TOKEN_TTL_MS: Final = 12 * 3_600_000
"""The token that this link is exchanged for: a working day, then the page asks for another."""

# --- rates and load -------------------------------------------------------------------------------
RATE_BURST_MS: Final = 2_000
"""Burst of an idle principal, as time at its rate: a team that starts sends unevenly."""
LOG_BYTES_PER_ACCOUNT_MAX: Final = 16 * 1024**3
"""Bytes by which commits of one account (unless it is an admin of everything) may let the logs of a
service process grow in an hour: several times what a busy team writes, and no account fills a disk,
or drives others' revisions out of the log, overnight."""
DRAIN_DELAY_MS_MAX: Final = 60_000
"""How long a stopping service may be set to serve on while it says that it is not ready: balancers
ask every few seconds, and what ends processes (Kubernetes, systemd) seldom waits longer."""

# --- access ---------------------------------------------------------------------------------------
NARROWINGS_MAX: Final = 8
"""Times that a token can be narrowed: enough for sub-agents of sub-agents."""

# --- audit ----------------------------------------------------------------------------------------
AUDIT_KEPT_MS: Final = 90 * 24 * 3600 * 1000
"""Time for which an audit record is kept; export them to keep them longer."""
AUDIT_PRUNE_INTERVAL_MS: Final = 24 * 3600 * 1000
"""Time between two prunings of the archived audit, in each process, as one reads all of it: the
archive keeps a record for a day longer than the engine, at most."""

# --- documents ------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The encoded state of one document with deleted parts: loading it takes half a second."""
DOCUMENT_UPDATE_BYTES_MAX: Final = 3 * 1024 * 1024
"""One update of a document: it fits into one commit, split into values."""
OVERLAP_TTL_MS: Final = 3600 * 1000
"""How long the report of an overlap of two edits is kept: a watcher sees it soon."""
OVERLAP_CLIENTS_MAX: Final = 64
"""Authors named in one such report."""
AWARENESS_STATES_MAX: Final = 512
"""Clients of a document in one awareness message: one for each connection."""
AWARENESS_BYTES_MAX: Final = 16 * 1024
"""The awareness state of one client: a name, a colour, a selection."""
TOKEN_TTL_MS: Final = 3600 * 1000
"""Default validity of a token from `Client.token`: an hour, as of the command line's."""
TOKEN_TTL_MS_MAX: Final = 366 * 24 * 3600 * 1000
"""Longest validity of one: revocations of tokens of unknown validity are kept as long."""
DOCUMENT_TOKEN_TTL_MS_MAX: Final = 3600 * 1000
"""Longest life of a token in a URL, where logs and histories may store it."""

# --- running agents -------------------------------------------------------------------------------
AGENT_GRACE_MS: Final = 10_000
"""Time that a running step gets to finish when its agent is stopped."""
AGENT_CRASHES_MAX: Final = 5
"""Crashes of an agent without a step in between, after which it is not restarted."""
AGENT_PAUSE_MS: Final = 200
"""Pause before a crashed agent is restarted; it doubles with each further crash."""
AGENT_PAUSE_MS_MAX: Final = 30_000
"""Longest such pause: how long an agent stays away after an external fault was repaired."""
AGENT_ERROR_BYTES_MAX: Final = 2_048
"""The text of an agent's error that is recorded on the board."""

# --- models and memory ----------------------------------------------------------------------------
MODEL_TIMEOUT_MS: Final = 120_000
"""One attempt to get an answer of a model: long answers of slow models take a minute."""
MODEL_ATTEMPTS_MAX: Final = 4
"""Attempts to get one answer of a model: rate limits and restarts pass, other faults do not."""
TRANSCRIPT_TURN_BYTES_MAX: Final = 256 * 1024
"""Text of one turn of a transcript. Put a longer text into an entry, and refer to it."""
TRANSCRIPT_PAGE_TURNS_MAX: Final = 256
"""Turns of one page of archived turns: one commit makes the page and removes the turns."""
TRANSCRIPT_PAGE_BYTES_MAX: Final = 512 * 1024
"""Text of one page of archived turns, so that it fits into one value in every encoding."""
WINDOW_TURNS_MAX: Final = 1_024
"""Turns of a sliding window: what one page of a listing holds."""
MEMORY_TEXT_BYTES_MAX: Final = 64 * 1024
"""Text of one memory, and of a question: models embed a few thousand words, and ignore the rest."""
MEMORY_RESULTS_MAX: Final = 256
"""Memories that one search returns: more than fits into a prompt."""
MEMORY_FILTER_FACTS_MAX: Final = 32
"""Members of a fact that one filter compares: each is a look into an index."""
MEMORY_CALL_MS_MAX: Final = 120_000
"""Longest time that a memory waits for the function that embeds or summarises: as for a model."""
EMBED_TEXTS_MAX: Final = 256
"""Texts embedded by one call: services accept so many, and one commit holds their vectors."""
EMBEDDING_DIMENSIONS_MAX: Final = 4_096
"""Numbers of one embedding: 16 KiB. The largest of common models have 3,072 or 4,096."""

# --- agents ---------------------------------------------------------------------------------------
STEP_CALLS_MAX: Final = 256
"""Calls that one step of an agent makes, of up to three entries: one operation removes them all."""
CALL_INLINE_BYTES: Final = 64 * 1024
"""A larger result of a call is stored in a separate entry, beside the record of the call."""
LARGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One file, one result of a call, or one value that an agent keeps: a process can hold it at once,
and one restore can bring it back (RESTORE_BYTES_MAX). Above VALUE_BYTES_MAX a value is stored in
parts."""
LARGE_PART_BYTES: Final = 512 * 1024
"""One part of a large value: several fit into one commit, which hardly delays others."""
WORKSPACE_ENTRIES_MAX: Final = 250_000
"""Files, links and directories of a workspace: with their parts and leaves a third of what one
namespace holds, and listing them again takes about two seconds."""
WORKSPACE_BYTES_MAX: Final = 1024**3
"""Bytes of the files of a workspace: half of what one namespace holds, so that a snapshot in which
everything changed has room beside the one before it."""
WORKSPACE_PATH_BYTES_MAX: Final = 4_096
"""A path within a workspace, and the target of a link in it: PATH_MAX of Linux."""
WORKSPACE_READS_MAX: Final = 3
"""Times that a file is read which changes meanwhile, before the snapshot is refused."""
UNSAVED_PATHS_MAX: Final = 20
"""Paths that one refusal of a restore names: as many as a person reads."""
STEP_PARTS_MAX: Final = 192
"""Parts of large values in one step: together with STEP_CALLS_MAX calls, one operation still
removes its whole journal (OPERATIONS_MAX)."""
CALL_ATTEMPTS_MAX: Final = 32
"""Attempts at one call: each failed one is a line of its record."""
CALL_PAUSE_MS_MAX: Final = 60_000
"""Longest pause between two attempts at a call; for longer outages, use a new step."""
CALL_REASON_BYTES_MAX: Final = 1_024
"""The stored part of an error's text: enough to understand it, but not a page of HTML."""
APPROVAL_FACTS_MAX: Final = 64
"""Facts of one request for approval: more than a person checks."""
INBOX_TAKE_MAX: Final = 64
"""Messages that a step takes from its inbox at once: each is a condition of its commit."""

# --- engines --------------------------------------------------------------------------------------
HANDOVER_BYTES_MAX: Final = 512 * 1024
"""Bytes of own commits that a service keeps for its reader of a board's log over Redis. When the
reader falls further behind, it reads the log."""
HANDOVER_WAIT_MS: Final = 20
"""Time that a reader of the log over Redis waits for the answer to a commit of its own process."""
REPLICAS_MAX: Final = 16
"""Replicas for which an answer can wait."""
STEP_ATTEMPTS_MAX: Final = 5
"""Default number of times that `Board.run_step` runs a step whose reads went stale."""

# --- what one process chooses for itself ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitGroup:
    """The limits that one part of the package has. Errors: InvalidRequest naming the field."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(f"limits.{one.name}", getattr(self, one.name))


def _check(name: str, value: Any) -> None:
    """A time or a part may be 0 (at once, nothing), everything else must be at least 1."""
    if isinstance(value, LimitGroup):
        return
    if isinstance(value, tuple):
        if not value:
            raise InvalidRequest(name, "at least one number is needed")
        for each in value:
            _check(name, each)
        return
    lowest = 0 if name.endswith(("_ms", "_percent")) else 1
    if type(value) is not int or not lowest <= value <= INTEGER_MAX:
        raise InvalidRequest(name, f"{value!r} is not a whole number in {lowest}..{INTEGER_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits(LimitGroup):
    """What a client waits for, and how often it tries."""

    finish_timeout_ms: int = 5_000
    """Time that a cancelled task waits for a release (or another commit that must finish)."""
    connect_wait_ms: int = 10_000
    """Time that the first connection of a client waits for a service that is being started."""
    commit_timeout_ms: int = 30_000
    """Time for which a commit is sent again until its outcome is known."""
    long_request_timeout_ms: int = 600_000
    """Time after which a client stops waiting for an operation on a whole board, as a branch."""
    merge_attempts_max: int = 16
    """Times that a `merge` is computed again because its key changed in between."""
    deliveries_max: int = 3
    """Times that one commit is preceded by a delivery of the agent for a checkpoint."""
    renewals_per_ttl: int = 3
    """Renewals in one time to live: two may fail before a holder loses its lease."""
    take_over_attempts_max: int = 8
    """Attempts to take over an identity that keeps changing hands."""
    claim_look_entries: int = 64
    """Entries of a page in which a claimer looks for a free one: more than a team works on."""
    claim_take_attempts_max: int = 4
    """Times that a claimer tries an entry whose attempts are just being counted."""
    memories_max: int = 250_000
    """Memories of one store that a process searches: about half a gigabyte with vectors of 384
    numbers. Beyond it a search is refused; `consolidate` makes room."""
    memory_search_attempts_max: int = 4
    """Times that a search is repeated because what it found changed before it was read."""
    awareness_renew_ms: int = 15_000
    """How often a replica repeats its awareness state: half of AWARENESS_TTL_MS."""
    commit_pauses_ms: tuple[int, ...] = (10, 30, 100, 300, 1_000)
    """Pauses between attempts at a commit; the last one repeats. Each is shortened at random by up
    to half, so that clients that failed together do not come back together."""
    connect_pauses_ms: tuple[int, ...] = (0, 50, 200, 500, 1_000, 2_000, 5_000)
    """Pauses before connecting again; the last one repeats, and each is shortened at random."""
    token_refresh_percent: int = 75
    """Part of a token's life after which it is refreshed, if there is a source of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits(LimitGroup):
    """What a service keeps of each board."""

    log_kept_revisions: int = 1_000_000
    """Log entries kept before the oldest are compacted away."""
    boards_max: int = 16_384
    """Boards on one engine. All of them are listed when another one begins."""
    boards_open_max: int = 4096
    """Boards in use in one process: each has an index, a queue and a feed."""
    boards_unused_max: int = 64
    """Boards beyond which those that nobody uses are closed. The embedded engine keeps twice as
    many, with four files each: that fits into 1,024 files."""
    boards_unused_ms: int = 5_000
    """Time for which the engine keeps an unused board beyond those, while files are not scarce."""
    boards_cache_bytes: int = 1024 * 1024 * 1024
    """Memory for the entries of open boards; those not used lately are read again when needed."""
    boards_whole_keys: int = 16_384
    """Entries up to which a board is read whole when it is opened, in a tenth of a second."""
    tablet_keys_max: int = 256
    """Entries of a tablet, which are read and checked together; above it, it is cut into halves."""
    tablet_bytes_max: int = 1024 * 1024
    """Bytes of the keys and values of a tablet, in the same way, unless one entry has more."""
    boards_per_principal_max: int = 256
    """Boards that one principal can have in use in one process, unless it may act for others."""
    boards_per_account_max: int = 256
    """Boards that one account began and that were not removed, in every process and for good."""
    sweep_interval_ms: int = 1_000
    """Time between two searches for expired entries, which may live longer by this."""
    sweep_entries_max: int = 512
    """Expired entries of one board that one sweep removes, a commit each."""
    engine_check_interval_ms: int = 60_000
    """Time between two checks of the engine's settings, and of the length of each log."""
    known_heads_interval_ms: int = 1_000
    """Pause between two writes of the known heads: so much an older copy may be newer than them."""
    known_heads_max: int = 2 * boards_max
    """Boards in the file of known heads, with removed ones: two megabytes. The oldest go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLimits(LimitGroup):
    """How commits wait for their engine."""

    batch_bytes_max: int = 1024 * 1024
    """Bytes after which a batch takes no further commit (one commit may exceed it alone)."""
    calls_in_flight_max: int = 2
    """Engine calls of one board in flight: one waits for the disk, the next is being decided."""
    commits_queued_max: int = 8192
    """Commits waiting for one board's engine in one process; then new ones are refused."""
    backlog_bytes_max: int = 256 * 1024 * 1024
    """Bytes of commits waiting in one process, for all boards; then new ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits(LimitGroup):
    """When a service delays or refuses work, because there is too much of it."""

    loop_lag_ms_max: int = 1_000
    """How late the event loop may be in three consecutive measurements before requests are refused:
    a renewal of the shortest usual lease is then still answered in time."""
    loop_look_ms: int = 250
    """Time between two such measurements."""
    overload_retry_ms: int = 1_000
    """When a client that was refused for overload should try again: several measurements later."""
    round_us: int = 500
    """Work per round of the event loop while accounts share it: long compared with the 20 us that a
    round costs, short compared with the few milliseconds in which a commit is answered."""
    full_round_us: int = 4 * round_us
    """The same with the first work of further accounts: many with little work need not queue."""
    lone_round_us: int = 10_000
    """Work per round for an account that is alone. A second account waits that long, once."""
    shared_ms: int = 250
    """How long an account counts as active after a request."""
    rate_pause_ms_max: int = 1_000
    """Longest time for which a connection that exceeded its rate is not read: its messages then
    wait with the sender, and a ping is still answered in time."""
    meters_max: int = 8_192
    """Principals whose rates one process tracks; above it, the least active are forgotten."""
    credit_ms_max: int = 250
    """Processor time that an account may use at once after it was idle: a large comparison."""
    debt_ms_max: int = 1_000
    """Largest debt of an account, in processor time. Use beyond it is forgiven, so that even a
    request of minutes delays the next read by DEBT_WAIT_MS_MAX at most."""
    debt_wait_ms_max: int = 10_000
    """Longest wait of a read of an account in debt, while other accounts are active; a read that
    would wait longer is refused. A client waits three times as long (REQUEST_TIMEOUT_MS)."""
    debt_pause_ms_max: int = 1_000
    """Longest time, in all, for which a read of an account in debt is held up after it began,
    because it may hold a snapshot of the archive; and for which a watch's delivery is held up."""
    accounts_named_max: int = 16
    """Accounts that the statistics of charges name: those that were charged most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits(LimitGroup):
    """How a service keeps the archive of its boards up to date."""

    archive_lease_ms: int = 10_000
    """Time after which another process continues for an archiver that does not respond."""
    archive_wait_ms: int = 10_000
    """Longest time for which a caller waits until the archive has reached a revision."""
    archive_lag_ms_max: int = 60_000
    """Age of an unarchived commit above which `doctor` warns: many times the usual delay."""
    archive_retry_ms: int = 5_000
    """Longest pause between two attempts to reach an unavailable archive."""
    archive_idle_ms: int = 1_000
    """Time between two reads of the log of a board to which this process commits nothing."""
    archive_pause_ms: int = 500
    """Pause after an append that caught up and for which nobody waits, so that many commits share a
    transaction: its cost hardly depends on its size."""
    archive_rest_ms: int = 1_000
    """Longest time for which an archiver starts no append because commits wait for a restore."""
    archive_step_pause_ms: int = 1
    """Pause between two steps of an append, each of about a millisecond, which leaves half of the
    time to commits. None while somebody waits for the archive, or while it is a page behind."""
    archive_copy_bytes_max: int = 511
    """Size up to which the archive of an embedded engine copies values. Larger ones stay in the log
    of the board, where it reads them: for small ones that saves little and takes longer."""
    archive_page_entries: int = 1_024
    """Log entries archived in one transaction."""
    archive_process_entries: int = 256
    """So many entries of a board to archive at once start a process that writes the archive."""
    blob_calls_max: int = 16
    """Blobs that one process reads or writes concurrently."""
    blob_grace_ms: int = 3_600_000
    """Age at which an unreferenced blob is removed: no writer takes an hour to refer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupLimits(LimitGroup):
    """How a backup follows the boards of a service."""

    backup_interval_ms: int = 1_000
    """Pause between two rounds: with the archive's delay, what a lost machine may cost."""
    backup_start_ms: int = 5_000
    """How long a start waits for the backup, to compare the boards with it."""
    segment_bytes: int = 8 * 1024 * 1024
    """Size, before compression, from which on a file of a backup is ended: it is held in memory."""
    segments_merged: int = 16
    """Files of a size that are merged: a day makes some dozens for each board, not 86,400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLimits(LimitGroup):
    """What a service does at most to restore, recover, import and explain."""

    recover_wait_ms: int = 5_000
    """Time after which a recovery, during which its board is unavailable, reports its progress."""
    restore_attempts_max: int = 3
    """Attempts at a restore while others commit, before they have to wait for it."""
    restore_holds_max: int = 5
    """Times that a restore makes others wait before it gives up."""
    restore_large_changes: int = 4_097
    """Changes from which a restore takes long to encode: other commits wait for it at once."""
    restore_kept_ms: int = 24 * 3600 * 1000
    """Time for which the answer to a restore is kept, so that a retry of it is recognised."""
    imports_max: int = 4
    """Concurrent imports in one service process: each holds a page in memory."""
    import_idle_ms: int = 30_000
    """Time after which an import is given up if its next page does not come."""
    why_depth_max: int = 32
    """Steps that `why` follows back: a longer chain explains nothing to a person."""
    why_commits_max: int = 256
    """Commits that one `why` visits in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimits(LimitGroup):
    """What a service keeps of the documents that are open in it."""

    documents_max: int = 1024
    """Documents that one service process has open."""
    document_sessions_max: int = 512
    """Connections to one document in one service process: each gets every update."""
    document_tail_updates: int = 256
    """Updates of a document after which they are compacted into its base: a quarter of what one
    commit can delete, and loading a document stays a matter of milliseconds."""
    document_tail_bytes: int = 32 * 1024
    """The same in bytes, if that is also an eighth of the base: concurrent edits share an update,
    and reading a thousand edits takes as long in few updates as in many."""
    overlap_reports_max: int = 256
    """Reports of overlaps that a document has at once: one commit must be able to delete it."""
    compaction_delay_ms: int = 200
    """Longest pause before a compaction, drawn at random: of several processes one is first."""
    last_compaction_ms: int = 1_000
    """Time that a compaction has left when nobody uses its document any more."""
    awareness_ttl_ms: int = 30 * 1000
    """Time after which a silent client of another process counts as gone, as in y-protocols."""
    awareness_per_session_max: int = 16
    """Awareness states of one connection. An unmodified client has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityLimits(LimitGroup):
    """What a service records of refusals, and how much it keeps of what it refuses."""

    audit_queue_max: int = 10_000
    """Audit records of one process that wait to be written; further ones are only counted."""
    audit_window_ms: int = 60_000
    """Refusals that repeat within this time are only counted: a flood must not fill the disk."""
    audit_alike_max: int = 16
    """Refusals of one principal by one method that are recorded one by one in AUDIT_WINDOW_MS."""
    audit_refusals_max: int = 128
    """Refusals of all that are recorded one by one in AUDIT_WINDOW_MS."""
    audit_kinds_max: int = 64
    """Kinds of refusals (principal, token, method, board, outcome) that are counted separately."""
    audit_batch_max: int = 256
    """Audit records of one commit."""
    audit_retry_ms: int = 500
    """Pause before audit records that could not be written are written again."""
    revocations_max: int = 65_536
    """Tokens and principals that are revoked at once; a record ends when its token would have."""
    revocations_own_max: int = 32_768
    """Records at which a token that is no admin's can no longer revoke itself. The rest is kept for
    admins: a holder can narrow its token, and revoke what comes of it, as often as it likes."""
    access_stale_ms: int = 15_000
    """A process that could not read the record of revocations for this long refuses tokens."""
    revoked_ttl_ms: int = TOKEN_TTL_MS_MAX
    """Time for which a revoked token of unknown validity is remembered: the longest there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionLimits(LimitGroup):
    """What a service that encrypts keeps and waits for."""

    sealed_compared_max: int = 65_536
    """Encrypted values that a process remembers as compared with the log: 20 MiB."""
    seals_per_key_max: int = 2**28
    """Values that one process encrypts with one data key. NIST SP 800-38D allows 2**32 random
    nonces for a key; sixteen processes stay below."""
    key_command_timeout_ms: int = 30_000
    """Time that the command which prints the master key may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits(LimitGroup):
    """What one process of agents keeps in memory, and what it waits for."""

    team_agents_max: int = 1_024
    """Agents of one team in one process, including spawned ones, and entries of its roster."""
    recall_turns_max: int = 100_000
    """Archived turns that one process keeps searchable, the newest ones; about 100 MB of memory."""
    recall_results_max: int = 100
    """Turns that one search returns."""
    recall_words_max: int = 64
    """Words of a query that are searched for; a longer query is cut off."""
    model_pause_ms_max: int = 30_000
    """Longest pause between two attempts; if a service asks for a longer one, the call fails."""
    model_answer_bytes_max: int = 4 * 1024 * 1024
    """One answer of a model, over the wire: sixteen times the longest that models give."""
    step_pause_ms_max: int = 1_000
    """Longest pause before a step runs again after a conflict."""
    workspace_wait_ms: int = 2_000
    """How long a step waits for its directory: for what a killed process leaves to be ended."""
    command_timeout_ms: int = 120_000
    """Time after which a command of a step is stopped, unless the step gives another."""
    command_output_bytes_max: int = 1024 * 1024
    """What a command of a step may print: one value of the board, and more than a model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits(LimitGroup):
    """What a service asks of the servers behind it."""

    engine_timeout_ms: int = 5_000
    """One call to an engine, a database or an object store. A slower one counts as unavailable."""
    engine_retry_ms: int = 10_000
    """Time during which an engine call is retried before `Unavailable` (or `OutcomeUnknown`)."""
    replica_wait_ms: int = 100
    """How long an answer waits for replicas. A batch waits together, and is answered then in any
    case; the answer says whether they had it."""
    lock_master_timeout_ms: int = 150
    """One command to one lock master, including the connection, and never more than a twentieth of
    the lease: a hanging master delays nobody by a quarter of a second."""
    lock_master_calls_max: int = 16
    """Concurrent commands to each lock master, with a connection each; further ones wait, so that a
    burst does not use up the time of its own commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits(LimitGroup):
    """How long each end of a connection waits for the other."""

    request_timeout_ms: int = 30_000
    """Time after which a client stops waiting for an answer. On Linux it gives up a connection on
    which nothing that it sent is acknowledged for a third of that."""
    handshake_timeout_ms: int = 5_000
    """Time for the first message (`hello`) of a connection."""
    ping_interval_ms: int = 20_000
    """Idle time between two pings, and the time that a pong may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits(LimitGroup):
    """What a service accepts from all its connections, and what it keeps of them."""

    connections_max: int = 4096
    """Connections of one service process: a file descriptor and 70 KiB each."""
    connections_per_principal_max: int = 512
    """Connections of one principal to one service process."""
    strangers_max: int = 2048
    """Connections of any kind to one service process that have not shown a valid token. For one
    more, the oldest is closed: clients show theirs in the first message, so it is one that waits.
    """
    strangers_per_peer_max: int = 1024
    """The same for one address: all that a socket hands over at once may be behind one proxy."""
    ungreeted_max: int = 256
    """WebSockets among them that wait for a token in `hello`: each may send one frame."""
    ungreeted_per_peer_max: int = 128
    """The same of one address."""
    intake_bytes_max: int = 128 * 1024 * 1024
    """Bytes of incoming messages of all connections of one process: each is in memory up to four
    times until it has been processed. Above it, the account with the most loses a connection."""
    intake_account_bytes_max: int = intake_bytes_max // 4
    """The same for one principal and its narrowed tokens: four messages of the largest size. Above
    it, the newest of its own connections is closed, whatever others send."""
    intake_small_bytes: int = 16 * 1024
    """Incoming bytes below which a connection does not count: with CONNECTIONS_MAX of them that is
    half as much again, and nobody who sends little is ever disconnected for this."""
    reads_waiting_max: int = 64
    """Unanswered reads of one connection; then nothing more is read from it, because each read that
    waits for room for its answer takes memory."""
    outgoing_bytes_max: int = 8 * 1024 * 1024
    """Bytes waiting for one connection's socket before its watches and replies wait too."""
    send_timeout_ms: int = 30_000
    """Time a client may leave its socket full before its connection is closed."""
    close_timeout_ms: int = 5_000
    """Time that a peer has to answer the end of its connection."""
    drain_timeout_ms: int = 10_000
    """Time that a stopping service gives its connections to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits(LimitGroup):
    """What watches keep in memory, and what one delivery to them holds."""

    watch_queue_changes_max: int = 4096
    """Changes kept in memory per board for watchers; slower ones read the log instead."""
    watch_queue_bytes_max: int = 8 * 1024 * 1024
    """The same in bytes."""
    watches_max: int = 65_536
    """Watches of one service process, which keep about 3 KiB each."""
    watches_per_account_max: int = watches_max // 8
    """Those of them of one account: a team of a thousand agents has eight each."""
    watch_batch_revisions_max: int = 256
    """Revisions that share one frame to a watcher."""
    watch_batch_bytes_max: int = 256 * 1024
    """Bytes after which such a frame takes no further revision."""
    progress_interval_ms: int = 5_000
    """Idle time after which a watcher gets a progress mark."""
    progress_marks_per_s_max: int = 64
    """Progress marks of a board per second, so that thousands of idle watches cost nobody's
    commits; with more than 320 idle watchers, each gets its marks less often."""
    tail_wait_ms: int = 1_000
    """Time that a read of the log waits for an entry, and between looks for due progress marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(LimitGroup):
    """Every limit that one process may choose for itself, by the part that keeps it.

    Errors: InvalidRequest, naming the field, for a number that is out of range.
    """

    client: ClientLimits = field(default_factory=ClientLimits)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    service: ServiceLimits = field(default_factory=ServiceLimits)
    watch: WatchLimits = field(default_factory=WatchLimits)
    boards: BoardLimits = field(default_factory=BoardLimits)
    commits: CommitLimits = field(default_factory=CommitLimits)
    load: LoadLimits = field(default_factory=LoadLimits)
    archive: ArchiveLimits = field(default_factory=ArchiveLimits)
    backup: BackupLimits = field(default_factory=BackupLimits)
    checkpoints: CheckpointLimits = field(default_factory=CheckpointLimits)
    documents: DocumentLimits = field(default_factory=DocumentLimits)
    security: SecurityLimits = field(default_factory=SecurityLimits)
    engine: EngineLimits = field(default_factory=EngineLimits)
    encryption: EncryptionLimits = field(default_factory=EncryptionLimits)
    agents: AgentLimits = field(default_factory=AgentLimits)

    @property
    def open_files_max(self) -> int:
        """Files that one service process may have open: a connection is one; a board of the
        embedded engine is its file, two of the journal, and one to read the old log."""
        return self.service.connections_max + 4 * self.boards.boards_open_max + 256


DEFAULT: Final = Limits()
"""What is used unless other limits are passed in."""
