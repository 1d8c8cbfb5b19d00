// One lane per agent, revisions along; checkpoints, restores and branches are cuts through all lanes.
//
// The service counts the commits of each part of the span, so a hundred thousand revisions cost as much
// as a hundred. A part becomes a mark for each commit as soon as the span is short enough.
import { html, useEffect, useRef, useState } from '../vendor/preact.js'
import { Agent, Empty, Failure, hueOf, say, useLoaded } from '../parts.js'
import { linkTo } from '../route.js'
import { sentence } from '../session.js'
import { board, checkpoints, epoch, head, moment, name, onChange } from '../store.js'
import { clock, grouped, visible } from '../values.js'

/** @import { ActivityResult, Epoch } from '../client/methods.js' */
/** @import { VNode } from '../vendor/preact.js' */

const LANE_PX = 34
const TOP_PX = 30
const PARTS_MAX = 400
const AGAIN_MS = 1000
/** Spans that a click chooses, in revisions; null: everything. */
const SPANS = [100, 1000, 10_000, null]
const MINUTE_MS = 60_000

/** @typedef {{ after: number, until: number | null }} Span */

export default function Lanes () {
  const [span, setSpan] = useState(/** @type {Span} */ ({ after: 0, until: null }))
  const [tick, setTick] = useState(0)
  const waiting = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined))
  useEffect(() => setSpan({ after: 0, until: null }), [name.value])
  // What comes is counted again once a second at most, however much it is.
  const again = () => {
    waiting.current ??= setTimeout(() => { waiting.current = undefined; setTick(before => before + 1) }, AGAIN_MS)
  }
  useEffect(() => onChange(again), [])
  const [activity, failure] = useLoaded(signal => board().activity({
    after: span.after, ...(span.until === null ? {} : { until: span.until }), parts: PARTS_MAX, signal
  }), [name.value, span.after, span.until, epoch.value], tick)
  // The service counts what is archived and some revisions more: what is left comes with the next answer.
  useEffect(() => {
    if (activity && activity.until < Math.min(span.until ?? Infinity, head.value.revision)) again()
  }, [activity])
  if (activity === undefined) return html`<section class="view"><${Failure} text=${failure} /></section>`
  return html`<section class="view lanes">
    <${Zoom} span=${span} setSpan=${setSpan} activity=${activity} />
    ${activity.authors.length === 0
      ? html`<${Empty} title="Nobody has committed here">Let an agent in: <code>blackboard token create researcher</code><//>`
      : html`<${Drawing} activity=${activity} setSpan=${setSpan} /><${Cuts} activity=${activity} />`}
  </section>`
}

/** @param {{ span: Span, setSpan: (span: Span) => void, activity: ActivityResult }} props */
function Zoom ({ span, setSpan, activity }) {
  const { revision } = head.value
  const wide = activity.until - activity.after
  /** @param {number} factor */
  const zoom = factor => {
    const middle = moment.value ?? activity.until
    const half = Math.max(5, Math.round(wide * factor / 2))
    const after = Math.max(0, Math.min(middle - half, revision - 2 * half))
    setSpan({ after, until: after + 2 * half >= revision ? null : after + 2 * half })
  }
  const lastMinute = async () => {
    const fine = await board().activity({ after: Math.max(0, revision - 20_000), parts: PARTS_MAX })
    const first = fine.times_ms.findIndex(time_ms => time_ms > Date.now() - MINUTE_MS)
    setSpan({ after: first < 0 ? Math.max(0, revision - 10) : fine.after + Math.max(0, first - 1) * fine.step, until: null })
  }
  return html`<div class="tools" role="group" aria-label="Zoom">
    <button onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button>
    <button onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
    <button onClick=${() => lastMinute().catch(error => say(sentence(error), true))}>Last minute</button>
    ${SPANS.filter(each => each === null || each < revision).map(each => html`<button aria-pressed=${span.until === null && span.after === (each === null ? 0 : Math.max(0, revision - each))}
      onClick=${() => setSpan({ after: each === null ? 0 : Math.max(0, revision - each), until: null })}>
      ${each === null ? 'Everything' : `Last ${grouped(each)}`}</button>`)}
    <span class="dim">revisions ${grouped(activity.after + 1)} to ${grouped(activity.until)}${activity.step > 1 ? `, ${grouped(activity.step)} a mark` : ''}</span>
  </div>`
}

/**
 * Revisions that a restore left behind: from the one that came back to the one that began the epoch.
 * @param {readonly Epoch[]} epochs
 */
export function abandoned (epochs) {
  return epochs.filter(each => each.cause === 'restore' || each.cause === 'recover' || each.cause === 'engine')
    .map(each => ({ from: each.from_revision, to: each.revision }))
}

/** @param {{ activity: ActivityResult, setSpan: (span: Span) => void }} props */
function Drawing ({ activity, setSpan }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null))
  const [width, setWidth] = useState(900)
  const [from, setFrom] = useState(/** @type {number | null} */ (null))
  useEffect(() => {
    if (box.current === null) return
    const seen = new ResizeObserver(() => setWidth(Math.max(200, box.current?.clientWidth ?? 900)))
    seen.observe(box.current)
    return () => seen.disconnect()
  }, [])
  const lanes = activity.authors.filter(each => each.author !== '~system')
  const { after, until, step } = activity
  const wide = Math.max(1, until - after)
  /** @param {number} revision */
  const x = revision => 10 + (width - 20) * (revision - after) / wide
  const height = TOP_PX + lanes.length * LANE_PX + 22
  const past = abandoned(activity.epochs)
  /** @param {any} event */
  const revisionAt = event => {
    const { left } = event.currentTarget.getBoundingClientRect()
    return Math.round(Math.max(after, Math.min(until, after + wide * (event.clientX - left - 10) / (width - 20))))
  }
  /** @param {any} event */
  const up = event => {
    const [a, b] = [from ?? 0, revisionAt(event)].sort((one, other) => one - other)
    setFrom(null)
    if (a === undefined || b === undefined) return
    if (b - a > wide / 40 && b - a > 4) setSpan({ after: a, until: b })
    else moment.value = b >= head.value.revision ? null : Math.max(b, 0)
  }
  const most = Math.max(1, ...lanes.flatMap(lane => lane.commits))
  const cuts = checkpoints.value.filter(each => each.revision > after && each.revision <= until)
  return html`<div class="lanes-box">
    <ul class="lane-names" aria-label="Agents">${lanes.map(({ author, commits }) => html`<li data-agent=${author}>
      <${Agent} name=${author} /> <span class="dim">${grouped(commits.reduce((sum, each) => sum + each, 0))}</span></li>`)}
      ${activity.more_authors ? html`<li class="dim">and others</li>` : ''}</ul>
    <div class="lanes-drawing" ref=${box}>
      <svg width=${width} height=${height} role="img" aria-label=${`${lanes.length} agents, ${cuts.length} checkpoints, ${past.length} abandoned futures`}
        onPointerDown=${(/** @type {any} */ event) => setFrom(revisionAt(event))} onPointerUp=${up}>
        ${lanes.map((_, i) => html`<line class="lane" x1="0" x2=${width} y1=${TOP_PX + (i + 0.5) * LANE_PX} y2=${TOP_PX + (i + 0.5) * LANE_PX} />`)}
        ${lanes.map((lane, i) => marks({ lane, activity, x, y: TOP_PX + (i + 0.5) * LANE_PX, most }))}
        ${past.map(({ from, to }) => html`<g class="abandoned" data-abandoned=${to}><rect x=${x(Math.max(from, after))} y=${TOP_PX - 6}
          width=${Math.max(2, x(to) - x(Math.max(from, after)) - 3)} height=${height - TOP_PX - 12} /><title>abandoned: revisions ${from + 1} to ${to - 1}</title></g>`)}
        ${spread(cuts.map(each => ({ at: x(each.revision), text: each.kind === 'named' ? each.name : each.name.replace(/-[0-9a-f]{16}$/, ''), kind: `cut ${each.kind === 'named' ? '' : 'is-quiet'}`, title: `checkpoint ${each.name}, revision ${each.revision}, by ${each.by}` })), { width, height })}
        ${spread(activity.epochs.map(each => ({ at: x(each.revision), text: `${each.cause} → ${grouped(each.from_revision)}`, kind: 'cut is-restore', title: `${each.cause}: since revision ${each.revision} it goes on from ${each.from_revision}` })), { width, height }, true)}
        ${moment.value === null ? '' : html`<line class="looking" x1=${x(moment.value)} x2=${x(moment.value)} y1="0" y2=${height} />`}
        ${[0, 0.25, 0.5, 0.75, 1].map(part => html`<text class="axis" x=${10 + part * (width - 20)} y=${height - 4}
          text-anchor=${part === 0 ? 'start' : part === 1 ? 'end' : 'middle'}>${grouped(Math.round(after + part * wide))}
          ${width > 600 ? ` · ${clock(timeAt(activity, part))}` : ''}</text>`)}
      </svg></div></div>
    <p class="dim">Click: look at that moment. Drag: zoom in. ${step > 1 ? 'The taller a mark, the more commits.' : ''}</p>`
}

/** @param {ActivityResult} activity @param {number} part */
function timeAt ({ times_ms }, part) {
  const from = Math.min(times_ms.length - 1, Math.floor(part * times_ms.length))
  for (let i = from; i >= 0; i--) if (times_ms[i]) return times_ms[i] ?? 0
  return times_ms.find(each => each > 0) ?? 0
}

/**
 * The marks of a lane: a dot for a commit, a bar for several.
 * @param {{ lane: { author: string, commits: readonly number[] }, activity: ActivityResult, x: (revision: number) => number, y: number, most: number }} what
 */
function marks ({ lane, activity, x, y, most }) {
  const { after, until, step } = activity
  return html`<g class="marks hue-${hueOf(lane.author)}">${lane.commits.map((commits, i) => {
    if (commits === 0) return ''
    const first = after + 1 + i * step
    if (step === 1) {
      return html`<circle cx=${x(first)} cy=${y} r="4.5"><title>revision ${first}, ${visible(lane.author)}</title></circle>`
    }
    const high = 5 + (LANE_PX - 12) * Math.sqrt(commits / most)
    const wide = Math.max(1.5, x(Math.min(first + step, until + 1)) - x(first) - 0.6)
    return html`<rect x=${x(first)} y=${y - high / 2} width=${wide} height=${high} rx="1"><title>revisions ${first} to ${Math.min(first + step - 1, until)}: ${commits} commits, ${visible(lane.author)}</title></rect>`
  })}</g>`
}

/**
 * Cuts with names, as long as there is room for these.
 * @param {{ at: number, text: string, kind: string, title: string }[]} cuts
 * @param {{ width: number, height: number }} size
 */
function spread (cuts, { width, height }, low = false) {
  let free = -Infinity
  /** @type {VNode[]} */
  const drawn = []
  for (const { at, text, kind, title } of cuts) {
    const room = text.length * 6.6 + 10
    const isLeft = at + room > width
    const from = isLeft ? at - room : at
    const isNamed = from >= free
    if (isNamed) free = from + room
    drawn.push(html`<g class=${kind}><title>${visible(title)}</title><line x1=${at} x2=${at} y1=${low ? 16 : 4} y2=${height - 18} />
      ${isNamed ? html`<text x=${isLeft ? at - 4 : at + 4} text-anchor=${isLeft ? 'end' : 'start'} y=${low ? 25 : 12}>${visible(text)}</text>` : ''}</g>`)
  }
  return drawn
}

/** The same cuts as a list: to read, and to reach by keyboard. @param {{ activity: ActivityResult }} props */
function Cuts ({ activity }) {
  const named = checkpoints.value.filter(each => each.kind === 'named').slice(-50).reverse()
  if (named.length === 0 && activity.epochs.length === 0) {
    return html`<p class="dim">No cut yet: <a href=${linkTo({ view: 'act' })}>take a checkpoint</a>, and the whole team can be taken back to it.</p>`
  }
  return html`<table class="cuts"><caption>Cuts, the newest first</caption><thead><tr><th>checkpoint</th><th class="num">revision</th><th>by</th><th>note</th></tr></thead>
    <tbody>${named.map(each => html`<tr data-checkpoint=${each.name}><td>${visible(each.name)}${each.pinned ? ' · pinned' : ''}</td>
      <td class="num"><button class="number" onClick=${() => { moment.value = each.revision }}>${grouped(each.revision)}</button></td>
      <td><${Agent} name=${each.by} /></td><td class="dim">${visible(each.note)}</td></tr>`)}</tbody></table>`
}
