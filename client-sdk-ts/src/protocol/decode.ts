/**
 * Frames from MessagePack. One table of shapes, checked against the generated types of the frame table; what does not fit is a
 * `Malformed` and never a guess. Unknown fields are ignored; a frame of unknown type is null.
 *
 * The library's decoder gives texts as bytes here (`rawStrings`), because its own text decoding drops a byte order mark at the
 * start of longer texts, which would alter values and keys, and accepts ill-formed UTF-8.
 */

import { Decoder } from '@msgpack/msgpack';
import { text } from '../bytes.ts';
import type { Effect, Key, Manifest, RebuildRow, ServerFrame, TransactionEffects } from './frames.ts';

/** Longest frame taken from a server that we chose to connect to: 64 MiB. */
const FRAME_BYTES_MAX = 64 << 20;
const ITEMS_MAX = 1_000_000;

const decoder = new Decoder({
  useBigInt64: true,
  rawStrings: true,
  maxBinLength: FRAME_BYTES_MAX,
  maxStrLength: FRAME_BYTES_MAX,
  maxArrayLength: ITEMS_MAX,
  maxMapLength: ITEMS_MAX,
  maxExtLength: 0,
  mapKeyConverter: (key) => {
    if (typeof key === 'string' || typeof key === 'number') return key;
    throw new Malformed('map key');
  },
});

export type FrameOf<T extends ServerFrame['t']> = Extract<ServerFrame, { t: T }>;

/** Bytes are not what the frame table says. Has no part of them. */
export class Malformed extends Error {
  constructor(what: string) {
    super(`malformed frame: ${what}`);
  }
}

type Shape<V> = (value: unknown) => V;

const bool: Shape<boolean> = (value) => {
  if (typeof value !== 'boolean') throw new Malformed('expected bool');
  return value;
};
const uint: Shape<number> = (value) => {
  const number = typeof value === 'bigint' ? Number(value) : value;
  if (typeof number !== 'number' || !Number.isSafeInteger(number) || number < 0) throw new Malformed('expected uint');
  return number;
};
const bin: Shape<Uint8Array> = (value) => {
  if (!(value instanceof Uint8Array)) throw new Malformed('expected bytes');
  return value;
};
const bin16: Shape<Uint8Array> = (value) => {
  const bytes = bin(value);
  if (bytes.length !== 16) throw new Malformed('expected 16 bytes');
  return bytes;
};
const str: Shape<string> = (value) => text(bin(value));
const key: Shape<Key> = (value) => {
  if (typeof value === 'bigint') return value;
  if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value);
  return str(value);
};
const word =
  <W extends string>(...words: readonly W[]): Shape<W> =>
  (value) => {
    const found = words.find((candidate) => candidate === str(value));
    if (found === undefined) throw new Malformed('unknown word');
    return found;
  };
const op: Shape<1 | 2> = (value) => {
  if (value !== 1 && value !== 2) throw new Malformed('expected 1 or 2');
  return value;
};
const list =
  <V>(item: Shape<V>): Shape<V[]> =>
  (value) => {
    if (!Array.isArray(value)) throw new Malformed('expected array');
    return value.map(item);
  };
const maybe =
  <V>(shape: Shape<V>): Shape<V | null> =>
  (value) =>
    value === undefined || value === null ? null : shape(value);
/** Longer arrays are fine: a newer server may append. */
const tuple =
  <V extends readonly unknown[]>(...shapes: { readonly [I in keyof V]: Shape<V[I]> }): Shape<V> =>
  (value) => {
    if (!Array.isArray(value) || value.length < shapes.length) throw new Malformed('expected tuple');
    return shapes.map((shape, index) => shape(value[index])) as unknown as V;
  };
const record =
  <V extends object>(shapes: { readonly [F in keyof V]-?: Shape<V[F]> }): Shape<V> =>
  (value) => {
    if (typeof value !== 'object' || value === null) throw new Malformed('expected map');
    const out: Record<string, unknown> = {};
    for (const field in shapes) out[field] = shapes[field]((value as Record<string, unknown>)[field]);
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
const effect = tuple<Effect>(op, uint, key, bin16, maybe(bin));

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
    mode: word('resume', 'rebuild'),
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
        status: word('accepted', 'conflict', 'rejected', 'discarded'),
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
  if (bytes.length > FRAME_BYTES_MAX) throw new Malformed('too many bytes');
  const value = decodeValue(bytes);
  if (typeof value !== 'object' || value === null || Object.keys(value)[0] !== 't')
    throw new Malformed('expected a map');
  const t = str((value as { t: unknown }).t);
  if (!Object.hasOwn(shapes, t)) return null;
  try {
    return { t, ...shapes[t as ServerFrame['t']](value) } as ServerFrame;
  } catch (error) {
    throw error instanceof Malformed ? new Malformed(`${t}: ${error.message}`) : new Malformed(t);
  }
}

/** The values of a row, texts still as bytes. */
export function decodeRow(bytes: Uint8Array): unknown[] {
  const value = decodeValue(bytes);
  if (!Array.isArray(value)) throw new Malformed('expected a row');
  return value;
}

function decodeValue(bytes: Uint8Array): unknown {
  try {
    return decoder.decode(bytes);
  } catch {
    throw new Malformed('not MessagePack');
  }
}
