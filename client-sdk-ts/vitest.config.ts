import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: { include: ['test/unit/**/*.test.ts', 'test/model/**/*.test.ts'], typecheck: { enabled: false } },
});
