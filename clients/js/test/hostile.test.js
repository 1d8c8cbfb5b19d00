// A service that does not keep to the protocol: each call ends in time, with an error of the tree.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import { once } from 'node:events'
import { test } from 'node:test'
import { AccessDenied, InvalidRequest, LimitExceeded, LocalProtocolError, OutcomeUnknown, RemoteProtocolError, Unauthenticated, Unavailable, connect } from '../src/index.js'
import { FRAME_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX, WATCHES_PER_CONNECTION_MAX } from '../src/limits.js'
import { encodeValue, pack, unpack } from '../src/msgpack.js'
import { pause } from '../src/waiting.js'

const MAGIC = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
const LIMITS = { connect_wait_ms: 0, handshake_timeout_ms: 2000, request_timeout_ms: 300, commit_timeout_ms: 300, connect_pauses_ms: [0, 20] }
const OPTIONS = { token: 'x', patience_ms: 300, limits: LIMITS }
const WELCOME = { principal: 'ada', agent: 'ada', account: 'ada', engine: 'e', level: 'disk', server_time_ms: 0, version: '1', limits: {} }
const EPOCH = { number: 1, id: 'e', cause: 'created', from_revision: 0, revision: 0 }
const HEAD = { revision: 0, epoch: EPOCH, oldest: 1, time_ms: 0, log_entries: 0 }

function frame (content, first = 0x82) {
  const size = content.length
  const head = size < 126 ? [first, size] : size < 65536 ? [first, 126, size >> 8, size & 255] : [first, 127, 0, 0, 0, 0, size >>> 24, (size >> 16) & 255, (size >> 8) & 255, size & 255]
  return Buffer.concat([Buffer.from(head), content])
}

// The messages in what a client sent, so far as whole frames have come.
function * messages (state, chunk) {
  state.data = Buffer.concat([state.data, chunk])
  for (;;) {
    const { data } = state
    if (data.length < 2) return
    const short = data[1] & 127
    const start = short === 126 ? 4 : short === 127 ? 10 : 2
    if (data.length < start + 4) return
    const size = short === 126 ? data.readUInt16BE(2) : short === 127 ? Number(data.readBigUInt64BE(2)) : short
    if (data.length < start + 4 + size) return
    const mask = data.subarray(start, start + 4)
    const content = Buffer.from(data.subarray(start + 4, start + 4 + size)).map((byte, i) => byte ^ mask[i & 3])
    state.data = data.subarray(start + 4 + size)
    if ((data[0] & 15) === 2) yield * unpack(content)
  }
}

/** A server whose `answer(message, socket)` says what to send; `greets` answers hello as it should be. */
async function service (t, answer, { greets = true, respond, meets, hasty = Buffer.alloc(0) } = {}) {
  const sockets = new Set()
  const server = createServer((request, response) => respond?.(response) ?? response.end())
  server.on('upgrade', (request, socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    if (respond !== undefined) return respond(socket)
    if (meets?.(socket)) return
    const accept = createHash('sha1').update(request.headers['sec-websocket-key'] + MAGIC).digest('base64')
    const head = `HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: blackboard.v1+msgpack\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`
    socket.write(Buffer.concat([Buffer.from(head), hasty]))
    const state = { data: Buffer.alloc(0) }
    socket.on('data', chunk => {
      for (const message of messages(state, chunk)) {
        const found = greets && message.method === 'hello' ? { id: message.id, result: WELCOME } : answer(message, socket)
        if (found !== undefined) socket.write(frame(Buffer.from(pack([found]))))
      }
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => { for (const socket of sockets) socket.destroy(); server.close() })
  return `ws://127.0.0.1:${server.address().port}`
}

async function client (t, url, options = OPTIONS) {
  const found = await connect(url, options)
  t.after(() => found.close())
  return found
}

const FRAMES = {
  'an opcode that is none': frame(Buffer.from('x'), 0x83),
  'a control opcode that is none': frame(Buffer.alloc(0), 0x8b),
  'reserved bits': frame(Buffer.from('x'), 0xc2),
  'a masked frame': Buffer.from([0x82, 0x81, 1, 2, 3, 4, 5]),
  'a ping in fragments': frame(Buffer.from('x'), 0x09),
  'a ping that is too long': frame(Buffer.alloc(126), 0x89),
  'a continuation of nothing': frame(Buffer.from('x'), 0x80),
  'a message within the fragments of another': Buffer.concat([frame(Buffer.from('x'), 0x02), frame(Buffer.from('x'))]),
  'a message that is too large': Buffer.from([0x82, 127, 0, 0, 0, 0, 0, 0x80, 0, 1]),
  'a length of 64 bits': Buffer.from([0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255]),
  'too many fragments': Buffer.concat([frame(Buffer.from('x'), 0x02), ...Array(5000).fill(frame(Buffer.from('x'), 0x00))]),
  text: frame(Buffer.from('[]'), 0x81),
  'no msgpack': frame(Buffer.from([0xc1])),
  'no array': frame(Buffer.from(pack({}))),
  'an empty array': frame(Buffer.from(pack([]))),
  'a message that is no map': frame(Buffer.from(pack([5]))),
  'an answer to nothing': frame(Buffer.from(pack([{ id: 999, result: null }]))),
  'an id that is no number': frame(Buffer.from(pack([{ id: '__proto__', result: null }]))),
  'an unknown notification': frame(Buffer.from(pack([{ method: 'constructor', params: {} }]))),
  'changes without members': frame(Buffer.from(pack([{ method: 'changes', params: {} }]))),
  'changes that are none': frame(Buffer.from(pack([{ method: 'changes', params: { watch: 1, position: 'e:1:', revisions: [{ revision: 'x' }] } }]))),
  'a notification without params': frame(Buffer.from(pack([{ method: 'changes' }]))),
  'a broken connection': null
}

for (const [name, bytes] of Object.entries(FRAMES)) {
  test(`${name} ends the connection, and a read is Unavailable`, async t => {
    let asked = 0
    const url = await service(t, (message, socket) => {
      asked++
      if (bytes === null) socket.destroy()
      else socket.write(bytes)
    })
    const board = (await client(t, url)).board()
    await assert.rejects(board.get('public/a'), Unavailable)
    assert.ok(asked >= 1)
  })
}

test('a commit whose answer is broken is told as unknown, and never as refused', async t => {
  const url = await service(t, (message, socket) => {
    if (message.method === 'head') return { id: message.id, result: HEAD }
    socket.destroy()
    return undefined
  })
  const board = (await client(t, url)).board()
  await assert.rejects(board.put('public/a', 1), error => error instanceof OutcomeUnknown && error.agent === 'ada' && error.step === 1)
})

test('a refused retry supersedes the attempt whose outcome is unknown', async t => {
  const commits = []
  const url = await service(t, (message, socket) => {
    if (message.method === 'head') return { id: message.id, result: HEAD }
    commits.push(message.params)
    if (commits.length === 1) return void socket.destroy()
    if (commits.length === 2) {
      const fields = { key: 'public/a', expected: 0, actual: 3 }
      return { id: message.id, error: { code: -32010, message: 'taken', data: { code: 'conflict', fields } } }
    }
    return { id: message.id, result: { revision: 4, time_ms: 0, results: [0], level: 'disk' } }
  })
  const board = (await client(t, url, { ...OPTIONS, patience_ms: 5000, limits: { ...LIMITS, request_timeout_ms: 5000, commit_timeout_ms: 5000 } })).board()
  await assert.rejects(board.put('public/a', 1, { expected: 0 }), { code: 'conflict', message: 'taken' })
  const [first, again, mark] = commits
  assert.deepStrictEqual(again.id, first.id)
  assert.deepStrictEqual([first.known, first.retry_since, again.retry_since], [0, undefined, 0])
  assert.deepStrictEqual([mark.id.lane, mark.id.step], [first.id.lane, first.id.step + 1])
  assert.deepStrictEqual(mark.ops, [{ kind: 'delete', key: 'private/ada/~superseded' }])
})

const ANSWERS = {
  'an entry without a value': { revision: 1, epoch: 'e', entries: [{ key: 'public/a', mod_revision: 1 }] },
  'a value that is not bytes': { revision: 1, epoch: 'e', entries: [{ key: 'public/a', mod_revision: 1, value: 'x' }] },
  'a value that is not msgpack': { revision: 1, epoch: 'e', entries: [{ key: 'public/a', mod_revision: 1, value: new Uint8Array([0xc1]) }] },
  'no entries': { revision: 1, epoch: 'e' },
  'entries that are none': { revision: 1, epoch: 'e', entries: [null] }
}
for (const [name, result] of Object.entries(ANSWERS)) {
  test(`${name} is the fault of the service`, async t => {
    const url = await service(t, ({ id }) => ({ id, result }))
    await assert.rejects((await client(t, url)).board().get('public/a'), RemoteProtocolError)
  })
}

test('errors that are none, and codes that nobody knows, are the fault of the service', async t => {
  const bad = [null, 5, {}, { data: null }, { data: { code: 'nonsense', fields: {} } }, { data: { code: '__proto__', fields: {} } }, { data: { code: 'conflict', fields: null } }]
  let next = 0
  const url = await service(t, ({ id }) => ({ id, error: bad[next++] }))
  const board = (await client(t, url)).board()
  for (let i = 0; i < bad.length; i++) await assert.rejects(board.get('public/a'), RemoteProtocolError)
})

test('a receipt that is none is the fault of the service', async t => {
  const url = await service(t, ({ id, method }) => ({ id, result: method === 'head' ? HEAD : { revision: 'x' } }))
  await assert.rejects((await client(t, url)).board().put('public/a', 1), RemoteProtocolError)
})

test('a service that says nothing is given up in time', async t => {
  const url = await service(t, () => undefined)
  const board = (await client(t, url)).board()
  await assert.rejects(board.get('public/a'), { code: 'unavailable' })
})

test('a connection on which nothing comes is given up', async t => {
  let connections = 0
  const url = await service(t, message => {
    if (message.method === 'hello') connections++
    return message.method === 'hello' ? { id: message.id, result: WELCOME } : undefined
  }, { greets: false })
  await client(t, url, { ...OPTIONS, limits: { ...LIMITS, ping_interval_ms: 50 } })
  while (connections < 3) await new Promise(resolve => setImmediate(resolve))
})

test('a handshake that is refused says why', async t => {
  const refusals = [['401 x', Unauthenticated], ['403 x', InvalidRequest], ['503 x', Unavailable], ['200 x', Unavailable]]
  for (const [status, kind] of refusals) {
    const url = await service(t, () => undefined, {
      respond: socket => socket.end(`HTTP/1.1 ${status}\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{"reason":"why"}`)
    })
    await assert.rejects(connect(url, OPTIONS), kind)
  }
  for (const reply of ['HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n', 'nonsense\r\n\r\n', '']) {
    const url = await service(t, () => undefined, { respond: socket => socket.end(reply) })
    await assert.rejects(connect(url, OPTIONS), Unavailable)
  }
})

test('a proxy that does not know the service for a moment ends no client', { timeout: 30000 }, async t => {
  let connections = 0
  const url = await service(t, ({ id }, socket) => {
    if (connections > 1) return { id, result: HEAD }
    socket.destroy()
  }, {
    meets: socket => {
      connections++
      if (connections < 2 || connections > 4) return false
      socket.end('HTTP/1.1 404 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
      return true
    }
  })
  const board = (await client(t, url, { ...OPTIONS, patience_ms: 30000 })).board()
  assert.equal((await board.head()).revision, 0)
  assert.equal(connections, 5)
})

test('a service that is full for a moment ends no client', { timeout: 30000 }, async t => {
  let greeted = 0
  const url = await service(t, ({ id, method }, socket) => {
    if (method !== 'hello') return greeted > 1 ? { id, result: HEAD } : void socket.destroy()
    greeted++
    if (greeted === 1 || greeted > 3) return { id, result: WELCOME }
    const fields = { limit: 'CONNECTIONS_PER_PRINCIPAL_MAX', value: 513, maximum: 512 }
    return { id, error: { code: -32010, message: 'full', data: { code: 'limit_exceeded', fields } } }
  }, { greets: false })
  const board = (await client(t, url, { ...OPTIONS, patience_ms: 30000 })).board()
  assert.equal((await board.head()).revision, 0)
  assert.equal(greeted, 4)
})

test('a hello that is refused or nonsense ends the attempt', async t => {
  const close = code => (_, socket) => void socket.end(frame(Buffer.from([code >> 8, code & 255]), 0x88))
  const cases = [[() => undefined, Unavailable], [({ id }) => ({ id, result: null }), Unavailable], [({ id }) => ({ id, result: {} }), Unavailable],
    [close(4401), Unauthenticated], [close(4403), AccessDenied], [close(1013), Unavailable]]
  for (const [answer, kind] of cases) {
    const url = await service(t, answer, { greets: false })
    await assert.rejects(connect(url, { ...OPTIONS, limits: { ...LIMITS, handshake_timeout_ms: 200 } }), kind)
  }
})

test('what a service says at once is heard', async t => {
  const hasty = frame(Buffer.from([4401 >> 8, 4401 & 255]), 0x88)
  const url = await service(t, () => undefined, { hasty })
  await assert.rejects(connect(url, OPTIONS), Unauthenticated)
})

test('bytes of a value are its own, and keep no message in memory', async t => {
  const entry = { key: 'public/a', value: encodeValue({ id: new Uint8Array([7]), text: 'x'.repeat(100000) }), mod_revision: 1, create_revision: 1, author: 'ada', time_ms: 0 }
  const url = await service(t, ({ id }) => ({ id, result: { revision: 1, epoch: 'e', entries: [entry] } }))
  const { id } = await (await client(t, url)).board().get('public/a')
  assert.deepEqual([id.constructor, id.buffer.byteLength, id[0]], [Uint8Array, 1, 7])
})

test('nothing listens', async () => {
  await assert.rejects(connect('ws://127.0.0.1:1', OPTIONS), Unavailable)
})

test('however many ask in one turn, no more is in flight than a connection takes', { timeout: 30000 }, async t => {
  let waiting = 0
  let most = 0
  const url = await service(t, ({ id }, socket) => {
    most = Math.max(most, ++waiting)
    setImmediate(() => {
      waiting--
      socket.write(frame(Buffer.from(pack([{ id, result: { revision: 0, entries: [], epoch: 'e' } }]))))
    })
  })
  const board = (await client(t, url, { ...OPTIONS, patience_ms: 20000, limits: { ...LIMITS, request_timeout_ms: 20000 } })).board()
  const room = REQUESTS_IN_FLIGHT_MAX - 2 * WATCHES_PER_CONNECTION_MAX
  await Promise.all(Array.from({ length: 4 * room }, () => board.get('public/a')))
  assert.equal(most, room)
})

test('a service that stops while it greets is left for the next one', { timeout: 30000 }, async t => {
  const greeted = []
  const asked = []
  const url = await service(t, ({ id, method }, socket) => {
    if (method !== 'hello') {
      asked.push(greeted.indexOf(socket))
      return { id, result: { revision: 0, entries: [], epoch: 'e' } }
    }
    greeted.push(socket)
    const stops = greeted.length < 3 ? [{ method: 'draining', params: {} }] : []
    socket.write(frame(Buffer.from(pack([{ id, result: WELCOME }, ...stops]))))
  }, { greets: false })
  const options = { ...OPTIONS, patience_ms: 10000, limits: { ...LIMITS, connect_wait_ms: 10000 } }
  await (await client(t, url, options)).board().get('public/a')
  assert.deepStrictEqual(asked, [2])
})

test('an abort ends the first attempt to connect with its reason, and the connection', { timeout: 30000 }, async t => {
  const abort = new AbortController()
  const reason = new Error('enough')
  let ended
  const end = new Promise(resolve => { ended = resolve })
  const url = await service(t, (_, socket) => {
    socket.on('end', ended)
    abort.abort(reason)
  }, { greets: false })
  await assert.rejects(connect(url, { ...OPTIONS, signal: abort.signal }), error => error === reason)
  await end
})

test('lock masters of which no majority answers are told at once', async t => {
  let commits = 0
  const url = await service(t, ({ id, method }) => {
    if (method === 'head') return { id, result: HEAD }
    commits++
    return { id, error: { code: -32010, message: 'no', data: { code: 'unavailable', fields: { what: 'lock masters', reason: 'no majority' } } } }
  })
  const board = (await client(t, url)).board()
  await assert.rejects(board.withLock('public/a', () => {}), { code: 'unavailable' })
  assert.equal(commits, 1)
})

test('an unknown outcome names the agent that it was done as', async t => {
  const board = (await client(t, await service(t, () => undefined))).board()
  await assert.rejects(board.asAgent('bob').checkpoint('a'), error => error instanceof OutcomeUnknown && error.agent === 'bob')
})

test('a request that is too large is refused before it is sent', async t => {
  const url = await service(t, ({ id }) => ({ id, result: HEAD }))
  const board = (await client(t, url)).board()
  const ops = Array.from({ length: 9 }, (_, i) => ({ kind: 'put', key: `public/${i}`, value: 'x'.repeat(1000000) }))
  await assert.rejects(board.commit(ops), error => error instanceof LimitExceeded && error.limit === 'FRAME_BYTES_MAX' && error.maximum === FRAME_BYTES_MAX)
})

test('an abort ends any wait with its reason, and nothing stays behind', async t => {
  const url = await service(t, ({ id, method }) => method === 'head' ? { id, result: HEAD } : method === 'watch' ? { id, result: { position: 'e:0:' } } : undefined)
  const board = (await client(t, url, { ...OPTIONS, limits: { ...LIMITS, request_timeout_ms: 60000 }, patience_ms: 60000 })).board()
  const reason = new Error('enough')
  const calls = [signal => board.get('public/a', { signal }), signal => board.put('public/a', 1, { signal }), signal => board.checkpoint('a', { signal }),
    async signal => await (await board.watch('public/**')).next({ signal }), signal => board.withLock('public/a', () => {}, { signal: AbortSignal.abort(reason) })]
  for (const call of calls) {
    const abort = new AbortController()
    setTimeout(() => abort.abort(reason), 30)
    await assert.rejects(call(abort.signal), error => error === reason)
    await assert.rejects(call(AbortSignal.abort(reason)), error => error === reason)
  }
})

test('a watch is one position after another, across connections', async t => {
  const starts = new Set()
  const url = await service(t, ({ id, method, params }, socket) => {
    if (method === 'head') return { id, result: HEAD }
    if (method !== 'watch') return { id, result: null }
    starts.add(params.after)
    socket.write(frame(Buffer.from(pack([{ id, result: { position: params.after } }]))))
    const revision = Number(params.after.split(':')[1]) + 1
    const change = { kind: 'put', key: 'public/a', value: encodeValue(revision) }
    const changes = { watch: params.watch, position: `e:${revision}:aa`, revisions: [{ revision, time_ms: 0, author: 'ada', digest: 'aa', changes: [change] }] }
    socket.write(frame(Buffer.from(pack([{ method: 'changes', params: changes }]))))
    setTimeout(() => socket.destroy(), 20)
    return undefined
  })
  const board = (await client(t, url)).board()
  const watch = await board.watch('public/**', { after: 0 })
  const found = []
  for await (const revised of watch) {
    found.push([revised.revision, revised.changes[0].value, watch.position])
    if (found.length === 3) break
  }
  assert.deepStrictEqual(found, [[1, 1, 'e:1:aa'], [2, 2, 'e:2:aa'], [3, 3, 'e:3:aa']])
  assert.deepStrictEqual([...starts].slice(0, 3), ['e:0:', 'e:1:aa', 'e:2:aa'])
  await assert.rejects(watch.next(), LocalProtocolError)
  await assert.rejects(board.watch('public/**', { after: 'no token' }), InvalidRequest)
})

test('a closed client refuses, and its steps and watches end', async t => {
  const url = await service(t, ({ id, method }) => ({ id, result: method === 'watch' ? { position: 'e:0:' } : method === 'head' ? HEAD : { revision: 1, epoch: 'e', entries: [] } }))
  const found = await connect(url, OPTIONS)
  const watch = await found.board().watch('public/**')
  const next = watch.next()
  let kept
  await found.board().step(step => { kept = step })
  assert.throws(() => kept.put('public/a', 1), LocalProtocolError)
  await assert.rejects(kept.get('public/a'), LocalProtocolError)
  found.close()
  found.close()
  await assert.rejects(next)
  await assert.rejects(found.board().get('public/a'), Unavailable)
  await assert.rejects(found.board().put('public/a', 1), Unavailable)
})

test('a state that could not be read again after a restore is read by the next call', async t => {
  const order = { code: -32010, message: 'too much', data: { code: 'resync', fields: { revision: 3, epoch: 'f', from_revision: 0 } } }
  const denied = { code: -32001, message: 'no', data: { code: 'access_denied', fields: { principal: 'ada', action: 'read', key: 'public/a' } } }
  const starts = []
  let head = HEAD
  let lists = 0
  const url = await service(t, ({ id, method, params }) => {
    const { watch } = params
    if (method === 'head') return { id, result: head }
    if (method === 'list' && ++lists === 2) return { id, error: denied }
    if (method === 'list') return { id, result: { revision: head.revision, epoch: head.epoch.id, entries: [] } }
    if (method === 'watch') {
      starts.push(params.after)
      return { id, result: { position: params.after } }
    }
    if (method !== 'progress' || starts.length > 1) return undefined
    // By the time that the watch looks, another restore has begun the next epoch.
    head = { ...HEAD, revision: 9, epoch: { ...EPOCH, number: 3, id: 'g', cause: 'restore', revision: 9 } }
    return { method: 'cancelled', params: { watch, error: order } }
  })
  const watch = await (await client(t, url)).board().watch('public/**', { snapshot: true })
  await assert.rejects(watch.next(), { code: 'access_denied' })
  assert.equal(watch.position, 'e:0:')
  const again = await watch.next()
  assert.deepStrictEqual([again.changes, again.epoch.id, watch.revision, watch.position], [[], 'g', 9, 'g:9:'])
  assert.deepStrictEqual(starts, ['e:0:', 'g:9:', 'g:9:'])
  watch.close()
})

/**
 * A service with a second connection: `destroy` ends the first one, `again` says that the next one has come, and `greet`
 * answers its hello. `asked` is what it asks then; each of its watches gets one change.
 */
async function twice (t) {
  const found = { asked: [], url: '', destroy () {}, greet () {}, again: null }
  const greeted = new Promise(resolve => { found.greet = resolve })
  let come
  found.again = new Promise(resolve => { come = resolve })
  let first = null
  found.url = await service(t, ({ id, method, params }, socket) => {
    const send = message => socket.write(frame(Buffer.from(pack([message]))))
    const isFirst = (first ??= socket) === socket
    if (isFirst) found.destroy = () => socket.destroy()
    if (method === 'hello') {
      if (!isFirst) come()
      void (isFirst ? Promise.resolve() : greeted).then(() => send({ id, result: WELCOME }))
      return undefined
    }
    if (!isFirst) found.asked.push([method, params.watch])
    if (method === 'head') return { id, result: HEAD }
    if (method === 'read') return { id, result: { revision: 1, epoch: 'e', entries: [] } }
    if (method !== 'watch') return { id, result: null }
    send({ id, result: { position: params.after } })
    const revision = { revision: 1, time_ms: 0, author: 'ada', digest: 'aa', changes: [] }
    if (!isFirst) send({ method: 'changes', params: { watch: params.watch, position: 'e:1:aa', revisions: [revision] } })
    return undefined
  }, { greets: false })
  return found
}

const PATIENT = { ...OPTIONS, patience_ms: 20000, limits: { ...LIMITS, handshake_timeout_ms: 20000, request_timeout_ms: 20000 } }

/** A watch whose connection broke, and which waits for the next one: that does not greet yet. */
async function waitingWatch (t) {
  const other = await twice(t)
  const board = (await client(t, other.url, PATIENT)).board()
  const watch = await board.watch('public/**')
  const next = watch.next()
  other.destroy()
  await other.again
  return { other, board, watch, next }
}

test('a watch that waits for a connection is opened once on it', { timeout: 30000 }, async t => {
  const { other, board, watch, next } = await waitingWatch(t)
  other.greet()
  assert.equal((await next).revision, 1)
  await board.get('public/a')
  assert.deepStrictEqual(other.asked.map(([method]) => method), ['watch', 'read'])
  watch.close()
  await board.get('public/a')
  const [[, number]] = other.asked
  assert.deepStrictEqual(other.asked.slice(2), [['unwatch', number], ['read', undefined]])
})

test('a watch that was closed while it waited for a connection is not opened', { timeout: 30000 }, async t => {
  const { other, board, watch, next } = await waitingWatch(t)
  watch.close()
  other.greet()
  await assert.rejects(next, LocalProtocolError)
  await board.get('public/a')
  assert.deepStrictEqual(other.asked, [['read', undefined]])
})

test('a clock that steps back does not keep a silent connection', { timeout: 20000 }, async t => {
  let connections = 0
  let third
  const came = new Promise(resolve => { third = resolve })
  const url = await service(t, message => {
    if (message.method !== 'hello') return undefined
    if (++connections === 3) third()
    return { id: message.id, result: WELCOME }
  }, { greets: false })
  let now = Date.now()
  t.mock.method(Date, 'now', () => now -= 3600000)
  await client(t, url, { ...OPTIONS, limits: { ...LIMITS, ping_interval_ms: 50 } })
  await came
})

test('a clock that steps forward does not end the wait for a service that starts', async t => {
  let asked = 0
  const url = await service(t, ({ id }, socket) => ++asked > 2 ? { id, result: WELCOME } : void socket.destroy(), { greets: false })
  let now = Date.now()
  t.mock.method(Date, 'now', () => now += 3600000)
  await client(t, url, { ...OPTIONS, patience_ms: 10000, limits: { ...LIMITS, connect_wait_ms: 10000 } })
  assert.equal(asked, 3)
})

test('a source of tokens is left alone by a client whose clock is ahead', async t => {
  let given = 0
  const url = await service(t, ({ id }) => ({ id, result: { expires_at_ms: Date.now() - 3600000 } }))
  await client(t, url, { ...OPTIONS, token: () => { given++; return 'x' } })
  await pause(300)
  assert.equal(given, 1)
})

test('a source of tokens that hangs is given up', { timeout: 30000 }, async t => {
  const url = await service(t, () => undefined)
  const hangs = { ...OPTIONS, token: () => new Promise(() => {}) }
  await assert.rejects(connect(url, hangs), error => error instanceof Unavailable && /no token in 300 ms/.test(error.message))
})

test('who lost a lock still gives its task back', async t => {
  const commits = []
  const abort = new AbortController()
  let aborts = false
  const fenced = { key: 'public/lock', holder: 'ada~1', fence: 1, current: 7 }
  const task = { key: 'public/tasks/1', value: encodeValue(1), mod_revision: 1, create_revision: 1, author: 'ada', account: 'ada', time_ms: 0, created_ms: 0 }
  const url = await service(t, ({ id, method, params }) => {
    if (method === 'head') return { id, result: HEAD }
    if (method === 'list') return { id, result: { revision: 1, epoch: 'e', entries: [task] } }
    if (method === 'leases') return { id, result: { revision: 1, epoch: 'e', leases: [] } }
    if (method === 'read') return { id, result: { revision: 1, epoch: 'e', entries: params.keys.includes(task.key) ? [task] : [] } }
    const { ops, note, fences = [] } = params
    commits.push([note ?? ops[0].kind, fences.map(fence => fence.key)])
    if (note === 'claimed' && aborts) abort.abort(new Error('enough'))
    if (commits.length > 1 && fences.length > 0 && note !== 'claimed') {
      return { id, error: { code: -32010, message: 'lost', data: { code: 'fenced', fields: fenced } } }
    }
    const results = ops.map(op => op.kind === 'grant' ? [op.holder, 1, 60000] : null)
    return { id, result: { revision: 1, time_ms: 0, results, level: 'disk' } }
  })
  const board = (await client(t, url, PATIENT)).board()
  await board.withLock('public/lock', async lock => {
    const options = { timeout_ms: 0, ttl_ms: 60000 }
    await assert.rejects(lock.board.withClaim('public/tasks/*', async () => { throw new Error('broken') }, options), /broken/)
    await assert.rejects(lock.board.withClaim('public/tasks/*', () => {}, options), { code: 'fenced' })
    await assert.rejects(lock.board.withClaim('public/tasks/*', async () => { throw new Error('broken') }, { ...options, tries_max: 1 }), /broken/)
    aborts = true // while the task is being taken
    await assert.rejects(lock.board.withClaim('public/tasks/*', () => {}, { ...options, signal: abort.signal }), /enough/)
  }, { ttl_ms: 60000 })
  const claimed = ['claimed', ['public/lock']]
  assert.deepStrictEqual(commits.slice(1, -1), [
    claimed, ['returned: Error: broken', []],
    claimed, ['done', ['public/lock']], ['returned: Fenced: lost', []],
    claimed, ['dead letter: Error: broken', []],
    claimed, ['', []]
  ])
})

test('a value that only moves, or lives longer, stays as it is: 1.0 does not become 1', async t => {
  const value = new Uint8Array([0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0])
  const task = { key: 'public/tasks/1', value, mod_revision: 1, create_revision: 1, author: 'ada', account: 'ada', time_ms: 0, created_ms: 0 }
  const puts = new Map()
  const url = await service(t, ({ id, method, params }) => {
    const state = { revision: 1, epoch: 'e' }
    if (method === 'head') return { id, result: HEAD }
    if (method === 'list') return { id, result: { ...state, entries: [task] } }
    if (method === 'leases') return { id, result: { ...state, leases: [] } }
    if (method === 'read') return { id, result: { ...state, entries: params.keys.includes(task.key) ? [task] : [] } }
    for (const op of params.ops) if (op.kind === 'put') puts.set(op.key, op.value)
    return { id, result: { revision: 2, time_ms: 0, results: params.ops.map(() => null), level: 'disk' } }
  })
  const board = (await client(t, url, PATIENT)).board()
  await board.touch(task.key, { ttl_ms: 1000 })
  const broken = board.withClaim('public/tasks/*', () => { throw new Error('broken') }, { timeout_ms: 0, tries_max: 1 })
  await assert.rejects(broken, /broken/)
  for (const key of [task.key, 'public/~dead/tasks/1']) assert.deepStrictEqual(new Uint8Array(puts.get(key)), value)
})

test('a history is read on also with a limit that is a BigInt', async t => {
  const asked = []
  const url = await service(t, ({ id, method, params }) => {
    if (method !== 'history') return { id, result: HEAD }
    asked.push(Number(params.limit))
    return { id, result: asked.length === 1 ? [{ key: 'public/a', revision: 1, time_ms: 0, author: 'ada' }] : [] }
  })
  const board = (await client(t, url, PATIENT)).board()
  assert.equal((await board.history('public/a', { limit: 5n })).length, 1)
  assert.deepEqual(asked, [5, 4])
})

/** What a service with these tasks, none of them claimed, answers to anything but a watch. */
function ofTasks (method, params, entries) {
  const state = { revision: entries.length, epoch: 'e' }
  switch (method) {
    case 'head': return HEAD
    case 'list': return { ...state, entries }
    case 'leases': return { ...state, leases: [] }
    case 'read': return { ...state, entries: [] }
    case 'commit': return { revision: 2, time_ms: 0, results: params.ops.map(() => null), level: 'disk' }
    default: return null
  }
}

test('a claim that waits looks again when its watch cannot go on', { timeout: 30000 }, async t => {
  const task = { key: 'public/tasks/1', value: encodeValue(1), mod_revision: 1, create_revision: 1, author: 'ada', account: 'ada', time_ms: 0, created_ms: 0 }
  let entries = []
  const url = await service(t, ({ id, method, params }, socket) => {
    const send = message => socket.write(frame(Buffer.from(pack([message]))))
    if (method !== 'watch') return { id, result: ofTasks(method, params, entries) }
    send({ id, result: { position: params.after } })
    entries = [task]
    const error = { code: -32010, message: 'much', data: { code: 'resync', fields: { revision: 1, epoch: 'f', from_revision: 0 } } }
    send({ method: 'cancelled', params: { watch: params.watch, error } })
  })
  const board = (await client(t, url, PATIENT)).board()
  assert.equal(await board.withClaim('public/tasks/*', found => found.key), task.key)
})

test('a claim that waits looks again when a restore has ended the leases', { timeout: 30000 }, async t => {
  const task = { key: 'public/tasks/1', value: encodeValue(1), mod_revision: 1, create_revision: 1, author: 'ada', account: 'ada', time_ms: 0, created_ms: 0 }
  let leases = [{ key: task.key, holder: 'bob~1', fence: 1, until_ms: 0 }]
  const url = await service(t, ({ id, method, params }, socket) => {
    if (method === 'leases') return { id, result: { revision: 1, epoch: 'e', leases } }
    if (method !== 'watch') return { id, result: ofTasks(method, params, [task]) }
    leases = []
    const revision = { revision: 2, time_ms: 0, author: '~system', digest: 'aa', changes: [], epoch: { ...EPOCH, cause: 'restore' } }
    const told = { method: 'changes', params: { watch: params.watch, position: 'e:2:aa', revisions: [revision] } }
    socket.write(frame(Buffer.from(pack([{ id, result: { position: params.after } }, told]))))
  })
  const board = (await client(t, url, PATIENT)).board()
  assert.equal(await board.withClaim('public/tasks/*', found => found.key, { timeout_ms: 5000 }), task.key)
})

test('a lock is waited for where the log does not reach back', { timeout: 30000 }, async t => {
  const kinds = []
  const url = await service(t, ({ id, method, params }, socket) => {
    const send = message => socket.write(frame(Buffer.from(pack([message]))))
    if (method === 'watch') {
      send({ id, result: { position: params.after } })
      const error = { code: -32010, message: 'gone', data: { code: 'compacted', fields: { revision: 1, oldest: 9 } } }
      return send({ method: 'cancelled', params: { watch: params.watch, error } })
    }
    if (method !== 'commit') return { id, result: method === 'head' ? HEAD : { revision: 1, epoch: 'e', entries: [] } }
    const [{ kind, holder }] = params.ops
    kinds.push(kind)
    const lease = { grant: ['bob~1', 1, 60000, holder, 60000, 60000], renew: [holder, 2, 60000], release: null }[kind]
    return { id, result: { revision: kinds.length, time_ms: 0, results: [lease], level: 'disk' } }
  })
  const board = (await client(t, url, PATIENT)).board()
  assert.equal(await board.withLock('public/lock', lock => lock.fences[0].fence, { ttl_ms: 60000 }), 2)
  assert.deepEqual(kinds, ['grant', 'renew', 'release'])
})

for (const timeout_ms of [2 ** 31, Infinity]) {
  test(`a task is waited for up to ${timeout_ms} ms`, { timeout: 30000 }, async t => {
    const task = { key: 'public/tasks/1', value: encodeValue(1), mod_revision: 1, create_revision: 1, author: 'ada', account: 'ada', time_ms: 0, created_ms: 0 }
    let entries = []
    const url = await service(t, ({ id, method, params }, socket) => {
      const send = message => socket.write(frame(Buffer.from(pack([message]))))
      if (method !== 'watch') return { id, result: ofTasks(method, params, entries) }
      setTimeout(() => {
        entries = [task]
        const revision = { revision: 1, time_ms: 0, author: 'ada', digest: 'aa', changes: [{ kind: 'put', key: task.key, value: task.value }] }
        send({ method: 'changes', params: { watch: params.watch, position: 'e:1:aa', revisions: [revision] } })
      }, 30)
      return { id, result: { position: params.after } }
    })
    const board = (await client(t, url, PATIENT)).board()
    assert.equal(await board.withClaim('public/tasks/*', ({ key }) => key, { timeout_ms }), task.key)
  })
}
