// The live feed: every revision as it comes, what was refused, filters, pause.
import { html, useEffect, useState } from '../vendor/preact.js'
import { Agent, Empty, Key, Time } from '../parts.js'
import { followRefusals, moment, name, refused, rows, told } from '../store.js'
import { visible } from '../values.js'

/** @import { Row } from '../store.js' */
/** @import { RefusedCommit } from '../client/methods.js' */

const SHOWN_MAX = 200

/**
 * @param {Row} row
 * @param {{ agent: string, pattern: string, kind: string }} filter
 */
function passes (row, { agent, pattern, kind }) {
  if (agent !== '' && row.author !== agent) return false
  if (pattern === '' && kind === '') return true
  return row.changes.some(change => (kind === '' || kindOf(change) === kind) && change.key.includes(pattern))
}

/** What the filter calls a change. @param {{ kind: string }} change */
function kindOf ({ kind }) { return ['put', 'delete'].includes(kind) ? kind : 'lease' }

export default function Feed () {
  const [filter, setFilter] = useState({ agent: '', pattern: '', kind: '' })
  const [paused, setPaused] = useState(/** @type {Row[] | null} */ (null))
  const count = told.value
  useEffect(() => setPaused(null), [moment.value])
  useEffect(() => {
    const ends = new AbortController()
    void followRefusals(ends.signal)
    return () => ends.abort(new DOMException('looked elsewhere', 'AbortError'))
  }, [name.value])
  const from = paused ?? rows
  const agents = [...new Set(from.map(row => row.author))].sort()
  /** @type {(Row | RefusedCommit)[]} */
  const shown = []
  for (let i = from.length - 1; i >= 0 && shown.length < SHOWN_MAX; i--) {
    const row = from[i]
    if (row !== undefined && passes(row, filter) && (moment.value === null || row.revision <= moment.value)) shown.push(row)
  }
  if (moment.value === null && paused === null && ['', 'refused'].includes(filter.kind)) {
    shown.push(...refused.value.filter(each => (filter.agent === '' || each.author === filter.agent) && each.key.includes(filter.pattern)))
    shown.sort((a, b) => b.time_ms - a.time_ms)
  }
  /** @param {'agent' | 'pattern' | 'kind'} field */
  const set = field => (/** @type {any} */ event) => setFilter({ ...filter, [field]: event.target.value })
  return html`<section class="view feed" data-told=${count}>
    <div class="tools" role="search" aria-label="Filters">
      <label><span>Agent</span><select value=${filter.agent} onChange=${set('agent')}>
        <option value="">all</option>${agents.map(agent => html`<option>${agent}</option>`)}</select></label>
      <label><span>Kind</span><select value=${filter.kind} onChange=${set('kind')}>
        <option value="">all</option><option>put</option><option>delete</option><option>lease</option><option>refused</option></select></label>
      <label class="grow"><span>Key</span><input type="search" placeholder="part of a key" value=${filter.pattern} onInput=${set('pattern')} /></label>
      <button aria-pressed=${paused !== null} onClick=${() => setPaused(paused === null ? [...rows] : null)}>
        ${paused === null ? 'Pause' : 'Go on'}</button>
    </div>
    ${shown.length === 0
      ? html`<${Empty} title=${from.length === 0 ? 'Nothing has happened here yet' : 'Nothing passes these filters'}>
          ${from.length === 0 ? html`Make a first change: <code>blackboard set public/hello world</code>` : 'Choose fewer of them.'}<//>`
      : html`<ol class="rows" aria-label="Revisions, the newest first">${shown.map(row => 'revision' in row
          ? html`<${Revision} key=${row.revision} row=${row} />` : html`<${Refusal} key=${`refused ${row.number}`} refused=${row} />`)}</ol>`}
  </section>`
}

/** @param {{ row: Row }} props */
function Revision ({ row }) {
  return html`<li class="revision ${row.epoch ? 'is-cut' : ''}" data-revision=${row.revision}>
    <button class="number" title="Look at this moment" onClick=${() => { moment.value = row.revision }}>${row.revision}</button>
    <${Time} ms=${row.time_ms} />
    <${Agent} name=${row.author} />
    <div class="changes">
      ${row.epoch ? html`<p class="cut-label">${row.epoch.cause}: back to revision ${row.epoch.from_revision}</p>` : ''}
      ${row.note ? html`<p class="note">${visible(row.note)}</p>` : ''}
      ${row.changes.map(({ kind, key, preview }) => html`<p class="change is-${kind}"><span class="kind">${kind}</span>
        <${Key} name=${key} /> <span class="preview">${preview}</span></p>`)}
      ${row.count > row.changes.length ? html`<p class="dim">and ${row.count - row.changes.length} more</p>` : ''}
    </div></li>`
}

/** What was refused changed nothing, so it has no revision. @param {{ refused: RefusedCommit }} props */
function Refusal ({ refused: { number, time_ms, author, code, message, key, by, note } }) {
  const why = code === 'conflict' && by
    ? html`<${Key} name=${key} /> was written by <${Agent} name=${by} /> in between: ${author} had read it before`
    : code === 'stale_epoch' ? 'the board was taken back: it goes on from an abandoned future'
      : code === 'fenced' ? html`its lock on <${Key} name=${key} /> is gone${by ? html`: <${Agent} name=${by} /> has it` : ''}` : visible(message)
  return html`<li class="revision refusal" data-refusal=${number} title=${visible(message)}>
    <span class="number dim">refused</span><${Time} ms=${time_ms} /><${Agent} name=${author} />
    <div class="changes">${note ? html`<p class="note">${visible(note)}</p>` : ''}<p><span class="kind">${code}</span> ${why}</p></div></li>`
}
