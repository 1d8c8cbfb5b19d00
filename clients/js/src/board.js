// The board: the interface of programs.
//
// A Board holds only its writer's identity; the service behind its channel answers. Names of members
// and options are those of the protocol. Every call takes `signal`: when it aborts, the call throws its
// reason, and a change that was sent may have been made.
import {
  Conflict, InvalidRequest, LimitExceeded, LocalProtocolError, RemoteProtocolError
} from './errors.js'
import { Claim, claims } from './claim.js'
import {
  CHECKPOINTS_PAGE_MAX, CLAIM_TRIES_MAX, DIFF_KEYS_MAX, FENCES_MAX, HISTORY_VERSIONS_MAX, LEASE_TTL_MS, LIST_ENTRIES_MAX,
  LOG_ENTRIES_MAX, OPERATIONS_MAX, STEP_ATTEMPTS_MAX
} from './limits.js'
import { Lock } from './lock.js'
import { merged } from './merge.js'
import { encodeValue } from './msgpack.js'
import { documentOf, namespaceOf } from './paths.js'
import { entriesOf, entryOf, given, momentOf, revisionOf, versionOf } from './records.js'
import { Step } from './step.js'
import { randomHex } from './waiting.js'
import { Watch, checkPosition } from './watch.js'
import { Writer } from './writer.js'

/** @import { Channel } from './channel.js' */
/** @import { Claimed, Task } from './claim.js' */
/** @import { ActivityResult, Checkpoint, EntryMessage, HeadResult, RefusedCommit, HeldFence, LeaseMessage, PruneResult, RestoreResult, VerifyResult, ManifestResult, CauseMessage } from './methods.js' */
/** @import { Entry, Listing, Moment, RevisionEvent, Version } from './records.js' */
/** @import { Condition, Op, Receipt } from './writer.js' */
/** @import { WatchOptions } from './watch.js' */

/** @typedef {{ signal?: AbortSignal }} Abortable */
/** @typedef {{ key: string, before: Entry | null, after: Entry | null }} Difference */
/** @typedef {{ a: number, b: number, changes: Difference[], more: boolean }} Diff */
/**
 * What a commit carries besides its operations.
 * @typedef {object} CommitOptions
 * @property {Condition[]} [conditions]
 * @property {HeldFence[]} [fences]
 * @property {[string, number][]} [based_on]
 * @property {string} [note]
 * @property {AbortSignal} [signal]
 */

/** One board, seen and changed by one agent. */
export class Board {
  /**
   * @param {Channel} channel
   * @param {string} name
   * @param {string | null} [agent] whom it acts as; null = the connection's own
   * @param {{ writer?: Writer, fences?: HeldFence[] }} [shared]
   */
  constructor (channel, name, agent = null, shared = {}) {
    this.name = name
    this._channel = channel
    this._writer = shared.writer ?? new Writer(channel, name, agent)
    /** Leases on which every commit relies: those of a lock. @type {ReadonlyArray<HeldFence>} */
    this.fences = shared.fences ?? []
    /** @type {Map<string, Board>} */
    this._agents = new Map()
  }

  /** The name under which this board is changed. */
  get agent () { return this._writer.agent }

  /**
   * The same board with the name and the rights of `agent`; it needs its own `refresh`. Its commits rely
   * on the locks of this one whose keys are public. Throws (on use) AccessDenied unless you are `agent`,
   * or an operator.
   * @param {string} agent
   * @returns {Board}
   */
  asAgent (agent) {
    if (agent === this.agent) return this
    const known = this._agents.get(agent)
    if (known !== undefined) return known
    const fences = this.fences.filter(({ key }) => namespaceOf(key) === 'public')
    const board = new Board(this._channel, this.name, agent, { fences })
    this._agents.set(agent, board)
    return board
  }

  /**
   * The same board, whose commits also rely on `fences`.
   * @param {HeldFence[]} fences
   * @returns {Board}
   */
  relyingOn (fences) {
    return new Board(this._channel, this.name, null, { writer: this._writer, fences: [...this.fences, ...fences] })
  }

  // --- reading ------------------------------------------------------------------------------------

  /**
   * The value at `key`, or `fallback` when it is absent; with `at`, as it was then.
   * @param {string} key
   * @param {{ at?: Moment, fallback?: any } & Abortable} [options]
   * @returns {Promise<any>}
   */
  async get (key, options = {}) {
    const entry = await this.entry(key, options)
    return entry === null ? options.fallback ?? null : entry.value
  }

  /**
   * The entry at `key` with its revisions and author, or null when it is absent.
   * @param {string} key
   * @param {{ at?: Moment } & Abortable} [options]
   * @returns {Promise<Entry | null>}
   */
  async entry (key, options = {}) { return (await this.entries([key], options)).get(key) ?? null }

  /**
   * Up to READ_KEYS_MAX entries by key, all as of one revision; absent keys are left out.
   * @param {ReadonlyArray<string>} keys
   * @param {{ at?: Moment } & Abortable} [options]
   * @returns {Promise<Map<string, Entry>>}
   */
  async entries (keys, { at, signal } = {}) {
    const params = given({ ...this._writer.scope, keys: [...keys], at: at === undefined ? undefined : momentOf(at) })
    const reading = await this._channel.look('read', params, signal)
    const entries = entriesOf(reading.entries)
    this._writer.saw(reading.revision, at === undefined ? reading.epoch : '')
    return new Map(entries.map(entry => [entry.key, entry]))
  }

  /**
   * The entry at `key` with its encoded value, to be written again as it is: decoded and encoded here,
   * 1.0 becomes 1. Null when it is absent.
   * @param {string} key
   * @param {AbortSignal} [signal]
   * @returns {Promise<EntryMessage | null>}
   */
  async stored (key, signal) {
    const reading = await this._channel.look('read', { ...this._writer.scope, keys: [key] }, signal)
    entriesOf(reading.entries) // what is no entry is refused
    this._writer.saw(reading.revision, reading.epoch)
    return reading.entries.find(entry => entry.key === key) ?? null
  }

  /**
   * A page of the entries that match `pattern` (`public/plan/**`), in key order; with `reverse` from the last key on,
   * before `after`. With `keys_only` each value is null: it is neither read nor sent. With `delimiter` "/" (and
   * `PREFIX/**`) only what lies directly below the prefix: deeper keys are counted, in `directories`, up to 1,000 in
   * each, then there are `more`; `limit` counts both.
   * @param {string} pattern
   * @param {{ after?: string | null, limit?: number, at?: Moment, reverse?: boolean, keys_only?: boolean, delimiter?: '/' } & Abortable} [options]
   * @returns {Promise<Listing>}
   */
  async list (pattern, { after, limit = LIST_ENTRIES_MAX, at, reverse, keys_only, delimiter, signal } = {}) {
    const moment = at === undefined ? undefined : momentOf(at)
    const params = given({ ...this._writer.scope, pattern, after: after ?? undefined, limit, at: moment, reverse, keys_only, delimiter })
    const reading = await this._channel.look('list', params, signal)
    const entries = entriesOf(reading.entries)
    this._writer.saw(reading.revision, at === undefined ? reading.epoch : '')
    return { revision: reading.revision, entries, next_key: reading.next_key ?? null, directories: reading.directories ?? [] }
  }

  /**
   * All entries that match, as of `at`; without it pages may be of different revisions.
   * @param {string} pattern
   * @param {{ at?: Moment, reverse?: boolean, keys_only?: boolean } & Abortable} [options]
   * @returns {AsyncGenerator<Entry, void>}
   */
  async * scan (pattern, { at, reverse, keys_only, signal } = {}) {
    /** @type {string | null} */
    let after = null
    do {
      /** @type {Listing} */
      const page = await this.list(pattern, given({ after, at, reverse, keys_only, signal }))
      yield * page.entries
      after = page.next_key
      if (at !== undefined) at = page.revision
    } while (after !== null)
  }

  /**
   * The head of the board: its revision, its epoch, and the oldest revision in its log.
   * @param {Abortable} [options]
   * @returns {Promise<HeadResult>}
   */
  async head ({ signal } = {}) {
    const head = await this._channel.look('head', this._writer.scope, signal)
    this._writer.saw(head.revision, head.epoch.id)
    return head
  }

  /**
   * Revisions after `after`, oldest first, with what you may see of each.
   * @param {{ after?: number, limit?: number, pattern?: string, author?: string, since?: Moment } & Abortable} [options]
   * @returns {Promise<RevisionEvent[]>}
   */
  async log ({ after = 0, limit = LOG_ENTRIES_MAX, pattern, author, since, signal } = {}) {
    after = Math.max(after, await this._revisionAt(since, signal) ?? 0)
    /** @type {RevisionEvent[]} */
    const found = []
    const filtered = pattern !== undefined || author !== undefined
    while (found.length < limit) {
      const most = filtered ? LOG_ENTRIES_MAX : Math.min(limit - found.length, LOG_ENTRIES_MAX)
      const params = given({ ...this._writer.scope, after, limit: most, pattern, author })
      const page = await this._channel.look('log', params, signal)
      for (const revision of page.revisions) found.push(revisionOf(revision))
      this._writer.saw(page.through, page.head.epoch.id)
      if (page.through <= after || page.through >= page.head.revision) break
      after = page.through
    }
    return found.slice(0, limit)
  }

  /**
   * How many commits that you may see each agent made after revision `after`, up to `until` (by default
   * now), counted in `parts` of that span.
   * @param {{ after?: number, until?: number, parts?: number } & Abortable} [options]
   * @returns {Promise<ActivityResult>}
   */
  async activity ({ after, until, parts, signal } = {}) {
    return await this._channel.look('activity', given({ ...this._writer.scope, after, until, parts }), signal)
  }

  /**
   * The newest refused commits that you may see, above number `after`, as far as the process of the
   * service that answers remembers them.
   * @param {{ after?: number } & Abortable} [options]
   * @returns {Promise<RefusedCommit[]>}
   */
  async refusals ({ after, signal } = {}) {
    return await this._channel.look('refusals', given({ ...this._writer.scope, after }), signal)
  }

  /**
   * The commits that led to what `key` holds, nearest first.
   * @param {string} key
   * @param {Abortable} [options]
   * @returns {Promise<CauseMessage[]>}
   */
  async why (key, { signal } = {}) { return await this._channel.look('why', { ...this._writer.scope, key }, signal) }

  /**
   * The versions of `key`, the newest first; at most `limit`, `before` continues. With `author` those
   * that this agent wrote, with `since` those after that moment.
   * @param {string} key
   * @param {{ before?: number, limit?: number, author?: string, since?: Moment } & Abortable} [options]
   * @returns {Promise<Version[]>}
   */
  async history (key, { before, limit = HISTORY_VERSIONS_MAX, author, since, signal } = {}) {
    const after = await this._revisionAt(since, signal)
    /** @type {Version[]} */
    const found = []
    while (true) {
      const params = given({ ...this._writer.scope, key, before, limit: found.length === 0 ? limit : Number(limit) - found.length, after, author })
      const page = (await this._channel.look('history', params, signal)).map(versionOf)
      found.push(...page)
      const oldest = page.at(-1)
      if (oldest === undefined || found.length >= limit) return found
      before = oldest.revision // a page ends early behind large values
    }
  }

  /**
   * The revision of a moment.
   * @param {Moment | undefined} moment
   * @param {AbortSignal} [signal]
   * @returns {Promise<number | undefined>}
   */
  async _revisionAt (moment, signal) {
    if (moment === undefined || typeof moment === 'number') return moment
    const params = { ...this._writer.scope, keys: [], at: momentOf(moment) }
    return (await this._channel.look('read', params, signal)).revision
  }

  // --- writing ------------------------------------------------------------------------------------

  /**
   * Set `key` to `value` (JSON types, Uint8Array, BigInt). With `expected` only if the key's
   * mod_revision is that (0 = only if absent, -1 = only if present), else Conflict.
   * @param {string} key
   * @param {any} value
   * @param {{ expected?: number, ttl_ms?: number, note?: string } & Abortable} [options]
   * @returns {Promise<Receipt>}
   */
  async put (key, value, { expected, ttl_ms, note, signal } = {}) {
    /** @type {Op} */
    const op = given({ kind: 'put', key, value: encodeValue(value), ttl_ms })
    return await this.send([op], given({ conditions: expecting(key, expected), note, signal }))
  }

  /**
   * Remove `key`; false when it was absent. `expected` as in `put`.
   * @param {string} key
   * @param {{ expected?: number } & Abortable} [options]
   * @returns {Promise<boolean>}
   */
  async delete (key, { expected, signal } = {}) {
    const receipt = await this.send([{ kind: 'delete', key }], given({ conditions: expecting(key, expected), signal }))
    return receipt.results[0] === 1
  }

  /**
   * Remove every key below `prefix`; returns them. Up to OPERATIONS_MAX go at once; more go in several
   * commits, and `progress` is called with the number of those that are gone. After an error, the next
   * call continues.
   * @param {string} prefix
   * @param {{ progress?: (gone: number) => void } & Abortable} [options]
   * @returns {Promise<string[]>}
   */
  async deletePrefix (prefix, { progress, ...options } = {}) {
    /** @type {string[]} */
    const gone = []
    for (;;) {
      try {
        return [...gone, ...(await this.send([{ kind: 'delete_prefix', prefix }], options)).results[0]]
      } catch (error) {
        if (!(error instanceof LimitExceeded) || error.limit !== 'OPERATIONS_MAX') throw error
        const page = await this.list(`${prefix}/**`, { limit: OPERATIONS_MAX, ...options })
        if (page.entries.length === 0) throw error
        gone.push(...await this._deletePage(page.entries.map(({ key }) => key), options))
        progress?.(gone.length)
      }
    }
  }

  /**
   * Remove `keys`, and the documents of which some are parts: a document is removed as a whole only.
   * @param {string[]} keys
   * @param {CommitOptions} options
   * @returns {Promise<string[]>}
   */
  async _deletePage (keys, options) {
    const gone = keys.filter(key => documentOf(key) === null)
    if (gone.length > 0) await this.send(gone.map(key => ({ kind: 'delete', key })), options)
    for (const document of new Set(keys.map(documentOf))) {
      if (document === null) continue
      gone.push(...(await this.send([{ kind: 'delete_prefix', prefix: `${document}/~doc` }], options)).results[0])
    }
    return gone
  }

  /**
   * Let the entry at `key` expire after `ttl_ms` from now on (null: never); its value stays. This is a
   * revision of its own. Throws Conflict when the key is absent, or when others change it all the time.
   * @param {string} key
   * @param {{ ttl_ms: number | null } & Abortable} options
   * @returns {Promise<Receipt>}
   */
  async touch (key, { ttl_ms, signal }) {
    for (let left = this._channel.limits.merge_attempts_max; ; left--) {
      const entry = await this.stored(key, signal)
      if (entry === null) throw new Conflict({ key, expected: -1, actual: 0 })
      /** @type {Op} */
      const op = given({ kind: 'put', key, value: entry.value, ttl_ms: ttl_ms ?? undefined })
      try {
        return await this.send([op], given({ conditions: expecting(key, entry.mod_revision), signal }))
      } catch (error) {
        if (!(error instanceof Conflict) || left <= 1) throw error
      }
    }
  }

  /**
   * Add `value` as the next item below `prefix`; returns the item's key.
   * @param {string} prefix
   * @param {any} value
   * @param {{ ttl_ms?: number } & Abortable} [options]
   * @returns {Promise<string>}
   */
  async append (prefix, value, { ttl_ms, signal } = {}) {
    /** @type {Op} */
    const op = given({ kind: 'append', prefix, value: encodeValue(value), ttl_ms })
    return (await this.send([op], given({ signal }))).results[0]
  }

  /**
   * Add `by` to the integer at `key` (absent = 0) and return the sum.
   * @param {string} key
   * @param {number} [by]
   * @param {Abortable} [options]
   * @returns {Promise<number>}
   */
  async increment (key, by = 1, options = {}) {
    return (await this.send([{ kind: 'increment', key, by }], options)).results[0]
  }

  /**
   * Apply a JSON merge patch (RFC 7396) to `key`; returns the new value. The patch is applied here and
   * committed only if the key did not change in between; otherwise it is applied again, up to
   * `merge_attempts_max` times. Then the last Conflict is thrown.
   * @param {string} key
   * @param {any} patch
   * @param {Abortable} [options]
   * @returns {Promise<any>}
   */
  async merge (key, patch, options = {}) {
    encodeValue(patch) // refuses what nests too deep to be applied
    for (let left = this._channel.limits.merge_attempts_max - 1; ; left--) {
      const entry = await this.entry(key, options)
      const value = merged(entry?.value, patch)
      try {
        await this.put(key, value, { ...options, expected: entry?.mod_revision ?? 0 })
        return value
      } catch (error) {
        if (!(error instanceof Conflict) || left <= 0) throw error
      }
    }
  }

  /**
   * Carry out all of `ops` as one revision, exactly once, if every condition holds. The operations are
   * those of the protocol, with plain values: `{ kind: 'put', key, value }`.
   *
   * Throws Conflict, Fenced and the other kinds of Rejected: nothing changed. Unavailable: not applied.
   * OutcomeUnknown: sent, but no service could be reached within `commit_timeout_ms`.
   * @param {ReadonlyArray<any>} ops
   * @param {CommitOptions} [options]
   * @returns {Promise<Receipt>}
   */
  async commit (ops, options = {}) { return await this.send(ops.map(encodedOp), options) }

  /**
   * As `commit`, of operations whose values are encoded already.
   * @param {Op[]} ops
   * @param {CommitOptions} [options]
   * @returns {Promise<Receipt>}
   */
  async send (ops, { signal, ...rest } = {}) {
    const fences = [...(rest.fences ?? []), ...this.fences]
    return await this._writer.commit(given({ ...rest, ops, fences: fences.length > 0 ? fences : undefined }), signal)
  }

  /**
   * One step: tracked reads, gathered writes, one commit when `body` has ended. With `validate` (the
   * default) the commit is refused (Conflict) if anything that was read has changed.
   * @template T
   * @param {(step: Step) => T | Promise<T>} body
   * @param {{ validate?: boolean, note?: string } & Abortable} [options]
   * @returns {Promise<T>}
   */
  async step (body, options = {}) { return await this.newStep(options).run(body) }

  /**
   * A step to be run by `Step.run`.
   * @param {{ validate?: boolean, note?: string } & Abortable} [options]
   * @returns {Step}
   */
  newStep ({ validate = true, note = '', signal } = {}) {
    return new Step(this, { validate, note, check: this._writer.standing(), signal })
  }

  /**
   * As `step`; on a Conflict `body` runs again on fresh state. Throws the last Conflict after
   * `attempts` runs; whatever `body` throws, and nothing was committed then.
   * @template T
   * @param {(step: Step) => T | Promise<T>} body
   * @param {{ attempts?: number, validate?: boolean, note?: string } & Abortable} [options]
   * @returns {Promise<T>}
   */
  async runStep (body, { attempts = STEP_ATTEMPTS_MAX, ...options } = {}) {
    if (!(attempts >= 1)) {
      throw new InvalidRequest({ field: 'attempts', reason: `${attempts} is below 1: write how often to run it` })
    }
    for (let left = attempts - 1; ; left--) {
      try {
        return await this.step(body, options)
      } catch (error) {
        if (!(error instanceof Conflict) || left <= 0) throw error
      }
    }
  }

  /**
   * Accept the board as it is now, after a StaleEpoch: continue in its present epoch. A step in
   * progress is refused.
   * @param {Abortable} [options]
   */
  async refresh ({ signal } = {}) {
    const head = await this._channel.look('head', this._writer.scope, signal)
    this._writer.take(head.epoch, head.revision)
  }

  // --- leases -------------------------------------------------------------------------------------

  /**
   * The leases whose keys match `pattern` and may be read, with their queues.
   * @param {string} [pattern]
   * @param {Abortable} [options]
   * @returns {Promise<LeaseMessage[]>}
   */
  async leases (pattern = '**', { signal } = {}) {
    /** @type {LeaseMessage[]} */
    const found = []
    /** @type {string | undefined} */
    let after
    do {
      const params = given({ ...this._writer.scope, pattern, after, limit: LIST_ENTRIES_MAX })
      const page = await this._channel.look('leases', params, signal)
      this._writer.saw(page.revision, page.epoch)
      found.push(...page.leases)
      after = page.next_key
    } while (after !== undefined)
    return found
  }

  /**
   * Hold the leases of `keys`, all or none, while `body` runs; wait in a queue if they are held. What
   * `body` writes through `lock.board` relies on them, and is Fenced if they were lost. They are
   * renewed meanwhile; if this process dies, they are free after `ttl_ms`.
   *
   * Throws LeaseHeld after `timeout_ms` (0: at once; null: waits for ever). LeaseLost when a lease was
   * lost in the middle, unless `body` throws; `lock.signal` is aborted when that is noticed.
   * @template T
   * @param {ReadonlyArray<string> | string} keys
   * @param {(lock: Lock) => T | Promise<T>} body
   * @param {{ ttl_ms?: number, timeout_ms?: number | null } & Abortable} [options]
   * @returns {Promise<T>}
   */
  async withLock (keys, body, { ttl_ms = LEASE_TTL_MS, timeout_ms = null, signal } = {}) {
    const wanted = typeof keys === 'string' ? [keys] : keys
    const twice = this.fences.find(fence => wanted.includes(fence.key))
    if (twice !== undefined) {
      throw new LocalProtocolError({ reason: `${twice.key} is held here already; locks are not re-entrant` })
    }
    const count = this.fences.length + new Set(wanted).size
    if (count > FENCES_MAX) throw new LimitExceeded({ limit: 'FENCES_MAX', value: count, maximum: FENCES_MAX, where: 'keys' })
    return await new Lock(this, this._writer, wanted, { ttl_ms, timeout_ms, signal }).run(body)
  }

  /**
   * Take one entry that matches `pattern`, in key order, and work on it, alone, while `body` runs; wait
   * for one at most `timeout_ms` (0: not; null: for ever). When `body` has ended, one commit removes the
   * entry and does what was requested through the task. If `body` throws, the entry is returned,
   * `task.delay_ms` later; after `tries_max` attempts it is moved to `<namespace>/~dead/...`. If this
   * process dies, the entry is free again after `ttl_ms`, which is renewed meanwhile.
   *
   * Throws NothingToClaim after `timeout_ms`. LeaseLost when another agent may have the entry: nothing
   * that was requested through the task happens; `task.signal` is aborted when that is noticed.
   * @template T
   * @param {string} pattern
   * @param {(task: Task) => T | Promise<T>} body
   * @param {{ ttl_ms?: number, timeout_ms?: number | null, tries_max?: number } & Abortable} [options]
   * @returns {Promise<T>}
   */
  async withClaim (pattern, body, { ttl_ms = LEASE_TTL_MS, timeout_ms = null, tries_max = CLAIM_TRIES_MAX, signal } = {}) {
    return await new Claim(this, this._writer, pattern, { ttl_ms, timeout_ms, tries_max, signal }).run(body)
  }

  /**
   * Entries that match, were claimed, and are not done; dead letters come last.
   * @param {string} [pattern]
   * @param {Abortable} [options]
   * @returns {Promise<Claimed[]>}
   */
  async claims (pattern = 'public/**', { signal } = {}) { return await claims(this, pattern, signal) }

  // --- watching -----------------------------------------------------------------------------------

  /**
   * Watch the changes of keys that match one of `patterns`. The watch is open when this returns.
   * @param {ReadonlyArray<string> | string} patterns
   * @param {WatchOptions} [options]
   * @returns {Promise<Watch>}
   */
  async watch (patterns, options = {}) {
    if (typeof options.after === 'string') checkPosition(options.after)
    return await new Watch(this._writer, typeof patterns === 'string' ? [patterns] : [...patterns], options).open()
  }

  // --- checkpoints --------------------------------------------------------------------------------

  /**
   * Name the present revision: one consistent cut of everything on the board. Throws Conflict when the
   * name is taken, BarrierMissed when an agent did not deliver its state within `barrier_ms`.
   * @param {string} name
   * @param {{ note?: string, barrier_ms?: number, stale_ok?: boolean } & Abortable} [options]
   * @returns {Promise<Checkpoint>}
   */
  async checkpoint (name, { note, barrier_ms, stale_ok, signal } = {}) {
    const params = given({ ...this._writer.scope, name, request: randomHex(8), note, barrier_ms, stale_ok })
    const limit_ms = this._channel.limits.request_timeout_ms + (barrier_ms ?? 0)
    const taken = await this._channel.act('checkpoint', params, signal, limit_ms)
    this._writer.saw(taken.revision)
    return taken
  }

  /**
   * All checkpoints of the board, the oldest first.
   * @param {Abortable} [options]
   * @returns {Promise<Checkpoint[]>}
   */
  async checkpoints ({ signal } = {}) {
    /** @type {Checkpoint[]} */
    const found = []
    for (let after = 0; ;) {
      const params = { ...this._writer.scope, after, limit: CHECKPOINTS_PAGE_MAX }
      const page = await this._channel.look('checkpoints', params, signal)
      found.push(...page)
      if (page.length < CHECKPOINTS_PAGE_MAX) return found
      after = page.at(-1)?.revision ?? 0
    }
  }

  /**
   * A checkpoint with its manifest, as far as you may see it; waits until it is signed.
   * @param {string} name
   * @param {Abortable} [options]
   * @returns {Promise<ManifestResult>}
   */
  async show (name, { signal } = {}) { return await this._channel.look('manifest', { ...this._writer.scope, name }, signal) }

  /**
   * Protect a checkpoint from pruning, or with `pinned` false, let it be pruned again.
   * @param {string} name
   * @param {{ pinned?: boolean } & Abortable} [options]
   */
  async pin (name, { pinned = true, signal } = {}) {
    await this._channel.act('pin', { ...this._writer.scope, name, pinned }, signal)
  }

  /**
   * Remove the checkpoints, and the history, that the policy does not keep: the `last` ones, one a day
   * for `days`, those that were `named`, and the history of the last `history_ms`, or its newest
   * `history_bytes`. Checkpoints that are pinned or needed by a branch always stay. With `dry_run`, nothing
   * is removed.
   * @param {{ last: number, days: number, named?: boolean, history_ms?: number, history_bytes?: number,
   *   dry_run?: boolean } & Abortable} policy
   * @returns {Promise<PruneResult>}
   */
  async prune ({ signal, ...policy }) {
    const params = given({ ...this._writer.scope, ...policy })
    const limit_ms = this._channel.limits.long_request_timeout_ms
    if (policy.dry_run === true) return await this._channel.look('prune', params, signal, limit_ms)
    return await this._channel.act('prune', params, signal, limit_ms)
  }

  /**
   * Restore the content of the board as of `to`, atomically: one new revision under a new epoch. Every
   * lease ends, and every other writer gets StaleEpoch until it refreshes.
   * @param {Moment} to
   * @param {{ note?: string, keep_calls?: boolean } & Abortable} [options]
   * @returns {Promise<RestoreResult>}
   */
  async restore (to, { note, keep_calls, signal } = {}) {
    const params = given({ ...this._writer.scope, to: momentOf(to), request: randomHex(8), note, keep_calls })
    const restored = await this._channel.act('restore', params, signal, this._channel.limits.long_request_timeout_ms)
    // The head is not read again: that could fail, although the restore took effect.
    this._writer.take(restored.epoch, restored.revision)
    return restored
  }

  /**
   * As `restore`: to a revision or a point in time, or to just before a revision. One of them is given.
   * @param {{ to?: number, at?: Date, before?: number, note?: string } & Abortable} moment
   * @returns {Promise<RestoreResult>}
   */
  async rewind ({ to, at, before, note, signal }) {
    if (before !== undefined && !(before >= 1)) {
      throw new InvalidRequest({ field: 'before', reason: `nothing was before revision ${before}` })
    }
    const moments = [to, at, before === undefined ? undefined : before - 1].filter(moment => moment !== undefined)
    const [moment] = moments
    if (moment === undefined || moments.length > 1) {
      throw new InvalidRequest({ field: 'rewind', reason: 'one of to, at, before is needed' })
    }
    return await this.restore(moment, given({ note, signal }))
  }

  /**
   * Make a new board with the content of this one at `at`. A branch exists completely or not at all.
   * @param {string} name
   * @param {{ at?: Moment, note?: string } & Abortable} [options]
   * @returns {Promise<Board>}
   */
  async branch (name, { at = 'now', note, signal } = {}) {
    const params = given({ ...this._writer.scope, new: name, at: momentOf(at), request: randomHex(8), note })
    await this._channel.act('branch', params, signal, this._channel.limits.long_request_timeout_ms)
    return new Board(this._channel, name, this._writer.actsAs)
  }

  /**
   * The differences between moments `a` and `b`, by key: at most `limit`; `more` says whether there
   * are others. With `other`, `b` is a moment of that board, of the same family of branches. Documents
   * come as their stored entries.
   * @param {Moment} a
   * @param {Moment} [b]
   * @param {{ other?: string, pattern?: string, limit?: number } & Abortable} [options]
   * @returns {Promise<Diff>}
   */
  async diff (a, b = 'now', { other, pattern, limit = DIFF_KEYS_MAX, signal } = {}) {
    if (limit < 1) throw new InvalidRequest({ field: 'limit', reason: `${limit} is less than 1` })
    /** @type {Difference[]} */
    const changes = []
    /** @type {string | undefined} */
    let after
    let [from, to] = [momentOf(a), momentOf(b)]
    for (;;) {
      const most = Math.min(Math.max(limit - changes.length, 1), LIST_ENTRIES_MAX)
      const params = given({ ...this._writer.scope, a: from, b: to, other, pattern, after, limit: most })
      const page = await this._channel.look('differences', params, signal)
      if (!Array.isArray(page.differences)) throw new RemoteProtocolError({ reason: 'bad differences' })
      for (const { key, before: old, after: now } of page.differences) {
        changes.push({ key, before: old === undefined ? null : entryOf(old), after: now === undefined ? null : entryOf(now) })
      }
      ;[from, to, after] = [page.a, page.b, page.next_key]
      if (after === undefined || changes.length >= limit) {
        return { a: page.a, b: page.b, changes: changes.slice(0, limit), more: after !== undefined || changes.length > limit }
      }
    }
  }

  /**
   * Check everything that is stored up to `at`: hash chain, digests, signatures. Damage is not thrown:
   * `findings` names it.
   * @param {Moment} [at]
   * @param {Abortable} [options]
   * @returns {Promise<VerifyResult>}
   */
  async verify (at = 'now', { signal } = {}) {
    const limit_ms = this._channel.limits.long_request_timeout_ms
    return await this._channel.look('verify', { ...this._writer.scope, at: momentOf(at) }, signal, limit_ms)
  }
}

/**
 * @param {string} key
 * @param {number | undefined} revision
 * @returns {Condition[] | undefined}
 */
function expecting (key, revision) { return revision === undefined ? undefined : [{ kind: 'key_at', key, revision }] }

/**
 * @param {any} op
 * @returns {Op}
 */
function encodedOp (op) { return op?.kind === 'put' || op?.kind === 'append' ? { ...op, value: encodeValue(op.value) } : op }

