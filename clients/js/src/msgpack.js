// msgpack, as far as the protocol and its values need it: JSON types, bytes and integers of 64 bits.
//
// - Integers that a Number cannot hold exactly are BigInt, in both directions. A Number without a
//   fraction is written as an integer; -0 stays a float.
// - The encoding is the shortest one, which is the canonical form of the service.
// - No extension types. Keys of maps are strings; a key such as `__proto__` is an ordinary member.
import { InvalidRequest, LimitExceeded, RemoteProtocolError } from './errors.js'
import { VALUE_BYTES_MAX, VALUE_DEPTH_MAX } from './limits.js'

/**
 * A value on the board. Functions, symbols, undefined, NaN and dates are refused.
 * @typedef {null | boolean | number | bigint | string | Uint8Array | ReadonlyArray<any> | { [key: string]: any }} Value
 */

/** The name that stands for bytes in JSON, and is therefore refused as a key. */
const BYTES_KEY = '$bytes'
/** Nesting of a message around a value, which is encoded by itself. */
const MESSAGE_DEPTH_MAX = 256
/** Arrays and maps in one message: an empty one takes a byte there and many in memory. */
const CONTAINERS_MAX = VALUE_BYTES_MAX
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const TEXT = new TextEncoder()
const INT64_MIN = -(2n ** 63n)
const UINT64_MAX = 2n ** 64n - 1n

// --- writing --------------------------------------------------------------------------------------

class Writer {
  constructor () {
    this.bytes = new Uint8Array(256)
    this.view = new DataView(this.bytes.buffer)
    this.at = 0
  }

  /** @param {number} count */
  room (count) {
    const start = this.at
    this.at += count
    if (this.at > this.bytes.length) {
      const grown = new Uint8Array(Math.max(this.at, 2 * this.bytes.length))
      grown.set(this.bytes)
      this.bytes = grown
      this.view = new DataView(grown.buffer)
    }
    return start
  }

  /** @param {number} byte */
  byte (byte) { const at = this.room(1); this.bytes[at] = byte }

  /**
   * @param {number} head
   * @param {1 | 2 | 4} size
   * @param {number} number
   */
  sized (head, size, number) {
    const at = this.room(1 + size)
    this.bytes[at] = head
    if (size === 1) this.view.setUint8(at + 1, number)
    else if (size === 2) this.view.setUint16(at + 1, number)
    else this.view.setUint32(at + 1, number)
  }

  /** @param {Uint8Array} bytes */
  raw (bytes) { const at = this.room(bytes.length); this.bytes.set(bytes, at) }

  done () { return this.bytes.slice(0, this.at) }
}

/**
 * @param {Writer} out
 * @param {number} number
 */
function writeNumber (out, number) {
  if (!Number.isInteger(number) || Object.is(number, -0)) {
    if (!Number.isFinite(number)) throw refused(`${number} is not a JSON number`)
    writeFloat(out, number)
  } else if (!Number.isSafeInteger(number)) writeFloat(out, number)
  else if (number >= 0) {
    if (number < 0x80) out.byte(number)
    else if (number < 0x100) out.sized(0xcc, 1, number)
    else if (number < 0x10000) out.sized(0xcd, 2, number)
    else if (number < 0x100000000) out.sized(0xce, 4, number)
    else writeBig(out, BigInt(number))
  } else if (number >= -0x20) out.byte(0x100 + number)
  else if (number >= -0x80) out.sized(0xd0, 1, number & 0xff)
  else if (number >= -0x8000) out.sized(0xd1, 2, number & 0xffff)
  else if (number >= -0x80000000) out.sized(0xd2, 4, number >>> 0)
  else writeBig(out, BigInt(number))
}

/**
 * @param {Writer} out
 * @param {number} number
 */
function writeFloat (out, number) {
  const at = out.room(9)
  out.bytes[at] = 0xcb
  out.view.setFloat64(at + 1, number)
}

/**
 * @param {Writer} out
 * @param {bigint} number
 */
function writeBig (out, number) {
  if (number < INT64_MIN || number > UINT64_MAX) throw refused('an integer has at most 64 bits')
  if (number >= BigInt(Number.MIN_SAFE_INTEGER) && number <= BigInt(Number.MAX_SAFE_INTEGER)) {
    const small = Number(number)
    if (small >= -0x80000000 && small < 0x100000000) return writeNumber(out, small)
  }
  const at = out.room(9)
  out.bytes[at] = number < 0n ? 0xd3 : 0xcf
  if (number < 0n) out.view.setBigInt64(at + 1, number)
  else out.view.setBigUint64(at + 1, number)
}

/**
 * @param {Writer} out
 * @param {string} text
 */
function writeText (out, text) {
  if (!isUnicode(text)) throw refused('a text is not Unicode: it has half of a surrogate pair')
  const bytes = TEXT.encode(text)
  const size = bytes.length
  if (size < 32) out.byte(0xa0 | size)
  else if (size < 0x100) out.sized(0xd9, 1, size)
  else if (size < 0x10000) out.sized(0xda, 2, size)
  else out.sized(0xdb, 4, size)
  out.raw(bytes)
}

/** @param {string} text */
function isUnicode (text) {
  return !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)
}

/**
 * @param {Writer} out
 * @param {Uint8Array} bytes
 */
function writeBytes (out, bytes) {
  const size = bytes.length
  if (size < 0x100) out.sized(0xc4, 1, size)
  else if (size < 0x10000) out.sized(0xc5, 2, size)
  else out.sized(0xc6, 4, size)
  out.raw(bytes)
}

/**
 * @param {Writer} out
 * @param {number} count
 * @param {number} small the code of a short one
 * @param {number} wide the code of one with 16 bits
 */
function writeCount (out, count, small, wide) {
  if (count < 16) out.byte(small | count)
  else if (count < 0x10000) out.sized(wide, 2, count)
  else out.sized(wide + 1, 4, count)
}

/**
 * @param {Writer} out
 * @param {unknown} value
 * @param {number} depth
 * @param {number} depthMax
 */
function write (out, value, depth, depthMax) {
  if (value === null) return out.byte(0xc0)
  switch (typeof value) {
    case 'boolean': return out.byte(value ? 0xc3 : 0xc2)
    case 'number': return writeNumber(out, value)
    case 'bigint': return writeBig(out, value)
    case 'string': return writeText(out, value)
    case 'object': break
    default: throw refused(`${typeof value} is no type of JSON, and not bytes`)
  }
  if (value instanceof Uint8Array) return writeBytes(out, value)
  if (depth >= depthMax) {
    throw new LimitExceeded({ limit: 'VALUE_DEPTH_MAX', value: depth + 1, maximum: depthMax })
  }
  if (Array.isArray(value)) {
    writeCount(out, value.length, 0x90, 0xdc)
    for (let i = 0; i < value.length; i++) write(out, value[i], depth + 1, depthMax)
    return
  }
  writeMap(out, /** @type {object} */ (value), depth, depthMax)
}

/**
 * @param {Writer} out
 * @param {object} value
 * @param {number} depth
 * @param {number} depthMax
 */
function writeMap (out, value, depth, depthMax) {
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    const kind = value.constructor?.name ?? 'object'
    throw refused(`${kind} is no type of JSON, and not bytes: give a plain object, an array or a Uint8Array`)
  }
  const keys = Object.keys(value)
  writeCount(out, keys.length, 0x80, 0xde)
  for (const key of keys) {
    if (key === BYTES_KEY && depthMax === VALUE_DEPTH_MAX) throw refused(`'${key}' cannot be a key of a map`)
    writeText(out, key)
    write(out, /** @type {Record<string, unknown>} */ (value)[key], depth + 1, depthMax)
  }
}

/** @param {string} reason */
function refused (reason) { return new InvalidRequest({ field: 'value', reason }) }

/**
 * Encode a message of the protocol.
 * @param {unknown} message
 * @returns {Uint8Array}
 */
export function pack (message) {
  const out = new Writer()
  write(out, message, 0, MESSAGE_DEPTH_MAX)
  return out.done()
}

/**
 * Encode a value for the board. Throws InvalidRequest for what is no value, LimitExceeded for one
 * that is too large or nested too deeply.
 * @param {unknown} value
 * @returns {Uint8Array}
 */
export function encodeValue (value) {
  const out = new Writer()
  write(out, value, 0, VALUE_DEPTH_MAX)
  if (out.at > VALUE_BYTES_MAX) {
    throw new LimitExceeded({ limit: 'VALUE_BYTES_MAX', value: out.at, maximum: VALUE_BYTES_MAX })
  }
  return out.done()
}

// --- reading --------------------------------------------------------------------------------------

class Reader {
  /** @param {Uint8Array} bytes */
  constructor (bytes) {
    this.bytes = bytes
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    this.at = 0
    this.containers = 0
  }

  /**
   * @param {number} count
   * @param {number} depth
   */
  enter (count, depth) {
    if (depth >= MESSAGE_DEPTH_MAX) throw malformed('it nests too deeply')
    if (++this.containers > CONTAINERS_MAX) throw malformed(`more than ${CONTAINERS_MAX} arrays and maps`)
    if (count > this.bytes.length - this.at) throw malformed('it ends too early')
  }

  /** @param {number} count */
  take (count) {
    const start = this.at
    if (count > this.bytes.length - start) throw malformed('it ends too early')
    this.at = start + count
    return start
  }

  /** @param {1 | 2 | 4} size */
  unsigned (size) {
    const at = this.take(size)
    return size === 1 ? this.view.getUint8(at) : size === 2 ? this.view.getUint16(at) : this.view.getUint32(at)
  }

  /** @param {number} depth */
  read (depth) {
    const code = this.bytes[this.take(1)] ?? 0
    if (code < 0x80) return code
    if (code >= 0xe0) return code - 0x100
    if (code < 0x90) return this.map(code & 0x0f, depth)
    if (code < 0xa0) return this.list(code & 0x0f, depth)
    if (code < 0xc0) return this.text(code & 0x1f)
    return this.coded(code, depth)
  }

  /**
   * @param {number} code
   * @param {number} depth
   * @returns {any}
   */
  coded (code, depth) {
    switch (code) {
      case 0xc0: return null
      case 0xc2: return false
      case 0xc3: return true
      case 0xc4: return this.binary(this.unsigned(1))
      case 0xc5: return this.binary(this.unsigned(2))
      case 0xc6: return this.binary(this.unsigned(4))
      case 0xca: return this.view.getFloat32(this.take(4))
      case 0xcb: return this.view.getFloat64(this.take(8))
      case 0xcc: return this.unsigned(1)
      case 0xcd: return this.unsigned(2)
      case 0xce: return this.unsigned(4)
      case 0xcf: return exact(this.view.getBigUint64(this.take(8)))
      case 0xd0: return this.view.getInt8(this.take(1))
      case 0xd1: return this.view.getInt16(this.take(2))
      case 0xd2: return this.view.getInt32(this.take(4))
      case 0xd3: return exact(this.view.getBigInt64(this.take(8)))
      case 0xd9: return this.text(this.unsigned(1))
      case 0xda: return this.text(this.unsigned(2))
      case 0xdb: return this.text(this.unsigned(4))
      case 0xdc: return this.list(this.unsigned(2), depth)
      case 0xdd: return this.list(this.unsigned(4), depth)
      case 0xde: return this.map(this.unsigned(2), depth)
      case 0xdf: return this.map(this.unsigned(4), depth)
      default: throw malformed(`a byte ${code} begins no value`)
    }
  }

  /** @param {number} size */
  text (size) {
    const at = this.take(size)
    try {
      return UTF8.decode(this.bytes.subarray(at, at + size))
    } catch {
      throw malformed('a text is not UTF-8')
    }
  }

  /** @param {number} size */
  binary (size) {
    const at = this.take(size)
    return new Uint8Array(this.bytes.subarray(at, at + size)) // a copy; `slice` of a Buffer of Node is none
  }

  /**
   * @param {number} count
   * @param {number} depth
   * @returns {any[]}
   */
  list (count, depth) {
    this.enter(count, depth)
    const items = []
    for (let i = 0; i < count; i++) items.push(this.read(depth + 1))
    return items
  }

  /**
   * @param {number} count
   * @param {number} depth
   * @returns {Record<string, any>}
   */
  map (count, depth) {
    this.enter(count, depth)
    /** @type {Record<string, any>} */
    const found = {}
    for (let i = 0; i < count; i++) {
      const key = this.read(depth + 1)
      if (typeof key !== 'string') throw malformed('a key of a map is not a text')
      setMember(found, key, this.read(depth + 1))
    }
    return found
  }
}

/**
 * Set an own member, whatever its name is: `__proto__` would otherwise replace the prototype.
 * @param {Record<string, any>} found
 * @param {string} key
 * @param {unknown} value
 */
export function setMember (found, key, value) {
  if (key === '__proto__') {
    Object.defineProperty(found, key, { value, enumerable: true, configurable: true, writable: true })
  } else found[key] = value
}

/** @param {bigint} number */
function exact (number) {
  const small = Number(number)
  return Number.isSafeInteger(small) ? small : number
}

/** @param {string} reason */
function malformed (reason) { return new RemoteProtocolError({ reason: `not msgpack: ${reason}`, close_code: 1007 }) }

/**
 * Decode a message, or a value that the service sent. Throws RemoteProtocolError.
 * @param {Uint8Array} bytes
 * @returns {any}
 */
export function unpack (bytes) {
  const reader = new Reader(bytes)
  const found = reader.read(0)
  if (reader.at !== bytes.length) throw malformed('something follows it')
  return found
}
