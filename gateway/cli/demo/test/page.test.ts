/**
 * The demo page, used as a person would: a real Chromium (CHROMIUM_PATH, else Debian's) against a real server (TIDEGATE_URL), changed
 * from outside through the program itself (TIDEGATE_BIN, with TIDEGATE_DATA or DATABASE_URL in the environment). The page is the one that the
 * server has embedded. Nothing here sleeps: everything waits for what it expects to see.
 */

import { execFileSync } from 'node:child_process';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === '') throw new Error(`these tests need ${name}: see test/page.test.ts`);
  return value;
}

let browser: Browser;
const complaints: string[] = [];

beforeAll(async () => {
  const executablePath = process.env.CHROMIUM_PATH ?? '/usr/bin/chromium';
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
});
afterAll(async () => {
  await browser?.close();
});
afterEach(() => {
  expect(complaints.splice(0)).toEqual([]);
});

async function open(user: string): Promise<Page> {
  // A window each: a tab behind another one would draw once a second.
  const page = await browser.newPage({ viewport: { width: 1360, height: 860 }, reducedMotion: 'reduce' });
  page.setDefaultTimeout(15_000);
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('request', (request) => {
    if (new URL(request.url()).host !== new URL(given('TIDEGATE_URL')).host) complaints.push(`asked ${request.url()}`);
  });
  await page.goto(`${given('TIDEGATE_URL')}/?user=${user}`);
  await page.locator('#status', { hasText: 'online' }).waitFor();
  return page;
}

const card = (page: Page, title: string) => page.locator('.card', { hasText: title });
const list = (page: Page, name: string) => page.locator('.list', { has: page.getByRole('heading', { name }) });
const own = (page: Page) => page.locator('#own');

/** Waits until a write is done. */
async function done(page: Page, what: string): Promise<void> {
  await own(page).locator('li', { hasText: what }).locator('.fate[data-stage="visible"]').first().waitFor();
}

async function add(page: Page, to: string, title: string): Promise<void> {
  await list(page, to).getByRole('textbox').fill(title);
  await list(page, to).getByRole('button', { name: 'Add' }).click();
  await done(page, `added “${title}”`);
}

/** What anybody with a terminal can do. */
function outside(sql: string): void {
  execFileSync(given('TIDEGATE_BIN'), ['sql', sql]);
}

let names = 0;
function title(): string {
  names += 1;
  return `card ${names} of ${process.pid}`;
}

test('a card is added, renamed, moved and deleted; each write goes saved, committed, visible; the other user sees it', async () => {
  const [ada, ben] = [await open('ada'), await open('ben')];
  const first = title();
  await add(ada, 'Ideas', first);
  await card(ben, first).waitFor();
  await card(ben, first).getByRole('button', { name: first, exact: true }).click();
  await ben.getByRole('textbox', { name: 'Title' }).fill(`${first}, renamed`);
  await ben.keyboard.press('Enter');
  await done(ben, `renamed “${first}”`);
  await card(ada, `${first}, renamed`)
    .getByRole('button', { name: /to This week/ })
    .click();
  await done(ada, 'to This week');
  await list(ben, 'This week').locator('.card', { hasText: first }).waitFor();
  await card(ben, first)
    .getByRole('button', { name: /^Delete/ })
    .click();
  await card(ada, first).waitFor({ state: 'detached' });
  await Promise.all([ada.close(), ben.close()]);
});

test('the fate of a write is shown step by step: saved, committed, visible', async () => {
  const ada = await open('ada');
  await ada.evaluate(() => {
    const stages: string[] = [];
    const note = () => {
      const stage = document.querySelector<HTMLElement>('#own .fate')?.dataset.stage;
      if (stage !== undefined && stages.at(-1) !== stage) stages.push(stage);
    };
    Object.assign(window, { stages });
    new MutationObserver(note).observe(document.querySelector('#own')!, {
      subtree: true,
      childList: true,
      attributes: true,
    });
  });
  await add(ada, 'Ideas', title());
  const stages = await ada.evaluate(() => (window as unknown as { stages: string[] }).stages);
  expect(stages.filter((stage) => stage !== 'saving')).toEqual(['saved', 'committed', 'visible']);
  await ada.close();
});

test('a transaction that moves rows between lists is never seen half', async () => {
  const ada = await open('ada');
  const [one, two] = [title(), title()];
  await add(ada, 'Ideas', one);
  await add(ada, 'Announced', two);
  await ada.evaluate(
    (titles) => {
      const torn: string[] = [];
      const look = () => {
        const counts = [...document.querySelectorAll('#board .cards')]
          .map((list) => [...list.querySelectorAll('.card .title')])
          .map((cards) => cards.filter(({ textContent }) => titles.includes(textContent ?? '')).length)
          .filter((count) => count > 0);
        if (counts.join() !== '1,1') torn.push(counts.join());
      };
      Object.assign(window, { torn });
      new MutationObserver(look).observe(document.querySelector('#board')!, { subtree: true, childList: true });
    },
    [one, two],
  );
  const swap = `update demo.card set list_id = 5 - list_id where title in ('${one}', '${two}')`;
  for (let round = 0; round < 5; round += 1) outside(swap);
  await list(ada, 'Announced').locator('.card', { hasText: one }).waitFor();
  expect(await ada.evaluate(() => (window as unknown as { torn: string[] }).torn)).toEqual([]);
  await ada.close();
});

test('a card is dragged to another list', async () => {
  const ada = await open('ada');
  const first = title();
  await add(ada, 'Ideas', first);
  await card(ada, first).dragTo(list(ada, 'In review').locator('.cards'));
  await list(ada, 'In review').locator('.card', { hasText: first }).waitFor();
  await done(ada, 'to In review');
  await ada.close();
});

test('the lines to paste begin with the command that the server tells, else with its name', async () => {
  const line = async (status: number, contentType: string, body: string) => {
    const page = await browser.newPage();
    await page.route('**/demo/program', (route) => route.fulfill({ status, contentType, body }));
    await page.goto(`${given('TIDEGATE_URL')}/?user=ada`);
    const text = await page.locator('#lines code').first().textContent();
    await page.close();
    return text;
  };
  expect(await line(200, 'text/plain; charset=utf-8', 'target/debug/tidegate --data /data/.tidegate\n')).toMatch(
    /^target\/debug\/tidegate --data \/data\/.tidegate sql "update demo\.card/,
  );
  expect(await line(404, 'text/plain', 'not found')).toMatch(/^tidegate sql "/);
  expect(await line(200, 'text/html', '<!doctype html>')).toMatch(/^tidegate sql "/);
});

test('SQL from outside shows at once', async () => {
  const ada = await open('ada');
  const first = title();
  await add(ada, 'Ideas', first);
  outside(`update demo.card set title = title || ' ✓' where title = '${first}'`);
  await card(ada, `${first} ✓`).waitFor();
  await ada.locator('#last', { hasText: `changed “${first} ✓”` }).waitFor();
  await ada.close();
});

test('a visitor sees the public list only, and cannot write', async () => {
  const visitor = await open('visitor');
  await card(visitor, 'Shared calendars').waitFor();
  expect(await visitor.locator('.list').count()).toBe(1);
  expect(await visitor.getByRole('button', { name: /Add|Move|Delete/ }).count()).toBe(0);
  await visitor.locator('#notice', { hasText: 'as a visitor' }).waitFor();
  await visitor.close();
});

for (const [choice, end] of [
  ['Keep mine', 'mine'],
  ['Take theirs', 'theirs'],
] as const) {
  test(`work offline; a conflict shows both versions, and ${choice} decides it`, async () => {
    const [ada, ben] = [await open('ada'), await open('ben')];
    const first = title();
    await add(ada, 'Ideas', first);
    const rename = async (page: Page, to: string) => {
      await card(page, first).getByRole('button', { name: first, exact: true }).click();
      await page.getByRole('textbox', { name: 'Title' }).fill(`${first} ${to}`);
      await page.keyboard.press('Enter');
    };
    await card(ben, first).waitFor();
    await ada.getByRole('button', { name: 'Work offline' }).click();
    await ada.locator('#status', { hasText: 'offline' }).waitFor();
    await rename(ada, 'mine');
    await card(ada, `${first} mine`).locator('.fate[data-stage="saved"]').waitFor();
    await rename(ben, 'theirs');
    await done(ben, `renamed “${first}”`);
    await ada.getByRole('button', { name: 'Go online' }).click();
    const question = card(ada, `${first} theirs`).locator('.choice');
    await question.getByText(`yours: “${first} mine” · theirs: “${first} theirs”`).waitFor();
    await question.getByRole('button', { name: choice }).click();
    await question.waitFor({ state: 'detached' });
    await card(ben, `${first} ${end}`).waitFor();
    await card(ada, `${first} ${end}`).waitFor();
    await Promise.all([ada.close(), ben.close()]);
  });
}

test('losing membership takes the board away, and being added brings it back', async () => {
  const ben = await open('ben');
  await list(ben, 'Ideas').waitFor();
  outside("delete from demo.board_member where user_id = 'ben'");
  try {
    await list(ben, 'Ideas').waitFor({ state: 'detached' });
    await ben.locator('#notice', { hasText: 'member of no board' }).waitFor();
  } finally {
    outside("insert into demo.board_member (user_id, board_id) values ('ben', 1)");
  }
  await list(ben, 'Ideas').waitFor();
  await ben.close();
});
