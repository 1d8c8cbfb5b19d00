// Measures one server of Yjs documents; prints one line of JSON.
//   node fanout.mjs '{"url": ..., "room": ..., "dialect": "y-websocket" | "hocuspocus", ...}'
// One editor, a real Y.Doc, inserts about ten characters at a time, each a transaction of its own,
// and `receivers` read. All share this process and its clock; a delivery is one insert that reached
// one receiver, however many came in one frame.
import * as decoding from 'lib0/decoding'
import * as encoding from 'lib0/encoding'
import { readFileSync } from 'node:fs'
import WebSocket from 'ws'
import * as sync from 'y-protocols/sync'
import * as Y from 'yjs'

const given = JSON.parse(process.argv[2])
const isHocuspocus = given.dialect === 'hocuspocus'
const SYNC = 0
const AWARENESS = 1
const AUTH = 2
const SYNC_REPLY = 4
const DRAIN_MS_MAX = 60000
const LOAD_MS_MAX = 20000
const CLOCK_TICKS = 100
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
const turn = () => new Promise(resolve => setImmediate(resolve))
const now = () => performance.now()

// --- what the kernel says of the server's processes ----------------------------------------------

const cpuMs = () => given.pids.reduce((sum, pid) => {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1).split(' ')
  return sum + (Number(fields[11]) + Number(fields[12])) * 1000 / CLOCK_TICKS
}, 0)
const residentMb = () =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${given.pids[0]}/status`, 'utf8'))[1]) / 1024
const ownCpuMs = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1000 }

// --- one connection ------------------------------------------------------------------------------

function framed (room, fill) {
  const encoder = encoding.createEncoder()
  if (isHocuspocus) encoding.writeVarString(encoder, room)
  fill(encoder)
  return encoding.toUint8Array(encoder)
}

// `doc` may be null: then the frames are read, and nothing is kept.
function open (room, doc, onUpdate = () => {}, onAnswer = () => {}) {
  return new Promise((resolve, reject) => {
    const url = isHocuspocus ? given.url : `${given.url}/${room.name}?${room.query}`
    const socket = new WebSocket(url, { perMessageDeflate: false })
    const client = { socket, doc, frames: 0, closed: null }
    const send = fill => socket.send(framed(room.name, fill))
    const ask = () => send(encoder => {
      encoding.writeVarUint(encoder, SYNC)
      if (doc) return sync.writeSyncStep1(encoder, doc)
      encoding.writeVarUint(encoder, 0)
      encoding.writeVarUint8Array(encoder, Uint8Array.of(0))
    })
    const answer = state => send(encoder => {
      encoding.writeVarUint(encoder, SYNC)
      encoding.writeVarUint(encoder, 1)
      const lacking = doc ? Y.encodeStateAsUpdate(doc, state) : Uint8Array.of(0, 0)
      encoding.writeVarUint8Array(encoder, lacking)
    })
    const authenticate = () => send(encoder => {
      encoding.writeVarUint(encoder, AUTH)
      encoding.writeVarUint(encoder, 0)
      encoding.writeVarString(encoder, 'token')
      encoding.writeVarString(encoder, '4.7.0')
    })
    const onSync = decoder => {
      const step = decoding.readVarUint(decoder)
      const body = decoding.readVarUint8Array(decoder)
      if (step === 0) return answer(body)
      if (doc) Y.applyUpdate(doc, body, 'remote')
      if (step === 1) {
        onAnswer(body)
        return resolve(client)
      }
      client.frames++
      onUpdate(body)
    }
    socket.binaryType = 'arraybuffer'
    socket.on('open', () => isHocuspocus ? authenticate() : ask())
    socket.on('error', reject)
    socket.on('close', (code, reason) => {
      client.closed = `${code} ${reason}`
      reject(new Error(`closed: ${client.closed}`))
    })
    socket.on('message', data => {
      const decoder = decoding.createDecoder(new Uint8Array(data))
      if (isHocuspocus) decoding.readVarString(decoder)
      while (decoding.hasContent(decoder)) {
        const type = decoding.readVarUint(decoder)
        if (type === SYNC || type === SYNC_REPLY) onSync(decoder)
        else if (type === AWARENESS) decoding.readVarUint8Array(decoder)
        else if (type === AUTH && isHocuspocus) {
          const kind = decoding.readVarUint(decoder)
          decoding.readVarString(decoder)
          if (kind === 2) ask()
        } else return
      }
    })
    doc?.on('update', (update, origin) => {
      if (origin === 'remote') return
      send(encoder => {
        encoding.writeVarUint(encoder, SYNC)
        encoding.writeVarUint(encoder, 2)
        encoding.writeVarUint8Array(encoder, update)
      })
    })
  })
}

async function closed (clients) {
  await Promise.all(clients.map(client => new Promise(resolve => {
    if (client.socket.readyState === WebSocket.CLOSED) return resolve()
    client.socket.once('close', resolve)
    client.socket.close()
    setTimeout(() => client.socket.terminate(), 2000)
  })))
}

// --- fan-out -------------------------------------------------------------------------------------

class Deliveries {
  constructor (receivers) {
    this.receivers = receivers
    this.begin()
  }

  begin () { this.sentAt = new Map(); this.left = new Map(); this.delays = []; this.count = 0 }
  made (number) { this.sentAt.set(number, now()); this.left.set(number, this.receivers) }

  read (update) {
    const text = Buffer.from(update.buffer, update.byteOffset, update.length).latin1Slice()
    const at = now()
    for (const [, digits] of text.matchAll(/~(\d{7}) /g)) {
      const number = Number(digits)
      if (!this.left.has(number)) continue
      this.count++
      this.delays.push(at - this.sentAt.get(number))
      const left = this.left.get(number) - 1
      if (left) this.left.set(number, left); else this.left.delete(number)
    }
  }

  async drained () {
    const until = now() + DRAIN_MS_MAX
    while (this.left.size && now() < until) await pause(2)
  }

  quantile (part) {
    const sorted = Float64Array.from(this.delays).sort()
    return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))]
  }
}

async function fanout ({ room, receivers, rate, seconds, burst, window }) {
  const deliveries = new Deliveries(receivers)
  const editor = await open(room, new Y.Doc())
  const readers = []
  for (let i = 0; i < receivers; i++) {
    // One of them is a whole replica, and must end with the editor's text.
    readers.push(await open(room, i ? null : new Y.Doc(), update => deliveries.read(update)))
  }
  const text = editor.doc.getText('text')
  let number = 0
  const edit = () => {
    deliveries.made(number)
    text.insert(text.length, `~${String(number++).padStart(7, '0')} `)
  }
  await pause(300)
  const measured = async work => {
    deliveries.begin()
    const before = { at: now(), server: cpuMs(), client: ownCpuMs(), frames: frames(readers) }
    await work()
    await deliveries.drained()
    return {
      perSecond: deliveries.count * 1000 / (now() - before.at),
      serverUs: (cpuMs() - before.server) * 1000 / deliveries.count,
      clientUs: (ownCpuMs() - before.client) * 1000 / deliveries.count,
      framesEach: (frames(readers) - before.frames) / deliveries.count,
      lost: deliveries.left.size
    }
  }
  const paced = await measured(async () => {
    const start = now()
    for (let i = 0; i < rate * seconds; i++) {
      const left = start + i * 1000 / rate - now()
      if (left > 1) await pause(left)
      edit()
    }
  })
  const [p50, p99] = [deliveries.quantile(0.5), deliveries.quantile(0.99)]
  const fast = await measured(async () => {
    for (let i = 0; i < burst; i++) {
      while (deliveries.left.size >= window) await turn()
      edit()
      if (i % 8 === 7) await turn()
    }
  })
  await pause(200)
  const same = readers[0].doc.getText('text').toString() === text.toString()
  const ended = [editor, ...readers].filter(client => client.closed).length
  await closed([editor, ...readers])
  return {
    'paced p50 ms': p50,
    'paced p99 ms': p99,
    'paced server us': paced.serverUs,
    'deliveries/s': fast.perSecond,
    'server us': fast.serverUs,
    'client us': fast.clientUs,
    'frames each': fast.framesEach,
    lost: paced.lost + fast.lost + ended + (same ? 0 : 1)
  }
}
const frames = clients => clients.reduce((sum, client) => sum + client.frames, 0)

// --- loading -------------------------------------------------------------------------------------

// A document of so many edits that nobody has open: until a new peer has all of it.
async function load ({ room, edits, rounds, restMs }) {
  const editor = await open(room, new Y.Doc())
  const text = editor.doc.getText('text')
  let state = 1
  const below = limit => { state = (state * 48271) % 2147483647; return state % limit }
  for (let i = 0; i < edits; i++) {
    text.insert(below(text.length + 1), 'word ')
    if (i % 16 === 15) await turn()
  }
  const reader = await open(room, new Y.Doc())
  const until = now() + DRAIN_MS_MAX
  while (reader.doc.getText('text').length < text.length && now() < until) await pause(5)
  await closed([editor, reader])
  const took = []
  let cpu = 0
  for (let i = 0; i < rounds; i++) {
    await pause(restMs)
    const [began, used, came, doc] = [now(), cpuMs(), [], new Y.Doc()]
    const note = update => came.push([now(), update])
    const late = await open(room, null, note, note)
    // Some servers answer before they have loaded it: the moment that counts is when all is there.
    let whole = null
    while (whole === null && now() < began + LOAD_MS_MAX) {
      await pause(100)
      for (const [at, update] of came.splice(0)) {
        Y.applyUpdate(doc, update)
        if (doc.getText('text').length === text.length) whole ??= at
      }
    }
    cpu += cpuMs() - used
    await closed([late])
    if (whole === null) return { 'load ms': null, lost: text.length - doc.getText('text').length }
    took.push(whole - began)
  }
  took.sort((a, b) => a - b)
  return { 'load ms': took[Math.floor(took.length / 2)], 'server ms': cpu / rounds, lost: 0 }
}

// --- a reader that stopped -----------------------------------------------------------------------

// Writes `megabytes` twice, as text that is removed again; the second time somebody does not read.
async function stall ({ room, megabytes }) {
  const editor = await open(room, new Y.Doc())
  const witness = await open(room, new Y.Doc())
  const text = editor.doc.getText('text')
  const piece = 'x'.repeat(64 * 1024)
  const write = async () => {
    let peak = residentMb()
    for (let i = 0; i < megabytes * 16; i++) {
      text.insert(0, piece)
      text.delete(0, piece.length)
      if (i % 8 === 7) {
        text.insert(0, `${i} `)
        const wanted = text.toString()
        const until = now() + DRAIN_MS_MAX
        while (witness.doc.getText('text').toString() !== wanted && now() < until) await pause(2)
        peak = Math.max(peak, residentMb())
      }
    }
    return peak
  }
  await write()
  const before = residentMb()
  const stopped = await open(room, null)
  stopped.socket.pause()
  const peak = await write()
  await closed([editor, witness])
  stopped.socket.terminate()
  return { 'written MB': megabytes, 'before MB': before, 'stalled growth MB': peak - before }
}

const cells = { fanout, load, stall }
console.log(JSON.stringify(await cells[given.cell](given)))
process.exit(0)
