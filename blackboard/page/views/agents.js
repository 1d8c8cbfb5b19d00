// The agents: who is attached, in which step, waiting for what, and who crashed.
import { html } from '../vendor/preact.js'
import { Agent, Empty, Failure, Key, Time, useHits, useLoaded } from '../parts.js'
import { linkTo } from '../route.js'
import { at, board, epoch, moment, name } from '../store.js'
import { numberOf, textOf, visible } from '../values.js'

/** @import { Entry } from '../client/records.js' */

const PRESENT = 'public/~agents'
const CRASHED = 'public/~supervision'
const DECLARED = 'public/~declared'
/** A team has no more agents. */
const AGENTS_MAX = 1024

/**
 * @typedef {{ agent: string, state: string, note: string, step: number | null, since_ms: number, commits: number | null, waiting: string[], error: string, at: string, crashes: number, outcome: string, isGone: boolean }} Line
 */

/** @param {string} pattern @param {AbortSignal} signal @returns {Promise<Map<string, Entry>>} */
async function byAgent (pattern, signal) {
  const page = await board().list(pattern, { limit: AGENTS_MAX, signal, ...(at.value === undefined ? {} : { at: at.value }) })
  return new Map(page.entries.map(entry => [pattern.startsWith('private') ? entry.key.split('/')[1] ?? '' : entry.key.split('/').at(-1) ?? '', entry]))
}

/** Every agent that is attached, crashed, or keeps a state that the reader may see. @param {AbortSignal} signal @returns {Promise<Line[]>} */
async function agents (signal) {
  const [present, crashed, declared, states] = await Promise.all([
    byAgent(`${PRESENT}/*`, signal), byAgent(`${CRASHED}/*`, signal), byAgent(`${DECLARED}/*`, signal), byAgent('private/*/~state', signal)
  ])
  const names = new Set([...present.keys(), ...crashed.keys(), ...declared.keys(), ...states.keys()])
  return [...names].sort().map(agent => lineOf(agent, present.get(agent)?.value, crashed.get(agent)?.value, states.get(agent)?.value, present.get(agent)))
}

/** @param {string} agent @param {any} here @param {any} crash @param {any} stored @param {Entry | undefined} entry @returns {Line} */
function lineOf (agent, here, crash, stored, entry) {
  const state = crash ? textOf(crash.state ?? 'crashed') : here ? textOf(here.state ?? 'attached') : stored?.status ? textOf(stored.status) : 'away'
  return {
    agent,
    state: state.replaceAll('_', ' '),
    note: textOf(here?.note),
    step: Number.isInteger(stored?.step) ? stored.step : null,
    since_ms: numberOf(here?.since_ms),
    commits: entry?.mod_revision ?? null,
    waiting: Array.isArray(stored?.waiting) ? stored.waiting.filter((/** @type {unknown} */ each) => typeof each === 'string') : [],
    outcome: textOf(stored?.outcome),
    error: textOf(crash?.error),
    at: textOf(crash?.at),
    crashes: numberOf(crash?.crashes),
    isGone: !here
  }
}

export default function Agents () {
  const count = useHits(row => row.changes.some(({ key }) => key.startsWith(PRESENT) || key.startsWith(CRASHED) || key.endsWith('/~state')))
  const [lines, failure] = useLoaded(agents, [name.value, moment.value, epoch.value], count)
  return html`<section class="view agents"><${Failure} text=${failure} />
    ${lines === undefined ? '' : lines.length === 0
      ? html`<${Empty} title=${moment.value === null ? 'No agent is attached' : 'No agent was attached then'}>Start one with <code>blackboard.run_agent</code>, or <code>board.attach("researcher")</code>.<//>`
      : html`<ul class="cards" aria-label="Agents">${lines.map(line => html`<${Card} key=${line.agent} line=${line} />`)}</ul>`}</section>`
}

/** @param {{ line: Line }} props */
function Card ({ line }) {
  const isBad = line.error !== ''
  return html`<li class="card" data-agent=${line.agent}>
    <p class="facts"><${Agent} name=${line.agent} /><span class="badge ${isBad ? 'bad' : line.isGone ? 'gone' : ''}">${visible(line.state)}</span>
      ${line.step === null ? '' : html`<span>step ${line.step}</span>`}
      ${line.since_ms ? html`<span class="dim">attached <${Time} ms=${line.since_ms} /></span>` : ''}</p>
    ${line.note ? html`<p>${visible(line.note)}</p>` : ''}
    ${line.outcome ? html`<p>Done: ${visible(line.outcome)}</p>` : ''}
    ${line.waiting.length === 0 ? '' : html`<p>Waits for ${line.waiting.map((each, i) => html`${i ? ', ' : ''}${each.includes('*') ? html`<code>${visible(each)}</code>` : html`<${Key} name=${each} />`}`)}</p>`}
    ${isBad ? html`<pre class="value" tabindex="0">${visible(line.error)}${line.at ? `\n  at ${visible(line.at)}` : ''}</pre>
      <p class="dim">${line.crashes === 1 ? 'One crash' : `${line.crashes} crashes`} without a step in between. The whole traceback is in the log of its process.</p>` : ''}
    <p class="facts"><a href=${linkTo({ view: 'tree', key: `private/${line.agent}/~state` })}>State</a>
      <a href=${linkTo({ view: 'tree', key: `${DECLARED}/${line.agent}` })}>Declaration</a></p></li>`
}
