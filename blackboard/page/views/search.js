// Search: keys that hold the words, or values that do. Pages of the board are looked through here, as
// many as it takes to fill the list, with what the reader may see.
import { html, useEffect, useState } from '../vendor/preact.js'
import { Empty, Failure, Key } from '../parts.js'
import { sentence } from '../session.js'
import { at, board, moment } from '../store.js'
import { preview, printed } from '../values.js'

const FOUND_MAX = 200
/** Entries that one search looks through: a few seconds. */
const LOOKED_AT_MAX = 50_000
const WAIT_MS = 250

/** @typedef {{ key: string, preview: string }} Found */

/** @param {{ words: string }} props */
export default function Search ({ words }) {
  const [found, setFound] = useState(/** @type {Found[]} */ ([]))
  const [state, setState] = useState('')
  const [failure, setFailure] = useState('')
  useEffect(() => {
    const ends = new AbortController()
    setFound([])
    setState('Looking…')
    const timer = setTimeout(() => search(words.toLowerCase(), ends.signal, setFound, setState).then(
      () => setFailure(''), error => { if (!ends.signal.aborted) setFailure(sentence(error)) }
    ), WAIT_MS)
    return () => { clearTimeout(timer); ends.abort(new DOMException('other words', 'AbortError')) }
  }, [words, moment.value])
  return html`<div class="found"><p class="dim" role="status">${state}</p><${Failure} text=${failure} />
    ${found.length === 0 && state.startsWith('Looked')
      ? html`<${Empty} title="Nothing holds that">Search looks at names of keys and at values, as text.<//>`
      : html`<ol class="rows">${found.map(({ key, preview }) => html`<li><${Key} name=${key} /> <span class="preview">${preview}</span></li>`)}</ol>`}</div>`
}

/**
 * @param {string} words
 * @param {AbortSignal} signal
 * @param {(found: Found[]) => void} tell
 * @param {(state: string) => void} say
 */
async function search (words, signal, tell, say) {
  /** @type {Found[]} */
  const found = []
  let seen = 0
  let after = /** @type {string | null} */ (null)
  do {
    const options = { after, signal, ...(at.value === undefined ? {} : { at: at.value }) }
    const page = await board().list('**', options)
    for (const { key, value } of page.entries) {
      const holds = key.toLowerCase().includes(words) || printed(value).toLowerCase().includes(words)
      if (holds && found.length < FOUND_MAX) found.push({ key, preview: preview(value) })
    }
    seen += page.entries.length
    after = page.next_key
    tell([...found])
    say(`Looking… ${seen.toLocaleString('en-GB')} entries`)
  } while (after !== null && found.length < FOUND_MAX && seen < LOOKED_AT_MAX)
  const rest = after === null ? '' : ', and stopped there'
  say(`Looked at ${seen.toLocaleString('en-GB')} entries${rest}: ${found.length} found`)
}
