"""The words every floor shares, and the one table of limits.

Nothing here has behaviour. A limit that is not in this table does not exist; each row says what it
bounds, in which unit, and where the number comes from. `tests/unit/test_limits.py` stands at the
edge of every one of them.
"""

from typing import Final

# Plain aliases: they document a signature and cost nothing at run time.
Revision = int
"""Position of one commit in a board's log; `1..REVISION_MAX`, and 0 before the first commit."""
Key = str
"""A path such as `public/plan/budget`; the grammar is in `core/path.py`."""
Prefix = str
"""A key path that stands for everything below it, written without a trailing slash."""
Fence = int
"""The revision at which a lease was granted. A commit names the fences that it relies on."""
Milliseconds = int
"""A duration, or an instant since the Unix epoch, in milliseconds. Names end in `_ms`."""

# --- numbers --------------------------------------------------------------------------------------
REVISION_MAX: Final = 2**53 - 1
"""Largest revision: the last integer that Redis' Lua (a double) counts exactly."""
INTEGER_MAX: Final = 2**53 - 1
"""Largest magnitude that `increment` reaches, for the same reason."""
EPOCH_JUMP: Final = 2**24
"""Revisions skipped when an engine came back and may have lost some: more than a second of commits
at any speed that an engine reaches, so that a lost revision is never issued again."""
EPOCH_SPREAD: Final = 2**34
"""Of so many more revisions a random number is skipped, where an engine can split in two (a primary
that comes back, and its replica that was promoted): neither issues the revisions of the other."""

# --- keys -----------------------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 1024
"""A whole key. S3 and etcd users know this bound; it keeps an index entry in one cache page."""
SEGMENT_BYTES_MAX: Final = 128
"""One segment of a key, and any name (agent, board)."""
PATTERNS_MAX: Final = 64
"""Patterns in one list (a watch, a grant): matching costs time per change and pattern."""

# --- values and commits ---------------------------------------------------------------------------
VALUE_BYTES_MAX: Final = 1024 * 1024
"""One encoded value. Larger artefacts belong into a blob store, by reference."""
VALUE_INLINE_BYTES_MAX: Final = 2048
"""Larger values travel to Redis as arguments of their own: Lua hashes every string it makes."""
VALUE_DEPTH_MAX: Final = 64
"""Nesting of a value: decoders recurse, and no plan that people read is deeper."""
OPERATIONS_MAX: Final = 1024
"""Operations in one commit, conditions in one commit, and keys touched by one prefix operation.
Redis' Lua unpacks about 8,000 arguments; this stays far below with room for each one's fields."""
FENCES_MAX: Final = 64
"""Fences that one commit may rely on."""
BASED_ON_MAX: Final = 256
"""Reads that one commit may name as its grounds."""
NOTE_BYTES_MAX: Final = 1024
"""The free text that a commit may carry for people who read the log."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""One encoded commit with all its values."""
BATCH_COMMITS_MAX: Final = 256
"""Commits that share one engine call: 256 small ones keep a Redis script near 5 ms."""
BATCH_BYTES_MAX: Final = 1024 * 1024
"""Bytes after which a batch takes no further commit (one commit may exceed it alone)."""
TTL_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
"""Longest time to live of an entry or a lease: ten years, so that sums stay exact integers."""
LEASE_TTL_MS_MIN: Final = 100
"""Shortest lease: below, a holder cannot renew in time over any network."""
LEASE_TTL_MS: Final = 10_000
"""Default time to live of what a block holds: so long it takes until the death of a process is
noticed, and so long a service may be away before its holders lose their leases."""
LANES_MAX: Final = 64
"""Commits that one agent may have in flight at once; each lane keeps one answer for retries."""

# --- boards ---------------------------------------------------------------------------------------
BOARD_KEYS_MAX: Final = 2_000_000
"""Live keys of a board: one Redis slot, one core, one in-memory index."""
BOARD_BYTES_MAX: Final = 4 * 1024**3
"""Sum of live keys and values of a board."""
NAMESPACE_KEYS_MAX: Final = 1_000_000
"""Live keys of one namespace: no agent can fill a board alone."""
NAMESPACE_BYTES_MAX: Final = 2 * 1024**3
"""Sum of live keys and values of one namespace."""
ACCOUNT_KEYS_MAX: Final = 3 * NAMESPACE_KEYS_MAX // 4
"""Those live keys of a board that one account wrote last: others can still write in any namespace,
whatever it does."""
ACCOUNT_BYTES_MAX: Final = 3 * NAMESPACE_BYTES_MAX // 4
"""The same of bytes: half a gibibyte of `public` is left for others, and more of the board."""
ACCOUNT_INBOX_KEYS_MAX: Final = 65_536
"""Messages of one account that lie in the inboxes of a board, all together: more than anybody
reads, and a fifteenth of what one inbox holds."""
ACCOUNT_INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same of bytes: 64 messages of the largest size, and a thirty-second of what one inbox holds.
Who takes its messages makes room."""
LEASES_MAX: Final = 4_096
"""Leases of one board, run out ones included until they are released or granted anew."""
LEASES_ORDINARY_MAX: Final = 3 * LEASES_MAX // 4
"""Those of them that are no identities of agents: for these the rest is kept, so that agents can
attach to a board on which everything else is held."""
LEASES_PER_ACCOUNT_MAX: Final = LEASES_MAX // 2
"""Leases of one board that one account has or waits for: two thirds of the ordinary ones, and a
thousand are left for others."""
LEASE_WAITERS_MAX: Final = 256
"""Holders in the queue of one lease: each change of a lease is logged with its queue."""
LEASE_WAITERS_PER_ACCOUNT_MAX: Final = LEASE_WAITERS_MAX // 2
"""Those of them that wait on one account: half of the queue is left for others."""
RENEWALS_PER_TTL: Final = 3
"""Renewals that fit into one time to live: two may fail before a holder loses its lease."""
TAKE_OVER_ATTEMPTS_MAX: Final = 8
"""Times that a taking over is tried again because the identity changed hands in between."""
FINISH_TIMEOUT_MS: Final = 5_000
"""Time that a cancelled task gives a release (or another commit that must not be torn) to end."""
CLAIM_TRIES_MAX: Final = 5
"""Default number of attempts at a claimed entry before it goes to the dead letters."""
CLAIM_LOOK_ENTRIES: Final = 64
"""Entries of a page in which a claimer looks for a free one: more than a team works on at once."""
CLAIM_TAKE_ATTEMPTS_MAX: Final = 4
"""Times that a claimer asks for one entry at which attempts are just being counted, before it goes
on to the next one."""
RESTORE_CHANGES_MAX: Final = 65_536
"""Keys that one restore changes: it is one atomic call, during which other commits wait. A branch,
which is built beside, has no such limit."""
RESTORE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One encoded restore with all the values that it puts back."""
RESYNC_BYTES: Final = 4 * 1024 * 1024
"""A watcher to whom a restore shows more than this is told to read the state anew instead."""
HOLD_MS_MAX: Final = 2_000
"""Longest time for which a restore holds up the other commits of its board, by the engine's clock;
a process that dies meanwhile costs no more than that."""
BARRIER_MS_MAX: Final = 600_000
"""Longest time that a checkpoint waits for the agents' state: an agent thinks for minutes."""
BARRIER_GRACE_MS: Final = 5_000
"""By how much a barrier outlives its time-out, should the service die that asked for it."""
CHECKPOINTS_MAX: Final = 10_000
"""Checkpoints of one board; pruning makes room."""
CHECKPOINTS_PAGE_MAX: Final = 1_024
"""Checkpoints of one page of their list."""
RESTORE_ATTEMPTS_MAX: Final = 3
"""Times that a restore is tried while others commit, before they are made to wait for it."""
RESTORE_HOLDS_MAX: Final = 5
"""Times that a restore makes others wait, before it gives up."""
RESTORE_KEPT_MS: Final = 24 * 3600 * 1000
"""Time for which the answer to a restore is kept, so that a retry of it is recognised."""
RECOVER_WAIT_MS: Final = 5_000
"""Time after which a recovery that goes on tells how far it is: the board is away meanwhile."""
DIFF_KEYS_MAX: Final = 10_000
"""Keys that one `Board.diff` gathers; `differences` goes through any number, page by page."""
TEXT_DIFF_LINES_MAX: Final = 2_000
"""Lines of a text that is compared line by line, which takes time by their square."""
HISTORY_VERSIONS_MAX: Final = 1_024
"""Versions of a key on one page of its history."""
FINDINGS_MAX: Final = 100
"""Findings that one `verify` tells; a board that has more is beyond reading them."""
IMPORTS_MAX: Final = 4
"""Imports that one service process has under way: each holds a page in memory."""
IMPORT_IDLE_MS: Final = 30_000
"""Time after which an import whose next page does not come is given up."""
COMMAND_PATIENCE_MS: Final = 5_000
"""Time after which a command says that its service does not answer: somebody sits before it."""
LONG_REQUEST_TIMEOUT_MS: Final = 600_000
"""Time after which a client stops waiting for what goes over a whole board: a branch, a check."""
DELIVERIES_MAX: Final = 3
"""Times that one commit gives way to what the agent has to bring for a checkpoint."""
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""One manifest: it has a digest per namespace, a line per agent, and what agents declared. A
checkpoint that would have a larger one is refused, but for the one before a restore."""
EXPORT_ITEMS_MAX: Final = 100_000
"""Counters of lists that one export carries; they travel with its first page."""
LOG_KEPT_REVISIONS: Final = 1_000_000
"""Log entries kept before the oldest are compacted away."""

# --- the archive ----------------------------------------------------------------------------------
BLOB_BYTES: Final = 64 * 1024
"""Larger values lie in the object store; the archive's database keeps their hash."""
BLOB_CALLS_MAX: Final = 16
"""Blobs that one process reads or writes at a time."""
BLOB_GRACE_MS: Final = 3_600_000
"""A blob that nothing names is not removed before it is so old: who wrote it may be about to name
it in a transaction, and none takes an hour."""
ARCHIVE_LEASE_MS: Final = 10_000
"""Time after which another process goes on archiving a board whose archiver is silent."""
ARCHIVE_WAIT_MS: Final = 10_000
"""Longest time for which a caller waits until the archive has reached a revision."""
ARCHIVE_LAG_MS_MAX: Final = 60_000
"""Age of a commit that is not archived above which `doctor` warns: many times what an archive takes
that can be reached, and keeps up."""
ARCHIVE_RETRY_MS: Final = 5_000
"""Longest pause between two attempts to reach an archive that is away."""
ARCHIVE_IDLE_MS: Final = 1_000
"""Time between two looks at the log of a board to which this process commits nothing."""
ARCHIVE_PAUSE_MS: Final = 500
"""Pause after an append for which nobody waits and that took in all there was, so that many commits
share a transaction: one takes most of its time whatever is in it, and keeps others waiting."""
ARCHIVE_REST_MS: Final = 1_000
"""Longest time for which the archiver of a board begins no append because a restore is on its way:
the turns that it takes are those in which others wait for that."""
ARCHIVE_STEP_PAUSE_MS: Final = 1
"""Pause between two steps of an append, each of about a millisecond: the other half of the time is
for those who commit. None while somebody waits for an archive, or while it is a page behind."""
ARCHIVE_PAGE_ENTRIES: Final = 1_024
"""Log entries archived in one transaction."""
ARCHIVE_WARM_BOARDS: Final = 16
"""Boards of which the archiver knows where it stopped; others cost it some queries each time."""
ARCHIVE_WARM_KEYS: Final = 8_192
"""Keys that it remembers of each: about two megabytes."""
ARCHIVE_WARM_NAMESPACES: Final = 512
"""Namespaces whose sums it remembers of each: a megabyte."""

BOARDS_MAX: Final = 4096
"""Boards on one engine, and those that one service process has open: each has an index, a commit
queue and a feed."""
BOARDS_PER_PRINCIPAL_MAX: Final = 256
"""Boards that one principal, who may not act for others, makes one service process open."""
SWEEP_INTERVAL_MS: Final = 1_000
"""Time between two looks for expired entries; so long an entry may outlive its time to live."""
SWEEP_ENTRIES_MAX: Final = 512
"""Expired entries of one board that one sweep removes, a commit each."""
ENGINE_CHECK_INTERVAL_MS: Final = 60_000
"""Time between two looks at the engine's settings, and at the length of each log."""

# --- reading --------------------------------------------------------------------------------------
READ_KEYS_MAX: Final = 1024
"""Keys read at one revision by one request."""
LIST_ENTRIES_MAX: Final = 1024
"""Entries of one page of a listing."""
LOG_ENTRIES_MAX: Final = 1024
"""Log entries of one page of the log."""
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes after which a page of a listing or of the log ends (it holds at least one item)."""
PROOF_LEAVES_MAX: Final = 4096
"""Leaves of a revision that can be proved to its reader, of 32 bytes each: more than any step has,
and 128 KiB. Larger restores come without a proof."""
WHY_DEPTH_MAX: Final = 32
"""Steps that `why` walks back: a chain of grounds longer than this is a program, not a reason."""
WHY_COMMITS_MAX: Final = 256
"""Commits that one `why` visits in all."""

# --- connections ----------------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""One WebSocket message: the largest commit, in the more verbose of the two encodings."""
INTAKE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of messages on their way into one process, of all connections: each is in memory up to four
times until it was looked at. Above it a connection ends, of the account that has most."""
INTAKE_ACCOUNT_BYTES_MAX: Final = INTAKE_BYTES_MAX // 4
"""The same of one principal and its narrowed tokens: four messages of the largest size. Above it
the newest of its own connections ends, whatever others send."""
INTAKE_SMALL_BYTES: Final = 16 * 1024
"""Bytes on their way in below which a connection does not count there: with CONNECTIONS_MAX of them
that is half as much again, and nobody who sends little is ever told to come again."""
MESSAGE_FRAGMENTS_MAX: Final = 4096
"""WebSocket frames that one message comes in: each is kept until the last, and may be empty."""
MESSAGES_PER_FRAME_MAX: Final = 1024
"""Messages that share one frame."""
REQUESTS_IN_FLIGHT_MAX: Final = 1024
"""Unanswered requests per connection; the server then stops reading from that connection."""
READS_WAITING_MAX: Final = 64
"""Unanswered reads of one connection; then nothing more is read from it: each that waits for room
for its answer takes memory, and who asks for more than he takes in waits at his own door."""
OUTGOING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes waiting for one connection's socket before its watches and replies wait too."""
WATCHES_PER_CONNECTION_MAX: Final = 256
"""Watches of one connection."""
CONNECTIONS_PER_PRINCIPAL_MAX: Final = 512
"""Connections of one principal to one service process."""
CONNECTIONS_MAX: Final = 4096
"""Connections of one service process: file descriptors and 70 KiB each."""
OPEN_FILES_MAX: Final = CONNECTIONS_MAX + 4 * BOARDS_MAX + 256
"""Files that one service process may have open: a connection is one; a board of the embedded engine
is its file, two of the journal, and one to read the old log."""
STRANGER_BYTES_MAX: Final = 128 * 1024
"""Bytes that a connection may send, its handshake included, before it is known whose it is: a token
is a few kilobytes."""
REQUEST_HEAD_BYTES_MAX: Final = 32 * 1024
"""The request line and the headers of one HTTP request: a token has 8 KiB at most, and a browser's
cookies, which we do not want, some more."""
REQUEST_HEADERS_MAX: Final = 128
"""Headers of one HTTP request: each takes many times its bytes, and browsers send twenty."""
STRANGERS_MAX: Final = 2048
"""Connections to one service process that have shown no valid token, of every kind. For one more,
the oldest ends: a client shows its token in its first message, so only those who wait end."""
STRANGERS_PER_PEER_MAX: Final = 1024
"""The same of one address: as many as a listening socket hands over at once, when a team that sits
behind one proxy comes back."""
UNGREETED_MAX: Final = 256
"""WebSockets of those that wait for a token in `hello`: each may make us take in one frame."""
UNGREETED_PER_PEER_MAX: Final = 128
"""The same of one address."""
HANDSHAKE_TIMEOUT_MS: Final = 5_000
"""Time for the first message (`hello`) of a connection."""
REQUEST_TIMEOUT_MS: Final = 30_000
"""Time after which a client stops waiting for an answer."""
SEND_TIMEOUT_MS: Final = 30_000
"""Time a client may leave its socket full before it is closed with a resume token."""
PING_INTERVAL_MS: Final = 20_000
"""Idle time between two pings, and the time that a pong may take."""
DRAIN_TIMEOUT_MS: Final = 10_000
"""Time that a stopping service gives its connections to finish."""

# --- rates and load -------------------------------------------------------------------------------
RATE_BURST_MS: Final = 2_000
"""What a principal that was idle may ask for at once, as time of its rate: a team that starts, or
an agent that comes back, does not ask evenly."""
METERS_MAX: Final = 8_192
"""Principals whose rates one process keeps: more than may be connected. Beyond it, those are
forgotten that asked for nothing lately."""
RATE_PAUSE_MS_MAX: Final = 1_000
"""Longest time for which a connection that was refused for its rate is not read from: what it sends
meanwhile waits with the sender, and a ping is still answered in time."""
BACKLOG_BYTES_MAX: Final = 256 * 1024 * 1024
"""Commits that wait in one process, for all boards together; then new ones are refused."""
LOOP_LAG_MS_MAX: Final = 1_000
"""By how much the event loop may be late, all through three looks at it, before requests are
refused: then a renewal of the shortest usual lease is still answered in time."""
LOOP_LOOK_MS: Final = 250
"""Time between two such looks."""
OVERLOAD_RETRY_MS: Final = 1_000
"""What is told to whoever is refused for overload: several looks later."""

# --- access ---------------------------------------------------------------------------------------
NARROWINGS_MAX: Final = 8
"""Times that a token is handed on, narrower each time: sub-agents of sub-agents, and no deeper."""
REVOCATIONS_MAX: Final = 65_536
"""Tokens and principals that are revoked at one time; a record ends when its token would have."""
REVOKED_TTL_MS: Final = 366 * 24 * 3600 * 1000
"""Time for which a revoked token is remembered when nobody says how long it is valid: the longest
that a token is (the operator's: a year)."""
ACCESS_STALE_MS: Final = 15_000
"""A service process that heard nothing of the revocations for so long refuses tokens."""

# --- audit ----------------------------------------------------------------------------------------
AUDIT_QUEUE_MAX: Final = 10_000
"""Audit records of one process that wait to be written; more are counted and left out."""
AUDIT_WINDOW_MS: Final = 60_000
"""Refusals that repeat within this time are counted instead of recorded: a flood fills no disk."""
AUDIT_ALIKE_MAX: Final = 16
"""Refusals of one principal by one method that are recorded one by one in AUDIT_WINDOW_MS."""
AUDIT_REFUSALS_MAX: Final = 128
"""Refusals of all that are recorded one by one in AUDIT_WINDOW_MS."""
AUDIT_KINDS_MAX: Final = 64
"""Kinds of refusals (principal, token, method, board, outcome) that are counted apart."""
AUDIT_BATCH_MAX: Final = 256
"""Audit records of one commit."""
AUDIT_KEPT_MS: Final = 90 * 24 * 3600 * 1000
"""Time for which an audit record is kept; export them to keep them longer."""

# --- encryption -----------------------------------------------------------------------------------
SEALS_PER_KEY_MAX: Final = 2**28
"""Values that one process seals with one data key. NIST SP 800-38D allows 2**32 random nonces for a
key; sixteen processes stay below."""
KEY_COMMAND_TIMEOUT_MS: Final = 30_000
"""Time that the command which prints the master key may take."""

# --- documents ------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The encoded state of one document, what was deleted included: loading it takes half a second,
and every process that serves it holds it twice."""
DOCUMENT_UPDATE_BYTES_MAX: Final = 3 * 1024 * 1024
"""One update of a document: one commit holds it, cut into values."""
DOCUMENT_SESSIONS_MAX: Final = 512
"""Connections to one document in one service process: each gets every update."""
DOCUMENTS_MAX: Final = 1024
"""Documents that one service process has open."""
DOCUMENT_TAIL_UPDATES: Final = 256
"""Updates of a document after which they are compacted into its base: a quarter of what one commit
can delete, and loading a document stays a matter of milliseconds."""
DOCUMENT_TAIL_BYTES: Final = 32 * 1024
"""The same in bytes, when that is also an eighth of the base: edits that are made at once share an
update, and reading a thousand takes as long in few updates as in many."""
OVERLAP_TTL_MS: Final = 3600 * 1000
"""How long a document tells that two agents edited one region together: a watcher sees it soon."""
OVERLAP_CLIENTS_MAX: Final = 64
"""Authors that one such report names."""
AWARENESS_STATES_MAX: Final = 512
"""Clients of a document that one message tells of: one for each connection."""
AWARENESS_BYTES_MAX: Final = 16 * 1024
"""What a client tells of itself: a name, a colour, a selection."""
AWARENESS_PER_SESSION_MAX: Final = 16
"""Clients of a document that one connection tells of as its own. A stock client has one."""
AWARENESS_TTL_MS: Final = 30 * 1000
"""After so long without a word, whoever is connected to another process counts as gone, as in
y-protocols."""
AWARENESS_RENEW_MS: Final = AWARENESS_TTL_MS // 2
"""How often a replica says again that it is there."""
DOCUMENT_TOKEN_TTL_MS_MAX: Final = 3600 * 1000
"""Longest life of a token that may stand in a URL, where logs and histories keep it."""

# --- watching -------------------------------------------------------------------------------------
WATCH_QUEUE_CHANGES_MAX: Final = 4096
"""Changes kept ready in memory per board for watchers; slower ones read the log instead."""
WATCH_QUEUE_BYTES_MAX: Final = 8 * 1024 * 1024
"""The same in bytes."""
WATCH_BATCH_REVISIONS_MAX: Final = 256
"""Revisions that share one frame to a watcher."""
WATCH_BATCH_BYTES_MAX: Final = 256 * 1024
"""Bytes after which such a frame takes no further revision."""
PROGRESS_INTERVAL_MS: Final = 5_000
"""Idle time after which a watcher is told how far it is."""

# --- lives of agents ------------------------------------------------------------------------------
AGENT_GRACE_MS: Final = 10_000
"""Time that a step which is under way gets to end when its agent is told to stop."""
AGENT_CRASHES_MAX: Final = 5
"""Crashes of an agent without a step in between, after which it is a crash loop, and left alone."""
AGENT_PAUSE_MS: Final = 200
"""Pause before an agent that crashed is started again; it doubles with each further crash."""
AGENT_PAUSE_MS_MAX: Final = 30_000
"""Longest such pause: so long an agent is away after a fault of somebody else's was repaired."""
AGENT_ERROR_BYTES_MAX: Final = 2_048
"""What is told on the board of the error with which an agent crashed."""
REST_TOLD_AFTER_MS: Final = 300
"""Time for which an agent waits before its presence says so: short waits are not worth a commit."""
TEAM_AGENTS_MAX: Final = 1_024
"""Agents of one team in one process, those that were born included, and entries of its roster."""

# --- models and memory ----------------------------------------------------------------------------
MODEL_TIMEOUT_MS: Final = 120_000
"""One attempt at an answer of a model: long answers of slow models take a minute."""
MODEL_ATTEMPTS_MAX: Final = 4
"""Attempts at one answer of a model: rate limits and restarts pass, other faults do not."""
MODEL_PAUSE_MS_MAX: Final = 30_000
"""Longest pause between two attempts; a service that asks for a longer one has failed."""
MODEL_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""One answer of a model, as it comes over the wire: sixteen times the longest that models give."""
TRANSCRIPT_TURN_BYTES_MAX: Final = 256 * 1024
"""Text of one turn of a transcript, so that a page holds several. Longer texts belong into an entry
of their own, and a reference into the transcript."""
TRANSCRIPT_PAGE_TURNS_MAX: Final = 256
"""Turns of one page of archived turns: it is made by one commit, which removes each of them."""
TRANSCRIPT_PAGE_BYTES_MAX: Final = 512 * 1024
"""Text of one page of archived turns, so that it fits into one value in every encoding."""
WINDOW_TURNS_MAX: Final = 1_024
"""Turns of a sliding window: what one page of a listing holds."""
RECALL_TURNS_MAX: Final = 100_000
"""Archived turns that one process keeps searchable, the newest ones; about 100 MB of memory."""
RECALL_RESULTS_MAX: Final = 100
"""Turns that one search returns."""
RECALL_WORDS_MAX: Final = 64
"""Words of a question that are searched for; a longer question is cut there."""

# --- agents ---------------------------------------------------------------------------------------
STEP_CALLS_MAX: Final = 256
"""Calls that one step of an agent makes: each is kept, in up to three entries, until one operation
removes them all (OPERATIONS_MAX)."""
STEP_PAUSE_MS_MAX: Final = 1_000
"""Longest pause before a step that met a conflict is run again."""
CALL_INLINE_BYTES: Final = 64 * 1024
"""A larger result of a call stands in an entry of its own, beside the record of the call."""
LARGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One result of a call, or value that an agent keeps: what a process holds at once, and one restore
brings back (RESTORE_BYTES_MAX). Above VALUE_BYTES_MAX it stands in parts."""
LARGE_PART_BYTES: Final = 512 * 1024
"""One part of a large value: several fit into one commit, and others hardly wait for that."""
STEP_PARTS_MAX: Final = 192
"""Parts of large values that one step calls for or keeps: with STEP_CALLS_MAX calls one operation
still removes all that stands in its journal (OPERATIONS_MAX)."""
CALL_ATTEMPTS_MAX: Final = 32
"""Attempts at one call: each one that failed is a line of its record."""
CALL_PAUSE_MS_MAX: Final = 60_000
"""Longest pause between two attempts at a call; what takes longer to pass is a new step."""
CALL_REASON_BYTES_MAX: Final = 1_024
"""What is kept of an error's text: enough to understand it, and no page of HTML."""
APPROVAL_FACTS_MAX: Final = 64
"""Facts that one request for approval is based on: more than a person checks."""
INBOX_TAKE_MAX: Final = 64
"""Messages that a step takes from its inbox at once: each is a condition of its commit."""

# --- engines --------------------------------------------------------------------------------------
ENGINE_TIMEOUT_MS: Final = 5_000
"""One call to an engine. A slower one counts as unavailable."""
ENGINE_RETRY_MS: Final = 10_000
"""Time during which an engine call is tried again before `Unavailable` (or `OutcomeUnknown`)."""
REPLICAS_MAX: Final = 16
"""Replicas that a commit is asked to be on before it is answered; nobody waits for more."""
REPLICA_WAIT_MS: Final = 100
"""How long an answer waits for them. A batch waits together, and the answer comes then in any case:
it says whether they had it."""
LOCK_MASTER_TIMEOUT_MS: Final = 150
"""One command to one lock master, connecting included, and never more than a twentieth of the
lease: a master that hangs holds nobody up for a quarter of a second."""
LOCK_MASTER_CALLS_MAX: Final = 16
"""Commands under way at each lock master, a connection each; further ones wait their turn, so that
a burst does not use up the time of its own commands."""
FLIGHTS_MAX: Final = 2
"""Engine calls of one board in flight: while one waits for the disk, the next is being decided."""
COMMITS_QUEUED_MAX: Final = 8192
"""Commits waiting for one board's engine in one process; then new ones are refused."""
MERGE_ATTEMPTS_MAX: Final = 16
"""Times that a `merge` is computed anew because its key changed in between."""
STEP_ATTEMPTS_MAX: Final = 5
"""Default number of times that `Board.run_step` runs a step whose reads went stale."""
