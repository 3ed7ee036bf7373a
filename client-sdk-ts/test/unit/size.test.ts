/** The core, minified and compressed: what an application ships that imports `createSync`. There are no dependencies to add. */

import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build, type Rollup } from 'vite';
import { expect, test } from 'vitest';

const INDEX = fileURLToPath(new URL('../../src/index.ts', import.meta.url));

/** 20 KB: what the design allows. */
const GZIP_BYTES_MAX = 20 * 1024;

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
        input: 'core',
        preserveEntrySignatures: 'strict',
        plugins: [
          {
            name: 'core',
            resolveId: (id) => (id === 'core' ? id : null),
            load: (id) => (id === 'core' ? `export { createSync } from ${JSON.stringify(INDEX)}` : null),
          },
        ],
      },
    },
  })) as Rollup.RollupOutput;
  const [chunk] = output;
  const bytes = gzipSync(chunk.code, { level: 9 }).length;
  expect(bytes).toBeLessThanOrEqual(GZIP_BYTES_MAX);
}, 60_000);
