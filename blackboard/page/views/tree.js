// The tree of keys, and what is known of the chosen one.
import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js'
import { Branch, followed } from '../branches.js'
import { Empty, Failure } from '../parts.js'
import { go, place } from '../route.js'
import { sentence } from '../session.js'
import { at, epoch, moment, name, onChange, turns } from '../store.js'
import { visible } from '../values.js'
import Detail from './key.js'
import Search from './search.js'

/** @import { Child } from '../branches.js' */

const ROW_PX = 28
const SPARE_ROWS = 12

/** @typedef {{ child: Child, depth: number, branch: Branch } | { more: Branch, depth: number }} Line */

/**
 * The lines of the tree as far as it is open.
 * @param {Map<string, Branch>} branches
 * @param {ReadonlySet<string>} open
 * @returns {Line[]}
 */
function linesOf (branches, open) {
  /** @type {Line[]} */
  const lines = []
  /** @param {string} prefix @param {number} depth */
  const walk = (prefix, depth) => {
    const branch = branches.get(prefix)
    if (branch === undefined) return
    for (const child of branch.sorted()) {
      lines.push({ child, depth, branch })
      if (child.isFolder && open.has(child.path)) walk(child.path, depth + 1)
    }
    if (branch.next !== null && branch.children.size > 0) lines.push({ more: branch, depth })
  }
  walk('', 0)
  return lines
}

/** Every folder above a key. @param {string} key */
function above (key) {
  const parts = key.split('/')
  return parts.slice(1).map((_, i) => parts.slice(0, i + 1).join('/'))
}

export default function Tree () {
  const key = place.value.key
  const [open, setOpen] = useState(() => new Set(['public', ...above(key)]))
  const [words, setWords] = useState('')
  // Another moment, or another history, is another tree.
  const branches = useMemo(() => new Map([['', new Branch('')]]), [name.value, moment.value, epoch.value, turns.value])
  const [version, setVersion] = useState(0)
  const [failure, setFailure] = useState('')
  const changed = () => setVersion(before => before + 1)

  useEffect(() => {
    const ends = new AbortController()
    const load = async () => {
      for (const prefix of ['', ...[...open].sort()]) {
        const parent = prefix.slice(0, Math.max(prefix.lastIndexOf('/'), 0))
        const isThere = prefix === '' || branches.get(parent)?.children.has(prefix.slice(parent === '' ? 0 : parent.length + 1))
        if (!isThere || branches.get(prefix)?.next !== '' && branches.has(prefix)) continue
        const branch = branches.get(prefix) ?? new Branch(prefix)
        branches.set(prefix, branch) // it follows what changes from its first page on
        await branch.load(at.value, ends.signal)
        changed()
      }
      setFailure('')
    }
    load().catch(error => { if (!ends.signal.aborted) setFailure(sentence(error)) })
    return () => ends.abort(new DOMException('looked elsewhere', 'AbortError'))
  }, [branches, open])
  useEffect(() => moment.value === null ? onChange(rows => { if (followed(branches, rows)) changed() }) : undefined, [branches])
  useEffect(() => { if (key !== '') setOpen(before => new Set([...before, ...above(key)])) }, [key])

  /** @param {string} path */
  const toggle = path => {
    const next = new Set(open)
    if (!next.delete(path)) next.add(path)
    else for (const other of branches.keys()) if (other === path || other.startsWith(`${path}/`)) branches.delete(other)
    setOpen(next)
  }
  /** @param {Branch} branch */
  const more = branch => {
    branch.load(at.value, new AbortController().signal).then(changed, error => setFailure(sentence(error)))
  }
  const lines = useMemo(() => linesOf(branches, open), [branches, open, version])
  return html`<section class="view split ${key === '' ? '' : 'has-detail'}">
    <div class="pane">
      <div class="tools" role="search"><label class="grow"><span>Search</span>
        <input type="search" placeholder="a part of a key, or of a value" value=${words}
          onInput=${(/** @type {any} */ event) => setWords(event.target.value)} /></label></div>
      <${Failure} text=${failure} />
      ${words.trim() !== '' ? html`<${Search} words=${words.trim()} />`
        : lines.length === 0
          ? html`<${Empty} title=${moment.value === null ? 'This board is empty' : 'The board was empty then'}>
              A first key: <code>blackboard set public/hello world</code><//>`
          : html`<${Lines} lines=${lines} open=${open} chosen=${key} toggle=${toggle} more=${more} />`}
    </div>
    <div class="pane detail">${key === ''
      ? html`<${Empty} title="No key is chosen">Choose one to see its value, who wrote it, and why.<//>`
      : html`<${Detail} key=${key} name=${key} />`}</div>
  </section>`
}

/**
 * Only the lines in sight are in the document, however many there are.
 * @param {{ lines: Line[], open: ReadonlySet<string>, chosen: string, toggle: (path: string) => void, more: (branch: Branch) => void }} props
 */
function Lines ({ lines, open, chosen, toggle, more }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null))
  const [top, setTop] = useState(0)
  const [height, setHeight] = useState(600)
  const [active, setActive] = useState(0)
  useEffect(() => {
    if (box.current === null) return
    const seen = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600))
    seen.observe(box.current)
    return () => seen.disconnect()
  }, [])
  const first = Math.max(0, Math.floor(top / ROW_PX) - SPARE_ROWS)
  const last = Math.min(lines.length, Math.ceil((top + height) / ROW_PX) + SPARE_ROWS)

  // Scrolling to the end of what is loaded loads more, without a click.
  const next = lines.slice(first, last).find(line => 'more' in line)
  useEffect(() => { if (next !== undefined && 'more' in next) more(next.more) }, [next !== undefined && 'more' in next ? next.more : null, lines.length])

  /** @param {Line | undefined} line */
  const choose = line => {
    if (line === undefined) return
    if ('more' in line) more(line.more)
    else if (line.child.isKey) go({ key: line.child.path })
    else toggle(line.child.path)
  }
  /** @param {KeyboardEvent} event */
  const press = event => {
    const line = lines[active]
    const isOpen = line !== undefined && 'child' in line && open.has(line.child.path)
    const canOpen = line !== undefined && 'child' in line && line.child.isFolder
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -lines.length, End: lines.length }
    if (event.key in steps) move(active + steps[/** @type {keyof typeof steps} */ (event.key)])
    else if (event.key === 'Enter' || event.key === ' ') choose(line)
    else if (event.key === 'ArrowRight' && canOpen && !isOpen) toggle(line.child.path)
    else if (event.key === 'ArrowLeft' && canOpen && isOpen) toggle(line.child.path)
    else return
    event.preventDefault()
  }
  /** @param {number} to */
  const move = to => {
    const index = Math.max(0, Math.min(lines.length - 1, to))
    setActive(index)
    const list = box.current
    if (list === null) return
    if (index * ROW_PX < list.scrollTop) list.scrollTop = index * ROW_PX
    else if ((index + 1) * ROW_PX > list.scrollTop + list.clientHeight) list.scrollTop = (index + 1) * ROW_PX - list.clientHeight
  }
  return html`<div class="lines" ref=${box} role="tree" aria-label="Keys" tabindex="0" onKeyDown=${press}
      aria-activedescendant=${lines.length > 0 ? `line-${active}` : undefined}
      onScroll=${(/** @type {any} */ event) => setTop(event.target.scrollTop)}>
    <div class="lines-room" role="none" style=${{ height: `${lines.length * ROW_PX}px` }}>
      ${lines.slice(first, last).map((line, i) => html`<${One} key=${'more' in line ? `more ${line.more.prefix}` : line.child.path} line=${line}
        index=${first + i} isActive=${first + i === active} isOpen=${'child' in line && open.has(line.child.path)}
        isChosen=${'child' in line && line.child.path === chosen} toggle=${toggle}
        choose=${() => { setActive(first + i); choose(line) }} />`)}
    </div></div>`
}

/** @param {{ line: Line, index: number, isActive: boolean, isOpen: boolean, isChosen: boolean, choose: () => void, toggle: (path: string) => void }} props */
function One ({ line, index, isActive, isOpen, isChosen, choose, toggle }) {
  const place = { top: `${index * ROW_PX}px`, paddingLeft: `${10 + line.depth * 18}px` }
  if ('more' in line) {
    return html`<div class="line more ${isActive ? 'is-active' : ''}" role="treeitem" id="line-${index}" aria-level=${line.depth + 1}
      style=${place} onClick=${choose}>more…</div>`
  }
  const { child } = line
  /** @param {Event} event */
  const turn = event => { event.stopPropagation(); toggle(child.path) }
  return html`<div class="line ${isActive ? 'is-active' : ''} ${isChosen ? 'is-chosen' : ''} ${child.path.startsWith('private') ? 'is-private' : ''}"
      role="treeitem" id="line-${index}" aria-level=${line.depth + 1} aria-expanded=${child.isFolder ? isOpen : undefined}
      aria-selected=${isChosen} data-path=${child.path} style=${place} onClick=${choose}>
    <span class="twist" aria-hidden="true" onClick=${child.isFolder ? turn : undefined}>${child.isFolder ? (isOpen ? '▾' : '▸') : ''}</span>
    <span class=${child.isKey ? 'leaf' : 'folder'}>${visible(child.name)}${child.isFolder && !child.isKey ? '/' : ''}</span></div>`
}
