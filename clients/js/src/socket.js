// How a client connects: the WebSocket of the platform, and why a connection ended.
import { AccessDenied, BlackboardError, InvalidRequest, Unauthenticated, Unavailable } from './errors.js'
import { endAfter } from './waiting.js'

export const SUBPROTOCOL = 'blackboard.v1+msgpack'
const CLOSE_UNAUTHENTICATED = 4401
const CLOSE_FORBIDDEN = 4403

/**
 * What a connection needs of a WebSocket, the browser's or another one.
 * @typedef {object} SocketLike
 * @property {any} onopen
 * @property {any} onmessage
 * @property {any} onclose
 * @property {string} protocol
 * @property {(message: any) => void} send
 * @property {(code?: number) => void} close
 */

/** @typedef {{ code: number, reason: string, status?: number, error?: Error }} Closed */

/**
 * The URL of the WebSocket: `http` becomes `ws`, and the path ends in `/v1`.
 * @param {string} url
 * @param {string} [path]
 */
export function websocketUrl (url, path = '/v1') {
  let parts
  try {
    parts = new URL(url)
  } catch {
    throw new InvalidRequest({ field: 'url', reason: `${JSON.stringify(url)?.slice(0, 200)} is not like ws://host:port` })
  }
  const scheme = { 'http:': 'ws:', 'https:': 'wss:', 'ws:': 'ws:', 'wss:': 'wss:' }[parts.protocol]
  if (scheme === undefined || parts.host === '') {
    throw new InvalidRequest({ field: 'url', reason: `${JSON.stringify(url).slice(0, 200)} is not like ws://host:port` })
  }
  const base = parts.pathname.replace(/\/+$/, '').replace(/\/v1$/, '')
  return `${scheme}//${parts.host}${base}${path}`
}

/**
 * Open a WebSocket and wait until it is open, for at most `timeout_ms`.
 * @param {string} url
 * @param {(new (url: string, protocol: string) => any) | undefined} given a WebSocket of the caller
 * @param {number} timeout_ms
 * @returns {Promise<SocketLike>}
 */
export async function openSocket (url, given, timeout_ms) {
  const socket = await made(url, given)
  return await new Promise((resolve, reject) => {
    const callOff = endAfter(timeout_ms, () => fail({ code: 1006, reason: `no answer in ${timeout_ms} ms` }))
    /** @param {Closed} closed */
    function fail (closed) {
      callOff()
      socket.onopen = socket.onclose = null
      socket.close()
      reject(translated(closed, url))
    }
    socket.onopen = () => {
      callOff()
      if (socket.protocol !== SUBPROTOCOL) return fail({ code: 1002, reason: 'it speaks another protocol' })
      socket.onopen = null
      resolve(socket)
    }
    socket.onclose = fail
  })
}

/**
 * @param {string} url
 * @param {(new (url: string, protocol: string) => any) | undefined} given
 * @returns {Promise<SocketLike>}
 */
async function made (url, given) {
  const kind = given ?? /** @type {any} */ (globalThis).WebSocket
  if (kind !== undefined) {
    const socket = new kind(url, SUBPROTOCOL)
    socket.binaryType = 'arraybuffer'
    // Browsers report a failure as an `error` that says nothing, followed by `close`.
    socket.onerror = () => {}
    return socket
  }
  const { nodeSocket } = await import('./node_socket.js')
  return nodeSocket(url, SUBPROTOCOL)
}

/**
 * The error for the end of a connection: Unavailable if the next attempt may succeed.
 * @param {Closed} closed
 * @param {string} url
 * @returns {BlackboardError}
 */
export function translated (closed, url) {
  const { code, status } = closed
  const reason = String(closed.reason ?? '')
  if (code === CLOSE_UNAUTHENTICATED || status === 401) return new Unauthenticated({ reason })
  if (code === CLOSE_FORBIDDEN) return new AccessDenied({ principal: '', right: 'connect', key: url })
  if (status === 400 || status === 403 || status === 404) return new InvalidRequest({ field: 'url', reason })
  if (closed.error !== undefined) return new Unavailable({ what: url, reason: closed.error.message || closed.error.name })
  return new Unavailable({ what: url, reason: `closed with ${code} ${reason}`.trim() })
}
