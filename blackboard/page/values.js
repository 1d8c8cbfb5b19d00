// Values as text: whatever agents wrote is shown as characters, never as markup.
import { diffWordsWithSpace } from './vendor/diff.js'

/** Characters of a value that are shown before somebody asks for the rest. */
export const SHOWN_MAX = 20_000
const PREVIEW_MAX = 120
const DEPTH_MAX = 64
/** What is longer is compared by lines, and not at all beyond the time. */
const WORDS_MAX = 50_000
const COMPARE_MS = 150

/**
 * One line that begins like the value. Never reads more of it than it shows.
 * @param {unknown} value
 * @returns {string}
 */
export function preview (value) {
  const text = visible(written(value, 0, PREVIEW_MAX + 1))
  return text.length > PREVIEW_MAX ? `${text.slice(0, PREVIEW_MAX)}…` : text
}

/**
 * @param {unknown} value
 * @param {number} depth
 * @param {number} room in characters
 * @returns {string}
 */
function written (value, depth, room) {
  if (room <= 0) return ''
  if (typeof value === 'string') return JSON.stringify(value.slice(0, room))
  if (value instanceof Uint8Array) return `${value.length} bytes`
  if (typeof value !== 'object' || value === null) return String(value)
  if (depth > 4) return '…'
  const isList = Array.isArray(value)
  let text = isList ? '[' : '{'
  for (const [name, member] of entriesOf(value)) {
    if (text.length > 1) text += ', '
    if (!isList) text += `${name.slice(0, room)}: `
    text += written(member, depth + 1, room - text.length)
    if (text.length > room) return text
  }
  return text + (isList ? ']' : '}')
}

/** @param {object} value @returns {Iterable<[string, unknown]>} */
function * entriesOf (value) {
  if (value instanceof Map) for (const [name, member] of value) yield [String(name), member]
  else for (const name in value) yield [name, /** @type {any} */ (value)[name]]
}

/**
 * A value on as many lines as it takes, as JSON is usually laid out.
 * @param {unknown} value
 * @param {number} [depth]
 * @returns {string}
 */
export function printed (value, depth = 0) {
  if (typeof value === 'string') return depth === 0 ? value : JSON.stringify(value)
  if (typeof value === 'bigint') return String(value)
  if (value instanceof Uint8Array) return `<${value.length} bytes>`
  if (typeof value !== 'object' || value === null) return String(value)
  const isList = Array.isArray(value)
  const parts = [...entriesOf(value)].map(([name, member]) => {
    const text = depth >= DEPTH_MAX ? '…' : printed(member, depth + 1)
    return isList ? text : `${JSON.stringify(name)}: ${text}`
  })
  const [open, close] = isList ? '[]' : '{}'
  const short = parts.join(', ')
  if (short.length < 60 && !short.includes('\n')) return `${open}${short}${close}`
  const indent = '  '.repeat(depth + 1)
  return `${open}\n${parts.map(part => indent + part).join(',\n')}\n${'  '.repeat(depth)}${close}`
}

/** Characters that change how others are read, or that nobody sees: shown by their number. */
const INVISIBLE = new RegExp('[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f' +
  '\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\u{e0000}-\\u{e0fff}]', 'gu')

/**
 * The text with every character that would hide or turn others made visible.
 * @param {string} text
 */
export function visible (text) {
  return text.replace(INVISIBLE, found => `\\u${(found.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`)
}

/**
 * What changed from one text to another, by words.
 * @param {string} before
 * @param {string} after
 * @returns {{ kind: 'same' | 'added' | 'removed', text: string }[]}
 */
export function compared (before, after) {
  const small = before.length + after.length <= WORDS_MAX
  const parts = small ? diffWordsWithSpace(before, after, { timeout: COMPARE_MS }) : undefined
  if (parts === undefined) {
    return before === after ? [{ kind: 'same', text: before }] : [{ kind: 'removed', text: before }, { kind: 'added', text: after }]
  }
  return parts.map(({ added, removed, value }) => ({ kind: added ? 'added' : removed ? 'removed' : 'same', text: value }))
}

/** What was written where a text is expected, which may be anything. @param {unknown} value */
export function textOf (value) { return typeof value === 'string' ? value : value === undefined || value === null ? '' : preview(value) }

/** Likewise a number: 0 stands for everything else. @param {unknown} value */
export function numberOf (value) { return typeof value === 'number' ? value : 0 }

/** The latest time that a Date can hold. */
const TIME_MS_MAX = 8.64e15

/** @param {number} time_ms */
export function clock (time_ms) {
  if (!time_ms || !(Math.abs(time_ms) <= TIME_MS_MAX)) return ''
  const when = new Date(time_ms)
  const time = when.toLocaleTimeString('en-GB')
  return Date.now() - time_ms < 20 * 3_600_000 ? time : `${when.toISOString().slice(0, 10)} ${time}`
}

/** @param {number} time_ms */
export function ago (time_ms) {
  const seconds = Math.max(0, Math.round((Date.now() - time_ms) / 1000))
  if (seconds < 60) return `${seconds} s ago`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86_400)} days ago`
}

/** @param {number} number */
export function grouped (number) { return number.toLocaleString('en-GB') }
