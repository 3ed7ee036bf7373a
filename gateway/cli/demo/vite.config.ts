import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

export default defineConfig({
  // The page may be served below any path.
  base: './',
  resolve: {
    alias: { tidegate: fileURLToPath(new URL('../../../client-sdk-ts/src/index.ts', import.meta.url)) },
  },
  build: {
    target: 'es2022',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    // Fixed names: the output is committed, and a change shows as a change.
    rolldownOptions: { output: { entryFileNames: 'app.js', assetFileNames: '[name][extname]' } },
  },
  server: {
    proxy: {
      '/demo': 'http://127.0.0.1:8787',
      '/v3': { target: 'http://127.0.0.1:8787', ws: true },
    },
  },
});
