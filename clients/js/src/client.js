// The client of one service: its boards, the caller's principal, tokens, documents.
import { Board } from './board.js'
import { Channel } from './channel.js'
import { openDocument } from './documents.js'
import { InvalidRequest, StaleEpoch } from './errors.js'
import { DEFAULTS } from './limits.js'
import { given } from './records.js'
import { websocketUrl } from './socket.js'

/** Attempts to freeze a board that begins epochs all the time. */
const SEEN_TRIES = 5

/** @import { Document, DocumentOptions } from './documents.js' */
/** @import { AccessGrant, AuditMessage, Freeze, ListResult, WhoamiResult } from './methods.js' */
/** @import { Abortable } from './board.js' */

/**
 * @typedef {object} ConnectOptions
 * @property {string | (() => string | Promise<string>)} [token] or a source of tokens: it is called whenever the client connects, and before the current token expires
 * @property {string} [agent] the name to act as, if it is not the principal's own
 * @property {string} [board] the default board
 * @property {number} [patience_ms] how long requests and watches wait for a connection, and at most for an answer; from 1 on
 * @property {Partial<typeof DEFAULTS>} [limits] what this client waits for and keeps
 * @property {new (url: string, protocol: string) => any} [WebSocket] instead of the platform's
 * @property {AbortSignal} [signal] ends the first attempt to connect
 */

/**
 * Connect to the service at `url` (ws, wss, http or https), as the principal of `token`. When the
 * connection breaks, requests and watches wait up to `patience_ms` for a new one before they are
 * Unavailable. The first connection waits up to `connect_wait_ms` for a service that is starting.
 *
 * Throws Unavailable when nothing answers by then; Unauthenticated; AccessDenied when the principal may
 * not act as `agent`; InvalidRequest for an invalid URL or limit.
 * @param {string} url
 * @param {ConnectOptions} [options]
 * @returns {Promise<Client>}
 */
export async function connect (url, options = {}) {
  const limits = checked({ ...DEFAULTS, ...options.limits })
  const patience_ms = options.patience_ms ?? limits.request_timeout_ms
  checked({ patience_ms })
  const address = {
    url: websocketUrl(url),
    token: options.token ?? null,
    agent: options.agent ?? null,
    WebSocket: options.WebSocket
  }
  const channel = new Channel(address, limits, patience_ms)
  await channel.open(Math.min(limits.connect_wait_ms, patience_ms), options.signal)
  return new Client(channel, options.board ?? 'main')
}

/**
 * @template {Record<string, number | number[]>} T
 * @param {T} limits
 * @returns {T}
 */
function checked (limits) {
  for (const [name, limit] of Object.entries(limits)) {
    const numbers = Array.isArray(limit) ? limit : [limit]
    // With a patience of 0, every request would be given up as it is sent.
    const lowest = name !== 'patience_ms' && (name.endsWith('_ms') || name.endsWith('_percent')) ? 0 : 1
    if (numbers.length === 0 || !numbers.every(number => Number.isSafeInteger(number) && number >= lowest)) {
      throw new InvalidRequest({ field: `limits.${name}`, reason: `${limit} is not a whole number from ${lowest} on` })
    }
    if (!Object.hasOwn(DEFAULTS, name) && name !== 'patience_ms') {
      throw new InvalidRequest({ field: `limits.${name}`, reason: 'there is no such limit' })
    }
  }
  return limits
}

/** Access to the boards of one service, as one principal. */
export class Client {
  /**
   * @param {Channel} channel
   * @param {string} board
   */
  constructor (channel, board) {
    this._channel = channel
    this._board = board
  }

  /** The name under which this client acts. */
  get agent () { return this._channel.agent }

  /** The account that it acts on: that of its token, or of the one from which its token was narrowed. */
  get account () { return this._channel.account }

  /** The service's engine, what an answered commit survives there (`disk`, `second`, `memory` or `replica`), its version. */
  get service () { return this._channel.service }

  /**
   * The board `name`. Reading does not create it.
   * @param {string} [name]
   * @returns {Board}
   */
  board (name) { return new Board(this._channel, name ?? this._board) }

  /**
   * Names of the boards that exist and that you may use.
   * @param {Abortable} [options]
   * @returns {Promise<string[]>}
   */
  async boards ({ signal } = {}) { return await this._channel.look('boards', {}, signal) }

  /**
   * The principal that the service authenticated, with its rights.
   * @param {Abortable} [options]
   * @returns {Promise<WhoamiResult>}
   */
  async whoami ({ signal } = {}) { return await this._channel.look('whoami', {}, signal) }

  /**
   * A token for the agent `name`, signed by the service and stored nowhere; it ends when the token of this client
   * expires or is revoked. Without `grants` it has an agent's default rights; without `boards` it is valid on all of them.
   * @param {string} name
   * @param {{ grants?: AccessGrant[], boards?: string[], ttl_ms?: number } & Abortable}
   *   [options]
   * @returns {Promise<string>}
   */
  async token (name, { grants, boards, ttl_ms, signal } = {}) {
    return (await this._channel.look('issue', given({ name, grants, boards, ttl_ms }), signal)).token
  }

  /**
   * Revoke tokens by their ids, and all that were issued to `principal` until now, at once; returns how
   * many are revoked.
   * @param {string[]} tokens
   * @param {{ principal?: string, until_ms?: number } & Abortable} [options]
   * @returns {Promise<number>}
   */
  async revoke (tokens, { principal, until_ms, signal } = {}) {
    return (await this._channel.act('revoke', given({ tokens, principal, until_ms }), signal)).revoked
  }

  /**
   * A page of the audit, the oldest records first: those after the record with key `after`. For admins.
   * @param {{ after?: string, limit?: number } & Abortable} [options]
   * @returns {Promise<AuditMessage[]>}
   */
  async audit ({ after, limit, signal } = {}) { return await this._channel.look('audit', given({ after, limit }), signal) }

  /**
   * Freeze a board: it refuses every commit (BoardFrozen) until it is thawed.
   * @param {{ board?: string, note?: string } & Abortable} [options]
   * @returns {Promise<Freeze>}
   */
  async freeze ({ board, note, signal } = {}) {
    const name = board ?? this._board
    for (let tries = 1; ; tries += 1) {
      const seen = await this._freezeSeen(name, signal)
      // A late copy of the request is older than the freeze that it asked for, or found.
      const frozen = seen.entries[0]
      const known = frozen ? frozen.mod_revision - 1 : seen.revision
      try {
        return await this._channel.act('freeze', given({ board: name, note, known }), signal)
      } catch (error) {
        // The board began an epoch after it was seen: nothing was done.
        if (!(error instanceof StaleEpoch) || tries === SEEN_TRIES) throw error
      }
    }
  }

  /**
   * Thaw a board; returns the freeze that this ended, null if there was none.
   * @param {{ board?: string, note?: string } & Abortable} [options]
   * @returns {Promise<Freeze | null>}
   */
  async thaw ({ board, note, signal } = {}) {
    const name = board ?? this._board
    const known = (await this._freezeSeen(name, signal)).revision
    return await this._channel.act('thaw', given({ board: name, note, known }), signal)
  }

  /**
   * The freeze of a board, if it may be read, with the board's revision and epoch.
   * @param {string} board
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<ListResult>}
   */
  async _freezeSeen (board, signal) {
    return await this._channel.look('list', { board, pattern: 'system/frozen', limit: 1 }, signal)
  }

  /**
   * Remove a board for good: entries, leases, documents, log, archive.
   * @param {string} board
   * @param {Abortable} [options]
   */
  async removeBoard (board, { signal } = {}) {
    // Another board of that name is in another epoch: a late copy of the request spares it.
    const { epoch } = await this._freezeSeen(board, signal)
    await this._channel.act('remove', { board, epoch }, signal, this._channel.limits.long_request_timeout_ms)
  }

  /**
   * The document at `key`, which several edit at once: a Yjs document that is synced when this returns.
   * It needs the packages `yjs` and `y-websocket`.
   * @param {string} key
   * @param {DocumentOptions & { board?: string }} [options]
   * @returns {Promise<Document>}
   */
  async document (key, { board, ...options } = {}) {
    return await openDocument(this._channel, board ?? this._board, key, options)
  }

  /** Close the connection and every watch and document on it. Later calls throw Unavailable. */
  close () { this._channel.close() }
}
