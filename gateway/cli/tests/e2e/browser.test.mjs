// The demo in headless Chromium against a running `tidegate dev`: TIDEGATE_URL and DATABASE_URL say where it is, TIDEGATE_BIN and
// TIDEGATE_DATA how to change it from outside. Tests act, wait for what a person would see, and assert; none sleeps.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { accessSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import pg from 'pg';
import { chromium } from 'playwright-core';

const run = promisify(execFile);
const url = process.env.TIDEGATE_URL;
const candidates = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
const exists = (path) => {
  try {
    return path !== undefined && (accessSync(path), true);
  } catch {
    return false;
  }
};

let browser;
let database;
/** Errors that any page reported, except those of sockets that a test cut on purpose. */
const errors = [];

before(async () => {
  const executablePath = candidates.find(exists);
  assert.ok(executablePath, `no Chromium: looked for ${candidates.filter(Boolean).join(', ')}; install it or set CHROMIUM`);
  browser = await chromium.launch({
    executablePath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  database = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 2 });
});

after(async () => {
  await browser?.close();
  await database?.end();
});

async function open(user) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error') errors.push(`${user}: ${message.text()}`);
  });
  page.on('pageerror', (error) => errors.push(`${user}: ${error.message}`));
  await page.goto(`${url}/?user=${user}`);
  await page.locator('#status[data-state="online"]').waitFor();
  await page.locator('#board .card').first().waitFor();
  return page;
}

/** What anybody can do with a terminal. */
async function outside(sql) {
  await run(process.env.TIDEGATE_BIN, ['--data', process.env.TIDEGATE_DATA, 'sql', sql]);
}

let next = 1_000_000 + Math.floor(Math.random() * 1_000_000_000);
async function card(title, list = 1) {
  const id = next++;
  await database.query('insert into demo.card (id, board_id, list_id, title, position) values ($1, 1, $2, $3, 90000)', [id, list, title]);
  return id;
}

const cardOf = (page, title) => page.locator('#board .card', { hasText: title });
const listOf = (page, name) => page.locator('#board section, #board > *', { has: page.locator('h2', { hasText: name }) }).first();

test('a row changed from outside appears in both tabs', async () => {
  const [ada, ben] = await Promise.all([open('ada'), open('ben')]);
  const id = await card('before outside');
  await Promise.all([cardOf(ada, 'before outside').waitFor(), cardOf(ben, 'before outside').waitFor()]);
  await outside(`update demo.card set title = 'after outside' where id = ${id}`);
  await Promise.all([cardOf(ada, 'after outside').waitFor(), cardOf(ben, 'after outside').waitFor()]);
  assert.equal(await cardOf(ada, 'before outside').count(), 0);
  await Promise.all([ada.context().close(), ben.context().close()]);
});

test('a card moved in one tab appears in the other, and its fate goes saved, committed, visible', async () => {
  const [ada, ben] = await Promise.all([open('ada'), open('ben')]);
  await card('travels', 1);
  await cardOf(ben, 'travels').waitFor();
  await cardOf(ada, 'travels').waitFor();
  await ada.evaluate(() => {
    window.stages = [];
    const note = () => {
      const stage = document.querySelector('#own .fate')?.dataset.stage;
      if (stage && window.stages.at(-1) !== stage) window.stages.push(stage);
    };
    new MutationObserver(note).observe(document.querySelector('#own'), { subtree: true, childList: true, attributes: true });
  });
  await cardOf(ada, 'travels').locator('[data-act="→"]').click();
  await ada.locator('#own .fate[data-stage="visible"]').first().waitFor();
  await listOf(ben, 'This week').locator('.card', { hasText: 'travels' }).waitFor();
  const stages = await ada.evaluate(() => window.stages);
  assert.deepEqual(stages.filter((stage) => stage !== 'saving'), ['saved', 'committed', 'visible']);
  await Promise.all([ada.context().close(), ben.context().close()]);
});

test('a stale version shows as a conflict, with the choice', async () => {
  const ada = await open('ada');
  const id = await card('contested');
  await cardOf(ada, 'contested').waitFor();
  await ada.locator('#pause').click();
  await cardOf(ada, 'contested').locator('button.title').click();
  await ada.locator('#board input.title').fill('contested: mine');
  await ada.locator('#board input.title').press('Enter');
  await outside(`update demo.card set title = 'contested: theirs' where id = ${id}`);
  await ada.locator('#pause').click();
  const choice = ada.locator('.choice', { hasText: 'Somebody else changed this first' });
  await choice.waitFor();
  await choice.getByRole('button', { name: 'Take theirs' }).click();
  await cardOf(ada, 'contested: theirs').waitFor();
  await choice.waitFor({ state: 'detached' });
  await ada.context().close();
});

test('a transaction that moves rows between lists is never seen half', async () => {
  const ada = await open('ada');
  const [a, b] = [await card('swap one', 1), await card('swap two', 4)];
  await cardOf(ada, 'swap one').waitFor();
  await cardOf(ada, 'swap two').waitFor();
  await ada.evaluate(() => {
    window.looks = 0;
    window.torn = [];
    const look = () => {
      window.looks += 1;
      const lists = [...document.querySelectorAll('#board .cards')]
        .map((list) => [...list.querySelectorAll('.card')].filter((card) => card.textContent.includes('swap ')).length)
        .filter((count) => count > 0);
      if (lists.join() !== '1,1') window.torn.push(lists.join());
    };
    new MutationObserver(look).observe(document.querySelector('#board'), { subtree: true, childList: true, characterData: true });
  });
  for (let round = 0; round < 20; round += 1) {
    await database.query(
      `update demo.card set list_id = case list_id when 1 then 4 else 1 end, note = 'round ${round}' where id in (${a}, ${b})`,
    );
  }
  await cardOf(ada, 'swap one').locator('.note', { hasText: 'round 19' }).waitFor();
  const { looks, torn } = await ada.evaluate(() => ({ looks: window.looks, torn: window.torn }));
  assert.ok(looks > 0);
  assert.deepEqual(torn, []);
  await ada.context().close();
});

test('a visitor sees the public list alone, and a card that leaves it disappears', async () => {
  const visitor = await open('visitor');
  await card('announced', 4);
  await cardOf(visitor, 'announced').waitFor();
  await card('kept private', 1);
  await outside("update demo.card set list_id = 1 where title = 'announced'");
  await cardOf(visitor, 'announced').waitFor({ state: 'detached' });
  assert.equal(await cardOf(visitor, 'kept private').count(), 0);
  await visitor.context().close();
});

test('no page reported an error', () => {
  assert.deepEqual(errors, []);
});
