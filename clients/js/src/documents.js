// Documents that several edit at once: a Yjs document over y-websocket, with a token for it alone.
//
// `yjs` and `y-websocket` are peer dependencies: they are loaded when the first document is opened, and
// a program that opens none needs neither.
import { DocumentRefused, LocalProtocolError, Unauthenticated, Unavailable } from './errors.js'
import { websocketUrl } from './socket.js'
import { documentToken } from './tokens.js'
import { endAfter, pause, shortened } from './waiting.js'

/** @import { Channel } from './channel.js' */

/** The cause of a refusal, by the close code of the service. */
const REFUSED = [4400, 4499]

/**
 * @typedef {object} DocumentOptions
 * @property {any} [doc] the `Y.Doc` to connect; by default a new one
 * @property {any} [Y] the module `yjs`, if the program bundles it
 * @property {any} [WebsocketProvider] that of `y-websocket`, likewise
 * @property {any} [WebSocket] the one to connect with, where there is none (Node 20: that of `ws`)
 * @property {boolean} [can_edit]
 * @property {AbortSignal} [signal] for the wait until it is synced
 */

/** Made by `Client.document`: a replica of the document, which is synced once. */
export class Document {
  /**
   * @param {any} doc
   * @param {any} provider
   * @param {() => void} [closed] called by `close`
   */
  constructor (doc, provider, closed = () => {}) {
    /** The `Y.Doc`. Edit it directly. */
    this.doc = doc
    /** The provider of y-websocket, with its `awareness`. */
    this.provider = provider
    this._closed = closed
  }

  /**
   * A text of the document.
   * @param {string} [name]
   */
  text (name = 'text') { return this.doc.getText(name) }

  /** End the connection. The replica stays as it is. */
  close () {
    this.provider.destroy()
    this.provider.awareness?.destroy() // its timer would keep a process alive
    this._closed()
  }
}

/**
 * Open the document at `key`, and wait until it is synced.
 * @param {Channel} channel
 * @param {string} board
 * @param {string} key
 * @param {DocumentOptions} [options]
 * @returns {Promise<Document>}
 */
export async function openDocument (channel, board, key, options = {}) {
  options.signal?.throwIfAborted()
  const Y = options.Y ?? (options.doc === undefined ? await loaded('yjs') : undefined)
  const Provider = options.WebsocketProvider ?? (await loaded('y-websocket')).WebsocketProvider
  const own = await channel.freshToken()
  if (own === null) throw new Unauthenticated({ reason: 'a document needs a token' })
  const token = await documentToken(own, board, key, { can_edit: options.can_edit ?? true })
  options.signal?.throwIfAborted()
  if (channel.closed) throw new Unavailable({ what: channel.address.url, reason: 'the client was closed' })
  const at = key.lastIndexOf('/')
  const url = websocketUrl(channel.address.url, `/v1/boards/${board}/docs/${key.slice(0, at)}`)
  const doc = options.doc ?? new Y.Doc()
  const kind = options.WebSocket === undefined ? {} : { WebSocketPolyfill: options.WebSocket }
  const provider = new Provider(url, key.slice(at + 1), doc, { params: { token }, disableBc: true, ...kind })
  const ends = new AbortController()
  const document = new Document(doc, provider, () => {
    channel.closers.delete(close) // otherwise a client would keep each document that it ever opened
    ends.abort()
  })
  const close = () => document.close()
  channel.closers.add(close)
  keepToken(channel, board, key, options, provider, ends.signal)
  try {
    await synced(channel, key, provider, options.signal)
  } catch (error) {
    document.close()
    throw error
  }
  return document
}

/**
 * Each further connection gets a token of its own: one lives for half an hour.
 *
 * y-websocket does not connect again after the code of an expired token, so it is told to, once after each time
 * that it was synced: a second refusal means that there is no better token.
 * @param {Channel} channel
 * @param {string} board
 * @param {string} key
 * @param {DocumentOptions} options
 * @param {any} provider
 * @param {AbortSignal} ends
 */
function keepToken (channel, board, key, options, provider, ends) {
  let wasIn = false
  provider.on('sync', (/** @type {boolean} */ isSynced) => { wasIn ||= isSynced })
  provider.on('connection-close', async (/** @type {{ code?: number } | null} */ event) => {
    const again = wasIn && event?.code === 4401
    if (again) wasIn = false
    for (let failures = 1; !ends.aborted; failures++) {
      try {
        const own = await channel.freshToken()
        if (own === null) return
        provider.params = { token: await documentToken(own, board, key, { can_edit: options.can_edit ?? true }) }
        if (again && !ends.aborted) provider.connect()
        return
      } catch (error) {
        // Otherwise the next attempt to connect is refused, or comes here again.
        if (!again || !(error instanceof Unavailable)) return
        await pause(shortened(channel.limits.connect_pauses_ms, failures), ends).catch(() => {})
      }
    }
  })
}

/**
 * @param {Channel} channel
 * @param {string} key
 * @param {any} provider
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
function synced (channel, key, provider, signal) {
  return new Promise((resolve, reject) => {
    const what = `document ${key}`
    const limit_ms = channel.patience_ms
    const callOff = endAfter(limit_ms, () => end(new Unavailable({ what, reason: `not synced in ${limit_ms} ms` })))
    const abort = () => end(signal?.reason)
    /** @param {{ code?: number, reason?: string } | null} event */
    const closed = event => {
      const code = event?.code ?? 0
      if (code === 4401) return end(new Unauthenticated({ reason: String(event?.reason) }))
      if (code < (REFUSED[0] ?? 0) || code > (REFUSED[1] ?? 0)) return
      const [cause = '', ...reason] = String(event?.reason).split(': ')
      end(new DocumentRefused({ key, cause, reason: reason.join(': ') }))
    }
    /** @param {unknown} [error] */
    function end (error) {
      callOff()
      provider.off('connection-close', closed)
      signal?.removeEventListener('abort', abort)
      if (error === undefined) resolve()
      else reject(error)
    }
    signal?.addEventListener('abort', abort, { once: true })
    provider.on('connection-close', closed)
    if (provider.synced) end()
    else provider.once('sync', () => end())
  })
}

/**
 * @param {string} name
 * @returns {Promise<any>}
 */
async function loaded (name) {
  try {
    return await import(name)
  } catch (error) {
    throw new LocalProtocolError({ reason: `documents need the package ${name}: ${error instanceof Error ? error.message : error}` })
  }
}
