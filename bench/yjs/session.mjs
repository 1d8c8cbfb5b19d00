// Replays a recorded session of two writers through stock clients; prints one line of JSON.
//   node session.mjs '{"url": ..., "room": ..., "dialect": ..., "recording": FILE, "pids": [...]}'
// The recording is what bench/typing_model.py makes. Each edit is a transaction of its own. A writer
// makes an edit when it has the characters of the other one that its author had seen, at once.
import { HocuspocusProvider, HocuspocusProviderWebsocket } from '@hocuspocus/provider'
import { readFileSync } from 'node:fs'
import WebSocket from 'ws'
import { WebsocketProvider } from 'y-websocket'
import * as Y from 'yjs'

const given = JSON.parse(process.argv[2])
const STAY = -1
const NEAR = 1001
const AT_ONCE = 16
const END_MS_MAX = 120000
const CLOCK_TICKS = 100
const turn = () => new Promise(resolve => setImmediate(resolve))
const now = () => performance.now()
const cpuMs = () => given.pids.reduce((sum, pid) => {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1).split(' ')
  return sum + (Number(fields[11]) + Number(fields[12])) * 1000 / CLOCK_TICKS
}, 0)

const traffic = { frames: 0, bytes: 0 }
class CountingWebSocket extends WebSocket {
  constructor (url, protocols) {
    super(url, protocols, { perMessageDeflate: false })
    this.on('message', data => {
      traffic.frames++
      traffic.bytes += data.byteLength ?? data.length
    })
  }
}

function provide (doc) {
  const { url, room } = given
  if (given.dialect === 'hocuspocus') {
    const socket = new HocuspocusProviderWebsocket({ url, WebSocketPolyfill: CountingWebSocket })
    const provider = new HocuspocusProvider({
      websocketProvider: socket, name: room.name, document: doc, token: 'token'
    })
    provider.attach()
    return { provider, end: () => { provider.destroy(); socket.destroy() } }
  }
  const provider = new WebsocketProvider(url, room.name, doc, {
    WebSocketPolyfill: CountingWebSocket,
    disableBc: true,
    params: Object.fromEntries(new URLSearchParams(room.query))
  })
  return { provider, end: () => provider.destroy() }
}

class Writer {
  constructor (edits) {
    this.edits = edits
    this.doc = new Y.Doc()
    this.text = this.doc.getText('text')
    this.cursor = 0
    this.hears = () => {}
    this.text.observe((event, transaction) => {
      if (!transaction.local) this.cursor = shifted(this.cursor, event.delta)
    })
    this.doc.on('update', () => this.hears())
    Object.assign(this, provide(this.doc))
  }

  synced () {
    return new Promise(resolve => {
      const look = () => this.provider.synced ? resolve() : setTimeout(look, 2)
      look()
    })
  }

  async replay () {
    for (const [number, [, seen, move, removed, text]] of this.edits.entries()) {
      await this.heard(seen)
      this.doc.transact(() => this.edit(move, removed, text))
      if (number % AT_ONCE === AT_ONCE - 1) await turn()
    }
  }

  async heard (seen) {
    while (Y.getState(this.doc.store, this.other.doc.clientID) < seen) {
      await new Promise(resolve => { this.hears = resolve })
    }
  }

  edit (move, removed, text) {
    const length = this.text.length
    if (move >= NEAR) this.cursor += move - 1501
    else if (move !== STAY) this.cursor = Math.round(length * move / 1000)
    this.cursor = Math.max(0, Math.min(this.cursor, length))
    const count = Math.min(removed, this.cursor)
    if (count) this.text.delete(this.cursor - count, count)
    this.cursor -= count
    if (text) this.text.insert(this.cursor, text)
    this.cursor += text.length
  }
}

function shifted (cursor, delta) {
  let at = 0
  for (const { retain = 0, insert = '', delete: gone = 0 } of delta) {
    if (at > cursor) break
    if (gone) cursor -= Math.min(gone, Math.max(0, cursor - at))
    else if (insert.length) {
      if (at < cursor) cursor += insert.length
      at += insert.length
    }
    at += retain
  }
  return cursor
}

const recorded = JSON.parse(readFileSync(given.recording, 'utf8'))
const writers = [0, 1].map(which => new Writer(recorded.filter(edit => edit[0] === which)))
const [first, second] = writers
first.other = second
second.other = first
await Promise.all(writers.map(writer => writer.synced()))
const [began, used, own] = [now(), cpuMs(), process.cpuUsage()]
Object.assign(traffic, { frames: 0, bytes: 0 })
const until = began + END_MS_MAX
const ended = new Promise(resolve => setTimeout(resolve, END_MS_MAX).unref())
await Promise.race([Promise.all(writers.map(writer => writer.replay())), ended])
const same = () => first.text.length === second.text.length &&
  first.text.toString() === second.text.toString()
const typed = which => recorded.reduce((sum, edit) => sum + (edit[0] === which ? edit[4].length : 0), 0)
const whole = () => writers.every(writer =>
  Y.getState(writer.doc.store, first.doc.clientID) === typed(0) &&
  Y.getState(writer.doc.store, second.doc.clientID) === typed(1))
while (!(whole() && same()) && now() < until) await turn()
const took = now() - began
const client = process.cpuUsage(own)
const lost = whole() && same() ? 0 : 1
writers.forEach(writer => writer.end())
// What the server has to do when everybody has left belongs to the session.
await new Promise(resolve => setTimeout(resolve, given.restMs))
console.log(JSON.stringify({
  'session s': took / 1000,
  'server us an edit': (cpuMs() - used) * 1000 / recorded.length,
  'client us an edit': (client.user + client.system) / recorded.length,
  frames: traffic.frames,
  'frames KB': traffic.bytes / 1024,
  lost
}))
process.exit(0)
