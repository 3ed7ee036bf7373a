/** The core with its dependencies, minified and compressed, as an application would ship it. */

import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build, type Rollup } from 'vite';
import { expect, test } from 'vitest';

/** 20 KB: what the design allows. */
const GZIP_BYTES_MAX = 20_000;

test('the core is at most 20 KB compressed', async () => {
  const { output } = (await build({
    configFile: false,
    logLevel: 'silent',
    build: {
      write: false,
      minify: true,
      target: 'es2022',
      modulePreload: false,
      rolldownOptions: {
        input: fileURLToPath(new URL('../../src/index.ts', import.meta.url)),
        preserveEntrySignatures: 'strict',
      },
    },
  })) as Rollup.RollupOutput;
  const [chunk] = output;
  const bytes = gzipSync(chunk.code, { level: 9 }).length;
  expect(bytes).toBeLessThanOrEqual(GZIP_BYTES_MAX);
}, 60_000);
