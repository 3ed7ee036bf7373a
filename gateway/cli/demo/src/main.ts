/** The demo page: one Sync, the scopes that the server grants, and what a person does with the board. */

import { createSync, newInt64, type Scope } from 'tidegate';
import { type Actions, Board, cardsOf } from './board.ts';
import { commandToType } from './command.ts';
import { byId, h } from './dom.ts';
import { Line } from './line.ts';
import { OwnWrites } from './own.ts';
import { linkTo, PEOPLE, personOf, tokenOf } from './people.ts';
import { type DemoCard, schema, type Tables } from './schema.ts';

/** Distance of neighbours in a list; room for cards in between. */
const GAP = 1000;

const person = personOf(location.search);
const line = new Line();
const sync = createSync({
  url: new URL('v3/socket', location.href.replace(/^http/, 'ws')).href.replace(/[?#].*/, ''),
  schema,
  user: person.id ?? 'visitor',
  auth: () => tokenOf(person),
  environment: line.environment,
  log: 'silent',
});

/** What is looked at: the person's board if there is one, else what everybody may see. */
const everybody = sync.scope('public');
let board: Scope<Tables> | null = null;
const view = () => board ?? everybody;
const lists = () => view().table('demo.list');
const cards = () => view().table('demo.card');

const own = new OwnWrites(sync, (id) => cards().get(id)?.title, drawSoon);
const actions: Actions = {
  add(list, title) {
    const last = cardsOf(list, cards().rows().value).at(-1);
    const card: DemoCard = {
      id: newInt64(),
      board_id: list.board_id,
      list_id: list.id,
      title,
      note: null,
      position: (last?.position ?? 0) + GAP,
      color: null,
      rev: 1,
      public: list.public,
    };
    own.follow(`added “${title}”`, [card.id], cards().insert(card));
  },
  rename(card, title) {
    own.follow(`renamed “${card.title}”`, [card.id], cards().update(card.id, { title }));
  },
  move(card, list, index) {
    const others = cardsOf(list, cards().rows().value).filter(({ id }) => id !== card.id);
    const at = Math.min(index, others.length);
    const before = others[at - 1]?.position ?? 0;
    const after = others[at]?.position ?? before + 2 * GAP;
    const to = { list_id: list.id, public: list.public };
    const what = `moved “${card.title}” to ${list.name}`;
    const position = Math.floor((before + after) / 2);
    if (position > before) return own.follow(what, [card.id], cards().update(card.id, { ...to, position }));
    // No room left: number the whole list anew, in one atomic write.
    const order = [...others.slice(0, at), card, ...others.slice(at)];
    const write = sync.batch(() => {
      for (const [place, { id }] of order.entries()) {
        const position = (place + 1) * GAP;
        cards().update(id, id === card.id ? { ...to, position } : { position });
      }
    });
    own.follow(
      what,
      order.map(({ id }) => id),
      write,
    );
  },
  remove(card) {
    own.follow(`deleted “${card.title}”`, [card.id], cards().delete(card.id));
  },
};
const page = new Board(actions, own);

let drawing = false;
/** Many changes of one moment are drawn once. */
function drawSoon(): void {
  if (drawing) return;
  drawing = true;
  queueMicrotask(() => {
    drawing = false;
    draw();
  });
}

function draw(): void {
  const all = cards().rows().value;
  const listed = lists().rows().value;
  page.draw(listed, all, board !== null);
  const { data, stale } = view().status.value;
  byId('rows').textContent =
    data === 'none' || data === 'rebuilding' ? '' : `${all.length + listed.length} rows${stale ? ', maybe stale' : ''}`;
  notice(data !== 'none');
}

function notice(known: boolean): void {
  const element = byId('notice');
  let text = '';
  if (person.id === null) text = 'You look as a visitor: of the whole board, only the public list reaches this page.';
  else if (board === null && known)
    text =
      'You are a member of no board now, so only the public list is left. Being added brings the board back at once.';
  element.textContent = text;
  element.hidden = text === '';
}

/** A board comes and goes with the person's membership, which is a row in the database. */
function follow(assigned: readonly string[]): void {
  const name = assigned.find((scope) => scope.startsWith('board:')) ?? null;
  if (name === (board?.id ?? null)) return;
  board?.release();
  board = name === null ? null : sync.scope(name);
  if (board !== null) watch(board);
  drawSoon();
}

function watch(scope: Scope<Tables>): void {
  const table = scope.table('demo.card');
  table.rows().subscribe(drawSoon);
  scope.table('demo.list').rows().subscribe(drawSoon);
  scope.status.subscribe(drawSoon);
  scope.effects(({ kind, changes }) => {
    if (scope !== view() || kind === 'rebuild') return;
    const time = new Date().toLocaleTimeString();
    const [first] = changes;
    if (first === undefined) return;
    const title = first.op === 'upsert' && first.table === 'demo.card' ? ` “${first.row.title}”` : '';
    const what =
      changes.length > 1 ? `${changes.length} rows` : first.op === 'upsert' ? `changed${title}` : 'a row left';
    byId('last').textContent = `last change ${time}: ${what}`;
    // Own changes have their badge.
    page.flash(changes.flatMap(({ key }) => (typeof key === 'bigint' && own.badge(key) === null ? [key] : [])));
  });
}

function copyLine(text: string): HTMLElement {
  const code = h('code', { tabindex: '0' }, text);
  const button = h('button', { type: 'button' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      // Without the right to the clipboard, or on a plain http origin: selected, for the keyboard.
      getSelection()?.selectAllChildren(code);
      button.textContent = 'Selected';
    }
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 1_500);
  });
  return h('div', { class: 'line' }, code, button);
}

byId('people').append(
  ...PEOPLE.map((one) =>
    h('a', { href: linkTo(one), ...(one === person ? { 'aria-current': 'page' } : {}) }, one.name),
  ),
);
const other = PEOPLE[person.id === 'ada' ? 1 : 0]!;
const link = byId('other') as HTMLAnchorElement;
link.href = linkTo(other);
link.textContent = `Open ${other.name}'s view ↗`;
void commandToType().then((command) => {
  byId('lines').append(
    copyLine(`${command} sql "update demo.card set title = title || ' ✓' where id = 1"`),
    copyLine(`${command} sql "delete from demo.board_member where user_id = 'ben'"`),
    copyLine(`${command} sql "insert into demo.board_member (user_id, board_id) values ('ben', 1)"`),
  );
});
document.title = `${person.name}: a shared board`;
line.attach(sync);
watch(everybody);
sync.assigned.subscribe(follow);
