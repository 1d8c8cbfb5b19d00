// The client of Blackboard for JavaScript and TypeScript: see `connect`.
export { connect, Client } from './client.js'
export { Board } from './board.js'
export { Step } from './step.js'
export { Watch } from './watch.js'
export { Lock } from './lock.js'
export { Task } from './claim.js'
export { Document } from './documents.js'
export { documentToken, narrowed } from './tokens.js'
export { encodeValue } from './msgpack.js'
export { METHODS } from './methods.js'
export { DEFAULTS } from './limits.js'
export * from './errors.js'
/** @typedef {import('./msgpack.js').Value} Value */
/** @typedef {import('./records.js').Entry} Entry */
/** @typedef {import('./records.js').Listing} Listing */
/** @typedef {import('./records.js').Change} Change */
/** @typedef {import('./records.js').RevisionEvent} RevisionEvent */
/** @typedef {import('./records.js').Version} Version */
/** @typedef {import('./records.js').Moment} Moment */
/** @typedef {import('./claim.js').Claimed} Claimed */
/** @typedef {import('./writer.js').Receipt} Receipt */
/** @typedef {import('./writer.js').Condition} Condition */
/** @typedef {import('./methods.js').Methods} Methods */
/** @typedef {import('./tokens.js').Narrowing} Narrowing */
