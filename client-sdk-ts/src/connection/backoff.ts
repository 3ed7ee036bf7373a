/** When to try again. Full jitter, so that clients which lost one server do not come back together. Pure. */

/** The first delay lies below this, each further one below twice as much. */
const BASE_MS = 500;
/** Bounds every delay that we choose ourselves. */
const LONGEST_MS = 30_000;

/** `attempt` counts failures since the last connection that lasted; `fraction` is random in [0, 1). */
export function backoffMs(attempt: number, fraction: number): number {
  return Math.floor(fraction * Math.min(LONGEST_MS, BASE_MS * 2 ** Math.min(attempt, 16)));
}

/** After a limit was exceeded, retrying soon would only exceed it again. */
export function longBackoffMs(fraction: number): number {
  return LONGEST_MS / 2 + Math.floor((fraction * LONGEST_MS) / 2);
}

/** A token is never renewed sooner: a clock that is wrong must not make a loop of it. */
const RENEWAL_MS_MIN = 10_000;

/**
 * When a token is to be renewed, in milliseconds from now; null if it does not say. Reads `exp` and `iat` of a JWT without
 * verifying: the server does that. A clock for which it has expired already is wrong, or the server would have refused it: then
 * the token's lifetime counts.
 */
export function renewalMs(token: string, now: number): number | null {
  try {
    const part = token.split('.')[1]!.replace(/-/g, '+').replace(/_/g, '/');
    const { exp, iat } = JSON.parse(atob(part)) as { exp?: number; iat?: number };
    const left = exp! * 1000 - now;
    const lifetime = (exp! - (iat ?? Number.NaN)) * 1000;
    const until = left > 0 && !(left > lifetime) ? left : lifetime;
    // A tenth of the time before, at most a minute.
    return Number.isFinite(until) ? Math.max(RENEWAL_MS_MIN, until - Math.min(60_000, until / 10)) : null;
  } catch {
    return null;
  }
}
