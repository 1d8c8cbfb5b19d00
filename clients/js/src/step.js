// A step: an agent's tracked reads and gathered writes, and the one commit that combines them.
//
// Invariants
// - Nothing is sent before the body has ended; a body that throws commits nothing.
// - The commit is conditioned on what was read: a key on its mod_revision at the first read, a listing
//   of a whole subtree on "nothing changed below it since". The runtime's branches count only if the
//   pattern names them.
// - A step from before a restore is refused, even if its board was refreshed in between.
// - `get` and `merge` see the step's own writes (except appended items, whose keys are not known yet).
import { LocalProtocolError, TypeMismatch } from './errors.js'
import { BASED_ON_MAX } from './limits.js'
import { merged } from './merge.js'
import { encodeValue, unpack } from './msgpack.js'
import { isMeant, isPrefix, prefixOf } from './paths.js'
import { given } from './records.js'

/** @import { Board } from './board.js' */
/** @import { Entry } from './records.js' */
/** @import { Condition, Op, Receipt } from './writer.js' */
/** @import { HeldFence } from './methods.js' */

/** Made by `Board.step`, which passes it to the body. */
export class Step {
  /**
   * @param {Board} board
   * @param {{ validate: boolean, note: string, check: () => void, signal: AbortSignal | undefined }} options
   */
  constructor (board, options) {
    /** What was committed; null before that, and when nothing was to be written. @type {Receipt | null} */
    this.receipt = null
    this.note = options.note
    this._board = board
    this._options = options
    /** @type {Op[]} */
    this._ops = []
    /** @type {Map<string, number>} */
    this._read = new Map()
    /** @type {Map<string, number>} */
    this._listed = new Map()
    /** @type {Set<string>} */
    this._covered = new Set()
    /** @type {Condition[]} */
    this._conditions = []
    /** @type {HeldFence[]} */
    this._fences = []
    /** @type {Map<string, number>} */
    this._grounds = new Map()
    this._open = true
  }

  /** The agent that takes this step. */
  get agent () { return this._board.agent }

  /**
   * Run `body`, then commit.
   * @template T
   * @param {(step: Step) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async run (body) {
    let result
    try {
      result = await body(this)
    } finally {
      this._open = false
    }
    if (this._ops.length > 0) this.receipt = await this._commit()
    return result
  }

  // --- reads --------------------------------------------------------------------------------------

  /**
   * The value at `key` as this step sees it, own writes included; `fallback` if absent. It is not read
   * from the board (and not tracked) when the step itself put or deleted it.
   * @param {string} key
   * @param {any} [fallback]
   * @returns {Promise<any>}
   */
  async get (key, fallback = null) {
    this._checkOpen()
    const { base, added } = this._own(key)
    let found
    if (base === null) {
      const entry = await this.entry(key)
      found = entry === null ? undefined : entry.value
    } else if (base.kind === 'put') found = unpack(base.value)
    if (added.length > 0) return sum(key, found === undefined ? 0 : found, added)
    return found === undefined ? fallback : found
  }

  /**
   * The step's last absolute effect on `key`, and the increments after it.
   * @param {string} key
   */
  _own (key) {
    /** @type {Op | null} */
    let base = null
    /** @type {number[]} */
    let added = []
    for (const op of this._ops) {
      const isEffect = (op.kind === 'put' || op.kind === 'delete')
        ? op.key === key
        : op.kind === 'delete_prefix' && key.startsWith(op.prefix + '/')
      if (isEffect) {
        base = op
        added = []
      } else if (op.kind === 'increment' && op.key === key) added.push(op.by)
    }
    return { base, added }
  }

  /**
   * The entry at `key` on the board, without own writes; the read is tracked.
   * @param {string} key
   * @returns {Promise<Entry | null>}
   */
  async entry (key) {
    this._checkOpen()
    const entry = await this._board.entry(key, given({ signal: this._options.signal }))
    this._track(key, entry === null ? 0 : entry.mod_revision)
    return entry
  }

  /**
   * Track a read that was made outside of the step: its commit is also conditioned on `entry`.
   * @param {Entry} entry
   */
  saw (entry) {
    this._checkOpen()
    this._track(entry.key, entry.mod_revision)
  }

  /**
   * @param {string} key
   * @param {number} revision
   */
  _track (key, revision) { if (!this._read.has(key)) this._read.set(key, revision) }

  /**
   * The first entries that match, without own writes; tracked. A pattern `<prefix>/**` within one
   * namespace is tracked as a whole (including new and removed keys), any other one by the entries
   * found.
   * @param {string} pattern
   */
  async list (pattern) {
    this._checkOpen()
    const listing = await this._board.list(pattern, given({ signal: this._options.signal }))
    const prefix = prefixOf(pattern)
    const meant = listing.entries.filter(entry => isMeant(pattern, entry.key))
    if (pattern === `${prefix}/**` && isPrefix(prefix)) {
      if (!this._listed.has(prefix)) this._listed.set(prefix, listing.revision)
      for (const { key, mod_revision } of meant) {
        if ((this._read.get(key) ?? mod_revision) === mod_revision) this._covered.add(key)
      }
    }
    for (const entry of meant) this._track(entry.key, entry.mod_revision)
    return listing
  }

  // --- writes -------------------------------------------------------------------------------------

  /**
   * Set `key` to `value` when the step commits.
   * @param {string} key
   * @param {any} value
   * @param {{ ttl_ms?: number }} [options]
   */
  put (key, value, options = {}) { this._add(given({ kind: 'put', key, value: encodeValue(value), ttl_ms: options.ttl_ms })) }

  /**
   * Remove `key` when the step commits.
   * @param {string} key
   */
  delete (key) { this._add({ kind: 'delete', key }) }

  /**
   * Remove everything below `prefix` when the step commits.
   * @param {string} prefix
   */
  deletePrefix (prefix) { this._add({ kind: 'delete_prefix', prefix }) }

  /**
   * Add `value` as the next item below `prefix`; its key is in `receipt.results`.
   * @param {string} prefix
   * @param {any} value
   * @param {{ ttl_ms?: number }} [options]
   */
  append (prefix, value, options = {}) {
    this._add(given({ kind: 'append', prefix, value: encodeValue(value), ttl_ms: options.ttl_ms }))
  }

  /**
   * Add `by` to the integer at `key`; the sum is in `receipt.results`.
   * @param {string} key
   * @param {number} [by]
   */
  increment (key, by = 1) { this._add({ kind: 'increment', key, by }) }

  /**
   * Append `message` to the inbox of `agent`, in the same commit as everything else.
   * @param {string} agent
   * @param {any} message
   */
  send (agent, message) { this.append(`inbox/${agent}/messages`, message) }

  /**
   * Apply a JSON merge patch (RFC 7396) to `key` as this step sees it; returns the value.
   * @param {string} key
   * @param {any} patch
   * @returns {Promise<any>}
   */
  async merge (key, patch) {
    const value = merged(await this.get(key), patch)
    this.put(key, value)
    return value
  }

  /**
   * Add conditions of your own.
   * @param {...Condition} conditions
   */
  expect (...conditions) {
    this._checkOpen()
    this._conditions.push(...conditions)
  }

  /**
   * Add entries to the provenance of this step (`why`), without a condition.
   * @param {...[string, number]} grounds
   */
  restOn (...grounds) {
    this._checkOpen()
    for (const [key, revision] of grounds) this._grounds.set(key, revision)
  }

  /**
   * Add leases without which the commit must not happen.
   * @param {...HeldFence} fences
   */
  relyOn (...fences) {
    this._checkOpen()
    this._fences.push(...fences)
  }

  /** @param {Op} op */
  _add (op) {
    this._checkOpen()
    this._ops.push(op)
  }

  _checkOpen () {
    if (!this._open) throw new LocalProtocolError({ reason: 'a step is used inside its body only' })
  }

  async _commit () {
    this._options.check()
    /** @type {Condition[]} */
    const conditions = [...this._conditions]
    if (this._options.validate) {
      for (const [prefix, since] of this._listed) conditions.push({ kind: 'prefix_unchanged', prefix, since })
      for (const [key, revision] of this._read) {
        if (!this._covered.has(key)) conditions.push({ kind: 'key_at', key, revision })
      }
    }
    const grounds = [...new Map([...this._grounds, ...this._read])].filter(([, revision]) => revision !== 0)
    return await this._board.send(this._ops, given({
      conditions,
      fences: this._fences,
      based_on: grounds.slice(0, BASED_ON_MAX),
      note: this.note,
      signal: this._options.signal
    }))
  }
}

/**
 * @param {string} key
 * @param {any} value
 * @param {number[]} added
 */
function sum (key, value, added) {
  if (!Number.isInteger(value)) {
    const found = value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value
    throw new TypeMismatch({ key, wanted: 'integer', found })
  }
  return added.reduce((total, by) => total + by, value)
}
