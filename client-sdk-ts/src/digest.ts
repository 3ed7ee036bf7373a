/** Row and scope digests (V4): they prove that a client holds exactly a scope's rows. Bytes are hashed as received. */

import { keyDigestBytes, type RowKey } from './key.ts';
import { sha256 } from './sha256.ts';

const MASK = (1n << 128n) - 1n;

/**
 * First 16 bytes of SHA-256 over table id, key, version and row bytes, the variable parts prefixed with their length, as a
 * number of 128 bits.
 */
export function rowDigest(table: number, key: RowKey, version: Uint8Array, row: Uint8Array): bigint {
  const keyBytes = keyDigestBytes(key);
  const input = new Uint8Array(28 + keyBytes.length + row.length);
  const view = new DataView(input.buffer);
  view.setUint32(0, table);
  view.setUint32(4, keyBytes.length);
  input.set(keyBytes, 8);
  input.set(version, 8 + keyBytes.length);
  view.setUint32(24 + keyBytes.length, row.length);
  input.set(row, 28 + keyBytes.length);
  return digestFromBytes(sha256(input));
}

/** Reads 16 bytes, big-endian. */
export function digestFromBytes(bytes: Uint8Array): bigint {
  const view = new DataView(bytes.buffer, bytes.byteOffset, 16);
  return (view.getBigUint64(0) << 64n) | view.getBigUint64(8);
}

/** A scope's digest is the sum of its rows' digests modulo 2^128, free of order. */
export function digestPlus(digest: bigint, row: bigint): bigint {
  return (digest + row) & MASK;
}

export function digestMinus(digest: bigint, row: bigint): bigint {
  return (digest - row) & MASK;
}
