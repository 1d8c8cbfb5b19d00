// Claims: exactly one agent takes, works on and finishes an entry that matches a pattern.
//
// Invariants
// - To claim an entry is to be granted the lease of its key while the entry is unchanged. Of any number
//   of claimers one wins; the others continue with the next entry.
// - An attempt is counted by the commit that begins it, so that no crash loses it.
// - An attempt ends in one commit that also ends the lease: the entry is removed, returned, or moved to
//   the dead letters. If a claimer dies, its lease runs out, which returns the entry.
// - An abort never interrupts a request that takes an entry: its answer is processed first, then the
//   claim is undone.
//
// Records and their places are those of the Python client, so both can work on the same tasks.
import { BlackboardError, Conflict, Fenced, InvalidRequest, LeaseHeld, NothingToClaim } from './errors.js'
import { LEASE_TTL_MS_MIN, NOTE_BYTES_MAX, READ_KEYS_MAX } from './limits.js'
import { Lock, UNDELIVERED, newHolder } from './lock.js'
import { encodeValue } from './msgpack.js'
import { isPrefix, namespaceOf } from './paths.js'
import { given } from './records.js'
import { endAfter, pause } from './waiting.js'

/** @import { Board } from './board.js' */
/** @import { HeldFence, LeaseMessage } from './methods.js' */
/** @import { Entry, Listing, RevisionEvent } from './records.js' */
/** @import { Condition, Op, Writer } from './writer.js' */

/** @typedef {{ tries: number, created: number, last_error: string, delayed: boolean }} TriesRecord */
/** @typedef {{ ttl_ms: number, timeout_ms: number | null, tries_max: number, signal: AbortSignal | undefined }} ClaimOptions */

/**
 * An entry that was claimed at least once, and is not done. `state` is "claimed" (by `holder`, until
 * `until_ms` if that is not renewed), "delayed" (it cannot be claimed until `until_ms`), "returned" (it
 * can be claimed) or "dead".
 * @typedef {{ key: string, state: string, tries: number, holder: string | null, until_ms: number | null, last_error: string }} Claimed
 */

const TRIES = '~tries'
const DEAD = '~dead'
const REASON_BYTES_MAX = NOTE_BYTES_MAX - 32

/** An entry that is yours to work on, inside the body of `Board.withClaim`. */
export class Task {
  /**
   * @param {Lock} lock
   * @param {Entry} entry
   * @param {TriesRecord} record
   */
  constructor (lock, entry, record) {
    /** The entry as it was claimed. */
    this.entry = entry
    /** The number of this attempt, from 1. Attempts whose claimer died count, too. */
    this.attempt = record.tries
    /** The error of the last attempt that reported one, "" if none did. */
    this.last_error = record.last_error
    /** How long it cannot be claimed after the body throws: 0, or LEASE_TTL_MS_MIN and more. */
    this.delay_ms = 0
    /** The fence of the claim. @type {HeldFence} */
    this.fence = /** @type {HeldFence} */ (lock.fences[0])
    /** What is committed when the task is done. @type {Op[]} */
    this.ops = []
    this._lock = lock
  }

  /** The entry's key. */
  get key () { return this.entry.key }

  /** The entry's value when it was claimed. */
  get value () { return this.entry.value }

  /** The board whose commits rely on this claim: they are Fenced once it is lost. */
  get board () { return this._lock.board }

  /** Aborted at once when the claim is lost: pass it to what should end then. */
  get signal () { return this._lock.signal }

  /**
   * Set `key` to `value` when the task is done.
   * @param {string} key
   * @param {any} value
   * @param {{ ttl_ms?: number }} [options]
   */
  put (key, value, { ttl_ms } = {}) { this.ops.push(given({ kind: /** @type {const} */ ('put'), key, value: encodeValue(value), ttl_ms })) }

  /**
   * Add `value` as the next item below `prefix` when the task is done.
   * @param {string} prefix
   * @param {any} value
   * @param {{ ttl_ms?: number }} [options]
   */
  append (prefix, value, { ttl_ms } = {}) {
    this.ops.push(given({ kind: /** @type {const} */ ('append'), prefix, value: encodeValue(value), ttl_ms }))
  }

  /**
   * Make its value the next item below `prefix` when the task is done.
   * @param {string} prefix
   */
  moveTo (prefix) { this.append(prefix, this.value) }
}

/** Made by `Board.withClaim`. */
export class Claim {
  /**
   * @param {Board} board
   * @param {Writer} writer
   * @param {string} pattern
   * @param {ClaimOptions} options
   */
  constructor (board, writer, pattern, options) {
    if (!Number.isSafeInteger(options.tries_max) || options.tries_max < 1) {
      throw new InvalidRequest({ field: 'tries_max', reason: `${options.tries_max} is not an integer from 1 on` })
    }
    this._board = board
    this._writer = writer
    this._pattern = checkedPattern(pattern)
    this._options = options
    /** The record of tries as it was before the task was taken. @type {Entry | null} */
    this._before = null
  }

  /**
   * Take a task, run `body`, and end it.
   * @template T
   * @param {(task: Task) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async run (body) {
    const task = await this._next()
    const { signal } = this._options
    if (signal?.aborted) {
      await this._quietly(this._undo(task))
      throw signal.reason
    }
    const lock = task._lock
    lock.begin()
    let result
    try {
      result = await body(task)
    } catch (error) {
      lock.end()
      await this._quietly(this._failed(task, error))
      throw error
    }
    lock.end()
    if (lock.lost === null) await this._settle(task)
    else await this._quietly(this._failed(task, lock.lost))
    if (lock.lost !== null) throw lock.lost
    return result
  }

  // --- taking -------------------------------------------------------------------------------------

  /** Take the first entry that is free; wait for one if there is none. */
  async _next () {
    const { timeout_ms, signal } = this._options
    const patience = new AbortController()
    const abort = () => patience.abort()
    const callOff = endAfter(timeout_ms ?? Infinity, abort)
    signal?.addEventListener('abort', abort, { once: true })
    try {
      signal?.throwIfAborted()
      let { task, seen } = await this._look()
      if (task !== null) return task
      if (timeout_ms === 0) throw new NothingToClaim({ pattern: this._pattern, waited_ms: 0 })
      while (task === null) {
        try {
          task = await this._wait(seen, patience.signal)
        } catch (error) {
          // What became free cannot be delivered, so it is looked for.
          if (!UNDELIVERED.some(kind => error instanceof kind)) throw error
          ;({ task, seen } = await this._look())
        }
      }
      return task
    } finally {
      callOff()
      signal?.removeEventListener('abort', abort)
    }
  }

  /**
   * Take the first entry that becomes free after revision `seen`.
   * @param {number} seen
   * @param {AbortSignal} patience
   */
  async _wait (seen, patience) {
    const watch = await this._board.watch(this._pattern, { after: seen })
    try {
      /** @type {Task | null} */
      let task = null
      while (task === null) {
        await this._untilFree(watch, seen, patience)
        ;({ task, seen } = await this._look())
      }
      return task
    } finally {
      watch.close()
    }
  }

  /**
   * Return when something after revision `seen` may have made an entry free. Only this wait is bounded:
   * taking an entry is not interrupted.
   * @param {{ next: (options: { signal: AbortSignal }) => Promise<RevisionEvent> }} watch
   * @param {number} seen
   * @param {AbortSignal} patience
   */
  async _untilFree (watch, seen, patience) {
    try {
      for (;;) {
        patience.throwIfAborted()
        const revised = await watch.next({ signal: patience })
        if (revised.revision > seen && frees(this._pattern, revised)) return
      }
    } catch (error) {
      this._options.signal?.throwIfAborted()
      if (!patience.aborted) throw error
      throw new NothingToClaim({ pattern: this._pattern, waited_ms: this._options.timeout_ms ?? 0 })
    }
  }

  /** Scan the entries once, in their order; `seen` is the revision after which to watch. */
  async _look () {
    let page = await this._page(null)
    const seen = page.revision
    const held = new Set((await this._board.leases(this._pattern)).map(lease => lease.key))
    for (;;) {
      for (const entry of page.entries) {
        if (held.has(entry.key) || !isClaimed(this._pattern, entry.key)) continue
        this._options.signal?.throwIfAborted()
        const task = await this._take(entry)
        if (task !== null) return { task, seen }
      }
      if (page.next_key === null) return { task: null, seen }
      page = await this._page(page.next_key)
    }
  }

  /**
   * @param {string | null} after
   * @returns {Promise<Listing>}
   */
  async _page (after) {
    return await this._board.list(this._pattern, { after, limit: this._writer.channel.limits.claim_look_entries })
  }

  /**
   * Claim `entry`; null if another claimer was faster, it changed, or it was tried too often.
   * @param {Entry} entry
   */
  async _take (entry) {
    for (let left = this._writer.channel.limits.claim_take_attempts_max; left > 0; left--) {
      const found = await this._board.entry(triesKey(entry.key))
      let task
      try {
        task = await this._grant(entry, found)
      } catch (error) {
        if (error instanceof LeaseHeld) return null
        if (!(error instanceof Conflict)) throw error
        if (error.key === entry.key) return null
        continue // an attempt was counted in between, and may be over already
      }
      if (task.attempt <= this._options.tries_max) return task
      await this._quietly(this._bury(task, task.last_error || 'its claimers died'))
      return null
    }
    return null
  }

  /**
   * Take `entry`, whose record was `found`.
   * @param {Entry} entry
   * @param {Entry | null} found
   */
  async _grant (entry, found) {
    const { ttl_ms, signal } = this._options
    const before = recordOf(found, entry.create_revision)
    const record = { ...before, tries: before.tries + 1, delayed: false }
    const holder = await newHolder(this._writer)
    const sent = performance.now()
    const receipt = await this._commit(
      [{ kind: 'grant', key: entry.key, holder, ttl_ms, wait: false }, keeping(entry.key, record)],
      'claimed',
      [
        { kind: 'key_at', key: entry.key, revision: entry.mod_revision },
        { kind: 'key_at', key: triesKey(entry.key), revision: found?.mod_revision ?? 0 }
      ],
      this._board.fences)
    const fence = { key: entry.key, holder, fence: receipt.revision }
    this._before = found
    return new Task(Lock.granted(this._board, this._writer, fence, sent, { ttl_ms, timeout_ms: null, signal }), entry, record)
  }

  // --- ending -------------------------------------------------------------------------------------

  /**
   * The body succeeded: finish the task, unless its lease was lost.
   * @param {Task} task
   */
  async _settle (task) {
    try {
      await this._commit(
        [...task.ops, { kind: 'delete', key: task.key }, { kind: 'delete', key: triesKey(task.key) }, releasing(task)],
        'done', [], this._board.fences)
    } catch (error) {
      if (error instanceof Fenced && error.key === task.key) return task._lock.lose('its end came too late', error)
      await this._quietly(this._failed(task, error))
      throw error
    }
  }

  /**
   * The attempt ended with `error`: the task is returned, or it was the last attempt.
   * @param {Task} task
   * @param {unknown} error
   */
  async _failed (task, error) {
    const last_error = textOf(error)
    if (task.attempt >= this._options.tries_max) return await this._bury(task, last_error)
    const record = { tries: task.attempt, created: task.entry.create_revision, last_error, delayed: task.delay_ms > 0 }
    /** @type {Op} */
    const delayed = { kind: 'renew', ...task.fence, ttl_ms: Math.max(task.delay_ms, LEASE_TTL_MS_MIN) }
    await this._commit([keeping(task.key, record), record.delayed ? delayed : releasing(task)], `returned: ${last_error}`)
  }

  /**
   * Move the entry's present value to the dead letters, together with its record.
   * @param {Task} task
   * @param {string} last_error
   */
  async _bury (task, last_error) {
    const entry = await this._board.stored(task.key)
    /** @type {Op[]} */
    const ops = [{ kind: 'delete', key: triesKey(task.key) }, releasing(task)]
    /** @type {Condition[]} */
    const conditions = []
    if (entry !== null) {
      const dead = beside(task.key, DEAD)
      const record = { tries: task.attempt, created: task.entry.create_revision, last_error, delayed: false }
      ops.push(
        { kind: 'delete', key: task.key },
        { kind: 'put', key: dead, value: entry.value },
        keeping(dead, record))
      conditions.push({ kind: 'key_at', key: task.key, revision: entry.mod_revision })
    }
    await this._commit(ops, `dead letter: ${last_error}`, conditions)
  }

  /**
   * Undo the claim, as if `task` had not been taken.
   * @param {Task} task
   */
  async _undo (task) {
    const key = triesKey(task.key)
    /** @type {Op} */
    const was = this._before === null ? { kind: 'delete', key } : { kind: 'put', key, value: encodeValue(this._before.value) }
    await this._commit([was, releasing(task)], '')
  }

  /**
   * A commit of the claim itself. It takes no signal: what it did must be known. Without `fences`, those
   * of the board, it gives a task back also when a lock is lost: that may be why it failed.
   * @param {Op[]} ops
   * @param {string} note
   * @param {Condition[]} [conditions]
   * @param {ReadonlyArray<HeldFence>} [fences]
   */
  async _commit (ops, note, conditions = [], fences = []) {
    return await this._writer.commit({ ops, conditions, fences: [...fences], note })
  }

  /**
   * Tidy up. If that fails, or takes too long, the lease is left to run out.
   * @param {Promise<void>} work
   */
  async _quietly (work) {
    const over = new AbortController()
    const late = pause(this._writer.channel.limits.finish_timeout_ms, over.signal)
    late.catch(() => {})
    try {
      await Promise.race([work, late])
    } catch (error) {
      if (!(error instanceof BlackboardError)) throw error
    } finally {
      over.abort()
      work.catch(() => {})
    }
  }
}

// --- what can be seen -----------------------------------------------------------------------------

/**
 * Entries that match and were claimed, in key order; then those of them that are dead.
 * @param {Board} board
 * @param {string} pattern
 * @param {AbortSignal} [signal]
 * @returns {Promise<Claimed[]>}
 */
export async function claims (board, pattern, signal) {
  const options = given({ signal })
  const leases = new Map((await board.leases(checkedPattern(pattern), options)).map(lease => [lease.key, lease]))
  /** @type {Claimed[]} */
  const found = []
  for (const [entry, kept] of await recorded(board, pattern, options)) {
    const record = recordOf(kept, entry.create_revision)
    if (record.tries > 0) found.push(seen(entry.key, record, leases.get(entry.key)))
  }
  for (const [entry, kept] of await recorded(board, beside(pattern, DEAD), options)) {
    // Their records were moved with them, and describe the original entries.
    const { tries, last_error } = recordOf(kept, kept.value?.created ?? 0)
    found.push({ key: entry.key, state: 'dead', tries, holder: null, until_ms: null, last_error })
  }
  return found
}

/**
 * Entries that match and have a record, each with the entry of its record.
 * @param {Board} board
 * @param {string} pattern
 * @param {{ signal?: AbortSignal }} options
 */
async function recorded (board, pattern, options) {
  /** @type {Map<string, Entry>} */
  const records = new Map()
  for await (const kept of board.scan(triesKey(pattern), options)) {
    const key = kept.key.replace(`/${TRIES}/`, '/')
    if (isClaimed(pattern, key)) records.set(key, kept)
  }
  const keys = [...records.keys()].sort()
  /** @type {[Entry, Entry][]} */
  const found = []
  for (let start = 0; start < keys.length; start += READ_KEYS_MAX) {
    const entries = await board.entries(keys.slice(start, start + READ_KEYS_MAX), options)
    for (const key of [...entries.keys()].sort()) {
      found.push([/** @type {Entry} */ (entries.get(key)), /** @type {Entry} */ (records.get(key))])
    }
  }
  return found
}

/**
 * @param {string} key
 * @param {TriesRecord} record
 * @param {LeaseMessage | undefined} lease
 * @returns {Claimed}
 */
function seen (key, { tries, last_error, delayed }, lease) {
  if (lease === undefined) return { key, state: 'returned', tries, holder: null, until_ms: null, last_error }
  const state = delayed ? 'delayed' : 'claimed'
  return { key, state, tries, holder: delayed ? null : lease.holder, until_ms: lease.until_ms, last_error }
}

// --- records and places ---------------------------------------------------------------------------

/**
 * @param {string} path
 * @param {string} branch
 */
function beside (path, branch) {
  const namespace = namespaceOf(path)
  return `${namespace}/${branch}${path.slice(namespace.length)}`
}

/**
 * Where attempts at `key` are counted: `public/tasks/7` -> `public/~tries/tasks/7`.
 * @param {string} key
 */
function triesKey (key) { return beside(key, TRIES) }

/**
 * The first segment of a key, or of a pattern, within its namespace.
 * @param {string} path
 */
function firstSegment (path) { return path.slice(namespaceOf(path).length + 1).split('/')[0] ?? '' }

/**
 * Whether `pattern` is about `key`, which it matches: `~tries` and the like must be named, and a record of attempts
 * must fit beside it, also when it is dead.
 * @param {string} pattern
 * @param {string} key
 */
function isClaimed (pattern, key) {
  const branch = firstSegment(key)
  return (!branch.startsWith('~') || branch === firstSegment(pattern)) && isPrefix(triesKey(beside(key, DEAD)))
}

/**
 * `pattern`, if there is a place for records beside all that it matches.
 * @param {string} pattern
 */
function checkedPattern (pattern) {
  if (!/^(?:public|private|inbox)\//.test(pattern) || firstSegment(pattern) === '') {
    throw new InvalidRequest({ field: 'pattern', reason: `'${pattern}' does not begin with a namespace, as public/tasks/* does` })
  }
  return pattern
}

/**
 * The record of the entry that exists since `created`; without one: no attempt yet.
 * @param {Entry | null} found
 * @param {number} created
 * @returns {TriesRecord}
 */
function recordOf (found, created) {
  const { tries, last_error, created: since, delayed } = found?.value ?? {}
  if (since === created && Number.isSafeInteger(tries) && tries >= 0 && typeof last_error === 'string') {
    return { tries, created, last_error, delayed: delayed === true }
  }
  return { tries: 0, created, last_error: '', delayed: false }
}

/**
 * The operation that keeps the record of the entry `key`.
 * @param {string} key
 * @param {TriesRecord} record
 * @returns {Op}
 */
function keeping (key, { tries, created, last_error, delayed }) {
  return { kind: 'put', key: triesKey(key), value: encodeValue({ tries, created, last_error, delayed }) }
}

/**
 * @param {Task} task
 * @returns {Op}
 */
function releasing (task) { return { kind: 'release', ...task.fence } }

/**
 * Whether a revision may have freed an entry that matches `pattern`.
 * @param {string} pattern
 * @param {RevisionEvent} revised
 */
function frees (pattern, { changes, epoch }) {
  if (epoch !== null) return true // a restore ends every lease, and may change no entry
  const gone = new Set(changes.filter(({ kind }) => kind === 'delete').map(({ key }) => key))
  return changes.some(({ kind, key }) => ['put', 'release', 'expire'].includes(kind) && !gone.has(key) && isClaimed(pattern, key))
}

/**
 * An error as one short text for the record.
 * @param {any} error
 */
function textOf (error) {
  const text = new TextEncoder().encode(`${error?.name ?? typeof error}: ${error?.message ?? String(error)}`)
  return new TextDecoder().decode(text.slice(0, REASON_BYTES_MAX)).replace(/\uFFFD$/u, '')
}
