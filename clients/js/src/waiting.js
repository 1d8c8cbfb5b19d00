// Waiting that ends: with an event, after a time, or when an AbortSignal says so.

/**
 * Wait for `ms`. Throws the reason of `signal` when it aborts.
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause (ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const end = () => { clearTimeout(timer); reject(signal?.reason) }
    const timer = setTimeout(() => { signal?.removeEventListener('abort', end); resolve() }, Math.max(ms, 0))
    signal?.addEventListener('abort', end, { once: true })
  })
}

/** A signal that many can wait for; each `notify` wakes all that wait. */
export class Turn {
  constructor () {
    /** @type {Set<() => void>} */
    this._waiting = new Set()
  }

  notify () {
    const waiting = [...this._waiting]
    this._waiting.clear()
    for (const wake of waiting) wake()
  }

  /**
   * Wait for the next `notify`, for at most `ms`; returns whether it came.
   * @param {number} ms Infinity waits for ever
   * @param {AbortSignal} [signal]
   * @returns {Promise<boolean>}
   */
  wait (ms, signal) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason)
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let timer
      const done = () => {
        this._waiting.delete(wake)
        clearTimeout(timer)
        signal?.removeEventListener('abort', abort)
      }
      const wake = () => { done(); resolve(true) }
      const abort = () => { done(); reject(signal?.reason) }
      if (ms !== Infinity) timer = setTimeout(() => { done(); resolve(false) }, Math.max(ms, 0))
      this._waiting.add(wake)
      signal?.addEventListener('abort', abort, { once: true })
    })
  }
}

/**
 * The `n`-th of `pauses`, shortened at random by up to half; the last one repeats.
 * @param {ReadonlyArray<number>} pauses
 * @param {number} n
 */
export function shortened (pauses, n) {
  return (0.5 + Math.random() / 2) * (pauses[Math.min(n, pauses.length - 1)] ?? 0)
}

/**
 * Milliseconds until the next attempt after `failure`: what it says, and up to half as long again;
 * otherwise `usual`.
 * @param {any} failure
 * @param {number} usual
 */
export function pauseAfter (failure, usual) {
  const asked = failure?.fields?.retry_after_ms
  return typeof asked === 'number' ? Math.max(usual, (1 + Math.random() / 2) * asked) : usual
}

/**
 * `count` random bytes in hexadecimal.
 * @param {number} count
 */
export function randomHex (count) {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(count))
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('')
}
