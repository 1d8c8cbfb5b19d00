// A WebSocket (RFC 6455) for Node without one of its own: Node 20. It has what `socket.js` uses.
//
// Invariants
// - A message never has more than FRAME_BYTES_MAX bytes, in one frame or in many.
// - `onclose` is called once, after the last message.
import { createHash, randomBytes } from 'node:crypto'
import { request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { FRAME_BYTES_MAX } from './limits.js'

const MAGIC = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
/** A refusal is a sentence; more of it is not read. */
const REFUSAL_BYTES_MAX = 4096
const CLOSE_TIMEOUT_MS = 1000
const FRAGMENTS_MAX = 4096

/**
 * @param {string} url
 * @param {string} protocol
 * @returns {NodeSocket}
 */
export function nodeSocket (url, protocol) { return new NodeSocket(url, protocol) }

/** The part of the browser's WebSocket that is used here. */
export class NodeSocket {
  /**
   * @param {string} url
   * @param {string} protocol
   */
  constructor (url, protocol) {
    /** @type {(() => void) | null} */
    this.onopen = null
    /** @type {((event: { data: Uint8Array | string }) => void) | null} */
    this.onmessage = null
    /** @type {((event: { code: number, reason: string, status?: number, error?: Error }) => void) | null} */
    this.onclose = null
    this.protocol = ''
    /** @type {import('node:stream').Duplex | null} */
    this._stream = null
    /** @type {Buffer[]} */
    this._chunks = []
    this._size = 0
    /** @type {Buffer[]} */
    this._parts = []
    this._partsSize = 0
    this._opcode = 0
    this._over = false
    this._closing = false
    this._request = this._dial(url, protocol)
  }

  /**
   * @param {string} url
   * @param {string} protocol
   */
  _dial (url, protocol) {
    const key = randomBytes(16).toString('base64')
    const accept = createHash('sha1').update(key + MAGIC).digest('base64')
    const secure = url.startsWith('wss:')
    const address = new URL(url.replace(/^ws/, 'http'))
    const request = (secure ? httpsRequest : httpRequest)(address, {
      agent: false,
      headers: {
        Connection: 'Upgrade',
        Upgrade: 'websocket',
        'Sec-WebSocket-Key': key,
        'Sec-WebSocket-Version': '13',
        'Sec-WebSocket-Protocol': protocol
      }
    })
    request.on('error', error => this._end(1006, error.message, undefined, error))
    request.on('response', response => this._refused(response))
    request.on('upgrade', (response, stream, head) => {
      if (response.headers['sec-websocket-accept'] !== accept) {
        stream.destroy()
        return this._end(1006, 'it does not speak WebSocket')
      }
      this.protocol = response.headers['sec-websocket-protocol'] ?? ''
      this._begin(stream, head)
    })
    request.end()
    return request
  }

  /** @param {import('node:http').IncomingMessage} response */
  _refused (response) {
    let text = ''
    response.setEncoding('utf8')
    response.on('data', part => {
      text = (text + part).slice(0, REFUSAL_BYTES_MAX)
      if (text.length === REFUSAL_BYTES_MAX) response.destroy()
    })
    response.on('error', () => {})
    response.on('close', () => this._end(1006, reasonIn(text) || `HTTP ${response.statusCode}`, response.statusCode))
  }

  /**
   * @param {import('node:stream').Duplex} stream
   * @param {Buffer} head
   */
  _begin (stream, head) {
    if (this._over) return void stream.destroy()
    this._stream = stream
    if ('setNoDelay' in stream) /** @type {import('node:net').Socket} */ (stream).setNoDelay(true)
    stream.on('error', error => this._end(1006, error.message))
    stream.on('close', () => this._end(1006, 'the connection broke'))
    this.onopen?.()
    if (head.length > 0) stream.unshift(head)
    // A later turn: what came together with the handshake is for those who await `onopen`, too.
    setImmediate(() => stream.on('data', chunk => this._take(chunk)))
  }

  // --- frames -------------------------------------------------------------------------------------

  /** @param {Buffer} chunk */
  _take (chunk) {
    this._chunks.push(chunk)
    this._size += chunk.length
    while (!this._over && this._frame());
  }

  /** @param {number} size */
  _joined (size) {
    if ((this._chunks[0]?.length ?? 0) < size) this._chunks = [Buffer.concat(this._chunks)]
    return this._chunks[0] ?? Buffer.alloc(0)
  }

  /** Take one whole frame, if it has come. */
  _frame () {
    if (this._size < 2) return false
    const head = this._joined(2)
    const short = (head[1] ?? 0) & 0x7f
    if (((head[1] ?? 0) & 0x80) !== 0) return this._violated('a masked frame')
    const start = short === 126 ? 4 : short === 127 ? 10 : 2
    if (this._size < start) return false
    const whole = this._joined(start)
    const size = short === 126 ? whole.readUInt16BE(2) : short === 127 ? Number(whole.readBigUInt64BE(2)) : short
    if (size + this._partsSize > FRAME_BYTES_MAX) return this._violated('a message that is too large', 1009)
    if (this._size < start + size) return false
    const all = this._joined(start + size)
    const content = all.subarray(start, start + size)
    const rest = all.subarray(start + size)
    this._chunks = rest.length > 0 ? [rest, ...this._chunks.slice(1)] : this._chunks.slice(1)
    this._size -= start + size
    return this._read(whole[0] ?? 0, content)
  }

  /**
   * @param {number} first
   * @param {Buffer} content
   */
  _read (first, content) {
    const final = (first & 0x80) !== 0
    const opcode = first & 0x0f
    if ((first & 0x70) !== 0) return this._violated('reserved bits')
    if (opcode >= 8) return this._control(opcode, content, final)
    if (opcode > 2 || (opcode === 0) !== (this._opcode !== 0)) return this._violated('an opcode that does not fit')
    if (opcode !== 0) this._opcode = opcode
    this._parts.push(content)
    this._partsSize += content.length
    if (this._parts.length > FRAGMENTS_MAX) return this._violated('too many fragments')
    if (!final) return true
    const message = this._parts.length === 1 ? content : Buffer.concat(this._parts)
    const isText = this._opcode === 1
    this._parts = []
    this._partsSize = this._opcode = 0
    this.onmessage?.({ data: isText ? message.toString('utf8') : message })
    return true
  }

  /**
   * @param {number} opcode
   * @param {Buffer} content
   * @param {boolean} final
   */
  _control (opcode, content, final) {
    if (!final || content.length > 125 || opcode > 10) return this._violated('a control frame that is none')
    if (opcode === 9) this._write(10, content)
    if (opcode === 8) {
      const code = content.length >= 2 ? content.readUInt16BE(0) : 1005
      this._finish(code === 1005 ? 1000 : code)
      this._end(code, content.subarray(2).toString('utf8'))
      return false
    }
    return true
  }

  /**
   * @param {string} reason
   * @param {number} [code]
   */
  _violated (reason, code = 1002) {
    this._finish(code)
    this._end(code, reason)
    return false
  }

  /**
   * @param {number} opcode
   * @param {Uint8Array} content
   */
  _write (opcode, content) {
    if (this._stream === null || this._stream.destroyed) return
    const size = content.length
    const start = size < 126 ? 2 : size < 0x10000 ? 4 : 10
    const frame = Buffer.allocUnsafe(start + 4 + size)
    frame[0] = 0x80 | opcode
    frame[1] = 0x80 | (size < 126 ? size : size < 0x10000 ? 126 : 127)
    if (start === 4) frame.writeUInt16BE(size, 2)
    if (start === 10) frame.writeBigUInt64BE(BigInt(size), 2)
    const mask = randomBytes(4)
    mask.copy(frame, start)
    for (let i = 0; i < size; i++) frame[start + 4 + i] = (content[i] ?? 0) ^ (mask[i & 3] ?? 0)
    this._stream.write(frame)
  }

  // --- for its user -------------------------------------------------------------------------------

  /** @param {Uint8Array} message */
  send (message) { if (!this._closing) this._write(2, message) }

  /** @param {number} [code] */
  close (code = 1000) {
    if (this._stream === null) {
      this._end(1006, 'it was closed')
      this._request.destroy()
    } else if (!this._closing) this._finish(code)
  }

  /** @param {number} code */
  _finish (code) {
    if (this._closing || this._stream === null) return
    this._closing = true
    const content = Buffer.alloc(2)
    content.writeUInt16BE(code, 0)
    const stream = this._stream
    this._write(8, content)
    stream.end()
    setTimeout(() => stream.destroy(), CLOSE_TIMEOUT_MS).unref()
  }

  /**
   * @param {number} code
   * @param {string} reason
   * @param {number} [status]
   * @param {Error} [error]
   */
  _end (code, reason, status, error) {
    if (this._over) return
    this._over = true
    this._chunks = []
    this._parts = []
    this.onclose?.({ code, reason, ...(status === undefined ? {} : { status }), ...(error === undefined ? {} : { error }) })
  }
}

/** @param {string} text */
function reasonIn (text) {
  try {
    return String(JSON.parse(text).reason)
  } catch {
    return text.slice(0, 200)
  }
}
