// The reader: how a token opens the page, the connection, and how it ends.
//
// The token is kept for this tab only (sessionStorage). It is sent in the first message of the WebSocket,
// never in a URL and never in a cookie.
import { connect, Unavailable } from './client/index.js'
import { batch, signal } from './vendor/preact.js'

/** @import { Client } from './client/client.js' */
/** @import { WhoamiResult } from './client/methods.js' */

const KEPT = 'blackboard.token'
/** Requests of a person at a page wait this long for a connection that is gone. */
const PATIENCE_MS = 20_000
/** Where the service is: the page may lie below a path. */
const BASE = new URL('.', location.href).href

/** @type {import('./vendor/preact.js').Signal<'opening' | 'out' | 'in'>} */
export const phase = signal('opening')
/** The sentence that says why the page is closed, or what went wrong. */
export const reason = signal('')
/** Whether the connection stands at the moment. */
export const online = signal(false)
/** @type {import('./vendor/preact.js').Signal<WhoamiResult | null>} */
export const who = signal(null)
/** The board to begin with, where the link names none. */
export let first = 'main'
/** @type {Client | null} */
let client = null

/** The connected client. */
export function theClient () {
  if (client === null) throw new Error('the page is not connected')
  return client
}

/** The address of the service, as the client takes it. */
export function theAddress () { return BASE }

/** Whether the reader has `right` on the whole board. @param {string} right */
export function may (right) {
  const grants = who.value?.grants ?? []
  return grants.some(grant => grant.pattern === '**' && grant.rights.some(each => each === right))
}

/** Whether the reader has `right` on a key: for what to offer, as the service decides. @param {string} right @param {string} key */
export function mayAt (right, key) {
  return (who.value?.grants ?? []).some(({ pattern, rights }) => rights.includes(right) && matches(pattern, key))
}

/** Whether a pattern matches a key: `*` is one segment, `**` at the end is all that follow. @param {string} pattern @param {string} key */
function matches (pattern, key) {
  const [parts, segments] = [pattern.split('/'), key.split('/')]
  if (parts.at(-1) === '**') segments.splice(parts.length - 1, Infinity, ...(segments.length >= parts.length ? ['**'] : []))
  return parts.length === segments.length && parts.every((part, i) => part === '*' || part === segments[i])
}

class Observed extends WebSocket {
  /** @type {Observed | null} */
  static newest = null

  /** @param {string} url @param {string} protocol */
  constructor (url, protocol) {
    super(url, protocol)
    this.addEventListener('message', () => { Observed.newest = this; online.value = true }, { once: true })
    // The close of a connection that was replaced may come long after the next one stands.
    this.addEventListener('close', () => { if (Observed.newest === this) online.value = false })
  }
}

/** The code of a one-time link, if the fragment of an address is one. @param {string} hash */
function codeIn (hash) { return new URLSearchParams(hash.slice(1)).get('once') }

// A link that is opened in a tab with the page changes the fragment only: nothing is loaded.
addEventListener('hashchange', ({ newURL }) => { if (codeIn(new URL(newURL).hash) !== null) void arrive(new URL(newURL).hash) })

/** Get in with what there is: a one-time link, or the token of this tab. */
export async function arrive (hash = location.hash) {
  const once = codeIn(hash)
  if (once !== null) {
    const found = await exchanged(once)
    if (found !== undefined && codeIn(location.hash) !== null) history.replaceState(null, '', location.pathname)
    if (found) return await enter(found)
    if (sessionStorage.getItem(KEPT) === null) {
      return leave(found === undefined ? 'The service does not answer. Load this page again to try the same link.'
        : 'This link was used already, or is too old. Paste a token instead.')
    }
  }
  const kept = sessionStorage.getItem(KEPT)
  if (kept === null) return leave('')
  await enter(kept)
}

/** The token for a code; null: it is not good, undefined: nobody knows. @param {string} code @returns {Promise<string | null | undefined>} */
async function exchanged (code) {
  try {
    const answer = await fetch('page/enter', { method: 'POST', body: code })
    return answer.ok ? (await answer.json()).token : answer.status === 429 || answer.status >= 500 ? undefined : null
  } catch {
    return undefined
  }
}

/**
 * Connect as the principal of a token; the page shows nothing that this one may not see.
 * @param {string} given
 */
export async function enter (given) {
  client?.close()
  client = null
  phase.value = 'opening'
  /** @type {Client | null} */
  let connected = null
  try {
    const options = { token: given.trim(), patience_ms: PATIENCE_MS, WebSocket: Observed }
    connected = await connect(BASE, options)
    const [identity, names] = await Promise.all([connected.whoami(), connected.boards()])
    first = names.includes('main') || names.length === 0 ? 'main' : names[0] ?? 'main'
    sessionStorage.setItem(KEPT, given.trim())
    client = connected
    batch(() => { who.value = identity; reason.value = ''; phase.value = 'in' })
  } catch (error) {
    connected?.close()
    leave(sentence(error))
    if (!(error instanceof Unavailable)) return
    sessionStorage.setItem(KEPT, given.trim()) // it may be good, and the link that brought it is used up
    reason.value = 'The service does not answer. Load this page again to try it with the same token.'
  }
}

/**
 * Forget the token of this tab, and say why.
 * @param {string} why
 */
export function leave (why) {
  sessionStorage.removeItem(KEPT)
  client?.close()
  client = null
  batch(() => { who.value = null; reason.value = why; phase.value = 'out' })
}

/**
 * What went wrong, in one sentence with the way out.
 * @param {unknown} error
 * @returns {string}
 */
export function sentence (error) {
  const { code = '', fields = {}, message = String(error) } = /** @type {any} */ (error ?? {})
  switch (code) {
    case 'unauthenticated': return `The service does not take this token (${fields.reason}). Paste another one.`
    case 'access_denied': return `Your token does not allow that: it needs the right “${fields.right ?? 'read'}” on ${fields.key ?? fields.board ?? 'this'}.`
    case 'unavailable': return `The service does not answer (${fields.reason}). The page connects again by itself.`
    case 'conflict': return `${fields.key} changed in between: it is at revision ${fields.actual} now, by ${fields.by || 'somebody'}. Look again, then repeat it.`
    case 'board_frozen': return `The board is frozen${fields.note ? `: ${fields.note}` : ''}. An admin can thaw it under Act.`
    case 'compacted': return `The service no longer keeps revision ${fields.revision}; it begins at ${fields.oldest}.`
    case 'stale_epoch': return 'The board was taken back in the meantime. Look again, then repeat it.'
    case 'outcome_unknown': return 'The connection broke before the answer came: it may have been done. Look before you repeat it.'
    default: return message
  }
}
