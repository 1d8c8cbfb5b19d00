// Leases: who holds which lock, who waits, until when; and the tasks that agents have claimed.
import { html, useEffect, useState } from '../vendor/preact.js'
import { Agent, Empty, Failure, Key, useHits, useLoaded } from '../parts.js'
import { leasesAt, LOOKED_BACK } from '../leases.js'
import { board, epoch, moment, name } from '../store.js'
import { grouped, visible } from '../values.js'

const AGAIN_MS = 2000
const IDENTITY = '/~identity'

/** The seconds until a time, or since it. @param {{ until_ms: number, now_ms: number }} props */
function Until ({ until_ms, now_ms }) {
  if (!until_ms) return html`<span class="dim">unknown</span>`
  const seconds = Math.ceil((until_ms - now_ms) / 1000)
  return html`<span title="It is renewed while its holder lives">${seconds > 0 ? `${seconds} s` : 'running out'}</span>`
}

export default function Holders () {
  const hits = useHits(row => row.epoch !== null || row.changes.some(({ kind, key }) => !['put', 'delete'].includes(kind) || key.includes('/~tries/')))
  const [turns, setTurns] = useState(0)
  // Renewals are in no log: the time that is left is asked for again.
  useEffect(() => {
    const timer = setInterval(() => { if (moment.peek() === null && document.visibilityState === 'visible') setTurns(before => before + 1) }, AGAIN_MS)
    return () => clearInterval(timer)
  }, [])
  const inputs = [name.value, moment.value, epoch.value]
  const [leases, failure] = useLoaded(signal => leasesAt(moment.value, signal), inputs, hits + turns)
  const [claims, noClaims] = useLoaded(signal => moment.value === null ? board().claims('public/**', { signal }) : Promise.resolve([]), inputs, hits + turns)
  const now_ms = Date.now()
  const isPast = moment.value !== null
  return html`<section class="view holders"><${Failure} text=${failure} />
    <h2>Leases</h2>
    ${leases !== undefined && leases.length === 0
      ? html`<${Empty} title=${isPast ? 'Nobody held anything then' : 'Nobody holds anything'}>An agent takes a lock with <code>async with board.lock("public/deploy")</code>.<//>`
      : html`<table><thead><tr><th>key</th><th>holder</th><th class="num">fence</th>${isPast ? '' : html`<th>runs out in</th>`}<th>waiting</th></tr></thead>
        <tbody>${(leases ?? []).map(lease => html`<tr key=${lease.key} data-lease=${lease.key}>
          <td><${Key} name=${lease.key} />${lease.key.endsWith(IDENTITY) ? html` <span class="badge">identity</span>` : ''}</td>
          <td><${Agent} name=${lease.holder} /></td><td class="num">${lease.fence}</td>
          ${isPast ? '' : html`<td><${Until} until_ms=${lease.until_ms} now_ms=${now_ms} /></td>`}
          <td>${(lease.waiters ?? []).map((waiter, i) => html`${i ? ', ' : ''}<${Agent} name=${waiter.holder} />`)}</td></tr>`)}</tbody></table>`}
    ${isPast ? '' : html`<h2>Claimed tasks</h2><${Failure} text=${noClaims} />
      ${claims !== undefined && claims.length === 0
        ? html`<p class="dim">None. An agent takes one with <code>async with board.claim("public/tasks/*")</code>.</p>`
        : html`<table><thead><tr><th>task</th><th>state</th><th>holder</th><th class="num">tries</th><th>last error</th></tr></thead>
          <tbody>${(claims ?? []).map(claim => html`<tr key=${claim.key} data-claim=${claim.key}><td><${Key} name=${claim.key} /></td>
            <td><span class="badge ${claim.state === 'dead' ? 'bad' : ''}">${claim.state}</span></td><td>${claim.holder ? html`<${Agent} name=${claim.holder} />` : ''}</td>
            <td class="num">${claim.tries}</td><td>${visible(claim.last_error)}</td></tr>`)}</tbody></table>`}`}
    ${isPast ? html`<p class="dim">Locks that were taken more than ${grouped(LOOKED_BACK)} revisions before, and are free now, are not found.</p>` : ''}
  </section>`
}
