// What needs no service: values, merging, patterns, errors, limits.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { openDocument } from '../src/documents.js'
import { DEFAULTS, METHODS, Conflict, InvalidRequest, LimitExceeded, OutcomeUnknown, Overloaded, Rejected, RemoteProtocolError, Unauthenticated, Unavailable, connect, documentToken, encodeValue, narrowed } from '../src/index.js'
import { BY_CODE, fromFields } from '../src/errors.js'
import { VALUE_BYTES_MAX, VALUE_DEPTH_MAX } from '../src/limits.js'
import { merged } from '../src/merge.js'
import { pack, unpack } from '../src/msgpack.js'
import { isMeant, isPrefix, prefixOf } from '../src/paths.js'
import { momentOf } from '../src/records.js'
import { Turn, endAfter, pause, pauseAfter, shortened } from '../src/waiting.js'
import { checkPosition } from '../src/watch.js'

test('a value comes back as it was, with its type', () => {
  const values = [
    null, true, false, 0, -1, 127, 128, 255, 256, 65535, 65536, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER,
    -32, -33, -128, -129, -32768, -32769, -(2 ** 31), -(2 ** 31) - 1, Number.MIN_SAFE_INTEGER,
    2n ** 53n, -(2n ** 63n), 2n ** 64n - 1n, 1.5, -0, 1e300, Number.MIN_VALUE,
    '', 'é😀\0', 'x'.repeat(31), 'x'.repeat(32), 'x'.repeat(256), 'x'.repeat(70000),
    new Uint8Array(0), new Uint8Array(300), new Uint8Array(70000), [], {}, [[], {}],
    Array.from({ length: 20 }, (_, i) => i), Object.fromEntries(Array.from({ length: 70000 }, (_, i) => [`k${i}`, i]))
  ]
  for (const value of values) assert.deepStrictEqual(unpack(encodeValue(value)), value)
})

test('an integer that a Number holds exactly is a Number, any other one a BigInt', () => {
  assert.strictEqual(unpack(encodeValue(5n)), 5)
  assert.deepStrictEqual(encodeValue(5n), encodeValue(5))
  assert.strictEqual(unpack(encodeValue(2n ** 53n)), 2n ** 53n)
  assert.strictEqual(unpack(encodeValue(2 ** 60)), 2 ** 60, 'a Number beyond is a float')
})

test('what is no value is refused, and nothing of it is written', () => {
  const none = [undefined, NaN, Infinity, 2n ** 64n, -(2n ** 63n) - 1n, () => {}, Symbol('x'), new Date(), new Map(), new Set(),
    { $bytes: 'AA==' }, '\ud800', '\udc00x', { '\ud800': 1 }, [undefined], { a: undefined }, new (class Own {})(), new ArrayBuffer(1)]
  for (const value of none) assert.throws(() => encodeValue(value), InvalidRequest)
})

test('a value has limits', () => {
  let deep = 0
  for (let i = 0; i < VALUE_DEPTH_MAX; i++) deep = [deep]
  encodeValue(deep)
  assert.throws(() => encodeValue([deep]), { code: 'limit_exceeded', limit: 'VALUE_DEPTH_MAX' })
  encodeValue('x'.repeat(VALUE_BYTES_MAX - 5))
  assert.throws(() => encodeValue('x'.repeat(VALUE_BYTES_MAX - 4)), { limit: 'VALUE_BYTES_MAX', maximum: VALUE_BYTES_MAX })
  const loop = []
  loop.push(loop)
  assert.throws(() => encodeValue(loop), LimitExceeded)
})

test('no key reaches a prototype', () => {
  const bad = JSON.parse('{"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}}')
  for (const found of [unpack(encodeValue(bad)), merged({}, bad), merged(bad, { constructor: { x: 1 } }), merged(undefined, bad)]) {
    assert.strictEqual(Object.getPrototypeOf(found), Object.prototype)
    assert.ok(Object.hasOwn(found, '__proto__'))
    assert.strictEqual({}.polluted, undefined)
  }
  assert.strictEqual(merged(bad, JSON.parse('{"__proto__": null}')).__proto__, Object.prototype) // eslint-disable-line no-proto
})

test('bytes that are no message are refused', () => {
  const bad = [[], [0xc1], [0xd4, 1, 1], [0xc7, 0, 0], [0xa5, 0x61], [0xa1, 0xff], [0x92, 1], [0x81, 1, 1], [0xdd, 255, 255, 255, 255],
    [0xdf, 255, 255, 255, 255], [0xc6, 255, 255, 255, 255], [1, 1], [0xcb, 0]]
  for (const bytes of bad) assert.throws(() => unpack(new Uint8Array(bytes)), RemoteProtocolError)
  assert.throws(() => unpack(new Uint8Array(100000).fill(0x91)), RemoteProtocolError)
  const wide = new Uint8Array(5 + 3 * 2 ** 20).fill(0x90)
  wide.set([0xdd, 0, 0x30, 0, 0])
  assert.throws(() => unpack(wide), /more than/)
})

test('random bytes are read or refused, never anything else', () => {
  let seed = 1
  const dice = () => { seed = (seed * 48271) % 2147483647; return seed }
  for (let i = 0; i < 20000; i++) {
    const bytes = Uint8Array.from({ length: dice() % 40 }, () => dice() % 256)
    try {
      unpack(bytes)
    } catch (error) {
      assert.ok(error instanceof RemoteProtocolError, String(error))
    }
  }
})

test('a merge patch is that of RFC 7396', () => {
  const cases = [
    [{ a: 'b' }, { a: 'c' }, { a: 'c' }], [{ a: 'b' }, { b: 'c' }, { a: 'b', b: 'c' }], [{ a: 'b' }, { a: null }, {}],
    [{ a: 'b', b: 'c' }, { a: null }, { b: 'c' }], [{ a: ['b'] }, { a: 'c' }, { a: 'c' }], [{ a: 'c' }, { a: ['b'] }, { a: ['b'] }],
    [{ a: { b: 'c' } }, { a: { b: 'd', c: null } }, { a: { b: 'd' } }], [['a', 'b'], ['c', 'd'], ['c', 'd']],
    [{ a: 'b' }, ['c'], ['c']], [{ a: 'foo' }, null, null], [{ e: null }, { a: 1 }, { e: null, a: 1 }],
    [[1, 2], { a: 'b', c: null }, { a: 'b' }], [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }]
  ]
  for (const [value, patch, wanted] of cases) assert.deepStrictEqual(merged(value, patch), wanted)
})

test('patterns', () => {
  assert.ok(isPrefix('public') && isPrefix('private/ada') && isPrefix('public/a.b/c'))
  for (const none of ['', 'private', 'other/a', 'public/', 'public/..', 'public//a', 'public/*']) assert.ok(!isPrefix(none), none)
  assert.strictEqual(prefixOf('public/plan/**'), 'public/plan')
  assert.strictEqual(prefixOf('**'), '')
  assert.ok(isMeant('public/**', 'public/a') && !isMeant('public/**', 'public/~agents/a'))
  assert.ok(isMeant('public/~agents/**', 'public/~agents/a') && !isMeant('**', 'private/ada/~journal/1'))
})

test('what is no resume token is refused', () => {
  for (const token of ['', 'x', 'x:y:z', 'x:-1:', ':1:', 'x:12345678901234567:', `${'x'.repeat(200)}:1:`]) {
    assert.throws(() => checkPosition(token), { code: 'invalid_request', field: 'position' })
  }
  assert.strictEqual(checkPosition('e:7:ab'), 'e:7:ab')
})

test('what is no moment is refused', () => {
  for (const bad of [-1, 1.5, NaN, 2 ** 53, true, null, {}, new Date(NaN), new Date(-1)]) {
    assert.throws(() => momentOf(bad), { code: 'invalid_request', field: 'at' })
  }
  assert.deepStrictEqual(momentOf(new Date(5)), { time_ms: 5 })
})

test('errors are one tree, with stable codes and fields', () => {
  const conflict = fromFields('conflict', { key: 'k', expected: 0, actual: 3, more: 1 }, 'as the service says')
  assert.ok(conflict instanceof Conflict && conflict instanceof Rejected && conflict instanceof Error)
  assert.deepStrictEqual([conflict.key, conflict.actual, conflict.by, conflict.message], ['k', 3, null, 'as the service says'])
  assert.ok(!('more' in conflict.fields))
  assert.ok(new Overloaded({ what: 'x', reason: 'y', retry_after_ms: 1 }) instanceof Unavailable)
  assert.ok(!(new OutcomeUnknown({ agent: 'a', lane: 0, incarnation: 'i', step: 1, reason: 'r' }) instanceof Unavailable))
  for (const [code, kind] of BY_CODE) assert.strictEqual(new kind({}).code, code)
  for (const bad of ['no such code', '__proto__', 5, null, {}]) assert.ok(fromFields(bad, {}) instanceof RemoteProtocolError)
})

test('pauses are shortened at random, and as long as the service asks for', () => {
  for (let i = 0; i < 100; i++) {
    const pause = shortened([10, 100], i)
    assert.ok(pause <= (i === 0 ? 10 : 100) && pause >= (i === 0 ? 5 : 50))
    const asked = pauseAfter(new Overloaded({ what: 'x', reason: 'y', retry_after_ms: 1000 }), 10)
    assert.ok(asked >= 1000 && asked <= 1500)
  }
})

test('limits and addresses are checked before anything is sent', async () => {
  const bad = [{ limits: { requestTimeout: 1 } }, { limits: { request_timeout_ms: -1 } }, { limits: { merge_attempts_max: 0 } },
    { limits: { commit_pauses_ms: [] } }, { limits: { commit_pauses_ms: [1.5] } }, { patience_ms: NaN }, { patience_ms: 0 }]
  for (const options of bad) await assert.rejects(connect('ws://127.0.0.1:1', options), InvalidRequest)
  for (const url of ['', 'no url', 'ftp://host', 'file:///etc', 5]) await assert.rejects(connect(url), { code: 'invalid_request', field: 'url' })
  assert.ok(METHODS.includes('commit') && DEFAULTS.request_timeout_ms > 0)
})

test('what is no token is not narrowed', async () => {
  for (const bad of ['', 'x', 'a.b', 'a.b.*', 'a.b.c.d', 'a~b~c', 'a.b.']) await assert.rejects(narrowed(bad, {}), Unauthenticated, bad)
  for (const key of ['memo', 'public/a?b', 'public/a#b', 'public/../a']) await assert.rejects(documentToken('a.b.Yw', 'main', key), InvalidRequest)
  const much = Array(20000).fill(['public/**', ['read']])
  await assert.rejects(narrowed('a.b.Yw', { grants: much }), { limit: 'TOKEN_BYTES_MAX' })
  let token = 'a.b.Yw'
  for (let i = 0; i < 8; i++) token = await narrowed(token, { boards: ['main'] })
  await assert.rejects(narrowed(token, {}), { limit: 'NARROWINGS_MAX' })
})

/** A provider that is synced at once; `closed` is its connection's end. */
class Synced {
  constructor (url, room, doc, { params } = {}) {
    Object.assign(this, { listeners: {}, synced: true, connects: 0, params, isDestroyed: false })
    queueMicrotask(() => this.emit('sync', true))
  }

  on (name, listener) { (this.listeners[name] ??= []).push(listener) }
  once (name, listener) { this.on(name, listener) }
  off (name, listener) { this.listeners[name] = (this.listeners[name] ?? []).filter(each => each !== listener) }
  emit (name, ...told) { return Promise.all((this.listeners[name] ?? []).map(listener => listener(...told))) }
  connect () { this.connects++ }
  destroy () { this.isDestroyed = true }
  closed (code) { return this.emit('connection-close', { code, reason: '' }) }
}

/** What `openDocument` uses of a channel. */
function channelOf () {
  const limits = { connect_pauses_ms: [0] }
  return { closed: false, closers: new Set(), patience_ms: 1000, limits, address: { url: 'ws://127.0.0.1:1' }, freshToken: async () => 'a.b.Yw' }
}

test('a document connects again when its token has expired, once after each time that it was synced', async () => {
  const { provider } = await openDocument(channelOf(), 'main', 'public/memo', { doc: {}, WebsocketProvider: Synced })
  await provider.emit('sync', true)
  await provider.closed(1012) // y-websocket itself comes back after that
  assert.deepEqual([provider.connects, provider.params.token.startsWith('a.b~')], [0, true])
  for (let i = 0; i < 3; i++) await provider.closed(4401)
  assert.equal(provider.connects, 1)
  await provider.emit('sync', true)
  await provider.closed(4401)
  assert.equal(provider.connects, 2)
})

test('a token in a URL lives for less than an hour by a clock that is behind, too', async () => {
  const { provider } = await openDocument(channelOf(), 'main', 'public/memo', { doc: {}, WebsocketProvider: Synced })
  const tokens = [provider.params.token]
  await provider.closed(1012)
  tokens.push(provider.params.token)
  for (const token of tokens) {
    const { exp } = JSON.parse(atob(token.split('~')[1].replaceAll('-', '+').replaceAll('_', '/')))
    assert.ok(1000 * exp - Date.now() <= 1_800_000 && 1000 * exp > Date.now() + 1_700_000, String(exp))
  }
})

test('a document that was closed is forgotten, and does not connect again', async () => {
  const channel = channelOf()
  const document = await openDocument(channel, 'main', 'public/memo', { doc: {}, WebsocketProvider: Synced })
  assert.equal(channel.closers.size, 1)
  await document.provider.emit('sync', true)
  const closed = document.provider.closed(4401)
  document.close()
  await closed
  assert.deepEqual([channel.closers.size, document.provider.isDestroyed, document.provider.connects], [0, true, 0])
})

test('a document whose token has expired waits for a source of tokens that fails', async () => {
  const channel = channelOf()
  const { provider } = await openDocument(channel, 'main', 'public/memo', { doc: {}, WebsocketProvider: Synced })
  await provider.emit('sync', true)
  let failures = 0
  channel.freshToken = async () => {
    if (failures++ < 3) throw new Unavailable({ what: 'the source of tokens', reason: 'away' })
    return 'a.b.Yw'
  }
  await provider.closed(4401)
  assert.deepEqual([failures, provider.connects], [4, 1])
})

test('a document whose token is refused for good, or that is closed meanwhile, does not wait', async () => {
  for (const isClosed of [true, false]) {
    const channel = channelOf()
    const document = await openDocument(channel, 'main', 'public/memo', { doc: {}, WebsocketProvider: Synced })
    await document.provider.emit('sync', true)
    channel.freshToken = async () => {
      if (!isClosed) throw new Unauthenticated({ reason: 'gone' })
      document.close()
      throw new Unavailable({ what: 'the source of tokens', reason: 'away' })
    }
    await document.provider.closed(4401)
    assert.equal(document.provider.connects, 0)
  }
})

test('a document is not opened after an abort, or by a client that was closed while it got its token', async () => {
  const channel = channelOf()
  const abort = new AbortController()
  const options = { doc: {}, WebsocketProvider: Synced, signal: abort.signal }
  channel.freshToken = async () => { abort.abort(new Error('enough')); return 'a.b.Yw' }
  await assert.rejects(openDocument(channel, 'main', 'public/memo', options), /enough/)
  channel.freshToken = async () => { channel.closed = true; return 'a.b.Yw' }
  await assert.rejects(openDocument(channel, 'main', 'public/memo', { ...options, signal: undefined }), Unavailable)
  assert.equal(channel.closers.size, 0)
})

test('a message that the protocol cannot hold is refused', () => {
  assert.throws(() => pack({ id: 1, params: { note: undefined } }), InvalidRequest)
})

test('a wait of any length ends when its time is over, not before', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const most = 2 ** 31 - 1
  const ended = []
  const waits = { short: 5, most, more: most + 1, month: 30 * 24 * 3600 * 1000, three: 3 * most, ever: Infinity }
  for (const [name, ms] of Object.entries(waits)) {
    endAfter(ms, () => ended.push(name))
    void pause(ms).then(() => ended.push(`pause ${name}`))
    void new Turn().wait(ms).then(came => ended.push(`${came} ${name}`))
  }
  const after = async ms => {
    t.mock.timers.tick(ms)
    await new Promise(resolve => setImmediate(resolve))
    return ended.splice(0)
  }
  const all = name => [name, `pause ${name}`, `false ${name}`]
  assert.deepStrictEqual(await after(4), [])
  assert.deepStrictEqual(await after(1), all('short'))
  assert.deepStrictEqual(await after(most - 6), [])
  assert.deepStrictEqual(await after(1), all('most'))
  assert.deepStrictEqual(await after(1), all('more'))
  assert.deepStrictEqual(await after(waits.month - most - 2), [])
  assert.deepStrictEqual(await after(1), all('month'))
  await after(most - 1000000)
  assert.deepStrictEqual(await after(3 * most), all('three'))
  assert.deepStrictEqual(await after(9 * most), [])
})

test('a wait that was called off does not end, whatever its length', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const ended = []
  for (const ms of [5, 2 ** 31, 2 ** 33, Infinity]) {
    const callOff = endAfter(ms, () => ended.push(ms))
    if (ms === 2 ** 33) t.mock.timers.tick(2 ** 31)
    callOff()
  }
  t.mock.timers.tick(2 ** 34)
  assert.deepStrictEqual(ended, [])
})
