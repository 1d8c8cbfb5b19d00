// What the page knows of one board: where it stands, the moment that is looked at, the newest revisions.
//
// One watch of everything follows the board. It is read in turns of a few milliseconds, and the views get
// what came at most ten times a second: the tab stays usable however much is written. Values are
// not kept; views that show them ask for them.
import { Compacted, Resync, RolledBack, Unauthenticated } from './client/index.js'
import { leave, sentence, theClient } from './session.js'
import { batch, computed, signal } from './vendor/preact.js'
import { preview } from './values.js'

/** @import { Board } from './client/board.js' */
/** @import { Checkpoint, Epoch, RefusedCommit } from './client/methods.js' */
/** @import { RevisionEvent } from './client/records.js' */
/** @import { Watch } from './client/watch.js' */

/** How many revisions the feed keeps. */
export const KEPT_MAX = 2000
/** How many changes of one revision the feed lists. */
const CHANGES_MAX = 12
const TOLD_EVERY_MS = 100
const TURN_MS = 8
const PAUSE_MS = 1000

/** @typedef {{ kind: string, key: string, preview: string }} Told */
/** @typedef {{ revision: number, time_ms: number, author: string, note: string, changes: Told[], count: number, epoch: Epoch | null }} Row */

export const boards = signal(/** @type {string[]} */ ([]))
export const name = signal('main')
export const head = signal({ revision: 0, oldest: 0, time_ms: 0 })
export const checkpoints = signal(/** @type {Checkpoint[]} */ ([]))
/** The revision that is looked at; null = now. */
export const moment = signal(/** @type {number | null} */ (null))
/** Changes whenever the board was taken back, so that views load again. */
export const epoch = signal('')
/** Grows when the board is followed again: listeners were not told of what happened in between. */
export const turns = signal(0)
export const trouble = signal('')
/** Whether there is no board of that name, or no more. */
export const absent = signal(false)
/** The head, a second late at most: for what is asked again whenever anything changes. */
export const settled = signal(0)
/** The newest revisions, the newest last. `told` changes with them. @type {Row[]} */
export const rows = []
export const told = signal(0)
/** The moment as the client takes it: undefined = now. */
export const at = computed(() => moment.value ?? undefined)

/** @type {Set<(changed: Row[]) => void>} */
const listeners = new Set()
/** @type {AbortController | null} */
let following = null

/** The board that is looked at. @returns {Board} */
export function board () { return theClient().board(name.peek()) }

/**
 * Call `listener` with what changed, at most ten times a second; returns a function that ends it.
 * @param {(changed: Row[]) => void} listener
 */
export function onChange (listener) {
  listeners.add(listener)
  return () => { listeners.delete(listener) }
}

/**
 * Look at a board, from now on.
 * @param {string} chosen
 */
export async function look (chosen) {
  following?.abort()
  const { signal: ends } = following = new AbortController()
  rows.length = 0
  fresh = [] // what came of another board, and reached no view yet
  batch(() => {
    name.value = chosen
    moment.value = null
    checkpoints.value = []
    head.value = { revision: 0, oldest: 0, time_ms: 0 }
    trouble.value = ''
    told.value++
  })
  while (!ends.aborted) {
    try {
      // Looking at a board must not create it, which reading its head does with the right to write.
      const names = await theClient().boards({ signal: ends })
      batch(() => { boards.value = names; absent.value = !names.includes(chosen) })
      if (!absent.value) await follow(ends)
      trouble.value = ''
      await new Promise(resolve => setTimeout(resolve, PAUSE_MS))
    } catch (error) {
      if (ends.aborted) return
      if (error instanceof Unauthenticated) return leave(sentence(error))
      const again = error instanceof Compacted || error instanceof RolledBack || error instanceof Resync
      trouble.value = again ? '' : sentence(error)
      await new Promise(resolve => setTimeout(resolve, again ? 0 : PAUSE_MS))
    }
  }
}

/** Which boards are there by now: somebody is about to choose one. */
export async function listBoards () {
  try {
    boards.value = await theClient().boards()
  } catch {
    // The list stays as it was. What follows the board says what is wrong.
  }
}

/** Look at no board any more, and forget what was seen. */
export function stop () {
  following?.abort()
  rows.length = 0
  fresh = []
  batch(() => { boards.value = []; checkpoints.value = []; refused.value = []; told.value++ })
}

/** @param {AbortSignal} ends */
async function follow (ends) {
  const watched = board()
  const watch = await watched.watch('**', { signal: ends })
  try {
    await readOn(watch, watched, ends)
  } finally {
    watch.close() // also if what is asked beside it fails: it is tried again with another one
  }
}

/** @param {Watch} watch @param {Board} watched @param {AbortSignal} ends */
async function readOn (watch, watched, ends) {
  const now = await watched.head({ signal: ends })
  const before = await watched.log({ after: Math.max(now.revision - 200, now.oldest - 1, 0), signal: ends })
  rows.length = 0
  fresh = [] // these are in the log, or were lost
  rows.push(...before.filter(each => each.revision <= watch.reached).map(row))
  batch(() => {
    head.value = { revision: now.revision, oldest: now.oldest, time_ms: now.time_ms }
    settled.value = now.revision
    epoch.value = now.epoch.id
    trouble.value = ''
    turns.value++
    told.value++
  })
  void recount()
  let began = performance.now()
  for await (const revised of watch) {
    take(revised)
    if (performance.now() - began < TURN_MS) continue
    await new Promise(resolve => setTimeout(resolve))
    began = performance.now()
  }
}

/** Read the checkpoints again. */
export async function recount () {
  const asked = following
  try {
    const found = await board().checkpoints()
    if (asked === following) checkpoints.value = found
  } catch (error) {
    if (asked !== following) return // another board, or another reader, by now
    if (error instanceof Unauthenticated) leave(sentence(error))
    // Without the right to see them, the list stays empty.
  }
}

/** The newest refused commits that the reader may see, the newest last. */
export const refused = signal(/** @type {RefusedCommit[]} */ ([]))
const REFUSED_MAX = 256

/**
 * Ask for refusals again, once a second, until the signal is aborted.
 * @param {AbortSignal} ends
 */
export async function followRefusals (ends) {
  refused.value = []
  while (!ends.aborted) {
    try {
      const known = refused.peek()
      const last = known.at(-1)
      const found = await board().refusals({ after: last?.number ?? 0, signal: ends })
      if (found.length > 0) refused.value = [...known, ...found].slice(-REFUSED_MAX)
      // A service that was started again counts from 1.
      else if (last !== undefined && (await board().refusals({ signal: ends })).at(-1)?.number !== last.number) refused.value = []
    } catch {
      if (ends.aborted) return // the watch says what is wrong
    }
    await new Promise(resolve => setTimeout(resolve, PAUSE_MS))
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let settling
/** Rows as the listeners get them: with all changes, those beyond the first few without a preview. @type {Row[]} */
let fresh = []
let planned = false

/** @param {RevisionEvent} revised */
export function take (revised) {
  const short = row(revised)
  const rest = revised.changes.slice(CHANGES_MAX).map(({ kind, key }) => ({ kind, key, preview: '' }))
  fresh.push({ ...short, changes: [...short.changes, ...rest] })
  if (planned) return
  planned = true
  setTimeout(tell, TOLD_EVERY_MS)
}

function tell () {
  planned = false
  const changed = fresh
  fresh = []
  rows.push(...changed.slice(-KEPT_MAX).map(each => ({ ...each, changes: each.changes.slice(0, CHANGES_MAX) })))
  if (rows.length > KEPT_MAX) rows.splice(0, rows.length - KEPT_MAX)
  const last = changed.at(-1)
  if (last === undefined) return
  const began = changed.findLast(each => each.epoch !== null)
  batch(() => {
    head.value = { ...head.value, revision: last.revision, time_ms: last.time_ms }
    if (began?.epoch) epoch.value = began.epoch.id
    told.value++
  })
  settling ??= setTimeout(() => { settling = undefined; settled.value = head.peek().revision }, PAUSE_MS)
  for (const listener of listeners) listener(changed)
  const named = changed.some(each => each.changes.some(change => change.key.startsWith('system/checkpoints/')))
  if (named || began !== undefined) void recount()
}

/** @param {RevisionEvent} revised @returns {Row} */
export function row ({ revision, time_ms, author, note, changes, epoch: begun }) {
  const told = changes.slice(0, CHANGES_MAX).map(({ kind, key, value }) => (
    { kind, key, preview: kind === 'put' ? preview(value) : '' }
  ))
  return { revision, time_ms, author, note, changes: told, count: changes.length, epoch: begun }
}
