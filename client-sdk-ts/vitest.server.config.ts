import { defineConfig } from 'vitest/config';

/** Tests against a real server: TIDEGATE_URL, TIDEGATE_TOKEN_URL and DATABASE_URL say where it is. */
export default defineConfig({
  test: { include: ['test/server/**/*.test.ts'], testTimeout: 60_000, hookTimeout: 60_000, fileParallelism: false },
});
