/** SCHEMA.md tells the generator's author what to write: its example, the demo's file and its rules agree. */

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { schema } from '../../../gateway/cli/demo/src/schema.ts';
import type { Schema, Tables } from '../../src/index.ts';

const read = (path: string) => readFileSync(new URL(path, import.meta.url), 'utf8');

test("the demo's schema is the example, byte for byte", () => {
  const example = /```ts\n(.*?)```/s.exec(read('../../SCHEMA.md'))?.[1];
  expect(read('../../../gateway/cli/demo/src/schema.ts')).toBe(example);
});

test('its hash is made as the page says', () => {
  let text = '';
  for (const { name, key, write, columns } of Object.values((schema as unknown as Schema<Tables>).tables)) {
    text += `${name}\t${key}\t${write}\n`;
    for (const [column, declared] of Object.entries(columns)) text += `\t${column}\t${declared}\n`;
  }
  expect(schema.hash).toBe(createHash('sha256').update(text).digest('hex').slice(0, 16));
});
