// Leases at a moment. The service lists those of now; earlier ones are read from the log, which has every
// grant and every end, but no renewals.
import { board } from './store.js'

/** @import { LeaseMessage } from './client/methods.js' */

/** Revisions before a moment in which the grants of its leases are looked for. */
export const LOOKED_BACK = 5_000

/**
 * The leases at a revision, or now, by key. A fence is the revision of its grant, so what is held now and was granted
 * before the moment was held then.
 * @param {number | null} revision
 * @param {AbortSignal} signal
 * @returns {Promise<LeaseMessage[]>}
 */
export async function leasesAt (revision, signal) {
  const now = await board().leases('**', { signal })
  if (revision === null) return now
  /** @type {Map<string, LeaseMessage>} */
  const found = new Map()
  for (const lease of now) if (lease.fence <= revision) found.set(lease.key, { ...lease, waiters: [] })
  const head = await board().head({ signal })
  const after = Math.max(revision - LOOKED_BACK, head.oldest - 1, 0)
  for (const { revision: own, epoch, changes } of await board().log({ after, limit: revision - after, signal })) {
    if (own > revision) break // a reader of narrow rights gets as many, and later ones
    if (epoch !== null) found.clear() // a restore ends every lease
    for (const { kind, key, lease } of changes) {
      if (lease === null || lease === undefined) continue
      if (kind === 'release' || kind === 'expire') found.delete(key)
      else found.set(key, lease)
    }
  }
  return [...found.values()].sort((a, b) => (a.key < b.key ? -1 : 1))
}
