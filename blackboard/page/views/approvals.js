// The inbox: what agents ask people, the facts it rests on, the answer, and what became of it.
import { html, useRef } from '../vendor/preact.js'
import { Agent, Empty, Failure, Key, Time, Value, confirmed, done, useHits, useLoaded } from '../parts.js'
import { isPrefix } from '../client/paths.js'
import { mayAt, theClient } from '../session.js'
import { at, board, epoch, head, moment, name } from '../store.js'
import { numberOf, preview, printed, textOf, visible } from '../values.js'

/** @import { Entry, RevisionEvent } from '../client/records.js' */

const REQUESTS = 'public/~approvals'
const DECISIONS = 'public/~decisions'
/** How far back the page looks for answers, and how many it shows. */
const LOOKED_BACK = 5_000
const ANSWERED_MAX = 30
/** Facts that an answer names: an agent gives no more of them. */
const FACTS_MAX = 64
const NOTE_MAX = 200

/**
 * @typedef {{ key: string, revision: number, value: unknown, now: unknown, isStale: boolean }} Fact
 * @typedef {{ agent: string, account: string, id: string, revision: number, time_ms: number, question: string, details: unknown,
 *   approvers: string[], asked: number, was: Map<string, unknown>, facts: Fact[], isAnswered: boolean, answerRevision: number }} Asked
 */

/** Every entry that matches a pattern, at the moment. @param {string} pattern @param {AbortSignal} signal */
async function all (pattern, signal) {
  /** @type {Entry[]} */
  const found = []
  let after = /** @type {string | null} */ (null)
  do {
    const page = await board().list(pattern, { after, signal, ...(at.value === undefined ? {} : { at: at.value }) })
    found.push(...page.entries)
    after = page.next_key
  } while (after !== null)
  return found
}

/** What is asked at the moment. @param {AbortSignal} signal @returns {Promise<Asked[]>} */
async function requests (signal) {
  const [asked, answers] = await Promise.all([all(`${REQUESTS}/*/*`, signal), all(`${DECISIONS}/*/*`, signal)])
  const answered = new Map(answers.map(each => [each.key.slice(DECISIONS.length), each]))
  const found = asked.flatMap(entry => parsed(entry, answered))
  await Promise.all(found.filter(each => !each.isAnswered).map(each => compare(each.facts, signal)))
  return found
}

/** Look up what the facts of one request are at the moment. @param {Fact[]} facts @param {AbortSignal} signal */
async function compare (facts, signal) {
  const keys = [...new Set(facts.map(fact => fact.key).filter(key => mayAt('read', key)))]
  const now = keys.length === 0 ? new Map() : await board().entries(keys, { signal, ...(at.value === undefined ? {} : { at: at.value }) }).catch(error => {
    if (['invalid_request', 'limit_exceeded'].includes(error?.code)) return new Map() // an agent named what is no key
    throw error
  })
  for (const fact of facts) {
    const entry = now.get(fact.key)
    fact.now = entry?.value
    fact.isStale = (entry?.mod_revision ?? 0) !== fact.revision && printed([fact.now]) !== printed([fact.value])
  }
}

/**
 * A request, if the entry is one: others may write there, too.
 * @param {Entry} entry
 * @param {Map<string, Entry>} answered
 * @returns {Asked[]}
 */
function parsed ({ key, value, author, account, mod_revision, time_ms }, answered) {
  const [agent = '', id = ''] = key.slice(REQUESTS.length + 1).split('/')
  const given = answered.get(`/${agent}/${id}`)
  const approvers = Array.isArray(value?.approvers) ? value.approvers.map(textOf) : []
  if (typeof value?.question !== 'string' || author !== agent) return []
  const facts = (Array.isArray(value.facts) ? value.facts : []).filter((/** @type {any} */ fact) => typeof fact?.key === 'string')
  return [{
    agent,
    account,
    id,
    revision: mod_revision,
    time_ms,
    question: value.question,
    details: value.details,
    approvers,
    asked: numberOf(value.asked) || 1,
    was: new Map((Array.isArray(value.changed) ? value.changed : []).map((/** @type {any} */ each) => [each?.key, each?.was])),
    facts: facts.map((/** @type {any} */ fact) => ({ key: fact.key, revision: numberOf(fact.revision), value: fact.value, now: undefined, isStale: false })),
    isAnswered: given?.value?.request === mod_revision && mayAnswer(given, account || author, approvers),
    answerRevision: given?.mod_revision ?? 0
  }]
}

/**
 * Whether the agent accepts an answer of that author: from another account, and from an approver or a name narrowed from one.
 * @param {{ author: string, account: string }} given @param {string} asker an account @param {string[]} approvers empty: anybody
 */
function mayAnswer (given, asker, approvers) {
  const account = given.account || given.author
  const isAbove = (/** @type {string} */ name) => `${given.author}.`.startsWith(`${name}.`) && (`${name}.`.startsWith(`${account}.`) || name === given.author)
  return account !== asker && (approvers.length === 0 || approvers.some(isAbove))
}

/** @typedef {{ agent: string, id: string, by: string, revision: number, time_ms: number, approved: boolean, reason: string, after: RevisionEvent | null }} Answered */

/** The answers of late, and the commit in which the agent went on. @param {AbortSignal} signal @returns {Promise<Answered[]>} */
async function answers (signal) {
  const after = Math.max(head.peek().revision - LOOKED_BACK, head.peek().oldest - 1, 0)
  const log = await board().log({ after, limit: LOOKED_BACK, pattern: `${DECISIONS}/**`, signal })
  /** @type {Map<string, Answered>} */
  const open = new Map()
  /** @type {Answered[]} */
  const found = []
  for (const revised of log) {
    if (moment.peek() !== null && revised.revision > (moment.peek() ?? 0)) break
    for (const { kind, key, value } of revised.changes) {
      const [agent = '', id = ''] = key.slice(DECISIONS.length + 1).split('/')
      if (kind === 'put' && typeof value?.approved === 'boolean') {
        const one = { agent, id, by: revised.author, revision: revised.revision, time_ms: revised.time_ms, approved: value.approved, reason: textOf(value.reason), after: null }
        open.set(key, one)
        found.push(one)
      } else if (kind === 'delete') {
        const one = open.get(key)
        if (one !== undefined) one.after = revised
        open.delete(key)
      }
    }
  }
  return found.reverse().slice(0, ANSWERED_MAX)
}

/** What an answer rests on: facts that the reader may see, if the agent named keys. @param {Asked} asked @returns {[string, number][]} */
function grounds ({ facts }) {
  return facts.filter(({ key, revision }) => Number.isSafeInteger(revision) && revision > 0 && isPrefix(key) && mayAt('read', key))
    .slice(0, FACTS_MAX).map(({ key, revision }) => [key, revision])
}

/** @param {Asked} asked @param {boolean} approved */
async function answer (asked, approved) {
  const body = html`<p><${Agent} name=${asked.agent} /> asks: ${visible(asked.question)}</p>
    ${asked.facts.map(fact => html`<p><${Key} name=${fact.key} /> = ${preview(fact.now)}${fact.isStale ? html` <b>changed since it was asked</b>` : ''}</p>`)}
    <p class="dim">${approved ? 'The agent goes on, if none of these facts changed; else it asks again.' : 'The agent goes on without it, and reads your note.'}</p>`
  const note = await confirmed({
    title: `${approved ? 'Approve' : 'Reject'}: ${visible(asked.question)}`, body, verb: approved ? 'Approve' : 'Reject', harmful: !approved, note: 'Note for the agent'
  })
  if (note === null) return
  const key = `${REQUESTS}/${asked.agent}/${asked.id}`
  const answerKey = `${DECISIONS}/${asked.agent}/${asked.id}`
  await done(() => board().commit(
    [{ kind: 'put', key: answerKey, value: { approved, request: asked.revision, reason: note } }],
    {
      // An answer that somebody else gave meanwhile is not replaced.
      conditions: [{ kind: 'key_at', key, revision: asked.revision }, { kind: 'key_at', key: answerKey, revision: asked.answerRevision }],
      based_on: [[key, asked.revision], ...grounds(asked)],
      note: [...`${approved ? 'approved' : 'rejected'}: ${asked.question.slice(0, 2 * NOTE_MAX)}`].slice(0, NOTE_MAX).join('')
    }
  ), receipt => `${approved ? 'Approved' : 'Rejected'} at revision ${receipt.revision}.`)
}

export default function Approvals () {
  const facts = useRef(/** @type {ReadonlySet<string>} */ (new Set()))
  const count = useHits(row => row.changes.some(({ key }) => key.startsWith(REQUESTS) || key.startsWith(DECISIONS) || facts.current.has(key)))
  const inputs = [name.value, moment.value, epoch.value]
  const [asked, failure] = useLoaded(requests, inputs, count)
  facts.current = new Set(asked?.flatMap(each => each.facts.map(fact => fact.key)))
  const [answered] = useLoaded(answers, inputs, count)
  const open = asked?.filter(each => !each.isAnswered) ?? []
  return html`<section class="view approvals"><${Failure} text=${failure} />
    ${asked !== undefined && open.length === 0
      ? html`<${Empty} title=${moment.value === null ? 'No agent waits for you' : 'No agent waited for an answer then'}>An agent asks with <code>await ctx.approve("buy", facts=["public/price"])</code>, and may wait for days.<//>`
      : html`<ul class="cards" aria-label="Requests">${open.map(each => html`<${Card} key=${`${each.agent}/${each.id}`} asked=${each} />`)}</ul>`}
    ${!answered?.length ? '' : html`<h2>Answered</h2><table><thead><tr><th>agent</th><th>answer</th><th>by</th><th>time</th><th>note</th><th>what became of it</th></tr></thead>
      <tbody>${answered.map(each => html`<tr data-answered=${each.id}><td><${Agent} name=${each.agent} /></td><td class=${each.approved ? '' : 'bad'}>${each.approved ? 'approved' : 'rejected'}</td>
        <td><${Agent} name=${each.by} /></td><td><${Time} ms=${each.time_ms} /></td><td>${visible(each.reason)}</td>
        <td>${each.after === null ? html`<span class="dim">the agent has not gone on yet</span>` : html`went on at
          <button class="number" title="Look at this moment" onClick=${() => { moment.value = each.after?.revision ?? null }}>${each.after.revision}</button> ${visible(each.after.note)}`}</td></tr>`)}</tbody></table>`}
  </section>`
}

/** @param {{ asked: Asked }} props */
function Card ({ asked }) {
  const { agent, account } = theClient()
  const asker = asked.account || asked.agent
  const isAllowed = mayAt('approve', `${DECISIONS}/${asked.agent}/${asked.id}`)
  const can = moment.value === null && isAllowed && mayAnswer({ author: agent, account }, asker, asked.approvers)
  const why = account === asker ? 'Nobody approves their own request.' : moment.value !== null ? 'You look at the past.'
    : isAllowed ? 'Your answer would not count.' : 'Answering needs the right “approve”.'
  return html`<li class="card" data-request=${asked.id}>
    <p class="facts"><${Agent} name=${asked.agent} />${asked.account && asked.account !== asked.agent ? html`<span class="dim">of ${visible(asked.account)}</span>` : ''}
      <${Time} ms=${asked.time_ms} />${asked.asked > 1 ? html`<span>asked ${asked.asked} times: facts changed</span>` : ''}</p>
    <h2>${visible(asked.question)}</h2>
    ${asked.details === undefined || asked.details === null ? '' : html`<${Value} value=${asked.details} />`}
    ${asked.facts.length === 0 ? '' : html`<table><thead><tr><th>fact</th><th>as asked</th><th>now</th></tr></thead><tbody>${asked.facts.map(fact => html`<tr>
      <td><${Key} name=${fact.key} /></td><td>${fact.value === null || fact.value === undefined ? '' : preview(fact.value)}${asked.was.has(fact.key) ? html` <span class="dim">was ${preview(asked.was.get(fact.key))}</span>` : ''}</td>
      <td class=${fact.isStale ? 'bad' : ''}>${fact.now === undefined ? 'gone, or hidden from you' : preview(fact.now)}</td></tr>`)}</tbody></table>`}
    ${asked.approvers.length === 0 ? '' : html`<p class="dim">For ${asked.approvers.map(each => visible(each)).join(', ')}.</p>`}
    ${can
      ? html`<div class="row end"><button onClick=${() => answer(asked, false)}>Reject…</button><button class="main" onClick=${() => answer(asked, true)}>Approve…</button></div>`
      : html`<p class="dim">${why}</p>`}</li>`
}
