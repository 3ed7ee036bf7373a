/**
 * Frames, read. One table of shapes, checked against the generated types of the frame table; what does not fit is refused as
 * malformed and never guessed. Unknown fields are ignored; a frame of unknown type is null.
 */

import type { Effect, Key, Manifest, RebuildRow, ServerFrame, TransactionEffects } from './frames.ts';
import { malformed, type Packed, unpack } from './msgpack.ts';

/** Longest frame taken from a server that we chose to connect to: 64 MiB. */
const FRAME_BYTES_MAX = 64 << 20;

export type FrameOf<T extends ServerFrame['t']> = Extract<ServerFrame, { t: T }>;

/** Gives the value as a `V`; throws where it is none. */
type Shape<V> = (value: Packed | undefined) => V;

function shape<V>(what: string, fits: (value: Packed | undefined) => boolean): Shape<V> {
  return (value) => {
    if (!fits(value)) throw malformed(`expected ${what}`);
    return value as V;
  };
}

const bool = shape<boolean>('bool', (value) => typeof value === 'boolean');
const uint = shape<number>('uint', (value) => Number.isSafeInteger(value) && (value as number) >= 0);
const str = shape<string>('text', (value) => typeof value === 'string');
const bin = shape<Uint8Array>('bytes', (value) => value instanceof Uint8Array);
const bin16 = shape<Uint8Array>('16 bytes', (value) => value instanceof Uint8Array && value.length === 16);
const oneOf = <V>(...values: readonly V[]) => shape<V>('another word', (value) => values.includes(value as V));
const key: Shape<Key> = (value) =>
  typeof value === 'number' || typeof value === 'bigint' ? BigInt(value) : str(value);
const list =
  <V>(item: Shape<V>): Shape<V[]> =>
  (value) => {
    if (!Array.isArray(value)) throw malformed('expected array');
    return value.map(item);
  };
const maybe =
  <V>(inner: Shape<V>): Shape<V | null> =>
  (value) =>
    value == null ? null : inner(value);
/** Longer arrays are fine: a newer server may append. */
const tuple =
  <V extends readonly unknown[]>(...shapes: { readonly [I in keyof V]: Shape<V[I]> }): Shape<V> =>
  (value) => {
    if (!Array.isArray(value) || value.length < shapes.length) throw malformed('expected tuple');
    return shapes.map((inner, index) => inner(value[index])) as unknown as V;
  };
const record =
  <V extends object>(shapes: { readonly [F in keyof V]-?: Shape<V[F]> }): Shape<V> =>
  (value) => {
    if (!(value instanceof Map)) throw malformed('expected map');
    const out: Record<string, unknown> = {};
    for (const field in shapes) out[field] = shapes[field](value.get(field));
    return out as V;
  };

const manifest = record<Manifest>({
  tables: list(
    record({
      id: uint,
      name: str,
      key: uint,
      cols: list(tuple<readonly [string, string, boolean]>(str, str, bool)),
      write: bool,
    }),
  ),
});
const row = tuple<RebuildRow>(uint, key, bin16, bin);
const effect = tuple<Effect>(oneOf(1, 2), uint, key, bin16, maybe(bin));

const shapes: { readonly [T in ServerFrame['t']]: Shape<Omit<FrameOf<T>, 't'>> } = {
  welcome: record({
    session: bin16,
    v: uint,
    sv: uint,
    schema: maybe(manifest),
    limits: record({
      frame_bytes_max: uint,
      batch_mutations_max: uint,
      scopes_max: uint,
      mutations_per_second: uint,
      unmaterialized_max: uint,
    }),
    heartbeat_ms: uint,
    assigned: list(str),
    set: uint,
    last: uint,
  }),
  schema: record({ sv: uint, schema: manifest }),
  subscribed: record({
    ref: maybe(uint),
    scope: uint,
    name: str,
    mode: oneOf('resume', 'rebuild'),
    reason: maybe(str),
  }),
  rebuild: record({ scope: uint, sv: uint, rows: list(row), token: bin, done: bool }),
  page: record({
    scope: uint,
    sv: uint,
    txs: list(tuple<TransactionEffects>(uint, list(effect))),
    more: bool,
    cursor: bin,
    count: uint,
    digest: bin16,
    fin: bool,
  }),
  joined: record({ scope: uint, cursor: bin, count: uint, digest: bin16 }),
  cut: record({}),
  outcome: record({
    ref: uint,
    results: list(
      record({
        n: uint,
        status: oneOf('accepted', 'conflict', 'rejected', 'discarded'),
        version: maybe(bin16),
        code: maybe(str),
        message: maybe(str),
        row: maybe(row),
      }),
    ),
  }),
  capture_pending: record({ numbers: list(uint), retry_ms: uint }),
  materialized: record({ numbers: list(uint) }),
  scopes: record({ added: list(str), removed: list(str), set: uint }),
  error: record({
    code: str,
    message: str,
    retryable: bool,
    retry_after_ms: maybe(uint),
    ref: maybe(uint),
    of: maybe(str),
  }),
  pong: record({ id: uint }),
  bye: record({ reason: str, reconnect_ms: maybe(uint) }),
};

/** A received frame; null if its type is unknown. */
export function decodeFrame(bytes: Uint8Array): ServerFrame | null {
  if (bytes.length > FRAME_BYTES_MAX) throw malformed('too many bytes');
  const value = unpack(bytes);
  if (!(value instanceof Map) || value.keys().next().value !== 't')
    throw malformed('expected a map that begins with t');
  const t = str(value.get('t'));
  if (!Object.hasOwn(shapes, t)) return null;
  return { t, ...shapes[t as ServerFrame['t']](value) } as ServerFrame;
}

/** The values of a row. */
export function decodeRow(bytes: Uint8Array): readonly Packed[] {
  return list<Packed>((value) => value!)(unpack(bytes));
}
