// What the service answers, as a program wants it: values decoded, and what is absent said so.
//
// Members keep the names that they have in the protocol.
import { InvalidRequest, RemoteProtocolError } from './errors.js'
import { REVISION_MAX } from './limits.js'
import { unpack } from './msgpack.js'

/** @import { ChangeMessage, Directory, EntryMessage, LeaseMessage, RevisionMessage, Epoch, Instant, VersionMessage } from './methods.js' */

/**
 * A key's value, with its author and time. `created_ms` is the time of `create_revision`, null if it
 * was not kept.
 * @typedef {Omit<EntryMessage, 'value' | 'expires_at_ms' | 'account' | 'created_ms'> & { value: any, expires_at_ms: number | null, account: string, created_ms: number | null }} Entry
 */

/**
 * Entries in key order, all as of `revision`; pass `next_key` as `after` for the next page.
 * `directories` are those of a listing with `delimiter`.
 * @typedef {{ revision: number, entries: Entry[], next_key: string | null, directories: Directory[] }} Listing
 */

/**
 * The change of one key by a revision: "put" with `value`, "delete", or a change of a lease.
 * @typedef {{ kind: string, key: string, value: any, expires_at_ms: number | null, lease: LeaseMessage | null }} Change
 */

/**
 * One revision as you may see it: all its visible changes together. `position` is the resume token
 * directly after it; `epoch` is set on a revision that begins one.
 * @typedef {{ revision: number, time_ms: number, author: string, account: string, note: string, changes: Change[], based_on: [string, number][], epoch: Epoch | null, position: string }} RevisionEvent
 */

/**
 * A version of a key: `entry`, or null when `author` removed the key.
 * @typedef {{ key: string, revision: number, time_ms: number, author: string, account: string, entry: Entry | null }} Version
 */

/**
 * A revision, the name of a checkpoint, "now", or a point in time.
 * @typedef {number | string | Date | Instant} Moment
 */

/**
 * @param {EntryMessage} message
 * @returns {Entry}
 */
export function entryOf (message) {
  if (typeof message?.key !== 'string' || !(message.value instanceof Uint8Array) || !Number.isSafeInteger(message.mod_revision)) {
    throw new RemoteProtocolError({ reason: 'bad entry' })
  }
  const { expires_at_ms: ends = null, account = '', created_ms: first = null } = message
  const created_ms = message.mod_revision === message.create_revision ? message.time_ms : first
  return { ...message, value: message.value.length ? unpack(message.value) : null, expires_at_ms: ends, account, created_ms }
}

/**
 * @param {ReadonlyArray<EntryMessage>} messages
 * @returns {Entry[]}
 */
export function entriesOf (messages) {
  if (!Array.isArray(messages)) throw new RemoteProtocolError({ reason: 'bad entries' })
  return messages.map(entryOf)
}

/**
 * @param {ChangeMessage} message
 * @returns {Change}
 */
function changeOf (message) {
  const { kind, key, value, expires_at_ms: ends = null, lease = null } = message
  return { kind, key, value: value === undefined ? null : unpack(value), expires_at_ms: ends, lease }
}

/**
 * @param {RevisionMessage} message
 * @param {string} [position]
 * @returns {RevisionEvent}
 */
export function revisionOf (message, position = '') {
  if (!Array.isArray(message?.changes)) throw new RemoteProtocolError({ reason: 'bad revision' })
  const { revision, time_ms, author, account = '', note = '', based_on = [], epoch = null } = message
  const changes = message.changes.map(changeOf)
  return { revision, time_ms, author, account, note, changes, based_on, epoch, position }
}

/**
 * @param {VersionMessage} message
 * @returns {Version}
 */
export function versionOf (message) {
  const { key, revision, time_ms, author, account = '', entry } = message
  return { key, revision, time_ms, author, account, entry: entry === undefined ? null : entryOf(entry) }
}

/**
 * A moment as the service takes it.
 * @param {Moment} when
 * @returns {number | string | Instant}
 */
export function momentOf (when) {
  if (when instanceof Date) {
    const time_ms = when.getTime()
    if (!(time_ms >= 0)) throw new InvalidRequest({ field: 'at', reason: 'a date before 1970, or none' })
    return { time_ms }
  }
  if (typeof when === 'number' && !(Number.isSafeInteger(when) && when >= 0 && when <= REVISION_MAX)) {
    throw new InvalidRequest({ field: 'at', reason: `${when} is no revision` })
  }
  if (typeof when !== 'number' && typeof when !== 'string' && typeof when?.time_ms !== 'number') {
    throw new InvalidRequest({ field: 'at', reason: `a ${typeof when} is no moment` })
  }
  return when
}

/**
 * The members of `params` that are set: the protocol knows no undefined.
 * @template {object} T
 * @param {T} params
 * @returns {T}
 */
export function given (params) {
  return /** @type {T} */ (Object.fromEntries(Object.entries(params).filter(([, member]) => member !== undefined)))
}
