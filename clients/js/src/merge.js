// JSON merge patch, RFC 7396: objects are merged, null removes a member, all else replaces.
import { setMember } from './msgpack.js'

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isMap (value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array)
}

/**
 * The result of applying `patch` to `value`; neither is changed.
 * @param {unknown} value
 * @param {unknown} patch
 * @returns {any}
 */
export function merged (value, patch) {
  if (!isMap(patch)) return patch
  /** @type {Record<string, any>} */
  const found = {}
  if (isMap(value)) for (const key of Object.keys(value)) setMember(found, key, value[key])
  for (const key of Object.keys(patch)) {
    const member = patch[key]
    if (member === null) delete found[key]
    else setMember(found, key, merged(Object.hasOwn(found, key) ? found[key] : undefined, member))
  }
  return found
}
