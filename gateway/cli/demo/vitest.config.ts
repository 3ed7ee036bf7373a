import { defineConfig } from 'vitest/config';

/** The page in a real Chromium against a real `tidegate dev`: TIDEGATE_URL and DATABASE_URL say where it is. */
export default defineConfig({
  test: { include: ['test/**/*.test.ts'], testTimeout: 60_000, hookTimeout: 60_000, fileParallelism: false },
});
