// Act on the whole board: checkpoint, restore, rewind, branch, prune, freeze. Each with what will change
// before it changes, and a question that names it.
import { html, useEffect, useState } from '../vendor/preact.js'
import { Agent, confirmed, Differences, done, Empty, Failure, useLoaded } from '../parts.js'
import { go } from '../route.js'
import { may, theClient } from '../session.js'
import { board, checkpoints, epoch, head, moment, name, onChange, recount, settled } from '../store.js'
import { grouped, visible } from '../values.js'

/** Keys of a preview; the rest are counted. */
const KEYS_MAX = 200
const FROZEN_KEY = 'system/frozen'

export default function Act () {
  const any = may('checkpoint') || may('restore') || may('admin')
  if (!any) {
    return html`<section class="view"><${Empty} title="Your token can read, but not act on the whole board">
      That needs the right to checkpoint, restore or administrate all of it.<//></section>`
  }
  return html`<section class="view act">
    ${may('checkpoint') ? html`<${Take} />` : ''}
    <${Return} />
    ${may('admin') ? html`<${Prune} /><${Freezing} />` : ''}
  </section>`
}

/** @param {{ title: string, children?: unknown }} props */
function Card ({ title, children }) { return html`<div class="card"><h2>${title}</h2>${children}</div>` }

function Take () {
  const [text, setText] = useState('')
  /** @param {Event} event */
  const take = async event => {
    event.preventDefault()
    const note = await confirmed({
      title: `Take checkpoint “${text}” of board ${name.value}?`,
      body: html`<p>It names revision ${grouped(head.value.revision)}, with every agent's private state, for good. Nobody is stopped.</p>`,
      verb: 'Take it',
      note: 'Note'
    })
    if (note === null) return
    const taken = await done(() => board().checkpoint(text, { note }), found => `Checkpoint ${found.name} is revision ${found.revision}.`)
    if (taken !== undefined) setText('')
    await recount()
  }
  return html`<${Card} title="Take a checkpoint"><form class="row" onSubmit=${take}>
    <label class="grow"><span>Name</span><input value=${text} required pattern="[A-Za-z0-9._~\\-]{1,128}" placeholder="before-the-slip"
      title="letters, digits, dots, dashes" onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
    <button class="main" disabled=${text === ''}>Take it…</button></form><//>`
}

/** Restore, rewind and branch: from the moment that is looked at, or a checkpoint. */
function Return () {
  const named = checkpoints.value.slice(-100).reverse()
  const [chosen, setChosen] = useState('')
  const to = chosen !== '' ? chosen : moment.value ?? named[0]?.name ?? ''
  const [branch, setBranch] = useState('')
  const [compared, failure] = useLoaded(async signal => {
    if (to === '') return null
    const [diff, leases] = await Promise.all([board().diff('now', to, { limit: KEYS_MAX, signal }), board().leases('**', { signal })])
    return { to, diff, leases }
  }, [name.value, to, epoch.value], settled.value)
  const loaded = compared?.to === to ? compared : null // not the comparison with another moment
  const words = typeof to === 'number' ? `revision ${grouped(to)}` : `checkpoint “${to}”`
  const takeBack = async () => {
    if (!loaded) return
    const note = await confirmed({
      title: `Take board ${name.value} back to ${words}?`,
      body: html`<${Differences} diff=${loaded.diff} /><p>Every lease ends (${loaded.leases.length} now), and agents that go on from the abandoned
        future are refused until they look again. That future stays readable, and can be restored in turn.</p>`,
      verb: `Take it back to ${words}`,
      harmful: true,
      note: 'Note'
    })
    if (note === null) return
    const restored = await done(() => board().restore(to, { note }), found => `The board is as of revision ${found.from_revision} again: ${found.put_back} keys put back, ${found.removed} removed. Before it: checkpoint ${found.before}.`)
    if (restored !== undefined) { moment.value = null; setChosen('') }
  }
  const fork = async () => {
    const note = await confirmed({
      title: `Make board “${branch}”?`,
      body: html`<p>It begins with the content of ${name.value} at ${words}, private state included. ${name.value} stays as it is.</p>`,
      verb: `Make board ${branch}`,
      note: 'Note'
    })
    if (note === null) return
    const made = await done(() => board().branch(branch, { at: to, note }), () => `Board ${branch} is there.`)
    if (made !== undefined) go({ board: branch, view: 'lanes' })
  }
  return html`<${Card} title="Take the whole team back, or begin a second future">
    ${to === '' ? html`<p class="dim">There is no checkpoint yet. Take one, or drag the slider to the moment to go back to.</p>` : html`
    <label><span>To</span><select value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>
      <option value="">${moment.value === null ? 'the newest checkpoint' : `revision ${grouped(moment.value)}, that you look at`}</option>
      ${named.map(each => html`<option value=${each.name}>${each.name} (revision ${grouped(each.revision)})</option>`)}</select></label>
    <${Failure} text=${failure} />
    ${loaded ? html`<${Differences} diff=${loaded.diff} />` : html`<p class="dim">Comparing…</p>`}
    <div class="row wrap">
      ${may('restore') ? html`<button class="harmful" disabled=${!loaded || loaded.diff.changes.length === 0} onClick=${takeBack}>Take it back…</button>` : ''}
      ${may('checkpoint') ? html`<label><span class="quiet">or branch as</span><input value=${branch} placeholder="name of the new board" aria-label="Name of the new board"
        onInput=${(/** @type {any} */ event) => setBranch(event.target.value)} /></label>
        <button disabled=${!/^[A-Za-z0-9._~-]{1,128}$/.test(branch)} onClick=${fork}>Branch…</button>` : ''}
    </div>`}<//>`
}

function Prune () {
  const [last, setLast] = useState(10)
  const [days, setDays] = useState(7)
  const prune = async () => {
    const policy = { last, days, named: true }
    const plan = await done(() => board().prune({ ...policy, dry_run: true }), found => `${found.removed.length} checkpoints would go.`)
    if (plan === undefined) return
    const note = await confirmed({
      title: `Remove ${plan.removed.length} checkpoints of board ${name.value} for good?`,
      body: plan.removed.length === 0
        ? html`<p>The policy keeps all ${plan.kept.length} of them. ${plan.versions} old versions of keys would go.</p>`
        : html`<p>${plan.removed.slice(0, 40).map(visible).join(', ')}${plan.removed.length > 40 ? ' …' : ''}, and the history that only they need. ${plan.kept.length} stay.</p>`,
      verb: `Remove ${plan.removed.length}`,
      harmful: true
    })
    if (note !== null) await done(() => board().prune(policy), found => `${found.removed.length} checkpoints are gone.`)
    await recount()
  }
  /** @param {(number: number) => void} set */
  const number = set => (/** @type {any} */ event) => set(Math.max(0, Number(event.target.value) || 0))
  return html`<${Card} title="Prune"><p class="dim">Keeps what was named or pinned, and of the automatic ones:</p><div class="row wrap">
    <label><span>the last</span><input type="number" min="0" max="10000" value=${last} onInput=${number(setLast)} /></label>
    <label><span>one a day, for days</span><input type="number" min="0" max="10000" value=${days} onInput=${number(setDays)} /></label>
    <button onClick=${prune}>See what would go…</button></div><//>`
}

function Freezing () {
  const [count, setCount] = useState(0)
  useEffect(() => onChange(rows => {
    if (rows.some(row => row.changes.some(change => change.key === FROZEN_KEY))) setCount(before => before + 1)
  }), [])
  const [frozen, failure] = useLoaded(signal => board().entry(FROZEN_KEY, { signal }), [name.value, epoch.value], count)
  const isFrozen = frozen !== undefined && frozen !== null
  const turn = async () => {
    const note = await confirmed({
      title: isFrozen ? `Thaw board ${name.value}?` : `Freeze board ${name.value}?`,
      body: isFrozen ? html`<p>Agents can commit again at once.</p>` : html`<p>Every commit of every agent is refused until somebody thaws it. Reading goes on.</p>`,
      verb: isFrozen ? 'Thaw it' : 'Freeze it',
      harmful: !isFrozen,
      note: 'Note'
    })
    if (note === null) return
    const options = { board: name.value, note }
    if (isFrozen) await done(() => theClient().thaw(options), () => 'The board takes commits again.')
    else await done(() => theClient().freeze(options), found => `The board is frozen since revision ${found.revision}.`)
    setCount(before => before + 1)
  }
  return html`<${Card} title=${isFrozen ? 'The board is frozen' : 'Freeze'}><${Failure} text=${failure} />
    <p class="dim">${isFrozen ? html`By <${Agent} name=${String(frozen.value?.by ?? frozen.author)} />${frozen.value?.note ? `: ${visible(String(frozen.value.note))}` : ''}` : 'For an incident: nothing changes until it is understood.'}</p>
    <div><button class=${isFrozen ? 'main' : 'harmful'} onClick=${turn}>${isFrozen ? 'Thaw…' : 'Freeze…'}</button></div><//>`
}
