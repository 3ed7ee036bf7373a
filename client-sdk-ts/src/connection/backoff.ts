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

/**
 * When a token is to be renewed, in milliseconds from now; null if it does not say. Reads `exp` and `iat` of a JWT without
 * verifying: the server does that. The lifetime bounds the delay too, for a device whose clock is wrong.
 */
export function renewalMs(token: string, now: number): number | null {
  try {
    const part = token.split('.')[1]!.replace(/-/g, '+').replace(/_/g, '/');
    const claims = JSON.parse(atob(part)) as { exp?: unknown; iat?: unknown };
    if (typeof claims.exp !== 'number') return null;
    const left = claims.exp * 1000 - now;
    const lifetime = typeof claims.iat === 'number' ? (claims.exp - claims.iat) * 1000 : left;
    const until = Math.min(left, lifetime);
    // A tenth of the time before, at least one second, at most a minute.
    return Math.max(0, until - Math.min(60_000, Math.max(1_000, until / 10)));
  } catch {
    return null;
  }
}
