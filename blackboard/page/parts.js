// What several views are made of.
import { effect, html, signal, useEffect, useRef, useState } from './vendor/preact.js'
import { linkTo } from './route.js'
import { sentence, who } from './session.js'
import { name, onChange, turns } from './store.js'
import { ago, clock, compared, printed, SHOWN_MAX, visible } from './values.js'

/** @import { Diff } from './client/board.js' */

/** @import { Row } from './store.js' */

/** @param {{ title: string, children?: unknown }} props */
export function Empty ({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p><p>${children}</p></div>`
}

/** The link to a key. @param {{ name: string, whole?: boolean }} props */
export function Key ({ name, whole = true }) {
  const cut = name.lastIndexOf('/') + 1
  return html`<a class="key ${name.startsWith('private/') ? 'is-private' : ''}" href=${linkTo({ view: 'tree', key: name })}
    >${whole ? html`<span class="dim">${visible(name.slice(0, cut))}</span>` : ''}${visible(name.slice(cut))}</a>`
}

/** @param {{ ms: number }} props */
export function Time ({ ms }) {
  const text = clock(ms)
  return html`<time datetime=${text ? new Date(ms).toISOString() : ''} title=${text ? ago(ms) : ''}>${text}</time>`
}

/** A colour for an agent, always the same one: a number from 0 to 7. @param {string} agent */
export function hueOf (agent) {
  let sum = 0
  for (const character of agent) sum = (sum * 31 + character.charCodeAt(0)) % 4093
  return sum % 8
}

/** @param {{ name: string }} props */
export function Agent ({ name }) {
  return html`<span class="agent hue-${hueOf(name)}">${visible(name)}</span>`
}

/** A value, laid out; long ones in full only if somebody asks. @param {{ value: unknown }} props */
export function Value ({ value }) {
  const [whole, setWhole] = useState(false)
  useEffect(() => setWhole(false), [value])
  const text = visible(printed(value))
  if (text.length <= SHOWN_MAX) return html`<pre class="value" tabindex="0">${text}</pre>`
  return html`<pre class="value" tabindex="0">${whole ? text : text.slice(0, SHOWN_MAX)}</pre>
    ${whole ? '' : html`<button onClick=${() => setWhole(true)}>Show all ${text.length.toLocaleString('en-GB')} characters</button>`}`
}

/** What changed between two values, by words; an absent one is undefined. @param {{ before: unknown, after: unknown }} props */
export function Changed ({ before, after }) {
  const [a, b] = [before, after].map(value => value === undefined ? '' : visible(printed(value)).slice(0, 4 * SHOWN_MAX))
  const parts = compared(a ?? '', b ?? '')
  return html`<pre class="value" tabindex="0">${parts.map(({ kind, text }) => (
    kind === 'same' ? folded(text) : kind === 'added' ? html`<ins>${text}</ins>` : html`<del>${text}</del>`
  ))}</pre>`
}

/** A long stretch in which nothing changed, without its middle. @param {string} text */
function folded (text) {
  const lines = text.split('\n')
  return lines.length <= 12 ? text : [...lines.slice(0, 4), `⋯ ${lines.length - 8} lines`, ...lines.slice(-4)].join('\n')
}

/** Keys whose words are compared; the rest are listed. */
const COMPARED_MAX = 40

/** What changes from one moment to another: the keys by name, with their words. @param {{ diff: Diff, same?: string }} props */
export function Differences ({ diff, same = 'Nothing would change: the board is as it was then.' }) {
  const shown = diff.changes.filter(each => !each.key.startsWith('system/'))
  const rest = shown.slice(COMPARED_MAX)
  if (shown.length === 0) return html`<p class="dim preview-diff">${same}</p>`
  return html`<div class="preview-diff"><p>${shown.length}${diff.more ? ' or more' : ''} ${shown.length === 1 ? 'key changes' : 'keys change'}:</p>
    ${shown.slice(0, COMPARED_MAX).map(each => html`<${Difference} key=${each.key} difference=${each} isOpen=${shown.length <= 3} />`)}
    ${rest.length > 0 ? html`<p class="dim">and ${rest.slice(0, 20).map(each => each.key).join(', ')}${rest.length > 20 ? ' …' : ''}</p>` : ''}</div>`
}

/** One key; its words are compared when it is opened. @param {{ difference: Diff['changes'][0], isOpen: boolean }} props */
function Difference ({ difference: { key, before, after }, isOpen }) {
  const [open, setOpen] = useState(isOpen)
  return html`<details data-key=${key} open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary><span class="key ${key.startsWith('private/') ? 'is-private' : ''}">${visible(key)}</span> <span class="dim">${after === null ? 'is removed' : before === null ? 'appears' : `${before.author} → ${after.author}`}</span></summary>
    <p><${Key} name=${key} /></p>
    ${open ? html`<${Changed} before=${before?.value} after=${after?.value} />` : ''}</details>`
}

/**
 * What `load` returns for these inputs: [value, error]. Both undefined while it is asked. Other inputs end a load; when
 * only `again` changes, the load goes on and is repeated: what changes faster than it loads would never be shown.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {readonly unknown[]} inputs
 * @param {unknown} [again]
 * @returns {[T | undefined, string | undefined]}
 */
export function useLoaded (load, inputs, again) {
  const [found, setFound] = useState(/** @type {[T | undefined, string | undefined]} */ ([undefined, undefined]))
  const newest = useRef(load)
  newest.current = load
  const asked = useRef({ again, repeat: () => {} })
  useEffect(() => {
    const ends = new AbortController()
    let [isAsking, isOld] = [false, false]
    /** @param {[T | undefined, string | undefined]} answer */
    const came = answer => {
      isAsking = false
      if (ends.signal.aborted) return
      setFound(answer)
      if (isOld) ask()
    }
    const ask = () => {
      isOld = isAsking
      if (isAsking) return
      isAsking = true
      newest.current(ends.signal).then(value => came([value, undefined]), error => came([undefined, sentence(error)]))
    }
    setFound(before => [before[0], undefined])
    asked.current = { again, repeat: ask }
    ask()
    return () => ends.abort(new DOMException('looked elsewhere', 'AbortError'))
  }, [...inputs, turns.value])
  useEffect(() => {
    if (asked.current.again === again) return
    asked.current.again = again
    asked.current.repeat()
  }, [again])
  return found
}

/**
 * A number that grows when a revision comes that `isHit` says is of interest. It is asked with all changes of it.
 * @param {(row: Row) => boolean} isHit
 * @param {readonly unknown[]} [inputs] what `isHit` depends on
 */
export function useHits (isHit, inputs = []) {
  const [count, setCount] = useState(0)
  useEffect(() => onChange(rows => { if (rows.some(isHit)) setCount(before => before + 1) }), inputs)
  return count
}

/** @param {{ text: string | undefined }} props */
export function Failure ({ text }) { return text ? html`<p class="failure" role="alert">${text}</p>` : '' }

// --- questions ------------------------------------------------------------------------------------

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {unknown} body what will change
 * @property {string} verb what the button says
 * @property {boolean} [harmful]
 * @property {string} [note] the label of a text that goes with it
 */
const asked = signal(/** @type {(Question & { answer: (note: string | null) => void }) | null} */ (null))

// A question is about the board that the reader looks at: who goes elsewhere, or leaves, has not agreed.
effect(() => { void [name.value, who.value]; asked.peek()?.answer(null) })

/**
 * Ask before something is changed; returns the note ('' without one), or null for no.
 * @param {Question} question
 * @returns {Promise<string | null>}
 */
export function confirmed (question) {
  return new Promise(resolve => {
    asked.value = { ...question, answer: note => { asked.value = null; resolve(note) } }
  })
}

export function Questions () {
  const question = asked.value
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null))
  const note = useRef(/** @type {HTMLInputElement | null} */ (null))
  useEffect(() => { if (question !== null) dialog.current?.showModal() }, [question])
  if (question === null) return ''
  /** @param {Event} event */
  const yes = event => { event.preventDefault(); question.answer(note.current?.value ?? '') }
  const no = () => question.answer(null)
  return html`<dialog ref=${dialog} onCancel=${no} aria-labelledby="question">
    <form onSubmit=${yes}>
      <h2 id="question">${question.title}</h2>
      <div class="question-body">${question.body}</div>
      ${question.note ? html`<label>${question.note}<input ref=${note} maxlength="1000" /></label>` : ''}
      <div class="row end">
        <button type="button" onClick=${no}>Cancel</button>
        <button class=${question.harmful ? 'harmful' : 'main'}>${question.verb}</button>
      </div>
    </form></dialog>`
}

// --- what was done --------------------------------------------------------------------------------

const said = signal(/** @type {{ text: string, bad: boolean } | null} */ (null))
let saidTimer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined)

/** Say what was done, for a while. @param {string} text */
export function say (text, bad = false) {
  said.value = { text, bad }
  clearTimeout(saidTimer)
  saidTimer = setTimeout(() => { said.value = null }, 8000)
}

/**
 * Carry out a change, and say what became of it; undefined after an error.
 * @template T
 * @param {() => Promise<T>} change
 * @param {(result: T) => string} tells
 * @returns {Promise<T | undefined>}
 */
export async function done (change, tells) {
  try {
    const result = await change()
    say(tells(result))
    return result
  } catch (error) {
    say(sentence(error), true)
    return undefined
  }
}

export function Said () {
  return html`<div class="said" role="status" aria-live="polite">${said.value === null
    ? '' : html`<p class=${said.value.bad ? 'bad' : ''}>${said.value.text}</p>`}</div>`
}
