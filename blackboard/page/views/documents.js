// Documents: which there are, who is in them, the text as it is written, and as it was.
import { html, useEffect, useRef, useState } from '../vendor/preact.js'
import { Agent, Empty, Failure, Key, Time, Value, useHits, useLoaded } from '../parts.js'
import { linkTo, place } from '../route.js'
import { mayAt, sentence } from '../session.js'
import { at, board, epoch, moment } from '../store.js'
import { grouped, numberOf, textOf, visible } from '../values.js'

/** @import { Document } from '../client/documents.js' */
/** @import { Editor } from '../editor.js' */
/** @import { Row } from '../store.js' */

const PAGE_KEYS = 256
/** Keys that the list of documents looks through. */
const LOOKED_AT_MAX = 50_000
const PART = '/~doc/'
const LAST = '~'.repeat(128)
const NOTES_MAX = 20

/**
 * The keys of the documents at a moment; whether these are all.
 * @param {number | undefined} moment
 * @param {AbortSignal} signal
 * @returns {Promise<{ keys: string[], whole: boolean }>}
 */
async function documents (moment, signal) {
  /** @type {string[]} */
  const keys = []
  let after = /** @type {string | null} */ (null)
  for (let seen = 0; seen < LOOKED_AT_MAX; seen += PAGE_KEYS) {
    const page = await board().list('**', { after, limit: PAGE_KEYS, keys_only: true, signal, ...(moment === undefined ? {} : { at: moment }) })
    const hit = page.entries.find(({ key }) => key.includes(PART))?.key
    if (hit !== undefined) {
      const key = hit.slice(0, hit.indexOf(PART))
      keys.push(key)
      after = `${key}${PART}${LAST}`.slice(0, 1024) // its parts are skipped, however many there are
      continue
    }
    if (page.next_key === null) return { keys, whole: true }
    after = page.next_key
  }
  return { keys, whole: false }
}

/**
 * Whether a document came or went; `known` is told. A compaction removes updates, too, and puts a base.
 * @param {Row} row
 * @param {Set<string>} known
 */
function isOther ({ changes }, known) {
  const bases = new Set(changes.filter(({ kind, key }) => kind === 'put' && key.endsWith('/~doc/base')).map(({ key }) => key))
  return changes.some(({ kind, key }) => {
    const [, name = '', part] = /^(.*?)\/~doc\/(base$|update\/)/.exec(key) ?? []
    if (part === undefined) return false
    if (kind === 'put') return !known.has(name) && known.add(name)
    return kind === 'delete' && !bases.has(`${name}/~doc/base`) && known.delete(name)
  })
}

export default function Documents () {
  const key = place.value.key
  const known = useRef(/** @type {Set<string> | null} */ (null)) // null: not all of them are known
  const count = useHits(row => known.current !== null && isOther(row, known.current))
  const [found, failure] = useLoaded(signal => documents(at.value, signal), [at.value, epoch.value], count)
  useEffect(() => { known.current = found?.whole ? new Set(found.keys) : null }, [found])
  return html`<section class="view split ${key ? 'has-detail' : ''}">
    <div class="pane"><${Failure} text=${failure} />
      ${found === undefined ? '' : found.keys.length === 0
        ? html`<${Empty} title="There is no document yet">Open one from Python, <code>board.document("public/memo")</code>, or here:
            <${NewDocument} /><//>`
        : html`<ul class="list" aria-label="Documents">${found.keys.map(each => html`<li><a class="key" href=${linkTo({ view: 'documents', key: each })}
            aria-current=${each === key ? 'true' : undefined}>${visible(each)}</a></li>`)}</ul>
          ${found.whole ? '' : html`<p class="dim">Among the first ${grouped(LOOKED_AT_MAX)} keys.</p>`}<${NewDocument} />`}
    </div>
    <div class="pane detail">${key === ''
      ? html`<${Empty} title="Choose a document">You write in it together with agents; every edit is a commit of its author.<//>`
      : html`<${OneDocument} key=${`${key} ${moment.value} ${epoch.value}`} name=${key} />`}</div></section>`
}

function NewDocument () {
  const [name, setName] = useState('public/')
  /** @param {Event} event */
  const open = event => { event.preventDefault(); location.hash = linkTo({ view: 'documents', key: name.trim() }) }
  return html`<form class="row" onSubmit=${open}><label class="grow"><span class="quiet">Key of a document</span>
    <input class="grow" value=${name} pattern="(public|private/[^/]+|inbox/[^/]+)/.+" required onInput=${(/** @type {any} */ event) => setName(event.target.value)} /></label>
    <button>Open</button></form>`
}

/** @param {{ name: string }} props */
function OneDocument ({ name }) {
  return html`<div class="document" data-document=${name} data-epoch=${epoch.value}>
    <div class="row"><a class="back" href=${linkTo({ view: 'documents' })}>Documents</a><h2 class="key">${visible(name)}</h2></div>
    ${moment.value === null ? html`<${Live} name=${name} />` : html`<${Then} name=${name} revision=${moment.value} />`}</div>`
}

/** The document at a revision, to read. @param {{ name: string, revision: number }} props */
function Then ({ name, revision }) {
  const [parts, failure] = useLoaded(async signal => {
    const editor = await import('../editor.js')
    const doc = await editor.documentAt(name, revision, signal)
    return editor.roots(doc).map(root => ({ root, value: editor.isText(doc, root) ? doc.getText(root).toString() : editor.valueOf(doc, root) }))
  }, [name, revision])
  if (parts === undefined) return html`<${Failure} text=${failure} />`
  if (parts.length === 0) return html`<${Empty} title="The document was not there then">Go to a later moment, or back to now.<//>`
  return parts.map(({ root, value }) => html`<h3>${visible(root)}</h3><${Value} value=${value} />`)
}

/** The document as it is written. @param {{ name: string }} props */
function Live ({ name }) {
  const canEdit = mayAt('append', name)
  const place = useRef(/** @type {HTMLElement | null} */ (null))
  const [document, setDocument] = useState(/** @type {Document | null} */ (null))
  const [roots, setRoots] = useState(/** @type {{ name: string, value: unknown }[]} */ ([]))
  const [chosen, setChosen] = useState('text')
  const [others, setOthers] = useState(/** @type {string[]} */ ([]))
  const [failure, setFailure] = useState('')

  useEffect(() => {
    const ends = new AbortController()
    let close = () => {}
    const open = async () => {
      const editor = await import('../editor.js')
      const found = await editor.opened(name, canEdit, ends.signal)
      close = () => found.close()
      if (ends.signal.aborted) return close()
      const look = () => {
        const names = editor.roots(found.doc)
        setRoots(names.map(each => ({ name: each, value: editor.isText(found.doc, each) ? undefined : editor.valueOf(found.doc, each) })))
      }
      found.doc.on('update', look)
      found.provider.awareness.on('change', () => setOthers(editor.writers(found).filter(each => !each.isHere).map(each => each.agent)))
      found.provider.on('connection-close', (/** @type {CloseEvent | null} */ event) => {
        if (event && event.code >= 4400 && event.code < 4500 && event.code !== 4401) setFailure(`The service took your edits no longer: ${event.reason}. Open the document again.`)
      })
      look()
      setOthers(editor.writers(found).filter(each => !each.isHere).map(each => each.agent))
      setDocument(found)
    }
    open().catch(error => { if (!ends.signal.aborted) setFailure(sentence(error)) })
    return () => { ends.abort(new DOMException('looked elsewhere', 'AbortError')); close() }
  }, [name])

  useEffect(() => {
    if (document === null || place.current === null) return
    const parent = place.current
    let editor = /** @type {Editor | null} */ (null)
    void import('../editor.js').then(({ Editor }) => { if (parent.isConnected) editor = new Editor(document, chosen, parent, canEdit) }).catch(error => setFailure(sentence(error)))
    return () => editor?.close()
  }, [document, chosen])

  const texts = [...new Set(['text', ...roots.filter(each => each.value === undefined).map(each => each.name)])]
  const values = roots.filter(each => each.value !== undefined)
  return html`<${Failure} text=${failure} />
    <p class="facts" role="status">${document === null ? (failure ? '' : 'Opening…') : canEdit ? 'You may edit it.' : 'You may read it.'}
      ${others.length === 0 ? '' : html`<span>with ${[...new Set(others)].map(agent => html`<${Agent} name=${agent} /> `)}</span>`}</p>
    ${texts.length < 2 ? '' : html`<label>Text <select value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>
      ${texts.map(each => html`<option>${each}</option>`)}</select></label>`}
    <div class="paper" key=${chosen} ref=${place}></div>
    ${values.map(each => html`<h3>${visible(each.name)}</h3><${Value} value=${each.value} />`)}
    <${Overlaps} name=${name} />`
}

/** Regions that several edited at once, for an hour. @param {{ name: string }} props */
function Overlaps ({ name }) {
  const prefix = `${name}/~doc/overlap/`
  const count = useHits(row => row.changes.some(({ key }) => key.startsWith(prefix)), [prefix])
  const [found] = useLoaded(signal => board().list(`${prefix}*`, { reverse: true, limit: NOTES_MAX, signal }), [name], count)
  if (!found?.entries.length) return ''
  return html`<h3>Edited by several at once</h3><ul class="list overlaps">${found.entries.map(({ key, value, time_ms }) => html`<li key=${key}>
    <${Time} ms=${time_ms} /> ${(Array.isArray(value?.agents) ? value.agents : []).map((/** @type {any} */ agent) => html`<${Agent} name=${textOf(agent)} /> `)}
    in ${visible(textOf(value?.text))}, characters ${numberOf(value?.start)} to ${numberOf(value?.end)}: read that sentence again.</li>`)}</ul>
    <p class="dim">Kept for an hour below <${Key} name=${`${name}/~doc/overlap`} />.</p>`
}
