// Written by `python -m tools.js_methods` from blackboard/limits.py: change that instead.

/** Reads that one commit may name as what it was based on. */
export const BASED_ON_MAX = 256

/** Longest time that a checkpoint waits for the agents' state: an agent thinks for minutes. */
export const BARRIER_MS_MAX = 600000

/** Checkpoints of one page of their list. */
export const CHECKPOINTS_PAGE_MAX = 1024

/** Default number of attempts at a claimed entry before it becomes a dead letter. */
export const CLAIM_TRIES_MAX = 5

/** Keys that one `Board.diff` collects; `differences` goes through any number, page by page. */
export const DIFF_KEYS_MAX = 10000

/** Longest life of a token in a URL, where logs and histories may store it. */
export const DOCUMENT_TOKEN_TTL_MS_MAX = 3600000

/** Fences that one commit may rely on. */
export const FENCES_MAX = 64

/** One WebSocket message: the largest commit, in the more verbose of the two encodings. */
export const FRAME_BYTES_MAX = 8388608

/** Versions of a key on one page of its history. */
export const HISTORY_VERSIONS_MAX = 1024

/** Largest magnitude that `increment` reaches, for the same reason. */
export const INTEGER_MAX = 9007199254740991

/** Commits that one agent may have in flight at once; each lane keeps one answer for retries. */
export const LANES_MAX = 64

/**
 * Default time to live of the leases of a block: how long a dead process goes unnoticed, and how
 * long a service may be away before its holders lose them.
 */
export const LEASE_TTL_MS = 10000

/** Shortest lease: a shorter one cannot be renewed in time over a network. */
export const LEASE_TTL_MS_MIN = 100

/** Entries of one page of a listing, with its directories. */
export const LIST_ENTRIES_MAX = 1024

/** Log entries of one page of the log. */
export const LOG_ENTRIES_MAX = 1024

/** Messages that share one frame. */
export const MESSAGES_PER_FRAME_MAX = 1024

/** Times that a token can be narrowed: enough for sub-agents of sub-agents. */
export const NARROWINGS_MAX = 8

/** The free text of a commit, for people who read the log. */
export const NOTE_BYTES_MAX = 1024

/**
 * Operations in one commit, conditions in one commit, and keys touched by one prefix operation.
 * Redis' Lua unpacks about 8,000 arguments; this stays far below, with room for several each.
 */
export const OPERATIONS_MAX = 1024

/** Keys read at one revision by one request. */
export const READ_KEYS_MAX = 1024

/** Unanswered requests per connection; the server then stops reading from that connection. */
export const REQUESTS_IN_FLIGHT_MAX = 1024

/** Largest revision: the last integer that Redis' Lua (a double) counts exactly. */
export const REVISION_MAX = 9007199254740991

/** One segment of a key, and any name (agent, board). */
export const SEGMENT_BYTES_MAX = 128

/** Default number of times that `Board.run_step` runs a step whose reads went stale. */
export const STEP_ATTEMPTS_MAX = 5

/** One encoded value. Put larger artefacts into a blob store, and a reference here. */
export const VALUE_BYTES_MAX = 1048576

/** Nesting of a value: decoders recurse, and no plan that people read is nested deeper. */
export const VALUE_DEPTH_MAX = 64

/** Watches of one connection. */
export const WATCHES_PER_CONNECTION_MAX = 256

/** What one client chooses for itself; `connect` takes others as `limits`. */
export const DEFAULTS = {
  /** Time for which a commit is sent again until its outcome is known. */
  commit_timeout_ms: 30000,
  /** Time that the first connection of a client waits for a service that is being started. */
  connect_wait_ms: 10000,
  /** Time after which a client stops waiting for an operation on a whole board, as a branch. */
  long_request_timeout_ms: 600000,
  /** Time that a cancelled task waits for a release (or another commit that must finish). */
  finish_timeout_ms: 5000,
  /** Times that a `merge` is computed again because its key changed in between. */
  merge_attempts_max: 16,
  /** Renewals in one time to live: two may fail before a holder loses its lease. */
  renewals_per_ttl: 3,
  /** Entries of a page in which a claimer looks for a free one: more than a team works on. */
  claim_look_entries: 64,
  /** Times that a claimer tries an entry whose attempts are just being counted. */
  claim_take_attempts_max: 4,
  /**
   * Pauses between attempts at a commit; the last one repeats. Each is shortened at random by up
   * to half, so that clients that failed together do not come back together.
   */
  commit_pauses_ms: [10, 30, 100, 300, 1000],
  /** Pauses before connecting again; the last one repeats, and each is shortened at random. */
  connect_pauses_ms: [0, 50, 200, 500, 1000, 2000, 5000],
  /** Part of a token's life after which it is refreshed, if there is a source of tokens. */
  token_refresh_percent: 75,
  /**
   * Time after which a client stops waiting for an answer. On Linux it gives up a connection on
   * which nothing that it sent is acknowledged for a third of that.
   */
  request_timeout_ms: 30000,
  /** Time for the first message (`hello`) of a connection. */
  handshake_timeout_ms: 5000,
  /** Idle time between two pings, and the time that a pong may take. */
  ping_interval_ms: 20000,
  /** Changes kept in memory per board for watchers; slower ones read the log instead. */
  watch_queue_changes_max: 4096,
  /** The same in bytes. */
  watch_queue_bytes_max: 8388608,
}
