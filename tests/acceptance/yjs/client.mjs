// Unmodified Yjs clients, told what to do by one JSON command a line; each is answered by one line.
import { createInterface } from 'node:readline'
import { WebSocket } from 'ws'
import { WebsocketProvider } from 'y-websocket'
import * as Y from 'yjs'

const clients = new Map()
const pause = () => new Promise(resolve => setTimeout(resolve, 5))
const until = async (condition, timeoutMs = 50000) => {
  const deadline = Date.now() + timeoutMs
  while (!condition()) {
    if (Date.now() > deadline) return false
    await pause()
  }
  return true
}

function open ({ name, url, room, params = {} }) {
  const doc = new Y.Doc()
  const provider = new WebsocketProvider(url, room, doc, {
    WebSocketPolyfill: WebSocket, disableBc: true, maxBackoffTime: 200, params
  })
  const client = { doc, provider, closes: [], text: doc.getText('text') }
  provider.on('connection-close', event => client.closes.push(event ? event.code : 0))
  provider.awareness.setLocalState({ name })
  clients.set(name, client)
}

function told (client) {
  return {
    text: client.text.toString(),
    facts: client.doc.getMap('facts').toJSON(),
    synced: client.provider.synced,
    stopped: !client.provider.shouldConnect,
    closes: client.closes,
    present: [...client.provider.awareness.getStates().values()].map(state => state.name).sort()
  }
}

const commands = {
  open: async command => { open(command); return {} },
  insert: async ({ name, at, text }) => { clients.get(name).text.insert(at, text); return {} },
  append: async ({ name, text }) => {
    const found = clients.get(name).text
    found.insert(found.length, text)
    return {}
  },
  remove: async ({ name, at, length }) => { clients.get(name).text.delete(at, length); return {} },
  set: async ({ name, key, value }) => { clients.get(name).doc.getMap('facts').set(key, value); return {} },
  disconnect: async ({ name }) => { clients.get(name).provider.disconnect(); return {} },
  connect: async ({ name }) => { clients.get(name).provider.connect(); return {} },
  close: async ({ name }) => {
    clients.get(name).provider.destroy()
    clients.delete(name)
    return {}
  },
  tell: async ({ name }) => told(clients.get(name)),
  // Wait until what a client tells has all of `wanted`.
  until: async ({ name, wanted }) => {
    const client = clients.get(name)
    const fits = () => Object.entries(wanted).every(
      ([key, value]) => JSON.stringify(told(client)[key]) === JSON.stringify(value))
    return { held: await until(fits), ...told(client) }
  },
  closedWith: async ({ name, code }) => {
    const client = clients.get(name)
    return { held: await until(() => client.closes.includes(code)), ...told(client) }
  },
  // `count` clients open one room at the same moment, write, and wait until all have everything.
  rush: async ({ url, room, params, count }) => {
    const names = Array.from({ length: count }, (_, i) => `${room}-${i}`)
    for (const name of names) open({ name, url, room, params })
    const all = names.map(name => clients.get(name))
    all.forEach((client, i) => client.text.insert(0, String.fromCharCode(97 + i)))
    const held = await until(() => all.every(
      client => client.provider.synced && client.text.length === count &&
        client.text.toString() === all[0].text.toString()))
    names.forEach(name => { clients.get(name).provider.destroy(); clients.delete(name) })
    return { held }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  console.log(JSON.stringify(await commands[command.do](command)))
}
process.exit(0)
