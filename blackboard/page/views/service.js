// The service: its health, and, for admins, tokens and the audit.
import { html, useEffect, useState } from '../vendor/preact.js'
import { Agent, Empty, Failure, Time, confirmed, done, useLoaded } from '../parts.js'
import { may, theAddress, theClient } from '../session.js'
import { grouped, visible } from '../values.js'

/** @import { AuditMessage } from '../client/methods.js' */

const AGAIN_MS = 3000
/** Records of the audit that are read, and how many of them are shown. */
const RECORDS_MAX = 20_000
const PAGE_RECORDS = 1000
const SHOWN_MAX = 300
const DAY_MS = 86_400_000

const SURVIVES = /** @type {Record<string, string>} */ ({
  disk: 'a commit that was answered survives a power failure',
  second: 'a power failure may take the last second',
  memory: 'a commit that was answered survives the end of the process, not a power failure',
  replica: 'a commit that was answered is on a replica'
})

/** @typedef {{ ready: string, isReady: boolean, archive: { behind: number, lag_ms: number, failing: number } | null, numbers: Map<string, number> }} Health */

/** @param {AbortSignal} signal @returns {Promise<Health>} */
async function health (signal) {
  const [ready, metrics] = await Promise.all(['readyz', 'metrics'].map(path => fetch(new URL(path, theAddress()), { signal })))
  if (ready === undefined || metrics === undefined || !metrics.ok) throw new Error('This page cannot read the state of the service.')
  const told = await ready.json()
  return { ready: told.reason ?? told.status, isReady: ready.ok, archive: told.archive ?? null, numbers: numbersOf(await metrics.text()) }
}

/** The samples of Prometheus' text format, those with labels summed. @param {string} text */
function numbersOf (text) {
  /** @type {Map<string, number>} */
  const found = new Map()
  for (const line of text.split('\n')) {
    const [, name, value] = /^blackboard_(\w+)(?:\{.*\})? (\S+)$/.exec(line) ?? []
    if (name !== undefined) found.set(name, (found.get(name) ?? 0) + Number(value))
  }
  return found
}

export default function Service () {
  const [count, setCount] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => { if (document.visibilityState === 'visible') setCount(before => before + 1) }, AGAIN_MS)
    return () => clearInterval(timer)
  }, [])
  return html`<section class="view service"><${Shown} count=${count} />${may('admin') ? html`<${Tokens} /><${Audit} />` : ''}</section>`
}

/** @param {{ count: number }} props */
function Shown ({ count }) {
  const [found, failure] = useLoaded(health, [], count)
  if (found === undefined) return html`<${Failure} text=${failure} />`
  const { engine, level } = theClient().service
  const { ready, isReady, archive, numbers } = found
  /** @param {string} title @param {unknown} value @param {unknown} [more] */
  const fact = (title, value, more) => html`<div class="fact"><dt>${title}</dt><dd><b>${value}</b> ${more ? html`<span class="dim">${more}</span>` : ''}</dd></div>`
  /** @param {string} name */
  const number = name => grouped(numbers.get(name) ?? 0)
  return html`<${Failure} text=${isReady ? undefined : `Not ready: ${ready}`} /><dl class="facts-grid">
    ${fact('State', isReady ? 'ready' : 'not ready')}
    ${fact('Engine', engine)}
    ${fact('Durability', level, SURVIVES[level])}
    ${archive === null ? fact('Archive', 'none', 'the history is kept as long as the log') : fact('Archive', archive.failing ? 'failing' : `${grouped(archive.behind)} behind`, `${(archive.lag_ms / 1000).toFixed(1)} s`)}
    ${fact('Watches', number('watchers'))}
    ${fact('Connections', number('connections'))}
    ${fact('Boards open here', number('boards'))}
    ${fact('Commits', number('commits_total'), `${number('commits_refused_total')} refused`)}
    ${fact('Event loop', `${((numbers.get('loop_lag_seconds') ?? 0) * 1000).toFixed(0)} ms late`)}
    ${fact('Waiting for the engine', `${number('backlog_bytes')} bytes`)}</dl>`
}

// --- tokens ---------------------------------------------------------------------------------------

function Tokens () {
  const [agent, setAgent] = useState('')
  const [days, setDays] = useState(1)
  const [token, setToken] = useState({ of: '', text: '' })
  /** @param {Event} event */
  const make = async event => {
    event.preventDefault()
    const made = await done(() => theClient().token(agent.trim(), { ttl_ms: days * DAY_MS }), () => `A token for ${agent}, for ${days} days.`)
    setToken({ of: agent, text: made ?? '' })
  }
  const revoke = async () => {
    const sure = await confirmed({
      title: `Revoke every token of ${agent}`,
      body: html`<p>All tokens issued to <b>${visible(agent)}</b> until now end at once, on every service, with all that were narrowed from them.</p>`,
      verb: 'Revoke',
      harmful: true
    })
    if (sure !== null) await done(() => theClient().revoke([], { principal: agent.trim() }), count => `${count} revoked: every token of ${agent}.`)
  }
  return html`<h2>Tokens</h2><form class="tools" onSubmit=${make}>
    <label><span>Agent</span><input value=${agent} required maxlength="128" onInput=${(/** @type {any} */ event) => setAgent(event.target.value)} /></label>
    <label><span>Days</span><input type="number" min="1" max="365" value=${days} onInput=${(/** @type {any} */ event) => setDays(Number(event.target.value) || 1)} /></label>
    <button class="main">Make a token</button>
    <button type="button" class="harmful" disabled=${agent.trim() === ''} onClick=${revoke}>Revoke all of it…</button></form>
    ${token.text === '' || token.of !== agent ? '' : html`<label class="token"><span>It is shown once; the service keeps no copy.</span><input readonly value=${token.text} onFocus=${(/** @type {any} */ event) => event.target.select()} /></label>`}`
}

// --- the audit ------------------------------------------------------------------------------------

/** The newest records, the newest first. @param {AbortSignal} signal */
async function records (signal) {
  /** @type {AuditMessage[]} */
  let found = []
  let count = 0
  let after = /** @type {string | undefined} */ (undefined)
  while (count < RECORDS_MAX) {
    const page = await theClient().audit({ after, limit: PAGE_RECORDS, signal })
    count += page.length
    found = [...found, ...page].slice(-SHOWN_MAX)
    if (page.length < PAGE_RECORDS) break // not until one is empty: each of these requests is recorded, too
    after = page.at(-1)?.key
  }
  return { records: found.reverse(), whole: count < RECORDS_MAX }
}

function Audit () {
  const [asked, setAsked] = useState(0)
  const [found, failure] = useLoaded(signal => asked === 0 ? Promise.resolve({ records: /** @type {AuditMessage[]} */ ([]), whole: true }) : records(signal), [asked])
  return html`<h2>Audit</h2><p class="row"><button onClick=${() => setAsked(asked + 1)}>${asked === 0 ? 'Read the audit' : 'Read it again'}</button>
    <span class="dim">Reading it is recorded, too.</span></p><${Failure} text=${failure} />
    ${asked === 0 || found === undefined ? '' : found.records.length === 0 ? html`<${Empty} title="Nothing is recorded">Refusals, reads of private data and acts on whole boards are.<//>` : html`
      ${found.whole ? '' : html`<p class="dim">Of the first ${grouped(RECORDS_MAX)} records. All: <code>blackboard audit</code></p>`}
      <table class="audit"><thead><tr><th>time</th><th>principal</th><th>verb</th><th>board</th><th>about</th><th>outcome</th><th class="num">count</th></tr></thead><tbody>${found.records.map(each => html`<tr key=${each.key}>
        <td><${Time} ms=${each.time_ms} /></td><td><${Agent} name=${each.principal} /></td><td>${visible(each.verb)}</td><td>${visible(each.board)}</td>
        <td class="key">${visible(each.what)}</td><td class=${['ok', 'private'].includes(each.outcome) ? '' : 'bad'}>${visible(each.outcome)}</td><td class="num">${each.count}</td></tr>`)}</tbody></table>`}`
}
