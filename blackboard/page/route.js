// Where the reader is: `#/<board>/<view>/<key>`. Links are plain links.
import { signal } from './vendor/preact.js'

/** @typedef {{ board: string, view: string, key: string }} Place */

export const place = signal(read())
addEventListener('hashchange', () => { place.value = read() })

/** @returns {Place} */
function read () {
  const path = location.hash.startsWith('#/') ? location.hash.slice(2) : '' // or the code of a one-time link
  const parts = path.split('/').map(decoded)
  const [board = '', view = '', ...key] = parts
  return { board, view, key: key.join('/') }
}

/** @param {string} part */
function decoded (part) {
  try {
    return decodeURIComponent(part)
  } catch {
    return part // a link that somebody cut in two
  }
}

/**
 * The address of a view; without members, of where the reader is.
 * @param {Partial<Place>} to
 */
export function linkTo (to) {
  const { board, view, key } = { board: place.value.board, view: place.value.view, key: '', ...to }
  return `#/${[board, view, ...(key === '' ? [] : key.split('/'))].map(encodeURIComponent).join('/')}`
}

/** @param {Partial<Place>} to */
export function go (to) { location.hash = linkTo(to) }
