// Tokens: made narrower here, without the service, which alone can verify them.
//
// A token is `<header>.<claims>.<signature>`; a narrowed one `<header>.<claims>~<link>~...~<signature>`.
// Each signature is the key of the next one, so nothing but the token is needed to narrow it.
import { InvalidRequest, LimitExceeded, Unauthenticated } from './errors.js'
import { DOCUMENT_TOKEN_TTL_MS_MAX, NARROWINGS_MAX } from './limits.js'
import { subtle } from './lock.js'
import { isPrefix } from './paths.js'

/** Tokens travel in headers, whose lines web servers bound at about that. */
const TOKEN_BYTES_MAX = 8192
const LINK = '~'

/**
 * What a narrowed token allows, of what its token does. Grants are `[pattern, rights]`.
 * @typedef {object} Narrowing
 * @property {string} [name] `<own name>.<more>`
 * @property {[string, string[]][]} [grants]
 * @property {string[]} [boards]
 * @property {number} [expires_at_ms]
 */

/**
 * A token with no more than `to` of what `token` allows. A service refuses one that says it allows
 * more. Throws Unauthenticated for what is no token, LimitExceeded for too many links or bytes.
 * @param {string} token
 * @param {Narrowing} to
 * @returns {Promise<string>}
 */
export async function narrowed (token, to) {
  const { signed, links, signature } = takenApart(token)
  if (links.length >= NARROWINGS_MAX) {
    throw new LimitExceeded({ limit: 'NARROWINGS_MAX', value: links.length + 1, maximum: NARROWINGS_MAX })
  }
  /** @type {Record<string, unknown>} */
  const link = { jti: packed(globalThis.crypto.getRandomValues(new Uint8Array(9))) }
  if (to.name !== undefined) link['sub'] = to.name
  if (to.grants !== undefined) link['grants'] = to.grants.map(([pattern, rights]) => [pattern, [...rights].sort()])
  if (to.boards !== undefined) link['boards'] = [...to.boards].sort()
  if (to.expires_at_ms !== undefined) link['exp'] = Math.floor(to.expires_at_ms / 1000)
  const text = packed(new TextEncoder().encode(JSON.stringify(link)))
  const hmac = { name: 'HMAC', hash: 'SHA-256' }
  const key = await subtle().importKey('raw', signature, hmac, false, ['sign'])
  const last = new Uint8Array(await subtle().sign('HMAC', key, new TextEncoder().encode(text)))
  const made = [signed, ...links, text, packed(last)].join(LINK)
  if (made.length > TOKEN_BYTES_MAX) {
    throw new LimitExceeded({ limit: 'TOKEN_BYTES_MAX', value: made.length, maximum: TOKEN_BYTES_MAX, where: 'grants' })
  }
  return made
}

/**
 * A token that an editor may have in its URL: `token`, narrowed to the document at `key`, for an hour
 * at most. The service goes by its own clock, so the default leaves room for a clock here that is ahead.
 * @param {string} token
 * @param {string} board
 * @param {string} key
 * @param {{ can_edit?: boolean, ttl_ms?: number }} [options]
 * @returns {Promise<string>}
 */
export async function documentToken (token, board, key, { can_edit = true, ttl_ms = DOCUMENT_TOKEN_TTL_MS_MAX / 2 } = {}) {
  if (!isPrefix(key) || !key.includes('/')) throw new InvalidRequest({ field: 'key', reason: 'is not a key' })
  return await narrowed(token, {
    grants: [[`${key}/~doc/**`, can_edit ? ['append', 'read'] : ['read']]],
    boards: [board],
    expires_at_ms: Date.now() + Math.min(ttl_ms, DOCUMENT_TOKEN_TTL_MS_MAX)
  })
}

/** @param {string} token */
function takenApart (token) {
  let [signed = '', ...links] = token.split(LINK)
  let signature = links.pop()
  if (signature === undefined) {
    const end = signed.lastIndexOf('.')
    ;[signed, signature] = [signed.slice(0, Math.max(end, 0)), signed.slice(end + 1)]
  }
  const bytes = /^[A-Za-z0-9_-]+$/.test(signature) ? unpacked(signature) : null
  if (bytes === null || signed.split('.').length !== 2) {
    throw new Unauthenticated({ reason: 'the token is not one of a service' })
  }
  return { signed, links, signature: bytes }
}

/** @param {Uint8Array} bytes */
function packed (bytes) {
  return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join('')).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer> | null}
 */
function unpacked (text) {
  try {
    const found = atob(text.replaceAll('-', '+').replaceAll('_', '/'))
    return Uint8Array.from(found, character => character.charCodeAt(0))
  } catch {
    return null
  }
}
