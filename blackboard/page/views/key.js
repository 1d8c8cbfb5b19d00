// One key: its value at the moment, its versions, what changed between two of them, and why.
import { html, useEffect, useRef, useState } from '../vendor/preact.js'
import { Agent, Changed, confirmed, done, Empty, Failure, hueOf, Key, Time, Value, useLoaded } from '../parts.js'
import { linkTo } from '../route.js'
import { mayAt } from '../session.js'
import { at, board, epoch, moment, onChange } from '../store.js'
import { ago, visible } from '../values.js'

/** @import { CauseMessage } from '../client/methods.js' */
/** @import { Entry, Version } from '../client/records.js' */

/** A number that changes whenever the key does. @param {string} name */
export function useChanges (name) {
  const [count, setCount] = useState(0)
  useEffect(() => onChange(rows => {
    const isHit = rows.some(row => row.changes.some(change => change.key === name))
    if (isHit) setCount(before => before + 1)
  }), [name])
  return count
}

/** @param {{ name: string }} props */
export default function Detail ({ name }) {
  const changes = useChanges(name)
  const [tab, setTab] = useState('value')
  const options = at.value === undefined ? {} : { at: at.value }
  const [entry, failure] = useLoaded(signal => board().entry(name, { ...options, signal }), [name, moment.value, epoch.value], changes)
  const known = useRef(entry) // what somebody is writing outlives a reading that fails
  if (entry !== undefined) known.current = entry
  const tabs = { value: 'Value', history: 'History', why: 'Why' }
  return html`<div class="key-detail" data-key=${name}>
    <div class="row"><a class="back" href=${linkTo({ view: 'tree' })}>Keys</a><h2 class="key">${visible(name)}</h2></div>
    <${Failure} text=${failure} />
    ${entry === undefined ? '' : entry === null
      ? html`<${Empty} title=${moment.value === null ? 'There is no such key now' : 'The key was not there then'}>
          Its history, below, may show what it held at other times.<//>`
      : html`<p class="facts"><${Agent} name=${entry.author} /> <span>revision ${entry.mod_revision}</span>
          <span><${Time} ms=${entry.time_ms} />, ${ago(entry.time_ms)}</span>
          ${entry.create_revision === entry.mod_revision ? '' : html`<span class="dim">since revision ${entry.create_revision}</span>`}
          ${entry.expires_at_ms === null ? '' : html`<span>expires <${Time} ms=${entry.expires_at_ms} /></span>`}</p>`}
    <div class="tabs" role="tablist">${Object.entries(tabs).map(([each, title]) => html`<button role="tab" id="tab-${each}"
      aria-selected=${tab === each} onClick=${() => setTab(each)}>${title}</button>`)}</div>
    ${known.current === undefined || moment.value !== null || !mayAt('write', name) ? '' : html`<${Edit} name=${name} entry=${known.current} />`}
    <div role="tabpanel" aria-labelledby="tab-${tab}">
      ${tab === 'value' ? (entry ? html`<${Value} value=${entry.value} />` : '')
        : tab === 'history' ? html`<${History} name=${name} changes=${changes} />` : html`<${Why} name=${name} changes=${changes} />`}
    </div></div>`
}

/**
 * Put and delete: what was shown, as one began to edit, is replaced, and nothing that came since.
 * @param {{ name: string, entry: Entry | null }} props
 */
function Edit ({ name, entry }) {
  const [text, setText] = useState(/** @type {string | null} */ (null))
  const [base, setBase] = useState(entry)
  const [failure, setFailure] = useState('')
  const expected = (text === null ? entry : base)?.mod_revision ?? 0
  const isOld = expected !== (entry?.mod_revision ?? 0)
  const begin = () => { setBase(entry); setText(entry ? asJson(entry.value) : '""') }
  const save = async () => {
    let value
    try {
      value = JSON.parse(text ?? '')
    } catch (error) {
      return setFailure(`That is no JSON: ${/** @type {Error} */ (error).message}. A text stands in quotation marks.`)
    }
    setFailure('')
    const body = html`<${Changed} before=${base?.value} after=${value} />`
    const note = await confirmed({ title: `Put ${name}?`, body, verb: `Put ${name}`, note: 'Note' })
    if (note === null) return
    const put = await done(() => board().put(name, value, { expected, note }), receipt => `${name} is at revision ${receipt.revision}.`)
    if (put !== undefined) setText(null)
  }
  const remove = async () => {
    const body = html`<${Changed} before=${entry?.value} after=${undefined} /><p>Its versions stay in the history.</p>`
    if (await confirmed({ title: `Delete ${name}?`, body, verb: `Delete ${name}`, harmful: true }) === null) return
    await done(() => board().delete(name, { expected }), () => `${name} is deleted.`)
  }
  if (text === null) {
    return html`<div class="row">${entry && !fitsJson(entry.value) ? html`<p class="dim">It holds bytes, or integers beyond 2⁵³: change it from a program.</p>`
        : html`<button onClick=${begin}>${entry ? 'Edit' : 'Write it'}</button>`}
      ${entry ? html`<button onClick=${remove}>Delete…</button>` : ''}</div>`
  }
  return html`<div class="edit"><label><span>Value, as JSON</span><textarea rows="8" spellcheck="false" value=${text}
      onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label><${Failure} text=${failure} />
    ${isOld ? html`<${Failure} text="It changed since you began, and would not be replaced: cancel, and begin again." />` : ''}
    <div class="row"><button class="main" onClick=${save}>Put…</button><button onClick=${() => setText(null)}>Cancel</button></div></div>`
}

/** @param {unknown} value */
function asJson (value) { return JSON.stringify(value, null, 2) ?? 'null' }

/** Whether JSON holds a value as it is. @param {unknown} value @returns {boolean} */
function fitsJson (value) {
  if (typeof value === 'bigint' || value instanceof Uint8Array) return false
  return typeof value !== 'object' || value === null || Object.values(value).every(fitsJson)
}

/** @param {{ name: string, changes: number }} props */
function History ({ name, changes }) {
  const [pair, setPair] = useState(/** @type {[number, number] | null} */ (null))
  const [versions, failure] = useLoaded(signal => board().history(name, { limit: 100, signal }), [name, moment.value, epoch.value], changes)
  if (versions === undefined) return html`<${Failure} text=${failure} />`
  if (versions.length === 0) return html`<${Empty} title="No version of it is kept">A service without an archive keeps none.<//>`
  const [newer, older] = pair ?? [versions[0]?.revision ?? 0, versions[1]?.revision ?? 0]
  /** @param {number} revision */
  const find = revision => versions.find(each => each.revision === revision)?.entry?.value
  /** @param {Version} version @param {0 | 1} end */
  const mark = (version, end) => html`<input type="radio" name=${end === 0 ? 'newer' : 'older'} aria-label=${`${end === 0 ? 'to' : 'from'} revision ${version.revision}`}
    checked=${version.revision === (end === 0 ? newer : older)}
    onChange=${() => setPair(end === 0 ? [version.revision, older] : [newer, version.revision])} />`
  return html`<table class="versions"><thead><tr><th>from</th><th>to</th><th class="num">revision</th><th>time</th><th>author</th><th></th></tr></thead>
    <tbody>${versions.map(version => html`<tr data-revision=${version.revision}><td>${mark(version, 1)}</td><td>${mark(version, 0)}</td>
      <td class="num"><button class="number" title="Look at this moment" onClick=${() => { moment.value = version.revision }}>${version.revision}</button></td>
      <td><${Time} ms=${version.time_ms} /></td><td><${Agent} name=${version.author} /></td>
      <td class="dim">${version.entry === null ? 'removed' : ''}</td></tr>`)}</tbody></table>
    <h3>${older === 0 ? 'As it was first written' : `From revision ${older} to ${newer}`}</h3>
    <${Changed} before=${find(older)} after=${find(newer)} />`
}

/** @param {{ name: string, changes: number }} props */
function Why ({ name, changes }) {
  const [causes, failure] = useLoaded(signal => board().why(name, { signal }), [name, moment.value, epoch.value], changes)
  if (causes === undefined) return html`<${Failure} text=${failure} />`
  return html`<${Grounds} causes=${causes} />
    <ol class="why">${causes.map(cause => html`<li>
    ${cause.missing ? html`<p class="dim">${visible(cause.key)} at ${cause.revision}: ${cause.missing}</p>` : html`
      <p><${Key} name=${cause.key} /> <button class="number" title="Look at this moment" onClick=${() => { moment.value = cause.revision }}>${cause.revision}</button>
        <${Agent} name=${cause.author} /> <${Time} ms=${cause.time_ms} /></p>
      ${cause.note ? html`<p class="note">${visible(cause.note)}</p>` : ''}`}</li>`)}</ol>
    ${causes.length <= 1 ? html`<p class="dim">It rests on nothing that was read in the same step.</p>` : ''}`
}

const NODE = { width: 190, height: 40, across: 240, down: 54 }

/** The graph: what each commit rests on is to its right, and leads on. @param {{ causes: readonly CauseMessage[] }} props */
function Grounds ({ causes }) {
  if (causes.length <= 1) return ''
  // Newer commits rest on older ones: from new to old, each lies one column behind all that rest on it.
  const ordered = causes.slice(0, 60).sort((a, b) => b.revision - a.revision)
  /** @type {Map<string, number>} */
  const columns = new Map()
  /** @type {Map<number, number>} */
  const rows = new Map()
  /** @type {Map<string, { cause: CauseMessage, x: number, y: number }>} */
  const nodes = new Map()
  for (const cause of ordered) {
    const column = columns.get(`${cause.key}@${cause.revision}`) ?? 0
    const row = rows.get(column) ?? 0
    rows.set(column, row + 1)
    nodes.set(`${cause.key}@${cause.revision}`, { cause, x: 4 + column * NODE.across, y: 4 + row * NODE.down })
    for (const [key, revision] of cause.based_on) {
      columns.set(`${key}@${revision}`, Math.max(columns.get(`${key}@${revision}`) ?? 0, column + 1))
    }
  }
  const all = [...nodes.values()]
  const edges = all.flatMap(from => from.cause.based_on.map(([key, revision]) => ({ from, to: nodes.get(`${key}@${revision}`) })))
  const [width, height] = [Math.max(...all.map(({ x }) => x)) + NODE.width + 8, Math.max(...all.map(({ y }) => y)) + NODE.height + 8]
  return html`<div class="grounds"><svg width=${width} height=${height} role="img" aria-label=${`${all.length} commits that led to it; the list below has them all`}>
    ${edges.map(({ from, to }) => to === undefined ? '' : html`<path d=${`M${from.x + NODE.width} ${from.y + NODE.height / 2} C${from.x + NODE.width + 30} ${from.y + NODE.height / 2} ${to.x - 30} ${to.y + NODE.height / 2} ${to.x} ${to.y + NODE.height / 2}`} />`)}
    ${all.map(({ cause, x, y }) => html`<a href=${linkTo({ view: 'tree', key: cause.key })} tabindex="-1"><g class="hue-${hueOf(cause.author)}"><rect x=${x} y=${y} width=${NODE.width} height=${NODE.height} rx="6" />
      <text x=${x + 10} y=${y + 17}>${short(cause.key)}</text><text class="by" x=${x + 10} y=${y + 32}>${visible(cause.author || cause.missing)} · ${cause.revision}</text></g></a>`)}</svg></div>`
}

/** The end of a key, as much as a node has room for. @param {string} key */
function short (key) { return key.length <= 24 ? key : `…${key.slice(-23)}` }
