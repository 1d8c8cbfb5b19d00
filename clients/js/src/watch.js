// A watch: an optional state, then every change after it, with a resume token.
//
// Invariants
// - Deliveries are handed out once, in order, without a gap, across lost connections and overflows: a
//   new watch of the service always begins at `_edge`, the position after the last buffered delivery.
// - The buffer holds at most one delivery beyond `watch_queue_changes_max` changes or
//   `watch_queue_bytes_max` bytes. When the reader is slower than the service, the watch is ended, and
//   started again once the buffer is empty: the log is the buffer.
// - The state at a revision is read without stopping writers: pages, each as of its own revision, and
//   the changes since the first page's revision applied on top. Log entries hold absolute effects.
import { copied } from './channel.js'
import { BlackboardError, InvalidRequest, LocalProtocolError, RemoteProtocolError, Resync } from './errors.js'
import { LIST_ENTRIES_MAX } from './limits.js'
import { entriesOf, given, revisionOf } from './records.js'
import { Turn } from './waiting.js'

/** @import { Writer } from './writer.js' */
/** @import { Entry, RevisionEvent } from './records.js' */
/** @import { Epoch, RevisionMessage } from './methods.js' */

/** @typedef {{ position: string, revisions: RevisionMessage[] }} Delivery */

/**
 * @typedef {object} WatchOptions
 * @property {number | string} [after] a revision or a resume token; by default from now on
 * @property {boolean} [snapshot] first the state, then exactly what follows it
 * @property {boolean} [coalesce] when behind, several revisions may come as one
 * @property {AbortSignal} [signal] closes the watch
 */

/** One watch of the service, across connections. */
class Stream {
  /**
   * @param {Writer} writer
   * @param {string[]} patterns
   * @param {string | null} after
   * @param {boolean} coalesce
   */
  constructor (writer, patterns, after, coalesce) {
    this._channel = writer.channel
    this._params = { ...writer.scope, patterns, coalesce }
    this._edge = after
    /** @type {number | null} */
    this._number = null
    /** @type {(Delivery & { bytes: number, changes: number })[]} */
    this._buffer = []
    this._bytes = 0
    this._changes = 0
    /** @type {BlackboardError | null} */
    this._failure = null
    this.closed = false
    this._markWanted = false
    this._turn = new Turn()
  }

  /**
   * Open the watch, or open it again after the last buffered delivery.
   * @param {AbortSignal} [signal]
   */
  async open (signal) {
    const position = await this._channel.insist(() => this._begin(signal), signal)
    this._edge ??= position
  }

  /** @param {AbortSignal} [signal] */
  async _begin (signal) {
    const channel = this._channel
    const until = performance.now() + channel.patience_ms
    do await channel.ready(signal, until); while (!channel.hasRoom)
    if (this.closed) throw new LocalProtocolError({ reason: 'the watch was closed' })
    if (this._number !== null) return this._edge // by another call, meanwhile
    const number = this._number = channel.addWatch(this)
    try {
      const params = { ...this._params, watch: number, after: this._edge }
      const found = await channel.request('watch', params, channel.limits.request_timeout_ms, signal)
      if (typeof found?.position !== 'string') throw new RemoteProtocolError({ reason: 'bad answer to watch' })
      return found.position
    } catch (error) {
      if (this._number === number) this._giveUp()
      throw error
    }
  }

  close () {
    this.closed = true
    this._giveUp()
  }

  /**
   * The next delivery.
   * @param {AbortSignal} [signal]
   * @returns {Promise<Delivery>}
   */
  async next (signal) {
    for (;;) {
      if (this.closed) throw new LocalProtocolError({ reason: 'the watch was closed' })
      const found = this._buffer.shift()
      if (found !== undefined) {
        this._bytes -= found.bytes
        this._changes -= found.changes
        return found
      }
      if (this._failure !== null) throw copied(this._failure)
      if (this._number === null) {
        await this.open(signal)
        this._askForMark()
      } else await this._turn.wait(Infinity, signal)
    }
  }

  /** Ask for a progress mark; it comes even if the connection breaks meanwhile. */
  requestProgress () {
    this._markWanted = true
    this._askForMark()
  }

  _askForMark () {
    if (this._markWanted && this._number !== null) this._channel.tell('progress', { watch: this._number })
  }

  // --- for the channel ----------------------------------------------------------------------------

  /**
   * @param {string} position
   * @param {RevisionMessage[]} revisions
   * @param {number} bytes
   */
  push (position, revisions, bytes) {
    if (revisions.length === 0) this._markWanted = false
    this._edge = position
    const changes = revisions.reduce((sum, revision) => sum + revision.changes.length, 0)
    this._buffer.push({ position, revisions, bytes, changes })
    this._bytes += bytes
    this._changes += changes
    const { watch_queue_bytes_max, watch_queue_changes_max } = this._channel.limits
    if (this._bytes > watch_queue_bytes_max || this._changes > watch_queue_changes_max) this._giveUp()
    this._turn.notify()
  }

  /** @param {BlackboardError} error */
  fail (error) {
    this._number = null
    this._failure = error
    this._turn.notify()
  }

  lose () {
    this._number = null
    this._turn.notify()
  }

  _giveUp () {
    const number = this._number
    this._number = null
    if (number !== null) this._channel.dropWatch(number)
    this._turn.notify()
  }
}

/**
 * Made by `Board.watch`. Iterate for revisions; keep `position` to resume later.
 *
 * A restore comes as one revision that begins an epoch. When that is more than a delivery can hold, a
 * watch with a snapshot reads `state` and `revision` again and delivers an empty revision that begins
 * the epoch; any other watch ends with Resync.
 *
 * Throws while iterating: Compacted, RolledBack, Resync (start again with a snapshot); AccessDenied;
 * Unavailable when the service could not be reached in time: `position` is still valid.
 */
export class Watch {
  /**
   * @param {Writer} writer
   * @param {string[]} patterns
   * @param {WatchOptions} options
   */
  constructor (writer, patterns, options) {
    /** With `snapshot`: the matching entries as of `revision`, by key. @type {Map<string, Entry>} */
    this.state = new Map()
    /** The revision that `state` shows. */
    this.revision = 0
    this._writer = writer
    this._patterns = patterns
    this._options = options
    /** @type {Stream | null} */
    this._stream = null
    /** @type {string | null} */
    this._position = null
    this._through = ''
    /** @type {RevisionMessage[]} */
    this._pending = []
    /** A restore changed too much to be delivered, and the state has not been read again yet. */
    this._isStale = false
    /** The epoch of `state`, once it was read again. @type {Epoch | undefined} */
    this._epoch = undefined
    this._closed = false
    this._close = () => this.close()
  }

  /** @returns {Promise<Watch>} */
  async open () {
    const { signal } = this._options
    signal?.throwIfAborted()
    signal?.addEventListener('abort', this._close, { once: true })
    this._writer.channel.closers.add(this._close)
    try {
      await this._openAt(await this._start())
    } catch (error) {
      this.close()
      throw error
    }
    return this
  }

  async _start () {
    const { after } = this._options
    if (typeof after === 'string') return after
    const present = await this._present()
    return after === undefined ? present : `${present.split(':')[0]}:${after}:`
  }

  async _present () {
    const head = await this._writer.channel.look('head', this._writer.scope, this._options.signal)
    this._epoch = head.epoch
    return `${head.epoch.id}:${head.revision}:`
  }

  /** @param {string} start */
  async _openAt (start) {
    const { snapshot = false, coalesce = false } = this._options
    for (;;) {
      this.state = new Map()
      this._pending = []
      try {
        if (snapshot && coalesce) {
          // Apart: several revisions as one do not say which of them changed an entry, and who.
          const apart = await this._watch(start, false)
          await this._takeSnapshot()
          apart.close()
          start = this.position
        }
        await this._watch(start, coalesce)
        if (snapshot && !coalesce) await this._takeSnapshot()
        return
      } catch (error) {
        this._stream?.close()
        if (!snapshot || !(error instanceof Resync)) throw error
      }
      // A restore came while the state was read.
      start = await this._present()
    }
  }

  /**
   * Watch from `start` on.
   * @param {string} start
   * @param {boolean} coalesce
   */
  async _watch (start, coalesce) {
    const stream = new Stream(this._writer, this._patterns, start, coalesce)
    try {
      await stream.open(this._options.signal)
      if (this._closed) throw new LocalProtocolError({ reason: 'the watch was closed' })
    } catch (error) {
      stream.close()
      throw error
    }
    this._stream = stream
    this._position = this._through = start
    return stream
  }

  /** End the watch. A second call does nothing. */
  close () {
    this._closed = true
    this._options.signal?.removeEventListener('abort', this._close)
    this._writer.channel.closers.delete(this._close)
    this._stream?.close()
  }

  /** The resume token after what was returned so far: pass it as `after` of a new watch. */
  get position () {
    if (this._position === null) throw new LocalProtocolError({ reason: 'the watch is not open yet' })
    return this._position
  }

  /** Everything up to this revision was delivered, or is not visible. */
  get reached () { return this._position === null ? 0 : revisionIn(this._position) }

  /**
   * The next visible revision. An abort of `signal` loses nothing: call it again.
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<RevisionEvent>}
   */
  async next (options = {}) {
    for (;;) {
      this._opened()
      const message = this._pending.shift()
      if (message !== undefined) return this._advance(message)
      await this._receive(options.signal)
    }
  }

  /** Leaving the loop closes the watch; to read on later, call `next`. */
  async * [Symbol.asyncIterator] () {
    try {
      while (!this._closed) yield await this.next()
    } catch (error) {
      if (!(this._closed && error instanceof LocalProtocolError)) throw error
    } finally {
      this.close()
    }
  }

  /**
   * Wait for everything up to `revision`, which must exist. Returns the visible revisions on the way,
   * and maybe more; they do not come through the iteration again.
   * @param {number} revision
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<RevisionEvent[]>}
   */
  async waitFor (revision, options = {}) {
    await this._receiveThrough(revision, options.signal)
    return this._pending.splice(0).map((message, i, all) => this._advance(message, i === all.length - 1))
  }

  _opened () {
    if (this._stream === null || this._closed) {
      throw new LocalProtocolError({ reason: 'the watch is not open, or was closed' })
    }
    return this._stream
  }

  /**
   * @param {number} revision
   * @param {AbortSignal} [signal]
   */
  async _receiveThrough (revision, signal) {
    if (this._isStale) await this._startOver()
    this._opened().requestProgress()
    while (revisionIn(this._through) < revision) await this._receive(signal)
  }

  /**
   * Take one delivery, or begin again with the state after a Resync.
   * @param {AbortSignal} [signal]
   */
  async _receive (signal) {
    if (!this._isStale) {
      try {
        return await this._takeDelivery(signal)
      } catch (error) {
        if (!(error instanceof Resync) || this._options.snapshot !== true) throw error
        this._isStale = true
      }
    }
    await this._startOver()
  }

  /** @param {AbortSignal} [signal] */
  async _takeDelivery (signal) {
    const delivery = await this._opened().next(signal)
    this._pending.push(...delivery.revisions)
    this._through = delivery.position
    if (this._pending.length === 0) this._position = this._through
  }

  /**
   * Read the state again, and queue an empty revision that says so. Until that is done, each call
   * begins here: an attempt may fail.
   */
  async _startOver () {
    const delivered = this.position
    this._stream?.close()
    try {
      await this._openAt(await this._present())
    } catch (error) {
      // Nothing of the new state was delivered. What is pending leads on from that state.
      this._position = this._through = delivered
      this._pending = []
      throw error
    }
    this._isStale = false
    this._pending.push({
      revision: this.revision, time_ms: 0, author: '~system', changes: [], digest: '', epoch: this._epoch
    })
  }

  /**
   * Deliver one revision; after the last one the position is that of its delivery.
   * @param {RevisionMessage} message
   * @param {boolean} [isLast]
   */
  _advance (message, isLast = this._pending.length === 0) {
    const epoch = message.epoch?.id ?? this.position.split(':')[0] ?? ''
    const own = `${epoch}:${message.revision}:${message.digest.slice(0, 16)}`
    this._writer.saw(message.revision, epoch)
    this._position = isLast ? this._through : own
    return revisionOf(message, own)
  }

  /** Read the pages, then apply what was committed while they were read. */
  async _takeSnapshot () {
    const newest = await this._readPages()
    this._opened().requestProgress()
    while (revisionIn(this._through) < newest) await this._takeDelivery(this._options.signal)
    for (const message of this._pending.splice(0)) {
      this._apply(this._advance(message, false))
      this._epoch = message.epoch ?? this._epoch
    }
    this._position = this._through
    this.revision = revisionIn(this._through)
  }

  async _readPages () {
    let newest = 0
    for (const pattern of this._patterns) {
      /** @type {string | undefined} */
      let after
      do {
        const params = given({ ...this._writer.scope, pattern, after, limit: LIST_ENTRIES_MAX })
        const page = await this._writer.channel.look('list', params, this._options.signal)
        for (const entry of entriesOf(page.entries)) this.state.set(entry.key, entry)
        newest = Math.max(newest, page.revision)
        after = page.next_key
      } while (after !== undefined)
    }
    return newest
  }

  /**
   * Changes that a page already contains are applied once more, with the same result, because every
   * change up to the newest page is delivered in order.
   * @param {RevisionEvent} revised
   */
  _apply (revised) {
    const { revision, author, account, time_ms } = revised
    for (const { kind, key, value, expires_at_ms } of revised.changes) {
      if (kind === 'delete') this.state.delete(key)
      if (kind !== 'put') continue
      const { create_revision, created_ms } = this.state.get(key) ?? { create_revision: revision, created_ms: time_ms }
      this.state.set(key, { key, value, mod_revision: revision, create_revision, author, account, time_ms, expires_at_ms, created_ms })
    }
  }
}

/**
 * The revision in a resume token.
 * @param {string} position
 */
export function revisionIn (position) { return Number(position.split(':')[1]) }

/**
 * Return `token` if it is a resume token, else throw InvalidRequest.
 * @param {string} token
 */
export function checkPosition (token) {
  if (token.length > 200 || !/^[^:]+:[0-9]{1,16}:[^]*$/.test(token)) {
    throw new InvalidRequest({ field: 'position', reason: `${JSON.stringify(token.slice(0, 200))} is not a resume token` })
  }
  return token
}
