// The JavaScript client, told what to do by one JSON command a line; each is answered by one line.
//
// `on` names an object by its handle. A call of `step`, `runStep` or `withLock` is a block: it is
// answered when its body begins, and `leave` ends the body.
import { createInterface } from 'node:readline'
import * as blackboard from '../../../clients/js/src/index.js'

const handles = new Map([[0, blackboard]])
const aborts = new Map()
const blocks = new Map()
const KINDS = ['Client', 'Board', 'Step', 'Watch', 'Lock', 'Task']
let last = 0

function kept (thing) {
  handles.set(++last, thing)
  return { $handle: last, kind: thing.constructor.name, agent: thing.agent, name: thing.name }
}

// --- values: JSON has no bytes, and its numbers are not exact ---------------------------------------

function read (part, signal) {
  if (Array.isArray(part)) return part.map(each => read(each, signal))
  if (part === null || typeof part !== 'object') return part
  if ('$int' in part) return exact(BigInt(part.$int))
  if ('$float' in part) return Number(part.$float)
  if ('$bytes' in part) return new Uint8Array(Buffer.from(part.$bytes, 'base64'))
  if ('$set' in part) return new Set(part.$set)
  if ('$object' in part) return () => {}
  if ('$undefined' in part) return undefined
  if ('$date' in part) return new Date(part.$date)
  if ('$signal' in part) return signal
  if ('$board' in part) return handles.get(part.$board)
  const pairs = part.$map.map(([key, value]) => [read(key, signal), read(value, signal)])
  if (pairs.some(([key]) => typeof key !== 'string')) return new Map(pairs)
  const found = {}
  for (const [key, value] of pairs) Object.defineProperty(found, key, { value, enumerable: true, writable: true, configurable: true })
  return found
}

function exact (number) {
  return Number.isSafeInteger(Number(number)) ? Number(number) : number
}

function written (part) {
  if (part === undefined || part === null || typeof part === 'boolean' || typeof part === 'string') return part ?? null
  if (typeof part === 'bigint') return { $int: String(part) }
  if (typeof part === 'number') return Number.isInteger(part) ? { $int: String(part) } : { $float: String(part) }
  if (part instanceof Uint8Array) return { $bytes: Buffer.from(part).toString('base64') }
  if (Array.isArray(part)) return part.map(written)
  if (part instanceof Map) return { $map: [...part].map(([key, value]) => [key, written(value)]) }
  if (KINDS.includes(part.constructor?.name)) return kept(part)
  return { $map: Object.keys(part).map(key => [key, written(part[key])]) }
}

function failed (error) {
  if (error instanceof blackboard.BlackboardError) {
    return { error: { code: error.code, fields: written(error.fields), message: error.message } }
  }
  return { raised: error?.name === 'AbortError' ? 'AbortError' : String(error?.stack ?? error) }
}

// --- commands -------------------------------------------------------------------------------------

const OWN = {
  // Everything that an async generator yields.
  async all ({ on, method, args }, signal) {
    const found = []
    for await (const item of handles.get(on)[method](...read(args, signal))) found.push(item)
    return { ok: written(found) }
  },
  async read ({ on, name }) { return { ok: written(handles.get(on)[name]) } },
  async set ({ on, name, value }) {
    handles.get(on)[name] = read(value)
    return { ok: null }
  },
  async block ({ on, method, args, id }, signal) {
    const rest = read(args, signal)
    return await begun(id, body => handles.get(on)[method](...rest.map(each => each === undefined ? body : each)))
  },
  async leave ({ block, broken, value }) {
    const found = blocks.get(block)
    const next = found.next()
    if (broken) found.reject(Object.assign(new Error(broken.message), { name: broken.name }))
    else found.resolve(read(value))
    return await next
  },
  async abortBlock ({ block }) {
    aborts.get(block)?.abort()
    return { ok: null }
  }
}

// Answers when the body begins, when it begins again, and when the call has ended; also if it ended
// before that was asked, as a block does whose lock was lost.
function begun (id, call) {
  let tell
  const body = thing => new Promise((resolve, reject) => {
    block.resolve = resolve
    block.reject = reject
    thing.signal?.addEventListener('abort', () => reject(thing.signal.reason))
    tell({ entered: { ...kept(thing), facts: written(factsOf(thing)) } })
  })
  const over = Promise.resolve().then(() => call(body))
    .then(result => ({ ok: written(result) }), failed)
  const block = { next: () => Promise.race([new Promise(resolve => { tell = resolve }), over]) }
  blocks.set(id, block)
  return block.next()
}

function factsOf (thing) {
  const { holder = null, fences = null, keys = null, until_ms = null } = thing
  if (thing instanceof blackboard.Task) {
    const { key, value, attempt, last_error, fence } = thing
    return { key, value, attempt, last_error, fence }
  }
  return { holder, fences: thing.constructor.name === 'Lock' ? fences : null, keys, until_ms }
}

async function carriedOut (command) {
  const { id, on, method, args } = command
  const abort = new AbortController()
  aborts.set(id, abort)
  try {
    if (command.do !== undefined) return await OWN[command.do](command, abort.signal)
    const thing = handles.get(on)
    const ok = written(await thing[method](...read(args, abort.signal)))
    const { position = null, revision = null, reached = null, receipt = null } = thing instanceof blackboard.Watch ? thing : {}
    return { ok, facts: written({ position, revision, reached, receipt }) }
  } catch (error) {
    return failed(error)
  } finally {
    if (command.do !== 'block') aborts.delete(id)
  }
}

process.on('unhandledRejection', error => {
  console.error('unhandled', error)
  process.exit(3)
})
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  if (command.abort !== undefined) aborts.get(command.abort)?.abort()
  else carriedOut(command).then(answer => console.log(JSON.stringify({ id: command.id, ...answer })))
}
process.exit(0)
