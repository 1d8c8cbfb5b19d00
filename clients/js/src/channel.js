// The client's WebSocket, which it reconnects: requests, answers, and changes of watches.
//
// Invariants
// - One loop, the keeper, owns the socket: it connects, greets, and connects again.
// - Requests of one turn of the event loop leave as one frame, in their order.
// - A request ends exactly once: answered, refused, or lost with the connection. A lost one says
//   whether any byte of it may have reached the service.
// - What waits is bounded: requests by number and by bytes, changes by the streams that take them.
import {
  BlackboardError, InvalidRequest, LimitExceeded, OutcomeUnknown, Rejected, RemoteProtocolError,
  Unauthenticated, Unavailable, fromFields
} from './errors.js'
import {
  DEFAULTS, FRAME_BYTES_MAX, MESSAGES_PER_FRAME_MAX, REQUESTS_IN_FLIGHT_MAX, WATCHES_PER_CONNECTION_MAX
} from './limits.js'
import { pack, unpack } from './msgpack.js'
import { openSocket, translated } from './socket.js'
import { Turn, endAfter, pause, pauseAfter, shortened } from './waiting.js'

/** @import { Methods, ChangesNotice, RevisionMessage } from './methods.js' */
/** @import { SocketLike, Closed } from './socket.js' */

/** Requests in flight; the rest of what the service allows is reserved for `tell`. */
const ASKED_MAX = REQUESTS_IN_FLIGHT_MAX - 2 * WATCHES_PER_CONNECTION_MAX
/** Bytes of requests without an answer: a browser keeps what its socket cannot send yet. */
export const IN_FLIGHT_BYTES_MAX = 4 * FRAME_BYTES_MAX
/** Messages share a frame up to this size; one larger message has a frame of its own. */
const FRAME_JOIN_BYTES = 1024 * 1024
/** Parts of one revision in a delivery: what the service may send of the largest restore. */
const FRAGMENTS_MAX = 4096
/** The longest pause before the first connection: a caller waits for it. */
const FIRST_PAUSE_MS = 500
/** A token in use that seems to end sooner is about to end, or the clock here is ahead. */
const TOKEN_LEFT_MS_MIN = 1000
/** The pause before the next token then: if it is the clock, every other token seems to end, too. */
const TOKEN_PAUSE_MS = 60000
/** An array header of at most five bytes around one message. */
const MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - 8

/** The connection went away before the answer came. It never leaves the client. */
export class Lost extends Error {
  /**
   * @param {string} reason
   * @param {boolean} written whether the request may have reached the service
   */
  constructor (reason, written) {
    super(reason)
    this.written = written
  }
}

/**
 * Where the service is, and how to get in.
 * @typedef {object} Address
 * @property {string} url
 * @property {string | null | (() => string | Promise<string>)} token
 * @property {string | null} agent
 * @property {(new (url: string, protocol: string) => any) | undefined} WebSocket
 */

/**
 * @typedef {object} Request
 * @property {(result: any) => void} resolve
 * @property {(error: unknown) => void} reject
 * @property {boolean} written
 * @property {number} size
 */

/**
 * What a channel needs of a stream of changes.
 * @typedef {object} Watching
 * @property {(position: string, revisions: RevisionMessage[], bytes: number) => void} push
 * @property {() => void} lose
 * @property {(error: BlackboardError) => void} fail
 */

/** A connection to the service that outlives its sockets. */
export class Channel {
  /**
   * @param {Address} address
   * @param {typeof DEFAULTS} limits
   * @param {number} patience_ms
   */
  constructor (address, limits, patience_ms) {
    this.address = address
    this.limits = limits
    this.patience_ms = patience_ms
    this.agent = ''
    this.account = ''
    this.service = { engine: '', level: '', version: '' }
    this.closed = false
    /** @type {SocketLike | null} */
    this._socket = null
    this._ready = false
    /** Whether the service said that it stops: perhaps with its answer to the greeting. */
    this._draining = false
    /** @type {BlackboardError | null} */
    this._refusal = null
    /** @type {Map<number, Request>} */
    this._requests = new Map()
    /** Ids that were sent and not answered, with their bytes. @type {Map<number, number>} */
    this._inFlight = new Map()
    this._inFlightBytes = 0
    this._nextId = 1
    /** @type {{ bytes: Uint8Array, request: Request | null }[]} */
    this._queue = []
    this._flushing = false
    /** @type {Map<number, Watching>} */
    this._streams = new Map()
    /** @type {Map<number, { count: number, bytes: number, revisions: RevisionMessage[] }>} */
    this._fragments = new Map()
    this._lastWatch = 0
    this._turn = new Turn()
    this._demand = new Turn()
    this._end = new AbortController()
    /** @type {((error: Error | Closed) => void) | null} */
    this._broken = null
    /** When the last message came, by the monotonic clock. */
    this._heard = 0
    /** @type {Set<() => void>} */
    this.closers = new Set()
  }

  // --- opening and closing ------------------------------------------------------------------------

  /**
   * Connect for the first time. A service that does not answer gets `wait_ms` to start.
   * @param {number} wait_ms
   * @param {AbortSignal} [signal]
   */
  async open (wait_ms, signal) {
    signal?.throwIfAborted()
    const opening = this._open(wait_ms)
    /** @type {() => void} */
    let abort = () => {}
    /** @type {Promise<never>} */
    const aborted = new Promise((_resolve, reject) => { abort = () => { this.close(); reject(signal?.reason) } })
    signal?.addEventListener('abort', abort, { once: true })
    try {
      await Promise.race([opening, aborted])
    } finally {
      signal?.removeEventListener('abort', abort)
    }
  }

  /** @param {number} wait_ms */
  async _open (wait_ms) {
    const until = performance.now() + wait_ms
    for (let failures = 0; ; failures++) {
      try {
        const [socket, broken] = await this._connect()
        void this._keep(socket, broken)
        return
      } catch (error) {
        const failure = this._described(error)
        const rest = Math.min(shortened(this.limits.connect_pauses_ms, failures + 1), FIRST_PAUSE_MS)
        const waits = !this.closed && failure instanceof Unavailable && performance.now() + rest < until
        if (!waits) throw failure
        await pause(rest, this._end.signal)
      }
    }
  }

  /** Close the connection. Requests in flight are lost; every watch ends. */
  close () {
    if (this.closed) return
    this.closed = true
    this._end.abort()
    this._refuse(new Unavailable({ what: this.address.url, reason: 'the client was closed' }))
    this._socket?.close()
    this._broken?.(new Error('the client was closed'))
    for (const close of [...this.closers]) close()
  }

  /** The token to connect with now; a source is called each time, and has `patience_ms` to answer. */
  async freshToken () {
    const { token } = this.address
    if (typeof token !== 'function') return token
    const over = new AbortController()
    const late = pause(this.patience_ms, over.signal).then(() => { throw new Error(`no token in ${this.patience_ms} ms`) })
    late.catch(() => {})
    try {
      return await Promise.race([token(), late])
    } catch (error) {
      if (error instanceof BlackboardError) throw error
      throw new Unavailable({ what: 'the source of tokens', reason: String(error) })
    } finally {
      over.abort()
    }
  }

  /**
   * Open a socket and greet; returns it with a promise that rejects when it breaks.
   * @returns {Promise<[SocketLike, Promise<never>]>}
   */
  async _connect () {
    const token = await this.freshToken()
    const limits = this.limits
    const socket = await openSocket(this.address.url, this.address.WebSocket, limits.handshake_timeout_ms)
    /** @type {Promise<never>} */
    const broken = new Promise((_resolve, reject) => {
      this._broken = reject
      socket.onclose = (/** @type {Closed} */ closed) => reject(translated(closed, this.address.url))
    })
    broken.catch(() => {})
    socket.onmessage = (/** @type {{ data: unknown }} */ event) => {
      if (this._socket !== socket) return
      try {
        this._receive(event.data)
      } catch (error) {
        socket.close()
        this._broken?.(this._described(error))
      }
    }
    if (this.closed) {
      socket.close()
      throw new Unavailable({ what: this.address.url, reason: 'the client was closed' })
    }
    this._forget('the connection was replaced')
    this._socket = socket
    this._draining = false
    this._heard = performance.now()
    try {
      await Promise.race([broken, this._greet(token)])
    } catch (error) {
      this._socket = null
      socket.close()
      throw error
    }
    if (this._draining) {
      this._socket = null
      socket.close()
      throw new Unavailable({ what: this.address.url, reason: 'the service is stopping' })
    }
    this._ready = true
    this._turn.notify()
    return [socket, broken]
  }

  /** @param {string | null} token */
  async _greet (token) {
    const params = { client: 'javascript', ...(token === null ? {} : { token }), ...this._agent() }
    const welcome = await this.request('hello', params, this.limits.handshake_timeout_ms)
    if (typeof welcome?.agent !== 'string' || typeof welcome.limits !== 'object') {
      throw new RemoteProtocolError({ reason: 'bad answer to hello' })
    }
    this.agent = welcome.agent
    this.account = typeof welcome.account === 'string' ? welcome.account : welcome.agent
    this.service = { engine: String(welcome.engine), level: String(welcome.level), version: String(welcome.version) }
  }

  _agent () { return this.address.agent === null ? {} : { agent: this.address.agent } }

  /**
   * Keep a connection until the client is closed, or refused for good.
   * @param {SocketLike} socket
   * @param {Promise<never>} broken
   */
  async _keep (socket, broken) {
    for (;;) {
      const over = new AbortController()
      void this._heartbeat(socket, over.signal)
      void this._refresh(over.signal)
      try {
        await broken
      } catch (error) {
        over.abort()
        this._lose(this._passes(error) ? new Unavailable({ what: this.address.url, reason: 'the token ended' }) : error)
      }
      const next = await this._again()
      if (next === null) return
      ;[socket, broken] = next
    }
  }

  /**
   * Whether a token that was good has ended, and its source may have another one.
   * @param {unknown} error
   */
  _passes (error) { return error instanceof Unauthenticated && typeof this.address.token === 'function' }

  /** Connect again, as long as it takes; null when there is no point any more. */
  async _again () {
    for (let failures = 0; this._refusal === null; failures++) {
      try {
        const rest = shortened(this.limits.connect_pauses_ms, failures)
        // A request that waits for the connection cuts a long pause short.
        await pause(Math.min(rest, 50), this._end.signal)
        if (rest > 50) await this._demand.wait(rest - 50, this._end.signal)
        return await this._connect()
      } catch (error) {
        // A proxy that accepted it once, and does not know the service during a rollout, will again; a service that
        // is full may still count connections that broke.
        const passes = error instanceof InvalidRequest || error instanceof LimitExceeded
        this._lose(passes ? new Unavailable({ what: this.address.url, reason: String(error.fields['reason'] ?? error.message) }) : error)
      }
    }
    return null
  }

  /**
   * A connection on which nothing comes is asked, and given up if it does not answer.
   * @param {SocketLike} socket
   * @param {AbortSignal} signal
   */
  async _heartbeat (socket, signal) {
    const idle = this.limits.ping_interval_ms
    try {
      for (;;) {
        await pause(idle / 2, signal)
        if (performance.now() - this._heard < idle) continue
        try {
          await this.request('whoami', {}, idle)
        } catch (error) {
          if (error instanceof BlackboardError) continue // it answers
          throw error
        }
      }
    } catch {
      if (signal.aborted || this._socket !== socket) return
      socket.close()
      this._broken?.(new Unavailable({ what: this.address.url, reason: 'it does not answer' }))
    }
  }

  /**
   * Before each token expires, switch to the next one, if there is a source of tokens.
   * @param {AbortSignal} signal
   */
  async _refresh (signal) {
    if (typeof this.address.token !== 'function') return
    try {
      let identity = await this.ask('whoami', this._agent())
      while (typeof identity.expires_at_ms === 'number') {
        const left = identity.expires_at_ms - Date.now()
        const rest = Math.max(left * this.limits.token_refresh_percent / 100, 50)
        await pause(left < TOKEN_LEFT_MS_MIN ? TOKEN_PAUSE_MS : rest, signal)
        const token = await this.freshToken()
        identity = await this.ask('refresh', { token: token ?? '', ...this._agent() })
      }
    } catch {
      // The service closes the connection when the token expires. Then the source is called again;
      // if that fails too, the caller gets the error.
    }
  }

  // --- asking -------------------------------------------------------------------------------------

  /**
   * Send one request and wait for its result, for at most `timeout_ms`.
   *
   * Throws the error that the service answers; Unavailable when there was no connection in time; Lost
   * when the answer can no longer come; the reason of `signal`.
   * @template {keyof Methods} M
   * @param {M} method
   * @param {Methods[M]['params']} params
   * @param {number} [timeout_ms]
   * @param {AbortSignal} [signal]
   * @returns {Promise<Methods[M]['result']>}
   */
  async ask (method, params, timeout_ms, signal) {
    const until = performance.now() + this.patience_ms
    // Many wait for one answer, and those that go on first may take the room.
    do await this.ready(signal, until); while (!this.hasRoom)
    return await this.request(method, params, timeout_ms ?? this.limits.request_timeout_ms, signal)
  }

  /** Whether a request can be sent in this turn. */
  get hasRoom () {
    return this._ready && this._inFlight.size < ASKED_MAX && this._inFlightBytes <= IN_FLIGHT_BYTES_MAX
  }

  /**
   * Wait until a request can be sent, for at most `patience_ms`. Others wait too: look at `hasRoom` in the
   * turn that sends it.
   * @param {AbortSignal} [signal]
   * @param {number} [until] when that time is over
   */
  async ready (signal, until = performance.now() + this.patience_ms) {
    signal?.throwIfAborted()
    while (!this.hasRoom) {
      if (this._refusal !== null) throw copied(this._refusal)
      this._demand.notify()
      const came = await this._turn.wait(until - performance.now(), signal)
      if (!came) {
        const reason = `no connection in ${this.patience_ms} ms`
        throw new Unavailable({ what: this.address.url, reason })
      }
    }
    if (this._refusal !== null) throw copied(this._refusal)
  }

  /**
   * As `ask`, without the wait for a connection.
   * @param {string} method
   * @param {object} params
   * @param {number} timeout_ms
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  request (method, params, timeout_ms, signal) {
    return new Promise((resolve, reject) => {
      const id = this._nextId
      const bytes = packed(id, method, params)
      if (bytes.length > MESSAGE_BYTES_MAX) {
        throw new LimitExceeded({ limit: 'FRAME_BYTES_MAX', value: bytes.length, maximum: FRAME_BYTES_MAX, where: 'request' })
      }
      this._nextId++
      const ended = () => {
        this._requests.delete(id)
        callOff()
        signal?.removeEventListener('abort', abort)
      }
      /** @type {Request} */
      const request = {
        written: false,
        size: bytes.length,
        resolve: result => { ended(); resolve(result) },
        reject: error => { ended(); reject(error) }
      }
      const abort = () => request.reject(signal?.reason)
      const late = () => request.reject(new Lost(`no answer in ${timeout_ms} ms`, request.written))
      const callOff = endAfter(timeout_ms, late)
      signal?.addEventListener('abort', abort, { once: true })
      this._requests.set(id, request)
      this._inFlight.set(id, bytes.length)
      this._inFlightBytes += bytes.length
      this._enqueue(bytes, request)
    })
  }

  /**
   * Send a request without waiting for its answer, if there is a connection now.
   * @template {keyof Methods} M
   * @param {M} method
   * @param {Methods[M]['params']} params
   */
  tell (method, params) {
    if (!this._ready || this._inFlight.size >= REQUESTS_IN_FLIGHT_MAX) return
    const id = this._nextId++
    const bytes = pack({ id, method, params })
    this._inFlight.set(id, bytes.length)
    this._inFlightBytes += bytes.length
    this._enqueue(bytes, null)
  }

  /**
   * @param {Uint8Array} bytes
   * @param {Request | null} request
   */
  _enqueue (bytes, request) {
    this._queue.push({ bytes, request })
    if (this._flushing) return
    this._flushing = true
    queueMicrotask(() => this._flush())
  }

  _flush () {
    this._flushing = false
    const waiting = this._queue
    this._queue = []
    if (this._socket === null) return
    /** @type {Uint8Array[]} */
    let frame = []
    let size = 0
    for (const { bytes, request } of waiting) {
      const full = size + bytes.length > FRAME_JOIN_BYTES || frame.length === MESSAGES_PER_FRAME_MAX
      if (frame.length > 0 && full) {
        this._socket.send(joined(frame, size))
        frame = []
        size = 0
      }
      if (request !== null) request.written = true
      frame.push(bytes)
      size += bytes.length
    }
    if (frame.length > 0) this._socket.send(joined(frame, size))
  }

  /**
   * Repeat `attempt` while it is lost or Unavailable, until `patience_ms` have passed.
   * @template T
   * @param {() => Promise<T>} attempt
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  async insist (attempt, signal) {
    const until = performance.now() + this.patience_ms
    for (let failures = 0; ; failures++) {
      try {
        return await attempt()
      } catch (error) {
        if (!(error instanceof Lost || error instanceof Unavailable)) throw error
        const rest = pauseAfter(error, shortened(this.limits.connect_pauses_ms, failures))
        if (this._refusal !== null || performance.now() + rest > until) {
          if (error instanceof Unavailable && error.code !== 'unavailable') throw error
          const reason = error instanceof Lost ? error.message : String(error.fields['reason'])
          throw new Unavailable({ what: this.address.url, reason })
        }
        await pause(rest, signal)
      }
    }
  }

  /**
   * Carry out a request that may be repeated.
   * @template {keyof Methods} M
   * @param {M} method
   * @param {Methods[M]['params']} params
   * @param {AbortSignal} [signal]
   * @param {number} [timeout_ms]
   * @returns {Promise<Methods[M]['result']>}
   */
  async look (method, params, signal, timeout_ms) {
    const limit_ms = timeout_ms ?? Math.min(this.limits.request_timeout_ms, this.patience_ms)
    return await this.insist(() => this.ask(method, params, limit_ms, signal), signal)
  }

  /**
   * As `look`, for requests that change something. Throws OutcomeUnknown when it may have been done:
   * once an attempt may have reached the service, a later one that fails or is refused proves nothing.
   * @template {keyof Methods} M
   * @param {M} method
   * @param {Methods[M]['params']} params
   * @param {AbortSignal} [signal]
   * @param {number} [timeout_ms]
   * @returns {Promise<Methods[M]['result']>}
   */
  async act (method, params, signal, timeout_ms) {
    const limit_ms = timeout_ms ?? Math.min(this.limits.request_timeout_ms, this.patience_ms)
    /** @type {string | null} */
    let doubt = null
    try {
      return await this.insist(async () => {
        try {
          return await this.ask(method, params, limit_ms, signal)
        } catch (error) {
          if (error instanceof Lost && error.written) doubt = error.message
          if (!(error instanceof OutcomeUnknown)) throw error
          doubt = error.reason
          throw new Unavailable({ what: this.address.url, reason: error.reason })
        }
      }, signal)
    } catch (error) {
      if (doubt === null || !(error instanceof Rejected || error instanceof Unavailable)) throw error
      const reason = error instanceof Rejected ? error.message : doubt
      const { request = null, agent = this.agent } = /** @type {any} */ (params)
      throw new OutcomeUnknown({ agent, lane: null, incarnation: null, step: null, reason, method, request })
    }
  }

  // --- watches ------------------------------------------------------------------------------------

  /**
   * A new watch number, whose changes go to `stream` while this connection lasts. Take it in the turn that
   * sends it: during a wait for a connection it would be forgotten, and the watch could not be ended.
   * @param {Watching} stream
   */
  addWatch (stream) {
    this._streams.set(++this._lastWatch, stream)
    return this._lastWatch
  }

  /**
   * Forget a watch number, and end the watch on the service.
   * @param {number} number
   */
  dropWatch (number) {
    this._fragments.delete(number)
    if (this._streams.delete(number)) this.tell('unwatch', { watch: number })
  }

  // --- receiving ----------------------------------------------------------------------------------

  /** @param {unknown} data */
  _receive (data) {
    if (typeof data === 'string') throw new RemoteProtocolError({ reason: 'a text message on a binary subprotocol' })
    const bytes = data instanceof Uint8Array ? data : new Uint8Array(/** @type {ArrayBuffer} */ (data))
    if (bytes.length > FRAME_BYTES_MAX) throw new RemoteProtocolError({ reason: 'a frame that is too large', close_code: 1009 })
    this._heard = performance.now()
    const messages = unpack(bytes)
    if (!Array.isArray(messages) || messages.length === 0 || messages.length > MESSAGES_PER_FRAME_MAX) {
      throw new RemoteProtocolError({ reason: 'not an array of messages' })
    }
    for (const message of messages) this._take(message, bytes.length)
    this._turn.notify()
  }

  /**
   * @param {any} message
   * @param {number} size of its frame
   */
  _take (message, size) {
    if (typeof message !== 'object' || message === null) throw new RemoteProtocolError({ reason: 'a message that is no map' })
    if (message.method === undefined) return this._answer(message)
    const params = message.params
    if (typeof params !== 'object' || params === null) throw new RemoteProtocolError({ reason: 'a notification without params' })
    switch (message.method) {
      case 'changes': return this._changed(params, size)
      case 'cancelled': return this._cancelled(params)
      case 'draining':
        this._draining = true
        this._ready = false // new requests wait for the next connection
        return
      default: throw new RemoteProtocolError({ reason: 'an unknown notification' })
    }
  }

  /** @param {any} message */
  _answer (message) {
    const { id } = message
    const size = typeof id === 'number' ? this._inFlight.get(id) : undefined
    if (size === undefined) throw new RemoteProtocolError({ reason: 'an answer to no request' })
    const failed = Object.hasOwn(message, 'error')
    if (!failed && !Object.hasOwn(message, 'result')) throw new RemoteProtocolError({ reason: 'an answer without a result' })
    this._inFlight.delete(id)
    this._inFlightBytes -= size
    const request = this._requests.get(id)
    if (failed) request?.reject(readError(message.error))
    else request?.resolve(message.result)
  }

  /**
   * @param {ChangesNotice} params
   * @param {number} size
   */
  _changed (params, size) {
    const { watch, position, more } = params
    let { revisions } = params
    if (typeof watch !== 'number' || typeof position !== 'string' || !Array.isArray(revisions)) {
      throw new RemoteProtocolError({ reason: 'bad changes' })
    }
    for (const revision of revisions) checkRevision(revision)
    const before = this._fragments.get(watch)
    this._fragments.delete(watch)
    if (before !== undefined) {
      revisions = joinedRevisions(before.revisions, revisions)
      size += before.bytes
    }
    const stream = this._streams.get(watch)
    if (stream === undefined) return
    if (more === true) {
      const count = (before?.count ?? 0) + 1
      if (count > FRAGMENTS_MAX) throw new RemoteProtocolError({ reason: 'too many fragments' })
      this._fragments.set(watch, { count, bytes: size, revisions })
    } else stream.push(position, revisions, size)
  }

  /** @param {any} params */
  _cancelled (params) {
    const stream = this._streams.get(params.watch)
    this._streams.delete(params.watch)
    this._fragments.delete(params.watch)
    const error = readError(params.error)
    if (error instanceof Unavailable) stream?.lose()
    else stream?.fail(error)
  }

  // --- loss ---------------------------------------------------------------------------------------

  /** @param {unknown} error */
  _described (error) {
    if (error instanceof RemoteProtocolError || !(error instanceof BlackboardError)) {
      const reason = error instanceof Error ? error.message : String(error)
      return new Unavailable({ what: this.address.url, reason })
    }
    return error
  }

  /** @param {unknown} error */
  _lose (error) {
    const failure = this._described(error)
    this._socket = null
    if (failure instanceof Unavailable) this._forget(String(failure.fields['reason']))
    else this._refuse(failure)
  }

  /**
   * From now on every request is answered with `error`.
   * @param {BlackboardError} error
   */
  _refuse (error) {
    this._refusal ??= error
    const streams = [...this._streams.values()]
    this._forget(error.message)
    for (const stream of streams) stream.fail(copied(this._refusal))
  }

  /** @param {string} reason */
  _forget (reason) {
    this._ready = false
    this._queue = []
    this._inFlight.clear()
    this._inFlightBytes = 0
    this._fragments.clear()
    const streams = [...this._streams.values()]
    this._streams.clear()
    for (const request of [...this._requests.values()]) request.reject(new Lost(reason, request.written))
    this._requests.clear()
    for (const stream of streams) stream.lose()
    this._turn.notify()
  }
}

/**
 * A request as bytes. Throws InvalidRequest with the name of the member that cannot be sent.
 * @param {number} id
 * @param {string} method
 * @param {object} params
 */
function packed (id, method, params) {
  try {
    return pack({ id, method, params })
  } catch (error) {
    for (const [field, member] of Object.entries(params)) {
      try {
        pack(member)
      } catch (refused) {
        if (refused instanceof InvalidRequest) throw new InvalidRequest({ field, reason: refused.reason })
      }
    }
    throw error
  }
}

/**
 * @param {Uint8Array[]} messages
 * @param {number} size
 */
function joined (messages, size) {
  const count = messages.length
  const head = count < 16 ? [0x90 | count] : [0xdc, count >> 8, count & 0xff]
  const frame = new Uint8Array(head.length + size)
  frame.set(head)
  let at = head.length
  for (const message of messages) {
    frame.set(message, at)
    at += message.length
  }
  return frame
}

/**
 * The error that the service described.
 * @param {any} message
 * @returns {BlackboardError}
 */
function readError (message) {
  const data = message?.data
  if (typeof data !== 'object' || data === null || typeof data.fields !== 'object' || data.fields === null) {
    return new RemoteProtocolError({ reason: 'an error without code and fields' })
  }
  const text = typeof message.message === 'string' ? message.message : undefined
  return fromFields(data.code, data.fields, text)
}

/**
 * An error for another caller: each gets one with a stack of its own.
 * @param {BlackboardError} error
 */
export function copied (error) { return fromFields(error.code, error.fields, error.message) }

/** @param {any} revision */
function checkRevision (revision) {
  const fits = typeof revision === 'object' && revision !== null && Number.isSafeInteger(revision.revision) &&
    typeof revision.digest === 'string' && typeof revision.author === 'string' && Array.isArray(revision.changes)
  if (!fits) throw new RemoteProtocolError({ reason: 'bad changes' })
  for (const change of revision.changes) {
    const good = typeof change === 'object' && change !== null && typeof change.key === 'string' &&
      typeof change.kind === 'string' && (change.value === undefined || change.value instanceof Uint8Array)
    if (!good) throw new RemoteProtocolError({ reason: 'bad changes' })
  }
}

/**
 * Join the parts of a delivery: the last revision of the first continues in the second.
 * @param {RevisionMessage[]} before
 * @param {RevisionMessage[]} after
 */
function joinedRevisions (before, after) {
  const last = before.at(-1)
  const first = after[0]
  if (last === undefined || first === undefined || last.revision !== first.revision) return [...before, ...after]
  const whole = { ...last, changes: [...last.changes, ...first.changes] }
  return [...before.slice(0, -1), whole, ...after.slice(1)]
}

