// Waiting that ends: with an event, after a time, or when an AbortSignal says so.

/** A platform's timer that is to run for longer ends at once. */
const TIMER_MS_MAX = 2 ** 31 - 1

/**
 * Call `end` after `ms`, however long that is. Returns what calls it off.
 * @param {number} ms Infinity never ends
 * @param {() => void} end
 * @returns {() => void}
 */
export function endAfter (ms, end) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer
  /** @param {number} left */
  const run = left => {
    const now = Math.min(Math.max(left, 0), TIMER_MS_MAX)
    timer = setTimeout(() => left > now ? run(left - now) : end(), now)
  }
  if (ms !== Infinity) run(ms)
  return () => clearTimeout(timer)
}

/**
 * Wait for `ms`. Throws the reason of `signal` when it aborts.
 * @param {number} ms Infinity waits for ever
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause (ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const abort = () => { callOff(); reject(signal?.reason) }
    const callOff = endAfter(ms, () => { signal?.removeEventListener('abort', abort); resolve() })
    signal?.addEventListener('abort', abort, { once: true })
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
      const done = () => {
        this._waiting.delete(wake)
        callOff()
        signal?.removeEventListener('abort', abort)
      }
      const wake = () => { done(); resolve(true) }
      const abort = () => { done(); reject(signal?.reason) }
      const callOff = endAfter(ms, () => { done(); resolve(false) })
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
