/**
 * SHA-256, synchronous: `crypto.subtle` is asynchronous and absent on plain http origins. Written here because the usual package is
 * three times as long, and a digest guards against faults only, never a secret. Tested against the platform's own.
 */

/**
 * The first 32 bits of the fractions of roots of the first primes: of square roots the initial state, of cube roots the round
 * constants (FIPS 180-4). Computed, exactly, because that is shorter than writing them down.
 */
function fractions(degree: 2n | 3n, count: number): Int32Array {
  const primes: bigint[] = [];
  for (let n = 2n; primes.length < count; n++) if (primes.every((prime) => n % prime !== 0n)) primes.push(n);
  return Int32Array.from(primes, (prime) => {
    let root = 0n;
    for (let bit = 1n << 40n; bit > 0n; bit >>= 1n) {
      if ((root + bit) ** degree <= prime << (32n * degree)) root += bit;
    }
    return Number(BigInt.asIntN(32, root));
  });
}

const INITIAL = /* @__PURE__ */ fractions(2n, 8);
const K = /* @__PURE__ */ fractions(3n, 64);

/** The message schedule; one is enough, nothing here waits. */
const W = new Int32Array(64);

function rotate(word: number, by: number): number {
  return (word >>> by) | (word << (32 - by));
}

/** Mixes one block of 64 bytes into the state. */
function mix(state: Int32Array, view: DataView, at: number): void {
  for (let i = 0; i < 16; i++) W[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i++) {
    const x = W[i - 15]!;
    const y = W[i - 2]!;
    const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
    const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
    W[i] = W[i - 16]! + s0 + W[i - 7]! + s1;
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let i = 0; i < 64; i++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i]! + W[i]!) | 0;
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  for (const [i, word] of [a, b, c, d, e, f, g, h].entries()) state[i]! += word;
}

/** The 32 bytes of the hash. */
export function sha256(bytes: Uint8Array): Uint8Array {
  const state = INITIAL.slice();
  const whole = bytes.length & ~63;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < whole; at += 64) mix(state, view, at);
  // The rest, a one bit, zeros, and the length in bits, in one or two blocks.
  const rest = bytes.length - whole;
  const tail = new DataView(new ArrayBuffer(rest < 56 ? 64 : 128));
  for (let i = 0; i < rest; i++) tail.setUint8(i, bytes[whole + i]!);
  tail.setUint8(rest, 0x80);
  tail.setUint32(tail.byteLength - 8, Math.floor(bytes.length / 2 ** 29));
  tail.setUint32(tail.byteLength - 4, bytes.length << 3);
  for (let at = 0; at < tail.byteLength; at += 64) mix(state, tail, at);
  const out = new DataView(new ArrayBuffer(32));
  for (let i = 0; i < 8; i++) out.setInt32(4 * i, state[i]!);
  return new Uint8Array(out.buffer);
}
