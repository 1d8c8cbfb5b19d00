// A text that people and agents write at once: CodeMirror on a Yjs document, with everybody's cursor.
// Loaded when the first document is opened.
//
// The editor stands in a shadow root. There CodeMirror adopts style sheets; in the document itself it
// would add style elements, which the page's Content-Security-Policy refuses. For the same reason the
// cursors are ours: those of y-codemirror set style attributes.
import { hueOf } from './parts.js'
import { name, board } from './store.js'
import { theClient } from './session.js'
import { textOf, visible } from './values.js'
import {
  Annotation, Decoration, EditorState, EditorView, ViewPlugin, WebsocketProvider, WidgetType, Y, keymap, minimalSetup, yCollab,
  yUndoManagerKeymap
} from './vendor/editor.js'

/** @import { Document } from './client/documents.js' */
/** @import { Range, View } from './vendor/editor.js' */

/** @typedef {{ agent: string, isHere: boolean }} Writer */

const moved = Annotation.define()
const LOOKS = EditorView.theme({
  '&': { color: 'var(--text)', fontSize: 'var(--s1)', height: '100%' },
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { fontFamily: 'var(--sans)', lineHeight: '1.65', overflow: 'auto' },
  '.cm-content': { padding: '16px', caretColor: 'var(--accent)' },
  '.cm-cursor': { borderLeftColor: 'var(--accent)' },
  '.others': { background: 'var(--sunk)' },
  '.other': { position: 'relative', borderLeft: '2px solid', marginLeft: '-1px', marginRight: '-1px' },
  '.other::after': {
    content: 'attr(data-agent)', position: 'absolute', top: '-1.15em', left: '-2px', font: '600 var(--s-1)/1.4 var(--sans)',
    background: 'var(--sheet)', padding: '0 3px', whiteSpace: 'nowrap', pointerEvents: 'none', borderRadius: '2px'
  },
  ...Object.fromEntries([0, 1, 2, 3, 4, 5, 6, 7].map(hue => [`.hue-${hue}`, { color: `var(--hue-${hue})`, borderColor: `var(--hue-${hue})` }]))
})

class Caret extends WidgetType {
  /** @param {string} agent */
  constructor (agent) {
    super()
    this.agent = agent
  }

  /** @param {this} other */
  eq (other) { return other.agent === this.agent }

  toDOM () {
    const mark = document.createElement('span')
    mark.className = `other hue-${hueOf(this.agent)}`
    mark.dataset.agent = visible(this.agent)
    return mark
  }
}

/** Tells the others where this reader's cursor is, and shows theirs. @param {Y.Text} text @param {any} awareness */
function cursors (text, awareness) {
  class Cursors {
    /** @param {View} view */
    constructor (view) {
      this.decorations = Decoration.none
      this._heard = () => view.dispatch({ annotations: moved.of(true) })
      awareness.on('change', this._heard)
      this._show(view)
    }

    /** @param {{ view: View }} update */
    update ({ view }) {
      if (view.hasFocus) this._tell(view)
      this._show(view)
    }

    destroy () { awareness.off('change', this._heard) }

    /** @param {View} view */
    _tell (view) {
      const { anchor, head } = view.state.selection.main
      const at = [anchor, head].map(index => Y.createRelativePositionFromTypeIndex(text, index))
      const cursor = { anchor: at[0], head: at[1] }
      if (JSON.stringify(awareness.getLocalState()?.cursor) === JSON.stringify(cursor)) return
      queueMicrotask(() => awareness.setLocalStateField('cursor', cursor)) // it calls back: not in the middle of an update
    }

    /** @param {View} view */
    _show (view) {
      /** @type {Range[]} */
      const ranges = []
      const end = view.state.doc.length
      for (const [client, state] of awareness.getStates()) {
        if (client === awareness.clientID || !state?.cursor) continue
        const [anchor, head] = [state.cursor.anchor, state.cursor.head].map(json => placeOf(text, json))
        if (anchor === null || head === null || anchor === undefined || head === undefined) continue
        const [from, to] = [Math.min(anchor, head, end), Math.min(Math.max(anchor, head), end)]
        if (from < to) ranges.push(Decoration.mark({ class: 'others' }).range(from, to))
        ranges.push(Decoration.widget({ widget: new Caret(nameOf(state)), side: 1 }).range(Math.min(head, end)))
      }
      this.decorations = Decoration.set(ranges, true)
    }
  }
  return ViewPlugin.fromClass(Cursors, { decorations: (/** @type {Cursors} */ plugin) => plugin.decorations })
}

/** Where a position of another peer is; null: in another text, or gone. @param {Y.Text} text @param {unknown} json */
function placeOf (text, json) {
  try {
    const found = Y.createAbsolutePositionFromRelativePosition(Y.createRelativePositionFromJSON(json), /** @type {Y.Doc} */ (text.doc))
    return found?.type === text ? found.index : null
  } catch {
    return null // somebody sent what is no position
  }
}

/** @param {any} state */
function nameOf (state) { return textOf(state?.agent ?? state?.user?.name ?? 'somebody').slice(0, 64) }

/** An editor of one text of a document, until it is closed. */
export class Editor {
  /**
   * @param {Document} opened
   * @param {string} root the name of the text
   * @param {HTMLElement} parent an empty element
   * @param {boolean} canEdit
   */
  constructor (opened, root, parent, canEdit) {
    this._opened = opened
    const text = opened.doc.getText(root)
    const shadow = parent.shadowRoot ?? parent.attachShadow({ mode: 'open' })
    const undo = this._undo = new Y.UndoManager(text)
    const { awareness } = opened.provider
    const state = EditorState.create({
      doc: text.toString(),
      extensions: [
        keymap.of(yUndoManagerKeymap), minimalSetup, EditorView.lineWrapping, LOOKS, yCollab(text, null, { undoManager: undo }),
        cursors(text, awareness), EditorView.editable.of(canEdit), EditorState.readOnly.of(!canEdit),
        EditorView.contentAttributes.of({ 'aria-label': 'Text of the document', tabindex: '0' })
      ]
    })
    this._view = new EditorView({ state, parent: shadow, root: shadow })
  }

  close () {
    this._view.dom.remove()
    this._view.destroy()
    this._undo.destroy() // it listens to the document
  }
}

/**
 * Open the document at `key` as the reader, and wait until it is here.
 * @param {string} key
 * @param {boolean} canEdit
 * @param {AbortSignal} signal
 */
export async function opened (key, canEdit, signal) {
  const doc = new Y.Doc()
  const found = await theClient().document(key, { board: name.peek(), doc, Y, WebsocketProvider, can_edit: canEdit, signal })
  found.provider.awareness.setLocalStateField('agent', theClient().agent) // the service checks it
  return found
}

/** Who has the document open. @param {Document} document @returns {Writer[]} */
export function writers ({ provider: { awareness } }) {
  return [...awareness.getStates()].map(([client, state]) => ({ agent: nameOf(state), isHere: client === awareness.clientID }))
}

/** The names of the parts of a document: its texts first. @param {Y.Doc} doc */
export function roots (doc) {
  const names = [...doc.share.keys()]
  return [...names.filter(each => isText(doc, each)), ...names.filter(each => !isText(doc, each))]
}

/** Whether a part is text, by what it holds: types are not stored. @param {Y.Doc} doc @param {string} root */
export function isText (doc, root) {
  const type = doc.share.get(root)
  if (type === undefined || type instanceof Y.Text) return true
  if (type._map.size > 0 || Array.isArray(type.toJSON())) return false
  for (let item = type._start; item !== null; item = item.right) {
    if (!item.deleted) return 'str' in item.content || 'embed' in item.content || 'key' in item.content
  }
  return root === 'text'
}

/** A part that is no text, as plain values. @param {Y.Doc} doc @param {string} root */
export function valueOf (doc, root) {
  const type = doc.share.get(root)
  // As what it is read first, it remains; one that is empty may become anything.
  const known = type?.toJSON()
  if (known !== undefined) return known
  if (type?._map.size > 0) return doc.getMap(root).toJSON()
  return type?._length > 0 ? doc.getArray(root).toJSON() : []
}

/**
 * The document at `key` as it was at a revision, from the entries that held it then.
 * @param {string} key
 * @param {number} at
 * @param {AbortSignal} signal
 * @returns {Promise<Y.Doc>}
 */
export async function documentAt (key, at, signal) {
  /** @type {Map<string, any>} */
  const entries = new Map()
  let after = /** @type {string | null} */ (null)
  do {
    const page = await board().list(`${key}/~doc/**`, { after, at, signal })
    for (const entry of page.entries) entries.set(entry.key, entry)
    after = page.next_key
  } while (after !== null)
  const doc = new Y.Doc()
  for (const update of updatesOf(key, entries)) Y.applyUpdate(doc, update)
  return doc
}

/**
 * The updates that make a document up: its base, cut into parts, then what came since, in order.
 * @param {string} key
 * @param {Map<string, any>} entries
 * @returns {Uint8Array[]}
 */
function updatesOf (key, entries) {
  const found = []
  const base = entries.get(`${key}/~doc/base`)?.value
  if (base) {
    const [generation, count] = base.parts
    const parts = Array.from({ length: count }, (_, i) => `${key}/~doc/part/${generation}/${String(i).padStart(4, '0')}`)
    found.push(joined(parts.map(part => entries.get(part)?.value ?? new Uint8Array())))
  }
  const prefix = `${key}/~doc/update/`
  const later = [...entries.values()].filter(entry => entry.key.startsWith(prefix))
  later.sort((a, b) => a.mod_revision - b.mod_revision || (a.key < b.key ? -1 : 1))
  let pieces = /** @type {Uint8Array[]} */ ([])
  for (const { value } of later) {
    pieces.push(value.update)
    if (value.more) continue
    found.push(joined(pieces))
    pieces = []
  }
  return found.filter(update => update.length > 0)
}

/** @param {Uint8Array[]} pieces */
function joined (pieces) {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0))
  let at = 0
  for (const piece of pieces) { all.set(piece, at); at += piece.length }
  return all
}
