// Locks: leases with a queue, automatic renewal, and fences that go with the commits of `lock.board`.
//
// Several keys are requested in one commit, so every queue has the waiters in the same order, and
// there is no deadlock. The log wakes waiters; there is no polling.
//
// Invariants
// - `_places` holds what this acquisition may have on the board, from before it first asks until it is
//   known that nothing is left: the fence of each granted key, 0 for each key that it waits for.
// - An abort never interrupts a request to the board: its answer is processed first, then everything
//   is released.
// - The body runs only while every key is granted. `_deadline` is on a monotonic clock that was read
//   before the last answered renewal was sent: the lease cannot have expired before.
import {
  BlackboardError, Compacted, Fenced, FutureRevision, InvalidRequest, LeaseHeld, LeaseLost, LimitExceeded,
  LocalProtocolError, OutcomeUnknown, Resync, RolledBack, Unavailable
} from './errors.js'
import { FENCES_MAX, SEGMENT_BYTES_MAX } from './limits.js'
import { endAfter, pause, randomHex } from './waiting.js'
import { Watch } from './watch.js'

/** @import { Board } from './board.js' */
/** @import { Writer, Op, Receipt } from './writer.js' */
/** @import { HeldFence } from './methods.js' */
/** @import { Change } from './records.js' */

/** @typedef {{ holder: string, fence: number, until_ms: number, waiters: string[] }} Lease */

const UNIQUE_CHARACTERS = 16
const OWNER_CHARACTERS_MAX = SEGMENT_BYTES_MAX - UNIQUE_CHARACTERS - 1
/**
 * Why a watch cannot go on: the log has gone on without it, a restore was too large to be delivered, or
 * the engine lost commits. What it waited for has to be read.
 */
export const UNDELIVERED = [Compacted, FutureRevision, Resync, RolledBack]
const LOST = 'another holder has it, or it is free'

/** Made by `Board.withLock`, which passes it to the body. */
export class Lock {
  /**
   * @param {Board} board
   * @param {Writer} writer
   * @param {ReadonlyArray<string>} keys
   * @param {{ ttl_ms: number, timeout_ms: number | null, signal: AbortSignal | undefined }} options
   */
  constructor (board, writer, keys, options) {
    if (keys.length === 0) throw new InvalidRequest({ field: 'keys', reason: 'at least one key is needed' })
    this.keys = [...new Set(keys)].sort()
    if (this.keys.length > FENCES_MAX) {
      throw new LimitExceeded({ limit: 'FENCES_MAX', value: this.keys.length, maximum: FENCES_MAX, where: 'keys' })
    }
    /** The name of this acquisition on the board. */
    this.holder = ''
    /** The board whose commits rely on this lock: they are Fenced once it is lost. */
    this.board = board
    this._writer = writer
    this._options = options
    /** @type {Map<string, number>} */
    this._places = new Map()
    /** The leases as last seen, of any holder. @type {Map<string, Lease>} */
    this._leases = new Map()
    this._askedAt = 0
    this._sent = 0
    this._deadline = 0
    /** @type {LeaseLost | null} */
    this._lost = null
    this._losing = new AbortController()
    this._over = new AbortController()
  }

  /** Aborted at once when a lease is lost: pass it to what should end then. */
  get signal () { return this._losing.signal }

  /** The fences that commits of `board` carry. @returns {HeldFence[]} */
  get fences () { return [...this._places].map(([key, fence]) => ({ key, holder: this.holder, fence })) }

  /** When the lease runs out if it is not renewed again, by the engine's clock. */
  get until_ms () { return Math.min(...this.keys.map(key => this._leases.get(key)?.until_ms ?? 0)) }

  /** Why it is lost, or null. @type {LeaseLost | null} */
  get lost () { return this._lost }

  /**
   * A lock on one key that was granted already, by a commit that was sent at `sent`.
   * @param {Board} board
   * @param {Writer} writer
   * @param {HeldFence} fence
   * @param {number} sent
   * @param {{ ttl_ms: number, timeout_ms: number | null, signal: AbortSignal | undefined }} options
   */
  static granted (board, writer, fence, sent, options) {
    const lock = new Lock(board, writer, [fence.key], options)
    lock.holder = fence.holder
    lock._places.set(fence.key, fence.fence)
    lock._sent = sent
    return lock
  }

  /** From here on it is renewed, and the commits of `board` rely on it. */
  begin () {
    this.board = this.board.relyingOn(this.fences)
    this._deadline = this._sent + this._options.ttl_ms
    void this._keep()
  }

  /** It is not renewed any more. */
  end () { this._over.abort() }

  /**
   * Acquire the lock, run `body`, and release it.
   * @template T
   * @param {(lock: Lock) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async run (body) {
    this.holder = await newHolder(this._writer)
    await this._acquire()
    this.begin()
    let result
    try {
      result = await body(this)
    } catch (error) {
      await this._release()
      throw error
    }
    await this._release()
    if (this._lost !== null) throw this._lost
    return result
  }

  // --- waiting ------------------------------------------------------------------------------------

  async _acquire () {
    const { timeout_ms, signal } = this._options
    const patience = new AbortController()
    const abort = () => patience.abort()
    // With 0, the board refuses what is held.
    const callOff = endAfter(timeout_ms || Infinity, abort)
    signal?.addEventListener('abort', abort, { once: true })
    try {
      signal?.throwIfAborted()
      await this._ask()
      while (!this._granted()) {
        patience.signal.throwIfAborted()
        try {
          await this._wait(patience.signal)
        } catch (error) {
          if (!UNDELIVERED.some(kind => error instanceof kind)) throw error
          // What was granted meanwhile is in the answer to a renewal, from which the next watch goes on.
          await this._prolong()
        }
        if (performance.now() >= this._due()) await this._prolong()
        if (this._outrun()) await this._askAgain()
      }
    } catch (error) {
      await this._leaveInTime()
      if (signal?.aborted) throw signal.reason
      throw patience.signal.aborted ? this._inTheWay() : error
    } finally {
      callOff()
      signal?.removeEventListener('abort', abort)
    }
  }

  _granted () { return this._places.size === this.keys.length && [...this._places.values()].every(fence => fence > 0) }

  /** Whether a lease or a ticket ran out while waiting: this process was paused too long. */
  _outrun () { return this._places.size < this.keys.length }

  /** When leases and tickets are to be prolonged, by the monotonic clock. */
  _due () { return this._sent + this._options.ttl_ms / this._writer.channel.limits.renewals_per_ttl }

  /**
   * One commit: each key is granted, or this holder joins its queue. After an error nothing was
   * requested, as far as is known; a request that was applied expires.
   */
  async _ask () {
    this._places = new Map(this.keys.map(key => [key, 0]))
    const { ttl_ms, timeout_ms } = this._options
    /** @type {Op[]} */
    const ops = this.keys.map(key => ({ kind: 'grant', key, holder: this.holder, ttl_ms, wait: timeout_ms !== 0 }))
    this._sent = performance.now()
    try {
      this._takeIn(ops, await this._writer.commit({ ops, fences: [...this.board.fences] }))
    } catch (error) {
      this._places = new Map()
      throw error
    }
  }

  /** Go to the end of the queues: a waiter whose ticket expired has lost its place. */
  async _askAgain () {
    await this._leave()
    await this._ask()
  }

  /**
   * Wait until all keys are granted, or a place is lost. Tickets are renewed during the wait.
   * @param {AbortSignal} signal
   */
  async _wait (signal) {
    const writer = this._writer
    // Fails if it may not be read: the wait would never end.
    await writer.channel.look('read', { ...writer.scope, keys: this.keys }, signal)
    const after = `${await writer.epoch(signal)}:${this._askedAt}:`
    const watch = await new Watch(writer, this.keys, { after, signal }).open()
    try {
      while (!this._granted() && !this._outrun()) {
        const rest = new AbortController()
        const callOff = endAfter(this._due() - performance.now(), () => rest.abort())
        try {
          this._notice(await watch.next({ signal: rest.signal }))
        } catch (error) {
          if (signal.aborted || !rest.signal.aborted) throw error
          await this._prolong()
        } finally {
          callOff()
        }
      }
    } finally {
      watch.close()
    }
  }

  /** Renew leases and tickets, and process what the answer says of them. */
  async _prolong () {
    while (!this._outrun()) {
      try {
        return await this._renew()
      } catch (error) {
        if (!(error instanceof Fenced)) throw error
        this._correct(error)
      }
    }
  }

  /** @param {{ revision: number, changes: Change[] }} revised */
  _notice (revised) {
    for (const { kind, key, lease } of revised.changes) {
      const fence = this._places.get(key)
      // A change from before a grant that a refusal has already reported is outdated.
      if (lease === null || fence === undefined || revised.revision < fence) continue
      const gone = kind === 'release' || kind === 'expire'
      const waiters = (lease.waiters ?? []).map(waiter => waiter.holder)
      this._place(key, gone ? null : { ...lease, waiters })
    }
  }

  /**
   * Process the leases in the results of a commit of `ops`.
   * @param {Op[]} ops
   * @param {Receipt} receipt
   */
  _takeIn (ops, receipt) {
    this._askedAt = receipt.revision
    ops.forEach((op, i) => {
      if (op.kind === 'grant' || op.kind === 'renew') this._place(op.key, leaseIn(receipt.results[i]))
    })
  }

  /**
   * The place of this holder, given the present `lease` of the board.
   * @param {string} key
   * @param {Lease | null} lease
   */
  _place (key, lease) {
    if (lease !== null) this._leases.set(key, lease)
    if (lease?.holder === this.holder) this._places.set(key, lease.fence)
    else if (lease?.waiters.includes(this.holder)) this._places.set(key, 0)
    else this._places.delete(key)
  }

  /** Why it was not granted in time. */
  _inTheWay () {
    for (const key of this.keys) {
      const lease = this._leases.get(key)
      if (lease !== undefined && lease.holder !== this.holder) {
        return new LeaseHeld({ key, holder: lease.holder, fence: lease.fence, until_ms: lease.until_ms })
      }
    }
    return new Unavailable({ what: `lock ${this.keys[0]}`, reason: 'no answer in time' })
  }

  // --- the commits of a holder --------------------------------------------------------------------

  /** Prolong every lease and every ticket in one commit. Throws Fenced. */
  async _renew () {
    const { ttl_ms } = this._options
    /** @type {Op[]} */
    const ops = [...this._places].map(([key, fence]) => ({ kind: 'renew', key, holder: this.holder, fence, ttl_ms }))
    const sent = performance.now()
    const receipt = await this._writer.commit({ ops })
    this._sent = sent
    this._takeIn(ops, receipt)
  }

  /**
   * Release every lease and every place in a queue; returns the first refusal for a lost lease. Each
   * refusal reports the state of one key, which can change at most twice.
   */
  async _leave () {
    /** @type {Fenced | null} */
    let lost = null
    while (this._places.size > 0) {
      try {
        /** @type {Op[]} */
        const ops = [...this._places].map(([key, fence]) => ({ kind: 'release', key, holder: this.holder, fence }))
        await this._writer.commit({ ops })
        this._places = new Map()
      } catch (error) {
        if (!(error instanceof Fenced)) throw error
        this._correct(error)
        if (!this._places.has(error.key)) lost ??= error
      }
    }
    return lost
  }

  /**
   * Update the places after a refusal: the key was granted in between, or it was lost.
   * @param {Fenced} refusal
   */
  _correct (refusal) {
    if (refusal.holder === this.holder && this._places.has(refusal.key)) this._places.set(refusal.key, refusal.current)
    else this._places.delete(refusal.key)
  }

  /** As `_leave`; a lease that cannot be released in time is left to expire. */
  async _leaveInTime () {
    const over = new AbortController()
    try {
      const late = pause(this._writer.channel.limits.finish_timeout_ms, over.signal).then(() => null)
      late.catch(() => {})
      return await Promise.race([this._leave(), late])
    } catch (error) {
      if (!(error instanceof BlackboardError)) throw error
      if (error.code === 'stale_epoch') this.lose('the board is in another epoch')
      return null
    } finally {
      over.abort()
    }
  }

  async _release () {
    this.end()
    const refusal = await this._leaveInTime()
    if (refusal !== null) this.lose(LOST, refusal)
  }

  // --- keeping it ---------------------------------------------------------------------------------

  /** Renew on time; Unavailable and OutcomeUnknown are tried again until the deadline. */
  async _keep () {
    const over = this._over.signal
    try {
      for (;;) {
        const rest = Math.min(this._due(), this._deadline) - performance.now()
        await pause(rest, over)
        const sent = performance.now()
        try {
          const late = pause(this._deadline - sent, over).then(() => { throw new LocalProtocolError({ reason: 'late' }) })
          late.catch(() => {})
          await Promise.race([this._renew(), late])
          this._deadline = sent + this._options.ttl_ms
        } catch (error) {
          const again = error instanceof Unavailable || error instanceof OutcomeUnknown
          if (!again || performance.now() >= this._deadline) throw error
          this._sent = sent
        }
      }
    } catch (error) {
      if (over.aborted) return
      if (performance.now() >= this._deadline) this.lose('no renewal was answered within its time to live')
      else if (error instanceof Fenced) this.lose(LOST, error)
      else this.lose(`it could not be renewed: ${error instanceof Error ? error.message : String(error)}`)
    }
  }

  /**
   * Record the loss. Only the first one counts.
   * @param {string} reason
   * @param {Fenced} [refusal]
   */
  lose (reason, refusal) {
    if (this._lost !== null) return
    const held = this.board.fences.find(fence => fence.holder === this.holder)
    const key = refusal?.key ?? held?.key ?? this.keys[0] ?? ''
    const fence = refusal?.fence ?? held?.fence ?? 0
    this._lost = new LeaseLost({ key, fence, reason, holder: refusal?.holder ?? null })
    this._losing.abort(this._lost)
  }
}

/**
 * A lease as the result of an operation: (holder, fence, until_ms, then three per waiter).
 * @param {any} flat
 * @returns {Lease | null}
 */
function leaseIn (flat) {
  if (!Array.isArray(flat) || flat.length < 3) return null
  const [holder, fence, until_ms, ...rest] = flat
  return { holder, fence, until_ms, waiters: rest.filter((_, i) => i % 3 === 0) }
}

/**
 * A new name of a holder.
 * @param {Writer} writer
 */
export async function newHolder (writer) { return `${await ownerPrefix(writer)}~${randomHex(UNIQUE_CHARACTERS / 2)}` }

/**
 * What the names of an agent's holders have before their last `~`. In a name with dots, an `@` stands
 * where its account ends. A name that is too long is cut and gets a digest.
 * @param {Writer} writer
 */
async function ownerPrefix (writer) {
  const { agent } = writer
  const account = writer.actsAs === null || writer.actsAs === writer.channel.agent ? writer.channel.account : agent
  const owner = agent.includes('.') ? `${account}@${agent.slice(account.length + 1)}` : agent
  if (owner.length <= OWNER_CHARACTERS_MAX) return owner
  const bytes = new Uint8Array(await subtle().digest('SHA-256', new TextEncoder().encode(owner)))
  const digest = Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('').slice(0, UNIQUE_CHARACTERS)
  return `${owner.slice(0, OWNER_CHARACTERS_MAX - digest.length - 1)}.${digest}`
}

/** The platform's cryptography; browsers have it on pages from https and from localhost. */
export function subtle () {
  const found = globalThis.crypto?.subtle
  if (found === undefined) throw new LocalProtocolError({ reason: 'no cryptography here: serve the page over https' })
  return found
}
