// The shell: the reader, the board, the moment, and the view that is shown.
import { effect, html, render, useEffect, useRef, useState } from './vendor/preact.js'
import { Agent, Empty, Failure, Questions, Said } from './parts.js'
import { go, linkTo, place } from './route.js'
import { arrive, enter, first, leave, online, phase, reason, who } from './session.js'
import { absent, boards, checkpoints, head, listBoards, look, moment, name, stop, trouble } from './store.js'
import { ago, grouped } from './values.js'
import { VIEWS } from './views/index.js'

function Shell () {
  if (phase.value === 'opening') return html`<main class="entry"><p role="status">Connecting…</p></main>`
  if (phase.value === 'out') return html`<${Entry} />`
  const { view } = place.value
  const shown = VIEWS.find(each => each.name === view)
  return html`<div class="shell ${moment.value === null ? '' : 'is-past'}">
    <a class="skip" href="#main" onClick=${skip}>Skip to the view</a>
    <header>
      <a class="brand" href=${linkTo({ view: VIEWS[0]?.name ?? '' })}>Blackboard</a>
      <${BoardChoice} />
      <${TimeBar} />
      <${Who} />
    </header>
    <nav aria-label="Views">${VIEWS.map(each => html`<a href=${linkTo({ view: each.name })}
      aria-current=${each === shown ? 'page' : undefined}>${each.title}</a>`)}</nav>
    <main id="main" tabindex="-1">
      <h1 class="unseen">${shown?.title ?? 'Not found'}: ${name.value}</h1>
      ${trouble.value ? html`<${Failure} text=${trouble.value} />` : ''}
      ${absent.value && shown?.ofService === false ? html`<${Absent} />` : shown
        ? html`<${shown.component} key=${name.value} />`
        : html`<${Empty} title="There is no view of that name">The link may be of another version. <a href=${linkTo({ view: VIEWS[0]?.name ?? '' })}>Go to the first one</a>.<//>`}
    </main>
    <${Questions} /><${Said} /></div>`
}

function Absent () {
  return html`<${Empty} title="There is no board “${name.value}”">It appears here with its first change:
    <code>blackboard set public/hello world --board ${name.value}</code>${boards.value.length === 0 ? '' : html`<br />Others are there: ${boards.value.slice(0, 20).map(each => html` <a href=${linkTo({ board: each })}>${each}</a>`)}`}<//>`
}

/** @param {Event} event */
function skip (event) {
  event.preventDefault()
  document.getElementById('main')?.focus()
}

function Entry () {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null))
  useEffect(() => field.current?.focus(), [])
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault()
    if (field.current?.value.trim()) void enter(field.current.value)
  }
  return html`<main class="entry"><form onSubmit=${submit}>
    <h1>Blackboard</h1>
    ${reason.value ? html`<p class="failure" role="alert">${reason.value}</p>` : ''}
    <label>Token<input ref=${field} type="password" autocomplete="off" spellcheck="false" required /></label>
    <button class="main">Open</button>
    <p class="dim">The page shows what this token may see, and keeps it for this tab only. On the machine of the service,
      <code>blackboard token create me --role operator</code> prints one.</p></form></main>`
}

function BoardChoice () {
  const known = boards.value.includes(name.value) ? boards.value : [...boards.value, name.value]
  /** @param {any} event */
  const choose = event => go({ board: event.target.value })
  return html`<label class="board"><span class="quiet">Board</span>
    <select value=${name.value} onChange=${choose} onFocus=${listBoards} onPointerEnter=${listBoards}>${known.map(each => html`<option>${each}</option>`)}</select></label>`
}

/** The slider: any revision, with the checkpoints as marks. */
function TimeBar () {
  const { revision, time_ms } = head.value
  const [dragged, setDragged] = useState(/** @type {number | null} */ (null))
  const settle = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined))
  const shown = dragged ?? moment.value ?? revision
  /** @param {any} event */
  const drag = event => {
    const to = Number(event.target.value)
    setDragged(to)
    clearTimeout(settle.current)
    settle.current = setTimeout(() => { setDragged(null); moment.value = to >= revision ? null : to }, 120)
  }
  return html`<div class="timebar" role="group" aria-label="Moment">
    <div class="track">
      <input type="range" aria-label="Revision" min=0 max=${Math.max(revision, 1)} value=${shown} onInput=${drag}
        aria-valuetext=${moment.value === null && dragged === null ? 'now' : `revision ${shown}`} />
      <svg class="marks" aria-hidden="true" preserveAspectRatio="none" viewBox="0 0 1000 8">${checkpoints.value.slice(-200).map(each => html`
        <rect x=${1000 * each.revision / Math.max(revision, 1) - 1} y="0" width="2" height="8"><title>${each.name}</title></rect>`)}</svg>
    </div>
    <output>${moment.value === null && dragged === null
      ? html`<span class="live">now</span> ${grouped(revision)}`
      : html`<b>${grouped(shown)}</b> <span class="dim">of ${grouped(revision)}</span>`}
      ${moment.value === null && time_ms ? html` <span class="dim wide">${ago(time_ms)}</span>` : ''}</output>
    ${moment.value === null ? '' : html`<button class="main" onClick=${() => { moment.value = null }}>Back to now</button>`}
  </div>`
}

function Who () {
  return html`<div class="who"><span class="dot ${online.value ? 'is-on' : ''}" role="img"
      aria-label=${online.value ? 'connected' : 'connecting again'} title=${online.value ? 'connected' : 'connecting again'}></span>
    <${Agent} name=${who.value?.principal ?? ''} />
    <button class="quiet-button" onClick=${() => leave('')}>Leave</button></div>`
}

// Where the reader goes decides which board is followed.
effect(() => {
  if (phase.value !== 'in') return
  const { board, view } = place.value
  if (board === '' || view === '') location.replace(linkTo({ board: board || first, view: VIEWS[0]?.name ?? '' }))
})
let followed = ''
effect(() => {
  const wanted = phase.value === 'in' ? place.value.board : ''
  if (wanted === followed) return
  followed = wanted
  queueMicrotask(() => wanted === '' ? stop() : void look(wanted))
})

render(html`<${Shell} />`, /** @type {Element} */ (document.getElementById('app')))
void arrive()
