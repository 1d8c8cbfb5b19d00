// Hocuspocus with its defaults, documents kept as files: node hocuspocus.mjs PORT FOLDER
import { Database } from '@hocuspocus/extension-database'
import { Server } from '@hocuspocus/server'
import { readFile, writeFile } from 'node:fs/promises'

const [port, folder] = process.argv.slice(2)
const path = name => `${folder}/${encodeURIComponent(name)}`
const database = new Database({
  fetch: ({ documentName }) => readFile(path(documentName)).catch(() => null),
  store: ({ documentName, state }) => writeFile(path(documentName), state)
})
await new Server({
  port: Number(port), address: '127.0.0.1', quiet: true, extensions: [database]
}).listen()
