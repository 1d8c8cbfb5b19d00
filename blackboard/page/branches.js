// The tree of keys, loaded as far as it is open: a branch is read when it is opened.
//
// Invariants
// - The children of a branch are what is below it, a segment each, sorted as the service sorts keys.
// - Up to `next`, a branch knows all its children; beyond, none. null: it knows all of them.
// - Values are not loaded, and of a folder only its name, however much it holds.
import { board } from './store.js'

/** @import { Row } from './store.js' */

/** Children of one page of a listing, and children after which a branch waits to be asked for more. */
const PAGE_CHILDREN = 256
const CHILDREN_MAX = 512

/** @typedef {{ name: string, path: string, isKey: boolean, isFolder: boolean }} Child */

/** What is known of the keys below one prefix. */
export class Branch {
  /** @param {string} prefix without a slash at its end; '' = everything */
  constructor (prefix) {
    this.prefix = prefix
    /** @type {Map<string, Child>} */
    this.children = new Map()
    /** After which key to continue. @type {string | null} */
    this.next = ''
    this._sorted = /** @type {Child[] | null} */ (null)
  }

  /** @returns {Child[]} */
  sorted () {
    this._sorted ??= [...this.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
    return this._sorted
  }

  /**
   * Learn more children, up to CHILDREN_MAX of them at a time.
   * @param {number | undefined} at
   * @param {AbortSignal} signal
   */
  async load (at, signal) {
    const wanted = this.children.size + CHILDREN_MAX
    const pattern = this.prefix === '' ? '**' : `${this.prefix}/**`
    while (this.next !== null && this.children.size < wanted) {
      const from = this.next
      const after = from === '' ? null : from
      const page = await board().list(pattern, {
        after, limit: PAGE_CHILDREN, keys_only: true, delimiter: '/', signal, ...(at === undefined ? {} : { at })
      })
      if (this.next !== from) continue // another load was here first
      for (const { key } of page.entries) this.add(key)
      for (const { prefix } of page.directories) this.add(`${prefix}/`)
      this.next = page.next_key
    }
  }

  /** A child that is a key, or the folder of one. @param {string} key */
  add (key) {
    const name = this._nameIn(key)
    const path = this._pathOf(name)
    const known = this.children.get(name) ?? { name, path, isKey: false, isFolder: false }
    if (known.isKey && key === path) return
    if (known.isFolder && key !== path) return
    this.children.set(name, { ...known, isKey: known.isKey || key === path, isFolder: known.isFolder || key !== path })
    this._sorted = null
  }

  /** A key is gone; whether its folder still holds others is not known. @param {string} key */
  remove (key) {
    const known = this.children.get(this._nameIn(key))
    if (known === undefined || key !== known.path) return
    if (known.isFolder) this.children.set(known.name, { ...known, isKey: false })
    else this.children.delete(known.name)
    this._sorted = null
  }

  /** Whether the children that are known would include a key. @param {string} key */
  covers (key) {
    const isBelow = this.prefix === '' || key.startsWith(`${this.prefix}/`)
    return isBelow && (this.next === null || (this.next !== '' && key <= this.next))
  }

  /** @param {string} key */
  _nameIn (key) { return (this.prefix === '' ? key : key.slice(this.prefix.length + 1)).split('/', 1)[0] ?? '' }

  /** @param {string} name */
  _pathOf (name) { return this.prefix === '' ? name : `${this.prefix}/${name}` }
}

/**
 * Let branches follow what changed; returns whether any of them did.
 * @param {Map<string, Branch>} branches
 * @param {Row[]} changed
 */
export function followed (branches, changed) {
  let any = false
  for (const { changes } of changed) {
    for (const { kind, key } of changes) {
      if (kind !== 'put' && kind !== 'delete') continue
      for (const branch of branches.values()) {
        if (!branch.covers(key)) continue
        if (kind === 'put') branch.add(key)
        else branch.remove(key)
        any = true
      }
    }
  }
  return any
}
