// What changed between any two moments: now, a checkpoint, a revision.
import { html, useState } from '../vendor/preact.js'
import { Differences, Failure, useLoaded } from '../parts.js'
import { board, checkpoints, epoch, head, moment, name, settled } from '../store.js'
import { grouped } from '../values.js'

const KEYS_MAX = 500

/** @typedef {string | number} When */

export default function Compare () {
  const named = checkpoints.value.slice(-200).reverse()
  const [from, setFrom] = useState(/** @type {When | null} */ (null))
  const [to, setTo] = useState(/** @type {When | null} */ (null))
  const a = from ?? named[0]?.name ?? 0
  const b = to ?? moment.value ?? 'now'
  const [diff, failure] = useLoaded(signal => board().diff(a, b, { limit: KEYS_MAX, signal }), [name.value, a, b, epoch.value],
  a === 'now' || b === 'now' ? settled.value : 0)
  return html`<section class="view compare">
    <div class="tools" role="group" aria-label="Moments"><${Choice} label="From" when=${a} set=${setFrom} /><${Choice} label="To" when=${b} set=${setTo} />
      <button onClick=${() => { setFrom(b); setTo(a) }}>Swap</button></div>
    <${Failure} text=${failure} />
    ${diff === undefined ? '' : html`<p class="dim">From revision ${grouped(diff.a)} to ${grouped(diff.b)}</p>
      <${Differences} diff=${diff} same="Nothing that you may see is different." />`}</section>`
}

/** @param {{ label: string, when: When, set: (when: When) => void }} props */
function Choice ({ label, when, set }) {
  const isRevision = typeof when === 'number'
  /** @param {any} event */
  const choose = event => set(event.target.value === '#' ? head.value.revision : event.target.value)
  return html`<label><span>${label}</span><select value=${isRevision ? '#' : when} onChange=${choose}>
      <option value="now">now</option><option value="#">a revision</option>
      ${checkpoints.value.slice(-200).reverse().map(each => html`<option>${each.name}</option>`)}</select></label>
    ${isRevision ? html`<input type="number" aria-label="${label} revision" min="0" max=${head.value.revision} value=${when}
      onChange=${(/** @type {any} */ event) => set(Math.max(0, Math.min(head.value.revision, Number(event.target.value) || 0)))} />` : ''}`
}
