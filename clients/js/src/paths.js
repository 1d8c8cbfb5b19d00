// Keys, prefixes and patterns, as far as a client has to know them: the service checks them all.

const SEGMENT = '[A-Za-z0-9._~-]{1,128}'
const PREFIX = new RegExp(`^(?:(?:public|system)|(?:private|inbox)/${SEGMENT})(?:/${SEGMENT})*$`)

/**
 * Whether keys of one namespace can lie below `path`.
 * @param {string} path
 */
export function isPrefix (path) {
  return path.length <= 1024 && PREFIX.test(path) && !path.split('/').some(part => part === '.' || part === '..')
}

/**
 * The namespace of a well-formed key: `public`, `system`, `private/<agent>` or `inbox/<agent>`.
 * @param {string} key
 */
export function namespaceOf (key) {
  const parts = key.split('/')
  return parts[0] === 'public' || parts[0] === 'system' ? parts[0] : `${parts[0]}/${parts[1] ?? ''}`
}

/**
 * Whether a read of `pattern`, which matches `key`, depends on `key`. Keys in the runtime's branches,
 * whose names begin with a tilde, count only if the pattern names the branch.
 * @param {string} pattern
 * @param {string} key
 */
export function isMeant (pattern, key) {
  const branch = key.slice(namespaceOf(key).length + 1).split('/')[0] ?? ''
  return !branch.startsWith('~') || pattern.split('/').includes(branch)
}

/**
 * The literal path before the first wildcard of a pattern.
 * @param {string} pattern
 */
export function prefixOf (pattern) {
  const parts = pattern.split('/')
  const wild = parts.findIndex(part => part === '*' || part === '**')
  return parts.slice(0, wild < 0 ? undefined : wild).join('/')
}

/**
 * The key of the document that `path` belongs to; null if to none.
 * @param {string} path
 */
export function documentOf (path) {
  const parts = path.split('/')
  const at = parts.indexOf('~doc')
  return at < 0 ? null : parts.slice(0, at).join('/')
}
