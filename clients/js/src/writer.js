// Exactly once, from the writer's side: identities, retries, and epochs.
//
// Invariants
// - A lane has one commit in flight, and its step numbers only grow. The number of a refused step is
//   not reused.
// - An unknown outcome is resolved by sending the same commit again; only when that fails for
//   `commit_timeout_ms` is OutcomeUnknown thrown.
// - A refused retry is reported as refused only when no earlier attempt can be accepted any more;
//   otherwise its outcome is unknown.
// - A commit is sent again under a new epoch only if nothing that this writer saw was lost.
// - A step that began before the writer adopted the present epoch (`take`) is still refused.
import { Lost } from './channel.js'
import {
  AttemptTooOld, Compacted, OutcomeUnknown, Rejected, RemoteProtocolError, Resync, SnapshotFirst, StaleEpoch,
  Unavailable
} from './errors.js'
import { LANES_MAX, LOG_ENTRIES_MAX } from './limits.js'
import { given } from './records.js'
import { Turn, pause, pauseAfter, randomHex, shortened } from './waiting.js'

/** @import { Channel } from './channel.js' */
/** @import { CommitParams, CommitResult, Epoch, HeldFence, KeyAt, PrefixUnchanged } from './methods.js' */

/** What is Unavailable when no majority of the lock masters answers. */
const LOCK_MASTERS = 'lock masters'

/** @typedef {CommitParams['ops'][number]} Op An operation with an encoded value. */
/** @typedef {KeyAt | PrefixUnchanged} Condition */

/**
 * A commit before it has an identity.
 * @typedef {object} CommitRequest
 * @property {Op[]} ops
 * @property {Condition[]} [conditions]
 * @property {HeldFence[]} [fences]
 * @property {[string, number][]} [based_on]
 * @property {string} [note]
 */

/**
 * A commit that took effect; `results` has what each operation computed.
 * @typedef {object} Receipt
 * @property {number} revision
 * @property {number} time_ms
 * @property {any[]} results
 * @property {string} level what the acknowledgement survives
 * @property {boolean} duplicate whether an earlier attempt had applied it
 */

/** @typedef {AttemptTooOld | OutcomeUnknown | StaleEpoch | Unavailable} Failure Sent again after these. */

/** Commits of one agent on one board, through one channel. */
export class Writer {
  /**
   * @param {Channel} channel
   * @param {string} board
   * @param {string | null} agent whom it acts as; null = the connection's own
   */
  constructor (channel, board, agent) {
    this.channel = channel
    this.board = board
    this.actsAs = agent
    this.seen = 0
    /** @type {Epoch | null} */
    this._epoch = null
    /** The epoch of the first read; reads in it reach up to `_readTo`. */
    this._readIn = ''
    this._readTo = 0
    /** How often an epoch was adopted that was not the known one. */
    this._taken = 0
    this._incarnation = randomHex(8)
    const first = Math.floor(Math.random() * LANES_MAX)
    // A stack: a writer without concurrent commits stays on one lane, and two processes of the same
    // agent rarely share it.
    this._lanes = Array.from({ length: LANES_MAX }, (_, i) => ({ number: (first + LANES_MAX - i) % LANES_MAX, step: 0 }))
    this._turn = new Turn()
  }

  get agent () { return this.actsAs ?? this.channel.agent }

  /** What every request of this writer carries. */
  get scope () { return this.actsAs === null ? { board: this.board } : { board: this.board, agent: this.actsAs } }

  /**
   * The id of the epoch that this writer works in; learned from the board when first used.
   * @param {AbortSignal} [signal]
   */
  async epoch (signal) {
    if (this._epoch === null) await this._begin(signal)
    return /** @type {Epoch} */ (/** @type {unknown} */ (this._epoch)).id
  }

  /** @param {AbortSignal} [signal] */
  async _begin (signal) {
    const seen = this.seen
    const head = await this.channel.look('head', this.scope, signal)
    const { epoch } = head
    let gone = seen > 0 && seen < epoch.revision && !(await this._isKept(seen, epoch, signal))
    // Reads in the present epoch say nothing about earlier reads.
    if (!gone && this._readIn !== '' && this._readIn !== epoch.id) {
      gone = !(await this._isKept(this._readTo, epoch, signal))
    }
    if (gone) {
      const { number, cause, from_revision } = epoch
      throw new StaleEpoch({ yours: '', current: epoch.id, number, cause, from_revision, head: head.revision })
    }
    this._epoch = epoch
    this.saw(head.revision, epoch.id)
  }

  /**
   * Whether `epoch` is certainly the first one after `seen`, and lost nothing up to it.
   * @param {number} seen
   * @param {Epoch} epoch
   * @param {AbortSignal} [signal]
   */
  async _isKept (seen, epoch, signal) {
    if (seen > epoch.from_revision) return false
    let page
    try {
      page = await this.channel.look('log', { ...this.scope, after: seen, limit: LOG_ENTRIES_MAX }, signal)
    } catch (error) {
      if (error instanceof Compacted || error instanceof Resync) return false
      throw error
    }
    const first = page.revisions.find(entry => entry.epoch !== undefined)?.epoch
    return first?.id === epoch.id && epoch.cause === 'engine'
  }

  /**
   * Adopt `epoch` as of `revision`, regardless of what this writer saw before.
   * @param {Epoch} epoch
   * @param {number} revision
   */
  take (epoch, revision) {
    const known = this._epoch?.id ?? this._readIn
    if (epoch.id !== known) {
      // After a split brain, the lost part may have been far ahead of this epoch.
      this.seen = 0
      if (known !== '') this._taken++
    }
    this._epoch = epoch
    this.saw(revision, epoch.id)
  }

  /**
   * A function that checks later whether everything read since now is still valid; it throws
   * StaleEpoch when another epoch was adopted in between.
   * @returns {() => void}
   */
  standing () {
    const taken = this._taken
    return () => {
      const now = this._epoch
      if (this._taken !== taken && now !== null) {
        const { number, cause, from_revision } = now
        throw new StaleEpoch({ yours: '', current: now.id, number, cause, from_revision, head: this.seen })
      }
    }
  }

  /**
   * Record that this writer knows the board up to `revision`, which was read in `epoch`. Without an
   * epoch, the revision belongs to the board's history in any case.
   * @param {number} revision
   * @param {string} [epoch]
   */
  saw (revision, epoch = '') {
    this.seen = Math.max(this.seen, revision)
    this._readIn = this._readIn || epoch
    if (epoch !== '' && epoch === this._readIn) this._readTo = Math.max(this._readTo, revision)
  }

  /**
   * Carry out `spec`, exactly once.
   *
   * Throws a Rejected: nothing changed. Unavailable: certainly not applied. OutcomeUnknown: perhaps
   * applied; no service could be reached in time to find out. The reason of `signal`: as
   * OutcomeUnknown, if it was sent.
   * @param {CommitRequest} spec
   * @param {AbortSignal} [signal]
   * @returns {Promise<Receipt>}
   */
  async commit (spec, signal) {
    const epoch = await this.epoch(signal)
    const number = /** @type {Epoch} */ (this._epoch).number
    const lane = await this._lane(signal)
    lane.step++
    const known = this.seen
    /** @type {CommitParams} */
    const params = given({
      ...this.scope,
      id: { lane: lane.number, incarnation: this._incarnation, step: lane.step },
      epoch,
      ops: spec.ops,
      conditions: spec.conditions,
      fences: spec.fences,
      based_on: spec.based_on,
      note: spec.note,
      known
    })
    try {
      const receipt = await this._send(params, lane, number, signal)
      this.saw(receipt.revision)
      return receipt
    } finally {
      this._lanes.push(lane)
      this._turn.notify()
    }
  }

  /** @param {AbortSignal} [signal] */
  async _lane (signal) {
    for (;;) {
      const lane = this._lanes.pop()
      if (lane !== undefined) return lane
      await this._turn.wait(Infinity, signal)
    }
  }

  /**
   * @param {CommitParams} params
   * @param {{ number: number, step: number }} lane
   * @param {number} number of the epoch
   * @param {AbortSignal} [signal]
   */
  async _send (params, lane, number, signal) {
    try {
      return await this._attempt(params, signal)
    } catch (error) {
      if (!isFailure(error)) throw error
      return await this._insist(lane, params, number, error, signal)
    }
  }

  /**
   * One attempt of a commit.
   * @param {CommitParams} params
   * @param {AbortSignal} [signal]
   * @returns {Promise<Receipt>}
   */
  async _attempt (params, signal) {
    const { limits, patience_ms } = this.channel
    const limit_ms = Math.min(limits.request_timeout_ms, patience_ms)
    try {
      return receiptOf(await this.channel.ask('commit', params, limit_ms, signal))
    } catch (error) {
      if (!(error instanceof Lost)) throw error
      const reason = error.message
      if (!error.written) throw new Unavailable({ what: this.channel.address.url, reason })
      throw new OutcomeUnknown({ agent: this.agent, ...params.id, reason })
    }
  }

  /**
   * Send `params`, of epoch `number`, again until there is an answer, or no service can be reached for
   * too long.
   *
   * It is marked as a retry (`retry_since`) only once an attempt may have been applied: for a first
   * attempt, an engine need not consider an overwritten answer. A refusal of a retry counts once no
   * earlier attempt can be applied any more.
   * @param {{ number: number, step: number }} lane
   * @param {CommitParams} params
   * @param {number} number
   * @param {Failure} failure
   * @param {AbortSignal} [signal]
   * @returns {Promise<Receipt>}
   */
  async _insist (lane, params, number, failure, signal) {
    const { commit_timeout_ms, commit_pauses_ms } = this.channel.limits
    const deadline = performance.now() + commit_timeout_ms
    /** @type {OutcomeUnknown | null} */
    let uncertain = null
    let since = params.known
    for (let attempt = 0; ; attempt++) {
      if (this.channel.closed) throw uncertain ?? failure
      if (failure instanceof StaleEpoch) {
        params = { ...params, epoch: this._adopt(failure, number) }
        number = failure.number
      } else {
        if (failure instanceof OutcomeUnknown) {
          if (failure.final === true) throw failure
          // From now on, a later "not done" does not undo it.
          uncertain = failure
          params = { ...params, retry_since: since ?? 0 }
        } else if (failure instanceof AttemptTooOld) {
          // Only a first attempt gets this error, so no earlier one can have been applied.
          since = failure.head
          this.saw(since)
          params = { ...params, known: since }
        }
        const rest = pauseAfter(failure, shortened(commit_pauses_ms, attempt))
        if (performance.now() + rest > deadline) throw uncertain ?? failure
        // Told at once: the caller of a lock may have an alternative to its masters.
        if (uncertain === null && failure.fields['what'] === LOCK_MASTERS) throw failure
        await pause(rest, signal)
      }
      try {
        return await this._attempt(params, signal)
      } catch (error) {
        if (isFailure(error)) failure = error
        else {
          if (error instanceof Rejected && uncertain !== null) {
            if (error.code === 'board_frozen') throw uncertain
            await this._close(lane, params, uncertain, deadline, signal)
          }
          throw error
        }
      }
    }
  }

  /**
   * Make sure that a delayed attempt at `refused` will be superseded: the reason of the refusal may be
   * gone when it arrives. A later step of the lane, which changes nothing, supersedes it. Throws
   * `uncertain`, when nothing could be committed until `deadline`.
   * @param {{ number: number, step: number }} lane
   * @param {CommitParams} refused
   * @param {OutcomeUnknown} uncertain
   * @param {number} deadline
   * @param {AbortSignal} [signal]
   */
  async _close (lane, refused, uncertain, deadline, signal) {
    lane.step++
    /** @type {CommitParams} */
    let mark = given({
      ...this.scope,
      id: { ...refused.id, step: lane.step },
      epoch: refused.epoch,
      ops: [{ kind: /** @type {const} */ ('delete'), key: `private/${this.agent}/~superseded` }],
      note: 'after a refused retry',
      known: refused.known
    })
    for (let attempt = 0; ; attempt++) {
      /** @type {unknown} */
      let failure = uncertain
      try {
        this.saw((await this._attempt(mark, signal)).revision)
        return
      } catch (error) {
        if (error instanceof StaleEpoch) return // the attempt belongs to an epoch that has ended
        if (error instanceof AttemptTooOld) mark = { ...mark, known: error.head }
        else if (error instanceof OutcomeUnknown) {
          if (error.final === true) throw uncertain
          mark = { ...mark, retry_since: refused.known ?? 0 }
        } else if (error instanceof SnapshotFirst || error instanceof Unavailable) failure = error
        else if (error instanceof Rejected) throw uncertain
        else throw error
      }
      const rest = pauseAfter(failure, shortened(this.channel.limits.commit_pauses_ms, attempt))
      if (this.channel.closed || performance.now() + rest > deadline) throw uncertain
      await pause(rest, signal)
    }
  }

  /**
   * The new epoch, if the engine merely restarted and lost nothing that this writer saw. It must
   * directly follow `number`, that of the commit: an epoch in between may have lost commits, or been a
   * restore.
   * @param {StaleEpoch} error
   * @param {number} number
   */
  _adopt (error, number) {
    const isNext = error.number === number + 1
    const cause = String(error.fields['cause'])
    if (cause !== 'engine' || !isNext || this.seen > error.from_revision) throw error
    this._epoch = {
      number: error.number,
      id: error.current,
      cause,
      from_revision: error.from_revision,
      revision: 0
    }
    return error.current
  }
}

/**
 * @param {unknown} error
 * @returns {error is Failure}
 */
function isFailure (error) {
  return error instanceof AttemptTooOld || error instanceof OutcomeUnknown || error instanceof StaleEpoch ||
    error instanceof Unavailable
}

/**
 * @param {CommitResult} message
 * @returns {Receipt}
 */
function receiptOf (message) {
  if (!Number.isSafeInteger(message?.revision) || !Array.isArray(message.results)) {
    throw new RemoteProtocolError({ reason: 'bad receipt' })
  }
  const { revision, time_ms, results, level, duplicate = false } = message
  return { revision, time_ms, results: /** @type {any[]} */ (results), level, duplicate }
}
