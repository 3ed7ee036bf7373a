/** Where the socket is: what an application gives as `url`, completed. Text in, text out. */

import { SyncError } from '../errors.ts';

/** The socket's path on a server of its own (PROTOCOL.md, "Connection"). */
const PATH = '/v3/socket';

/**
 * A base URL gets the socket's path; a URL with a path of its own keeps it. `http` becomes `ws`, `https` becomes `wss`. The text
 * itself is not repeated in the error: it may hold a secret.
 */
export function socketUrl(given: string): string {
  const url = given.replace(/^http/i, 'ws');
  if (!/^wss?:/i.test(url)) throw new SyncError('invalid_url', 'expected an http or ws url');
  return url.replace(/^(\w+:\/\/[^/?]+)\/?(?=\?|$)/, `$1${PATH}`);
}
