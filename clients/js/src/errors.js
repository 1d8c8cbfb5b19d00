// Written by `python -m tools.js_methods` from blackboard/errors.py: change that instead.

/** Root of the tree. Never thrown itself: `code` and `fields` are stable, the message is not. */
export class BlackboardError extends Error {
  static code = 'error'
  static retryable = false
  /** @type {ReadonlyArray<string>} */
  static names = []

  /**
   * @param {Record<string, unknown>} fields
   * @param {string} [message] as the service worded it
   */
  constructor (fields, message) {
    super(message)
    this.name = new.target.name
    /** The stable code of the error. */
    this.code = new.target.code
    /** Whether the same request may be sent again. */
    this.retryable = new.target.retryable
    /** The fields by name, as in the table of errors. */
    this.fields = /** @type {Record<string, unknown>} */ (Object.create(null))
    for (const name of new.target.names) this.fields[name] = fields[name]
    if (message === undefined) this.message = worded(this.code, this.fields)
  }
}

/**
 * @param {string} code
 * @param {Record<string, unknown>} fields
 */
function worded (code, fields) {
  const shown = Object.keys(fields).filter(name => fields[name] !== null)
  return `${code}: ${shown.map(name => `${name}=${printed(fields[name])}`).join(' ')}`
}

/** @param {unknown} value */
function printed (value) {
  try {
    return JSON.stringify(value, (_, part) => typeof part === 'bigint' ? String(part) : part)
  } catch {
    return String(value)
  }
}

/**
 * `model` did not answer, or not usably: `reason`. `status` is the HTTP status, if any.
 *
 * Temporary failures have already been retried.
 */
export class ModelFailed extends BlackboardError {
  static code = 'model_failed'
  static names = ['model', 'reason', 'status']

  /**
   * @param {{ model: string, reason: string, status?: number | null }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { status: null, ...fields }
    super(whole, message)
    this.model = whole.model
    this.reason = whole.reason
    this.status = whole.status
  }
}

/**
 * Call `name` of an agent failed `attempts` times, at last because of `reason`; recorded.
 */
export class CallFailed extends BlackboardError {
  static code = 'call_failed'
  static names = ['name', 'attempts', 'reason']

  /**
   * @param {{ name: string, attempts: number, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.attempts = fields.attempts
    this.reason = fields.reason
  }
}

/**
 * `command` was stopped with all that it had started. `cause`: it ran for longer than `maximum`
 * milliseconds ("timeout"), printed more than `maximum` bytes ("output"), its caller was cancelled
 * ("cancelled"), or the process above it was killed ("killed"). The files of the step are not
 * committed, unless it takes them back with `reset`.
 */
export class CommandStopped extends BlackboardError {
  static code = 'command_stopped'
  static names = ['command', 'cause', 'maximum']

  /**
   * @param {{ command: string, cause: string, maximum: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.command = fields.command
    this.cause = fields.cause
    this.maximum = fields.maximum
  }
}

/**
 * Call `name`, made at most once, was begun; ask where it went, by `idempotency_key`.
 */
export class CallInterrupted extends BlackboardError {
  static code = 'call_interrupted'
  static names = ['name', 'idempotency_key']

  /**
   * @param {{ name: string, idempotency_key: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.idempotency_key = fields.idempotency_key
  }
}

/**
 * In a replay, call `number` of a step of `agent` was `found`; recorded is `expected`.
 */
export class Diverged extends BlackboardError {
  static code = 'diverged'
  static names = ['agent', 'number', 'expected', 'found']

  /**
   * @param {{ agent: string, number: number, expected: string, found: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.number = fields.number
    this.expected = fields.expected
    this.found = fields.found
  }
}

/**
 * Something cancelled the work of `agent` though nobody asked for that: `reason`.
 *
 * It counts as a crash: what the step had not committed did not happen.
 */
export class AgentInterrupted extends BlackboardError {
  static code = 'agent_interrupted'
  static names = ['agent', 'reason']

  /**
   * @param {{ agent: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.reason = fields.reason
  }
}

/**
 * The state of `agent` has schema version `stored`; this code knows versions up to `known`.
 */
export class SchemaTooNew extends BlackboardError {
  static code = 'schema_too_new'
  static names = ['agent', 'stored', 'known']

  /**
   * @param {{ agent: string, stored: number, known: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.stored = fields.stored
    this.known = fields.known
  }
}

/**
 * The state of `agent` cannot leave schema version `version`: `reason`. It stays as it is.
 */
export class MigrationFailed extends BlackboardError {
  static code = 'migration_failed'
  static names = ['agent', 'version', 'reason']

  /**
   * @param {{ agent: string, version: number, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.version = fields.version
    this.reason = fields.reason
  }
}

/**
 * A state of `agent` is not acceptable: `reason`. It was not written, or not taken in.
 */
export class InvalidState extends BlackboardError {
  static code = 'invalid_state'
  static names = ['agent', 'reason']

  /**
   * @param {{ agent: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.reason = fields.reason
  }
}

/**
 * Lease `key`, held under `fence`, was lost in the middle of a block, because of `reason`.
 *
 * The block was cancelled. Its earlier commits stand; none after another holder took the lease
 * takes effect. `holder` has it now, if that is known.
 */
export class LeaseLost extends BlackboardError {
  static code = 'lease_lost'
  static names = ['key', 'fence', 'reason', 'holder']

  /**
   * @param {{ key: string, fence: number, reason: string, holder?: string | null }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { holder: null, ...fields }
    super(whole, message)
    this.key = whole.key
    this.fence = whole.fence
    this.reason = whole.reason
    this.holder = whole.holder
  }
}

/**
 * Not done: `what` cannot be reached or cannot answer now. Trying again is safe.
 */
export class Unavailable extends BlackboardError {
  static code = 'unavailable'
  static retryable = true
  static names = ['what', 'reason']

  /**
   * @param {{ what: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.what = fields.what
    this.reason = fields.reason
  }
}

/**
 * Not done: `what` has too much to do. Trying again is safe, after `retry_after_ms`.
 */
export class Overloaded extends Unavailable {
  static code = 'overloaded'
  static names = ['what', 'reason', 'retry_after_ms']

  /**
   * @param {{ what: string, reason: string, retry_after_ms: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.what = fields.what
    this.reason = fields.reason
    this.retry_after_ms = fields.retry_after_ms
  }
}

/**
 * Not done: the principal asked for more than its rate allows; `what` names the rate.
 */
export class RateLimited extends Overloaded {
  static code = 'rate_limited'
  static names = ['what', 'reason', 'retry_after_ms']

  /**
   * @param {{ what: string, reason: string, retry_after_ms: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.what = fields.what
    this.reason = fields.reason
    this.retry_after_ms = fields.retry_after_ms
  }
}

/**
 * What changes something was sent, and its answer did not come: it may have been done or not.
 *
 * A commit is named by `agent`, `lane`, `incarnation` and `step`; sending the same one again gets
 * its outcome, unless it is `final`: later answers have displaced it, and only the board's log can
 * show it. Another request of `agent` is identified by `method` ("restore"), and by `request` if
 * it has one; sending the same request again gets its outcome.
 */
export class OutcomeUnknown extends BlackboardError {
  static code = 'outcome_unknown'
  static retryable = true
  static names = ['agent', 'lane', 'incarnation', 'step', 'reason', 'final', 'method', 'request']

  /**
   * @param {{ agent: string, lane: number | null, incarnation: string | null, step: number | null, reason: string, final?: boolean, method?: string, request?: string | null }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { final: false, method: "commit", request: null, ...fields }
    super(whole, message)
    this.agent = whole.agent
    this.lane = whole.lane
    this.incarnation = whole.incarnation
    this.step = whole.step
    this.reason = whole.reason
    this.final = whole.final
    this.method = whole.method
    this.request = whole.request
  }
}

/**
 * This side tried what the connection's state does not allow. A bug of the caller.
 */
export class LocalProtocolError extends BlackboardError {
  static code = 'local_protocol_error'
  static names = ['reason']

  /**
   * @param {{ reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.reason = fields.reason
  }
}

/**
 * The peer sent something that is not the protocol. `close_code` suits the WebSocket close.
 */
export class RemoteProtocolError extends BlackboardError {
  static code = 'remote_protocol_error'
  static names = ['reason', 'close_code']

  /**
   * @param {{ reason: string, close_code?: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { close_code: 1002, ...fields }
    super(whole, message)
    this.reason = whole.reason
    this.close_code = whole.close_code
  }
}

/**
 * `what` is not what was written: `reason`. Never retried, never repaired silently.
 */
export class Corrupt extends BlackboardError {
  static code = 'corrupt'
  static names = ['what', 'reason']

  /**
   * @param {{ what: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.what = fields.what
    this.reason = fields.reason
  }
}

/**
 * `what` has format `found`, and this program knows formats up to `known`; it is unchanged.
 */
export class NewerFormat extends BlackboardError {
  static code = 'newer_format'
  static names = ['what', 'found', 'known']

  /**
   * @param {{ what: string, found: number, known: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.what = fields.what
    this.found = fields.found
    this.known = fields.known
  }
}

/**
 * `what` has format `found`, and this program reads formats from `oldest` on; it is unchanged.
 *
 * `lacks` names the columns that it would have to have, if it has no mark of its format.
 */
export class OlderFormat extends BlackboardError {
  static code = 'older_format'
  static names = ['what', 'found', 'oldest', 'lacks']

  /**
   * @param {{ what: string, found: number, oldest: number, lacks?: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { lacks: "", ...fields }
    super(whole, message)
    this.what = whole.what
    this.found = whole.found
    this.oldest = whole.oldest
    this.lacks = whole.lacks
  }
}

/**
 * The engine's `setting` has `value`, with which data would be lost; `needed` would do.
 */
export class EngineRefused extends BlackboardError {
  static code = 'engine_refused'
  static names = ['setting', 'value', 'needed']

  /**
   * @param {{ setting: string, value: string, needed: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.setting = fields.setting
    this.value = fields.value
    this.needed = fields.needed
  }
}

/**
 * Process `pid` owns the data directory `path`; connect to it at `url` instead.
 *
 * With `is_this_process` the owner is a client of the caller's own: use it, or close it first.
 */
export class DataDirectoryInUse extends BlackboardError {
  static code = 'data_directory_in_use'
  static names = ['path', 'pid', 'url', 'is_this_process']

  /**
   * @param {{ path: string, pid: number | null, url: string | null, is_this_process?: boolean }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { is_this_process: false, ...fields }
    super(whole, message)
    this.path = whole.path
    this.pid = whole.pid
    this.url = whole.url
    this.is_this_process = whole.is_this_process
  }
}

/**
 * The request was refused and nothing changed.
 */
export class Rejected extends BlackboardError {
  static code = 'rejected'

  /**
   * @param {{  }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
  }
}

/**
 * A condition did not hold.
 *
 * `key` is the one whose condition failed; `expected` its mod_revision as the commit had it (0 =
 * absent, -1 = present; for a prefix: unchanged since), `actual` the one that the board has (0 =
 * absent). `by` wrote it last, at `at_revision` (the deletion's, when the key is gone). `current`
 * is the value as it is now if it is small and you may read it. `head` is the board's revision.
 */
export class Conflict extends Rejected {
  static code = 'conflict'
  static names = ['key', 'expected', 'actual', 'by', 'at_revision', 'head', 'current']

  /**
   * @param {{ key: string, expected: number, actual: number, by?: string | null, at_revision?: number, head?: number, current?: unknown }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { by: null, at_revision: 0, head: 0, current: null, ...fields }
    super(whole, message)
    this.key = whole.key
    this.expected = whole.expected
    this.actual = whole.actual
    this.by = whole.by
    this.at_revision = whole.at_revision
    this.head = whole.head
    this.current = whole.current
  }
}

/**
 * The commit relies on fence `fence` of lease `key`; the current is `current` (0 = free).
 */
export class Fenced extends Rejected {
  static code = 'fenced'
  static names = ['key', 'fence', 'current', 'holder']

  /**
   * @param {{ key: string, fence: number, current: number, holder?: string | null }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { holder: null, ...fields }
    super(whole, message)
    this.key = whole.key
    this.fence = whole.fence
    this.current = whole.current
    this.holder = whole.holder
  }
}

/**
 * Lease `key` belongs to `holder` under `fence` until `until_ms` (engine clock).
 */
export class LeaseHeld extends Rejected {
  static code = 'lease_held'
  static names = ['key', 'holder', 'fence', 'until_ms']

  /**
   * @param {{ key: string, holder: string, fence: number, until_ms: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.key = fields.key
    this.holder = fields.holder
    this.fence = fields.fence
    this.until_ms = fields.until_ms
  }
}

/**
 * For `waited_ms` no entry that matches `pattern` was free.
 */
export class NothingToClaim extends Rejected {
  static code = 'nothing_to_claim'
  static names = ['pattern', 'waited_ms']

  /**
   * @param {{ pattern: string, waited_ms: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.pattern = fields.pattern
    this.waited_ms = fields.waited_ms
  }
}

/**
 * The board is in epoch `current`, not in `yours`.
 *
 * `cause` says why the epoch began ("engine": the engine came back; "restore": the board was
 * restored). `from_revision` is the last revision that survived, `head` the board's revision now.
 * If several epochs began since your last request, both fields belong to the last one: then
 * revisions below `from_revision` that you saw may be lost too.
 */
export class StaleEpoch extends Rejected {
  static code = 'stale_epoch'
  static names = ['yours', 'current', 'number', 'cause', 'from_revision', 'head']

  /**
   * @param {{ yours: string, current: string, number: number, cause: string, from_revision: number, head: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.yours = fields.yours
    this.current = fields.current
    this.number = fields.number
    this.cause = fields.cause
    this.from_revision = fields.from_revision
    this.head = fields.head
  }
}

/**
 * A restore was prepared for revision `expected`, and the board's head is `head` by now.
 */
export class HeadMoved extends Rejected {
  static code = 'head_moved'
  static names = ['expected', 'head']

  /**
   * @param {{ expected: number, head: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.expected = fields.expected
    this.head = fields.head
  }
}

/**
 * A checkpoint that was asked for at revision `since` waits for `agent`.
 *
 * Commit the agent's memory, with `Delete(key)` among the operations; then continue. Until then,
 * all other commits of the agent are refused, except changes of its leases.
 */
export class SnapshotFirst extends Rejected {
  static code = 'snapshot_first'
  static names = ['agent', 'key', 'since']

  /**
   * @param {{ agent: string, key: string, since: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.key = fields.key
    this.since = fields.since
  }
}

/**
 * The board takes no commits until it is thawed: `by` froze it because of `note`.
 *
 * It was frozen at `since_ms` (the engine's clock), as revision `revision`. Reads and watches go
 * on; commits of a board of `Board.waiting_for_thaw` wait instead.
 */
export class BoardFrozen extends Rejected {
  static code = 'board_frozen'
  static names = ['by', 'note', 'since_ms', 'revision']

  /**
   * @param {{ by: string, note: string, since_ms: number, revision: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.by = fields.by
    this.note = fields.note
    this.since_ms = fields.since_ms
    this.revision = fields.revision
  }
}

/**
 * There is no board `board`, and this request does not create one.
 */
export class NoSuchBoard extends Rejected {
  static code = 'no_such_board'
  static names = ['board']

  /**
   * @param {{ board: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.board = fields.board
  }
}

/**
 * Board `board` has no checkpoint `name`.
 */
export class NoSuchCheckpoint extends Rejected {
  static code = 'no_such_checkpoint'
  static names = ['board', 'name']

  /**
   * @param {{ board: string, name: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.board = fields.board
  }
}

/**
 * No checkpoint was taken: `agents` did not bring in their state within `timeout_ms`.
 */
export class BarrierMissed extends Rejected {
  static code = 'barrier_missed'
  static names = ['agents', 'timeout_ms']

  /**
   * @param {{ agents: string[], timeout_ms: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agents = fields.agents
    this.timeout_ms = fields.timeout_ms
  }
}

/**
 * This attempt was not applied: it may be a late copy of one that was applied long ago.
 *
 * Since `known`, the board's revision that its writer knew, another process of `agent` displaced
 * an answer of this lane; it may have been this commit's. If this was the only attempt, send it
 * again with `head`, of the epoch that it named, as `known`; otherwise the outcome is unknown.
 */
export class AttemptTooOld extends Rejected {
  static code = 'attempt_too_old'
  static names = ['agent', 'lane', 'incarnation', 'step', 'known', 'head']

  /**
   * @param {{ agent: string, lane: number, incarnation: string, step: number, known: number, head: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.lane = fields.lane
    this.incarnation = fields.incarnation
    this.step = fields.step
    this.known = fields.known
    this.head = fields.head
  }
}

/**
 * Step `step` of this agent's lane is older than the last one accepted, `last_step`.
 */
export class StepSuperseded extends Rejected {
  static code = 'step_superseded'
  static names = ['agent', 'step', 'last_step']

  /**
   * @param {{ agent: string, step: number, last_step: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.agent = fields.agent
    this.step = fields.step
    this.last_step = fields.last_step
  }
}

/**
 * The operation on `key` needs a value of type `wanted` but found `found`.
 */
export class TypeMismatch extends Rejected {
  static code = 'type_mismatch'
  static names = ['key', 'wanted', 'found']

  /**
   * @param {{ key: string, wanted: string, found: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.key = fields.key
    this.wanted = fields.wanted
    this.found = fields.found
  }
}

/**
 * An edit of document `key` was not acceptable, and the session has ended.
 *
 * `cause`: "malformed", "foreign" (under somebody else's client id), "gap" (an earlier edit is
 * missing), "too_large", "stale" (made before a restore that its author had not seen),
 * "read_only", "frozen" (the board is), "too_slow" (the client did not read) or "closed". The
 * document and other clients are not affected.
 */
export class DocumentRefused extends Rejected {
  static code = 'document_refused'
  static names = ['key', 'cause', 'reason']

  /**
   * @param {{ key: string, cause: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.key = fields.key
    this.cause = fields.cause
    this.reason = fields.reason
  }
}

/**
 * The file, or directory, at `path` cannot be read into a workspace's snapshot, or written by a
 * restore, because of `reason`. Nothing changed, on the board or in the directory.
 */
export class FileRefused extends Rejected {
  static code = 'file_refused'
  static names = ['path', 'reason']

  /**
   * @param {{ path: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.path = fields.path
    this.reason = fields.reason
  }
}

/**
 * A restore would lose changes to `count` files in `directory` that no snapshot has. `paths`
 * are the first of them. Take a snapshot, or restore with `discard`.
 */
export class UnsavedFiles extends Rejected {
  static code = 'unsaved_files'
  static names = ['directory', 'paths', 'count']

  /**
   * @param {{ directory: string, paths: string[], count: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.directory = fields.directory
    this.paths = fields.paths
    this.count = fields.count
  }
}

/**
 * Process `pid` of this machine works on `directory`, as `holder`: an agent or a program, and
 * its board. Try again when it has ended; a process that was killed holds nothing.
 */
export class WorkspaceHeld extends Rejected {
  static code = 'workspace_held'
  static names = ['directory', 'holder', 'pid']

  /**
   * @param {{ directory: string, holder: string, pid: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.directory = fields.directory
    this.holder = fields.holder
    this.pid = fields.pid
  }
}

/**
 * `limit` names a row of blackboard/limits.py; `value` was more than its `maximum`.
 *
 * `account` is set if the limit is one account's share: it is the one that has used it up.
 */
export class LimitExceeded extends Rejected {
  static code = 'limit_exceeded'
  static names = ['limit', 'value', 'maximum', 'where', 'account']

  /**
   * @param {{ limit: string, value: number, maximum: number, where?: string | null, account?: string | null }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    const whole = { where: null, account: null, ...fields }
    super(whole, message)
    this.limit = whole.limit
    this.value = whole.value
    this.maximum = whole.maximum
    this.where = whole.where
    this.account = whole.account
  }
}

/**
 * `principal` does not have `right` on `key` (a key, a pattern or a method).
 */
export class AccessDenied extends Rejected {
  static code = 'access_denied'
  static names = ['principal', 'right', 'key']

  /**
   * @param {{ principal: string, right: string, key: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.principal = fields.principal
    this.right = fields.right
    this.key = fields.key
  }
}

/**
 * `field` of the request is not acceptable because of `reason`.
 */
export class InvalidRequest extends Rejected {
  static code = 'invalid_request'
  static names = ['field', 'reason']

  /**
   * @param {{ field: string, reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.field = fields.field
    this.reason = fields.reason
  }
}

/**
 * No token was given, or the one given is malformed, expired or not ours.
 */
export class Unauthenticated extends Rejected {
  static code = 'unauthenticated'
  static names = ['reason']

  /**
   * @param {{ reason: string }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.reason = fields.reason
  }
}

/**
 * The log starts at revision `oldest` now; `revision` and what follows it are gone from it.
 */
export class Compacted extends Rejected {
  static code = 'compacted'
  static names = ['revision', 'oldest']

  /**
   * @param {{ revision: number, oldest: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.revision = fields.revision
    this.oldest = fields.oldest
  }
}

/**
 * Revision `revision` does not exist yet; the board's head is `head`.
 */
export class FutureRevision extends Rejected {
  static code = 'future_revision'
  static names = ['revision', 'head']

  /**
   * @param {{ revision: number, head: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.revision = fields.revision
    this.head = fields.head
  }
}

/**
 * The position `revision` belongs to a history that is no longer the board's.
 *
 * Everything after `from_revision` that you saw was lost or abandoned. The board is in `epoch`
 * with revision `head`: read the state there, and go on from it. If several epochs began since
 * `revision`, `from_revision` is where the last one went on: what you saw below it may be gone,
 * too.
 */
export class RolledBack extends Rejected {
  static code = 'rolled_back'
  static names = ['revision', 'epoch', 'from_revision', 'head']

  /**
   * @param {{ revision: number, epoch: string, from_revision: number, head: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.revision = fields.revision
    this.epoch = fields.epoch
    this.from_revision = fields.from_revision
    this.head = fields.head
  }
}

/**
 * A restore at revision `revision` changed more than one delivery can hold.
 *
 * The board is in `epoch`, with the content of `from_revision`: read the state, and watch on from
 * the revision that it was read at.
 */
export class Resync extends Rejected {
  static code = 'resync'
  static names = ['revision', 'epoch', 'from_revision']

  /**
   * @param {{ revision: number, epoch: string, from_revision: number }} fields
   * @param {string} [message]
   */
  constructor (fields, message) {
    super(fields, message)
    this.revision = fields.revision
    this.epoch = fields.epoch
    this.from_revision = fields.from_revision
  }
}

/** Every error by its code.
 * @type {ReadonlyMap<string, new (fields: any, message?: string) => BlackboardError>}
 */
export const BY_CODE = new Map(/** @type {any} */ ([
  [ModelFailed.code, ModelFailed],
  [CallFailed.code, CallFailed],
  [CommandStopped.code, CommandStopped],
  [CallInterrupted.code, CallInterrupted],
  [Diverged.code, Diverged],
  [AgentInterrupted.code, AgentInterrupted],
  [SchemaTooNew.code, SchemaTooNew],
  [MigrationFailed.code, MigrationFailed],
  [InvalidState.code, InvalidState],
  [LeaseLost.code, LeaseLost],
  [Unavailable.code, Unavailable],
  [Overloaded.code, Overloaded],
  [RateLimited.code, RateLimited],
  [OutcomeUnknown.code, OutcomeUnknown],
  [LocalProtocolError.code, LocalProtocolError],
  [RemoteProtocolError.code, RemoteProtocolError],
  [Corrupt.code, Corrupt],
  [NewerFormat.code, NewerFormat],
  [OlderFormat.code, OlderFormat],
  [EngineRefused.code, EngineRefused],
  [DataDirectoryInUse.code, DataDirectoryInUse],
  [Rejected.code, Rejected],
  [Conflict.code, Conflict],
  [Fenced.code, Fenced],
  [LeaseHeld.code, LeaseHeld],
  [NothingToClaim.code, NothingToClaim],
  [StaleEpoch.code, StaleEpoch],
  [HeadMoved.code, HeadMoved],
  [SnapshotFirst.code, SnapshotFirst],
  [BoardFrozen.code, BoardFrozen],
  [NoSuchBoard.code, NoSuchBoard],
  [NoSuchCheckpoint.code, NoSuchCheckpoint],
  [BarrierMissed.code, BarrierMissed],
  [AttemptTooOld.code, AttemptTooOld],
  [StepSuperseded.code, StepSuperseded],
  [TypeMismatch.code, TypeMismatch],
  [DocumentRefused.code, DocumentRefused],
  [FileRefused.code, FileRefused],
  [UnsavedFiles.code, UnsavedFiles],
  [WorkspaceHeld.code, WorkspaceHeld],
  [LimitExceeded.code, LimitExceeded],
  [AccessDenied.code, AccessDenied],
  [InvalidRequest.code, InvalidRequest],
  [Unauthenticated.code, Unauthenticated],
  [Compacted.code, Compacted],
  [FutureRevision.code, FutureRevision],
  [RolledBack.code, RolledBack],
  [Resync.code, Resync],
]))

/**
 * The error that a peer described; an unknown code becomes RemoteProtocolError.
 * @param {unknown} code
 * @param {Record<string, unknown>} fields
 * @param {string} [message]
 * @returns {BlackboardError}
 */
export function fromFields (code, fields, message) {
  const kind = typeof code === 'string' ? BY_CODE.get(code) : undefined
  if (kind === undefined) {
    return new RemoteProtocolError({ reason: `error ${printed(code)?.slice(0, 100)}` })
  }
  return new kind(/** @type {any} */ (fields), message)
}
